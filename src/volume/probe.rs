//! What a file system really does, found out by trying.
//!
//! Owns the folder of the tries, which has a name of its own beside everything else and goes at the
//! end; one that a killed process left is removed by the next after an hour. Invariant: no file
//! of anybody is opened, renamed, locked or removed outside that folder. It says what happened and
//! judges nothing.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, RenameFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;

use super::dir::{Dir, stat_of};
use super::error::{Result, Step, VolumeError};
use super::pages::{drop_pages, read_at};
use super::{folding, identity, small_file, sync};
use crate::clock;
use crate::core::fold::Folding;

/// The folder's name begins so; sixteen digits of chance follow.
const NAME: &str = ".muster-doctor-";
/// Age at which its process is surely gone.
const LEFT_AFTER_NS: i64 = 3600 * 1_000_000_000;
/// Most folders of killed processes that one try removes.
const SWEEP_MAX: usize = 16;
/// Syncs that are timed; the slowest counts.
const SYNCS: usize = 3;
/// Size of the blocks that are written out of order, and how many.
const BLOCK: usize = 64 << 10;
const BLOCKS: usize = 8;
/// Changes of a file's times that are looked at, and the pause between them.
const TICKS: usize = 24;
const TICK_PAUSE: Duration = Duration::from_millis(1);

/// A folder to try things in. Dropped, it goes with all that is in it.
#[derive(Debug)]
pub struct Probe {
    parent: Dir,
    name: String,
    dir: Dir,
}

/// Which ways of giving a name work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Naming {
    /// `link(2)`, and it refuses a name that is taken: how a volume gets one owner.
    pub links: bool,
    /// A rename that the kernel refuses when the name is taken.
    pub no_replace: bool,
}

/// How long it takes until something is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncTimes {
    /// The slowest of a few small files.
    pub file: Duration,
    /// The folder; `None` where folders cannot be synced.
    pub folder: Option<Duration>,
}

/// The file system's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsClock {
    /// How far it is ahead of ours, in nanoseconds.
    pub ahead_ns: i64,
    /// Smallest step that was seen, in nanoseconds; `None` when it did not move.
    pub step_ns: Option<i64>,
}

/// What became of two holders who each wanted a lock alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locking {
    /// The second was refused.
    Real,
    /// Both got it.
    GivenToBoth,
    /// Nobody can lock here.
    None,
}

impl Probe {
    /// Makes the folder in the directory `place`.
    ///
    /// # Errors
    /// Whatever stands in the way of writing there.
    pub fn start(place: &Path) -> Result<Self> {
        let parent = Dir::open(place)?;
        let name = format!("{NAME}{:016x}", fastrand::u64(..));
        rustix::fs::mkdirat(&parent, &*name, rustix::fs::Mode::from_raw_mode(0o700))
            .map_err(|e| VolumeError::new(Step::CreateFolder, parent.shown(&name), e))?;
        let dir = match parent.folder(&name) {
            Ok(dir) => dir,
            Err(error) => {
                let _ours = parent.remove_folder(&name);
                return Err(error);
            }
        };
        let this = Self { parent, name, dir };
        this.sweep();
        Ok(this)
    }

    /// The folder's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes a small file as manifests are written, and reads it again.
    pub fn write(&self) -> Result<()> {
        let bytes = [0x5a; 4096];
        small_file::store(&self.dir, "write", &bytes)?;
        let path = || self.dir.shown("write");
        let fail = |error| VolumeError::new(Step::Read, path(), error);
        let differs = || fail(io::Error::other("what was read is not what was written"));
        let found = small_file::read(&self.dir, "write", bytes.len() as u64)?.ok_or_else(differs)?;
        if found == bytes { Ok(()) } else { Err(differs()) }
    }

