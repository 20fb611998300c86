//! Records of published files, until they count.
//!
//! The identity of a file counts only once the file system's clock is past its change time.
//! Waiting for that after every small file would be most of the time of a repository of small
//! files. So a small one waits here for the next: whose own change time is a reading of that clock.
//! Invariant: a record reaches store and receipt only when its identity counts, or was made equal
//! to no file's.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::bench::Bench;
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::volume::{ModelDir, VolumeError};

/// Files from this size on are waited for at once: a crash would cost hashing them again.
const AT_ONCE: u64 = 16 << 20;

/// The records of one job.
#[derive(Debug)]
pub(super) struct Settling {
    name: ModelName,
    records: Mutex<Records>,
}

#[derive(Debug)]
struct Records {
    waiting: Vec<FileRecord>,
    settled: Vec<FileRecord>,
}

impl Settling {
    /// Starts with what is proved already.
    pub(super) fn new(name: ModelName, proved: Vec<FileRecord>) -> Self {
        Self { name, records: Mutex::new(Records { waiting: Vec::new(), settled: proved }) }
    }

    /// Takes the records of files that were just placed. Blocks.
    pub(super) fn placed(&self, bench: &Bench, model: &ModelDir, placed: Vec<FileRecord>) -> Result<(), VolumeError> {
        let Some(now) = placed.iter().map(|record| record.identity.ctime_ns).max() else { return Ok(()) };
        let (large, small): (Vec<_>, Vec<_>) = placed.into_iter().partition(|record| record.size >= AT_ONCE);
        self.records().waiting.extend(small);
        let mut ready = self.ready_at(model, now);
        for record in large {
            ready.push(model.settle_record(record)?);
        }
        self.keep(bench, ready);
        Ok(())
    }

    /// Waits for the rest and returns all records. Blocks.
    pub(super) fn finish(&self, bench: &Bench, model: &ModelDir) -> Result<Vec<FileRecord>, VolumeError> {
        let mut rest = std::mem::take(&mut self.records().waiting);
        let mut ready = Vec::new();
        // Once the newest counts, so do the others.
        if let Some(newest) = rest.iter().enumerate().max_by_key(|(_, record)| record.identity.ctime_ns) {
            ready.push(model.settle_record(rest.swap_remove(newest.0))?);
            let now = model.filesystem_now()?;
            for record in rest {
                let counts = model.counts_at(&record.identity, now);
                ready.push(if counts { record } else { model.settle_record(record)? });
            }
        }
        self.keep(bench, ready);
        Ok(std::mem::take(&mut self.records().settled))
    }

    fn ready_at(&self, model: &ModelDir, now_ns: i64) -> Vec<FileRecord> {
        let mut records = self.records();
        let counts = |record: &mut FileRecord| model.counts_at(&record.identity, now_ns);
        records.waiting.extract_if(.., counts).collect()
    }

    fn keep(&self, bench: &Bench, ready: Vec<FileRecord>) {
        if !ready.is_empty() {
            bench.remember_files(&self.name, &ready);
        }
        self.records().settled.extend(ready);
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
