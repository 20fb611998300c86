//! The jobs of one volume and what may be asked of them.
//!
//! Owns the table of jobs and their transitions. Invariants: a transition is in the store and in
//! the event stream before anybody is told that it happened; nobody waits for the disk with the
//! table in hand, for a disk that hangs would stop everybody who asks. The work itself is the
//! scheduler's and the worker's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;

use super::bench::{Bench, FORGOTTEN, tell_loss};
use super::entry::{Entry, Wish};
use super::events::{BACKLOG, Event};
use super::live::Live;
use super::refusal::JobRefusal;
use super::resolve::Resolved;
use crate::clock;
use crate::core::job::{Job, JobError, JobSpec, JobState};
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::fetch::Throttle;
use crate::hub::Token;
use crate::store::{AuditEntry, Phase};

/// The table of jobs. Clones are the same table.
#[derive(Clone)]
pub struct Jobs(pub(super) Arc<Shared>);

pub(super) struct Shared {
    pub(super) bench: Arc<Bench>,
    entries: Mutex<BTreeMap<ModelName, Entry>>,
    pub(super) wake: Notify,
    events: broadcast::Sender<Event>,
    /// Whether jobs that could not go on are taken up again without being asked.
    pub(super) patient: bool,
}

/// A job as one look at it shows.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The job.
    pub job: Job,
    /// Its counters.
    pub live: Arc<Live>,
    /// Its limits.
    pub throttle: Throttle,
}

impl Jobs {
    pub(super) fn new(bench: Arc<Bench>, patient: bool) -> Self {
        let events = broadcast::Sender::new(BACKLOG);
        Self(Arc::new(Shared { bench, entries: Mutex::default(), wake: Notify::new(), events, patient }))
    }

    /// Takes a job in. One that is asked for again goes on; a token lives in memory only.
    ///
    /// # Errors
    /// [`JobRefusal::Busy`] when something else is being pulled into the same directory.
    pub fn submit(
        &self,
        mut spec: JobSpec,
        token: Option<Token>,
        resolved: Option<Resolved>,
    ) -> Result<(), JobRefusal> {
        let name = spec.name.clone();
        {
            let mut entries = self.entries();
            if entries.get(&name).is_some_and(|entry| entry.reserved) {
                return Err(JobRefusal::Running { name });
            }
            if let Some(entry) = entries.get_mut(&name)
                && (entry.running.is_some() || (entry.job.state == JobState::Queued && entry.admitted))
            {
                if same_request(&entry.job.spec, &spec) {
                    drop(entries);
                    return if spec.limit.is_some() { self.limit_job(&name, spec.limit) } else { Ok(()) };
                }
                let held = &entry.job.spec;
                let (revision, selection) = (held.revision.to_string(), held.selection.to_string());
                return Err(JobRefusal::Busy { name, revision, selection });
            }
            // A limit stays with its job until another is asked for.
            spec.limit = spec.limit.or_else(|| entries.get(&name)?.job.spec.limit);
            let throttle = self.bench().limits.throttle(spec.limit);
            let entry = Entry { token, resolved, ..Entry::new(Job::queued(spec), Arc::default(), true, throttle) };
            self.keep(&entry.job, Phase::Queued);
            entries.insert(name, entry);
        }
        self.0.wake.notify_one();
        Ok(())
    }

    /// Takes proofs of files that are there, from whoever hashed them in this process.
    pub fn learn(&self, name: &ModelName, proved: &[FileRecord]) {
        self.bench().remember_files(name, proved);
    }

    /// Stops a job; it keeps what it has and waits for [`Jobs::resume`].
    pub fn pause(&self, name: &ModelName) -> Result<(), JobRefusal> {
        self.stop(name, Wish::Pause, "paused")
    }

    /// Gives a job up; files that are in place stay.
    pub fn cancel(&self, name: &ModelName) -> Result<(), JobRefusal> {
        self.stop(name, Wish::Cancel, "cancelled")
    }

    /// Goes on with a job that was paused, cancelled or failed.
    pub fn resume(&self, name: &ModelName) -> Result<(), JobRefusal> {
        {
            let mut entries = self.entries();
            let entry = entries.get_mut(name).ok_or_else(|| JobRefusal::Unknown { name: name.clone() })?;
            if entry.reserved {
                return Err(JobRefusal::Running { name: name.clone() });
            }
            if entry.running.is_some() || (entry.admitted && entry.job.state == JobState::Queued) {
                return Ok(());
            }
            entry.admitted = true;
            entry.again_at = None;
            entry.live = Arc::default();
            self.transition(entry, JobState::Queued, None, Phase::Resumed);
        }
        self.0.wake.notify_one();
        Ok(())
    }

    /// All jobs.
    pub fn all(&self) -> Vec<Seen> {
        self.entries().values().map(Entry::seen).collect()
    }

    /// One job.
    pub fn one(&self, name: &ModelName) -> Option<Seen> {
        self.entries().get(name).map(Entry::seen)
    }

    /// What happens from now on.
    pub fn follow(&self) -> broadcast::Receiver<Event> {
        self.0.events.subscribe()
    }

    /// A model's audit trail, oldest first.
    pub fn history(&self, name: &ModelName) -> Vec<AuditEntry> {
        let history = self.0.bench.store.history(name);
        history.unwrap_or_else(|error| {
            tell_loss(Err(error), "the history cannot be read");
            Vec::new()
        })
    }

