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
use tokio::time::interval;
use tokio_util::sync::CancellationToken;

use super::connection::{self, AttemptError};
use super::error::FinishError;
use super::file;
use super::shared::{Event, Place, Shared};
use super::throttle::Paced;
use crate::clock;
use crate::core::pace::WINDOW;
use crate::core::plan::{Assignment, FileId};
use crate::core::receipt::Proved;
use crate::core::verify::{FileHasher, Proof};
use crate::sources::Body;
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
#[derive(Debug)]
pub(super) enum Came {
    /// It is no small file.
    Body(Body),
    /// A small file, which waits for its batch.
    Whole,
    /// Bytes from the first on that are not all of the file, or not the file's, and why no more came.
    Part(Vec<u8>, Result<(), AttemptError>),
}

/// Receives a small file of which nothing is there yet.
pub(super) async fn receive(shared: &Shared, assignment: &Assignment, index: usize, body: Body) -> Came {
    let entry = shared.entry(assignment.file);
    let alone = assignment.range == (0..entry.size) && entry.size <= SMALL_MAX;
    if !alone || !matches!(*shared.slots[&assignment.file].place.lock().await, Place::Empty) {
        return Came::Body(body);
    }
    let mut bytes = Vec::with_capacity(usize::try_from(entry.size).unwrap_or(0));
    let result = gather(shared, assignment, index, body, &mut bytes).await;
    if result.is_err() || bytes.len() as u64 != entry.size {
        return Came::Part(bytes, result);
    }
    let mut hasher = FileHasher::new(entry);
    hasher.update(&bytes);
    let Ok(proof) = hasher.finish() else { return Came::Part(bytes, Ok(())) };
    hand_over(shared, assignment, bytes, proof).await
}

async fn gather(
    shared: &Shared,
    assignment: &Assignment,
    index: usize,
    body: Body,
    bytes: &mut Vec<u8>,
) -> Result<(), AttemptError> {
    let mut body = Paced::new(body, shared.context.throttle.clone());
    let mut looks = interval(WINDOW);
    loop {
        let reached = bytes.len() as u64;
        let unwanted = || index >= shared.level() || shared.plan().end_of(assignment.id) <= reached;
        let Some((at, came)) = connection::next(shared, &mut body, &mut looks, None, unwanted).await? else {
            return Ok(());
        };
        let (ours, end) = {
            let mut plan = shared.plan();
            (plan.take(assignment.id, at, came.len() as u64), plan.end_of(assignment.id))
        };
        if end == 0 {
            return Err(AttemptError::Void);
        }
        let ours = usize::try_from(ours).unwrap_or(usize::MAX).min(came.len());
        bytes.extend_from_slice(&came[..ours]);
        if ours < came.len() {
            // Somebody else fetches the rest.
            return Ok(());
        }
    }
}

async fn hand_over(shared: &Shared, assignment: &Assignment, bytes: Vec<u8>, proof: Proof) -> Came {
    let room = Arc::clone(&shared.small.room).acquire_many_owned(units(proof.size())).await;
    let mut place = shared.slots[&assignment.file].place.lock().await;
    // The file may have been started otherwise while it was received, or the job may be over.
    let (Ok(room), Place::Empty) = (room, &*place) else { return Came::Part(bytes, Ok(())) };
    let small = Small { id: assignment.file, bytes, proof, _room: room };
    if let Err(mpsc::error::SendError(small)) = shared.small.queue.send(small) {
        return Came::Part(small.bytes, Ok(()));
    }
    *place = Place::Busy;
    shared.context.progress.came(shared.entry(assignment.file).size, clock::since_boot());
    Came::Whole
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
    let context = &shared.context;
    let files = match (context.may_write)() {
        Ok(()) => WholeFiles::of(&context.model, context.writer).map_err(FinishError::Volume),
        Err(lost) => Err(FinishError::Ownership(lost)),
    };
    let files = match files {
        Ok(files) => files,
        // What holds for all is told of one: it ends the job.
        Err(error) => return batch.into_iter().take(1).map(|small| small.id).zip([Err(error)]).collect(),
    };
    let write = |Small { id, bytes, proof, .. }| {
        let written = files.write(shared.entry(id), &bytes).map_err(FinishError::Unwritten);
        (id, written.map(|written| (written, proof)))
    };
    batch.into_iter().map(write).collect()
}

/// Makes one file durable, and sees to its proof. Blocks.
fn verify(shared: &Shared, id: FileId, written: Written, proof: Proof) -> Result<Verified, FinishError> {
    let entry = shared.entry(id);
    let sealed = written.seal()?;
    shared.context.progress.became_durable(entry.size);
    if shared.context.low_impact {
        sealed.drop_pages(&(0..entry.size));
    }
    if !shared.context.readback {
        return Ok(sealed.verified(proof, Proved::Stream)?);
    }
    match file::prove(&sealed, &shared.stop)?.ok_or(FinishError::Stopped)? {
        Ok(proof) => Ok(sealed.verified(proof, Proved::Readback)?),
        Err(mismatch) => Err(shared.set_aside(entry, sealed, mismatch)),
    }
}