    /// Renames over a file, to a free name, and links.
    pub fn naming(&self) -> Result<Naming> {
        self.make("one", b"1")?;
        self.make("two", b"2")?;
        self.dir.rename("one", &self.dir, "two")?;
        let replaced = small_file::read(&self.dir, "two", 16)?.is_some_and(|bytes| bytes == b"1");
        if !replaced || self.dir.look("one")?.is_some() {
            let error = io::Error::other("the new name does not show the renamed file");
            return Err(VolumeError::new(Step::Rename, self.dir.shown("two"), error));
        }
        self.make("three", b"3")?;
        let renamed = rustix::fs::renameat_with(&self.dir, "three", &self.dir, "two", RenameFlags::NOREPLACE);
        let links = match self.dir.link("two", "four") {
            Ok(()) => matches!(self.dir.link("two", "four"), Err(VolumeError::Occupied { .. })),
            Err(_) => false,
        };
        Ok(Naming { links, no_replace: renamed == Err(Errno::EXIST) })
    }

    /// Times the syncs that every small file costs.
    pub fn syncs(&self) -> Result<SyncTimes> {
        let mut slowest = Duration::ZERO;
        for number in 0..SYNCS {
            let name = format!("sync-{number}");
            let file = self.make(&name, &[7; 4096])?;
            let start = clock::since_boot();
            sync::all(&file, &name).map_err(|e| VolumeError::new(Step::Sync, self.dir.shown(&name), e))?;
            slowest = slowest.max(clock::since_boot().saturating_sub(start));
        }
        let start = clock::since_boot();
        let folder = match self.dir.sync_strictly() {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => None,
            Err(error) => return Err(VolumeError::new(Step::Sync, self.dir.path(), error)),
            Ok(()) => Some(clock::since_boot().saturating_sub(start)),
        };
        Ok(SyncTimes { file: slowest, folder })
    }

    /// Writes blocks out of order, with a gap, and reads them back past the page cache where the
    /// kernel lets go of it. Whether every byte was right.
    pub fn keeps_positioned_writes(&self) -> Result<bool> {
        let name = "blocks";
        let fail = |step| move |error: io::Error| VolumeError::new(step, name, error);
        let file = self.dir.create_file(name)?;
        let block = |number: usize| vec![u8::try_from(number % 200).unwrap_or(0) + 1; BLOCK];
        let at = |number: usize| (number * BLOCK) as u64;
        // Backwards, every second one, then the rest; the one before the last stays a gap.
        let order = (0..BLOCKS).rev().step_by(2).chain((0..BLOCKS - 3).rev().step_by(2));
        for number in order {
            file.write_all_at(&block(number), at(number)).map_err(fail(Step::Write))?;
        }
        sync::all(&file, name).map_err(fail(Step::Sync))?;
        drop_pages(&file, &(0..at(BLOCKS)));
        let mut found = vec![0; BLOCK];
        for number in 0..BLOCKS {
            let expected = if number == BLOCKS - 2 { vec![0; BLOCK] } else { block(number) };
            let read = read_at(&file, at(number), &mut found).map_err(fail(Step::Read))?;
            if read != BLOCK || found != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Compares the file system's clock with ours, and looks how finely it counts.
    pub fn clock(&self) -> Result<FsClock> {
        let file = self.make("clock", b"")?;
        let fail = |error| VolumeError::new(Step::Set, self.dir.shown("clock"), error);
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let mut times = Vec::with_capacity(TICKS);
        for _ in 0..TICKS {
            rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: now }).map_err(fail)?;
            times.push(identity::of(&stat_of(&file).map_err(fail)?).mtime_ns);
            std::thread::sleep(TICK_PAUSE);
        }
        rustix::fs::futimens(&file, &Timestamps { last_access: now, last_modification: now }).map_err(fail)?;
        let theirs = identity::of(&stat_of(&file).map_err(fail)?).mtime_ns;
        let ours = i64::try_from(clock::now().as_nanosecond()).unwrap_or(i64::MAX);
        let steps = times.iter().zip(times.iter().skip(1)).map(|(a, b)| b.saturating_sub(*a)).filter(|step| *step > 0);
        Ok(FsClock { ahead_ns: theirs.saturating_sub(ours), step_ns: steps.min() })
    }

