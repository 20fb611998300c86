//! The running servers behind a [`Hub`](super::Hub): listeners, a thread for each connection, and
//! the state they share.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::net as socket;

use super::access::Access;
use super::behaviour::Place;
use super::cdn::Signer;
use super::chaos::Chaos;
use super::http::{Request, Response};
use super::record::{Entry, Origin};
use super::repo::{FileSpec, RepoSpec};
use super::script::Script;
use super::wire::{Gatekeeper, Stop, Wire};
use super::{api, cdn, resolve};

const MAX_CONNECTIONS: usize = 512;
pub(super) const UNLIMITED: u64 = u64::MAX;

/// What all connections share.
pub(super) struct State {
    pub addresses: [SocketAddr; 2],
    /// Where clients reach an origin that stands behind something else.
    pub fronts: Mutex<[Option<String>; 2]>,
    pub stop: Stop,
    pub repos: Mutex<Vec<RepoSpec>>,
    pub access: Mutex<Access>,
    pub settings: Mutex<Settings>,
    pub signer: Mutex<Signer>,
    /// Files the CDN holds, by object key; known once their URL was signed.
    pub objects: Mutex<HashMap<String, FileSpec>>,
    pub quotas: Mutex<HashMap<&'static str, Quota>>,
    pub script: Mutex<Script>,
    pub chaos: Mutex<Option<Chaos>>,
    pub log: Mutex<Vec<Arc<Entry>>>,
    pub mistakes: Mutex<Vec<String>>,
    epoch: Instant,
    pub pace: AtomicU64,
    pub allowance: AtomicU64,
    pub connections: Mutex<Connections>,
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
pub(super) struct Connections {
    next: u64,
    open: HashMap<u64, (Origin, Arc<TcpStream>)>,
    peak: HashMap<Origin, usize>,
    threads: Vec<JoinHandle<()>>,
}

impl State {
    pub fn new(addresses: [SocketAddr; 2], repos: Vec<RepoSpec>) -> Self {
        Self {
            addresses,
            fronts: Mutex::default(),
            stop: Stop::default(),
            repos: Mutex::new(repos),
            access: Mutex::default(),
            settings: Mutex::new(Settings { page_size: 1000, max_whole_body: UNLIMITED }),
            signer: Mutex::default(),
            objects: Mutex::default(),
            quotas: Mutex::default(),
            script: Mutex::default(),
            chaos: Mutex::default(),
            log: Mutex::default(),
            mistakes: Mutex::default(),
            epoch: Instant::now(),
            pace: AtomicU64::new(UNLIMITED),
            allowance: AtomicU64::new(UNLIMITED),
            connections: Mutex::default(),
        }
    }

    pub fn address(&self, origin: Origin) -> SocketAddr {
        self.addresses[origin as usize]
    }

    pub fn url(&self, origin: Origin) -> String {
        let front = self.fronts.lock().unwrap()[origin as usize].clone();
        front.unwrap_or_else(|| format!("http://{}", self.address(origin)))
    }

