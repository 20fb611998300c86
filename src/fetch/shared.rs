//! What the connections and the pool of one job share.
//!
//! Owns the place of every file: not begun, open for connections, or busy with what needs it
//! alone. Invariant: a file has at most one [`FileFetch`] at any time, and nobody makes a new one
//! while the old one is being finished or reset.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::connection::{Attempt, AttemptError};
use super::error::{FetchError, FinishError, PublishError};
use super::file::FileFetch;
use super::owned::{MayWrite, WriteError, begin};
use super::progress::Progress;
use super::small::Smalls;
use super::throttle::Throttle;
use crate::blocking::Blocking;
use crate::core::manifest::FileEntry;
use crate::core::plan::{FileId, Plan, Way};
use crate::core::range_set::RangeSet;
use crate::parallel::cores;
use crate::sources::HubSource;
use crate::volume::partial::{Partial, Resumed};
use crate::volume::publish::Verified;
use crate::volume::quarantine::Quarantine;
use crate::volume::writer::WriterId;
use crate::volume::{ModelDir, VolumeError};

/// Gives verified files their final names and remembers them; answers for each, in their order. Blocks.
pub type Publish = Arc<dyn Fn(Vec<Verified>) -> Vec<Result<(), PublishError>> + Send + Sync>;

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
    /// How fast bytes may come.
    pub throttle: Throttle,
    /// What becomes of the pages of what is fetched.
    pub pages: Pages,
    /// Asked before each claim, and about each partial that is begun.
    pub may_write: MayWrite,
    /// Called with each verified file, or a batch of small ones.
    pub publish: Publish,
    /// For the syncs of small files: they wait for the disk together.
    pub syncing: Blocking,
    /// How many small files may be open to be synced.
    pub syncs: usize,
    /// Whether nobody may be asked: everything is here, and only to be proved.
    pub offline: bool,
}

/// What becomes of the pages of what is fetched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pages {
    /// Large files are written past the cache, where the file system is known to do that well.
    #[default]
    Past,
    /// They stay in the cache: somebody on this host will read them.
    Kept,
    /// They leave the cache as soon as they were synced and hashed.
    GivenBack,
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

impl Wanted {
    /// Whether something of it is still to be fetched.
    #[must_use]
    pub fn lacks_bytes(&self) -> bool {
        self.adopted.as_ref().is_none_or(|(_, durable)| !durable.is_whole(self.entry.size))
    }
}

/// How fetching ended.
#[derive(Debug)]
pub struct Outcome {
    /// Files given up; empty when everything was published.
    pub failed: Vec<FetchError>,
    /// The number of connections that carried best.
    pub safe_level: usize,
}

pub(super) struct Shared {
    pub(super) context: Context,
    pub(super) slots: BTreeMap<FileId, Slot>,
    /// Bounds how many files are hashed from disk at a time, so that syncs find a thread.
    pub(super) hashing: Semaphore,
    pub(super) wake: Arc<Notify>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) stop: CancellationToken,
    pub(super) small: Smalls,
    plan: Mutex<Plan>,
    level: AtomicUsize,
}

/// One file of the job.
pub(super) struct Slot {
    pub(super) entry: FileEntry,
    pub(super) place: tokio::sync::Mutex<Place>,
}

/// Where a file is in its life.
pub(super) enum Place {
    /// Nothing of it is on disk.
    Empty,
    /// Connections may write to it.
    Open(Arc<FileFetch>),
    /// It is being finished or reset, or met its fate.
    Busy,
}

/// A file that goes on, and its durable ranges.
pub(super) type Reopened = (FileFetch, RangeSet);

/// What tasks tell the pool.
pub(super) enum Event {
    /// An assignment ended.
    Attempt { file: FileId, attempt: Attempt },
    /// A checkpoint that its connection did not wait for ended.
    Checkpointed { file: FileId, result: Result<(), AttemptError> },
    /// Bytes on disk were hashed.
    Hashed { file: FileId, result: Result<(), VolumeError> },
    /// Small files were published, or not.
    Settled { files: Vec<(FileId, Result<(), FinishError>)> },
    /// A whole file was judged, and published if it was right.
    Finished { file: FileId, result: Result<(), FinishError> },
    /// A file was made ready to start again.
    Reset { file: FileId, result: Result<Option<Box<Reopened>>, WriteError> },
    /// A failed file may be tried again, if this is the last that was said about it.
    Retry { file: FileId, serial: u64 },
}

