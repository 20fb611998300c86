//! One row of the table of jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::jobs::Seen;
use super::live::Live;
use super::resolve::Resolved;
use crate::core::job::{Job, JobState};
use crate::core::retry::Failures;
use crate::fetch::Throttle;
use crate::hub::Token;

/// What a user wants of a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wish {
    Pause,
    Cancel,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) job: Job,
    pub(super) live: Arc<Live>,
    pub(super) running: Option<CancellationToken>,
    pub(super) wish: Option<Wish>,
    pub(super) token: Option<Token>,
    pub(super) resolved: Option<Resolved>,
    /// Its directory is being taken away or changed: nobody may begin to work on it.
    pub(super) reserved: bool,
    /// Whether this owner may work on it: a foreground pull leaves other jobs alone.
    pub(super) admitted: bool,
    /// When a job that could not go on is taken up again by itself, since boot.
    pub(super) again_at: Option<Duration>,
    pub(super) failures: Failures,
    /// What keeps it under its limits.
    pub(super) throttle: Throttle,
}

impl Entry {
    pub(super) fn new(job: Job, live: Arc<Live>, admitted: bool, throttle: Throttle) -> Self {
        Self {
            job,
            live,
            running: None,
            wish: None,
            token: None,
            resolved: None,
            reserved: false,
            admitted,
            again_at: None,
            failures: Failures::default(),
            throttle,
        }
    }

    /// One look at it.
    pub(super) fn seen(&self) -> Seen {
        Seen { job: self.job.clone(), live: Arc::clone(&self.live), throttle: self.throttle.clone() }
    }

    /// Whether a worker may take it now.
    pub(super) fn waits(&self, now: Duration) -> bool {
        let due = self.again_at.map_or(self.job.state == JobState::Queued, |at| at <= now);
        self.admitted && !self.reserved && self.running.is_none() && due
    }
}
