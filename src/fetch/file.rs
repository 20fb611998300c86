//! One file being fetched: its partial, what has arrived, and its running hash.
//!
//! Shared by the connections that fetch ranges of the file. Invariants: bytes are received when
//! they were written, durable when they were synced *and* claimed afterwards (P3); the hash takes
//! each byte once and in order, from the hands of the connection that wrote it when it is next in
//! order, else from disk. After a failed write or sync the whole value is thrown away: the file is
//! opened again with what its claims prove.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::error::FinishError;
use super::judge::{Judged, judge};
use super::owned::WriteError;
use super::progress::Progress;
use super::shared::Pages;
use crate::blocking::Blocking;
use crate::clock;
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;
use crate::core::receipt::Proved;
use crate::core::verify::FileHasher;
use crate::volume::VolumeError;
use crate::volume::partial::{Partial, Resumed};
use crate::volume::slab::Slab;

/// Unclaimed bytes that ask for a checkpoint once [`CHECKPOINT_AFTER`] has passed.
const CHECKPOINT_MIN: u64 = 16 << 20;
const CHECKPOINT_AFTER: Duration = Duration::from_secs(1);
/// Unclaimed bytes that ask for a checkpoint at once.
const CHECKPOINT_MAX: u64 = 64 << 20;
/// Longest time that received bytes stay unclaimed.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(5);
/// Bytes written out of order that are noted together: what a killed process loses of them at most.
const NOTE_EVERY: u64 = 2 << 20;
/// Bytes read from disk in one step: hashed while the core has them in its own cache.
pub(super) const READ_STEP: usize = 256 << 10;
/// Bytes hashed from disk between two looks at whether to stop.
const HASH_STEP: u64 = 16 << 20;

/// A file that is being fetched.
#[derive(Debug)]
pub(crate) struct FileFetch {
    partial: Partial,
    progress: Arc<Progress>,
    state: Mutex<State>,
    /// Held while claims are made, so that checkpoints of one file do not overlap.
    checkpoint: Mutex<()>,
    /// Whether a connection makes the checkpoint that is due: the others need not wait behind it.
    has_turn: AtomicBool,
    /// Held while bytes are hashed from disk.
    from_disk: Mutex<()>,
    pages: Pages,
}

/// The right to make a file's next checkpoint, until it goes.
#[derive(Debug)]
pub(crate) struct Turn(Arc<FileFetch>);

impl Turn {
    pub(crate) fn file(&self) -> &FileFetch {
        &self.0
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.has_turn.store(false, Ordering::Release);
    }
}

#[derive(Debug)]
struct State {
    received: RangeSet,
    durable: RangeSet,
    /// What the claims tell of, durable or not.
    noted: RangeSet,
    /// Absent while somebody feeds it.
    hasher: Option<FileHasher>,
    checkpoint_at: Duration,
    /// Whether every byte was hashed as it was written here.
    streamed: bool,
}

impl FileFetch {
    /// Takes up a partial of which `adopted` is on disk and claimed.
    pub(crate) fn new(partial: Partial, adopted: RangeSet, progress: Arc<Progress>) -> Self {
        let state = State {
            received: adopted.clone(),
            streamed: adopted.is_empty(),
            noted: adopted.clone(),
            durable: adopted,
            hasher: Some(FileHasher::new(partial.entry())),
            checkpoint_at: clock::since_boot(),
        };
        let (checkpoint, has_turn, from_disk) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Self { partial, progress, state: Mutex::new(state), checkpoint, has_turn, from_disk, pages: Pages::default() }
    }

    /// The same file; what becomes of its pages.
    pub(crate) const fn with_pages(mut self, pages: Pages) -> Self {
        self.pages = pages;
        self
    }

    pub(crate) fn entry(&self) -> &FileEntry {
        self.partial.entry()
    }

