//! The power is cut at any instant (P1 to P5): what was called durable is there, nothing wrong has a
//! final name, no gate is open too early, and the next boot goes on from what was claimed.
//!
//! A pull works on a file system on a loop device, the *drive*; a point-in-time copy of the drive's
//! file is the disk as the cut left it. Two kinds of drive are cut:
//! - *faithful*: the file itself is cloned, with every write that the loop device had completed. Writes
//!   that were under way are in it or not; the file system's own journal does the rest.
//! - *forgetful*: the drive's file lies in the page cache of another file system, on a device of its own,
//!   and that device is cloned. What the pull's file system did not flush is gone, or there in part,
//!   in any order, as with a drive that loses its cache.
//!
//! What this does not show: a drive that lies about a flush (nothing but a hash finds that), and sectors
//! that are torn below the size of a page.
//!
//! `MUSTER_POWER_CUTS` is how many cuts of each file system (4), `MUSTER_POWER_SEED` repeats a run.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures, and the seed that repeats them")]

mod support;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(120);
const MODEL: &str = "org/model";
/// Unclaimed bytes of a file that make a checkpoint when a second has passed: more than the paces here
/// bring in that time. While it is synced more comes, some seconds of a pace at most.
const CHECKPOINT: u64 = 16 * MIB;
const MEANWHILE: u64 = 8 * MIB;
const PACES: [u64; 3] = [2 * MIB, 3 * MIB, 4 * MIB];
const CONNECTIONS: u64 = 3;
/// When an idle connection takes over the rest of a range, what is in the socket of the other comes twice.
const IN_SOCKETS: u64 = MIB / 2;
/// Cuts of one pull.
const CUTS_A_PULL: u64 = 4;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

// class: progress-lost, looks-complete
#[test]
fn what_was_durable_on_ext4_survives_a_power_cut_and_nothing_else_counts() {
    cut_the_power_of(Kind::Ext4);
}

// class: progress-lost, looks-complete
#[test]
fn what_was_durable_on_xfs_survives_a_power_cut_and_nothing_else_counts() {
    cut_the_power_of(Kind::Xfs);
}

// class: progress-lost, looks-complete
#[test]
fn what_was_durable_on_btrfs_survives_a_power_cut_and_nothing_else_counts() {
    cut_the_power_of(Kind::Btrfs);
}

/// Two shards of several checkpoints, small ones that come and go, and the small files of a model.
fn repo() -> RepoSpec {
    let shard = |at: u64| format!("model-{at:05}-of-00010.safetensors");
    let small =
        (3..=10).fold(RepoSpec::new(MODEL), |repo, at| repo.lfs(&shard(at), Content::generated(at, 3 * MIB + at)));
    small
        .lfs(&shard(1), Content::generated(1, 38 * MIB + 1))
        .lfs(&shard(2), Content::generated(2, 22 * MIB + 2))
        .plain("config.json", "{\"architectures\": []}")
        .plain("sub/folder/notes.txt", "small files are published too")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drive {
    Faithful,
    Forgetful,
}

/// The disk as a cut left it.
struct Cut {
    drive: Drive,
    image: PathBuf,
    told: Told,
}

/// What the owner had said before the cut.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    durable: u64,
    verified: u64,
    /// Bytes that the hub had sent for this directory.
    sent: u64,
}

/// What is on the disk after a cut, by looking at it alone.
#[derive(Debug, Default)]
struct Found {
    published: u64,
    claimed: u64,
    files: u64,
}

#[derive(Debug, Default)]
struct Tally {
    cuts: u64,
    forgetful: u64,
    files: u64,
    claimed: u64,
    ready: u64,
    fetched: u64,
    again: u64,
    again_most: u64,
}

/// A process in a mount namespace of its own holds a copy of every mount there is: one at a time.
static ALONE: Mutex<()> = Mutex::new(());

struct Bench<'a> {
    kind: Kind,
    folder: &'a Path,
    /// Holds everything; nobody cuts it.
    host: &'a Disk,
    hub: &'a Hub,
    repo: &'a RepoSpec,
    world: &'a Muster,
    chance: fastrand::Rng,
    tally: Tally,
}

