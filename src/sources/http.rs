//! The Hub as a source: one ranged GET at a time, answered exactly or not at all.
//!
//! Owns where each file lies: resolved once, kept until shortly before it expires, shared by
//! all ranges of the file; resolved again at once when its storage no longer takes the URL. A
//! range is never asked of the resolver. What a server may answer: 206 with the asked start and
//! no more than the asked bytes, or 200 with the whole file to a request for the whole file. A
//! short body is an early end; everything else is refused before a byte is passed on.

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
use super::health::{Blame, Health, Served};
use crate::clock;
use crate::core::endpoint::Origin;
use crate::core::manifest::FileEntry;
use crate::core::repo::{CommitId, Repo};
use crate::core::repo_path::RepoPath;
use crate::core::retry::FailureClass;
use crate::hub::{Asked, HubClient, Location, Traffic};

/// Most characters of a header that are shown.
const SHOWN_MAX: usize = 200;
/// Redirects of a storage server that are followed.
const HOPS_MAX: usize = 5;

/// One repository at one commit, served by a Hub.
#[derive(Debug)]
pub struct HubSource {
    hub: Arc<HubClient>,
    repo: Repo,
    commit: CommitId,
    locations: Mutex<HashMap<RepoPath, Arc<Mutex<Option<Location>>>>>,
    health: Health,
}

/// What is asked of a file.
#[derive(Debug, Clone, Copy)]
pub struct Wish<'a> {
    /// The file.
    pub entry: &'a FileEntry,
    /// The bytes; never empty, and inside the file.
    pub range: &'a Range<u64>,
    /// Whether they are taken out of an answer with all of the file.
    pub whole: bool,
}

/// A read that failed, before it is told.
struct Failed {
    host: Origin,
    problem: Problem,
    blame: Blame,
}

impl HubSource {
    /// The files of `repo` at `commit`.
    #[must_use]
    pub fn new(hub: Arc<HubClient>, repo: Repo, commit: CommitId) -> Self {
        Self { hub, repo, commit, locations: Mutex::default(), health: Health::default() }
    }

    /// Asks for `range` of a file. With `whole` it is taken out of an answer with all of the
    /// file: the server ignores ranges. Waits first while a server is in trouble.
    ///
    /// # Errors
    /// [`ReadError`] when no exact answer came.
    pub async fn read(&self, entry: &FileEntry, range: Range<u64>, whole: bool) -> Result<Body, ReadError> {
        let answer = self.answer(Wish { entry, range: &range, whole }).await;
        let (host, response) = answer.map_err(|Failed { host, problem, blame }| ReadError {
            path: entry.path.clone(),
            range: range.clone(),
            host,
            problem,
            blame,
        })?;
        let partial = response.status() == StatusCode::PARTIAL_CONTENT;
        Ok(Body {
            path: entry.path.clone(),
            served: self.health.of(&host),
            host,
            response,
            position: if partial { range.start } else { 0 },
            range,
            partial,
            idle: self.hub.timeouts().idle,
        })
    }

    async fn answer(&self, wish: Wish<'_>) -> Result<(Origin, Response), Failed> {
        let location = self.locate(wish.entry).await?;
        match self.ask(&location, wish, false).await {
            Err(Failed { problem, .. }) if problem.class() == FailureClass::StaleUrl => {}
            answer => return answer,
        }
        self.forget(&wish.entry.path, &location).await;
        let location = self.locate(wish.entry).await?;
        self.ask(&location, wish, true).await
    }

    /// Where the file lies. Concurrent readers of one file share one request.
    async fn locate(&self, entry: &FileEntry) -> Result<Location, Failed> {
        let slot = Arc::clone(self.locations.lock().await.entry(entry.path.clone()).or_default());
        let mut slot = slot.lock().await;
        if let Some(known) = slot.as_ref().filter(|known| !known.is_stale(clock::now())) {
            return Ok(known.clone());
        }
        let origin = self.hub.endpoint().origin();
        self.health.admit(&origin).await;
        let asked_at = clock::since_boot();
        let location = self.hub.locate(&self.repo, self.commit, entry).await;
        let location = location.map_err(|error| self.failed(&origin, asked_at, Problem::Locate(error)))?;
        self.health.of(&origin).now();
        Ok(slot.insert(location).clone())
    }

    /// Forgets where a file lies, unless somebody else has found out anew.
    async fn forget(&self, path: &RepoPath, location: &Location) {
        let slot = self.locations.lock().await.get(path).cloned();
        if let Some(slot) = slot {
            slot.lock().await.take_if(|known| known == location);
        }
    }

