//! The unfinished file on disk.
//!
//! `Partial → Sealed → Verified → published`: each step consumes the last (the later ones are
//! [`super::publish`]'s). Invariants: nothing is claimed before it is durable (P3); after a
//! failed write or sync nothing more is written, claimed or sealed through that descriptor; the
//! length of a partial is the end of its in-order prefix, and a partial that was ever written
//! out of order is one byte longer than its file until it is sealed, so that nobody takes its
//! length for a prefix.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{Advice, FallocateFlags};
use rustix::io::Errno;

use super::claims_file::{self, ClaimsFile};
use super::copy::copy_range;
use super::dir::{Dir, size_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::publish::Sealed;
use super::writer::{PartialName, WriterId};
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;

/// A partial, open for positioned writes by any number of connections.
#[derive(Debug)]
pub struct Partial {
    place: Place,
    file: File,
    /// Made at the first checkpoint: a file that is published before it never needs one.
    claims: Mutex<Option<ClaimsFile>>,
    /// End of the in-order prefix.
    end: AtomicU64,
    scattered: AtomicBool,
    poisoned: AtomicBool,
}

/// Where a partial is and what it is to become.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) dir: Dir,
    pub(super) name: PartialName,
    pub(super) entry: FileEntry,
}

impl Place {
    pub(super) fn of(model: &ModelDir, entry: &FileEntry, writer: WriterId) -> Result<Self> {
        Ok(Self { dir: model.partials()?, name: PartialName::of(&entry.path, writer), entry: entry.clone() })
    }

    pub(super) fn shown(&self) -> PathBuf {
        self.dir.shown(&self.name.partial())
    }

    pub(super) fn fail(&self, step: Step, error: impl Into<io::Error>) -> VolumeError {
        VolumeError::new(step, self.shown(), error)
    }

    /// Removes the partial and its claims.
    pub(super) fn discard(&self) -> Result<()> {
        self.dir.remove(&self.name.partial())?;
        self.dir.remove(&self.name.claims()).map(drop)
    }
}

/// A partial that was there before, and what of it is durable.
#[derive(Debug)]
pub struct Resumed {
    /// The partial.
    pub partial: Partial,
    /// Its durable, claimed ranges. No hash has seen them yet.
    pub durable: RangeSet,
}

impl Partial {
    /// Makes the partial of a file and reserves its blocks where the file system can.
    ///
    /// # Errors
    /// [`VolumeError::Occupied`] when this writer has one already: [`Self::resume`] it.
    pub fn create(model: &ModelDir, entry: &FileEntry, writer: WriterId) -> Result<Self> {
        let place = Place::of(model, entry, writer)?;
        let file = place.dir.create_file(&place.name.partial())?;
        if let Err(error) = preallocate(&place, &file) {
            // Nothing of it is worth keeping, and the error to tell is the first.
            let _left = place.discard();
            return Err(error);
        }
        Ok(Self::new(place, file, None))
    }

    /// Opens this writer's own partial of a file again; `None` when it has none.
    pub fn resume(model: &ModelDir, entry: &FileEntry, writer: WriterId) -> Result<Option<Resumed>> {
        let place = Place::of(model, entry, writer)?;
        match place.dir.open_for_writing(&place.name.partial()) {
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
            Ok(file) => {
                let claimed = claims_file::read(&place.dir, &place.name, entry)?;
                Self::existing(place, file, claimed).map(Some)
            }
        }
    }

    /// Starts over after a failed write or sync, with a fresh descriptor: what was claimed
    /// stands, all the rest counts as lost. Call it when no connection writes any more.
    pub fn reopen(self) -> Result<Resumed> {
        let file = self.place.dir.open_for_writing(&self.place.name.partial())?;
        let inode = |file: &File| stat_of(file).map(|stat| stat.st_ino).map_err(|e| self.place.fail(Step::Look, e));
        if inode(&file)? != inode(&self.file)? {
            return Err(VolumeError::Replaced { path: self.place.shown() });
        }
        let claimed = claims_file::read(&self.place.dir, &self.place.name, &self.place.entry)?;
        Self::existing(self.place, file, claimed)
    }

    /// Takes a file that has bytes: cuts it back to `durable`, or marks it as scattered.
    pub(super) fn existing(place: Place, file: File, mut durable: RangeSet) -> Result<Resumed> {
        let stat = stat_of(&file).map_err(|e| place.fail(Step::Look, e))?;
        let size = place.entry.size;
        durable.remove(size_of(&stat).min(size)..u64::MAX);
        let prefix = durable.run_end(0);
        let in_order = durable.len_bytes() == prefix;
        let len = if in_order { prefix } else { size + 1 };
        file.set_len(len).map_err(|e| place.fail(Step::Set, e))?;
        preallocate(&place, &file)?;
        // Written anew: behind a torn record nothing that is appended would count.
        let claims = ClaimsFile::create(&place.dir, &place.name, &place.entry, &durable)?;
        let partial = Self::new(place, file, Some(claims));
        partial.end.store(prefix, Ordering::Release);
        partial.scattered.store(!in_order, Ordering::Release);
        Ok(Resumed { partial, durable })
    }

    fn new(place: Place, file: File, claims: Option<ClaimsFile>) -> Self {
        Self {
            place,
            file,
            claims: Mutex::new(claims),
            end: AtomicU64::new(0),
            scattered: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
        }
    }

    /// The file it is to become.
    pub const fn entry(&self) -> &FileEntry {
        &self.place.entry
    }

