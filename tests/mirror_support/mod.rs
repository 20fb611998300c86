//! A mirror on loopback over a small verified model, and a client that speaks raw HTTP.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of it")]
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;
use std::time::Duration;

use muster::core::endpoint::Endpoint;
use muster::core::manifest::{Manifest, Source};
use muster::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
use muster::core::selection::Selection;
use muster::demo::{make, shape};
use muster::mirror::{Mirror, MirrorAuth};
use muster::volume::Volume;
use tokio::sync::oneshot;

pub const COMMIT: &str = "5c9d1e0123456789abcdef0123456789abcdef01";

pub fn source(id: &str) -> Source {
    Source {
        repo: Repo { kind: RepoKind::Model, id: RepoId::parse(id).unwrap() },
        endpoint: Endpoint::parse("http://127.0.0.1:1").unwrap(),
        revision: Revision::default(),
        commit: CommitId::parse(COMMIT).unwrap(),
        selection: Selection::default(),
    }
}

/// Makes a verified model.
pub fn add_model(volume: &Volume, source: Source, shards: u32, shard_bytes: u64) -> Manifest {
    let files = shape::files(shards, shard_bytes).unwrap();
    make::make(volume, source, &files, 2, &AtomicBool::new(false)).unwrap()
}

/// A running mirror; ends with the value.
pub struct Served {
    pub address: SocketAddr,
    pub manifest: Manifest,
    pub volume: Volume,
    place: tempfile::TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// `org/model` with three small shards and 21 other files.
    pub fn start() -> Self {
        Self::with(3, muster::demo::SHARD_MIN, MirrorAuth::Everybody, 1000)
    }

    pub fn with(shards: u32, shard_bytes: u64, auth: MirrorAuth, page_size: usize) -> Self {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let manifest = add_model(&volume, source("org/model"), shards, shard_bytes);
        let mirror = Mirror::of(volume.clone(), auth).with_page_size(page_size);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            runtime.block_on(mirror.serve(listener, async {
                let _ = stopped.await;
            }));
        });
        Self { address, manifest, volume, place, stop: Some(stop), thread: Some(thread) }
    }

    pub fn model_path(&self, file: &str) -> PathBuf {
        self.place.path().join("org/model").join(file)
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, &[], b"")
    }

    pub fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut stream = self.send(method, path, headers, body);
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes)
    }

    /// Sends a request and leaves the answer to be read.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n", self.address);
        for (name, value) in headers {
            write!(head, "{name}: {value}\r\n").unwrap();
        }
        if !body.is_empty() {
            write!(head, "Content-Length: {}\r\n", body.len()).unwrap();
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        stream
    }

    /// Stops the mirror and waits for its end.
    pub fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("a whole head");
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Self { status, headers, body: bytes[end + 4..].to_vec() }
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}
