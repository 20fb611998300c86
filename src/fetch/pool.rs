//! The pool: all connections of one job, for as long as the job lasts.
//!
//! Owns every task of the job. The connections fetch and write; this loop keeps as many of them
//! as the pace allows, takes what they report to `fates`, and sees them through at the end.
//! Invariant: when [`fetch`] returns, all tasks have ended or were given their time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::connection;
use super::error::{FetchError, in_words};
use super::fates::Fate;
use super::shared::{Context, Event, Outcome, Place, Shared, Wanted};
use crate::clock;
use crate::core::pace::{Pace, Window};
use crate::core::plan::FileId;

/// How often the number of connections is reconsidered.
const WINDOW: Duration = Duration::from_secs(1);
/// How long a stop may sync and claim what came.
const DRAIN_WITHIN: Duration = Duration::from_secs(15);
/// Events that wait for the pool before those who report do.
const EVENTS_MAX: usize = 64;

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
    let shared = Arc::new(Shared::new(context, wanted, pace.level(), events, stop.child_token()));
    Pool::new(shared, inbox, pace).run().await
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
}

impl Pool {
    fn new(shared: Arc<Shared>, inbox: mpsc::Receiver<Event>, pace: Pace) -> Self {
        let fates = shared.slots.keys().map(|id| (*id, Fate::default())).collect();
        let now = clock::since_boot();
        let window = (now, shared.context.progress.wire());
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
        let window = Window {
            span: now.saturating_sub(then),
            bytes: bytes.saturating_sub(before),
            failures: std::mem::take(&mut self.failures_in_window),
            busy: progress.connections() as usize >= self.pace.level(),
        };
        if window.span >= WINDOW / 2 {
            self.shared.set_level(self.pace.observe(&window));
        }
    }

    async fn take(&mut self, event: Event) {
        match event {
            Event::Attempt { file, attempt } => self.attempted(file, attempt).await,
            Event::Hashed { file, result } => self.hashed(file, result).await,
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
fn unwound<T>(ended: Result<T, JoinError>) -> T {
    ended.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(error) => panic!("a task of the pool was aborted, which nobody does: {error}"),
    })
}
