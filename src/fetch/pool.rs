//! The pool: all connections of one job, for as long as the job lasts.
//!
//! Owns every task of the job. The connections fetch and write; this loop keeps as many of them
//! as the pace allows, takes what they report to `fates`, and sees them through at the end.
//! Invariant: when [`fetch`] returns, all tasks have ended or were given their time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::connection;
use super::error::FetchError;
use super::fates::Fate;
use super::shared::{Context, Event, Outcome, Place, Shared, Wanted};
use super::small::{self, Smalls};
use crate::clock;
use crate::core::causes::in_words;
use crate::core::pace::{Pace, WINDOW, Window};
use crate::core::plan::FileId;

/// How long a stop may sync and claim what came.
const DRAIN_WITHIN: Duration = Duration::from_secs(15);
/// Events that wait for the pool before those who report do.
const EVENTS_MAX: usize = 64;
/// One part in this many of a window that is waited for a limit says that it is the limit that holds.
const HELD_ONE_IN: u32 = 10;

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
    let (events, inbox) = mpsc::channel(EVENTS_MAX);
    let (small, small_files) = Smalls::new();
    let level = pace.level().min(context.throttle.connections());
    let shared = Arc::new(Shared::new(context, wanted, level, events, small, stop.child_token()));
    let mut pool = Pool::new(shared, inbox, pace);
    let small_files = Arc::new(Mutex::new(small_files));
    for _ in 0..small::WORKERS {
        let work = small::work(Arc::clone(&pool.shared), Arc::clone(&small_files));
        pool.tasks.spawn_on(work, &pool.shared.context.runtime);
    }
    pool.run().await
}

pub(super) struct Pool {
    pub(super) shared: Arc<Shared>,
    pub(super) tasks: JoinSet<()>,
    /// Files that have not met their fate.
    pub(super) fates: BTreeMap<FileId, Fate>,
    pub(super) failed: Vec<FetchError>,
    pub(super) failures_in_window: u32,
    /// When a byte last became durable, or a range or file complete.
    pub(super) progress_at: Duration,
    fatal: Option<FetchError>,
    inbox: mpsc::Receiver<Event>,
    connections: JoinSet<usize>,
    /// Numbers of the connections that exist; those from the pace's level up go first.
    seats: BTreeSet<usize>,
    pace: Pace,
    window: (Duration, u64),
    /// How long the limit had held the job up then.
    held: Duration,
    /// When connections were last compared.
    looked_at: Duration,
}

impl Pool {
    fn new(shared: Arc<Shared>, inbox: mpsc::Receiver<Event>, pace: Pace) -> Self {
        let fates = shared.slots.keys().map(|id| (*id, Fate::default())).collect();
        let now = clock::since_boot();
        let window = (now, shared.context.progress.wire());
        let held = shared.context.throttle.held();
        Self {
            shared,
            tasks: JoinSet::new(),
            fates,
            failed: Vec::new(),
            failures_in_window: 0,
            progress_at: now,
            fatal: None,
            inbox,
            connections: JoinSet::new(),
            seats: BTreeSet::new(),
            pace,
            window,
            held,
            looked_at: now,
        }
    }

    async fn run(mut self) -> Result<Outcome, FetchError> {
        self.take_up().await;
        let stop = self.shared.stop.clone();
        let mut windows = interval(WINDOW);
        windows.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.fates.is_empty() && !stop.is_cancelled() {
            self.fill();
            select! {
                () = stop.cancelled() => {}
                Some(event) = self.inbox.recv() => self.take(event).await,
                Some(ended) = self.connections.join_next() => { self.seats.remove(&unwound(ended)); }
                Some(ended) = self.tasks.join_next() => unwound(ended),
                _ = windows.tick() => self.adapt(),
            }
        }
        let unfinished = !self.fates.is_empty();
        self.drain().await;
        match self.fatal {
            Some(error) => Err(error),
            None if unfinished => Err(FetchError::Stopped),
            None => Ok(Outcome { failed: self.failed, safe_level: self.pace.safe_level() }),
        }
    }

