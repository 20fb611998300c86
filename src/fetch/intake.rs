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
const SLAB: usize = 256 << 10;
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

#[cfg(test)]
mod tests {
    use tokio::runtime::Handle;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::core::range_set::RangeSet;
    use crate::core::verify::tests::lfs_entry;
    use crate::fetch::file::tests::claim;
    use crate::fetch::judge::Judged;
    use crate::volume::ModelDir;
    use crate::volume::partial::Partial;
    use crate::volume::writer::WriterId;

    const OURS: WriterId = WriterId::new(1, 1);

    struct Scene {
        file: Arc<FileFetch>,
        bytes: Vec<u8>,
        /// Whether its bytes are gathered here.
        gathers: bool,
        blocking: Blocking,
        room: Room,
        _place: tempfile::TempDir,
    }

    /// A file of 5 MiB of which nothing is there.
    fn begun() -> Scene {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(&place.path().join("model")).unwrap();
        let bytes: Vec<u8> = (0..5u32 << 20).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let partial = Partial::create(&model, &lfs_entry("a.bin", &bytes), OURS).unwrap();
        let gathers = partial.prefers_slabs();
        let file = Arc::new(FileFetch::new(partial, RangeSet::new(), Arc::default()));
        Scene { file, bytes, gathers, blocking: Blocking::new(Handle::current(), 1), room: None, _place: place }
    }

    fn assert_right(file: Arc<FileFetch>) {
        let judged = Arc::try_unwrap(file).unwrap().finish(false, claim, &CancellationToken::new()).unwrap();
        assert!(matches!(judged, Judged::Right(_)), "{judged:?}");
    }

    #[tokio::test]
    async fn gathered_bytes_count_only_once_they_are_written_and_make_the_right_file() {
        let Scene { file, bytes, gathers, blocking, mut room, _place } = begun();
        let mut intake = Intake::new(&file, &blocking, &mut room);
        intake.put(0, &bytes[..1000]).await.unwrap();
        assert_eq!(file.unclaimed(), if gathers { 0 } else { 1000 }, "nothing of it may be claimed");
        intake.flush().await.unwrap();
        assert_eq!((file.unclaimed(), file.hashed()), (1000, Some(1000)));
        // Another connection is further on: its bytes are not gathered.
        let (mut other_room, ahead) = (None, 3_000_001);
        let mut other = Intake::new(&file, &blocking, &mut other_room);
        other.put(ahead as u64, &bytes[ahead..]).await.unwrap();
        assert_eq!(file.unclaimed(), 1000 + (bytes.len() - ahead) as u64);
        intake.put(1000, &bytes[1000..ahead]).await.unwrap();
        intake.flush().await.unwrap();
        assert!(file.is_whole());
        assert_right(file);
    }

    #[tokio::test]
    async fn what_is_not_flushed_is_not_written_and_the_file_is_proved_from_disk() {
        let Scene { file, bytes, gathers, blocking, mut room, _place } = begun();
        let mut intake = Intake::new(&file, &blocking, &mut room);
        intake.put(0, &bytes[..1000]).await.unwrap();
        drop(intake);
        assert_eq!(file.unclaimed(), if gathers { 0 } else { 1000 });
        file.write(0, &bytes).unwrap();
        assert_right(file);
    }
}
