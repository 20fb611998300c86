//! The hub: two listeners, a thread for each connection, and the handles by which a test drives it.
//!
//! Dropping it ends and joins every thread, and reports mistakes of the script.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::access::Access;
use super::behaviour::{Behaviour, Place};
use super::cdn::Signer;
use super::http::{Request, Response};
use super::record::{Entry, Origin, Recorded};
use super::repo::{FileSpec, RepoSpec};
use super::script::{Match, Script, Scripted};
use super::wire::{Gatekeeper, Stop, Wire};
use super::{api, cdn, resolve, wait_until};

const MAX_CONNECTIONS: usize = 512;
const UNLIMITED: u64 = u64::MAX;

/// A scripted Hub and its CDN on two ports of 127.0.0.1, running until dropped.
pub struct Hub {
    state: Arc<State>,
    doors: [Door; 2],
}

/// What all connections share.
pub(super) struct State {
    pub addresses: [SocketAddr; 2],
    pub stop: Stop,
    pub repos: Mutex<Vec<RepoSpec>>,
    pub access: Mutex<Access>,
    pub settings: Mutex<Settings>,
    pub signer: Mutex<Signer>,
    /// Files the CDN holds, by object key; known once their URL was signed.
    pub objects: Mutex<HashMap<String, FileSpec>>,
    pub quotas: Mutex<HashMap<&'static str, Quota>>,
    script: Mutex<Script>,
    log: Mutex<Vec<Arc<Entry>>>,
    misuse: Mutex<Vec<String>>,
    epoch: Instant,
    pace: AtomicU64,
    allowance: AtomicU64,
    connections: Mutex<Connections>,
}

#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub page_size: usize,
    pub max_whole_body: u64,
}

/// A window of the rate limiter.
#[derive(Clone, Debug)]
pub(super) struct Quota {
    pub limit: u64,
    pub window: Duration,
    pub used: u64,
    pub since: Instant,
}

#[derive(Default)]
struct Connections {
    next: u64,
    open: HashMap<u64, (Origin, Arc<TcpStream>)>,
    peak: HashMap<Origin, usize>,
    threads: Vec<JoinHandle<()>>,
}

struct Door {
    origin: Origin,
    open: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// New connections are accepted and then left alone.
    mute: Arc<AtomicBool>,
}

impl Hub {
    pub fn start(repo: RepoSpec) -> Self {
        Self::with([repo])
    }

    pub fn with(repos: impl IntoIterator<Item = RepoSpec>) -> Self {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind to loopback");
        let listeners = [bind(), bind()];
        let state = Arc::new(State {
            addresses: listeners.each_ref().map(|l| l.local_addr().unwrap()),
            stop: Stop::default(),
            repos: Mutex::new(repos.into_iter().map(RepoSpec::sealed).collect()),
            access: Mutex::default(),
            settings: Mutex::new(Settings { page_size: 1000, max_whole_body: UNLIMITED }),
            signer: Mutex::default(),
            objects: Mutex::default(),
            quotas: Mutex::default(),
            script: Mutex::default(),
            log: Mutex::default(),
            misuse: Mutex::default(),
            epoch: Instant::now(),
            pace: AtomicU64::new(UNLIMITED),
            allowance: AtomicU64::new(UNLIMITED),
            connections: Mutex::default(),
        });
        let doors = [Origin::Hub, Origin::Cdn].map(Door::new);
        for (door, listener) in doors.iter().zip(listeners) {
            door.open(listener, &state);
        }
        Self { state, doors }
    }

    // ---- addresses -------------------------------------------------------------------------

    /// The endpoint (`HF_ENDPOINT`), without a slash at its end.
    pub fn url(&self) -> String {
        self.state.url(Origin::Hub)
    }

    pub fn cdn_url(&self) -> String {
        self.state.url(Origin::Cdn)
    }

    pub fn address(&self, origin: Origin) -> SocketAddr {
        self.state.address(origin)
    }

