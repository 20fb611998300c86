//! One TCP connection: reads request heads, writes answers byte by byte, and ends as told.
//!
//! Blocking, on a thread of its own. Whatever it waits for, the hub's end wakes it: sockets are shut
//! down, and sleeps go through [`Stop`].

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use super::http::{Ending, Framing, Instead, Request, Response};
use super::record::Entry;

const MAX_HEAD: usize = 64 * 1024;
const MAX_REQUEST_BODY: usize = 1 << 20;
const SLICE: u64 = 64 * 1024;
/// Bounds what a client that was killed may have been charged for in vain.
const SEND_BUFFER: usize = 64 * 1024;

/// The hub's end, as something one can wait for.
#[derive(Debug, Default)]
pub struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub fn stop(&self) {
        *self.stopped.lock().unwrap() = true;
        self.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        *self.stopped.lock().unwrap()
    }

    /// Sleeps; true when the hub ended meanwhile.
    pub fn sleep(&self, time: Duration) -> bool {
        let guard = self.stopped.lock().unwrap();
        *self.changed.wait_timeout_while(guard, time, |stopped| !*stopped).unwrap().0
    }
}

/// Leave to send body bytes; the hub may hold everybody back.
pub trait Gatekeeper {
    /// How many of `wanted` body bytes may be sent now.
    fn allow(&self, wanted: u64) -> u64;
    /// Body bytes a second for each connection.
    fn pace(&self) -> Option<u64>;
}

pub struct Wire<'a> {
    stream: Arc<TcpStream>,
    unread: Vec<u8>,
    stop: &'a Stop,
    keeper: &'a dyn Gatekeeper,
    /// Paced bytes may go from here on.
    due: Instant,
}

impl<'a> Wire<'a> {
    pub fn new(stream: Arc<TcpStream>, stop: &'a Stop, keeper: &'a dyn Gatekeeper) -> Self {
        let _ = stream.set_nodelay(true);
        let _ = sockopt::set_socket_send_buffer_size(&*stream, SEND_BUFFER);
        Self { stream, unread: Vec::new(), stop, keeper, due: Instant::now() }
    }

    /// The next request; none at the end of the connection or of sense.
    pub fn next_request(&mut self) -> Option<Request> {
        let end = loop {
            if let Some(at) = self.unread.windows(4).position(|four| four == b"\r\n\r\n") {
                break at;
            }
            if self.unread.len() > MAX_HEAD || !self.read_more() {
                return None;
            }
        };
        let head: Vec<u8> = self.unread.drain(..end + 4).collect();
        let request = Request::parse(std::str::from_utf8(&head[..end]).ok()?)?;
        let length = request.header("content-length").map_or(Ok(0), str::parse::<usize>).ok()?;
        if length > MAX_REQUEST_BODY {
            return None;
        }
        while self.unread.len() < length {
            if !self.read_more() {
                return None;
            }
        }
        self.unread.drain(..length);
        Some(request)
    }

    /// Sends the answer; true when the connection can carry another request.
    pub fn answer(&mut self, response: &Response, head_only: bool, entry: &Entry) -> bool {
        if !response.delay.is_zero() && self.stop.sleep(response.delay) {
            return false;
        }
        match &response.instead {
            Some(Instead::Raw(bytes, ending)) => {
                let _ = self.write(bytes);
                self.end(*ending);
                return false;
            }
            Some(Instead::End(ending)) => {
                self.end(*ending);
                return false;
            }
            None => {}
        }
        entry.status.store(response.status, Relaxed);
        if !self.write(response.head().as_bytes()) {
            return false;
        }
        if !head_only {
            if !self.body(response, entry) {
                return false;
            }
            if let Some((_, ending)) = response.cut {
                entry.finished.store(true, Relaxed);
                self.end(ending);
                return false;
            }
        }
        entry.finished.store(true, Relaxed);
        true
    }

