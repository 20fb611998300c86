//! Small files: received into memory, and written, synced and named in batches.
//!
//! A file of a few kilobytes costs two waits for the disk, one for its bytes and one for its name; one
//! after the other they would be most of the time of a repository of small files. So what came whole waits
//! here for the batch before it: all files of a batch are synced at the same time, which the file system
//! does with few commits of its journal, and their names share one sync a folder. Invariants: only bytes
//! with the right digest come here; each is synced before its name is given (P1, P3); what waits is bounded
//! in bytes (P8). Everything else, and every file that broke off, takes the way of large files.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::connection::{AttemptError, Stream};
use super::error::FinishError;
use super::judge::judge;
use super::owned::begin;
use super::shared::{Event, Place, Shared};
use crate::clock;
use crate::core::plan::FileId;
use crate::core::receipt::Proved;
use crate::core::verify::{FileHasher, Proof};
use crate::volume::VolumeError;
use crate::volume::publish::Verified;
use crate::volume::whole::{WholeFiles, Written};

/// Largest file that is held in memory: so much, at most, for each connection.
const SMALL_MAX: u64 = 256 << 10;
/// Batches under way at a time.
pub(super) const WORKERS: usize = 2;
/// What may wait for a batch to be written: in units of [`UNIT`] bytes.
const ROOM: usize = 2 << 10;
const UNIT: u64 = 1 << 10;

/// A small file with the right bytes.
#[derive(Debug)]
pub(super) struct Small {
    id: FileId,
    bytes: Vec<u8>,
    proof: Proof,
    _room: OwnedSemaphorePermit,
}

/// The way to the batches.
pub(super) struct Smalls {
    queue: mpsc::UnboundedSender<Small>,
    /// What may be in the queue.
    room: Arc<Semaphore>,
    /// Cancelled when nothing can come any more.
    pub(super) over: CancellationToken,
}

impl Smalls {
    /// And its other end, which [`work`] takes.
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Small>) {
        let (queue, inbox) = mpsc::unbounded_channel();
        (Self { queue, room: Arc::new(Semaphore::new(ROOM)), over: CancellationToken::new() }, inbox)
    }
}

/// Each file of a batch, and how far it came.
type Each<T> = Vec<(FileId, Result<T, FinishError>)>;

/// What became of an answer.
pub(super) enum Came<'a> {
    /// It is no small file: nothing was taken yet.
    Large(Box<Stream<'a>>),
    /// Bytes from the first on that are not all of the file, or not the file's, and why no more came.
    Part(Vec<u8>, Result<(), Box<AttemptError>>),
}

