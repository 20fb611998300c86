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

use super::error::OwnershipLost;
use super::file::FileFetch;
use super::intake::{Intake, Room};
use super::shared::{Event, Shared};
use super::small::{self, Came};
use super::throttle::Paced;
use crate::blocking::Started;
use crate::clock;
use crate::core::pace::WINDOW;
use crate::core::plan::{Assignment, FileId, Next};
use crate::sources::{Body, ReadError};
use crate::volume::VolumeError;

/// Unclaimed bytes of a file at which its connections wait for the disk.
const UNCLAIMED_MAX: u64 = 128 << 20;

/// Why an assignment ended before its end.
#[derive(Debug, Error)]
pub(super) enum AttemptError {
    #[error("{0}")]
    Read(#[from] ReadError),
    #[error("the disk failed")]
    Volume(#[from] VolumeError),
    #[error("{0}")]
    Ownership(OwnershipLost),
    /// The assignment counts for nothing any more: the file starts again, or met its fate.
    #[error("void")]
    Void,
    #[error("stopped")]
    Stopped,
}

/// Works until there is nothing left to fetch, a stop is asked for, or there are to be fewer
/// connections than `index` + 1.
pub(super) async fn work(shared: Arc<Shared>, index: usize) {
    let (mut last, mut room): (Option<FileId>, Room) = (None, None);
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
                match attempt(&shared, &assignment, index, &mut room).await {
                    Some(result) => shared.settle(&assignment, result).await,
                    // It waits for its batch.
                    None => shared.plan().release(assignment.id, assignment.range.end),
                }
            }
        }
    }
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
async fn attempt(shared: &Arc<Shared>, assignment: &Assignment, index: usize, room: &mut Room) -> Option<Attempt> {
    let (began, mut reached) = (clock::since_boot(), assignment.range.start);
    let _counted = shared.context.progress.connection();
    let started = async {
        let came = small::receive(shared, assignment, index, ask(shared, assignment).await?).await;
        if matches!(came, Came::Whole) {
            return Ok(None);
        }
        // Not before an answer came: a file that cannot be had leaves nothing on disk.
        Ok(Some((came, shared.open(assignment.file).await?)))
    };
    let (came, file) = match started.await {
        Ok(Some(started)) => started,
        Ok(None) => return None,
        Err(error) => return Some(Attempt { began, reached, progressed: false, result: Err(error) }),
    };
    let mut checkpoints = Checkpoints { shared, file: &file, running: None, progressed: false };
    let mut result = match came {
        Came::Body(body) => {
            let mut intake = Intake::new(&file, &shared.context.blocking, room);
            let received = receive(shared, assignment, index, body, &mut checkpoints, &mut intake, &mut reached).await;
            match received {
                Err(AttemptError::Volume(_)) => received,
                _ => intake.flush().await.map_err(Into::into).and(received),
            }
        }
        Came::Part(bytes, result) => {
            reached += bytes.len() as u64;
            file.write(assignment.range.start, &bytes).map_err(Into::into).and(result)
        }
        Came::Whole => Ok(()),
    };
    let settled = checkpoints.settle(result.is_err()).await;
    if let Err(error) = settled
        && !matches!(result, Err(AttemptError::Volume(_)))
    {
        result = Err(error);
    }
    Some(Attempt { began, reached, progressed: checkpoints.progressed, result })
}

async fn ask(shared: &Shared, assignment: &Assignment) -> Result<Body, AttemptError> {
    // Others may have been given the end of the range since.
    let range = assignment.range.start..shared.plan().end_of(assignment.id);
    if range.is_empty() {
        return Err(AttemptError::Void);
    }
    let read = shared.context.source.read(shared.entry(assignment.file), range, assignment.whole);
    let body = select! {
        body = read => body?,
        () = shared.stop.cancelled() => return Err(AttemptError::Stopped),
    };
    if body.is_partial() {
        shared.plan().answers_ranges(assignment.file);
        shared.wake.notify_waiters();
    }
    Ok(body)
}

async fn receive(
    shared: &Shared,
    assignment: &Assignment,
    index: usize,
    body: Body,
    checkpoints: &mut Checkpoints<'_>,
    intake: &mut Intake<'_>,
    reached: &mut u64,
) -> Result<(), AttemptError> {
    let mut body = Paced::new(body, shared.context.throttle.clone());
    let mut looks = interval(WINDOW);
    loop {
        let unwanted = |reached| index >= shared.level() || shared.plan().end_of(assignment.id) <= reached;
        let came = next(shared, &mut body, &mut looks, Some(intake), || unwanted(*reached)).await?;
        let Some((at, bytes)) = came else { return Ok(()) };
        let (ours, end) = {
            let mut plan = shared.plan();
            (plan.take(assignment.id, at, bytes.len() as u64), plan.end_of(assignment.id))
        };
        if end == 0 {
            intake.forget();
            return Err(AttemptError::Void);
        }
        let ours = usize::try_from(ours).unwrap_or(usize::MAX).min(bytes.len());
        intake.put(at, &bytes[..ours]).await?;
        *reached = at + ours as u64;
        if ours < bytes.len() || (*reached == end && end < body.end()) {
            // Somebody else fetches the rest.
            return Ok(());
        }
        checkpoints.tick().await?;
    }
}

/// The next bytes; none at the end. Looks now and then whether they are still wanted from here: all
/// the rest may have been taken away, or there are to be fewer connections.
pub(super) async fn next(
    shared: &Shared,
    body: &mut Paced,
    looks: &mut Interval,
    mut intake: Option<&mut Intake<'_>>,
    unwanted: impl Fn() -> bool,
) -> Result<Option<(u64, Bytes)>, AttemptError> {
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

/// The checkpoints of one file as one connection makes them: begun while bytes go on coming,
/// waited for only when too much is unclaimed.
struct Checkpoints<'a> {
    shared: &'a Arc<Shared>,
    file: &'a Arc<FileFetch>,
    running: Option<Started<Result<u64, AttemptError>>>,
    progressed: bool,
}

impl Checkpoints<'_> {
    async fn tick(&mut self) -> Result<(), AttemptError> {
        let too_much = self.file.unclaimed() > UNCLAIMED_MAX;
        if too_much || self.running.as_ref().is_some_and(Started::is_done) {
            self.wait().await?;
        }
        if self.running.is_none() && self.file.wants_checkpoint(clock::since_boot()) {
            self.running = Some(self.start());
        }
        Ok(())
    }

    /// Ends the assignment's checkpoints; `now` makes one of whatever is left.
    async fn settle(&mut self, now: bool) -> Result<(), AttemptError> {
        self.wait().await?;
        if now && self.file.unclaimed() > 0 {
            self.running = Some(self.start());
            self.wait().await?;
        }
        Ok(())
    }

    fn start(&self) -> Started<Result<u64, AttemptError>> {
        let (file, shared) = (Arc::clone(self.file), Arc::clone(self.shared));
        self.shared.context.blocking.start(move || shared.checkpoint(&file))
    }

    async fn wait(&mut self) -> Result<(), AttemptError> {
        if let Some(running) = self.running.take() {
            self.progressed |= running.wait().await? > 0;
        }
        Ok(())
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