    /// Notes what a gate decided.
    pub fn saw_verdict(&self, name: &ModelName, open: bool, line: &str) {
        let phase = if open { Phase::GateOpen } else { Phase::GateClosed };
        self.0.bench.audit(name, phase, line);
    }

    /// Keeps everybody from working on a model while its directory is taken away, or changed.
    pub(super) fn reserve(&self, name: &ModelName) -> Result<(), JobRefusal> {
        let mut entries = self.entries();
        let entry = entries.get_mut(name).ok_or_else(|| JobRefusal::Unknown { name: name.clone() })?;
        if entry.running.is_some() || entry.reserved {
            return Err(JobRefusal::Running { name: name.clone() });
        }
        entry.reserved = true;
        Ok(())
    }

    /// Lets others work on a model again; `change` may tell its entry what was done.
    pub(super) fn release(&self, name: &ModelName, change: impl FnOnce(&mut Entry, &Self)) {
        if let Some(entry) = self.entries().get_mut(name) {
            entry.reserved = false;
            change(entry, self);
        }
        self.0.wake.notify_one();
    }

    /// The directory is gone, and so is the job; or it stayed, and so does the job.
    pub(super) fn end_removal(&self, name: &ModelName, gone: bool) {
        if !gone {
            return self.release(name, |_, _| ());
        }
        let mut entries = self.entries();
        entries.remove(name);
        let bench = &self.0.bench;
        let forgotten = bench.store.remove_job(name).and_then(|()| bench.store.forget_model(name));
        tell_loss(forgotten, "the store keeps traces of a removed model");
        bench.audit(name, Phase::Removed, "");
        tell_loss(bench.store.forget_old_histories(), "histories of removed models are kept");
        self.tell(name, None, None);
    }

    /// Puts a job into the table as it was found.
    pub(super) fn found(&self, job: Job, live: Live, admitted: bool) {
        let name = job.spec.name.clone();
        let throttle = self.bench().limits.throttle(job.spec.limit);
        let entry = Entry::new(job, Arc::new(live), admitted, throttle);
        self.entries().insert(name, entry);
        self.0.wake.notify_one();
    }

    /// Stops every running worker; the jobs stay queued.
    pub(super) fn stop_all(&self) {
        self.entries().values().filter_map(|entry| entry.running.as_ref()).for_each(CancellationToken::cancel);
    }

    /// Returns when the table may have changed.
    pub(super) async fn changed(&self) {
        self.0.wake.notified().await;
    }

    pub(super) fn bench(&self) -> &Arc<Bench> {
        &self.0.bench
    }

    fn stop(&self, name: &ModelName, wish: Wish, verb: &'static str) -> Result<(), JobRefusal> {
        let mut entries = self.entries();
        let entry = entries.get_mut(name).ok_or_else(|| JobRefusal::Unknown { name: name.clone() })?;
        if let Some(stop) = &entry.running {
            entry.wish = Some(wish);
            stop.cancel();
            return Ok(());
        }
        entry.again_at = None;
        let (state, phase) = match wish {
            Wish::Pause => (JobState::Paused, Phase::Paused),
            Wish::Cancel => (JobState::Cancelled, Phase::Cancelled),
        };
        match entry.job.state {
            JobState::Ready | JobState::Damaged => {
                Err(JobRefusal::State { name: name.clone(), state: entry.job.state, verb })
            }
            same if same == state => Ok(()),
            _ => {
                self.transition(entry, state, None, phase);
                Ok(())
            }
        }
    }

    pub(super) fn transition(&self, entry: &mut Entry, state: JobState, error: Option<JobError>, phase: Phase) {
        let detail = error.as_ref().map(|error| error.message.clone()).unwrap_or_default();
        self.0.bench.audit(&entry.job.spec.name, phase, &detail);
        self.enter(entry, state, error);
    }

    pub(super) fn enter(&self, entry: &mut Entry, state: JobState, error: Option<JobError>) {
        entry.job.state = state;
        entry.job.error.clone_from(&error);
        self.remember(&entry.job);
        self.tell(&entry.job.spec.name, Some(state), error);
    }

    fn keep(&self, job: &Job, phase: Phase) {
        self.0.bench.audit(&job.spec.name, phase, &format!("{} at {}", job.spec.repo, job.spec.revision));
        self.remember(job);
        self.tell(&job.spec.name, Some(job.state), None);
    }

    pub(super) fn remember(&self, job: &Job) {
        let kept = self.0.bench.store.put_job(job);
        let is_kept = kept.is_ok();
        tell_loss(kept, FORGOTTEN);
        if is_kept {
            self.bench().flush_soon();
        }
    }

    fn tell(&self, name: &ModelName, state: Option<JobState>, error: Option<JobError>) {
        // Nobody may be listening.
        let _ = self.0.events.send(Event { at: clock::now(), id: name.clone(), state, error });
    }

    pub(super) fn entries(&self) -> MutexGuard<'_, BTreeMap<ModelName, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn same_request(a: &JobSpec, b: &JobSpec) -> bool {
    a.repo == b.repo
        && a.revision == b.revision
        && a.selection == b.selection
        && a.endpoint == b.endpoint
        && a.repair == b.repair
}
