//! The shapes on the wire: entries of a listing, links between pages, `ETag`s, expiry dates.
//!
//! Bytes of a server go in, checked values come out; nothing here performs a request. What is not
//! looked at is not kept either, so an answer takes no more memory than its text, whatever is in it.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, LINK};
use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use url::Url;

use crate::core::digest::{Digest, DigestError, GitSha1, Sha256};
use crate::core::manifest::FileEntry;
use crate::core::repo_path::{RepoPath, RepoPathError};

use super::faults::EntryFault;

/// Everything but the characters that RFC 3986 calls unreserved.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// One path segment, with nothing safe in it: `refs/pr/1` becomes `refs%2Fpr%2F1`.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// A file's path for `/resolve/`: every component encoded, the slashes kept.
pub fn encode_path(path: &RepoPath) -> String {
    path.components().map(encode_segment).collect::<Vec<_>>().join("/")
}

/// The answer about a revision; other fields are not looked at.
#[derive(Debug, Deserialize)]
pub struct RepoInfo {
    /// The commit.
    pub sha: Option<String>,
}

/// An entry of the tree as sent.
#[derive(Debug, Deserialize)]
pub struct TreeEntry {
    r#type: String,
    #[serde(default)]
    path: Option<String>,
    #[serde(default, deserialize_with = "whole_number")]
    size: Option<u64>,
    #[serde(default)]
    oid: Option<String>,
    #[serde(default)]
    lfs: Option<Lfs>,
    #[serde(default, rename = "xetHash")]
    xet_hash: Option<String>,
}

/// Its record in large file storage. The content's SHA-256 is called `oid` in the tree and
/// `sha256` in the repository's info; mirrors send either.
#[derive(Debug, Deserialize)]
struct Lfs {
    #[serde(default)]
    oid: Option<String>,
    #[serde(default)]
    sha256: Option<String>,
    #[serde(default)]
    size: Option<u64>,
}

/// One page of a tree, each entry checked as it is read.
#[derive(Debug, Default)]
pub struct Page {
    /// Its files, up to the first entry that cannot be used.
    pub files: Vec<FileEntry>,
    /// How many entries it has, folders included.
    pub entries: usize,
    /// What is wrong with the first entry that cannot be used.
    pub wrong: Option<EntryError>,
}

impl<'de> Deserialize<'de> for Page {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Page;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of entries")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Page, A::Error> {
                let mut page = Page::default();
                while let Some(entry) = list.next_element::<TreeEntry>()? {
                    page.entries += 1;
                    match entry.read() {
                        _ if page.wrong.is_some() => {}
                        Ok(Entry::File(file)) => page.files.push(file),
                        Ok(Entry::Other) => {}
                        Err(error) => page.wrong = Some(error),
                    }
                }
                Ok(page)
            }
        }
        deserializer.deserialize_seq(Entries)
    }
}

/// A whole number; anything else is none, and nothing of it is kept.
fn whole_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    struct Number;
    impl<'de> Visitor<'de> for Number {
        type Value = Option<u64>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("anything")
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<Option<u64>, E> {
            Ok(Some(number))
        }
        fn visit_i64<E: Error>(self, _: i64) -> Result<Option<u64>, E> {
            Ok(None)
        }
        fn visit_f64<E: Error>(self, _: f64) -> Result<Option<u64>, E> {
            Ok(None)
        }
        fn visit_bool<E: Error>(self, _: bool) -> Result<Option<u64>, E> {
            Ok(None)
        }
        fn visit_str<E: Error>(self, _: &str) -> Result<Option<u64>, E> {
            Ok(None)
        }
        fn visit_unit<E: Error>(self) -> Result<Option<u64>, E> {
            Ok(None)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Option<u64>, A::Error> {
            IgnoredAny.visit_seq(list).map(|_| None)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Option<u64>, A::Error> {
            IgnoredAny.visit_map(map).map(|_| None)
        }
    }
    deserializer.deserialize_any(Number)
}

/// What an entry of the tree turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file that can be fetched and proved.
    File(FileEntry),
    /// A folder, a submodule, or a kind that is not known here.
    Other,
}

/// Why an entry cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum EntryError {
    /// Its name is not safe to write.
    Path(RepoPathError),
    /// Its digest is hidden from this caller.
    Masked(RepoPath),
    /// Something is missing or makes no sense.
    Fault(String, EntryFault),
}

