//! sled, held at arm's length.
//!
//! Owns every call into the engine. Invariant: no panic of the engine passes, neither while
//! opening, working nor closing, and none is told as a defect of this program; after the first
//! failure nothing more is asked of it, because its errors stay until it is opened again, and
//! after a panic its insides are anybody's guess.
//!
//! Its periodic flusher is off: a panic in that thread would hang the closing of the database for
//! ever. The owner flushes. Its `flush` writes to the operating system and is no `fsync`, which
//! is enough for working memory.

use std::any::Any;
use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::copy::Copy;
use super::error::{Fault, StoreError, Unusable};

/// The default would be 1 GiB.
const CACHE_BYTES: u64 = 16 << 20;

/// How long the engine's own lock may outlive the last holder of ours: its threads let go of the
/// file a moment after the database is closed.
const LOCK_WAIT: Duration = Duration::from_millis(20);
const LOCK_ATTEMPTS: usize = 50;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread now is the engine's. It panics on some kinds of damage; that is
/// caught, and told as what it means for the store.
#[must_use]
pub fn panics_inside() -> bool {
    INSIDE.get() || thread::current().name().is_some_and(|name| name.starts_with("sled-"))
}

/// An open database, or none.
pub(super) struct Engine {
    /// Taken only by closing. The database lives as long as its tree does.
    records: Option<sled::Tree>,
    failed: AtomicBool,
}

/// Why a database does not open.
pub(super) enum Refusal {
    /// Someone else's lock is on it.
    Locked,
    /// The directory is in no state to hold any database.
    Directory(io::Error),
    /// This database is unusable; another one may not be.
    Contents(Unusable),
}

impl Engine {
    /// Opens the database in `dir`, lets `prepare` look at it and change it, and reads every
    /// record once, so that damage shows now and not in the middle of the work.
    ///
    /// All of it is tried with a copy first: one that is refused is left as it was found.
    pub(super) fn open<T>(
        dir: &Path,
        mut prepare: impl FnMut(&sled::Db) -> Result<T, Unusable>,
    ) -> Result<(Self, T), Refusal> {
        if let Some(copy) = settled_copy(dir)?
            && let Err(refusal @ Refusal::Contents(_)) = Self::open_at(&copy.state(), &mut prepare)
        {
            return Err(refusal);
        }
        Self::open_at(dir, prepare)
    }

    fn open_at<T>(dir: &Path, prepare: impl FnOnce(&sled::Db) -> Result<T, Unusable>) -> Result<(Self, T), Refusal> {
        let db = open_unlocked(dir)?;
        let opened = guarded(|| {
            let made = prepare(&db)?;
            let records = db.open_tree("records").and_then(|records| read_all(&records).map(|()| records));
            let records = records.map_err(|error| Unusable::Unreadable(Fault::Engine(error)))?;
            Ok((records, made))
        });
        close(db);
        match opened {
            Ok(Ok((records, made))) => Ok((Self { records: Some(records), failed: AtomicBool::new(false) }, made)),
            Ok(Err(Unusable::Unreadable(Fault::Engine(error)))) => Err(sort(error)),
            Ok(Err(why)) => Err(Refusal::Contents(why)),
            Err(fault) => Err(Refusal::Contents(Unusable::Unreadable(fault))),
        }
    }

    /// No database at all: it fails from the start.
    pub(super) const fn none() -> Self {
        Self { records: None, failed: AtomicBool::new(true) }
    }

    /// Does `work` on the records. `during` completes "failed to …".
    ///
    /// # Errors
    /// [`StoreError::Failed`], from the first failure on for every call.
    pub(super) fn run<T>(
        &self,
        during: &'static str,
        work: impl FnOnce(&sled::Tree) -> Result<T, sled::Error>,
    ) -> Result<T, StoreError> {
        let records = self.records.as_ref().filter(|_| !self.failed.load(Ordering::Acquire));
        let records = records.ok_or(StoreError::Failed { during, fault: Fault::Earlier })?;
        let done = guarded(|| work(records)).and_then(|done| done.map_err(Fault::Engine));
        done.map_err(|fault| {
            self.failed.store(true, Ordering::Release);
            StoreError::Failed { during, fault }
        })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Closing flushes, and panics where that fails. What was not flushed is rebuilt.
        if let Some(records) = self.records.take() {
            close(records);
        }
    }
}

