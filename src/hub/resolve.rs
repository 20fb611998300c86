//! Which commit a revision is, and where a file's bytes are.
//!
//! Files are located by one `HEAD` of the resolver, whose redirects are followed by hand: the
//! metadata are on the redirect, the storage server's own headers say other things (its `ETag`
//! has 64 digits too and is not the file's), and the storage must never see the token.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, HeaderMap};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use url::Url;

use crate::clock;
use crate::core::budget::Traffic;
use crate::core::digest::Digest;
use crate::core::endpoint::{Origin, redacted};
use crate::core::manifest::FileEntry;
use crate::core::repo::{CommitId, Repo, Revision};

use super::client::{HOPS_MAX, HubClient, bad_redirect, is_page, redirect_target};
use super::error::HubError;
use super::refusal::Asked;
use super::wire::{RepoInfo, digest_of_etag, encode_path, encode_segment, expiry};

/// Most of a repository's info that is read, in bytes.
const INFO_MAX: usize = 16 << 20;
/// A signed URL is given up this long before it expires, or half-way when it does not last long.
const MARGIN_MAX: Duration = Duration::from_secs(60);

/// Where a file's bytes are. Its URL may hold a signature: it is shown without its query.
#[derive(Clone, PartialEq, Eq)]
pub struct Location {
    url: Url,
    expires_at: Option<Timestamp>,
    margin: Duration,
}

impl Location {
    /// The place that a server named at this time.
    #[must_use]
    pub fn new(url: Url, now: Timestamp) -> Self {
        let expires_at = expiry(&url);
        // One that came expired was just signed: the clocks differ, and the server will say when.
        let lasts = expires_at.and_then(|at| Duration::try_from(at.duration_since(now)).ok());
        let expires_at = expires_at.filter(|_| lasts.is_some_and(|lasts| !lasts.is_zero()));
        Self { url, expires_at, margin: lasts.map_or(MARGIN_MAX, |lasts| MARGIN_MAX.min(lasts / 2)) }
    }

    /// Who serves the bytes.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::of(&self.url)
    }

    /// Whether the Hub itself serves the bytes: then 403 speaks of permission, elsewhere it
    /// mostly means that the signature has expired.
    #[must_use]
    pub fn is_at_hub(&self, client: &HubClient) -> bool {
        self.origin() == client.endpoint().origin()
    }

    /// A `GET` of the bytes, with the token only when the Hub itself serves them. The caller
    /// adds `Range` and sends it with [`HubClient::send`].
    pub fn request(&self, client: &HubClient) -> RequestBuilder {
        client.request(Method::GET, &self.url)
    }

    /// When the URL stops being good, if it says so.
    #[must_use]
    pub const fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    /// Whether the URL has expired, or will soon: within a minute, or the second half of its life.
    #[must_use]
    pub fn is_stale(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|at| now.checked_add(self.margin).map_or(true, |soon| soon >= at))
    }

    /// Where an answer to [`Self::request`] leads on to, or none when it is no redirect.
    ///
    /// # Errors
    /// [`HubError::Redirect`] for one that nobody should follow.
    pub fn next(&self, response: &Response, asked: Asked<'_>, now: Timestamp) -> Result<Option<Self>, HubError> {
        Ok(redirect_target(&self.url, response, asked)?.map(|url| Self::new(url, now)))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&redacted(&self.url))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Location")
            .field("url", &redacted(&self.url))
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

impl HubClient {
    /// The commit that `revision` stands for now. A revision that is a commit needs no request:
    /// see [`Revision::as_commit`].
    ///
    /// # Errors
    /// [`HubError`], after several tries when it may pass.
    pub async fn resolve_revision(&self, repo: &Repo, revision: &Revision) -> Result<CommitId, HubError> {
        let asked = Asked::Revision(repo, revision);
        let path = format!("api/{}/{}/revision/{}", repo.kind.plural(), repo.id, encode_segment(revision.as_str()));
        let url = self.endpoint().join(&path);
        let (info, _) = self.retrying(|| self.ask::<RepoInfo>(&url, asked, INFO_MAX)).await?;
        info.sha.as_deref().and_then(|sha| CommitId::parse(sha).ok()).ok_or_else(|| HubError::NotAHub {
            origin: self.endpoint().origin(),
            why: "its answer about a revision names no commit",
        })
    }

