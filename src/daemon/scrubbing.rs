//! Reading models again while nobody else works, and what follows from a finding, whoever made it.
//!
//! Owns the owner's timetable and its look at the models' records. Invariants: it reads only while no job is
//! at work, stops within one read when one begins or the owner stops, and goes on where it stopped, also
//! after a restart; whoever found something, `muster scrub` or this owner, it becomes an event once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::civil::Weekday;
use jiff::{SignedDuration, Timestamp};
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::bench::Bench;
use super::jobs::{Jobs, Seen};
use super::pulse::{Pulse, Turns};
use super::report::of_directory;
use super::supervisor::yield_to_others;
use super::update::close_the_gate;
use crate::blocking::Blocking;
use crate::clock;
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::hours::{Hours, Timetable};
use crate::core::identity::Identity;
use crate::core::job::{JobError, JobState};
use crate::core::limit::{Limit, Rate};
use crate::core::model_name::ModelName;
use crate::core::repair::Look;
use crate::core::repo_path::RepoPath;
use crate::core::scrubbed::{self, Finding};
use crate::core::shell::quoted;
use crate::core::status::ScrubStatus;
use crate::core::subset::Subset;
use crate::fetch::Valve;
use crate::gate::scrub::{Outcome, Scrub, reins};
use crate::parallel::{apart, cores};
use crate::store::Phase;
use crate::volume::{ModelDir, VolumeError};

/// How often records are looked at, and whether it is time to read.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often a reading is looked after.
const TURN_EVERY: Duration = Duration::from_millis(200);
/// What is read before it is asked again whether it is time, bytes.
const PORTION: u64 = 256 << 20;
/// How long a model that could not be read is left alone.
const AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// What the configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScrubPolicy {
    /// Every byte is read in this time; none is never.
    pub every: Option<Duration>,
    /// How fast.
    pub limit: Limit,
    /// Only at these hours, each with its own rate; empty is at any.
    pub hours: Timetable,
    /// Whether what is found is repaired.
    pub repair: bool,
}

impl ScrubPolicy {
    /// How fast is to be read at this time of the week, if at all.
    fn now(&self, (day, minute): (Weekday, u16)) -> Option<Limit> {
        self.every?;
        if self.hours.is_empty() {
            return Some(self.limit);
        }
        self.hours.at(day, minute).map(Hours::limit)
    }

    /// Whether what was last read at `at` is to be read again.
    fn is_due(&self, at: Option<Timestamp>, now: Timestamp) -> bool {
        let Some(every) = self.every.and_then(|every| SignedDuration::try_from(every).ok()) else { return false };
        at.is_none_or(|at| now.duration_since(at) >= every)
    }
}

/// What is known of one model, and of what that was read.
#[derive(Debug, Default)]
struct Known {
    marks: Option<Marks>,
    status: Option<Arc<ScrubStatus>>,
    /// What was told.
    told: Vec<(RepoPath, Option<u64>)>,
    /// Not to be read before, since boot.
    not_before: Duration,
}

/// What changes when somebody scrubs or repairs: the record and the receipt.
type Marks = (Option<Identity>, Option<Identity>);

/// Looks after the records of all models, and reads them again, until `stop`.
pub(super) async fn keep(jobs: Jobs, policy: ScrubPolicy, pulse: Pulse, stop: CancellationToken) {
    let turns = pulse.begin("scrub", LOOK_EVERY);
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // A reading takes as long as it takes: nobody else waits for this thread.
    let blocking = Blocking::new(Handle::current(), 1);
    let mut known: HashMap<ModelName, Known> = HashMap::new();
    loop {
        tokio::select! {
            _ = looks.tick() => turns.turn(),
            () = stop.cancelled() => return,
        }
        loop {
            known = turns.at_volume(look(&jobs, &blocking, known, policy.repair)).await;
            let Some(name) = next(&jobs, &policy, &known, clock::now()) else { break };
            let outcome = read(&jobs, &policy, &name, &blocking, &turns, &stop).await;
            let Some(outcome) = outcome else { break };
            let got_nowhere = outcome.read == 0 || !outcome.reasons.is_empty();
            if got_nowhere && !outcome.stopped {
                let why = outcome.reasons.first().map(ToString::to_string).unwrap_or_default();
                warn!(model = %name, why, "the model cannot be read again now; the next try is in an hour");
            }
            if let Some(model) = known.get_mut(&name).filter(|_| got_nowhere && !outcome.stopped) {
                model.not_before = clock::since_boot() + AGAIN_AFTER;
            }
            if stop.is_cancelled() || outcome.stopped {
                break;
            }
        }
    }
}

