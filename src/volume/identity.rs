//! Reading a file's identity, and when it may be believed.
//!
//! An identity read within the same tick of the file system's clock as the file's last change
//! could belong to two contents (git calls such an entry racy). It counts once that clock is
//! past the change by its granularity; from then on every later change shows.

use std::time::Duration;

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_NOW};

use super::dir::{Dir, stat_of};
use super::error::{Result, Step, VolumeError};
use super::fs_kind::FsKind;
use super::small_file::Temp;
use crate::clock;
use crate::core::identity::Identity;

const SECOND_NS: i64 = 1_000_000_000;
/// Longest wait for the file system's clock.
const WAIT_MAX: Duration = Duration::from_millis(2100);
/// Pause between two looks at the clock: half a tick of a 250 Hz kernel.
const PAUSE: Duration = Duration::from_millis(2);

/// The identity in a file's attributes.
#[allow(clippy::cast_lossless, clippy::useless_conversion, reason = "field types differ by platform")]
pub fn of(stat: &Stat) -> Identity {
    Identity {
        inode: stat.st_ino.into(),
        size: super::dir::size_of(stat),
        mtime_ns: nanoseconds(stat.st_mtime.into(), i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
        ctime_ns: nanoseconds(stat.st_ctime.into(), i64::try_from(stat.st_ctime_nsec).unwrap_or(0)),
    }
}

/// The file system's own clock, in nanoseconds since 1970, by the time it gives a new file.
/// `dir` is a folder of ours.
pub fn filesystem_now(dir: &Dir) -> Result<i64> {
    Clock::start(dir)?.now()
}

/// Waits until `identity` counts: a few milliseconds on a local file system, at most 2.1 s.
/// `false` when the file system's clock did not pass it in that time.
pub fn settle(dir: &Dir, kind: FsKind, identity: &Identity) -> Result<bool> {
    let clock = Clock::start(dir)?;
    let deadline = clock::since_boot() + WAIT_MAX;
    loop {
        let now = clock.now()?;
        if is_settled(identity, now, kind) {
            return Ok(true);
        }
        if clock::since_boot() >= deadline {
            return Ok(false);
        }
        std::thread::sleep(PAUSE);
    }
}

/// Whether an identity counts at this time of the file system's clock.
pub fn is_settled(identity: &Identity, now_ns: i64, kind: FsKind) -> bool {
    // Ext4 with small inodes, and others, store whole seconds.
    let whole_seconds = now_ns % SECOND_NS == 0 && identity.ctime_ns % SECOND_NS == 0;
    let granularity = if whole_seconds { 2 * SECOND_NS } else { kind.granularity_ns() };
    now_ns.saturating_sub(identity.ctime_ns) > granularity && now_ns > identity.mtime_ns
}

fn nanoseconds(seconds: i64, rest: i64) -> i64 {
    seconds.saturating_mul(SECOND_NS).saturating_add(rest)
}

/// A file of ours whose times show the file system's clock.
struct Clock<'a>(Temp<'a>);

impl<'a> Clock<'a> {
    fn start(dir: &'a Dir) -> Result<Self> {
        Temp::create(dir, "clock").map(Self)
    }

    fn now(&self) -> Result<i64> {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let fail = |error| VolumeError::new(Step::Set, "the clock file", error);
        rustix::fs::futimens(&self.0.file, &Timestamps { last_access: now, last_modification: now }).map_err(fail)?;
        Ok(of(&stat_of(&self.0.file).map_err(fail)?).mtime_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(ctime_ns: i64) -> Identity {
        Identity { inode: 1, size: 1, mtime_ns: 0, ctime_ns }
    }

    #[test]
    fn an_identity_counts_only_past_its_tick() {
        let at = 5 * SECOND_NS + 7;
        for (later, kind, counts) in [
            (0, FsKind::Ext4, false),
            (10_000_000, FsKind::Ext4, false),
            (10_000_001, FsKind::Ext4, true),
            (10_000_001, FsKind::Nfs, false),
            (2 * SECOND_NS + 1, FsKind::Nfs, true),
            (-SECOND_NS, FsKind::Xfs, false),
        ] {
            assert_eq!(is_settled(&identity(at), at + later, kind), counts, "{later} {kind:?}");
        }
        assert!(!is_settled(&identity(5 * SECOND_NS), 6 * SECOND_NS, FsKind::Ext4), "whole seconds are coarse");
    }

    #[test]
    fn settling_ends_and_leaves_nothing_behind() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let now = filesystem_now(&dir).unwrap();
        assert!(settle(&dir, FsKind::Ext4, &identity(now)).unwrap());
        assert!(!settle(&dir, FsKind::Ext4, &identity(now + 3600 * SECOND_NS)).unwrap());
        assert!(dir.list().unwrap().is_empty());
    }
}
