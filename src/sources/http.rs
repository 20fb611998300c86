//! The Hub as a source: one ranged GET at a time, answered exactly or not at all.
//!
//! Owns where each file lies: resolved once, kept until shortly before it expires, shared by
//! all ranges of the file. A range is never asked of the resolver. What a server may answer:
//! 206 with the asked start and no more than the asked bytes, or 200 with the whole file to a
//! request for the whole file. A short body is an early end; everything else is refused before
//! a byte is passed on.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE};
use reqwest::{Response, StatusCode};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::{Problem, ReadError};
use crate::clock;
use crate::core::endpoint::Origin;
use crate::core::manifest::FileEntry;
use crate::core::repo::{CommitId, Repo};
use crate::core::repo_path::RepoPath;
use crate::hub::{HubClient, Location, Traffic};

/// Bytes of an error page that are shown.
const SHOWN_MAX: usize = 200;

/// One repository at one commit, served by a Hub.
#[derive(Debug)]
pub struct HubSource {
    hub: Arc<HubClient>,
    repo: Repo,
    commit: CommitId,
    locations: Mutex<HashMap<RepoPath, Arc<Mutex<Option<Located>>>>>,
}

#[derive(Debug, Clone)]
struct Located {
    location: Location,
    used: bool,
}

impl HubSource {
    /// The files of `repo` at `commit`.
    #[must_use]
    pub fn new(hub: Arc<HubClient>, repo: Repo, commit: CommitId) -> Self {
        Self { hub, repo, commit, locations: Mutex::default() }
    }

    /// Asks for `range` of a file, or for all of it in one answer (`whole`).
    ///
    /// # Errors
    /// [`ReadError`] when no exact answer came.
    pub async fn read(&self, entry: &FileEntry, range: Range<u64>, whole: bool) -> Result<Body, ReadError> {
        let fail =
            |host: Option<Origin>, problem| ReadError { path: entry.path.clone(), range: range.clone(), host, problem };
        let (location, fresh) = self.locate(entry).await.map_err(|problem| fail(None, problem))?;
        let origin = location.origin();
        let answer = self.ask(&location, entry.size, &range, whole, fresh).await;
        answer
            .map(|response| Body {
                path: entry.path.clone(),
                host: origin.clone(),
                response,
                range: range.clone(),
                position: range.start,
                idle: self.hub.timeouts().idle,
            })
            .map_err(|problem| fail(Some(origin), problem))
    }

    /// Forgets where a file lies, so that the next read resolves it again.
    pub async fn forget(&self, path: &RepoPath) {
        self.locations.lock().await.remove(path);
    }

    /// Where the file lies, and whether that was just found out. Concurrent readers of one file
    /// share one request.
    async fn locate(&self, entry: &FileEntry) -> Result<(Location, bool), Problem> {
        let slot = Arc::clone(self.locations.lock().await.entry(entry.path.clone()).or_default());
        let mut slot = slot.lock().await;
        if let Some(known) = slot.as_mut().filter(|known| !known.location.is_stale(clock::now())) {
            let fresh = !known.used;
            known.used = true;
            return Ok((known.location.clone(), fresh));
        }
        let location = self.hub.locate(&self.repo, self.commit, entry).await.map_err(Problem::Locate)?;
        *slot = Some(Located { location: location.clone(), used: true });
        Ok((location, true))
    }

    async fn ask(
        &self,
        location: &Location,
        size: u64,
        range: &Range<u64>,
        whole: bool,
        fresh: bool,
    ) -> Result<Response, Problem> {
        let mut request = location.request(&self.hub);
        if !whole {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        let response = self.hub.send(request, &location.origin(), Traffic::Data).await.map_err(Problem::Ask)?;
        if response.status().is_success() {
            check_head(response.status(), response.headers(), size, range, whole)?;
            return Ok(response);
        }
        Err(self.refused(response, location.is_at_hub(&self.hub), fresh).await)
    }

    /// Turns an answer without bytes into a problem, reading a little of what it says.
    async fn refused(&self, mut response: Response, at_hub: bool, fresh: bool) -> Problem {
        let status = response.status();
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Problem::RangeRefused {
                came: header(response.headers(), CONTENT_RANGE.as_str()).unwrap_or_default(),
            };
        }
        let content_type = header(response.headers(), CONTENT_TYPE.as_str());
        let start = timeout(self.hub.timeouts().idle, response.chunk()).await.ok().and_then(Result::ok).flatten();
        let body = start.map(|bytes| printable(&bytes)).unwrap_or_default();
        Problem::Status { status: status.as_u16(), content_type, body, at_hub, fresh }
    }
}

