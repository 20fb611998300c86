//! What a job shows while it is worked on.
//!
//! Owns the counters and the state that reports are made from. The worker writes, everybody
//! reads; nothing is decided by it.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::core::job::JobState;
use crate::core::local_edits::{LocalEdit, LocalEdits};
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::rate::RateWindow;
use crate::core::repair::Repaired;
use crate::core::repo::CommitId;
use crate::core::shards::is_shard;
use crate::core::status::{Bytes, Count, Hashing, ScrubStatus};
use crate::fetch::Progress;

/// The moving parts of one job.
#[derive(Debug, Default)]
pub struct Live {
    /// Bytes as they come and become durable.
    pub progress: Arc<Progress>,
    files: AtomicU64,
    shards: AtomicU64,
    bytes: AtomicU64,
    hashed: AtomicU64,
    scene: Mutex<Scene>,
}

/// What the worker is doing, and of how much.
#[derive(Debug, Default)]
struct Scene {
    state: Option<JobState>,
    phase: Option<&'static str>,
    commit: Option<CommitId>,
    totals: Option<Totals>,
    edits: Arc<[LocalEdit]>,
    repaired: Option<Repaired>,
    scrub: Option<Arc<ScrubStatus>>,
    /// Bytes that are being hashed where they lie.
    to_hash: Option<u64>,
    rate: RateWindow,
}

#[derive(Debug, Clone, Copy)]
struct Totals {
    files: u64,
    shards: u64,
    bytes: u64,
}

/// One look at a job.
#[derive(Debug, Clone, Copy, Default)]
pub struct Glimpse {
    /// The worker's state, if it has one of its own.
    pub state: Option<JobState>,
    /// What goes on inside the state.
    pub phase: Option<&'static str>,
    /// The commit worked on.
    pub commit: Option<CommitId>,
    /// Files.
    pub files: Option<Count>,
    /// Shards.
    pub shards: Option<Count>,
    /// Bytes.
    pub bytes: Option<Bytes>,
    /// Bytes hashed where they lie, while that goes on.
    pub hashing: Option<Hashing>,
    /// Bytes received per second.
    pub rate: Option<f64>,
    /// Time to the end at that rate.
    pub eta: Option<Duration>,
}

impl Live {
    /// The worker enters a state.
    pub fn enter(&self, state: JobState, phase: Option<&'static str>) {
        let mut scene = self.scene();
        scene.state = Some(state);
        scene.phase = phase;
        scene.to_hash = None;
    }

    /// The worker hashes so many bytes of files that are there.
    pub fn hashes(&self, bytes: u64) {
        self.enter(JobState::Verifying, Some("hashing"));
        self.hashed.store(0, Relaxed);
        self.scene().to_hash = Some(bytes);
    }

    /// So many more of them were hashed.
    pub fn hashed(&self, bytes: u64) {
        self.hashed.fetch_add(bytes, Relaxed);
    }

    /// What the job is measured against.
    pub fn measure(&self, manifest: &Manifest) {
        let bytes = manifest.total_bytes();
        let mut scene = self.scene();
        scene.commit = Some(manifest.source().commit);
        scene.totals =
            Some(Totals { files: manifest.files().len() as u64, shards: manifest.shard_count() as u64, bytes });
    }

    /// What was changed in its directory on purpose.
    pub fn keep_edits(&self, edits: &LocalEdits) {
        self.scene().edits = edits.files().into();
    }

    /// What is known of its being read again.
    #[must_use]
    pub fn scrub(&self) -> Option<Arc<ScrubStatus>> {
        self.scene().scrub.clone()
    }

    /// What is known of its being read again, from now on.
    pub fn keep_scrub(&self, scrub: Option<Arc<ScrubStatus>>) {
        self.scene().scrub = scrub;
    }

    /// What was changed in its directory on purpose.
    #[must_use]
    pub fn edits(&self) -> Arc<[LocalEdit]> {
        Arc::clone(&self.scene().edits)
    }

    /// Adds to what the repair did.
    pub fn repairs(&self, add: impl FnOnce(&mut Repaired)) {
        add(self.scene().repaired.get_or_insert_default());
    }

    /// What the repair did so far; nothing for a pull.
    #[must_use]
    pub fn repaired(&self) -> Option<Repaired> {
        let bytes_fetched = self.progress.wire();
        self.scene().repaired.clone().map(|repaired| Repaired { bytes_fetched, ..repaired })
    }

    /// One more file is verified and in place.
    pub fn verified(&self, entry: &FileEntry) {
        self.files.fetch_add(1, Relaxed);
        self.shards.fetch_add(u64::from(is_shard(&entry.path)), Relaxed);
        self.bytes.fetch_add(entry.size, Relaxed);
    }

    /// A file that was in place before.
    pub fn found(&self, entry: &FileEntry) {
        self.progress.found(entry.size);
        self.verified(entry);
    }

    /// Takes a sample for the rate; called about once a second.
    pub fn sample(&self, now: Duration) {
        let wire = self.progress.wire();
        self.scene().rate.push(now, wire);
    }

    /// How it stands.
    pub fn glimpse(&self, now: Duration) -> Glimpse {
        let scene = self.scene();
        let Some(totals) = scene.totals else {
            return Glimpse { state: scene.state, phase: scene.phase, ..Glimpse::default() };
        };
        let received = self.progress.received().min(totals.bytes);
        let durable = self.progress.durable().min(totals.bytes);
        let bytes = Bytes { total: totals.bytes, received, durable, verified: self.bytes.load(Relaxed) };
        Glimpse {
            state: scene.state,
            phase: scene.phase,
            commit: scene.commit,
            files: Some(Count { total: totals.files, verified: self.files.load(Relaxed) }),
            shards: Some(Count { total: totals.shards, verified: self.shards.load(Relaxed) }),
            bytes: Some(bytes),
            hashing: scene.to_hash.map(|total| Hashing { total, hashed: self.hashed.load(Relaxed).min(total) }),
            rate: scene.rate.bytes_per_s(now),
            eta: scene.rate.eta(now, totals.bytes - received),
        }
    }

    fn scene(&self) -> MutexGuard<'_, Scene> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::{entry, source};

    #[test]
    fn bytes_that_were_on_disk_are_received_and_no_speed() {
        let live = Live::default();
        live.measure(&Manifest::seal(source(), vec![entry("a", 1000), entry("b", 1000)]).unwrap());
        live.sample(Duration::ZERO);
        live.found(&entry("a", 1000));
        live.sample(Duration::from_secs(4));
        let Glimpse { bytes, rate, .. } = live.glimpse(Duration::from_secs(4));
        assert_eq!(bytes, Some(Bytes { total: 2000, received: 1000, durable: 1000, verified: 1000 }));
        assert_eq!(rate, Some(0.0));
    }

    #[test]
    fn received_durable_and_verified_are_three_numbers() {
        let live = Live::default();
        live.measure(&Manifest::seal(source(), vec![entry("a", 1000), entry("b", 1000)]).unwrap());
        live.progress.came(900, Duration::from_secs(1));
        live.progress.became_durable(600);
        live.verified(&entry("b", 300));
        let bytes = live.glimpse(Duration::from_secs(2)).bytes;
        assert_eq!(bytes, Some(Bytes { total: 2000, received: 900, durable: 600, verified: 300 }));
    }
}