    // ---- repositories ----------------------------------------------------------------------

    /// The repository as it is now; its working tree is that of the last edit.
    #[track_caller]
    pub fn repo(&self, id: &str) -> RepoSpec {
        let repos = self.state.repos.lock().unwrap();
        repos.iter().find(|repo| repo.id == id).unwrap_or_else(|| panic!("no repo {id}")).clone()
    }

    /// The commit that `revision` names now.
    #[track_caller]
    pub fn commit(&self, id: &str, revision: &str) -> String {
        self.repo(id).resolve(revision).unwrap_or_else(|| panic!("no {revision}")).to_owned()
    }

    /// Commits an edit on top of a branch and moves the branch there; the new commit id.
    pub fn push(&self, id: &str, branch: &str, edit: impl FnOnce(RepoSpec) -> RepoSpec) -> String {
        let edited = edit(self.repo(id).checked_out(branch)).branch(branch);
        self.replace(id, edited);
        self.commit(id, branch)
    }

    /// Points a branch at an older commit.
    pub fn move_branch(&self, id: &str, branch: &str, commit: &str) {
        let mut repo = self.repo(id);
        repo.point(branch, commit);
        self.replace(id, repo);
    }

    /// Changes what is no file: visibility, names, tags.
    pub fn alter(&self, id: &str, change: impl FnOnce(RepoSpec) -> RepoSpec) {
        self.replace(id, change(self.repo(id)));
    }

    fn replace(&self, id: &str, with: RepoSpec) {
        let mut repos = self.state.repos.lock().unwrap();
        *repos.iter_mut().find(|repo| repo.id == id).expect("looked up above") = with;
    }

    // ---- modes -----------------------------------------------------------------------------

    /// Only this token has access; public repositories become private, gated ones stay visible.
    pub fn require_token(&self, token: &str) {
        self.state.access.lock().unwrap().member = Some(token.to_owned());
    }

    /// A valid token without access to private and gated repositories.
    pub fn know_token(&self, token: &str) {
        self.state.access.lock().unwrap().strangers.push(token.to_owned());
    }

    /// Entries on a page of the tree; 1000 at first.
    pub fn page_size(&self, entries: usize) {
        self.state.settings.lock().unwrap().page_size = entries.max(1);
    }

    /// The CDN answers 400 to a request for more than so many bytes without a range.
    pub fn max_whole_body(&self, bytes: u64) {
        self.state.settings.lock().unwrap().max_whole_body = bytes;
    }

    /// Body bytes a second for each connection of both origins.
    pub fn pace(&self, bytes_per_s: u64) {
        self.state.pace.store(bytes_per_s.max(1), SeqCst);
    }

    pub fn unpaced(&self) {
        self.state.pace.store(UNLIMITED, SeqCst);
    }

    /// After so many more body bytes (both origins together) every body stands still.
    pub fn hold_after(&self, bytes: u64) {
        self.state.allowance.store(bytes, SeqCst);
    }

    /// Ends [`hold_after`](Self::hold_after).
    pub fn release(&self) {
        self.state.allowance.store(UNLIMITED, SeqCst);
    }

    /// URLs signed from now on are good for so long (an hour at first).
    pub fn signed_urls_last(&self, time: Duration) {
        self.state.signer.lock().unwrap().lifetime = time;
    }

    /// Every URL signed until now is refused from now on, whatever its `Expires` says.
    pub fn expire_signed_urls(&self) {
        self.state.signer.lock().unwrap().generation += 1;
    }

    /// Enforces a quota on a bucket (`api`, `resolvers`): 429 and `r=0` when it is used up.
    pub fn quota(&self, bucket: &'static str, limit: u64, window: Duration) {
        let quota = Quota { limit, window, used: 0, since: Instant::now() };
        self.state.quotas.lock().unwrap().insert(bucket, quota);
    }

    /// The origin stops listening and its connections are cut.
    pub fn unreachable(&self, origin: Origin) {
        self.door(origin).close(&self.state);
        self.cut(origin);
    }

