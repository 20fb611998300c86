//! The pool: all connections of one job, and the fate of each of its files.
//!
//! Owns the plan and every task of the job. The connections fetch and write; this loop decides
//! what their endings mean: another try and when, a fresh start, a verified file, a file given
//! up, or the end of the job. A file that keeps failing does not stop the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::select;
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::connection::{self, Attempt, AttemptError};
use super::error::{FetchError, FinishError, OwnershipLost, PublishError};
use super::file::FileFetch;
use super::progress::Progress;
use crate::blocking::Blocking;
use crate::clock;
use crate::core::code::Code;
use crate::core::manifest::FileEntry;
use crate::core::pace::{Pace, Window};
use crate::core::plan::{FileId, Plan, Way};
use crate::core::range_set::RangeSet;
use crate::core::retry::{self, FailureClass, Failures};
use crate::core::verify::Mismatch;
use crate::sources::{HubSource, Problem, ReadError};
use crate::volume::partial::Partial;
use crate::volume::publish::Verified;
use crate::volume::quarantine::Quarantine;
use crate::volume::writer::WriterId;
use crate::volume::{ModelDir, VolumeError};

/// Failures of one file in a row, without a newly durable byte, after which it is given up.
const FILE_TRIES: u32 = 8;
/// Fetches of one file that may end in a mismatch.
const MISMATCHES_MAX: u32 = 3;
/// How often the number of connections is reconsidered.
const WINDOW: Duration = Duration::from_secs(1);

/// Whether this process may still write.
pub type MayWrite = Arc<dyn Fn() -> Result<(), OwnershipLost> + Send + Sync>;
/// Gives a verified file its final name and remembers it. Blocks.
pub type Publish = Arc<dyn Fn(Verified) -> Result<(), PublishError> + Send + Sync>;

/// What a job fetches with.
pub struct Context {
    /// Where the bytes come from.
    pub source: HubSource,
    /// The directory they go to.
    pub model: Arc<ModelDir>,
    /// Names our partials.
    pub writer: WriterId,
    /// Where wrong bytes go.
    pub quarantine: Arc<Quarantine>,
    /// For syncs, hashing from disk and publishing.
    pub blocking: Blocking,
    /// Where connections run.
    pub runtime: Handle,
    /// What watchers see.
    pub progress: Arc<Progress>,
    /// Whether every file is read back from disk before it counts as verified.
    pub readback: bool,
    /// How long an origin may be in trouble without a byte coming; none is for ever.
    pub retry_for: Option<Duration>,
    /// Asked before each claim.
    pub may_write: MayWrite,
    /// Called with each verified file.
    pub publish: Publish,
}

/// A file to fetch, with what an earlier run left of it.
#[derive(Debug)]
pub struct Wanted {
    /// Its place in the manifest.
    pub id: FileId,
    /// What it must be.
    pub entry: FileEntry,
    /// An unfinished file and the ranges of it that are durable.
    pub adopted: Option<(Partial, RangeSet)>,
}

/// How fetching ended.
#[derive(Debug)]
pub struct Outcome {
    /// Files given up; empty when everything was published.
    pub failed: Vec<FetchError>,
    /// The number of connections that carried best.
    pub safe_level: usize,
}

/// Fetches, verifies and publishes all files. Returns when every task has ended.
///
/// # Errors
/// [`FetchError`] when the job cannot go on: stopped, volume full or failing, ownership lost,
/// origin in trouble for too long.
pub async fn fetch(
    context: Context,
    wanted: Vec<Wanted>,
    pace: Pace,
    stop: CancellationToken,
) -> Result<Outcome, FetchError> {
    let (events, inbox) = mpsc::channel(64);
    let mut plan = Plan::default();
    let mut slots = BTreeMap::new();
    let mut whole = Vec::new();
    for Wanted { id, entry, adopted } in wanted {
        let file = adopted.map(|(partial, ranges)| {
            context.progress.found(ranges.len_bytes());
            let missing = ranges.missing(entry.size);
            let file = FileFetch::new(partial, ranges, Arc::clone(&context.progress));
            (Arc::new(file), missing)
        });
        let missing = file.as_ref().map_or_else(|| RangeSet::from(0..entry.size), |(_, missing)| missing.clone());
        if missing.is_empty() {
            whole.push(id);
        } else {
            plan.add(id, entry.size, missing);
        }
        slots.insert(id, Slot { entry, file: tokio::sync::Mutex::new(file.map(|(file, _)| file)) });
    }
    let level = AtomicUsize::new(pace.level());
    let shared = Arc::new(Shared {
        context,
        plan: Mutex::new(plan),
        slots,
        wake: Arc::default(),
        level,
        events,
        stop: stop.child_token(),
    });
    Pool::new(shared, inbox, pace).run(whole).await
}

