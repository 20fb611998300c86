//! What a connection has received and not written yet.
//!
//! Owns the gathering of bytes into slabs, for files that are better written so; all others are
//! written as they come. Invariant: bytes are gathered in order and without gaps, and no longer than
//! [`HELD_FOR`], so that a slow connection loses and hides as little as a fast one.

use std::sync::Arc;
use std::time::Duration;

use super::file::FileFetch;
use crate::blocking::Blocking;
use crate::clock;
use crate::core::verify::FileHasher;
use crate::volume::VolumeError;
use crate::volume::slab::Slab;

/// Bytes that are written together.
const SLAB: usize = 512 << 10;
/// How long bytes wait for others at most, while some come.
const HELD_FOR: Duration = Duration::from_millis(250);

/// The room in which a connection gathers; made when it is first needed.
pub(super) type Room = Option<Arc<Slab>>;

/// The way of one connection's bytes into one file.
pub(super) struct Intake<'a> {
    file: &'a Arc<FileFetch>,
    blocking: &'a Blocking,
    room: &'a mut Room,
    /// Since when bytes wait in the room; none do otherwise.
    since: Option<Duration>,
    /// The hash up to the last of them, if they are next in order.
    hasher: Option<FileHasher>,
}

impl<'a> Intake<'a> {
    pub(super) const fn new(file: &'a Arc<FileFetch>, blocking: &'a Blocking, room: &'a mut Room) -> Self {
        Self { file, blocking, room, since: None, hasher: None }
    }

    /// Takes the next bytes.
    pub(super) async fn put(&mut self, mut at: u64, mut bytes: &[u8]) -> Result<(), VolumeError> {
        if !self.file.prefers_slabs() {
            return self.file.write(at, bytes);
        }
        while !bytes.is_empty() {
            let begins = self.since.is_none();
            let slab = alone(self.room);
            if begins {
                slab.restart(at);
                self.since = Some(clock::since_boot());
                self.hasher = self.file.lend_hasher(at);
            }
            let taken = slab.fill(bytes);
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&bytes[..taken]);
            }
            (at, bytes) = (at + taken as u64, &bytes[taken..]);
            if slab.is_full() {
                self.flush().await?;
            }
        }
        match self.since {
            Some(since) if clock::since_boot().saturating_sub(since) >= HELD_FOR => self.flush().await,
            _ => Ok(()),
        }
    }

    /// Writes what was gathered.
    pub(super) async fn flush(&mut self) -> Result<(), VolumeError> {
        if let (Some(_), Some(slab)) = (self.since.take(), &self.room) {
            self.file.write_slab(Arc::clone(slab), self.hasher.take(), self.blocking).await?;
        }
        Ok(())
    }

    /// Forgets what was gathered: it counts for nothing any more.
    pub(super) fn forget(&mut self) {
        (self.since, self.hasher) = (None, None);
    }
}

/// The slab in a room, for this connection alone: a write that was left behind keeps its own.
fn alone(room: &mut Room) -> &mut Slab {
    let slab = room.get_or_insert_with(|| Arc::new(Slab::new(SLAB)));
    if Arc::get_mut(slab).is_none() {
        *slab = Arc::new(Slab::new(SLAB));
    }
    Arc::get_mut(slab).expect("it was just made, or nobody else has it")
}
