//! How each origin fares, for everybody who asks it.
//!
//! Owns the question whose failure a failure is. An origin that has answered since it last
//! failed is well: then the failure belongs to what was asked. One that has only failed is in
//! trouble: its failures belong to it, and nobody asks it again before its pause is over.
//! Requests that were under way when it failed before tell nothing new.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::core::endpoint::Origin;
use crate::core::retry::{Failures, delay};

/// Whose failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// Of what was asked.
    Request,
    /// Of the whole origin, which is left alone for a while.
    Origin,
}

/// A judged failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) blame: Blame,
    /// Its number in a row of the origin's failures, if it is the first of its wave.
    pub(super) wave: Option<u32>,
}

/// The origins that one job has asked.
#[derive(Debug, Default)]
pub(super) struct Health(Mutex<HashMap<Origin, Record>>);

/// The last moment an origin gave what was asked, in milliseconds since boot; 0 is never.
#[derive(Debug, Clone, Default)]
pub(super) struct Served(Arc<AtomicU64>);

#[derive(Debug, Default)]
struct Record {
    served: Served,
    failures: Failures,
    failed_at: Duration,
    paused_until: Duration,
}

impl Served {
    /// It does now.
    pub(super) fn now(&self) {
        let now = u64::try_from(clock::since_boot().as_millis()).unwrap_or(u64::MAX);
        self.0.fetch_max(now, Relaxed);
    }

    fn at(&self) -> Duration {
        Duration::from_millis(self.0.load(Relaxed))
    }
}

impl Health {
    /// Where to note that `origin` serves.
    pub(super) fn of(&self, origin: &Origin) -> Served {
        self.records().entry(origin.clone()).or_default().served.clone()
    }

    /// Returns when `origin` may be asked.
    pub(super) async fn admit(&self, origin: &Origin) {
        loop {
            let until = self.records().get(origin).map_or(Duration::ZERO, |record| record.paused_until);
            let wait = until.saturating_sub(clock::since_boot());
            if wait.is_zero() {
                return;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// A request that was sent at `asked_at` failed in a way that an origin in trouble fails.
    pub(super) fn failed(&self, origin: &Origin, asked_at: Duration) -> Verdict {
        let now = clock::since_boot();
        self.records().entry(origin.clone()).or_default().failed(asked_at, now, fastrand::f64())
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Origin, Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Record {
    fn failed(&mut self, asked_at: Duration, now: Duration, random: f64) -> Verdict {
        if self.served.at() > self.failed_at {
            self.failures.progressed();
            self.failed_at = now;
            return Verdict { blame: Blame::Request, wave: None };
        }
        // Those that were under way at the last failure make one wave with it.
        let begins = asked_at >= self.failed_at;
        if begins {
            self.failed_at = now;
            let failures = self.failures.failed();
            self.paused_until = now + delay(failures, None, random);
        }
        Verdict { blame: Blame::Origin, wave: begins.then(|| self.failures.in_a_row()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn origin(wave: Option<u32>) -> Verdict {
        Verdict { blame: Blame::Origin, wave }
    }

    #[test]
    fn an_origin_that_only_fails_is_left_alone_for_longer_each_time() {
        let mut record = Record::default();
        assert_eq!(record.failed(at(100), at(200), 0.0), origin(Some(1)));
        assert_eq!(record.paused_until, at(700));
        assert_eq!(record.failed(at(150), at(300), 0.0), origin(None), "the same wave");
        assert_eq!(record.paused_until, at(700));
        assert_eq!(record.failed(at(700), at(800), 0.0), origin(Some(2)));
        assert_eq!(record.paused_until, at(1800));
        let mut now = 1800;
        for _ in 0..100 {
            now += 120_000;
            record.failed(at(now - 1), at(now), 0.0);
        }
        assert_eq!(record.paused_until, at(now + 60_000), "never longer than a minute");
    }

    #[test]
    fn a_failure_beside_others_that_are_served_is_that_requests_own() {
        let mut record = Record::default();
        record.failed(at(100), at(200), 0.0);
        record.served.0.store(900, Relaxed);
        assert_eq!(record.failed(at(901), at(902), 0.0), Verdict { blame: Blame::Request, wave: None });
        assert_eq!(record.failed(at(950), at(960), 0.0), origin(Some(1)), "nothing came since");
        assert_eq!(record.paused_until, at(1460), "a new row");
    }
}