fn cut_the_power_of(kind: Kind) {
    if let Some(why) = cannot_mount(&[kind, Kind::Xfs]) {
        return skip(&why);
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let cuts = number("MUSTER_POWER_CUTS").unwrap_or(4);
    let clock = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let seed = number("MUSTER_POWER_SEED").unwrap_or_else(clock);
    println!("{kind:?}: MUSTER_POWER_CUTS={cuts} MUSTER_POWER_SEED={seed}");
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let host = Disk::make(&folder.join("host.img"), 8 << 30, Kind::Xfs, &[], &folder.join("host"));
    host.trust();
    let repo = repo();
    let hub = Hub::start(repo.clone());
    let world = Muster::new(folder.join("volume")).endpoint(&hub);
    let chance = fastrand::Rng::with_seed(seed);
    let mut bench =
        Bench { kind, folder, host: &host, hub: &hub, repo: &repo, world: &world, chance, tally: Tally::default() };
    let mut before = None;
    while bench.tally.cuts < cuts {
        let wanted = CUTS_A_PULL.min(cuts - bench.tally.cuts).min(cuts.div_ceil(2));
        let drive = if bench.tally.forgetful * 2 > bench.tally.cuts { Drive::Faithful } else { Drive::Forgetful };
        before = bench.round(drive, wanted, before.as_deref());
        println!("{kind:?}: so far {}", bench.tally);
    }
    println!("{kind:?}: {}", bench.tally);
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cuts, forgetful, files, claimed, ready, fetched, again, again_most } = self;
        write!(f, "{cuts} cuts, {forgetful} of them of a drive that forgets; {files} files in place and ")?;
        write!(f, "{} MiB claimed found right, {ready} complete; ", claimed / MIB)?;
        write!(
            f,
            "{} MiB fetched after, {} MiB lost, {} KiB of one cut at most",
            fetched / MIB,
            again / MIB,
            again_most / 1024
        )
    }
}

