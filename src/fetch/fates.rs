//! What becomes of each file: another try and when, a fresh start, a verified file, or giving up.
//!
//! Owns the decisions, and nothing else does: connections report how an assignment ended, tasks
//! how a file did, and it is decided here. A file that keeps failing does not stop the others;
//! only what would fail for every file ends the job.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use super::connection::{Attempt, AttemptError};
use super::error::{FetchError, FinishError};
use super::owned::WriteError;
use super::pool::Pool;
use super::shared::{Place, Reopened};
use crate::clock;
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::plan::{FileId, Way};
use crate::core::range_set::RangeSet;
use crate::core::retry::{self, FailureClass, Failures};
use crate::core::verify::Mismatch;
use crate::sources::{Blame, Problem, ReadError};
use crate::volume::VolumeError;

/// Failures of one file in a row, without a newly durable byte, after which it is given up.
const FILE_TRIES: u32 = 8;
/// Failures of the disk in a row, in one file, after which the job ends.
const DISK_TRIES: u32 = 3;
/// Answers in a row that ignore the range, from a server that knew ranges before, after which it
/// is believed.
const IGNORED_TRIES: u32 = 3;
/// Fetches of one file that may end in a mismatch.
const MISMATCHES_MAX: u32 = 3;
/// A body that ended early after so many bytes goes on without a pause: some servers cut every
/// answer.
const SHORT_IS_FINE: u64 = 64 << 10;

/// What is known of one file beyond its bytes.
#[derive(Debug, Default)]
pub(super) struct Fate {
    failures: Failures,
    /// When a failure was last counted.
    failed_at: Duration,
    disk_failures: Failures,
    mismatches: u32,
    /// Whether a task hashes it from disk.
    pub(super) hashing: bool,
    pub(super) reset: Option<Reset>,
    /// The last retry that was ordered.
    serial: u64,
}

/// How a file starts again once no connection holds it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Reset {
    /// With what its claims prove.
    Reopen,
    /// From its first byte, in another way.
    Discard(Way),
}

impl Fate {
    fn progressed(&mut self) {
        self.failures.progressed();
        self.disk_failures.progressed();
    }

    /// Counts a failure of an attempt that began at `began`. Those that were under way when one
    /// was counted make one wave with it.
    fn failed(&mut self, began: Duration) -> u32 {
        if began >= self.failed_at {
            self.failed_at = clock::since_boot();
            return self.failures.failed();
        }
        self.failures.in_a_row().max(1)
    }
}