impl TreeEntry {
    /// Checks the entry.
    pub fn read(self) -> Result<Entry, EntryError> {
        if self.r#type != "file" {
            return Ok(Entry::Other);
        }
        let Some(path) = &self.path else { return Err(EntryError::Fault("a file".to_owned(), EntryFault::NoPath)) };
        let path = RepoPath::parse(path).map_err(EntryError::Path)?;
        let fault = |fault| EntryError::Fault(path.to_string(), fault);
        // Never a default: a size of 0 would make an empty file pass for a shard.
        let size = self.size.ok_or_else(|| fault(EntryFault::NoSize))?;
        if let Some(lfs) = self.lfs.as_ref().and_then(|lfs| lfs.size).filter(|lfs| *lfs != size) {
            return Err(fault(EntryFault::TwoSizes { size, lfs }));
        }
        let digest = self.digest().map_err(|found| match found {
            EntryFault::Digest(DigestError::Masked { .. }) => EntryError::Masked(path.clone()),
            found => fault(found),
        })?;
        // Only a help to fetch by another way; a masked one is as good as none.
        let xet_hash = self.xet_hash.filter(|hash| Sha256::parse(hash).is_ok());
        Ok(Entry::File(FileEntry { path, size, digest, xet_hash }))
    }

    fn digest(&self) -> Result<Digest, EntryFault> {
        let Some(lfs) = &self.lfs else {
            let oid = self.oid.as_deref().ok_or(EntryFault::NoDigest)?;
            return GitSha1::parse(oid).map(Digest::GitBlob).map_err(EntryFault::Digest);
        };
        let read = |text: &str| Sha256::parse(text.strip_prefix("sha256:").unwrap_or(text)).map_err(EntryFault::Digest);
        let oid = lfs.oid.as_deref().map(read).transpose()?;
        let sha256 = lfs.sha256.as_deref().map(read).transpose()?;
        match (oid, sha256) {
            (Some(one), Some(other)) if one != other => Err(EntryFault::TwoDigests),
            (Some(digest), _) | (None, Some(digest)) => Ok(Digest::Sha256(digest)),
            (None, None) => Err(EntryFault::NoDigest),
        }
    }
}

/// The target of `rel="next"` among the `Link` headers (RFC 8288), as sent.
pub fn next_link(headers: &HeaderMap) -> Option<String> {
    headers.get_all(LINK).iter().filter_map(|value| value.to_str().ok()).find_map(next_in)
}

fn next_in(mut rest: &str) -> Option<String> {
    while let Some((_, after)) = rest.split_once('<') {
        let (target, parameters) = after.split_once('>')?;
        let end = unquoted_comma(parameters);
        if parameters[..end].split(';').any(is_rel_next) {
            return Some(target.trim().to_owned());
        }
        rest = &parameters[end..];
    }
    None
}

fn is_rel_next(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else { return false };
    let value = value.trim().trim_matches('"');
    name.trim().eq_ignore_ascii_case("rel") && value.split_whitespace().any(|rel| rel.eq_ignore_ascii_case("next"))
}

fn unquoted_comma(text: &str) -> usize {
    let mut quoted = false;
    let comma = text.bytes().position(|byte| {
        quoted ^= byte == b'"';
        byte == b',' && !quoted
    });
    comma.unwrap_or(text.len())
}

/// An `ETag` without weakness mark and quotes.
fn etag(value: &str) -> &str {
    value.trim().trim_start_matches("W/").trim_matches('"')
}

/// What a Hub's `ETag` says of a file's content: 64 digits are its SHA-256, 40 its git SHA-1,
/// anything else is opaque.
pub fn digest_of_etag(value: &str) -> Option<Digest> {
    let text = etag(value);
    Sha256::parse(text).map(Digest::Sha256).or_else(|_| GitSha1::parse(text).map(Digest::GitBlob)).ok()
}