    /// Listens again, on the same port.
    pub fn reachable(&self, origin: Origin) {
        let door = self.door(origin);
        if door.open.load(SeqCst) {
            return;
        }
        let address = self.address(origin);
        let mut last = None;
        for _ in 0..200 {
            match TcpListener::bind(address) {
                Ok(listener) => return door.open(listener, &self.state),
                Err(error) => last = Some(error),
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("cannot listen on {address} again: {last:?}");
    }

    /// New connections of the origin are accepted and then left without a byte, or no longer so.
    pub fn mute(&self, origin: Origin, mute: bool) {
        self.door(origin).mute.store(mute, SeqCst);
    }

    /// Ends the open connections of an origin; it goes on listening.
    pub fn cut(&self, origin: Origin) {
        self.state.cut(Some(origin));
    }

    // ---- behaviours ------------------------------------------------------------------------

    /// A rule for requests that fit; see [`Scripted`].
    pub fn on(&self, matching: Match) -> Scripted<'_> {
        Scripted::new(self, matching)
    }

    pub fn always(&self, matching: Match, behaviour: Behaviour) {
        self.on(matching).then(behaviour).always();
    }

    /// Forgets every behaviour that was not played yet.
    pub fn behave(&self) {
        self.script().clear();
    }

    /// Plays left of counted behaviours: 0 when all that was scripted has happened.
    pub fn plays_left(&self) -> u64 {
        self.script().left()
    }

    pub(super) fn script(&self) -> MutexGuard<'_, Script> {
        self.state.script.lock().unwrap()
    }

    // ---- what was seen ---------------------------------------------------------------------

    /// All requests in the order of their arrival.
    pub fn requests(&self) -> Vec<Recorded> {
        let log = self.state.log.lock().unwrap().clone();
        log.iter().map(|entry| entry.snapshot()).collect()
    }

    pub fn matching(&self, matching: Match) -> Vec<Recorded> {
        let mut all = self.requests();
        all.retain(|seen| matching.fits_recorded(seen));
        all
    }

    pub fn count(&self, matching: Match) -> usize {
        self.matching(matching).len()
    }

    /// Forgets the requests recorded so far.
    pub fn forget(&self) {
        self.state.log.lock().unwrap().clear();
    }

    /// Requests to the resolver for this file of a repository, HEAD and GET.
    pub fn resolves_of(&self, file: &str) -> usize {
        let mut all = self.matching(Match::hub("/resolve/"));
        all.retain(|seen| seen.file.as_deref() == Some(file));
        all.len()
    }

    /// Body bytes of this file sent by either origin, redirects left out.
    pub fn bytes_sent_for(&self, file: &str) -> u64 {
        self.sum(|seen| seen.file.as_deref() == Some(file) && !(300..400).contains(&seen.status))
    }

    /// Body bytes of files sent by both origins, redirects and API left out.
    pub fn total_body_bytes(&self) -> u64 {
        self.sum(|seen| seen.file.is_some() && !(300..400).contains(&seen.status))
    }

    /// The values of `Authorization` that reached the CDN origin: must be none.
    pub fn authorization_seen_by_cdn(&self) -> Vec<String> {
        let seen = self.matching(Match::cdn(""));
        seen.iter().filter_map(|one| one.header("authorization")).map(str::to_owned).collect()
    }

    pub fn open_connections(&self, origin: Origin) -> usize {
        let connections = self.state.connections.lock().unwrap();
        connections.open.values().filter(|(of, _)| *of == origin).count()
    }

    /// The most connections of the origin that were ever open at once.
    pub fn peak_connections(&self, origin: Origin) -> usize {
        self.state.connections.lock().unwrap().peak.get(&origin).copied().unwrap_or(0)
    }