    /// Begins what needs no connection: hashing what an earlier run left, files without bytes.
    async fn take_up(&mut self) {
        let ids: Vec<_> = self.fates.keys().copied().collect();
        for id in ids {
            let empty = matches!(*self.shared.slots[&id].place.lock().await, Place::Empty);
            if !empty {
                self.advance(id).await;
            } else if self.shared.entry(id).size == 0 {
                self.shared.put(id, Place::Busy).await;
                self.start_finish(id, None);
            }
        }
    }

    /// Keeps as many connections as the pace allows, while there is anything to fetch.
    fn fill(&mut self) {
        let level = self.shared.level();
        while self.connections.len() < level && self.shared.plan().remaining() > 0 {
            let Some(index) = (0..level).find(|index| self.seats.insert(*index)) else { return };
            let shared = Arc::clone(&self.shared);
            let task = async move {
                connection::work(shared, index).await;
                index
            };
            self.connections.spawn_on(task, &self.shared.context.runtime);
        }
    }

    fn adapt(&mut self) {
        let progress = &self.shared.context.progress;
        let (now, bytes) = (clock::since_boot(), progress.wire());
        let (then, before) = std::mem::replace(&mut self.window, (now, bytes));
        let throttle = &self.shared.context.throttle;
        let held_before = std::mem::replace(&mut self.held, throttle.held());
        let is_held = self.held.saturating_sub(held_before) > now.saturating_sub(then) / HELD_ONE_IN;
        let window = Window {
            span: now.saturating_sub(then),
            bytes: bytes.saturating_sub(before),
            failures: std::mem::take(&mut self.failures_in_window),
            // At a limit, and where the Hub holds us up, more connections bring nothing.
            busy: !is_held
                && !self.shared.context.source.is_held_up()
                && progress.connections() as usize >= self.pace.level(),
            files: self.shared.plan().unfetched(),
        };
        if window.span >= WINDOW / 2 {
            if !is_held {
                // Nor does another connection for a slow one.
                let looked_at = std::mem::replace(&mut self.looked_at, now);
                self.shared.plan().look(now.saturating_sub(looked_at));
            }
            self.shared.set_level(self.pace.observe(&window).min(throttle.connections()));
            // Somebody idle may relieve somebody slow now.
            self.shared.wake.notify_waiters();
        }
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Attempt { file, attempt } => self.attempted(file, attempt).await,
            Event::Checkpointed { file, result } => self.checkpointed(file, result).await,
            Event::Hashed { file, result } => self.hashed(file, result).await,
            Event::Settled { files } => {
                for (file, result) in files {
                    self.finished(file, result).await;
                }
            }
            Event::Finished { file, result } => self.finished(file, result).await,
            Event::Reset { file, result } => self.was_reset(file, result).await,
            Event::Retry { file, serial } => self.retry(file, serial),
        }
        self.shared.wake.notify_waiters();
    }

    /// Ends the job.
    pub(super) fn end(&mut self, error: FetchError) {
        self.fatal.get_or_insert(error);
        self.shared.stop.cancel();
    }

    /// Lets every task see its work through, within bounds: bytes received are claimed before
    /// the end.
    async fn drain(&mut self) {
        self.shared.stop.cancel();
        self.shared.wake.notify_waiters();
        if timeout(DRAIN_WITHIN, self.see_through()).await.is_err() {
            warn!(
                seconds = DRAIN_WITHIN.as_secs(),
                "the disk is too slow to stop; what is not claimed is fetched again"
            );
            self.connections.abort_all();
            self.tasks.abort_all();
        }
    }

    async fn see_through(&mut self) {
        while !(self.connections.is_empty() && self.tasks.is_empty()) {
            if self.connections.is_empty() {
                self.shared.small.over.cancel();
            }
            select! {
                Some(_) = self.inbox.recv() => {}
                Some(ended) = self.connections.join_next() => { unwound(ended); }
                Some(ended) = self.tasks.join_next() => unwound(ended),
            }
        }
        for (id, slot) in &self.shared.slots {
            let Place::Open(file) = &*slot.place.lock().await else { continue };
            if file.unclaimed() == 0 {
                continue;
            }
            let (shared, file) = (Arc::clone(&self.shared), Arc::clone(file));
            let claimed = self.shared.context.blocking.run(move || shared.checkpoint(&file)).await;
            if let Err(error) = claimed {
                let path = &self.shared.entry(*id).path;
                warn!(file = %path, error = in_words(&error), "what came last is not claimed");
            }
        }
    }
}

