//! What the drills of this file stand on: a volume whose sockets nobody else can reach, what of it
//! may never change, and lease waits that run beside each other.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::support::*;

pub const MIB: u64 = 1 << 20;
/// Of the bytes that a held hub lets go, so many at most are of its API.
pub const SLACK: u64 = 128 << 10;
pub const SOON: std::time::Duration = std::time::Duration::from_secs(60);
/// A lease, and what a busy machine may add.
pub const LEASE: std::time::Duration = std::time::Duration::from_secs(30);
pub const AFTER_A_LEASE: std::time::Duration = std::time::Duration::from_secs(150);

/// A world whose volume has a path that is too long for a socket, so that sockets are in the runtime
/// directory, of which each host has its own.
pub struct Ground {
    pub world: Muster,
    _folder: tempfile::TempDir,
}

impl Ground {
    pub fn on(hub: &Hub) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join("v".repeat(100));
        std::fs::create_dir(&volume).unwrap();
        Self { world: Muster::new(volume).endpoint(hub), _folder: folder }
    }
}

/// A published file as nobody may change it: inode, size, time of the last write, and bytes.
pub type Stamp = (u64, u64, i64, i64, String);

/// Everything of a model that a launcher can see, and manifest and receipt.
pub fn published(directory: &Path) -> BTreeMap<PathBuf, Stamp> {
    let ours = |name: &str| [".muster/manifest.json", ".muster/receipt.json"].contains(&name);
    let names = listing(directory).into_iter();
    let names = names.filter(|name| !name.ends_with('/') && (!name.starts_with(".muster/") || ours(name)));
    let stamp = |name: String| {
        let path = directory.join(name);
        let meta = path.symlink_metadata().unwrap();
        let digest = sha256_hex(std::fs::read(&path).unwrap());
        (path, (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec(), digest))
    };
    names.map(stamp).collect()
}

/// The reference shape, small.
pub fn shards() -> RepoSpec {
    RepoSpec::kimi(6, 2 * MIB, 4).named("org/model")
}

/// Every second shard stands still at half of its bytes from now on; everything else arrives.
pub fn hold(hub: &Hub, repo: &RepoSpec) -> Vec<String> {
    let shards = repo.files().filter(|file| file.path.ends_with(".safetensors"));
    let held: Vec<_> = shards.step_by(2).map(|file| file.path.clone()).collect();
    for file in &held {
        hub.always(Match::cdn(file), Behaviour::StallAfter(MIB));
    }
    held
}

/// Waits until nothing more can come to a pull of a held hub: what is not held has its name, and of
/// the rest half is on disk.
#[track_caller]
pub fn wait_for_hold(directory: &Path, repo: &RepoSpec, held: &[String]) {
    wait_until("what is not held is there", SOON, || {
        let half = |file: &String| {
            let partial = partial_of(directory, file).and_then(|path| std::fs::metadata(path).ok());
            partial.is_some_and(|meta| meta.len() >= MIB)
        };
        repo.files().all(|file| held.contains(&file.path) || directory.join(&file.path).exists())
            && held.iter().all(half)
    });
}

/// Ends the hold for whoever asks from now on.
pub fn let_go(hub: &Hub) {
    hub.behave();
}