/// The model that waits longest, when it is time to read it.
fn next(jobs: &Jobs, policy: &ScrubPolicy, known: &HashMap<ModelName, Known>, now: Timestamp) -> Option<ModelName> {
    policy.now(clock::time_of_week())?;
    if !jobs.is_idle() {
        return None;
    }
    let boot = clock::since_boot();
    let waits = |(name, known): (&ModelName, &Known)| {
        let status = known.status.as_ref().filter(|_| known.not_before <= boot)?;
        let is_due = status.oldest_file.is_some() && policy.is_due(status.oldest_at, now);
        is_due.then(|| (status.oldest_at, name.clone()))
    };
    known.iter().filter_map(waits).min().map(|(_, name)| name)
}

/// Reads a portion of a model; nothing when it is gone.
async fn read(
    jobs: &Jobs,
    policy: &ScrubPolicy,
    name: &ModelName,
    blocking: &Blocking,
    turns: &Turns,
    stop: &CancellationToken,
) -> Option<Outcome> {
    let valve = Arc::new(Valve::default());
    let rate = policy.now(clock::time_of_week())?.rate();
    valve.set(rate);
    let reading = {
        let (jobs, name, valve, stop) = (jobs.clone(), name.clone(), Arc::clone(&valve), stop.clone());
        blocking.start(move || {
            let go_on = || !stop.is_cancelled() && jobs.is_idle();
            let model = jobs.bench().volume.model(&name).ok().flatten()?;
            Some(apart(|| {
                yield_to_others();
                portion(jobs.bench(), &model, rate, &|bytes| valve.wait(bytes, &go_on))
            }))
        })
    };
    while !reading.is_done() {
        turns.turn();
        // The hours may end, or another rate begin.
        match policy.now(clock::time_of_week()) {
            Some(limit) => valve.set(limit.rate()),
            None => valve.set(Rate::new(1000)),
        }
        sleep(TURN_EVERY).await;
    }
    reading.wait().await
}

fn portion(bench: &Bench, model: &ModelDir, rate: Option<Rate>, pass: &(dyn Fn(u64) -> bool + Sync)) -> Outcome {
    let mut reins = reins(rate, pass);
    // What it takes of the processors is left to others.
    reins.threads = reins.threads.min(cores().div_ceil(2));
    let close = |model: &ModelDir| match close_the_gate(bench, model) {
        Ok(()) => Ok(true),
        Err(error) => Err(in_words(&error)),
    };
    let scrub = Scrub {
        subset: Subset::Bytes(PORTION),
        reins,
        // Nobody but this owner would change it, and a job that begins does not wait for this.
        locked: false,
        close: &close,
        on_finding: &|_| (),
        on_start: &|_, _| (),
    };
    scrub.run(model.path().to_owned())
}

/// Looks at the record of each model that changed, and tells what is new.
async fn look(
    jobs: &Jobs,
    blocking: &Blocking,
    mut known: HashMap<ModelName, Known>,
    repair: bool,
) -> HashMap<ModelName, Known> {
    let jobs = jobs.clone();
    let looking = blocking.run(move || {
        let seen = jobs.all();
        known.retain(|name, _| seen.iter().any(|seen| seen.job.spec.name == *name));
        for seen in seen {
            let name = &seen.job.spec.name;
            let known = known.entry(name.clone()).or_default();
            if let Err(error) = look_at(&jobs, &seen, known, repair) {
                warn!(model = %name, %error, "its record of scrubbing cannot be read");
            }
            // A job that is taken up again shows it too.
            seen.live.keep_scrub(known.status.clone());
        }
        known
    });
    looking.await
}