    /// Waits until so many body bytes of files were sent.
    #[track_caller]
    pub fn wait_for_bytes(&self, bytes: u64, limit: Duration) {
        wait_until(&format!("{bytes} bytes sent"), limit, || self.total_body_bytes() >= bytes);
    }

    fn sum(&self, counts: impl Fn(&Recorded) -> bool) -> u64 {
        self.requests().iter().filter(|seen| counts(seen)).map(|seen| seen.body_bytes_sent).sum()
    }

    fn door(&self, origin: Origin) -> &Door {
        &self.doors[origin as usize]
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.state.stop.stop();
        for door in &self.doors {
            door.close(&self.state);
        }
        self.state.cut(None);
        let threads = std::mem::take(&mut self.state.connections.lock().unwrap().threads);
        let broken = threads.into_iter().map(JoinHandle::join).filter(Result::is_err).count();
        let misuse = std::mem::take(&mut *self.state.misuse.lock().unwrap());
        if !thread::panicking() {
            assert!(misuse.is_empty(), "behaviours that could not be played: {misuse:#?}");
            assert_eq!(broken, 0, "threads of the scripted hub panicked");
        }
    }
}

impl State {
    pub fn address(&self, origin: Origin) -> SocketAddr {
        self.addresses[origin as usize]
    }

    pub fn url(&self, origin: Origin) -> String {
        format!("http://{}", self.address(origin))
    }

    fn cut(&self, origin: Option<Origin>) {
        for (of, stream) in self.connections.lock().unwrap().open.values() {
            if origin.is_none_or(|wanted| wanted == *of) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn admit(self: &Arc<Self>, origin: Origin, stream: TcpStream, mute: bool) {
        let mut connections = self.connections.lock().unwrap();
        connections.threads.retain(|thread| !thread.is_finished());
        if connections.open.len() >= MAX_CONNECTIONS {
            return;
        }
        connections.next += 1;
        let (number, stream) = (connections.next, Arc::new(stream));
        connections.open.insert(number, (origin, Arc::clone(&stream)));
        let open = connections.open.values().filter(|(of, _)| *of == origin).count();
        let peak = connections.peak.entry(origin).or_default();
        *peak = open.max(*peak);
        let state = Arc::clone(self);
        connections.threads.push(thread::spawn(move || {
            let _leave = Leave { state: &state, number };
            let mut wire = Wire::new(stream, &state.stop, &*state);
            if mute {
                return wire.stall();
            }
            while let Some(request) = wire.next_request() {
                if !state.serve(&mut wire, origin, number, &request) {
                    break;
                }
            }
        }));
    }

    fn serve(&self, wire: &mut Wire<'_>, origin: Origin, number: u64, request: &Request) -> bool {
        let entry = Arc::new(Entry::new(origin, number, request, self.epoch));
        self.log.lock().unwrap().push(Arc::clone(&entry));
        let (mut response, file) = self.natural(origin, request);
        if let Some(file) = &file {
            entry.about(&file.path);
        }
        let behaviour = self.script.lock().unwrap().next(origin, request);
        if let Some(behaviour) = behaviour {
            let other = if origin == Origin::Hub { Origin::Cdn } else { Origin::Hub };
            let place = Place {
                origin,
                request,
                file: file.as_ref(),
                other_origin: self.url(other),
                misuse: &|text| self.misuse.lock().unwrap().push(text),
            };
            behaviour.apply(&mut response, &place);
        }
        let going_on = wire.answer(&response, request.method == "HEAD", &entry);
        going_on && !request.header("connection").is_some_and(|c| c.eq_ignore_ascii_case("close"))
    }

    /// The right answer, and the file it is about.
    fn natural(&self, origin: Origin, request: &Request) -> (Response, Option<FileSpec>) {
        if !matches!(request.method.as_str(), "GET" | "HEAD") {
            return (Response::error(405, None, "Method not allowed"), None);
        }
        match origin {
            Origin::Cdn => cdn::answer(self, request),
            Origin::Hub => {
                let is_api = request.segments.first().is_some_and(|first| first == "api");
                let bucket = if is_api && !request.path.starts_with("/api/resolve-cache/") {
                    "api"
                } else {
                    "resolvers"
                };
                let (allowed, headers) = self.rate(bucket);
                let (mut response, file) = match (allowed, bucket) {
                    (false, _) => (Response::error(429, None, "Too many requests"), None),
                    (true, "api") => (api::answer(self, request), None),
                    (true, _) => resolve::answer(self, request),
                };
                response.headers.extend(headers);
                (response, file)
            }
        }
    }

    /// Counts a request against its bucket; whether it may pass, and the headers that tell.
    fn rate(&self, bucket: &'static str) -> (bool, [(String, String); 3]) {
        let mut quotas = self.quotas.lock().unwrap();
        let (allowed, limit, remaining, reset_s, window_s) = match quotas.get_mut(bucket) {
            None => (true, 3000, 2999, 300, 300),
            Some(quota) => {
                if quota.since.elapsed() >= quota.window {
                    (quota.used, quota.since) = (0, Instant::now());
                }
                let allowed = quota.used < quota.limit;
                quota.used += u64::from(allowed);
                let reset = quota.window.saturating_sub(quota.since.elapsed());
                let reset_s = reset.as_secs_f64().ceil() as u64;
                let window_s = quota.window.as_secs_f64().ceil() as u64;
                (allowed, quota.limit, quota.limit - quota.used, reset_s, window_s)
            }
        };
        let number = self.log.lock().unwrap().len();
        let headers = [
            ("RateLimit".to_owned(), format!("\"{bucket}\";r={remaining};t={reset_s}")),
            (
                "RateLimit-Policy".to_owned(),
                format!("\"fixed window\";\"{bucket}\";q={limit};w={window_s}"),
            ),
            ("X-Request-Id".to_owned(), format!("Root=1-test-{number}")),
        ];
        (allowed, headers)
    }
}

impl Gatekeeper for State {
    fn allow(&self, wanted: u64) -> u64 {
        let take = |left: u64| (left != UNLIMITED).then(|| left - left.min(wanted));
        match self.allowance.fetch_update(SeqCst, SeqCst, take) {
            Ok(left) => left.min(wanted),
            Err(_) => wanted,
        }
    }

    fn pace(&self) -> Option<u64> {
        Some(self.pace.load(SeqCst)).filter(|pace| *pace != UNLIMITED)
    }
}

/// Takes a connection off the list however its thread ends, so that its socket closes.
struct Leave<'a> {
    state: &'a State,
    number: u64,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.state.connections.lock().unwrap().open.remove(&self.number);
    }
}