/// What connections and pool share.
pub(super) struct Shared {
    pub(super) context: Context,
    plan: Mutex<Plan>,
    slots: BTreeMap<FileId, Slot>,
    pub(super) wake: Arc<Notify>,
    level: AtomicUsize,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) stop: CancellationToken,
}

struct Slot {
    entry: FileEntry,
    file: tokio::sync::Mutex<Option<Arc<FileFetch>>>,
}

/// What tasks tell the pool.
pub(super) enum Event {
    /// An assignment ended.
    Attempt { file: FileId, attempt: Attempt },
    /// Bytes on disk were hashed.
    Hashed { file: FileId, result: Result<(), VolumeError> },
    /// A whole file was judged, and published if it was right.
    Finished { file: FileId, result: Result<(), FinishError> },
    /// A file was made ready to start again.
    Reset { file: FileId, result: Result<Option<(FileFetch, RangeSet)>, VolumeError> },
    /// A failed file may be tried again.
    Retry { file: FileId },
}

/// How a file starts again once no connection holds it.
#[derive(Debug, Clone, Copy)]
enum Reset {
    /// With what its claims prove.
    Reopen,
    /// From its first byte.
    Discard(Way),
}

impl Shared {
    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn level(&self) -> usize {
        self.level.load(Relaxed)
    }

    /// Returns when the job is to stop.
    pub(super) async fn stopped(&self) {
        self.stop.clone().cancelled_owned().await;
    }

    /// The file's state, made when its first byte is wanted.
    pub(super) async fn open(&self, id: FileId) -> Result<Arc<FileFetch>, VolumeError> {
        let slot = &self.slots[&id];
        let mut file = slot.file.lock().await;
        if let Some(file) = file.as_ref() {
            return Ok(Arc::clone(file));
        }
        let (model, entry, writer) = (Arc::clone(&self.context.model), slot.entry.clone(), self.context.writer);
        let partial = self.context.blocking.run(move || Partial::create(&model, &entry, writer)).await?;
        let fresh = FileFetch::new(partial, RangeSet::new(), Arc::clone(&self.context.progress));
        Ok(Arc::clone(file.insert(Arc::new(fresh))))
    }
}

/// What is known of one file beyond its bytes.
#[derive(Default)]
struct Fate {
    failures: Failures,
    mismatches: u32,
    hashing: bool,
    reset: Option<Reset>,
}

struct Pool {
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Event>,
    tasks: JoinSet<()>,
    connections: JoinSet<usize>,
    /// Numbers of the connections that exist; those from the pace's level up go first.
    seats: BTreeSet<usize>,
    pace: Pace,
    fates: BTreeMap<FileId, Fate>,
    failed: Vec<FetchError>,
    fatal: Option<FetchError>,
    failures_in_window: u32,
    progress_at: Duration,
}

impl Pool {
    fn new(shared: Arc<Shared>, inbox: mpsc::Receiver<Event>, pace: Pace) -> Self {
        let fates = shared.slots.keys().map(|id| (*id, Fate::default())).collect();
        Self {
            shared,
            inbox,
            tasks: JoinSet::new(),
            connections: JoinSet::new(),
            seats: BTreeSet::new(),
            pace,
            fates,
            failed: Vec::new(),
            fatal: None,
            failures_in_window: 0,
            progress_at: clock::since_boot(),
        }
    }

