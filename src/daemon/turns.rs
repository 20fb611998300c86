//! Whose turn it is: jobs on their way to a worker and back.
//!
//! Owns what a worker's end means for its job. Invariant: a job has one worker at most.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::entry::Wish;
use super::error::WorkError;
use super::jobs::Jobs;
use super::worker::Work;
use crate::clock;
use crate::core::code::Code;
use crate::core::job::JobState;
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::retry;
use crate::store::Phase;

/// How often a job that found no room looks again.
const ROOM_EVERY: Duration = Duration::from_secs(30);

/// How often a job that would replace what a launcher reads looks again.
const IN_USE_EVERY: Duration = Duration::from_secs(15);

impl Jobs {
    /// Takes the next job that may be worked on, if fewer than `most` are.
    pub(super) fn take(&self, most: usize, now: Duration) -> Option<Work> {
        let mut entries = self.entries();
        if entries.values().filter(|entry| entry.running.is_some()).count() >= most {
            return None;
        }
        let entry = entries.values_mut().find(|entry| entry.waits(now))?;
        if entry.again_at.take().is_some() {
            entry.live = Arc::default();
            self.enter(entry, JobState::Queued, None);
        }
        let stop = CancellationToken::new();
        entry.running = Some(stop.clone());
        // What was counted before is counted again by the worker.
        entry.live = Arc::default();
        Some(Work {
            bench: Arc::clone(&self.0.bench),
            spec: entry.job.spec.clone(),
            token: entry.token.clone(),
            resolved: entry.resolved.take(),
            live: Arc::clone(&entry.live),
            throttle: entry.throttle.clone(),
            stop,
        })
    }

    /// How long until the next job is to be taken up again by itself.
    pub(super) fn next_again(&self, now: Duration) -> Option<Duration> {
        let entries = self.entries();
        let idle = entries.values().filter(|entry| entry.admitted && entry.running.is_none());
        // One that is due waits for a worker's place, not for time.
        idle.filter_map(|entry| entry.again_at?.checked_sub(now)).filter(|left| !left.is_zero()).min()
    }

    /// A worker ended.
    pub(super) fn ended(&self, name: &ModelName, result: Result<Manifest, WorkError>) {
        let mut entries = self.entries();
        let Some(entry) = entries.get_mut(name) else { return };
        entry.running = None;
        let (state, error, phase) = match (result, entry.wish.take()) {
            (Ok(manifest), _) => {
                entry.job.commit = Some(manifest.source().commit);
                // Done: what comes next is no repair.
                entry.job.spec.repair = None;
                (JobState::Ready, None, None)
            }
            (Err(WorkError::Stopped), Some(Wish::Pause)) => (JobState::Paused, None, Some(Phase::Paused)),
            (Err(WorkError::Stopped), Some(Wish::Cancel)) => (JobState::Cancelled, None, Some(Phase::Cancelled)),
            // The owner stops; the next one goes on.
            (Err(WorkError::Stopped), None) => (JobState::Queued, None, None),
            (Err(error), None) if self.0.patient && error.code() == Code::NoSpace => {
                entry.again_at = Some(clock::since_boot() + ROOM_EVERY);
                (JobState::Paused, Some(error.to_job_error()), Some(Phase::Paused))
            }
            (Err(error @ WorkError::WrongInUse { .. }), None) if self.0.patient => {
                entry.again_at = Some(clock::since_boot() + IN_USE_EVERY);
                // Told once, however often it is looked at.
                let is_news = entry.failures.failed() == 1;
                (JobState::Failed, Some(error.to_job_error()), is_news.then_some(Phase::Failed))
            }
            (Err(error), None) if self.0.patient && error.may_pass() => {
                let delay = retry::delay(entry.failures.failed(), None, fastrand::f64());
                entry.again_at = Some(clock::since_boot() + delay);
                (JobState::Queued, Some(error.to_job_error()), None)
            }
            (Err(error), _) => (JobState::Failed, Some(error.to_job_error()), Some(Phase::Failed)),
        };
        if state == JobState::Ready {
            entry.failures.progressed();
        }
        match phase {
            Some(phase) => self.transition(entry, state, error, phase),
            None => self.enter(entry, state, error),
        }
        drop(entries);
        self.0.wake.notify_one();
    }
}