impl Shared {
    pub(super) fn new(
        context: Context,
        wanted: Vec<Wanted>,
        level: usize,
        events: mpsc::Sender<Event>,
        small: Smalls,
        stop: CancellationToken,
    ) -> Self {
        let mut plan = Plan::default();
        let mut slots = BTreeMap::new();
        for Wanted { id, entry, adopted } in wanted {
            let durable = adopted.as_ref().map(|(_, durable)| durable.clone()).unwrap_or_default();
            context.progress.found(durable.len_bytes());
            let missing = durable.missing(entry.size);
            plan.add(id, entry.size, missing, Way::Ranges);
            let place = match adopted {
                Some((partial, durable)) => {
                    let file = FileFetch::new(partial, durable, Arc::clone(&context.progress));
                    Place::Open(Arc::new(file.with_pages(context.pages)))
                }
                None => Place::Empty,
            };
            slots.insert(id, Slot { entry, place: tokio::sync::Mutex::new(place) });
        }
        Self {
            context,
            slots,
            hashing: Semaphore::new(cores()),
            wake: Arc::default(),
            events,
            stop,
            small,
            plan: Mutex::new(plan),
            level: AtomicUsize::new(level),
        }
    }

    pub(super) fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections there may be.
    pub(super) fn level(&self) -> usize {
        self.level.load(Relaxed)
    }

    pub(super) fn set_level(&self, level: usize) {
        self.level.store(level, Relaxed);
    }

    pub(super) fn entry(&self, id: FileId) -> &FileEntry {
        &self.slots[&id].entry
    }

    /// The file as connections use it, made when its first byte is wanted.
    pub(super) async fn open(self: &Arc<Self>, id: FileId) -> Result<Arc<FileFetch>, AttemptError> {
        let mut place = self.slots[&id].place.lock().await;
        match &*place {
            Place::Open(file) => return Ok(Arc::clone(file)),
            Place::Busy => return Err(AttemptError::Void),
            Place::Empty => {}
        }
        let shared = Arc::clone(self);
        let created = self.context.blocking.run(move || shared.create(id));
        let file = Arc::new(created.await?);
        *place = Place::Open(Arc::clone(&file));
        Ok(file)
    }

    /// Begins a file, if this process may. Blocks.
    pub(super) fn create(&self, id: FileId) -> Result<FileFetch, WriteError> {
        let context = &self.context;
        let make = || Partial::create_anew(&context.model, self.entry(id), context.writer);
        let partial = begin(&context.may_write, make, Partial::discard)?;
        let file = FileFetch::new(partial, RangeSet::new(), Arc::clone(&context.progress));
        Ok(file.with_pages(context.pages))
    }

    /// Takes a file up from what its claims prove, or begins it, if this process may. Blocks.
    pub(super) fn resume(&self, id: FileId) -> Result<Reopened, WriteError> {
        let context = &self.context;
        (context.may_write)()?;
        let Some(Resumed { partial, durable }) = Partial::resume(&context.model, self.entry(id), context.writer)?
        else {
            return Ok((self.create(id)?, RangeSet::new()));
        };
        context.progress.found(durable.len_bytes());
        let file = FileFetch::new(partial, durable.clone(), Arc::clone(&context.progress));
        Ok((file.with_pages(context.pages), durable))
    }

    /// Starts a file over with what its claims prove, if this process may. Blocks.
    pub(super) fn reopen(&self, file: FileFetch) -> Result<Reopened, WriteError> {
        (self.context.may_write)()?;
        Ok(file.reopen()?)
    }

    /// Takes a file that nobody else holds out of its place, which is busy from then on.
    pub(super) async fn take_alone(&self, id: FileId) -> Option<FileFetch> {
        let mut place = self.slots[&id].place.lock().await;
        match std::mem::replace(&mut *place, Place::Busy) {
            Place::Open(file) => match Arc::try_unwrap(file) {
                Ok(file) => return Some(file),
                Err(file) => *place = Place::Open(file),
            },
            other => *place = other,
        }
        None
    }

    pub(super) async fn put(&self, id: FileId, place: Place) {
        *self.slots[&id].place.lock().await = place;
    }

    /// Makes what came of a file durable and claims it, if this process may. Blocks. Returns how
    /// many bytes became durable.
    pub(super) fn checkpoint(&self, file: &FileFetch) -> Result<u64, WriteError> {
        (self.context.may_write)()?;
        Ok(file.checkpoint()?)
    }
}
