//! What every job of one owner shares.
//!
//! Owns nothing that moves but the promises of room and the count of what the store has not flushed;
//! it is made once and read by all workers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tracing::warn;

use super::admit::Promises;
use super::limiting::Limits;
use crate::blocking::Blocking;
use crate::clock;
use crate::core::causes::in_words;
use crate::core::model_name::ModelName;
use crate::core::oms::key::PrivateKey;
use crate::core::readback::Readback;
use crate::core::receipt::FileRecord;
use crate::fetch::{self, Pages};
use crate::hub::HubClient;
use crate::parallel::cores;
use crate::store::{AuditEntry, Phase, Store, StoreError};
use crate::volume::Volume;
use crate::volume::adopt::TakeOver;
use crate::volume::writer::WriterId;

/// What a store that fails means for jobs, and for files.
pub(super) const FORGOTTEN: &str = "the database does not remember: after a restart, files without a receipt are hashed again and \
     jobs without a directory have to be asked for again";

/// What every job of one owner shares.
pub(super) struct Bench {
    pub(super) volume: Volume,
    pub(super) store: Arc<Store>,
    /// Changes that the store has and the disk may not, since its last flush began.
    pub(super) unflushed: Arc<AtomicU64>,
    pub(super) writer: WriterId,
    pub(super) blocking: Blocking,
    pub(super) data: Handle,
    pub(super) hub: HubClient,
    pub(super) offline: bool,
    pub(super) readback: Readback,
    pub(super) reserve: Option<u64>,
    pub(super) retry_for: Option<Duration>,
    pub(super) witness: (String, String),
    /// What signs models, if anything does.
    pub(super) signer: Option<Arc<PrivateKey>>,
    pub(super) may_write: fetch::MayWrite,
    /// Whether another process has taken the volume.
    pub(super) is_lost: Box<dyn Fn() -> bool + Send + Sync>,
    /// How partials of an earlier writer may be taken over.
    pub(super) take_over: Box<dyn Fn(WriterId) -> TakeOver + Send + Sync>,
    /// Most connections of a job, by memory and the limit on open files.
    pub(super) connections_max: usize,
    /// Small files of a job that are synced at a time, by the limit on open files.
    pub(super) syncs: usize,
    /// Threads for them.
    pub(super) syncing: Blocking,
    /// How fast bytes may come.
    pub(super) limits: Limits,
    /// What becomes of the pages of what is fetched.
    pub(super) pages: Pages,
    /// Room promised to jobs that run.
    pub(super) promises: Promises,
}

impl Bench {
    /// Adds a line to a model's history; the history is a courtesy.
    pub(super) fn audit(&self, name: &ModelName, phase: Phase, detail: &str) {
        self.audit_all(name, phase, [detail]);
    }

    /// As [`Self::audit`], a line for each of several things that happened together.
    pub(super) fn audit_all<'a>(&self, name: &ModelName, phase: Phase, details: impl IntoIterator<Item = &'a str>) {
        let at = clock::now();
        let line = |detail: &str| AuditEntry { at, phase, detail: detail.to_owned() };
        let lines: Vec<_> = details.into_iter().map(line).collect();
        tell_loss(self.store.audit_all(name, &lines), "the history has a gap");
    }

    /// Remembers files that were verified, also past a kill: without its record, each would be hashed
    /// again.
    pub(super) fn remember_files(&self, name: &ModelName, files: &[FileRecord]) {
        tell_loss(self.store.put_files(name, files), FORGOTTEN);
        self.flush_soon();
    }

    /// Has the store flushed by a thread that may wait for the disk; one at a time.
    pub(super) fn flush_soon(&self) {
        if self.unflushed.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let (store, unflushed) = (Arc::clone(&self.store), Arc::clone(&self.unflushed));
        // Seen through by itself; the next start does without what it does not reach.
        let _flushing = self.blocking.start(move || {
            loop {
                let changes = unflushed.load(Ordering::Acquire);
                tell_loss(store.flush(), FORGOTTEN);
                let done = unflushed.compare_exchange(changes, 0, Ordering::AcqRel, Ordering::Acquire);
                if done.is_ok() {
                    return;
                }
            }
        });
    }

    /// Whether finished files are read back on this volume.
    pub(super) fn reads_back(&self) -> bool {
        match self.readback {
            Readback::Always => true,
            Readback::Never => false,
            Readback::Auto => !self.volume.fs_kind().trusts_positioned_writes(),
        }
    }
}

/// Tells what it means that the store failed. Once: it stays so until the next start.
pub(super) fn tell_loss(done: Result<(), StoreError>, lost: &str) {
    if let Err(error) = done
        && !error.is_known()
    {
        warn!(error = in_words(&error), "{lost}");
    }
}

/// Threads for blocking work: syncs wait, hashing computes.
pub(super) fn blocking_threads() -> usize {
    cores() + 4
}