/// When a signed URL stops being good, by its own words: `Expires` (CloudFront, unix seconds),
/// or `X-Amz-Date` and `X-Amz-Expires` (S3), or their `X-Goog-` twins. The earliest counts.
pub fn expiry(url: &Url) -> Option<Timestamp> {
    let find = |name: &str| {
        url.query_pairs().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.into_owned())
    };
    let seconds = |name: &str| find(name)?.trim().parse::<i64>().ok();
    let fixed = seconds("Expires").and_then(|at| Timestamp::from_second(at).ok());
    let signed = |scheme: &str| {
        let from = DateTime::strptime("%Y%m%dT%H%M%SZ", find(&format!("X-{scheme}-Date"))?).ok()?;
        let from = from.to_zoned(TimeZone::UTC).ok()?.timestamp();
        let at = from.as_second().checked_add(seconds(&format!("X-{scheme}-Expires"))?)?;
        Timestamp::from_second(at).ok()
    };
    [fixed, signed("Amz"), signed("Goog")].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;

    use super::*;

    const SHA256: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    const SHA1: &str = "0123456789abcdef0123456789abcdef01234567";

    fn read(json: &str) -> Result<Entry, EntryError> {
        serde_json::from_str::<TreeEntry>(json).unwrap().read()
    }

    fn file(json: &str) -> FileEntry {
        match read(json) {
            Ok(Entry::File(entry)) => entry,
            other => panic!("{other:?}"),
        }
    }

    fn fault(json: &str) -> EntryFault {
        match read(json) {
            Err(EntryError::Fault(_, fault)) => fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_revision_and_a_path_are_encoded_each_in_its_way() {
        assert_eq!(encode_segment("refs/pr/1"), "refs%2Fpr%2F1");
        assert_eq!(encode_segment("v1.0_~-a"), "v1.0_~-a");
        assert_eq!(encode_path(&RepoPath::parse("a b/é?#%.txt").unwrap()), "a%20b/%C3%A9%3F%23%25.txt");
    }

    #[test]
    fn the_sha256_is_read_under_both_of_its_names() {
        for lfs in [
            format!(r#""oid":"{SHA256}""#),
            format!(r#""sha256":"{SHA256}""#),
            format!(r#""oid":"sha256:{SHA256}","sha256":"{SHA256}""#),
        ] {
            let entry =
                file(&format!(r#"{{"type":"file","path":"a","size":5,"oid":"{SHA1}","lfs":{{{lfs},"size":5}}}}"#));
            assert_eq!(entry.digest, Digest::Sha256(Sha256::parse(SHA256).unwrap()));
            assert_eq!(entry.size, 5);
        }
        let plain = file(&format!(r#"{{"type":"file","path":"a","size":0,"oid":"{SHA1}","lfs":null}}"#));
        assert_eq!(plain.digest, Digest::GitBlob(GitSha1::parse(SHA1).unwrap()));
    }

    #[test]
    fn masked_digests_are_refused_and_told_from_malformed_ones() {
        let masked = "*".repeat(64);
        let json =
            format!(r#"{{"type":"file","path":"a","size":5,"oid":"{SHA1}","lfs":{{"oid":"{masked}","size":5}}}}"#);
        assert_eq!(read(&json), Err(EntryError::Masked(RepoPath::parse("a").unwrap())));
        let json = json.replace(&masked, "12ab");
        assert!(matches!(fault(&json), EntryFault::Digest(DigestError::Malformed { .. })));
    }

    #[test]
    fn an_entry_that_lacks_something_is_an_error_and_never_a_default() {
        let lfs = |inner: &str| format!(r#"{{"type":"file","path":"a","size":5,"oid":"{SHA1}","lfs":{{{inner}}}}}"#);
        assert_eq!(fault(r#"{"type":"file","path":"a","size":5}"#), EntryFault::NoDigest);
        assert_eq!(fault(&lfs("")), EntryFault::NoDigest);
        assert_eq!(fault(&lfs(&format!(r#""oid":"{SHA256}","size":6"#))), EntryFault::TwoSizes { size: 5, lfs: 6 });
        assert_eq!(
            fault(&lfs(&format!(r#""oid":"{SHA256}","sha256":"{}""#, SHA256.replace('0', "f")))),
            EntryFault::TwoDigests
        );
        let kinds = ["null", "-1", "1.5", r#""5""#, "true", "[1,[2]]", r#"{"a":{}}"#, "18446744073709551616"];
        for size in kinds.map(|size| format!(r#","size":{size}"#)).into_iter().chain([String::new()]) {
            assert_eq!(fault(&format!(r#"{{"type":"file","path":"a","oid":"{SHA1}"{size}}}"#)), EntryFault::NoSize);
        }
        assert_eq!(fault(r#"{"type":"file"}"#), EntryFault::NoPath);
    }

    #[test]
    fn folders_submodules_and_unknown_kinds_are_no_files() {
        for kind in ["directory", "submodule", "unknown", "symlink"] {
            assert_eq!(read(&format!(r#"{{"type":"{kind}","path":"../x"}}"#)), Ok(Entry::Other));
        }
    }

    #[test]
    fn an_unsafe_path_is_named() {
        for path in ["../x", "/etc/passwd", "a/../../b", ".muster/receipt.json", "a\\\\b"] {
            let error = read(&format!(r#"{{"type":"file","path":"{path}","size":1,"oid":"{SHA1}"}}"#)).unwrap_err();
            let EntryError::Path(error) = error else { panic!("{error:?}") };
            assert!(error.path.replace('\\', "") == path.replace('\\', ""), "{error}");
        }
    }

    #[test]
    fn a_masked_xet_hash_is_none() {
        let entry = |hash: &str| {
            file(&format!(r#"{{"type":"file","path":"a","size":1,"oid":"{SHA1}","xetHash":"{hash}"}}"#)).xet_hash
        };
        assert_eq!(entry(SHA256).as_deref(), Some(SHA256));
        assert_eq!(entry(&"*".repeat(64)), None);
    }

    #[test]
    fn the_next_page_is_found_among_links() {
        let next = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(LINK, HeaderValue::try_from(*value).unwrap());
            }
            next_link(&headers)
        };
        assert_eq!(next(&[r#"<https://h/a?cursor=x,y>; rel="next""#]).as_deref(), Some("https://h/a?cursor=x,y"));
        assert_eq!(next(&[r#"<b>; rel=prev, <c>;title="x, <y>"; REL="last Next""#]).as_deref(), Some("c"));
        assert_eq!(next(&["<a>; rel=prev", "<b>;rel=next"]).as_deref(), Some("b"));
        for none in ["", "<a>", "<a", "<a>; rel=prev", r#"<a>; title="rel=next""#] {
            assert_eq!(next(&[none]), None, "{none}");
        }
    }

    #[test]
    fn an_etag_says_which_digest_it_is() {
        assert_eq!(digest_of_etag(&format!("\"{SHA256}\"")), Some(Digest::Sha256(Sha256::parse(SHA256).unwrap())));
        assert_eq!(digest_of_etag(&format!("W/\"{SHA1}\"")), Some(Digest::GitBlob(GitSha1::parse(SHA1).unwrap())));
        assert_eq!(digest_of_etag("\"5d41402abc4b2a76b9719d911017c592-3\""), None);
    }

    #[test]
    fn a_signed_url_says_when_it_expires() {
        let at = |query: &str| expiry(&Url::parse(&format!("https://cdn.example/f?{query}")).unwrap());
        let expected = Timestamp::from_second(1_767_229_200).unwrap();
        assert_eq!(at("Expires=1767229200&Signature=x"), Some(expected));
        assert_eq!(at("X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600"), Some(expected));
        assert_eq!(at("X-Goog-Date=20260101T000000Z&X-Goog-Expires=3600"), Some(expected));
        assert_eq!(at("Expires=1767229201&X-Amz-Date=20260101T000000Z&X-Amz-Expires=3600"), Some(expected));
        for none in
            ["", "Expires=soon", "X-Amz-Expires=3600", "X-Amz-Date=x&X-Amz-Expires=1", "Expires=99999999999999999"]
        {
            assert_eq!(at(none), None, "{none}");
        }
    }

    #[test]
    fn a_page_ends_with_its_first_wrong_entry_and_counts_them_all() {
        let good = format!(r#"{{"type":"file","path":"a","size":1,"oid":"{SHA1}"}}"#);
        let page: Page =
            serde_json::from_str(&format!(r#"[{good},{{"type":"directory"}},{{"type":"file"}},{good}]"#)).unwrap();
        assert_eq!((page.files.len(), page.entries), (1, 4));
        assert_eq!(page.wrong, Some(EntryError::Fault("a file".to_owned(), EntryFault::NoPath)));
        for none in ["{}", "[1]", "[{}]", r#"{"error":"x"}"#, "[", "null"] {
            assert!(serde_json::from_str::<Page>(none).is_err(), "{none}");
        }
    }

    proptest! {
        #[test]
        fn no_text_of_a_server_makes_the_parsers_panic(text in ".{0,80}") {
            let _ = next_in(&text);
            let _ = digest_of_etag(&text);
            let _ = serde_json::from_str::<TreeEntry>(&text).map(TreeEntry::read);
        }
    }
}
