//! What a connection has received and not written yet.
//!
//! Owns the gathering of bytes that are next for the hash: hashed while the processor has them at
//! hand, and written past the page cache by the slab. All others are written as they come, through
//! the cache, from where the hash will take them. Invariant: bytes are gathered without gaps, and no
//! longer than [`HELD_FOR`], so that a slow connection hides and loses no more than a fast one.

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
    gathering: Option<Gathering>,
}

/// Bytes wait in the room.
struct Gathering {
    since: Duration,
    /// The file's hash up to the last of them.
    hasher: FileHasher,
}

impl<'a> Intake<'a> {
    pub(super) const fn new(file: &'a Arc<FileFetch>, blocking: &'a Blocking, room: &'a mut Room) -> Self {
        Self { file, blocking, room, gathering: None }
    }

    /// Takes the next bytes.
    pub(super) async fn put(&mut self, mut at: u64, mut bytes: &[u8]) -> Result<(), VolumeError> {
        while !bytes.is_empty() {
            let Some(taken) = self.gather(at, bytes) else { return self.file.write(at, bytes) };
            (at, bytes) = (at + taken as u64, &bytes[taken..]);
            let full = self.room.as_ref().is_some_and(|slab| slab.is_full());
            let old = |gathering: &Gathering| clock::since_boot().saturating_sub(gathering.since) >= HELD_FOR;
            if full || self.gathering.as_ref().is_some_and(old) {
                self.flush().await?;
            }
        }
        Ok(())
    }

    /// Writes what was gathered.
    pub(super) async fn flush(&mut self) -> Result<(), VolumeError> {
        if let (Some(Gathering { hasher, .. }), Some(slab)) = (self.gathering.take(), &self.room) {
            self.file.write_slab(Arc::clone(slab), hasher, self.blocking).await?;
        }
        Ok(())
    }

    /// Forgets what was gathered: it counts for nothing any more.
    pub(super) fn forget(&mut self) {
        self.gathering = None;
    }

    /// Hashes and gathers as many bytes as there is room for; none when they are not to be gathered.
    fn gather(&mut self, at: u64, bytes: &[u8]) -> Option<usize> {
        if self.gathering.is_none() {
            let hasher = self.file.lend_hasher(at)?;
            self.gathering = Some(Gathering { since: clock::since_boot(), hasher });
            alone(self.room).restart(at);
        }
        let taken = alone(self.room).fill(bytes);
        self.gathering.as_mut()?.hasher.update(&bytes[..taken]);
        Some(taken)
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
