//! Which limits are in force for the jobs of an owner, and why.
//!
//! Owns the order in which they count: what was asked for while running, else the timetable, else
//! the configuration. Invariant: a change is in force when the call that made it returns, and
//! remembered if the store takes it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::civil::Weekday;
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::bench::{Bench, tell_loss};
use super::jobs::Jobs;
use super::pulse::Pulse;
use super::refusal::JobRefusal;
use crate::clock;
use crate::core::hours::Timetable;
use crate::core::job::{Job, JobState};
use crate::core::limit::{Limit, Rate};
use crate::core::model_name::ModelName;
use crate::core::status::SCHEMA;
use crate::fetch::{Throttle, Valve};

/// How often the timetable is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Why a limit is in force that somebody asked for while the owner ran.
const ASKED: &str = "muster limit";

/// A value and where it was given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Given<T> {
    /// The value.
    pub value: T,
    /// A place, for people.
    pub from: String,
}

/// What the configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimitPolicy {
    /// Of all jobs together, outside the timetable.
    pub volume: Given<Limit>,
    /// Of all jobs together, in its hours.
    pub hours: Given<Timetable>,
    /// Of each job that has none of its own.
    pub job: Given<Limit>,
}

/// What is in force, and why: `GET /v1/limits`, and what `muster limit --json` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitReport {
    /// Version of the form.
    pub schema: u32,
    /// For all jobs together.
    pub volume: InForce,
    /// For each job that may have bytes to fetch, by name.
    pub models: Vec<ModelLimit>,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// Bytes a second; null for none.
    pub bytes_per_s: Option<u64>,
    /// Where that was said.
    pub why: String,
}

/// The limit of one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelLimit {
    /// Its model.
    pub id: ModelName,
    /// Its limit.
    #[serde(flatten)]
    pub limit: InForce,
}

/// The limits of one owner.
#[derive(Debug, Default)]
pub(super) struct Limits {
    volume: Arc<Valve>,
    said: Mutex<Said>,
}

#[derive(Debug, Default)]
struct Said {
    policy: LimitPolicy,
    /// For the volume, while it runs.
    asked: Option<Limit>,
}

impl Limits {
    pub(super) fn new(policy: LimitPolicy, asked: Option<Limit>) -> Self {
        Self { volume: Arc::default(), said: Mutex::new(Said { policy, asked }) }
    }

    /// For a job, with its own limit in force.
    pub(super) fn throttle(&self, own: Option<Limit>) -> Throttle {
        let throttle = Throttle::below(&self.volume);
        throttle.set(self.said().job(own).0.rate());
        throttle
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Said {
    fn volume(&self, (day, minute): (Weekday, u16)) -> (Limit, String) {
        let LimitPolicy { volume, hours, .. } = &self.policy;
        match (self.asked, hours.value.at(day, minute)) {
            (Some(limit), _) => (limit, ASKED.to_owned()),
            (None, Some(entry)) => (entry.limit(), format!("{}, {}", hours.from, entry.when())),
            (None, None) => (volume.value, volume.from.clone()),
        }
    }

    fn job(&self, own: Option<Limit>) -> (Limit, String) {
        match own {
            Some(limit) => (limit, "asked for".to_owned()),
            None => (self.policy.job.value, self.policy.job.from.clone()),
        }
    }
}

impl InForce {
    fn of((limit, why): (Limit, String)) -> Self {
        Self { bytes_per_s: limit.rate().map(Rate::bytes_per_s), why }
    }
}

impl Jobs {
    /// What the configuration says now.
    pub fn configure_limits(&self, policy: LimitPolicy) {
        self.bench().limits.said().policy = policy;
        self.apply_limits();
    }

    /// Limits all jobs together; nothing is what the configuration says.
    pub fn limit_volume(&self, limit: Option<Limit>) {
        let Bench { limits, store, .. } = &**self.bench();
        limits.said().asked = limit;
        self.apply_limits();
        tell_loss(store.put_limit(limit), "the volume's limit is forgotten with the next start");
        self.bench().flush_soon();
    }

    /// Limits one job; nothing is what the configuration says.
    ///
    /// # Errors
    /// [`JobRefusal::Unknown`].
    pub fn limit_job(&self, name: &ModelName, limit: Option<Limit>) -> Result<(), JobRefusal> {
        let mut entries = self.entries();
        let entry = entries.get_mut(name).ok_or_else(|| JobRefusal::Unknown { name: name.clone() })?;
        entry.job.spec.limit = limit;
        entry.throttle.set(self.bench().limits.said().job(limit).0.rate());
        self.remember(&entry.job);
        Ok(())
    }

    /// What is in force.
    #[must_use]
    pub fn limits(&self) -> LimitReport {
        let entries = self.entries();
        let said = self.bench().limits.said();
        let may_fetch =
            |job: &Job| job.spec.limit.is_some() || !matches!(job.state, JobState::Ready | JobState::Cancelled);
        let models = entries.values().map(|entry| &entry.job).filter(|job| may_fetch(job));
        let limit = |job: &Job| InForce::of(said.job(job.spec.limit));
        LimitReport {
            schema: SCHEMA,
            volume: InForce::of(said.volume(clock::time_of_week())),
            models: models.map(|job| ModelLimit { id: job.spec.name.clone(), limit: limit(job) }).collect(),
        }
    }

    /// Brings everybody under what is in force now.
    fn apply_limits(&self) {
        let entries = self.entries();
        let limits = &self.bench().limits;
        let said = limits.said();
        limits.volume.set(said.volume(clock::time_of_week()).0.rate());
        for entry in entries.values() {
            entry.throttle.set(said.job(entry.job.spec.limit).0.rate());
        }
    }
}

/// Keeps to the timetable until `stop`.
pub(super) async fn keep(jobs: Jobs, pulse: Pulse, stop: CancellationToken) {
    let turns = pulse.begin("timetable", LOOK_EVERY);
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => {
                turns.turn();
                jobs.apply_limits();
            }
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> Limit {
        Limit::parse(text).unwrap()
    }

    #[test]
    fn what_was_asked_for_counts_before_the_timetable_and_that_before_the_configuration() {
        let given = |value: Limit| Given { value, from: "file line 2".to_owned() };
        let hours = Timetable::parse("from=08:00 to=20:00 rate=1MB").unwrap();
        let policy = LimitPolicy {
            volume: given(limit("9MB")),
            hours: Given { value: hours, from: "file line 3".to_owned() },
            job: given(limit("5MB")),
        };
        let mut said = Said { policy, asked: None };
        let (day, night) = ((Weekday::Monday, 600), (Weekday::Monday, 60));
        assert_eq!(said.volume(day), (limit("1MB"), "file line 3, 08:00 to 20:00".to_owned()));
        assert_eq!(said.volume(night), (limit("9MB"), "file line 2".to_owned()));
        said.asked = Some(Limit::None);
        assert_eq!(said.volume(day), (Limit::None, ASKED.to_owned()));
        assert_eq!(said.job(None).0, limit("5MB"));
        assert_eq!(said.job(Some(Limit::None)).0, Limit::None);
    }
}
