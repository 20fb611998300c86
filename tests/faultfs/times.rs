//! The clock of the file system, which may be set while it runs.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How late times of clock files are told to those in a hurry: more than the coarsest granularity.
const HURRY: Duration = Duration::from_secs(3);

/// Times on disk, and how they are told.
#[derive(Default)]
pub(super) struct Times {
    /// From which time on which offset in seconds is added.
    jumps: Mutex<Vec<(SystemTime, i64)>>,
    hurried: AtomicBool,
}

impl Times {
    pub(super) fn jump(&self, seconds: i64) {
        let mut jumps = self.jumps.lock().unwrap();
        let before = jumps.last().map_or(0, |(_, offset)| *offset);
        jumps.push((SystemTime::now(), before + seconds));
    }

    pub(super) fn hurry(&self) {
        self.hurried.store(true, Ordering::SeqCst);
    }

    /// A time of the file with this path.
    pub(super) fn told(&self, seconds: i64, nanoseconds: i64, path: &str) -> SystemTime {
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let at = if seconds < 0 { UNIX_EPOCH - whole } else { UNIX_EPOCH + whole };
        let at = at + Duration::from_nanos(nanoseconds as u64);
        let jumps = self.jumps.lock().unwrap();
        let offset = jumps.iter().rfind(|(from, _)| *from <= at).map_or(0, |(_, offset)| *offset);
        let size = Duration::from_secs(offset.unsigned_abs());
        let at = if offset < 0 { at - size } else { at + size };
        if self.hurried.load(Ordering::SeqCst) && path.contains(".clock.") { at + HURRY } else { at }
    }
}