    /// Where the bytes of `entry` are, after checking that the resolver speaks of the same
    /// commit, size and digest as the listing did.
    ///
    /// # Errors
    /// [`HubError`], after several tries when it may pass.
    pub async fn locate(&self, repo: &Repo, commit: CommitId, entry: &FileEntry) -> Result<Location, HubError> {
        self.retrying(|| self.locate_once(repo, commit, entry)).await
    }

    async fn locate_once(&self, repo: &Repo, commit: CommitId, entry: &FileEntry) -> Result<Location, HubError> {
        let asked = Asked::File(repo, commit, &entry.path);
        let path = format!("{repo}/resolve/{commit}/{}", encode_path(&entry.path));
        let mut url = self.endpoint().join(&path);
        for _ in 0..=HOPS_MAX {
            let origin = Origin::of(&url);
            let response = self.send(self.request(Method::HEAD, &url), &origin, Traffic::Resolve).await?;
            let (status, headers) = (response.status(), response.headers());
            if matches!(status, StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) {
                return Ok(Location::new(url, clock::now()));
            }
            let target = redirect_target(&url, &response, asked)?;
            if target.is_none() && !status.is_success() {
                return Err(self.refused(asked, response).await);
            }
            if target.is_none() && is_page(headers) && !headers.contains_key("x-repo-commit") {
                return Err(HubError::NotAHub { origin, why: "a page for people came instead of a file" });
            }
            check_resolver(status, headers, commit, entry, &origin)?;
            let Some(target) = target else { return Ok(Location::new(url, clock::now())) };
            let elsewhere = Origin::of(&target) != origin && !leads_to_a_hub(status, headers);
            if elsewhere || says_everything(headers) {
                return Ok(Location::new(target, clock::now()));
            }
            url = target;
        }
        Err(bad_redirect(&url, asked, format!("more than {HOPS_MAX} times")))
    }
}

/// A permanent redirect without metadata sends to the same question at another Hub (mirrors do
/// so for what they do not hold); it is asked there, without the token. Any other redirect to
/// another origin leads to the bytes.
fn leads_to_a_hub(status: StatusCode, headers: &HeaderMap) -> bool {
    let permanent = matches!(status, StatusCode::MOVED_PERMANENTLY | StatusCode::PERMANENT_REDIRECT);
    permanent && !headers.contains_key("x-repo-commit") && !headers.contains_key("x-linked-etag")
}

/// Whether a redirect says of a file what there is to say: where it leads the bytes are, on this origin too. The
/// Hub answers so for the files that it serves itself.
fn says_everything(headers: &HeaderMap) -> bool {
    headers.contains_key("x-repo-commit") && headers.contains_key("x-linked-etag")
}

/// Whether the head of a resolver's answer says of a file what the listing said.
///
/// # Errors
/// [`HubError::Contradiction`].
pub fn check_resolver(
    status: StatusCode,
    headers: &HeaderMap,
    commit: CommitId,
    entry: &FileEntry,
    origin: &Origin,
) -> Result<(), HubError> {
    check(&Claimed::read(headers, status), commit, entry, origin)
}

/// What the resolver says of a file on one hop. Absent fields say nothing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Claimed {
    commit: Option<String>,
    size: Option<u64>,
    digest: Option<Digest>,
}

impl Claimed {
    fn read(headers: &HeaderMap, status: StatusCode) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
        let number = |name: &str| text(name).and_then(|value| value.parse().ok());
        // The length of a redirect is that of its own body, and some servers say 0 to any HEAD.
        let plain = status == StatusCode::OK && !headers.contains_key(CONTENT_ENCODING);
        let length = if plain { number(CONTENT_LENGTH.as_str()).filter(|length| *length > 0) } else { None };
        Self {
            commit: text("x-repo-commit").map(str::to_owned),
            size: number("x-linked-size").or(length),
            digest: text("x-linked-etag").and_then(digest_of_etag),
        }
    }
}