impl Bench<'_> {
    /// A pull that is cut `wanted` times; each cut is looked at, and goes on to the end. Returns one
    /// of the disks as it was cut, for the next pull to begin with.
    fn round(&mut self, drive: Drive, wanted: u64, before: Option<&Path>) -> Option<PathBuf> {
        let machine_file = self.host.at().join("machine");
        let machine = Disk::make(&machine_file, 2 << 30, Kind::Xfs, &[], &self.folder.join("machine"));
        machine.trust();
        let drive_file = machine.at().join("drive");
        let volume = self.world.volume().to_owned();
        let disk = match before {
            Some(image) => {
                std::fs::copy(image, &drive_file).unwrap();
                std::fs::remove_file(image).unwrap();
                std::fs::File::open(&drive_file).unwrap().sync_all().unwrap();
                Disk::mount(&drive_file, self.kind, "", &volume)
            }
            None => Disk::make(&drive_file, 640 * MIB, self.kind, &[], &volume),
        };
        let cuts = self.pull_and_cut(drive, wanted, (&machine_file, &drive_file));
        disk.unmount();
        let next = self.chance.usize(..=cuts.len());
        let mut kept = None;
        let mut cuts: Vec<_> = cuts.into_iter().enumerate().collect();
        let mut machine = Some(machine);
        if drive == Drive::Forgetful {
            // Its copies have the same name inside.
            machine.take().unwrap().unmount();
        }
        for (at, cut) in cuts.drain(..) {
            let whole = (at == next).then(|| self.folder.join("kept.img"));
            let keeps = whole.is_some();
            self.after(&cut, whole.as_deref());
            if keeps {
                kept = whole;
            }
            std::fs::remove_file(&cut.image).unwrap();
        }
        drop(machine);
        std::fs::remove_file(machine_file).unwrap();
        kept
    }

    /// Runs a pull and cuts it at random instants; it is killed at the last one.
    fn pull_and_cut(&mut self, drive: Drive, wanted: u64, (machine, disk): (&Path, &Path)) -> Vec<Cut> {
        let pace = self.chance.choice(PACES).unwrap();
        let there = self.look().published + self.look().claimed;
        let left = self.repo.total_bytes().saturating_sub(there);
        let mut instants: Vec<_> = (0..wanted).map(|_| self.chance.u64(0..=left + left / 8)).collect();
        instants.sort_unstable();
        self.hub.pace(pace);
        let sent_before = self.hub.total_body_bytes();
        let mut child = self.as_boot(&["pull", MODEL, "--connections", &CONNECTIONS.to_string()]).spawn();
        let mut cuts = Vec::new();
        for (at, instant) in instants.into_iter().enumerate() {
            let sent = || self.hub.total_body_bytes() - sent_before;
            wait_until("so much was sent", SOON, || sent() >= instant.min(left) || !child.is_running());
            std::thread::sleep(Duration::from_millis(self.chance.u64(0..400)));
            let told = self.told();
            let (from, to) = match drive {
                Drive::Faithful => (disk, disk.with_file_name(format!("cut-{at}"))),
                Drive::Forgetful => (machine, machine.with_file_name(format!("cut-{at}"))),
            };
            clone_file(from, &to);
            // What was sent by now may be in the copy, or lost with it.
            let told = Told { sent: there + self.hub.total_body_bytes() - sent_before, ..told };
            cuts.push(Cut { drive, image: to, told });
        }
        child.kill();
        drop(child);
        self.hub.cut(Origin::Cdn);
        self.hub.unpaced();
        cuts
    }

    /// Mounts a disk as a cut left it, on another boot, and holds it against every promise.
    fn after(&mut self, cut: &Cut, keep: Option<&Path>) {
        let machine = (cut.drive == Drive::Forgetful)
            .then(|| Disk::mount(&cut.image, Kind::Xfs, "nouuid", &self.folder.join("machine")));
        let image = machine.as_ref().map_or_else(|| cut.image.clone(), |machine| machine.at().join("drive"));
        if let Some(keep) = keep {
            std::fs::copy(&image, keep).unwrap();
        }
        let options = if self.kind == Kind::Xfs { "nouuid" } else { "" };
        let disk = Disk::mount(&image, self.kind, options, self.world.volume());
        self.judge(cut);
        disk.unmount();
    }

    fn judge(&mut self, cut: &Cut) {
        let Bench { hub, repo, world, .. } = *self;
        let directory = world.model(MODEL);
        let found = self.look();
        let (told, total) = (cut.told, repo.total_bytes());
        assert!(found.published >= told.verified, "it said {told:?}, and there is {found:?}");
        assert!(found.published + found.claimed >= told.durable, "it said {told:?}, and there is {found:?}");
        let again = told.sent.saturating_sub(found.published + found.claimed);
        assert!(
            again <= CONNECTIONS * (CHECKPOINT + MEANWHILE),
            "{again} bytes lost: it said {told:?}, there is {found:?}"
        );

        let whole = found.published == total;
        let gate = self.as_boot(&["gate", MODEL, "--no-remember"]).run();
        match gate.code {
            Some(0) => assert!(whole, "the gate opened early: {gate}"),
            Some(10 | 13) => {}
            _ => panic!("{gate}"),
        }
        let status = self.as_boot(&["status"]).run();
        assert!(matches!(status.code, Some(0 | 13)), "{status}");

        let sent = hub.total_body_bytes();
        let connections = CONNECTIONS.to_string();
        let pull = ["pull", MODEL, "--no-wait", "--connections", &connections];
        let out = self.as_boot(&pull).time_limit(SOON).run().expect_code(0);
        let sent = hub.total_body_bytes() - sent;
        let lacked = total - found.published - found.claimed + CONNECTIONS * IN_SOCKETS;
        assert!(sent <= lacked, "{sent} bytes fetched where {lacked} were missing: {found:?}\n{out}");
        if gate.code == Some(0) {
            // Nothing was to be done, so nobody looked for what the removal of claims, which is not synced, left.
            partials(&directory).into_iter().try_for_each(std::fs::remove_file).unwrap();
        }
        assert_complete(&directory, repo);
        self.as_boot(&["gate", MODEL, "--no-remember"]).run().expect_code(0);
        let tally = &mut self.tally;
        tally.cuts += 1;
        tally.forgetful += u64::from(cut.drive == Drive::Forgetful);
        tally.files += found.files;
        tally.claimed += found.claimed;
        tally.ready += u64::from(gate.code == Some(0));
        tally.fetched += sent;
        tally.again += again;
        tally.again_most = tally.again_most.max(again);
    }

    /// Looks at the volume with no code but its own: every final name has the right bytes, and so has
    /// every claimed range.
    fn look(&self) -> Found {
        let directory = self.world.model(MODEL);
        let mut found = Found::default();
        for file in self.repo.files() {
            let path = directory.join(&file.path);
            if let Ok(bytes) = std::fs::read(&path) {
                assert_eq!(sha256_hex(bytes), file.content.sha256(), "{} under its final name", file.path);
                found.published += file.size();
                found.files += 1;
                continue;
            }
            found.claimed += claimed(&directory, file);
        }
        if directory.join(".muster/receipt.json").exists() {
            assert_eq!(found.published, self.repo.total_bytes(), "missing under a receipt");
        }
        found
    }

    /// What the owner says is durable, at most a second ago.
    fn told(&self) -> Told {
        let status = std::fs::read(self.world.volume().join(".muster/status.json")).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        // One that was written by the owner before the last cut says nothing about this one.
        let bytes = &status["models"][0]["bytes"];
        let figure = |name: &str| bytes[name].as_u64().unwrap_or_default();
        Told { durable: figure("durable"), verified: figure("verified"), sent: 0 }
    }

    /// `muster` on a boot that no other call was on.
    fn as_boot(&self, args: &[&str]) -> Invocation {
        let id = self.world.home().join(format!("boot-{}", fastrand::u64(..)));
        let digits = format!("{:032x}", fastrand::u128(..));
        let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        std::fs::write(&id, parts.join("-") + "\n").unwrap();
        let line = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";
        let binary = env!("CARGO_BIN_EXE_muster");
        let all =
            ["--mount", "sh", "-c", line, "sh", id.to_str().unwrap(), binary].into_iter().chain(args.iter().copied());
        self.world.program("unshare", all)
    }
}