    async fn run(mut self, whole: Vec<FileId>) -> Result<Outcome, FetchError> {
        self.hash_adopted().await;
        for id in whole {
            // A file without bytes has no connection that would make it.
            match self.shared.open(id).await {
                Ok(file) => drop(file),
                Err(error) => self.disk_failed(id, error).await,
            }
            self.advance(id).await;
        }
        let mut windows = interval(WINDOW);
        windows.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut bytes = self.shared.context.progress.wire();
        while !self.is_over() {
            self.fill();
            select! {
                Some(event) = self.inbox.recv() => self.take(event).await,
                Some(ended) = self.connections.join_next() => { self.seats.remove(&unwound(ended)); }
                Some(ended) = self.tasks.join_next() => unwound(ended),
                _ = windows.tick() => bytes = self.adapt(bytes),
            }
        }
        self.drain().await;
        match self.fatal {
            Some(error) => Err(error),
            None if self.shared.stop.is_cancelled() && !self.fates.is_empty() => Err(FetchError::Stopped),
            None => Ok(Outcome { failed: self.failed, safe_level: self.pace.safe_level() }),
        }
    }

    /// Nothing more will happen: all files have met their fate, or the job is stopped.
    fn is_over(&self) -> bool {
        self.fates.is_empty() || self.shared.stop.is_cancelled()
    }

    /// Keeps as many connections as the pace allows, while there is anything to fetch.
    fn fill(&mut self) {
        while self.connections.len() < self.shared.level() && self.shared.plan().remaining() > 0 {
            let Some(index) = (0..self.shared.level()).find(|index| self.seats.insert(*index)) else { return };
            let shared = Arc::clone(&self.shared);
            let task = async move {
                connection::work(shared, index).await;
                index
            };
            self.connections.spawn_on(task, &self.shared.context.runtime);
        }
    }

