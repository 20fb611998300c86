//! The tasks of the pool that are no connections: hashing, finishing, resetting, waiting.
//!
//! Each reports with one event and ends; what that means is decided in `fates`.

use std::sync::Arc;
use std::time::Duration;

use tokio::select;
use tokio::time::sleep;
use tracing::warn;

use super::error::FinishError;
use super::fates::Reset;
use super::file::FileFetch;
use super::judge::Judged;
use super::pool::Pool;
use super::shared::{Event, Place, Shared};
use crate::core::causes::in_words;
use crate::core::manifest::FileEntry;
use crate::core::plan::FileId;
use crate::core::verify::Mismatch;
use crate::volume::publish::{Sealed, Verified};

impl Pool {
    /// Takes a file as far as it can go now: resets it, hashes what waits on disk, finishes it
    /// when whole. The last connection to let go of a file gets it there.
    pub(super) async fn advance(&mut self, id: FileId) {
        let Some(fate) = self.fates.get_mut(&id) else { return };
        let file = match &*self.shared.slots[&id].place.lock().await {
            Place::Open(file) => Arc::clone(file),
            Place::Empty | Place::Busy => return,
        };
        if let Some(position) = file.hashed() {
            self.shared.plan().hashed(id, position);
        }
        let (reset, whole) = (fate.reset, file.is_whole());
        if reset.is_none() && !whole {
            if !fate.hashing && file.hash_lags() {
                fate.hashing = true;
                self.start_hashing(id, file);
            }
            return;
        }
        drop(file);
        let Some(file) = self.shared.take_alone(id).await else { return };
        match reset {
            Some(reset) => self.start_reset(id, Some(file), reset),
            None => self.start_finish(id, Some(file)),
        }
    }

    fn start_hashing(&mut self, id: FileId, file: Arc<FileFetch>) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let _one = shared.hashing.acquire().await;
            let stop = shared.stop.clone();
            let result = shared.context.blocking.run(move || file.hash_from_disk(&stop)).await;
            let _ = shared.events.send(Event::Hashed { file: id, result }).await;
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    /// Judges a whole file and publishes it; one without bytes is made first.
    pub(super) fn start_finish(&mut self, id: FileId, file: Option<FileFetch>) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let reads = shared.context.readback || file.as_ref().is_some_and(FileFetch::hash_lags);
            let _one = if reads { shared.hashing.acquire().await.ok() } else { None };
            let finishing = Arc::clone(&shared);
            let result = shared.context.blocking.run(move || finish(&finishing, id, file)).await;
            let _ = shared.events.send(Event::Finished { file: id, result }).await;
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    /// Makes a file ready to start again; one that nobody holds is taken up from disk.
    pub(super) fn start_reset(&mut self, id: FileId, file: Option<FileFetch>, reset: Reset) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            let working = Arc::clone(&shared);
            let work = move || match (reset, file) {
                (Reset::Reopen, Some(file)) => working.reopen(file).map(|reopened| Some(Box::new(reopened))),
                (Reset::Reopen, None) => working.resume(id).map(|resumed| Some(Box::new(resumed))),
                (Reset::Discard(_), file) => Ok(file.map_or(Ok(()), FileFetch::discard).map(|()| None)?),
            };
            let result = shared.context.blocking.run(work).await;
            let _ = shared.events.send(Event::Reset { file: id, result }).await;
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }

    pub(super) fn start_pause(&mut self, id: FileId, serial: u64, pause: Duration) {
        let shared = Arc::clone(&self.shared);
        let task = async move {
            select! {
                () = sleep(pause) => { let _ = shared.events.send(Event::Retry { file: id, serial }).await; }
                () = shared.stop.cancelled() => {}
            }
        };
        self.tasks.spawn_on(task, &self.shared.context.runtime);
    }
}

/// From a whole file to its final name, or to quarantine. Blocks.
fn finish(shared: &Shared, id: FileId, file: Option<FileFetch>) -> Result<(), FinishError> {
    let file = match file {
        Some(file) => file,
        None => shared.create(id)?,
    };
    let claim = |file: &FileFetch| shared.checkpoint(file);
    let verified = shared.right(id, file.finish(shared.context.readback, claim, &shared.stop)?)?;
    let published = (shared.context.publish)(vec![verified]).pop();
    Ok(published.unwrap_or(Ok(()))?)
}

impl Shared {
    /// The file, if its bytes are right; wrong ones go to quarantine. Blocks.
    pub(super) fn right(&self, id: FileId, judged: Judged) -> Result<Verified, FinishError> {
        match judged {
            Judged::Right(verified) => Ok(verified),
            Judged::Wrong { mismatch, sealed } => Err(self.set_aside(self.entry(id), sealed, mismatch)),
        }
    }

    fn set_aside(&self, entry: &FileEntry, sealed: Sealed, mismatch: Mismatch) -> FinishError {
        match sealed.quarantine(&self.context.quarantine) {
            Ok(kept) => {
                warn!(file = %entry.path, kept = %kept.path().display(), %mismatch, "wrong bytes were set aside");
            }
            Err(error) => warn!(file = %entry.path, error = in_words(&error), "wrong bytes could not be set aside"),
        }
        FinishError::Mismatch(mismatch)
    }
}