    /// Stays silent until the peer or the hub ends the connection.
    pub fn stall(&mut self) {
        let mut scrap = [0; 4096];
        while matches!((&*self.stream).read(&mut scrap), Ok(n) if n > 0) {}
    }

    fn body(&mut self, response: &Response, entry: &Entry) -> bool {
        let chunked = response.framing == Framing::Chunked;
        let mut all = response.body.len() + response.extra;
        if let Some((cut, _)) = response.cut {
            all = all.min(cut);
        }
        let mut buf = vec![0; SLICE as usize];
        let mut sent = 0;
        while sent < all {
            let n = self.may_send(response.pace, (all - sent).min(SLICE));
            if n == 0 {
                return false;
            }
            let slice = &mut buf[..n as usize];
            response.body.read_at(sent, slice);
            let written = if chunked {
                self.write(format!("{n:x}\r\n").as_bytes()) && self.write(slice) && self.write(b"\r\n")
            } else {
                self.write(slice)
            };
            if !written {
                return false;
            }
            sent += n;
            entry.body_bytes_sent.fetch_add(n, Relaxed);
        }
        !chunked || response.cut.is_some() || self.write(b"0\r\n\r\n")
    }

    /// Waits until bytes may go; how many, or 0 when the hub ended.
    fn may_send(&mut self, pace: Option<u64>, wanted: u64) -> u64 {
        let mut wanted = wanted;
        if let Some(rate) = pace.or_else(|| self.keeper.pace()) {
            wanted = wanted.min((rate / 50).max(1));
            let now = Instant::now();
            if self.due > now && self.stop.sleep(self.due - now) {
                return 0;
            }
            // Time that nobody used is not saved up.
            let step = Duration::from_secs_f64(wanted as f64 / rate as f64);
            self.due = self.due.max(now) + step;
        }
        loop {
            let allowed = self.keeper.allow(wanted);
            if allowed > 0 || self.stop.sleep(Duration::from_millis(2)) {
                return allowed;
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> bool {
        (&*self.stream).write_all(bytes).is_ok()
    }

    fn read_more(&mut self) -> bool {
        let mut buf = [0; 8192];
        match (&*self.stream).read(&mut buf) {
            Ok(n) if n > 0 => {
                self.unread.extend_from_slice(&buf[..n]);
                true
            }
            _ => false,
        }
    }

    fn end(&mut self, ending: Ending) {
        match ending {
            Ending::Stall => self.stall(),
            Ending::Reset => {
                self.wait_until_received();
                let _ = sockopt::set_socket_linger(&*self.stream, Some(Duration::ZERO));
            }
            Ending::Close => {
                // A close with unread input would turn into a reset: let the peer finish first.
                let _ = self.stream.shutdown(std::net::Shutdown::Write);
                let _ = self.stream.set_read_timeout(Some(Duration::from_secs(2)));
                self.stall();
            }
        }
    }

    /// A reset throws away what is still in the send queue; waits (bounded) until that is empty.
    fn wait_until_received(&self) {
        let (Ok(here), Ok(there)) = (self.stream.local_addr(), self.stream.peer_addr()) else {
            return;
        };
        let ports = |line: &str| -> Option<(u16, u16, u64)> {
            let mut fields = line.split_whitespace().skip(1);
            let mut port = || u16::from_str_radix(fields.next()?.rsplit_once(':')?.1, 16).ok();
            let (local, remote) = (port()?, port()?);
            let queues = fields.nth(1)?;
            Some((local, remote, u64::from_str_radix(queues.split_once(':')?.0, 16).ok()?))
        };
        for _ in 0..1000 {
            let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
            let queued = table
                .lines()
                .filter_map(ports)
                .find(|(local, remote, _)| (*local, *remote) == (here.port(), there.port()))
                .map_or(0, |(_, _, queued)| queued);
            if queued == 0 || self.stop.sleep(Duration::from_millis(2)) {
                return;
            }
        }
    }
}