    fn adapt(&mut self, bytes_before: u64) -> u64 {
        let bytes = self.shared.context.progress.wire();
        let level = self.pace.level();
        let busy = self.shared.context.progress.connections() as usize >= level;
        let failures = std::mem::take(&mut self.failures_in_window);
        let window = Window { span: WINDOW, bytes: bytes.saturating_sub(bytes_before), failures, busy };
        self.shared.level.store(self.pace.observe(&window), Relaxed);
        bytes
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Attempt { file, attempt } => self.attempted(file, attempt).await,
            Event::Hashed { file, result } => {
                if let Some(fate) = self.fates.get_mut(&file) {
                    fate.hashing = false;
                }
                match result {
                    Ok(()) => self.advance(file).await,
                    Err(error) => self.disk_failed(file, error).await,
                }
            }
            Event::Finished { file, result } => self.finished(file, result).await,
            Event::Reset { file, result } => self.was_reset(file, result).await,
            Event::Retry { file } => self.shared.plan().unhold(file),
        }
        self.shared.wake.notify_waiters();
    }

    async fn attempted(&mut self, file: FileId, attempt: Attempt) {
        if attempt.progressed || attempt.result.is_ok() {
            self.progress_at = clock::since_boot();
            if let Some(fate) = self.fates.get_mut(&file) {
                fate.failures.progressed();
            }
        }
        match attempt.result {
            Ok(()) => self.advance(file).await,
            Err(AttemptError::Read(error)) => self.read_failed(file, error).await,
            Err(AttemptError::Volume(error)) => self.disk_failed(file, error).await,
            Err(AttemptError::Ownership(error)) => self.end(FetchError::Ownership(error)),
            Err(AttemptError::Stopped) => {}
        }
    }

    /// Takes a file as far as it can go now: resets it, hashes what waits on disk, finishes it
    /// when whole. The last two need it unshared: the last connection to report gets there.
    async fn advance(&mut self, id: FileId) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        let mut slot = self.shared.slots[&id].file.lock().await;
        let Some(file) = slot.take() else { return };
        if let Some(position) = file.hashed() {
            self.shared.plan().hashed(id, position);
        }
        if fate.reset.is_none() && !file.is_whole() {
            let lags = !fate.hashing && file.hash_lags();
            fate.hashing |= lags;
            let held = Arc::clone(slot.insert(file));
            drop(slot);
            if lags {
                self.start_hashing(id, held);
            }
            return;
        }
        match Arc::try_unwrap(file) {
            Err(shared) => *slot = Some(shared),
            Ok(file) => {
                let reset = fate.reset;
                drop(slot);
                match reset {
                    Some(reset) => self.start_reset(id, file, reset),
                    None => self.start_finish(id, file),
                }
            }
        }
    }

    async fn hash_adopted(&mut self) {
        let ids: Vec<_> = self.fates.keys().copied().collect();
        for id in ids {
            let adopted = self.shared.slots[&id].file.lock().await.is_some();
            if adopted {
                self.advance(id).await;
            }
        }
    }

    fn start_hashing(&mut self, id: FileId, file: Arc<FileFetch>) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let result = shared.context.blocking.run(move || file.hash_from_disk()).await;
            let _ = shared.events.send(Event::Hashed { file: id, result }).await;
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    fn start_finish(&mut self, id: FileId, file: FileFetch) {
        self.shared.plan().remove(id);
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let (readback, publish) = (shared.context.readback, Arc::clone(&shared.context.publish));
            let finish = move || -> Result<(), FinishError> { Ok(publish(file.finish(readback)?)?) };
            let result = shared.context.blocking.run(finish).await;
            let _ = shared.events.send(Event::Finished { file: id, result }).await;
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    fn start_reset(&mut self, id: FileId, file: FileFetch, reset: Reset) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let work = move || match reset {
                Reset::Reopen => file.reopen().map(Some),
                Reset::Discard(_) => file.discard().map(|()| None),
            };
            let result = shared.context.blocking.run(work).await;
            let _ = shared.events.send(Event::Reset { file: id, result }).await;
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    async fn was_reset(&mut self, id: FileId, result: Result<Option<(FileFetch, RangeSet)>, VolumeError>) {
        let Slot { entry, file } = &self.shared.slots[&id];
        let Some(fate) = self.fates.get_mut(&id) else { return };
        let reset = fate.reset.take();
        let (reopened, durable) = match result {
            Err(source) => {
                let path = entry.path.clone();
                return self.end(FetchError::Volume { path, source });
            }
            Ok(None) => (None, RangeSet::new()),
            Ok(Some((file, durable))) => (Some(Arc::new(file)), durable),
        };
        *file.lock().await = reopened;
        let way = if let Some(Reset::Discard(way)) = reset { way } else { Way::Ranges };
        self.shared.plan().restart(id, durable.missing(entry.size), way);
        let failures = fate.failures.in_a_row();
        self.retry_after(id, retry::delay(failures, None, fastrand::f64()));
        self.advance(id).await;
    }

    async fn finished(&mut self, id: FileId, result: Result<(), FinishError>) {
        match result {
            Ok(()) => {
                self.fates.remove(&id);
                self.progress_at = clock::since_boot();
            }
            Err(FinishError::Publish(source)) => {
                let path = self.shared.slots[&id].entry.path.clone();
                self.end(FetchError::Publish { path, source });
            }
            Err(FinishError::Volume(error)) => self.disk_failed(id, error).await,
            Err(FinishError::Mismatch { mismatch, sealed }) => {
                let size = self.shared.slots[&id].entry.size;
                self.shared.context.progress.lost(size, size);
                let quarantine = Arc::clone(&self.shared.context.quarantine);
                let set_aside = self.shared.context.blocking.run(move || sealed.quarantine(&quarantine)).await;
                if let Err(error) = set_aside {
                    warn!(%error, "the wrong bytes could not be set aside");
                }
                self.mismatched(id, mismatch);
            }
        }
    }

    fn mismatched(&mut self, id: FileId, mismatch: Mismatch) {
        let Slot { entry, .. } = &self.shared.slots[&id];
        let Some(fate) = self.fates.get_mut(&id) else { return };
        fate.mismatches += 1;
        if fate.mismatches >= MISMATCHES_MAX {
            let (path, fetches) = (entry.path.clone(), fate.mismatches);
            return self.give_up(id, FetchError::Corrupt { path, mismatch, fetches });
        }
        warn!(file = %entry.path, %mismatch, "wrong bytes came; fetching the file again over one connection");
        let mut plan = self.shared.plan();
        plan.add(id, entry.size, RangeSet::new());
        plan.restart(id, RangeSet::from(0..entry.size), Way::Sequential);
    }

    async fn read_failed(&mut self, id: FileId, error: ReadError) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        self.failures_in_window += 1;
        let failures = fate.failures.failed();
        let class = error.problem.class();
        info!(%error, failures, "a read failed");
        let delay = match class {
            FailureClass::Permanent => return self.give_up_reading(id, error),
            FailureClass::Transient { .. } if error.problem.is_of_origin() && self.origin_may_recover() => {
                let FailureClass::Transient { after } = class else { return };
                retry::delay(failures, after, fastrand::f64())
            }
            _ if failures >= FILE_TRIES => return self.give_up_reading(id, error),
            FailureClass::Transient { after } => retry::delay(failures, after, fastrand::f64()),
            FailureClass::StaleUrl => {
                self.shared.context.source.forget(&error.path).await;
                if failures > 1 { retry::delay(failures, None, fastrand::f64()) } else { Duration::ZERO }
            }
            FailureClass::Corrupt | FailureClass::Local => {
                if matches!(error.problem, Problem::RangeIgnored) {
                    return self.start_over(id, Reset::Discard(Way::Whole), "the server ignores ranges").await;
                }
                retry::delay(failures, None, fastrand::f64())
            }
        };
        self.retry_after(id, delay);
    }

    /// Whether an origin in trouble is still worth waiting for.
    fn origin_may_recover(&self) -> bool {
        let waited = clock::since_boot().saturating_sub(self.progress_at);
        self.shared.context.retry_for.is_none_or(|limit| waited < limit)
    }

    fn retry_after(&mut self, id: FileId, delay: Duration) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            select! {
                () = sleep(delay) => { let _ = shared.events.send(Event::Retry { file: id }).await; }
                () = shared.stopped() => {}
            }
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    /// Stops all work on a file and starts it again.
    async fn start_over(&mut self, id: FileId, reset: Reset, why: &str) {
        let entry = &self.shared.slots[&id].entry;
        let Some(fate) = self.fates.get_mut(&id) else { return };
        if fate.reset.is_some() {
            return;
        }
        warn!(file = %entry.path, why, "the file starts again");
        fate.reset = Some(reset);
        {
            let mut plan = self.shared.plan();
            plan.hold(id);
            plan.restart(id, RangeSet::from(0..entry.size), Way::Ranges);
        }
        self.advance(id).await;
    }

    /// A failed write or sync is final for what was not claimed before it (P3).
    async fn disk_failed(&mut self, id: FileId, error: VolumeError) {
        let path = self.shared.slots[&id].entry.path.clone();
        let Some(fate) = self.fates.get_mut(&id) else { return };
        if fate.reset.is_some() {
            return;
        }
        let gone = self.shared.slots[&id].file.lock().await.is_none();
        if error.code() == Code::NoSpace || gone || fate.failures.failed() >= MISMATCHES_MAX {
            return self.end(FetchError::Volume { path, source: error });
        }
        warn!(file = %path, %error, "the disk failed");
        self.start_over(id, Reset::Reopen, "the disk failed").await;
    }

    fn give_up_reading(&mut self, id: FileId, error: ReadError) {
        let path = error.path.clone();
        self.give_up(id, FetchError::Read { path, source: Box::new(error) });
    }

    fn give_up(&mut self, id: FileId, error: FetchError) {
        warn!(%error, "a file is given up");
        self.fates.remove(&id);
        self.shared.plan().remove(id);
        self.failed.push(error);
    }

    fn end(&mut self, error: FetchError) {
        self.fatal.get_or_insert(error);
        self.shared.stop.cancel();
    }

    /// Lets every task see its work through: bytes received are claimed before the end.
    async fn drain(&mut self) {
        self.shared.stop.cancel();
        self.shared.wake.notify_waiters();
        while !(self.connections.is_empty() && self.tasks.is_empty()) {
            select! {
                Some(_) = self.inbox.recv() => {}
                Some(ended) = self.connections.join_next() => { unwound(ended); }
                Some(ended) = self.tasks.join_next() => unwound(ended),
            }
        }
    }
}

/// A panic in a task is a panic of the job.
fn unwound<T>(ended: Result<T, JoinError>) -> T {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => panic!("a task of the pool was aborted, which nobody does: {error}"),
    })
}
