//! One connection: takes assignments from the plan and turns them into written bytes.
//!
//! Owns nothing for longer than one assignment. It writes only what the plan still gives it, so
//! two connections never write the same byte, and reports how each assignment ended.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::select;
use tokio::time::{Interval, interval};

use super::ahead::Ahead;
use super::checkpoints::{Checkpoints, claim};
use super::file::FileFetch;
use super::intake::Intake;
use super::owned::{OwnershipLost, WriteError};
use super::shared::{Event, Shared};
use super::small::{self, Came};
use super::throttle::Paced;
use crate::clock;
use crate::core::pace::WINDOW;
use crate::core::plan::{Assignment, Next};
use crate::sources::ReadError;
use crate::volume::VolumeError;

/// Why an assignment ended before its end.
#[derive(Debug, Error)]
pub(super) enum AttemptError {
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("the disk failed")]
    Volume(#[from] VolumeError),
    #[error("{0}")]
    Ownership(#[from] OwnershipLost),
    /// The assignment counts for nothing any more: the file starts again, or met its fate.
    #[error("void")]
    Void,
    #[error("stopped")]
    Stopped,
}

impl From<WriteError> for AttemptError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Volume(error) => Self::Volume(error),
            WriteError::Ownership(lost) => Self::Ownership(lost),
        }
    }
}

/// Works until there is nothing left to fetch, a stop is asked for, or there are to be fewer
/// connections than `index` + 1.
pub(super) async fn work(shared: Arc<Shared>, index: usize) {
    let mut held = Held::default();
    fetch(&shared, index, &mut held).await;
    held.checkpoints.settle().await;
}

async fn fetch(shared: &Arc<Shared>, index: usize, held: &mut Held) {
    let mut last = None;
    while index < shared.level() && !shared.stop.is_cancelled() {
        let wake = Arc::clone(&shared.wake).notified_owned();
        let next = shared.plan().assign(last, shared.level());
        match next {
            Next::Done => return,
            Next::Wait => select! {
                () = wake => {}
                () = shared.stop.cancelled() => return,
            },
            Next::Fetch(assignment) => {
                last = Some(assignment.file);
                match attempt(shared, &assignment, index, held).await {
                    Some(result) => shared.settle(&assignment, result).await,
                    // It waits for its batch.
                    None => shared.plan().release(assignment.id, assignment.range.end),
                }
            }
        }
    }
}

/// What a connection keeps from one assignment to the next.
#[derive(Default)]
struct Held {
    ahead: Ahead,
    checkpoints: Checkpoints,
}

/// How far an assignment got, and how it ended.
pub(super) struct Attempt {
    /// When it began, since boot.
    pub(super) began: Duration,
    pub(super) reached: u64,
    /// Whether bytes became durable that were not before.
    pub(super) progressed: bool,
    pub(super) result: Result<(), AttemptError>,
}

/// None when a small file came whole and was handed on.
async fn attempt(shared: &Arc<Shared>, assignment: &Assignment, index: usize, held: &mut Held) -> Option<Attempt> {
    let (began, start) = (clock::since_boot(), assignment.range.start);
    let failed = |error| Some(Attempt { began, reached: start, progressed: false, result: Err(error) });
    let _counted = shared.context.progress.connection();
    let came = match ask(shared, assignment, index).await {
        Ok(stream) => small::receive(stream).await?,
        Err(error) => return failed(error),
    };
    // Not before an answer came: a file that cannot be had leaves nothing on disk.
    let file = match shared.open(assignment.file).await {
        Ok(file) => file,
        Err(error) => return failed(error),
    };
    let (durable, mut room) = (file.durable(), None);
    let (reached, mut result) = match came {
        Came::Large(mut stream) => {
            let mut intake = Intake::new(&file, &shared.context.blocking, &mut room);
            let received = receive(&mut stream, &file, &mut intake, held).await;
            (stream.reached, gathered(&stream, intake, received).await)
        }
        Came::Part(bytes, result) => {
            let written = file.write(start, &bytes).map_err(Into::into);
            (start + bytes.len() as u64, written.and(result.map_err(|error| *error)))
        }
    };
    if result.is_err()
        && file.unclaimed() > 0
        && let Err(error) = claim(shared, &file).await
        && !matches!(result, Err(AttemptError::Volume(_)))
    {
        result = Err(error);
    }
    Some(Attempt { began, reached, progressed: file.durable() > durable, result })
}

async fn receive(
    stream: &mut Stream<'_>,
    file: &Arc<FileFetch>,
    intake: &mut Intake<'_>,
    held: &mut Held,
) -> Result<(), AttemptError> {
    let (shared, id) = (stream.shared, stream.assignment.file);
    while let Some((at, bytes)) = stream.next(Some(intake)).await? {
        intake.put(at, &bytes).await?;
        held.checkpoints.tick(shared, id, file).await?;
        held.ahead.tick(shared, stream.assignment, stream.reached);
    }
    Ok(())
}