/// Receives a small file of which nothing is there yet; none when it waits for its batch.
pub(super) async fn receive(mut stream: Stream<'_>) -> Option<Came<'_>> {
    let (shared, assignment) = (stream.shared, stream.assignment);
    let entry = shared.entry(assignment.file);
    let alone = assignment.range == (0..entry.size) && entry.size <= SMALL_MAX;
    if !alone || !matches!(*shared.slots[&assignment.file].place.lock().await, Place::Empty) {
        return Some(Came::Large(Box::new(stream)));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(entry.size).unwrap_or(0));
    let result = gather(&mut stream, &mut bytes).await;
    if result.is_err() || bytes.len() as u64 != entry.size {
        return Some(Came::Part(bytes, result.map_err(Box::new)));
    }
    let mut hasher = FileHasher::new(entry);
    hasher.update(&bytes);
    let Ok(proof) = hasher.finish() else { return Some(Came::Part(bytes, Ok(()))) };
    let bytes = hand_over(shared, assignment.file, bytes, proof).await?;
    Some(Came::Part(bytes, Ok(())))
}

async fn gather(stream: &mut Stream<'_>, bytes: &mut Vec<u8>) -> Result<(), AttemptError> {
    while let Some((_, came)) = stream.next(None).await? {
        bytes.extend_from_slice(&came);
    }
    Ok(())
}

/// Gives the bytes back when the batches cannot have them: the file may have been started otherwise
/// while it was received, or the job may be over.
async fn hand_over(shared: &Shared, id: FileId, bytes: Vec<u8>, proof: Proof) -> Option<Vec<u8>> {
    let size = proof.size();
    let room = Arc::clone(&shared.small.room).acquire_many_owned(units(size)).await;
    let mut place = shared.slots[&id].place.lock().await;
    let (Ok(room), Place::Empty) = (room, &*place) else { return Some(bytes) };
    let small = Small { id, bytes, proof, _room: room };
    if let Err(mpsc::error::SendError(small)) = shared.small.queue.send(small) {
        return Some(small.bytes);
    }
    *place = Place::Busy;
    shared.context.progress.came(size, clock::since_boot());
    None
}

fn units(size: u64) -> u32 {
    u32::try_from(size.div_ceil(UNIT)).unwrap_or(u32::MAX).max(1)
}

/// Settles small files batch by batch, until no connection is left that could bring one. Two of these take
/// turns: what one writes keeps coming while the other waits for the disk.
pub(super) async fn work(shared: Arc<Shared>, inbox: Arc<Mutex<mpsc::UnboundedReceiver<Small>>>) {
    let most = (shared.context.syncs / WORKERS).max(1);
    loop {
        let mut batch = Vec::new();
        let mut inbox = inbox.lock().await;
        tokio::select! {
            biased;
            came = inbox.recv_many(&mut batch, most) => if came == 0 { return },
            () = shared.small.over.cancelled(), if !inbox.is_closed() => {
                inbox.close();
                continue;
            }
        }
        drop(inbox);
        let files = settle(&shared, batch).await;
        let _ = shared.events.send(Event::Settled { files }).await;
    }
}

/// Writes, syncs, proves where that is asked for, and publishes.
async fn settle(shared: &Arc<Shared>, batch: Vec<Small>) -> Each<()> {
    let working = Arc::clone(shared);
    let written = shared.context.blocking.run(move || write(&working, batch)).await;
    let verifying = written.into_iter().map(|(id, written)| {
        let working = Arc::clone(shared);
        let verify = move || written.and_then(|(written, proof)| verify(&working, id, written, proof));
        (id, shared.context.syncing.start(verify))
    });
    let verifying: Vec<_> = verifying.collect();
    let (mut ids, mut right, mut settled) = (Vec::new(), Vec::new(), Vec::new());
    for (id, verified) in verifying {
        match verified.wait().await {
            Ok(verified) => {
                ids.push(id);
                right.push(verified);
            }
            Err(error) => settled.push((id, Err(error))),
        }
    }
    if !right.is_empty() {
        let publish = Arc::clone(&shared.context.publish);
        let published = shared.context.blocking.run(move || publish(right)).await;
        settled.extend(ids.into_iter().zip(published.into_iter().map(|done| done.map_err(FinishError::Publish))));
    }
    settled
}

/// Writes all files of a batch, if this process may: nothing is durable yet. Blocks.
fn write(shared: &Shared, batch: Vec<Small>) -> Each<(Written, Proof)> {
    let first = batch.first().map(|small| small.id);
    let begun = begin(&shared.context.may_write, || Ok(write_all(shared, batch)), discard);
    // It ends the job, so one file tells it.
    begun.unwrap_or_else(|lost| first.map(|id| (id, Err(lost.into()))).into_iter().collect())
}

fn write_all(shared: &Shared, batch: Vec<Small>) -> Each<(Written, Proof)> {
    let context = &shared.context;
    let mut files = None;
    let mut write = |id, bytes: &[u8]| {
        let files = match &mut files {
            Some(files) => files,
            none => none.insert(WholeFiles::of(&context.model, context.writer)?),
        };
        files.write(shared.entry(id), bytes)
    };
    let each = batch.into_iter().map(|Small { id, bytes, proof, .. }| {
        let written = write(id, &bytes).inspect_err(|_| lost(shared, id));
        (id, written.map(|written| (written, proof)).map_err(FinishError::Volume))
    });
    each.collect()
}

fn discard(written: Each<(Written, Proof)>) -> Result<(), VolumeError> {
    written.into_iter().filter_map(|(_, written)| written.ok()).try_for_each(|(written, _)| written.discard())
}

/// Makes one file durable, and sees to its proof. Blocks.
fn verify(shared: &Shared, id: FileId, written: Written, proof: Proof) -> Result<Verified, FinishError> {
    let context = &shared.context;
    let sealed = written.seal().inspect_err(|_| lost(shared, id))?;
    context.progress.became_durable(shared.entry(id).size);
    let known = (!context.readback).then_some((Ok(proof), Proved::Stream));
    shared.right(id, judge(sealed, known, context.pages, &context.progress, &shared.stop)?)
}

/// Nothing of the file is left.
fn lost(shared: &Shared, id: FileId) {
    shared.context.progress.lost(shared.entry(id).size, 0);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::super::owned::OwnershipLost;
    use super::super::pool::tests::{alone, context};
    use super::*;
    use crate::volume::Volume;

    #[tokio::test]
    async fn a_batch_that_was_written_by_who_lost_the_volume_meanwhile_goes_again() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let mut context = context(&volume, Arc::default());
        let partials = context.model.path().join(".muster/partial");
        let count = move || std::fs::read_dir(&partials).unwrap().count();
        let (asked, there) = (AtomicBool::new(false), count.clone());
        context.may_write = Arc::new(move || {
            if asked.swap(true, Relaxed) {
                assert_eq!(there(), 1, "asked again after it was written");
                return Err(OwnershipLost);
            }
            Ok(())
        });
        let (shared, _inbox) = alone(context);
        let bytes = vec![7; 40_000];
        let mut hasher = FileHasher::new(shared.entry(FileId(0)));
        hasher.update(&bytes);
        let proof = hasher.finish().unwrap();
        let room = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let ended = write(&shared, vec![Small { id: FileId(0), bytes, proof, _room: room }]);
        assert!(matches!(ended[..], [(FileId(0), Err(FinishError::Ownership(_)))]));
        assert_eq!(count(), 0);
    }
}
