//! What the hub remembers of every request, for tests to ask about.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::http::Request;

/// Which of the two servers: the endpoint itself or the other origin that serves LFS bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    Hub,
    Cdn,
}

/// One request as it looked when asked about; a running answer is recorded too.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub origin: Origin,
    /// Number of the TCP connection, unique in a hub.
    pub connection: u64,
    pub method: String,
    /// Percent-decoded.
    pub path: String,
    /// As sent, without the question mark.
    pub query: String,
    pub headers: Vec<(String, String)>,
    /// `bytes=first-last` as asked; `last` is inclusive, none when open.
    pub range: Option<(u64, Option<u64>)>,
    /// Repository path of the file, when the request was about one that exists.
    pub file: Option<String>,
    /// 0 while, or if, no header was sent.
    pub status: u16,
    /// Body bytes given to the socket so far (its buffer is small, 256 KiB at most).
    pub body_bytes_sent: u64,
    /// The whole answer went out as meant.
    pub finished: bool,
    /// Since the hub started.
    pub at: Duration,
}

impl Recorded {
    /// A header by its name in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }
}

pub fn find_header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v.as_str())
}

/// The live record behind a [`Recorded`].
#[derive(Debug)]
pub struct Entry {
    origin: Origin,
    connection: u64,
    request: Request,
    file: std::sync::OnceLock<String>,
    pub status: AtomicU16,
    pub body_bytes_sent: AtomicU64,
    pub finished: AtomicBool,
    at: Duration,
}

impl Entry {
    pub fn new(origin: Origin, connection: u64, request: &Request, epoch: Instant) -> Self {
        Self {
            origin,
            connection,
            request: request.clone(),
            file: std::sync::OnceLock::new(),
            status: AtomicU16::new(0),
            body_bytes_sent: AtomicU64::new(0),
            finished: AtomicBool::new(false),
            at: epoch.elapsed(),
        }
    }

    pub fn about(&self, file: &str) {
        let _ = self.file.set(file.to_owned());
    }

    pub fn snapshot(&self) -> Recorded {
        Recorded {
            origin: self.origin,
            connection: self.connection,
            method: self.request.method.clone(),
            path: self.request.path.clone(),
            query: self.request.query.clone(),
            headers: self.request.headers.clone(),
            range: self.request.range(),
            file: self.file.get().cloned(),
            status: self.status.load(Relaxed),
            body_bytes_sent: self.body_bytes_sent.load(Relaxed),
            finished: self.finished.load(Relaxed),
            at: self.at,
        }
    }
}