/// The bytes of one read, in order.
#[derive(Debug)]
pub struct Body {
    path: RepoPath,
    host: Origin,
    response: Response,
    range: Range<u64>,
    position: u64,
    idle: Duration,
}

impl Body {
    /// The next bytes and where they belong; nothing after the last byte asked for.
    ///
    /// # Errors
    /// [`ReadError`] when the body breaks, pauses too long, ends early or does not end.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        let received = self.position - self.range.start;
        let waited = timeout(self.idle, self.response.chunk()).await;
        let came = match waited {
            Err(_) => Err(Problem::Idle { after: self.idle, received }),
            Ok(Err(source)) => Err(Problem::Broken { received, source: source.without_url() }),
            Ok(Ok(None)) if self.position < self.range.end => Err(Problem::Short { received }),
            Ok(Ok(Some(bytes))) if bytes.len() as u64 > self.range.end - self.position => Err(Problem::TooLong),
            Ok(Ok(bytes)) => Ok(bytes),
        };
        let bytes = came.map_err(|problem| ReadError {
            path: self.path.clone(),
            range: self.range.clone(),
            host: Some(self.host.clone()),
            problem,
        })?;
        Ok(bytes.map(|bytes| {
            let at = self.position;
            self.position += bytes.len() as u64;
            (at, bytes)
        }))
    }

    /// Who serves it.
    #[must_use]
    pub const fn host(&self) -> &Origin {
        &self.host
    }
}

/// Decides from status and headers whether the body is exactly what was asked for.
fn check_head(
    status: StatusCode,
    headers: &HeaderMap,
    size: u64,
    range: &Range<u64>,
    whole: bool,
) -> Result<(), Problem> {
    if let Some(encoding) = header(headers, CONTENT_ENCODING.as_str()).filter(|e| !e.eq_ignore_ascii_case("identity")) {
        return Err(Problem::Encoded { encoding });
    }
    let expected = match status {
        StatusCode::PARTIAL_CONTENT if !whole => check_content_range(headers, size, range)?,
        StatusCode::OK if whole || *range == (0..size) => size,
        StatusCode::OK => return Err(Problem::RangeIgnored),
        _ => return Err(Problem::WrongRange { came: format!("status {}", status.as_u16()) }),
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse::<u64>().ok());
    match length {
        Some(came) if came != expected => {
            Err(Problem::WrongLength { expected, came, content_type: header(headers, CONTENT_TYPE.as_str()) })
        }
        _ => Ok(()),
    }
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

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name).map(|value| printable(value.as_bytes()))
}

fn printable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]);
    text.split_whitespace().collect::<Vec<_>>().join(" ").escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16, headers: &[(&'static str, &str)], range: Range<u64>, whole: bool) -> Result<(), Problem> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().unwrap());
        }
        check_head(StatusCode::from_u16(status).unwrap(), &map, 100, &range, whole)
    }

    #[test]
    fn only_exact_answers_are_taken() {
        assert!(head(206, &[("content-range", "bytes 10-19/100"), ("content-length", "10")], 10..20, false).is_ok());
        assert!(head(206, &[("content-range", "Bytes  10 - 19 / 100")], 10..20, false).is_ok());
        assert!(head(206, &[("content-range", "bytes 10-19/*")], 10..20, false).is_ok());
        assert!(head(206, &[("content-range", "bytes 10-14/100")], 10..20, false).is_ok(), "shorter, then it goes on");
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
        let short = head(206, &[("content-range", "bytes 10-19/100"), ("content-length", "9")], 10..20, false);
        assert!(matches!(short, Err(Problem::WrongLength { .. })));
        assert!(matches!(head(200, &[("content-encoding", "gzip")], 0..100, true), Err(Problem::Encoded { .. })));
    }
}
