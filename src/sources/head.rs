//! What the head of an answer must say before a byte of its body counts as a byte of the file.
//!
//! Owns the rules of what a server may answer: 206 with the asked start and no more than the
//! asked bytes, or 200 with the whole file to a request for the whole file. Pure.

use std::ops::Range;

use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap};

use super::error::Problem;
use crate::core::digest::Digest;
use crate::core::manifest::FileEntry;
use crate::core::repo_path::RepoPath;

/// Most characters of a header that are shown.
const SHOWN_MAX: usize = 200;
/// Longest text that may be a pointer of Git LFS, in bytes (its specification's own limit).
const POINTER_MAX: usize = 1024;

/// What is asked of a file.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The file.
    pub entry: &'a FileEntry,
    /// The bytes; never empty, and inside the file.
    pub range: &'a Range<u64>,
    /// All of the file is asked for, since the server ignores ranges.
    pub whole: bool,
}

/// Decides from status and headers whether the body is exactly what was asked for.
///
/// # Errors
/// [`Problem`] says what came instead.
pub fn check_head(status: StatusCode, headers: &HeaderMap, wish: Wish<'_>) -> Result<(), Problem> {
    let Wish { entry, range, whole } = wish;
    if let Some(encoding) = header(headers, CONTENT_ENCODING.as_str()).filter(|e| !e.eq_ignore_ascii_case("identity")) {
        return Err(Problem::Encoded { encoding });
    }
    let content_type = header(headers, CONTENT_TYPE.as_str());
    match status {
        StatusCode::PARTIAL_CONTENT if !whole => {
            let expected = check_content_range(headers, entry.size, range)?;
            match length(headers) {
                // Fewer bytes than announced are the right ones all the same, and end early.
                Some(came) if came > expected => Err(Problem::WrongLength { expected, came, content_type }),
                _ => Ok(()),
            }
        }
        StatusCode::OK if whole || *range == (0..entry.size) => match (length(headers), content_type) {
            (Some(came), content_type) if came != entry.size => {
                Err(Problem::WrongLength { expected: entry.size, came, content_type })
            }
            (None, Some(content_type)) if is_page(&content_type) && !is_page_name(&entry.path) => {
                Err(Problem::Page { content_type })
            }
            _ => Ok(()),
        },
        StatusCode::OK => Err(Problem::RangeIgnored),
        _ => Err(Problem::WrongRange { came: format!("status {}", status.as_u16()) }),
    }
}

/// Whether a refused answer is short enough to be a pointer.
pub(super) fn may_be_pointer(headers: &HeaderMap) -> bool {
    length(headers).is_some_and(|length| length <= POINTER_MAX as u64)
}

/// Whether these first bytes of a body are what Git itself stores of a large file, this one: its
/// pointer, which names the digest.
pub(super) fn is_pointer(bytes: &[u8], digest: &Digest) -> bool {
    let Digest::Sha256(sha256) = digest else { return false };
    let text = &bytes[..bytes.len().min(POINTER_MAX)];
    let Ok(text) = std::str::from_utf8(text) else { return false };
    text.starts_with("version ") && text.lines().any(|line| line == format!("oid sha256:{sha256}"))
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()).and_then(|value| value.trim().parse().ok())
}

fn is_page(content_type: &str) -> bool {
    content_type.trim_start().to_ascii_lowercase().starts_with("text/html")
}

fn is_page_name(path: &RepoPath) -> bool {
    let name = path.as_str().to_ascii_lowercase();
    [".html", ".htm", ".xhtml"].iter().any(|ending| name.ends_with(ending))
}

/// The bytes a 206 announces: it must start where asked, stay inside, and know the size.
fn check_content_range(headers: &HeaderMap, size: u64, range: &Range<u64>) -> Result<u64, Problem> {
    let mut values = headers.get_all(CONTENT_RANGE).iter();
    let value = values.next().and_then(|v| v.to_str().ok()).unwrap_or_default();
    let alike = values.all(|other| other.as_bytes() == value.as_bytes());
    match parse_content_range(value) {
        Some((came, total))
            if alike
                && came.start == range.start
                && came.end <= range.end
                && total.is_none_or(|total| total == size) =>
        {
            Ok(came.end - came.start)
        }
        _ => Err(Problem::WrongRange { came: printable(value.as_bytes()) }),
    }
}

