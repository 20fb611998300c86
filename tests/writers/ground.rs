//! What the drills of this file stand on: a volume whose sockets nobody else can reach, what of it
//! may never change, and lease waits that run beside each other.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::faultfs::FaultFs;
use super::host::*;
use super::support::*;

pub const MIB: u64 = 1 << 20;
pub const SOON: std::time::Duration = std::time::Duration::from_secs(60);
/// A lease, and what a busy machine may add.
pub const LEASE: std::time::Duration = std::time::Duration::from_secs(30);
pub const AFTER_A_LEASE: std::time::Duration = std::time::Duration::from_secs(150);

/// Two hosts and what they share.
pub struct Pair {
    pub here: Host,
    pub there: Host,
    /// Looks at the volume from neither.
    pub world: Muster,
    /// The mounts of `here` and `there`, where each has one of its own.
    pub mounts: Option<[FaultFs; 2]>,
    _folder: tempfile::TempDir,
}

/// Too long for a socket, so that sockets are in the runtime directory, of which each host has its own.
fn long_name() -> String {
    "v".repeat(100)
}

impl Pair {
    /// Two containers of one machine: one boot, one local file system, equal pids and names.
    pub fn containers(hub: &Hub) -> Option<Self> {
        if !can_make_hosts() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let volume = folder.path().join(long_name());
        std::fs::create_dir(&volume).unwrap();
        let world = Muster::new(volume).endpoint(hub);
        let host = || Host::in_world(&world, "node");
        Some(Self { here: host(), there: host(), world: world.clone(), mounts: None, _folder: folder })
    }

    /// Two machines: each its own boot and its own mount of a shared file system on which `flock` says
    /// yes to everybody; equal pids and names.
    pub fn machines(hub: &Hub) -> Option<Self> {
        if !can_make_hosts() {
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).join(long_name());
        let [disk, here, there] = ["disk", "here", "there"].map(at);
        for path in [&disk, &here, &there] {
            std::fs::create_dir_all(path).unwrap();
        }
        let mount = |place: &PathBuf| {
            let fs = FaultFs::mount(&disk, place)?;
            fs.be_quick();
            fs.lie_about_locks(true);
            Ok::<_, String>(fs)
        };
        let mounts = match (mount(&here), mount(&there)) {
            (Ok(here), Ok(there)) => [here, there],
            (Err(why), _) | (_, Err(why)) => {
                skip(&why);
                return None;
            }
        };
        let world = Muster::new(disk).endpoint(hub);
        let host = |boot: &str, volume: &PathBuf| Host::in_world(&world, "node").booted_as(boot).with_volume(volume);
        let here = host("11111111-1111-4111-8111-111111111111", &here);
        let there = host("22222222-2222-4222-8222-222222222222", &there);
        Some(Self { here, there, world: world.clone(), mounts: Some(mounts), _folder: folder })
    }

    pub fn directory(&self) -> PathBuf {
        self.world.model("org/model")
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
        hub.always(Match::cdn(file), Behaviour::StallAt(MIB));
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

/// Raised when it goes, also by a failed assertion, so that a thread beside it ends.
pub struct Flag<'a>(pub &'a std::sync::atomic::AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}