/// Writes what is still gathered, unless it counts for nothing or the disk failed.
async fn gathered(
    stream: &Stream<'_>,
    mut intake: Intake<'_>,
    received: Result<(), AttemptError>,
) -> Result<(), AttemptError> {
    if stream.is_void() || matches!(received, Err(AttemptError::Volume(_))) {
        return received;
    }
    intake.flush().await.map_err(Into::into).and(received)
}

async fn ask<'a>(
    shared: &'a Arc<Shared>,
    assignment: &'a Assignment,
    index: usize,
) -> Result<Stream<'a>, AttemptError> {
    // Others may have been given the end of the range since.
    let range = assignment.range.start..shared.plan().end_of(assignment.id);
    if range.is_empty() {
        return Err(AttemptError::Void);
    }
    let asked_at = clock::since_boot();
    let read = shared.context.source.read(shared.entry(assignment.file), range, assignment.whole);
    let body = select! {
        body = read => body?,
        () = shared.stop.cancelled() => return Err(AttemptError::Stopped),
    };
    shared.plan().answered(clock::since_boot().saturating_sub(asked_at));
    if body.is_partial() {
        shared.plan().answers_ranges(assignment.file);
        shared.wake.notify_waiters();
    }
    let body = Paced::new(body, shared.context.throttle.clone());
    let reached = assignment.range.start;
    Ok(Stream { shared, assignment, index, body, looks: interval(WINDOW), reached, is_over: false })
}

/// The bytes of one answer, as far as the plan gives them to this connection.
pub(super) struct Stream<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) assignment: &'a Assignment,
    index: usize,
    body: Paced,
    /// When it is time to look whether they are still wanted.
    looks: Interval,
    /// End of the bytes that were taken.
    reached: u64,
    /// Somebody else fetches the rest.
    is_over: bool,
}

impl Stream<'_> {
    /// The next bytes and where they belong; none at the end. Meanwhile `intake` is flushed now and
    /// then.
    pub(super) async fn next(&mut self, intake: Option<&mut Intake<'_>>) -> Result<Option<(u64, Bytes)>, AttemptError> {
        if self.is_over {
            return Ok(None);
        }
        let Some((at, bytes)) = self.come(intake).await? else { return Ok(None) };
        let (ours, end) = {
            let mut plan = self.shared.plan();
            (plan.take(self.assignment.id, at, bytes.len() as u64), plan.end_of(self.assignment.id))
        };
        if end == 0 {
            return Err(AttemptError::Void);
        }
        let ours = usize::try_from(ours).unwrap_or(usize::MAX).min(bytes.len());
        self.reached = at + ours as u64;
        self.is_over = ours < bytes.len() || (self.reached == end && end < self.body.end());
        Ok(Some((at, bytes.slice(..ours))))
    }

    /// Whether nothing of it counts any more.
    fn is_void(&self) -> bool {
        self.shared.plan().end_of(self.assignment.id) == 0
    }

    /// What comes next. Looks now and then whether it is still wanted from here: all the rest may
    /// have been taken away, or there are to be fewer connections.
    async fn come(&mut self, mut intake: Option<&mut Intake<'_>>) -> Result<Option<(u64, Bytes)>, AttemptError> {
        let Self { shared, assignment, index, body, looks, reached, .. } = self;
        let unwanted = || *index >= shared.level() || shared.plan().end_of(assignment.id) <= *reached;
        let next = body.next();
        tokio::pin!(next);
        loop {
            select! {
                biased;
                () = shared.stop.cancelled() => return Err(AttemptError::Stopped),
                _ = looks.tick() => match &mut intake {
                    _ if unwanted() => return Err(AttemptError::Void),
                    Some(intake) => intake.flush().await?,
                    None => {}
                },
                came = &mut next => return Ok(came?),
            }
        }
    }
}

impl Shared {
    /// Gives an assignment back and says how it went. A file that failed is handed out again
    /// only when the pool says so.
    async fn settle(&self, assignment: &Assignment, mut attempt: Attempt) {
        {
            let mut plan = self.plan();
            if matches!(attempt.result, Err(AttemptError::Read(_))) && plan.end_of(assignment.id) <= attempt.reached {
                // It failed at what is somebody else's by now.
                attempt.result = Err(AttemptError::Void);
            }
            if matches!(attempt.result, Err(AttemptError::Read(_) | AttemptError::Volume(_))) {
                plan.hold(assignment.file);
            }
            plan.release(assignment.id, attempt.reached);
        }
        let event = Event::Attempt { file: assignment.file, attempt };
        // The pool outlives its connections; if it is gone, nobody needs to know.
        let _ = self.events.send(event).await;
    }
}
