//! The contract of the wire: the real binary against a hub that plays every trap once.
//!
//! Each test ends with every byte right, or with a bounded failure that names what happened.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::format_collect,
    unreachable_pub,
    dead_code,
    reason = "a test arranges its own world"
)]

#[path = "../support/mod.rs"]
mod support;

mod breaks;
mod bytes;
mod limits;
mod listing;
mod mirrors;
mod ranges;
mod refusals;
mod right;
mod secrets;
mod stopping;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use support::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
const TOKEN: &str = "hf_TheSecretOfThisTest0123456789abcd";

/// A repository of `org/model` with these LFS files.
fn repo(files: &[(&str, u64)]) -> RepoSpec {
    let file = |(path, len): &(&str, u64)| FileSpec::lfs(path, Content::generated(path.len() as u64 ^ len, *len));
    files.iter().map(file).fold(RepoSpec::new("org/model"), RepoSpec::file)
}

/// How long a head, bytes or a connection may take: on no machine does a peer look silent that is not.
const PATIENCE: &str = "60s";
/// The same against a peer that is silent on purpose. Requests are not counted then: on a busy machine another
/// one may look silent, too.
const HASTE: &str = "2s";

/// A hub, and a world that asks it.
struct Scene {
    hub: Hub,
    world: Muster,
    repo: RepoSpec,
}

impl Scene {
    fn of(repo: RepoSpec) -> Self {
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub).env("MUSTER_RETRY_FOR", "20s");
        Self { hub, world, repo }.waiting(PATIENCE)
    }

    /// The same, but silence is soon taken for the end of a connection.
    fn hasty(self) -> Self {
        self.waiting(HASTE)
    }

    fn waiting(mut self, time: &str) -> Self {
        for name in ["MUSTER_CONNECT_TIMEOUT", "MUSTER_HEADER_TIMEOUT", "MUSTER_IDLE_TIMEOUT"] {
            self.world = self.world.env(name, time);
        }
        self
    }

    fn pull(&self) -> Invocation {
        self.world.args(["pull", &self.repo.id, "--connections", "2", "--log", "info"])
    }

    fn directory(&self) -> PathBuf {
        self.world.model(&self.repo.id)
    }

    /// Pulls, and looks whether every file is there with the right bytes, and nothing else is.
    #[track_caller]
    fn arrives(&self) -> Output {
        let out = self.pull().run().expect_code(0);
        self.assert_complete();
        assert_eq!(self.hub.plays_left(), 0, "the trap was not played: {:#?}\n{out}", self.hub.requests());
        out
    }

    /// As `arrives`; no wrong byte was ever written, so nothing had to be set aside.
    #[track_caller]
    fn arrives_without_a_wrong_byte(&self) -> Output {
        let out = self.arrives();
        assert_eq!(self.quarantined(), Vec::<PathBuf>::new(), "{out}");
        out
    }

    #[track_caller]
    fn assert_complete(&self) {
        for file in self.repo.files() {
            self.assert_in_place(&file.path);
        }
        assert!(self.directory().join(".muster/receipt.json").exists());
        let left = std::fs::read_dir(self.directory().join(".muster/partial")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "no partial stays");
    }

    #[track_caller]
    fn assert_in_place(&self, path: &str) {
        let bytes = std::fs::read(self.directory().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(sha256_hex(&bytes) == self.repo.get(path).content.sha256(), "{path} has wrong bytes");
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        files_under(&self.world.volume().join(".muster/quarantine"))
    }

    /// Requests for bytes of a file, not for where it is.
    fn reads_of(&self, path: &str) -> Vec<Recorded> {
        let mut all = self.hub.matching(Match::any().get());
        all.retain(|seen| seen.file.as_deref() == Some(path));
        all
    }
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

fn holds(bytes: &[u8], secret: &str) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
}

/// What came of a file before a request failed was not asked for again, up to a buffer.
#[track_caller]
fn assert_goes_on(scene: &Scene, path: &str) {
    let size = scene.repo.get(path).size();
    let sent = scene.hub.bytes_sent_for(path);
    assert!(sent <= size + size / 10, "{sent} bytes for {size}: {:#?}", scene.reads_of(path));
    assert!(scene.reads_of(path).len() > 1);
}