    /// Writes bytes that came, and hashes them if they are next in order.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<(), VolumeError> {
        self.partial.write_at(at, bytes)?;
        let len = bytes.len() as u64;
        let hasher = {
            let mut state = self.state();
            state.received.insert(at..at + len);
            state.hasher.take_if(|hasher| hasher.position() == at)
        };
        if let Some(mut hasher) = hasher {
            hasher.update(bytes);
            self.state().hasher = Some(hasher);
        }
        self.progress.came(len, clock::since_boot());
        self.note()
    }

    /// The running hash, for the connection whose bytes for `at` are next in order: it hashes them
    /// as they come, and brings the hash back with [`Self::write_slab`]. None for a file that is
    /// better written as bytes come.
    pub(crate) fn lend_hasher(&self, at: u64) -> Option<FileHasher> {
        if self.pages == Pages::Kept || !self.partial.prefers_slabs() {
            return None;
        }
        self.state().hasher.take_if(|hasher| hasher.position() == at)
    }

    /// Writes gathered bytes, which were hashed.
    pub(crate) async fn write_slab(
        self: &Arc<Self>,
        slab: Arc<Slab>,
        hasher: FileHasher,
        blocking: &Blocking,
    ) -> Result<(), VolumeError> {
        let (this, range) = (Arc::clone(self), slab.range());
        blocking.start_at_once(move || this.partial.write_slab(&slab)).wait().await?;
        {
            let mut state = self.state();
            state.received.insert(range.clone());
            state.hasher = Some(hasher);
        }
        self.progress.came(range.end - range.start, clock::since_boot());
        self.note()
    }

    /// Notes what was written, when the partial's length does not tell and enough has gathered.
    fn note(&self) -> Result<(), VolumeError> {
        if !self.partial.is_scattered() {
            return Ok(());
        }
        let fresh = {
            let mut state = self.state();
            if state.received.len_bytes() - state.noted.len_bytes() < NOTE_EVERY {
                return Ok(());
            }
            let fresh = state.received.difference(&state.noted);
            state.noted.extend(&fresh);
            fresh
        };
        self.partial.note(&fresh)?;
        // Their pages are dirty, so they stay; the disk begins with them now, not when too many wait for it.
        if self.pages == Pages::Past && self.partial.prefers_slabs() {
            fresh.iter().for_each(|range| self.partial.drop_pages(&range));
        }
        Ok(())
    }

    /// Everything received and not claimed yet.
    pub(crate) fn unclaimed(&self) -> u64 {
        let state = self.state();
        state.received.len_bytes() - state.durable.len_bytes()
    }

    /// Bytes that were claimed.
    pub(crate) fn durable(&self) -> u64 {
        self.state().durable.len_bytes()
    }

    /// The turn to make a checkpoint, when it is time for one and nobody has it.
    pub(crate) fn checkpoint_turn(self: &Arc<Self>, now: Duration) -> Option<Turn> {
        let unclaimed = self.unclaimed();
        let waited = now.saturating_sub(self.state().checkpoint_at);
        let is_due = unclaimed >= CHECKPOINT_MAX
            || (unclaimed >= CHECKPOINT_MIN && waited >= CHECKPOINT_AFTER)
            || (unclaimed > 0 && waited >= CHECKPOINT_EVERY);
        (is_due && !self.has_turn.swap(true, Ordering::AcqRel)).then(|| Turn(Arc::clone(self)))
    }

    /// Makes what has been received durable and claims it. Blocks. Returns how many bytes became
    /// durable.
    ///
    /// The order is the promise: the ranges are fixed before the sync, and claimed after it.
    pub(crate) fn checkpoint(&self) -> Result<u64, VolumeError> {
        let _one = self.checkpoint.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = {
            let mut state = self.state();
            state.checkpoint_at = clock::since_boot();
            state.received.difference(&state.durable)
        };
        if fresh.is_empty() {
            return Ok(0);
        }
        self.partial.checkpoint(&fresh)?;
        let mut state = self.state();
        state.durable.extend(&fresh);
        state.noted.extend(&fresh);
        drop(state);
        self.progress.became_durable(fresh.len_bytes());
        self.give_pages_back();
        Ok(fresh.len_bytes())
    }

    /// Where the hash stands; unknown while somebody feeds it.
    pub(crate) fn hashed(&self) -> Option<u64> {
        self.state().hasher.as_ref().map(FileHasher::position)
    }

    /// Whether bytes are on disk that are next for the hash.
    pub(crate) fn hash_lags(&self) -> bool {
        let state = self.state();
        state.hasher.as_ref().is_some_and(|hasher| state.received.run_end(hasher.position()) > hasher.position())
    }

    /// Hashes from disk what was received ahead of the hash, until a stop. Blocks.
    pub(crate) fn hash_from_disk(&self, stop: &CancellationToken) -> Result<(), VolumeError> {
        let _one = self.from_disk.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.hash_lags() {
            return Ok(());
        }
        let mut buffer = vec![0; READ_STEP];
        while !stop.is_cancelled() {
            let (mut hasher, end) = {
                let mut state = self.state();
                let Some(hasher) = state.hasher.take() else { return Ok(()) };
                let end = state.received.run_end(hasher.position()).min(hasher.position() + HASH_STEP);
                if end == hasher.position() {
                    state.hasher = Some(hasher);
                    return Ok(());
                }
                state.streamed = false;
                (hasher, end)
            };
            let fed = feed(&self.partial, &mut hasher, end, &mut buffer);
            self.state().hasher = Some(hasher);
            fed?;
            self.give_pages_back();
        }
        Ok(())
    }

    /// Gives the system back the pages of what is durable and hashed, where that was asked for.
    fn give_pages_back(&self) {
        let Some(hashed) = self.hashed().filter(|_| self.pages == Pages::GivenBack) else { return };
        let durable = self.state().durable.run_end(0);
        self.partial.drop_pages(&(0..durable.min(hashed)));
    }

    /// Whether every byte has been received.
    pub(crate) fn is_whole(&self) -> bool {
        self.state().received.is_whole(self.entry().size)
    }

    /// Starts over with what its claims prove, after a failed write or sync. Blocks.
    pub(crate) fn reopen(self) -> Result<(Self, RangeSet), VolumeError> {
        self.count_as_lost();
        let Resumed { partial, durable } = self.partial.reopen()?;
        self.progress.found(durable.len_bytes());
        let file = Self::new(partial, durable.clone(), self.progress).with_pages(self.pages);
        Ok((file, durable))
    }

    /// Removes it: none of its bytes is worth anything. Blocks.
    pub(crate) fn discard(self) -> Result<(), VolumeError> {
        self.count_as_lost();
        self.partial.discard()
    }

    fn count_as_lost(&self) {
        let state = self.state();
        self.progress.lost(state.received.len_bytes(), state.durable.len_bytes());
    }

    /// Ends the file: last hashing, sync, proof. Blocks. With `readback` the bytes are read from
    /// disk after the sync, and those decide. A stop that comes first leaves everything claimed, by
    /// `claim`, which asks whether this process may.
    pub(crate) fn finish(
        self,
        readback: bool,
        claim: impl FnOnce(&Self) -> Result<u64, WriteError>,
        stop: &CancellationToken,
    ) -> Result<Judged, FinishError> {
        if let Err(error) = self.prepare(readback, claim, stop) {
            self.count_as_lost();
            return Err(error.into());
        }
        if self.hash_lags() {
            return Err(FinishError::Stopped);
        }
        let Self { partial, progress, state, pages, .. } = self;
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (size, durable) = (state.received.len_bytes(), state.durable.len_bytes());
        let sealed = partial.seal().inspect_err(|_| progress.lost(size, durable))?;
        progress.became_durable(size - durable);
        let proved = if state.streamed { Proved::Stream } else { Proved::Readback };
        let known = state.hasher.filter(|_| !readback).map(|hasher| (hasher.finish(), proved));
        judge(sealed, known, pages, &progress, stop)
    }

    /// Hashes what is left, and claims everything before a long reading: a stop shall lose nothing.
    fn prepare(
        &self,
        readback: bool,
        claim: impl FnOnce(&Self) -> Result<u64, WriteError>,
        stop: &CancellationToken,
    ) -> Result<(), WriteError> {
        self.hash_from_disk(stop)?;
        if readback || self.hash_lags() {
            claim(self)?;
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn feed(partial: &Partial, hasher: &mut FileHasher, end: u64, buffer: &mut [u8]) -> Result<(), VolumeError> {
    while hasher.position() < end {
        let want = usize::try_from(end - hasher.position()).unwrap_or(usize::MAX).min(buffer.len());
        match partial.read_at(hasher.position(), &mut buffer[..want])? {
            0 => return Err(cut(partial, hasher.position())),
            read => hasher.update(&buffer[..read]),
        }
    }
    Ok(())
}

/// Somebody else cut the file.
fn cut(partial: &Partial, found: u64) -> VolumeError {
    let path = partial.entry().path.as_str().into();
    VolumeError::Short { path, expected: partial.entry().size, found }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::core::verify::tests::lfs_entry;
    use crate::volume::ModelDir;
    use crate::volume::writer::WriterId;

    /// Of an owner.
    pub(in super::super) fn claim(file: &FileFetch) -> Result<u64, WriteError> {
        Ok(file.checkpoint()?)
    }

    const OURS: WriterId = WriterId::new(1, 1);

    /// A file of 5000 bytes of which all were received, the second half first.
    fn received(model: &ModelDir) -> (FileFetch, Vec<u8>) {
        let bytes: Vec<u8> = (0..5000u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let partial = Partial::create(model, &lfs_entry("a.bin", &bytes), OURS).unwrap();
        let file = FileFetch::new(partial, RangeSet::new(), Arc::default());
        file.write(3000, &bytes[3000..]).unwrap();
        file.write(0, &bytes[..3000]).unwrap();
        (file, bytes)
    }

    #[test]
    fn a_stop_leaves_the_hash_where_it_is_and_what_came_claimed() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(&place.path().join("model")).unwrap();
        let (file, bytes) = received(&model);
        let stop = CancellationToken::new();
        stop.cancel();
        file.hash_from_disk(&stop).unwrap();
        assert_eq!(file.hashed(), Some(3000), "the rest is still to be hashed");
        assert!(matches!(file.finish(false, claim, &stop), Err(FinishError::Stopped)));
        let Resumed { durable, .. } = Partial::resume(&model, &lfs_entry("a.bin", &bytes), OURS).unwrap().unwrap();
        assert!(durable.is_whole(5000), "{durable:?}");
    }

    #[test]
    fn received_bytes_are_durable_only_once_they_are_claimed() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(&place.path().join("model")).unwrap();
        let bytes = vec![7; 5000];
        let partial = Partial::create(&model, &lfs_entry("a.bin", &bytes), OURS).unwrap();
        let file = FileFetch::new(partial, RangeSet::new(), Arc::default());
        file.write(0, &bytes).unwrap();
        let counts = |file: &FileFetch| (file.progress.received(), file.progress.durable(), file.unclaimed());
        assert_eq!(counts(&file), (5000, 0, 5000));
        // The bytes can be synced, and the claims have nowhere to go.
        std::fs::remove_dir_all(place.path().join("model/.muster/partial")).unwrap();
        assert!(file.checkpoint().is_err());
        assert_eq!(counts(&file), (5000, 0, 5000));
        let (other, _) = received(&ModelDir::create(&place.path().join("other")).unwrap());
        assert_eq!(other.checkpoint().unwrap(), 5000);
        assert_eq!(counts(&other), (5000, 5000, 0));
    }

    #[test]
    fn what_comes_out_of_order_is_noted_every_two_mib() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(&place.path().join("model")).unwrap();
        let step = vec![7; 1 << 20];
        let mut entry = lfs_entry("a.bin", &step);
        entry.size = 64 << 20;
        let file = FileFetch::new(Partial::create(&model, &entry, OURS).unwrap(), RangeSet::new(), Arc::default());
        let noted = || {
            let folder = place.path().join("model/.muster/partial");
            let mut names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let claims = names.find(|path| path.extension().is_some_and(|end| end == "claims"));
            claims.map(|path| crate::core::claims::parse(&std::fs::read(path).unwrap(), &entry))
        };
        for at in 0..5 {
            file.write(at << 20, &step).unwrap();
        }
        assert!(noted().is_none(), "the length says it");
        for at in 32..37 {
            file.write(at << 20, &step).unwrap();
        }
        let claims = noted().unwrap();
        assert!(claims.durable.is_empty());
        let expected = RangeSet::from(vec![(0, 5 << 20), (32 << 20, 37 << 20)]);
        let late = expected.difference(&claims.noted);
        assert!(claims.noted.contains(&(0..5 << 20)) && late.len_bytes() < 2 << 20, "{late:?}");
    }

    #[test]
    fn bytes_that_came_out_of_order_are_proved_from_disk() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(&place.path().join("model")).unwrap();
        let (file, _) = received(&model);
        let judged = file.finish(false, claim, &CancellationToken::new()).unwrap();
        assert!(matches!(judged, Judged::Right(_)), "{judged:?}");
    }
}