    /// Lets two open files, as two processes have them, want one lock.
    pub fn locking(&self) -> Result<Locking> {
        let first = self.make("lock", b"")?;
        let second = self.dir.open_for_writing("lock")?;
        let take = |file: &File| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive);
        Ok(match (take(&first), take(&second)) {
            (Ok(()), Err(Errno::WOULDBLOCK)) => Locking::Real,
            (Ok(()), Ok(())) => Locking::GivenToBoth,
            _ => Locking::None,
        })
    }

    /// Whether a socket can be made here.
    pub fn takes_sockets(&self) -> bool {
        // By its descriptor, so that the length of the path does not count.
        let Ok(folder) = self.dir.reopen() else { return false };
        UnixListener::bind(format!("/proc/self/fd/{}/socket", folder.as_raw_fd())).is_ok()
    }

    /// How names are compared here.
    pub fn folding(&self) -> Result<Folding> {
        folding::of(&self.dir)
    }

    /// Whether a copy shares the blocks of its original.
    pub fn shares_blocks(&self) -> Result<bool> {
        let source = self.make("original", &[9; 4096])?;
        let target = self.dir.create_file("copy")?;
        Ok(rustix::fs::ioctl_ficlone(&target, &source).is_ok())
    }

    fn make(&self, name: &str, bytes: &[u8]) -> Result<File> {
        let file = self.dir.create_file(name)?;
        file.write_all_at(bytes, 0).map_err(|e| VolumeError::new(Step::Write, self.dir.shown(name), e))?;
        Ok(file)
    }

    /// Removes the folders of processes that were killed.
    fn sweep(&self) {
        let Ok(now) = identity::filesystem_now(&self.dir) else { return };
        let is_old = |name: &str| {
            let stat = self.parent.look(name).ok().flatten();
            stat.is_some_and(|stat| now.saturating_sub(identity::of(&stat).mtime_ns) > LEFT_AFTER_NS)
        };
        let entries = self.parent.list().unwrap_or_default().into_iter();
        let left = entries.filter(|entry| entry.kind == FileType::Directory && is_ours(&entry.name));
        for entry in left.filter(|entry| entry.name != self.name && is_old(&entry.name)).take(SWEEP_MAX) {
            empty_and_remove(&self.parent, &entry.name);
        }
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        empty_and_remove(&self.parent, &self.name);
    }
}

/// Whether a name in a volume's root is that of such a folder.
pub fn is_ours(name: &str) -> bool {
    let digits = name.strip_prefix(NAME);
    digits.is_some_and(|digits| digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// What cannot be removed now is removed by a later try.
fn empty_and_remove(parent: &Dir, name: &str) {
    if let Ok(dir) = parent.folder(name) {
        for entry in dir.list().unwrap_or_default() {
            let _later = dir.remove(&entry.name);
        }
    }
    let _later = parent.remove_folder(name);
}

#[cfg(test)]
mod tests {
    use super::super::testing::names;
    use super::*;

    #[test]
    fn everything_is_tried_and_nothing_stays() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("model"), b"x").unwrap();
        let probe = Probe::start(place.path()).unwrap();
        probe.write().unwrap();
        assert_eq!(probe.naming().unwrap(), Naming { links: true, no_replace: true });
        probe.syncs().unwrap();
        assert!(probe.keeps_positioned_writes().unwrap());
        assert_eq!(probe.locking().unwrap(), Locking::Real);
        assert!(probe.takes_sockets());
        assert_eq!(probe.folding().unwrap(), Folding::NONE);
        probe.shares_blocks().unwrap();
        let clock = probe.clock().unwrap();
        assert!(clock.ahead_ns.abs() < 5_000_000_000 && clock.step_ns.is_some_and(|step| step > 0), "{clock:?}");
        assert_eq!(names(place.path()).len(), 2);
        drop(probe);
        assert_eq!(names(place.path()), ["model"]);
    }

    #[test]
    fn what_a_killed_process_left_goes_when_it_is_old_and_only_then() {
        let place = tempfile::tempdir().unwrap();
        let old = place.path().join(".muster-doctor-00000000000000aa");
        let young = place.path().join(".muster-doctor-00000000000000bb");
        let alien = place.path().join(".muster-doctor-of-somebody-else");
        for folder in [&old, &young, &alien] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("lock"), b"").unwrap();
        }
        let past = std::time::UNIX_EPOCH;
        for folder in [&old, &alien] {
            File::open(folder).unwrap().set_modified(past).unwrap();
        }
        drop(Probe::start(place.path()).unwrap());
        assert_eq!((old.exists(), young.exists(), alien.exists()), (false, true, true));
    }
}