/// A panic in a task is a panic of the job.
pub(super) fn unwound<T>(ended: Result<T, JoinError>) -> T {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => panic!("a task of the pool was aborted, which nobody does: {error}"),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use tokio::runtime::Handle;

    use super::super::connection::{Attempt, AttemptError};
    use super::super::owned::{MayWrite, OwnershipLost, WriteError};
    use super::*;
    use crate::blocking::Blocking;
    use crate::core::endpoint::Endpoint;
    use crate::core::manifest::FileEntry;
    use crate::core::model_name::ModelName;
    use crate::core::range_set::RangeSet;
    use crate::core::repo::{CommitId, Repo, RepoId, RepoKind};
    use crate::core::verify::tests::lfs_entry;
    use crate::hub::{HubClient, HubConfig};
    use crate::sources::{Blame, HubSource, Problem, ReadError};
    use crate::volume::Volume;
    use crate::volume::partial::{Partial, Resumed};
    use crate::volume::publish::Verified;
    use crate::volume::writer::WriterId;

    const OURS: WriterId = WriterId::new(1, 1);

    /// A job on a fresh volume whose Hub nobody reaches.
    pub(in super::super) fn context(volume: &Volume, published: Arc<std::sync::Mutex<Vec<String>>>) -> Context {
        let config = HubConfig::new(Endpoint::parse("http://127.0.0.1:1").unwrap());
        let repo = Repo { kind: RepoKind::Model, id: RepoId::parse("org/model").unwrap() };
        let hub = Arc::new(HubClient::new(config).unwrap());
        let model = Arc::new(volume.create_model(&ModelName::parse("org/model").unwrap()).unwrap());
        let target = Arc::clone(&model);
        Context {
            source: HubSource::new(hub, repo, CommitId::from_bytes([1; 20])),
            model,
            writer: OURS,
            quarantine: Arc::new(volume.quarantine().unwrap()),
            blocking: Blocking::new(Handle::current(), 2),
            runtime: Handle::current(),
            progress: Arc::default(),
            readback: false,
            retry_for: Some(Duration::ZERO),
            throttle: super::super::throttle::Throttle::default(),
            pages: super::super::shared::Pages::default(),
            may_write: Arc::new(|| Ok(())),
            offline: false,
            publish: Arc::new(move |files| {
                let publish = |verified: Verified| {
                    published.lock().unwrap().push(verified.entry().path.to_string());
                    verified.publish(&target).unwrap();
                    Ok(())
                };
                files.into_iter().map(publish).collect()
            }),
            syncing: Blocking::new(Handle::current(), 2),
            syncs: 2,
        }
    }

    /// What an earlier run left of a file: all of it, claimed, never verified.
    fn whole(context: &Context, entry: &FileEntry, bytes: &[u8]) -> (Partial, RangeSet) {
        let partial = Partial::create(&context.model, entry, OURS).unwrap();
        partial.write_at(0, bytes).unwrap();
        partial.checkpoint(&RangeSet::from(0..entry.size)).unwrap();
        drop(partial);
        let Resumed { partial, durable } = Partial::resume(&context.model, entry, OURS).unwrap().unwrap();
        (partial, durable)
    }

    #[tokio::test]
    async fn a_whole_partial_and_an_empty_file_are_published_without_a_request() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let published = Arc::default();
        let context = context(&volume, Arc::clone(&published));
        let (bytes, none) = (vec![7; 40_000], Vec::new());
        let (full, empty) = (lfs_entry("full.bin", &bytes), lfs_entry("empty.bin", &none));
        let adopted = Some(whole(&context, &full, &bytes));
        let wanted =
            vec![Wanted { id: FileId(0), entry: full, adopted }, Wanted { id: FileId(1), entry: empty, adopted: None }];
        let outcome = fetch(context, wanted, Pace::pinned(2), CancellationToken::new()).await.unwrap();
        assert!(outcome.failed.is_empty());
        let mut names = published.lock().unwrap().clone();
        names.sort();
        assert_eq!(names, ["empty.bin", "full.bin"]);
    }

    /// A job of one file of 40 000 bytes, of which nothing is there.
    pub(in super::super) fn alone(context: Context) -> (Arc<Shared>, mpsc::Receiver<Event>) {
        let (events, inbox) = mpsc::channel(EVENTS_MAX);
        let wanted = vec![Wanted { id: FileId(0), entry: lfs_entry("a.bin", &vec![7; 40_000]), adopted: None }];
        let (small, _) = Smalls::new();
        (Arc::new(Shared::new(context, wanted, 1, events, small, CancellationToken::new())), inbox)
    }

    #[tokio::test]
    async fn nothing_is_claimed_by_an_owner_that_may_not_write() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let mut context = context(&volume, Arc::default());
        let lost = Arc::new(AtomicBool::new(false));
        context.may_write = may_unless(&lost);
        let model = Arc::clone(&context.model);
        let (shared, _inbox) = alone(context);
        let file = shared.create(FileId(0)).unwrap();
        lost.store(true, Relaxed);
        file.write(0, &vec![7; 20_000]).unwrap();
        assert!(matches!(shared.checkpoint(&file), Err(WriteError::Ownership(_))));
        assert_eq!(file.unclaimed(), 20_000);
        drop(file);
        let Resumed { durable, .. } = Partial::resume(&model, shared.entry(FileId(0)), OURS).unwrap().unwrap();
        assert!(durable.is_empty(), "{durable:?}");
    }

    fn may_unless(lost: &Arc<AtomicBool>) -> MayWrite {
        let lost = Arc::clone(lost);
        Arc::new(move || if lost.load(Relaxed) { Err(OwnershipLost) } else { Ok(()) })
    }

    #[tokio::test]
    async fn an_owner_that_lost_the_volume_starts_no_file_over() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let mut context = context(&volume, Arc::default());
        let lost = Arc::new(AtomicBool::new(false));
        context.may_write = may_unless(&lost);
        let partials = context.model.path().join(".muster/partial");
        let (shared, _inbox) = alone(context);
        let file = shared.create(FileId(0)).unwrap();
        file.write(0, &vec![7; 20_000]).unwrap();
        // The new owner took it away, while this process stood still.
        let fenced = std::fs::read_dir(&partials).unwrap().next().unwrap().unwrap().path();
        std::fs::remove_file(&fenced).unwrap();
        lost.store(true, Relaxed);
        assert!(matches!(shared.reopen(file), Err(WriteError::Ownership(_))));
        assert!(matches!(shared.resume(FileId(0)), Err(WriteError::Ownership(_))));
        assert!(matches!(shared.create(FileId(0)), Err(WriteError::Ownership(_))));
        assert_eq!(std::fs::read_dir(&partials).unwrap().count(), 0, "nothing came back");
    }

    #[tokio::test]
    async fn a_file_that_brings_no_byte_is_given_up_after_eight_tries() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let (shared, inbox) = alone(context(&volume, Arc::default()));
        let mut pool = Pool::new(shared, inbox, Pace::pinned(1));
        for tries in 1..=8 {
            assert!(pool.failed.is_empty(), "given up after {tries}");
            let error = ReadError {
                path: pool.shared.entry(FileId(0)).path.clone(),
                range: 0..40_000,
                host: Endpoint::parse("http://127.0.0.1:1").unwrap().origin(),
                problem: Problem::Short { received: 0 },
                blame: Blame::Request,
            };
            let result = Err(AttemptError::Read(error));
            pool.attempted(FileId(0), Attempt { began: clock::since_boot(), reached: 0, progressed: false, result })
                .await;
        }
        assert!(matches!(pool.failed[..], [FetchError::Read { .. }]));
        assert!(pool.fates.is_empty() && pool.shared.plan().remaining() == 0);
    }

    #[tokio::test]
    async fn a_whole_partial_with_wrong_bytes_is_set_aside_and_asked_for_again() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let context = context(&volume, Arc::default());
        let entry = lfs_entry("full.bin", &vec![7; 40_000]);
        let adopted = Some(whole(&context, &entry, &vec![8; 40_000]));
        let progress = Arc::clone(&context.progress);
        let wanted = vec![Wanted { id: FileId(0), entry, adopted }];
        let error = fetch(context, wanted, Pace::pinned(2), CancellationToken::new()).await.unwrap_err();
        assert!(matches!(error, FetchError::Read { .. }), "the Hub was asked: {error}");
        assert_eq!((progress.received(), progress.durable()), (0, 0), "they count for nothing");
    }
}