/// Bytes of the claimed ranges of a file's partial, which have to be the right ones. The format is that
/// of `src/core/claims.rs`, read here by other code.
fn claimed(directory: &Path, file: &FileSpec) -> u64 {
    let hash = &sha256_hex(&file.path)[..32];
    let mut most = 0;
    for claims in partials(directory) {
        let name = claims.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with(hash) || !name.ends_with(".claims") {
            continue;
        }
        let bytes = std::fs::read(&claims).unwrap();
        let ends = ["incomplete", "fenced"].map(|end| claims.with_extension(end));
        let Some(partial) = ends.into_iter().find(|path| path.exists()) else { continue };
        let partial = std::fs::read(&partial).unwrap();
        let mut count = 0;
        for (start, end) in records(&bytes, file) {
            let (from, to) = (usize::try_from(start).unwrap(), usize::try_from(end).unwrap());
            assert!(to <= partial.len(), "{name} claims {start}..{end} of a partial of {} bytes", partial.len());
            assert!(partial[from..to] == file.content.slice(start, end), "{name} claims wrong bytes in {start}..{end}");
            count += end - start;
        }
        assert!(count <= file.size(), "{name} claims bytes twice");
        most = most.max(count);
    }
    most
}

/// The ranges of a claims file, up to the first record that is not whole.
fn records(bytes: &[u8], file: &FileSpec) -> Vec<(u64, u64)> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let crc = |bytes: &[u8]| crc32fast::hash(bytes).to_le_bytes();
    if bytes.len() < 64 || bytes[60..64] != crc(&bytes[..60]) || word(16) != file.size() {
        return Vec::new();
    }
    let whole = |at: &usize| {
        let sealed = [&bytes[60..64], &bytes[*at..at + 16]].concat();
        bytes[at + 16..at + 20] == crc(&sealed)
    };
    let starts = (64..).step_by(20).take_while(|at| at + 20 <= bytes.len());
    // The highest bit marks what was written and not synced: worth nothing after a cut.
    starts.take_while(whole).map(|at| (word(at), word(at + 8))).filter(|(start, _)| start >> 63 == 0).collect()
}
