//! The owner's API as a stranger speaks it: HTTP/1.1 by hand over a unix socket.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Child, Hub, Muster};

const TIME_LIMIT: Duration = Duration::from_secs(30);

/// A daemon that owns the world's volume.
pub struct Owner {
    pub process: Child,
    pub api: Api,
}

impl Owner {
    /// Starts `muster daemon` and waits until it owns the volume.
    #[track_caller]
    pub fn start(world: &Muster) -> Self {
        Self::start_with(world, &[])
    }

    #[track_caller]
    pub fn start_with(world: &Muster, flags: &[&str]) -> Self {
        let mut process = world.args(["daemon"].iter().chain(flags)).spawn();
        process.wait_for_text("muster daemon owns ", Duration::from_secs(20));
        let said = process.stderr_so_far();
        let line = said.lines().find(|line| line.contains("muster daemon owns ")).unwrap();
        let socket = line.split("socket ").nth(1).unwrap_or_else(|| panic!("no socket in {line:?}"));
        let socket = socket.trim_end_matches(')').split(", ").next().unwrap();
        Self { process, api: Api { socket: socket.into() } }
    }
}

/// One socket.
#[derive(Clone)]
pub struct Api {
    pub socket: PathBuf,
}

impl Api {
    pub fn at(socket: impl AsRef<Path>) -> Self {
        Self { socket: socket.as_ref().to_owned() }
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, "")
    }

    #[track_caller]
    pub fn post(&self, path: &str, body: &str) -> (u16, Value) {
        self.send("POST", path, body)
    }

    /// Asks for a repository of the hub under a name.
    #[track_caller]
    pub fn submit(&self, hub: &Hub, repo: &str, name: &str, token: Option<&str>) -> (u16, Value) {
        self.post("/v1/models", &submission(hub, repo, name, token).to_string())
    }

    /// The status of one model, or nothing.
    #[track_caller]
    pub fn model(&self, name: &str) -> Value {
        self.get(&format!("/v1/models/{}", name.replace('/', "%2F"))).1
    }

    #[track_caller]
    pub fn state(&self, name: &str) -> String {
        self.model(name)["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Follows the event stream.
    #[track_caller]
    pub fn events(&self) -> Events {
        let mut stream = self.connect();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "the stream ended in its head");
        }
        Events { lines }
    }

    #[track_caller]
    pub fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(&self.socket).unwrap_or_else(|e| panic!("{}: {e}", self.socket.display()));
        stream.set_read_timeout(Some(TIME_LIMIT)).unwrap();
        stream
    }

    #[track_caller]
    fn send(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let mut stream = self.connect();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
        // An answer may come before all was read.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
        answer(stream)
    }
}

/// Reads a whole answer of a connection that ends with it.
#[track_caller]
pub fn answer(mut stream: impl Read) -> (u16, Value) {
    let mut bytes = Vec::new();
    let read = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer ({read:?}): {text:?}"));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{head}"));
    (status, serde_json::from_str(body).unwrap_or(Value::Null))
}

pub fn submission(hub: &Hub, repo: &str, name: &str, token: Option<&str>) -> Value {
    json!({
        "job": {
            "name": name,
            "repo": { "kind": "model", "id": repo },
            "revision": "main",
            "selection": { "include": [], "exclude": [] },
            "endpoint": hub.url(),
            "connections": null,
            "reselect": false,
            "update": true,
        },
        "token": token,
    })
}

/// An event stream.
pub struct Events {
    lines: BufReader<UnixStream>,
}

impl Iterator for Events {
    /// Name and data; comments are left out.
    type Item = (String, Value);

    fn next(&mut self) -> Option<Self::Item> {
        let (mut name, mut line) = (String::new(), String::new());
        loop {
            line.clear();
            if self.lines.read_line(&mut line).expect("the stream goes on or ends") == 0 {
                return None;
            }
            if let Some(text) = line.strip_prefix("event: ") {
                text.trim_end().clone_into(&mut name);
            } else if let Some(text) = line.strip_prefix("data: ") {
                return Some((name, serde_json::from_str(text).expect("data is JSON")));
            }
        }
    }
}