fn check(claimed: &Claimed, commit: CommitId, entry: &FileEntry, origin: &Origin) -> Result<(), HubError> {
    let contradiction = |what, expected: String, found: String| {
        Err(HubError::Contradiction { origin: origin.clone(), path: entry.path.clone(), what, expected, found })
    };
    if let Some(found) = claimed.commit.as_deref().filter(|found| CommitId::parse(found) != Ok(commit)) {
        let found = found.chars().take(80).flat_map(char::escape_debug).collect();
        return contradiction("commit", commit.to_string(), found);
    }
    if let Some(size) = claimed.size.filter(|size| *size != entry.size) {
        return contradiction("size", entry.size.to_string(), size.to_string());
    }
    match (entry.digest, claimed.digest) {
        // Some mirrors know only the SHA-256, of small files too: it cannot be compared.
        (Digest::GitBlob(_), Some(Digest::Sha256(_))) | (_, None) => Ok(()),
        (expected, Some(found)) if expected != found => {
            contradiction("digest", expected.to_string(), found.to_string())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use crate::core::digest::{GitSha1, Sha256};
    use crate::core::repo_path::RepoPath;

    use super::*;

    fn claimed(status: u16, pairs: &[(&str, &str)]) -> Claimed {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        Claimed::read(&pairs.iter().map(pair).collect(), StatusCode::from_u16(status).unwrap())
    }

    #[test]
    fn the_length_of_a_redirect_is_not_the_files() {
        assert_eq!(claimed(302, &[("Content-Length", "1300")]).size, None);
        assert_eq!(claimed(302, &[("Content-Length", "1300"), ("X-Linked-Size", "5")]).size, Some(5));
        assert_eq!(claimed(200, &[("Content-Length", "7")]).size, Some(7));
        assert_eq!(claimed(200, &[("Content-Length", "7"), ("Content-Encoding", "gzip")]).size, None);
        assert_eq!(claimed(200, &[("Content-Length", "0")]).size, None);
        assert_eq!(claimed(200, &[("ETag", &format!("\"{}\"", "1".repeat(64)))]).digest, None);
    }

    #[test]
    fn a_resolver_that_contradicts_the_listing_is_not_believed() {
        let commit = CommitId::from_bytes([1; 20]);
        let origin = Origin::of(&Url::parse("https://hub.example").unwrap());
        let sha256 = |byte| Digest::Sha256(Sha256::from_bytes([byte; 32]));
        let blob = |byte| Digest::GitBlob(GitSha1::from_bytes([byte; 20]));
        let entry = |digest| FileEntry { path: RepoPath::parse("a").unwrap(), size: 5, digest, xet_hash: None };
        let verdict = |digest, claimed: Claimed| match check(&claimed, commit, &entry(digest), &origin) {
            Ok(()) => "",
            Err(HubError::Contradiction { what, .. }) => what,
            Err(other) => panic!("{other}"),
        };
        let none = Claimed::default;
        assert_eq!(verdict(sha256(1), none()), "");
        assert_eq!(verdict(sha256(1), Claimed { size: Some(6), ..none() }), "size");
        assert_eq!(verdict(sha256(1), Claimed { commit: Some("02".repeat(20)), ..none() }), "commit");
        assert_eq!(verdict(sha256(1), Claimed { commit: Some("01".repeat(20)), size: Some(5), ..none() }), "");
        for (listed, told, expected) in [
            (sha256(1), sha256(1), ""),
            (sha256(1), sha256(2), "digest"),
            (sha256(1), blob(1), "digest"),
            (blob(1), blob(1), ""),
            (blob(1), blob(2), "digest"),
            (blob(1), sha256(1), ""),
        ] {
            assert_eq!(verdict(listed, Claimed { digest: Some(told), ..none() }), expected);
        }
    }

    #[test]
    fn a_location_is_stale_a_minute_before_it_expires_or_half_way() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let found = |url: &str, when| Location::new(Url::parse(url).unwrap(), at(when));
        let location = found("https://cdn.example/f?Expires=1000&Signature=secret", 0);
        assert!(!location.is_stale(at(939)));
        assert!(location.is_stale(at(940)) && location.is_stale(at(2000)));
        let short = found("https://cdn.example/f?Expires=1000&Signature=secret", 990);
        assert!(!short.is_stale(at(994)) && short.is_stale(at(995)));
        let skewed = found("https://cdn.example/f?Expires=1000&Signature=secret", 5000);
        assert!(!skewed.is_stale(at(5001)), "it came expired: then its server judges, not our clock");
        assert!(!found("https://cdn.example/f", 0).is_stale(at(1 << 37)));
        assert!(!format!("{location} {location:?}").contains("secret"));
    }
}