    /// End of the bytes written in order from the first, in bytes.
    pub fn in_order_end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// Any error but [`VolumeError::PastEnd`] is final: from then on every call fails with
    /// [`VolumeError::Poisoned`] until the partial is reopened.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset.saturating_add(bytes.len() as u64);
        self.write_with(offset..end, |file| file.write_all_at(bytes, offset).map(|()| bytes.len() as u64)).map(drop)
    }

    /// Copies a range of another file to the same place in this one; returns how many bytes of
    /// it there were.
    pub(super) fn fill_from(&self, source: &File, range: &Range<u64>) -> Result<u64> {
        self.write_with(range.clone(), |file| copy_range(source, file, range))
    }

    /// Reads bytes that were written: out-of-order bytes whose turn to be hashed has come.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        self.check_alive()?;
        read_at(&self.file, offset, bytes).map_err(|e| self.place.fail(Step::Read, e))
    }

    /// Makes `ranges` durable and claims them: they have to be written before this is called.
    ///
    /// Syncs the data on the descriptor that wrote it, then appends the claims and syncs those.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub fn checkpoint(&self, ranges: &RangeSet) -> Result<()> {
        self.check_alive()?;
        let Some(last) = ranges.iter().next_back() else { return Ok(()) };
        self.check_end(last.end)?;
        let synced = self.file.sync_data().map_err(|e| self.place.fail(Step::Sync, e));
        self.final_if_failed(synced)?;
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        // Another connection's failure may have come between: its bytes could be among these.
        self.check_alive()?;
        let Place { dir, name, entry } = &self.place;
        let claimed = match &mut *claims {
            Some(file) => file.append(dir, name, entry, ranges),
            none => ClaimsFile::create(dir, name, entry, ranges).map(|file| *none = Some(file)),
        };
        self.final_if_failed(claimed)
    }

    /// Bytes for which the file system has reserved no blocks yet.
    pub fn unallocated(&self) -> Result<u64> {
        let stat = stat_of(&self.file).map_err(|e| self.place.fail(Step::Look, e))?;
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        Ok(self.place.entry.size.saturating_sub(blocks.saturating_mul(512)))
    }

    /// Gives the pages of a synced range back to the system.
    pub fn drop_pages(&self, range: &Range<u64>) {
        drop_pages(&self.file, range);
    }

    /// Ends the writing: all bytes are there and durable.
    ///
    /// # Errors
    /// [`VolumeError::Short`] when the last byte is missing. A failed sync leaves the partial on
    /// disk, with what was claimed: [`Self::resume`].
    pub fn seal(self) -> Result<Sealed> {
        self.check_alive()?;
        let size = self.place.entry.size;
        if self.scattered.load(Ordering::Acquire) {
            self.file.set_len(size).map_err(|e| self.place.fail(Step::Set, e))?;
        }
        let stat = stat_of(&self.file).map_err(|e| self.place.fail(Step::Look, e))?;
        if size_of(&stat) != size {
            return Err(VolumeError::Short { path: self.place.shown(), expected: size, found: size_of(&stat) });
        }
        // Not fdatasync: the times are part of the identity and have to survive too.
        self.file.sync_all().map_err(|e| self.place.fail(Step::Sync, e))?;
        Ok(Sealed::new(self.place, self.file, stat.st_ino))
    }

    /// Removes the partial and its claims.
    pub fn discard(self) -> Result<()> {
        self.place.discard()
    }

    fn write_with(&self, range: Range<u64>, write: impl FnOnce(&File) -> io::Result<u64>) -> Result<u64> {
        self.check_alive()?;
        self.check_end(range.end)?;
        let in_order = range.start <= self.in_order_end();
        if !in_order && !self.scattered.load(Ordering::Acquire) {
            self.final_if_failed(self.scatter())?;
        }
        let written = self.final_if_failed(write(&self.file).map_err(|e| self.place.fail(Step::Write, e)))?;
        if in_order {
            self.end.fetch_max(range.start + written, Ordering::AcqRel);
        }
        Ok(written)
    }

    /// Marks the length as no prefix, before the first byte that is out of order.
    fn scatter(&self) -> Result<()> {
        self.file.set_len(self.place.entry.size + 1).map_err(|e| self.place.fail(Step::Set, e))?;
        self.scattered.store(true, Ordering::Release);
        Ok(())
    }

    fn check_alive(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(VolumeError::Poisoned { path: self.place.shown() });
        }
        Ok(())
    }

    fn check_end(&self, end: u64) -> Result<()> {
        let size = self.place.entry.size;
        if end > size {
            return Err(VolumeError::PastEnd { path: self.place.shown(), end, size });
        }
        Ok(())
    }

    fn final_if_failed<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.poisoned.store(true, Ordering::Release);
        }
        result
    }

    #[cfg(test)]
    pub(super) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }
}

/// Reads at an offset until the buffer is full or the file ends.
pub(super) fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Asks the system to forget the pages of a range; it may refuse, and nothing depends on it.
pub(super) fn drop_pages(file: &impl AsFd, range: &Range<u64>) {
    if let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
        let _advice = rustix::fs::fadvise(file, range.start, Some(len), Advice::DontNeed);
    }
}

/// Reserves the blocks of the whole file and keeps its length.
fn preallocate(place: &Place, file: &File) -> Result<()> {
    let size = place.entry.size;
    if size == 0 {
        return Ok(());
    }
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
            Err(Errno::INTR) => {}
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::IO)) => {
                return Err(place.fail(Step::Allocate, error));
            }
            // Done, or a file system that cannot: the writes will find out.
            _ => return Ok(()),
        }
    }
}