    /// Asks the storage, where it leads to included.
    async fn ask(&self, location: &Location, wish: Wish<'_>, renewed: bool) -> Result<(Origin, Response), Failed> {
        let mut location = location.clone();
        let asked = Asked::File(&self.repo, self.commit, &wish.entry.path);
        for _ in 0..=HOPS_MAX {
            let origin = location.origin();
            self.health.admit(&origin).await;
            let asked_at = clock::since_boot();
            let fail = |problem| self.failed(&origin, asked_at, problem);
            let mut request = location.request(&self.hub);
            if !wish.whole {
                request = request.header(RANGE, format!("bytes={}-{}", wish.range.start, wish.range.end - 1));
            }
            let sent = self.hub.send(request, &origin, Traffic::Data).await;
            let response = sent.map_err(Problem::Ask).map_err(fail)?;
            if response.status().is_success() {
                check_head(response.status(), response.headers(), wish).map_err(fail)?;
                self.health.of(&origin).now();
                return Ok((origin, response));
            }
            match location.next(&response, asked, clock::now()).map_err(Problem::Redirect).map_err(fail)? {
                Some(next) => location = next,
                None => return Err(fail(self.refused(response, location.is_at_hub(&self.hub), renewed).await)),
            }
        }
        Err(self.failed(&location.origin(), Duration::ZERO, Problem::Redirects { hops: HOPS_MAX }))
    }

    fn failed(&self, origin: &Origin, asked_at: Duration, problem: Problem) -> Failed {
        let blame = match &problem {
            // Nobody answers there, or only to say that it cannot.
            problem if problem.may_be_of_origin() => self.health.failed(origin, asked_at),
            _ => Blame::Request,
        };
        Failed { host: origin.clone(), problem, blame }
    }

    /// Turns an answer without bytes into a problem, reading a little of what it says.
    async fn refused(&self, mut response: Response, at_hub: bool, renewed: bool) -> Problem {
        let status = response.status();
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Problem::RangeRefused {
                came: header(response.headers(), CONTENT_RANGE.as_str()).unwrap_or_default(),
            };
        }
        let content_type = header(response.headers(), CONTENT_TYPE.as_str());
        let start = timeout(self.hub.timeouts().idle, response.chunk()).await.ok().and_then(Result::ok).flatten();
        let words = self.hub.words(response.headers(), &start.unwrap_or_default());
        Problem::Status { status: status.as_u16(), content_type, words, at_hub, renewed }
    }
}

/// The bytes of one read, in order.
#[derive(Debug)]
pub struct Body {
    path: RepoPath,
    host: Origin,
    served: Served,
    response: Response,
    range: Range<u64>,
    /// Where the next byte of the answer belongs.
    position: u64,
    partial: bool,
    idle: Duration,
}

impl Body {
    /// The next bytes asked for and where they belong; nothing after the last of them.
    ///
    /// # Errors
    /// [`ReadError`] when the body breaks, pauses too long, ends early or does not end.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        loop {
            let Some(mut bytes) = self.chunk().await.map_err(|problem| self.failed(problem))? else { return Ok(None) };
            self.served.now();
            let at = self.position;
            self.position += bytes.len() as u64;
            let skipped = self.range.start.saturating_sub(at).min(bytes.len() as u64);
            if skipped < bytes.len() as u64 {
                let wanted = bytes.split_off(usize::try_from(skipped).unwrap_or(usize::MAX));
                return Ok(Some((at + skipped, wanted)));
            }
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        let received = self.position.saturating_sub(self.range.start);
        match timeout(self.idle, self.response.chunk()).await {
            Err(_) => Err(Problem::Idle { after: self.idle, received }),
            Ok(Err(source)) => Err(Problem::Broken { received, source: source.without_url() }),
            Ok(Ok(None)) if self.position < self.range.end => Err(Problem::Short { received }),
            Ok(Ok(Some(bytes))) if bytes.len() as u64 > self.range.end - self.position => Err(Problem::TooLong),
            Ok(Ok(bytes)) => Ok(bytes),
        }
    }

    fn failed(&self, problem: Problem) -> ReadError {
        let (path, range, host) = (self.path.clone(), self.range.clone(), self.host.clone());
        ReadError { path, range, host, problem, blame: Blame::Request }
    }

    /// End of the bytes asked for.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.range.end
    }

    /// Whether the server answered with a part of the file: it knows ranges.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.partial
    }
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
    let length = headers.get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()).and_then(|v| v.trim().parse::<u64>().ok());
    let content_type = header(headers, CONTENT_TYPE.as_str());
    match status {
        StatusCode::PARTIAL_CONTENT if !whole => {
            let expected = check_content_range(headers, entry.size, range)?;
            match length {
                // Fewer bytes than announced are the right ones all the same, and end early.
                Some(came) if came > expected => Err(Problem::WrongLength { expected, came, content_type }),
                _ => Ok(()),
            }
        }
        StatusCode::OK if whole || *range == (0..entry.size) => match (length, content_type) {
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
    use crate::core::digest::{Digest, Sha256};

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
}
