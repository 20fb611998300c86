//! The Hub as a source: one ranged GET at a time, answered exactly or not at all.
//!
//! Owns where each file lies: resolved once, kept until shortly before it expires, shared by
//! all ranges of the file; resolved again at once when its storage no longer takes the URL. A
//! range is never asked of the resolver. What a server may answer stands in `head`; everything
//! else is refused before a byte is passed on. An origin that only fails is asked for another
//! file now and then: if it serves that one, the failures are those of the file.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_RANGE, CONTENT_TYPE, RANGE};
use reqwest::{Response, StatusCode};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::body::Body;
use super::error::{Problem, ReadError};
use super::head::{Wish, check_head, header, is_pointer, may_be_pointer};
use super::health::{Blame, Health, Verdict};
use crate::clock;
use crate::core::digest::Digest;
use crate::core::endpoint::Origin;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::repo::{CommitId, Repo};
use crate::core::repo_path::RepoPath;
use crate::core::retry::FailureClass;
use crate::hub::{Asked, HubClient, Location, Traffic};

/// Redirects of a storage server that are followed.
const HOPS_MAX: usize = 5;
/// Failures of an origin in a row from which on it is asked for another file.
const DOUBT_FROM: u32 = 2;
/// Files of each kind that an origin in doubt may be asked for.
const CONTROLS: usize = 8;

/// One repository at one commit, served by a Hub.
#[derive(Debug)]
pub struct HubSource {
    hub: Arc<HubClient>,
    repo: Repo,
    commit: CommitId,
    locations: Mutex<HashMap<RepoPath, Arc<Mutex<Option<Location>>>>>,
    health: Health,
    /// Small files of the repository, to tell a file that cannot be had from an origin in trouble.
    controls: Vec<FileEntry>,
}

/// A read that failed, before it is told.
struct Failed {
    host: Origin,
    problem: Problem,
    verdict: Verdict,
}

impl HubSource {
    /// The files of `repo` at `commit`.
    #[must_use]
    pub fn new(hub: Arc<HubClient>, repo: Repo, commit: CommitId) -> Self {
        let (locations, health) = (Mutex::default(), Health::default());
        Self { hub, repo, commit, locations, health, controls: Vec::new() }
    }

    /// The files of a manifest.
    #[must_use]
    pub fn of(hub: Arc<HubClient>, manifest: &Manifest) -> Self {
        let source = manifest.source();
        let is_lfs = |entry: &FileEntry| matches!(entry.digest, Digest::Sha256(_));
        let mut files: Vec<_> = manifest.files().iter().filter(|entry| entry.size > 0).collect();
        files.sort_by_key(|entry| entry.size);
        let of_kind = |lfs| files.iter().copied().filter(move |entry| is_lfs(entry) == lfs).take(CONTROLS).cloned();
        let controls = of_kind(true).chain(of_kind(false)).collect();
        Self { controls, ..Self::new(hub, source.repo.clone(), source.commit) }
    }

    /// Asks for `range` of a file. With `whole` it is taken out of an answer with all of the
    /// file: the server ignores ranges. Waits first while a server is in trouble.
    ///
    /// # Errors
    /// [`ReadError`] when no exact answer came.
    pub async fn read(&self, entry: &FileEntry, range: Range<u64>, whole: bool) -> Result<Body, ReadError> {
        let failed = match self.answer(Wish { entry, range: &range, whole }).await {
            Ok((host, response)) => {
                let served = self.health.of(&host);
                return Ok(Body::new(entry, range, (host, response), served, self.hub.timeouts().idle));
            }
            Err(failed) => failed,
        };
        let of_file =
            failed.verdict.wave.is_some_and(|wave| wave >= DOUBT_FROM) && self.serves_another(entry, &failed).await;
        let Failed { host, problem, verdict } = failed;
        let blame = if of_file { Blame::Request } else { verdict.blame };
        Err(ReadError { path: entry.path.clone(), range, host, problem, blame })
    }

    /// Finds out where a file lies that will be read soon. What goes wrong is met again by the read.
    pub async fn locate_ahead(&self, entry: &FileEntry) {
        let _told_then = self.locate(entry).await;
    }

    /// Whether somebody waits for leave to ask: a server limits requests.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        self.hub.origins().holds_up()
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

    /// Forgets where a file lies that nobody will ask for again.
    pub async fn done(&self, path: &RepoPath) {
        self.locations.lock().await.remove(path);
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
                if let Err(problem) = check_head(response.status(), response.headers(), wish) {
                    return Err(fail(self.mistaken(response, wish.entry, problem).await));
                }
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
        let verdict = match &problem {
            // Nobody answers there, or only to say that it cannot.
            problem if problem.may_be_of_origin() => self.health.failed(origin, asked_at),
            _ => Verdict { blame: Blame::Request, wave: None },
        };
        Failed { host: origin.clone(), problem, verdict }
    }

    /// Whether an origin that only fails gives a byte of another file, once its pause is over:
    /// then it is well, and a file that keeps failing there is at fault itself. Each wave of
    /// failures asks for another one.
    async fn serves_another(&self, entry: &FileEntry, failed: &Failed) -> bool {
        let is_alike = |other: &&FileEntry| {
            other.path != entry.path && std::mem::discriminant(&other.digest) == std::mem::discriminant(&entry.digest)
        };
        let alike: Vec<_> = self.controls.iter().filter(is_alike).collect();
        let wave = failed.verdict.wave.unwrap_or(0) as usize;
        let Some(control) = wave.checked_rem(alike.len()).map(|at| alike[at]) else { return false };
        self.health.admit(&failed.host).await;
        let Ok(location) = self.hub.locate(&self.repo, self.commit, control).await else { return false };
        let mut serves = matches!(failed.problem, Problem::Locate(_));
        if !serves && location.origin() == failed.host {
            let request = location.request(&self.hub).header(RANGE, "bytes=0-0");
            let sent = self.hub.send(request, &failed.host, Traffic::Data).await;
            serves = sent.is_ok_and(|response| response.status().is_success());
        }
        if serves {
            self.health.of(&failed.host).now();
            tracing::info!(file = %entry.path, host = %failed.host, "the server serves other files, so this one is at fault");
        }
        serves
    }

    /// Looks into the little body of a refused answer for what it may be.
    async fn mistaken(&self, mut response: Response, entry: &FileEntry, problem: Problem) -> Problem {
        if !may_be_pointer(response.headers()) {
            return problem;
        }
        let start = timeout(self.hub.timeouts().idle, response.chunk()).await.ok().and_then(Result::ok).flatten();
        if start.is_some_and(|start| is_pointer(&start, &entry.digest)) { Problem::Pointer } else { problem }
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