impl Pool {
    pub(super) async fn attempted(&mut self, id: FileId, attempt: Attempt) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        // A byte now and then is no progress: a file that only trickles shall meet its fate.
        let trickles = matches!(&attempt.result, Err(AttemptError::Read(error)) if matches!(error.problem, Problem::Trickle { .. }));
        if !trickles && (attempt.progressed || attempt.result.is_ok()) {
            self.progress_at = clock::since_boot();
            fate.progressed();
        }
        self.ended(id, attempt.began, attempt.result).await;
    }

    pub(super) async fn checkpointed(&mut self, id: FileId, result: Result<(), AttemptError>) {
        if self.fates.contains_key(&id) {
            self.ended(id, clock::since_boot(), result).await;
        }
    }

    async fn ended(&mut self, id: FileId, began: Duration, result: Result<(), AttemptError>) {
        match result {
            Ok(()) | Err(AttemptError::Void) => {}
            Err(AttemptError::Stopped) => return,
            Err(AttemptError::Read(error)) => self.read_failed(id, began, error),
            Err(AttemptError::Volume(error)) => self.disk_failed(id, error).await,
            Err(AttemptError::Ownership(error)) => return self.end(FetchError::Ownership(error)),
        }
        self.advance(id).await;
    }

    pub(super) async fn hashed(&mut self, id: FileId, result: Result<(), VolumeError>) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        fate.hashing = false;
        if let Err(error) = result {
            self.disk_failed(id, error).await;
        }
        self.advance(id).await;
    }

    pub(super) async fn finished(&mut self, id: FileId, result: Result<(), FinishError>) {
        let path = || self.shared.entry(id).path.clone();
        match result {
            Ok(()) => {
                self.shared.plan().remove(id);
                self.shared.context.source.done(&self.shared.entry(id).path).await;
                self.fates.remove(&id);
                self.progress_at = clock::since_boot();
            }
            Err(FinishError::Publish(source)) => self.end(FetchError::Publish { path: path(), source }),
            Err(FinishError::Volume(error)) => self.finish_failed(id, error),
            Err(FinishError::Ownership(error)) => self.end(FetchError::Ownership(error)),
            Err(FinishError::Stopped) => {}
            Err(FinishError::Mismatch(mismatch)) => self.mismatched(id, mismatch).await,
        }
    }

    pub(super) async fn was_reset(&mut self, id: FileId, result: Result<Option<Box<Reopened>>, WriteError>) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        let reset = fate.reset.take();
        let pause = retry::delay(fate.failures.in_a_row().max(1), None, fastrand::f64());
        let (place, durable) = match result {
            Err(WriteError::Ownership(lost)) => return self.end(FetchError::Ownership(lost)),
            Err(WriteError::Volume(source)) => {
                let path = self.shared.entry(id).path.clone();
                return self.end(FetchError::Volume { path, source });
            }
            Ok(None) => (Place::Empty, RangeSet::new()),
            Ok(Some(reopened)) => {
                let (file, durable) = *reopened;
                (Place::Open(Arc::new(file)), durable)
            }
        };
        self.shared.put(id, place).await;
        let way = if let Some(Reset::Discard(way)) = reset { Some(way) } else { None };
        self.shared.plan().restart(id, durable.missing(self.shared.entry(id).size), way);
        self.retry_after(id, pause);
        self.advance(id).await;
    }

    /// Ends the hold that follows a failure, unless something newer was said about the file.
    pub(super) fn retry(&mut self, id: FileId, serial: u64) {
        if self.fates.get(&id).is_some_and(|fate| fate.serial == serial && fate.reset.is_none()) {
            self.shared.plan().unhold(id);
        }
    }

    /// Orders another try; the newest order counts.
    fn retry_after(&mut self, id: FileId, pause: Duration) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        fate.serial += 1;
        let serial = fate.serial;
        if pause.is_zero() { self.retry(id, serial) } else { self.start_pause(id, serial, pause) }
    }

    async fn mismatched(&mut self, id: FileId, mismatch: Mismatch) {
        let entry = self.shared.entry(id);
        let Some(fate) = self.fates.get_mut(&id) else { return };
        self.shared.context.progress.lost(entry.size, entry.size);
        fate.mismatches += 1;
        if fate.mismatches >= MISMATCHES_MAX || entry.size == 0 || self.shared.context.offline {
            let (path, fetches) = (entry.path.clone(), fate.mismatches);
            return self.give_up(id, FetchError::Corrupt { path, mismatch, fetches });
        }
        warn!(file = %entry.path, %mismatch, "wrong bytes came; fetching the file again over one connection");
        self.shared.put(id, Place::Empty).await;
        self.shared.plan().add(id, entry.size, RangeSet::from(0..entry.size), Way::Sequential);
    }

    fn read_failed(&mut self, id: FileId, began: Duration, error: ReadError) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        let class = error.problem.class();
        if class == FailureClass::Permanent {
            return self.give_up_reading(id, error);
        }
        self.failures_in_window += u32::from(is_overload(&error.problem));
        if error.blame == Blame::Origin {
            info!(error = in_words(&error), "a server is in trouble");
            if self.origin_may_recover() {
                // The source does the waiting, for all who ask this origin.
                return self.retry_after(id, Duration::ZERO);
            }
            let path = error.path.clone();
            return self.end(FetchError::Read { path, source: Box::new(error) });
        }
        let failures = fate.failed(began);
        info!(error = in_words(&error), failures, "a read failed");
        if matches!(error.problem, Problem::RangeIgnored)
            && (failures >= IGNORED_TRIES || !self.shared.plan().has_answered_ranges(id))
        {
            return self.stream_whole(id);
        }
        if failures >= FILE_TRIES {
            return self.give_up_reading(id, error);
        }
        let pause = match error.problem {
            Problem::Short { received } if received >= SHORT_IS_FINE => Duration::ZERO,
            _ => retry::delay(failures, None, fastrand::f64()),
        };
        self.retry_after(id, pause);
    }

    /// The server ignores ranges: the file comes whole, and what came of it is kept if it can be.
    fn stream_whole(&mut self, id: FileId) {
        warn!(file = %self.shared.entry(id).path, "the server ignores ranges: one connection fetches the file whole");
        if self.shared.plan().stream_whole(id) {
            return self.retry_after(id, Duration::ZERO);
        }
        self.start_over(id, Reset::Discard(Way::Whole));
    }

    /// Whether an origin in trouble is still worth waiting for.
    fn origin_may_recover(&self) -> bool {
        let waited = clock::since_boot().saturating_sub(self.progress_at);
        self.shared.context.retry_for.is_none_or(|limit| waited < limit)
    }

    /// Stops all work on a file; it starts again when the last connection has let go of it.
    fn start_over(&mut self, id: FileId, reset: Reset) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        if fate.reset.is_some() {
            return;
        }
        fate.reset = Some(reset);
        fate.serial += 1;
        let mut plan = self.shared.plan();
        plan.hold(id);
        plan.restart(id, RangeSet::from(0..self.shared.entry(id).size), None);
    }

    /// A failed write or sync is final for what was not claimed before it (P3): the file goes on from
    /// there, unless the disk failed once too often.
    async fn disk_failed(&mut self, id: FileId, error: VolumeError) {
        let shared = Arc::clone(&self.shared);
        let mut place = shared.slots[&id].place.lock().await;
        let is_open = match &*place {
            Place::Open(_) => true,
            Place::Empty => false,
            // Whoever has it now meets the failure too.
            Place::Busy => return,
        };
        let goes_on = self.goes_on_from_claims(id, error);
        // What is open is reset by the last connection that lets go of it.
        if goes_on && !is_open {
            *place = Place::Busy;
            self.start_reset(id, None, Reset::Reopen);
        }
    }

    /// The same, of a file that nobody holds any more.
    fn finish_failed(&mut self, id: FileId, error: VolumeError) {
        if self.goes_on_from_claims(id, error) {
            self.start_reset(id, None, Reset::Reopen);
        }
    }

    fn goes_on_from_claims(&mut self, id: FileId, error: VolumeError) -> bool {
        let Some(fate) = self.fates.get_mut(&id).filter(|fate| fate.reset.is_none()) else { return false };
        let path = self.shared.entry(id).path.clone();
        if error.code() == Code::NoSpace || fate.disk_failures.failed() >= DISK_TRIES {
            self.end(FetchError::Volume { path, source: error });
            return false;
        }
        warn!(file = %path, error = in_words(&error), "the disk failed; the file goes on from what is claimed");
        self.start_over(id, Reset::Reopen);
        true
    }

    fn give_up_reading(&mut self, id: FileId, error: ReadError) {
        let path = error.path.clone();
        self.give_up(id, FetchError::Read { path, source: Box::new(error) });
    }

    fn give_up(&mut self, id: FileId, error: FetchError) {
        warn!(error = in_words(&error), "a file is given up");
        self.fates.remove(&id);
        self.shared.plan().remove(id);
        self.failed.push(error);
    }
}

/// Whether fewer connections might have spared this failure.
fn is_overload(problem: &Problem) -> bool {
    let transient = matches!(problem.class(), FailureClass::Transient { .. });
    transient && !matches!(problem, Problem::Short { .. })
}