    /// Ends the open connections, of one origin or of both.
    pub fn cut(&self, origin: Option<Origin>) {
        for (of, stream) in self.connections.lock().unwrap().open.values() {
            if origin.is_none_or(|wanted| wanted == *of) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    /// Waits for the threads of all connections; they end once stopped and cut.
    pub fn join(&self) {
        let threads = std::mem::take(&mut self.connections.lock().unwrap().threads);
        // A panic is among the mistakes already.
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn admit(self: &Arc<Self>, origin: Origin, stream: TcpStream, mute: bool, turned_away: bool) {
        if turned_away {
            let _ = socket::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
            return;
        }
        let mut connections = self.connections.lock().unwrap();
        connections.threads.retain(|thread| !thread.is_finished());
        if connections.open.len() >= MAX_CONNECTIONS {
            return;
        }
        connections.next += 1;
        let (number, stream) = (connections.next, Arc::new(stream));
        connections.open.insert(number, (origin, Arc::clone(&stream)));
        let open = connections.open(origin);
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
        let scripted = self.script.lock().unwrap().next(origin, request);
        let behaviour = scripted.or_else(|| self.chaos.lock().unwrap().as_mut()?.next(&response));
        if let Some(behaviour) = behaviour {
            let other = if origin == Origin::Hub { Origin::Cdn } else { Origin::Hub };
            let place = Place {
                origin,
                request,
                file: file.as_ref(),
                other_origin: self.url(other),
                misuse: &|text| self.mistakes.lock().unwrap().push(text),
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
                let bucket =
                    if is_api && !request.path.starts_with("/api/resolve-cache/") { "api" } else { "resolvers" };
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
            ("RateLimit-Policy".to_owned(), format!("\"fixed window\";\"{bucket}\";q={limit};w={window_s}")),
            ("X-Request-Id".to_owned(), format!("Root=1-test-{number}")),
        ];
        (allowed, headers)
    }
}

impl Connections {
    pub fn open(&self, origin: Origin) -> usize {
        self.open.values().filter(|(of, _)| *of == origin).count()
    }

    pub fn peak(&self, origin: Origin) -> usize {
        self.peak.get(&origin).copied().unwrap_or(0)
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
        if thread::panicking() {
            let text = format!("the thread of connection {} panicked", self.number);
            self.state.mistakes.lock().unwrap().push(text);
        }
        self.state.connections.lock().unwrap().open.remove(&self.number);
    }
}

/// A listener that can be closed and opened again on its port.
pub(super) struct Door {
    origin: Origin,
    /// New connections are accepted and then left alone.
    mute: Arc<AtomicBool>,
    /// So many more connections are reset as soon as they are there.
    turned_away: Arc<AtomicU64>,
    listening: Mutex<Option<(Arc<TcpListener>, JoinHandle<()>)>>,
    /// Keeps the port while nobody listens: bound, and refusing connections.
    reserved: Mutex<Option<OwnedFd>>,
}

impl Door {
    pub fn new(origin: Origin) -> Self {
        Self {
            origin,
            mute: Arc::default(),
            turned_away: Arc::default(),
            listening: Mutex::default(),
            reserved: Mutex::default(),
        }
    }

    pub fn mute(&self, mute: bool) {
        self.mute.store(mute, SeqCst);
    }

    pub fn turn_away(&self, connections: u64) {
        self.turned_away.store(connections, SeqCst);
    }

    pub fn open(&self, listener: TcpListener, state: &Arc<State>) {
        let listener = Arc::new(listener);
        let (origin, state) = (self.origin, Arc::clone(state));
        let (accepting, mute) = (Arc::clone(&listener), Arc::clone(&self.mute));
        let turned_away = Arc::clone(&self.turned_away);
        let accept = move || {
            while let Ok((stream, _)) = accept(&accepting) {
                let away = turned_away.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok();
                state.admit(origin, stream, mute.load(SeqCst), away);
            }
        };
        *self.listening.lock().unwrap() = Some((listener, thread::spawn(accept)));
    }

    /// Stops listening, whoever has a copy of the socket: between fork and exec of a process that a
    /// neighbouring test starts, the child has one. Wakes the accept, too.
    pub fn close(&self) {
        if let Some((listener, thread)) = self.listening.lock().unwrap().take() {
            let _ = socket::shutdown(&*listener, socket::Shutdown::Both);
            let _ = thread.join();
        }
    }

    /// Stops listening and keeps the port from others.
    pub fn close_for_now(&self, state: &State) {
        self.close();
        let mut reserved = self.reserved.lock().unwrap();
        if reserved.is_none() {
            *reserved = Some(reserve(state.address(self.origin)).expect("the port just left"));
        }
    }

    pub fn open_again(&self, state: &Arc<State>) {
        if let Some(port) = self.reserved.lock().unwrap().take() {
            socket::listen(&port, 128).expect("listen on the port kept");
            self.open(TcpListener::from(port), state);
        }
    }
}

/// A socket bound to the address that does not listen.
fn reserve(address: SocketAddr) -> io::Result<OwnedFd> {
    let (family, flags) = (socket::AddressFamily::INET, socket::SocketFlags::CLOEXEC);
    let port = socket::socket_with(family, socket::SocketType::STREAM, flags, None)?;
    socket::sockopt::set_socket_reuseaddr(&port, true)?;
    socket::bind(&port, &address)?;
    Ok(port)
}

/// Accepts, passing over connections that were gone before.
fn accept(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    use io::ErrorKind::{ConnectionAborted, Interrupted};
    loop {
        match listener.accept() {
            Err(error) if matches!(error.kind(), ConnectionAborted | Interrupted) => {}
            other => return other,
        }
    }
}