impl Door {
    fn new(origin: Origin) -> Self {
        let flag = || Arc::new(AtomicBool::new(false));
        Self { origin, open: flag(), thread: Mutex::default(), mute: flag() }
    }

    fn open(&self, listener: TcpListener, state: &Arc<State>) {
        self.open.store(true, SeqCst);
        let (origin, state) = (self.origin, Arc::clone(state));
        let (open, mute) = (Arc::clone(&self.open), Arc::clone(&self.mute));
        let accept = move || {
            while let Ok((stream, _)) = accept(&listener) {
                if !open.load(SeqCst) {
                    return;
                }
                state.admit(origin, stream, mute.load(SeqCst));
            }
        };
        *self.thread.lock().unwrap() = Some(thread::spawn(accept));
    }

    /// Stops listening; returns when the socket is closed.
    fn close(&self, state: &State) {
        self.open.store(false, SeqCst);
        if let Some(thread) = self.thread.lock().unwrap().take() {
            // Wakes the accept.
            let _ = TcpStream::connect_timeout(&state.address(self.origin), Duration::from_secs(5));
            let _ = thread.join();
        }
    }
}

/// Accepts, passing over connections that were gone before.
fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    loop {
        match listener.accept() {
            Err(e) if matches!(e.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted) => {}
            other => return other,
        }
    }
}