/// `bytes 0-99/200` (RFC 9110 §14.4); the unit in any case, blanks forgiven, total `*` unknown.
fn parse_content_range(value: &str) -> Option<(Range<u64>, Option<u64>)> {
    let (unit, rest) = value.trim().split_once(|c: char| c.is_ascii_whitespace())?;
    let (span, total) = rest.split_once('/')?;
    let (first, last) = span.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (first, last) = (number(first)?, number(last)?);
    let total = if total.trim() == "*" { None } else { Some(number(total)?) };
    let valid = unit.eq_ignore_ascii_case("bytes") && first <= last && total.is_none_or(|total| last < total);
    let end = last.checked_add(1)?;
    valid.then_some((first..end, total))
}

pub(super) fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| printable(value.as_bytes()))
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]);
    text.split_whitespace().collect::<Vec<_>>().join(" ").escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::digest::Sha256;

    fn head(status: u16, headers: &[(&'static str, &str)], range: Range<u64>, whole: bool) -> Result<(), Problem> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        let digest = Digest::Sha256(Sha256::from_bytes([1; 32]));
        let entry = FileEntry { path: RepoPath::parse("a.bin").unwrap(), size: 100, digest, xet_hash: None };
        check_head(StatusCode::from_u16(status).unwrap(), &map, Wish { entry: &entry, range: &range, whole })
    }

    #[test]
    fn only_exact_answers_are_taken() {
        assert!(head(206, &[("content-range", "bytes 10-19/100"), ("content-length", "10")], 10..20, false).is_ok());
        assert!(head(206, &[("content-range", "Bytes  10 - 19 / 100")], 10..20, false).is_ok());
        assert!(head(206, &[("content-range", "bytes 10-19/*")], 10..20, false).is_ok());
        assert!(head(206, &[("content-range", "bytes 10-14/100")], 10..20, false).is_ok(), "shorter, then it goes on");
        let short = [("content-range", "bytes 10-19/100"), ("content-length", "9")];
        assert!(head(206, &short, 10..20, false).is_ok(), "it says that fewer come than it announces");
        assert!(head(200, &[("content-length", "100")], 0..100, true).is_ok());
        assert!(head(200, &[], 0..100, false).is_ok());
    }

    #[test]
    fn shifted_long_nameless_and_mislabelled_answers_are_refused() {
        for came in [
            "bytes 0-99/100",
            "bytes 9-19/100",
            "bytes 10-20/100",
            "bytes 10-19/101",
            "bytes 19-10/100",
            "10-19/100",
            "",
            "lines 10-19/100",
        ] {
            let answer = head(206, &[("content-range", came)], 10..20, false);
            assert!(matches!(answer, Err(Problem::WrongRange { .. })), "{came}: {answer:?}");
        }
        assert!(matches!(head(206, &[], 10..20, false), Err(Problem::WrongRange { .. })));
        let twice = [("content-range", "bytes 10-19/100"), ("content-range", "bytes 0-9/100")];
        assert!(matches!(head(206, &twice, 10..20, false), Err(Problem::WrongRange { .. })));
        assert!(matches!(head(200, &[], 10..20, false), Err(Problem::RangeIgnored)));
        assert!(matches!(
            head(206, &[("content-range", "bytes 0-99/100")], 0..100, true),
            Err(Problem::WrongRange { .. })
        ));
        let html = head(200, &[("content-length", "9"), ("content-type", "text/html")], 0..100, true);
        assert!(matches!(html, Err(Problem::WrongLength { expected: 100, came: 9, .. })));
        let long = head(206, &[("content-range", "bytes 10-19/100"), ("content-length", "11")], 10..20, false);
        assert!(matches!(long, Err(Problem::WrongLength { .. })));
        let page = head(200, &[("content-type", "text/html; charset=utf-8")], 0..100, true);
        assert!(matches!(page, Err(Problem::Page { .. })), "{page:?}");
        assert!(matches!(head(200, &[("content-encoding", "gzip")], 0..100, true), Err(Problem::Encoded { .. })));
    }

    #[test]
    fn a_pointer_is_told_by_the_digest_in_it() {
        let digest = Digest::Sha256(Sha256::from_bytes([1; 32]));
        let hex = "01".repeat(32);
        let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{hex}\nsize 5\n");
        assert!(is_pointer(pointer.as_bytes(), &digest));
        assert!(is_pointer(format!("{pointer}and more").as_bytes(), &digest));
        for other in [
            pointer.replace("01", "02"),
            pointer.replace("version ", "Version "),
            "version 1".to_owned(),
            String::new(),
        ] {
            assert!(!is_pointer(other.as_bytes(), &digest), "{other}");
        }
        assert!(!is_pointer(&[0xff; 200], &digest));
    }
}