fn look_at(jobs: &Jobs, seen: &Seen, known: &mut Known, repair: bool) -> Result<(), VolumeError> {
    let name = &seen.job.spec.name;
    let Some(model) = jobs.bench().volume.model(name)? else { return Ok(()) };
    let marks = (model.scrubbed_identity()?, model.receipt_identity()?);
    if known.marks == Some(marks) {
        return Ok(());
    }
    let Some(manifest) = model.manifest()? else { return Ok(()) };
    let Ok(expected) = model.expected(manifest) else { return Ok(()) };
    let (status, findings) = crate::gate::scrub::look(&model, &expected)?;
    let told: Vec<_> = findings.iter().map(|finding| (finding.file.clone(), finding.fault.block())).collect();
    let is_news = told.iter().any(|finding| !known.told.contains(finding));
    known.status = Some(Arc::new(status));
    seen.live.keep_scrub(known.status.clone());
    // A job at work has the last word; what it leaves is looked at then.
    if (is_news || told.len() < known.told.len()) && !jobs.judge(name, &findings, is_news, repair) {
        return Ok(());
    }
    known.told = told;
    known.marks = Some(marks);
    Ok(())
}

impl Jobs {
    /// Whether nobody works on anything, and nobody is about to.
    pub(super) fn is_idle(&self) -> bool {
        self.entries().values().all(|entry| {
            entry.running.is_none() && !entry.reserved && !(entry.admitted && entry.job.state == JobState::Queued)
        })
    }

    /// Takes what is known against a model; `false` while somebody works on it.
    fn judge(&self, name: &ModelName, findings: &[Finding], is_news: bool, repair: bool) -> bool {
        {
            let mut entries = self.entries();
            let Some(entry) = entries.get_mut(name) else { return true };
            if entry.running.is_some() || entry.reserved {
                return false;
            }
            if !matches!(entry.job.state, JobState::Ready | JobState::Damaged) {
                return true;
            }
            let corrupt: Vec<_> =
                findings.iter().filter(|finding| finding.fault.code() == Code::Corrupt).cloned().collect();
            match scrubbed::in_words(&corrupt) {
                Some(message) if is_news => {
                    let hint = Some(format!("muster repair {} mends it", quoted(name.as_str())));
                    let error = Some(JobError { code: Code::Corrupt, message, hint });
                    // After a restart it is told already.
                    if entry.job.state != JobState::Damaged || entry.job.error != error {
                        self.transition(entry, JobState::Damaged, error, Phase::Damaged);
                    }
                }
                None if entry.job.state == JobState::Damaged => {
                    let found = of_directory(&self.bench().volume, name);
                    if matches!(found, Ok(Some(found)) if found.state == JobState::Ready) {
                        self.enter(entry, JobState::Ready, None);
                    }
                }
                _ => {}
            }
        }
        for finding in findings.iter().filter(|_| is_news) {
            let bytes = finding.fault.bytes().unwrap_or_default();
            let (file, block) = (&finding.file, finding.fault.block());
            warn!(model = %name, %file, block, start = bytes.start, end = bytes.end, "{}", finding.words());
        }
        if is_news && repair {
            let mut files: Vec<_> = findings.iter().map(|finding| finding.file.clone()).collect();
            files.dedup();
            if let Err(refusal) = self.repair(name, Look::Files(files)) {
                warn!(model = %name, error = in_words(&refusal), "what was found is not repaired");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_read_in_its_hours_at_their_rate_and_when_it_is_due() {
        let limit = |text: &str| Limit::parse(text).unwrap();
        let day = Duration::from_secs(86_400);
        let mut policy = ScrubPolicy { limit: limit("5MB"), ..ScrubPolicy::default() };
        let (noon, night) = ((Weekday::Monday, 720), (Weekday::Monday, 60));
        assert_eq!(
            (policy.now(noon), policy.is_due(None, Timestamp::UNIX_EPOCH)),
            (None, false),
            "off unless asked for"
        );
        policy.every = Some(day);
        assert_eq!(policy.now(noon), Some(limit("5MB")));
        policy.hours = Timetable::parse("from=22:00 to=06:00 rate=9MB").unwrap();
        assert_eq!((policy.now(noon), policy.now(night)), (None, Some(limit("9MB"))));
        let at = |second| Timestamp::from_second(second).unwrap();
        assert!(policy.is_due(None, at(0)), "never read here");
        assert!(!policy.is_due(Some(at(0)), at(86_399)) && policy.is_due(Some(at(0)), at(86_400)));
        assert!(!policy.is_due(Some(at(100)), at(0)), "a clock that was set back");
    }
}