/// A copy that the engine may change, taken while nobody writes to the database; none where there is no database or
/// it cannot be copied.
fn settled_copy(dir: &Path) -> Result<Option<Copy>, Refusal> {
    Ok(settled(dir)?.and_then(|_lock| Copy::beside(dir)))
}

fn open_unlocked(dir: &Path) -> Result<sled::Db, Refusal> {
    for _ in 0..LOCK_ATTEMPTS {
        drop(settled(dir)?);
        let config = sled::Config::new().path(dir).cache_capacity(CACHE_BYTES).mode(sled::Mode::LowSpace);
        match guarded(|| config.flush_every_ms(None).open()) {
            Ok(Ok(db)) => return Ok(db),
            Ok(Err(sled::Error::Io(error))) if is_lock_trouble(&error) => thread::sleep(LOCK_WAIT),
            Ok(Err(error)) => return Err(sort(error)),
            Err(fault) => return Err(Refusal::Contents(Unusable::Unreadable(fault))),
        }
    }
    Err(Refusal::Locked)
}

/// The database's lock, once nothing in the directory is written in part only. None where there is no database.
fn settled(dir: &Path) -> Result<Option<File>, Refusal> {
    let lock = lock(dir)?;
    drop_half_written(dir, lock.is_some()).map_err(|error| sort(error.into()))?;
    Ok(lock)
}

/// The engine's own lock, which it takes itself when it opens: while it is held nobody writes to the database. None
/// where there is no database.
fn lock(dir: &Path) -> Result<Option<File>, Refusal> {
    for _ in 0..LOCK_ATTEMPTS {
        match File::open(dir.join("db")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Ok(db) if db.try_lock().is_err() => thread::sleep(LOCK_WAIT),
            opened => return opened.map(Some).map_err(|error| sort(error.into())),
        }
    }
    Err(Refusal::Locked)
}

/// Removes what the engine has written only in part when it was killed. It would take that for damage, though nothing
/// depends on it yet: it reads a snapshot before that has its final name, and writes its configuration in two steps,
/// before there is a database. The caller holds the engine's lock, if there is a database.
fn drop_half_written(dir: &Path, has_database: bool) -> io::Result<()> {
    let gone = |path: &Path| match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    if !has_database {
        gone(&dir.join("conf"))?;
    }
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let is_half = |name: &str| name.starts_with("snap.") && name.ends_with(".generating");
        if entry.file_name().to_str().is_some_and(is_half) {
            gone(&entry.path())?;
        }
    }
    Ok(())
}

/// sled tells a lock that is held by words only.
fn is_lock_trouble(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Other && error.to_string().starts_with("could not acquire lock")
}

fn read_all(records: &sled::Tree) -> Result<(), sled::Error> {
    records.iter().try_for_each(|record| record.map(drop))
}

/// Tells trouble with the place from trouble with the contents: where no database could be made,
/// setting one aside helps nobody.
fn sort(error: sled::Error) -> Refusal {
    const PLACE: [Errno; 9] = [
        Errno::NOSPC,
        Errno::DQUOT,
        Errno::ACCESS,
        Errno::PERM,
        Errno::ROFS,
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::STALE,
    ];
    match error {
        sled::Error::Io(error) if Errno::from_io_error(&error).is_some_and(|errno| PLACE.contains(&errno)) => {
            Refusal::Directory(error)
        }
        error => Refusal::Contents(Unusable::Unreadable(Fault::Engine(error))),
    }
}

fn guarded<T>(work: impl FnOnce() -> T) -> Result<T, Fault> {
    let before = INSIDE.replace(true);
    // Whatever the panic left behind is not looked at again: see `failed`.
    let done = catch_unwind(AssertUnwindSafe(work));
    INSIDE.set(before);
    done.map_err(|payload| Fault::Panicked { message: words(payload.as_ref()) })
}

fn close(database: impl Sized) {
    if let Err(fault) = guarded(|| drop(database)) {
        tracing::debug!(%fault, "closing the state database");
    }
}

fn words(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a word").to_owned()
}
