//! The unfinished file on disk.
//!
//! `Partial → Sealed → Verified → published`: each step consumes the last (the later ones are
//! [`super::publish`]'s). Invariants: nothing is claimed before it is durable (P3); after a
//! failed write or sync nothing more is written, claimed or sealed through that descriptor; the
//! length of a partial is the end of its in-order prefix, and a partial that was ever written
//! out of order is one byte longer than its file until it is sealed, so that nobody takes its
//! length for a prefix: then notes among its claims say what was written.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::claims_file::{self, ClaimsFile};
use super::copy::copy_range;
use super::dir::{Dir, size_of, stat_of};
use super::direct::{self, unless_refused};
use super::error::{Result, Step, VolumeError};
use super::identity;
use super::model_dir::ModelDir;
use super::pages::{drop_pages, read_at};
use super::publish::Sealed;
use super::slab::Slab;
use super::sync;
use super::writer::{PartialName, WriterId};
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;

/// A partial, open for positioned writes by any number of connections.
#[derive(Debug)]
pub struct Partial {
    place: Place,
    file: File,
    /// The same file past the page cache, where that is better.
    direct: Option<File>,
    /// Made at the first checkpoint or note: a file that is published before never needs one.
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

    /// Makes the file; what a failed try of this writer left of it makes room.
    pub(super) fn create_anew(&self) -> Result<File> {
        let name = self.name.partial();
        match self.dir.create_file(&name) {
            Err(VolumeError::Occupied { .. }) => {
                self.discard()?;
                self.dir.create_file(&name)
            }
            other => other,
        }
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
        Self::begun(place, file)
    }

    /// As [`Self::create`]; what a failed try of this writer left of it makes room.
    ///
    /// # Errors
    /// As [`Self::create`], but for that.
    pub fn create_anew(model: &ModelDir, entry: &FileEntry, writer: WriterId) -> Result<Self> {
        let place = Place::of(model, entry, writer)?;
        let file = place.create_anew()?;
        Self::begun(place, file)
    }

    /// Opens this writer's own partial of a file again; `None` when it has none.
    pub fn resume(model: &ModelDir, entry: &FileEntry, writer: WriterId) -> Result<Option<Resumed>> {
        let place = Place::of(model, entry, writer)?;
        match place.dir.open_for_writing(&place.name.partial()) {
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
            Ok(file) => {
                let claimed = claims_file::read(&place.dir, &place.name, entry)?;
                Self::named(place, file, claimed).map(Some)
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
        Self::named(self.place, file, claimed)
    }

    /// As [`Self::existing`], of a file that has its name.
    ///
    /// # Errors
    /// Also when a new owner took the name away meanwhile.
    fn named(place: Place, file: File, durable: RangeSet) -> Result<Resumed> {
        let resumed = Self::existing(place, file, durable)?;
        claims_file::stay_beside(&resumed.partial.place)?;
        Ok(resumed)
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
        let claims = ClaimsFile::create(&place, &durable)?;
        let partial = Self::new(place, file, Some(claims));
        partial.end.store(prefix, Ordering::Release);
        partial.scattered.store(!in_order, Ordering::Release);
        Ok(Resumed { partial, durable })
    }

    fn begun(place: Place, file: File) -> Result<Self> {
        if let Err(error) = preallocate(&place, &file) {
            // Nothing of it is worth keeping, and the error to tell is the first.
            let _left = place.discard();
            return Err(error);
        }
        Ok(Self::new(place, file, None))
    }

    fn new(place: Place, file: File, claims: Option<ClaimsFile>) -> Self {
        let direct = direct::open(&place, &file);
        Self {
            place,
            file,
            direct,
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

    /// Whether [`Self::write_slab`] is the better way to write.
    pub const fn prefers_slabs(&self) -> bool {
        self.direct.is_some()
    }

    /// Writes gathered bytes where they belong: whole pages past the page cache, where it is kept,
    /// and the rest through it.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub fn write_slab(&self, slab: &Slab) -> Result<()> {
        let [first, pages, last] = slab.runs();
        self.write_at(first.0, first.1)?;
        let (at, bytes) = pages;
        self.write_with(at..at + bytes.len() as u64, |file| {
            let through = || file.write_all_at(bytes, at);
            let direct = self.direct.as_ref().map(|direct| direct.write_all_at(bytes, at));
            direct.map_or_else(through, |direct| unless_refused(direct, through)).map(|()| bytes.len() as u64)
        })?;
        self.write_at(last.0, last.1)
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
        let synced = sync::data(&self.file, "partial").map_err(|e| self.place.fail(Step::Sync, e));
        self.final_if_failed(synced)?;
        let claimed = self.with_claims(|claims| claims.claim(&self.place, ranges))?;
        // Outside the lock: notes need not wait for the disk.
        self.final_if_failed(claimed.sync(&self.place))
    }

    /// Whether its length says nothing any more: what was written is to be noted then.
    pub fn is_scattered(&self) -> bool {
        self.scattered.load(Ordering::Acquire)
    }

    /// Notes ranges that were written, without waiting for the disk: should this process die and
    /// the machine go on, they are there.
    ///
    /// # Errors
    /// As [`Self::write_at`].
    pub fn note(&self, ranges: &RangeSet) -> Result<()> {
        self.check_alive()?;
        self.with_claims(|claims| claims.note(&self.place, ranges))
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
        sync::all(&self.file, "partial").map_err(|e| self.place.fail(Step::Sync, e))?;
        let stat = stat_of(&self.file).map_err(|e| self.place.fail(Step::Look, e))?;
        Ok(Sealed::new(self.place, self.file, identity::of(&stat)))
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

    fn with_claims<T>(&self, work: impl FnOnce(&mut ClaimsFile) -> Result<T>) -> Result<T> {
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        // Another connection's failure may have come between: its bytes could be among these.
        self.check_alive()?;
        let done = match &mut *claims {
            Some(file) => work(file),
            none => ClaimsFile::begin(&self.place).and_then(|file| work(none.insert(file))),
        };
        self.final_if_failed(done)
    }

    /// Marks the length as no prefix, before the first byte that is out of order. What the length
    /// said until now is noted first.
    fn scatter(&self) -> Result<()> {
        let prefix = RangeSet::from(0..self.in_order_end());
        self.with_claims(|claims| claims.note(&self.place, &prefix))?;
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::direct::DIRECT_FROM;
    use super::super::fs_kind::FsKind;
    use super::super::testing::{OURS, bytes, lfs_entry, model, names, set};
    use super::*;

    fn on_disk(model: &ModelDir, entry: &FileEntry) -> PathBuf {
        model.path().join(".muster/partial").join(PartialName::of(&entry.path, OURS).partial())
    }

    #[test]
    fn what_a_failed_try_left_makes_room_for_the_next() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"right");
        drop(Partial::create(&model, &entry, OURS).unwrap());
        let partial = Partial::create_anew(&model, &entry, OURS).unwrap();
        partial.write_at(0, b"right").unwrap();
        assert!(partial.seal().is_ok());
    }

    #[test]
    fn slabs_and_single_bytes_make_one_file_wherever_they_meet() {
        let (_place, model) = model();
        let data = bytes(usize::try_from(DIRECT_FROM).unwrap() + 12_345);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        let (mut slab, mut at, mut slabs) = (Slab::new(300_000), 0, 0);
        for step in [0, 1, 4095, 4096, 4097, 70_001, 511, 1_000_000].into_iter().cycle() {
            let loose = data.len().min(at + step);
            partial.write_at(at as u64, &data[at..loose]).unwrap();
            slab.restart(loose as u64);
            at = loose + slab.fill(&data[loose..]);
            partial.write_slab(&slab).unwrap();
            assert_eq!(partial.in_order_end(), at as u64);
            slabs += 1;
            if at == data.len() {
                break;
            }
        }
        assert!(slabs > 5, "{slabs}");
        let sealed = partial.seal().unwrap();
        let mut back = vec![0; data.len() + 1];
        assert_eq!(sealed.read_at(0, &mut back).unwrap(), data.len());
        assert!(back[..data.len()] == data[..]);
    }

    #[test]
    fn what_goes_past_the_page_cache_is_not_in_it() {
        let (place, model) = model();
        let data = bytes(usize::try_from(DIRECT_FROM).unwrap());
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        let file_system = FsKind::of(&File::open(place.path()).unwrap());
        assert_eq!(partial.prefers_slabs(), file_system.takes_direct_writes(), "{file_system:?}");
        let small = Partial::create(&model, &lfs_entry("b", b"few"), OURS).unwrap();
        assert!(!small.prefers_slabs());
        if partial.prefers_slabs() {
            let direct = partial.direct.as_ref().unwrap();
            assert!(rustix::fs::fcntl_getfl(direct).unwrap().contains(rustix::fs::OFlags::DIRECT));
            let error = direct.write_all_at(&data[1..100], 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::INVAL.raw_os_error()), "nothing loose gets through");
        }
    }

    #[test]
    fn a_write_that_is_refused_for_its_layout_goes_through_the_cache_and_no_other_does() {
        let refused = || Err(io::Error::from(Errno::INVAL));
        assert!(unless_refused(refused(), || Ok(())).is_ok());
        assert!(unless_refused(Ok(()), refused).is_ok(), "written once");
        let full = unless_refused(Err(io::Error::from(Errno::NOSPC)), || Ok(()));
        assert_eq!(full.unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    }

    #[test]
    fn the_length_is_the_in_order_prefix_and_a_scattered_file_says_so() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        let len = || std::fs::metadata(on_disk(&model, &entry)).unwrap().len();
        assert_eq!(len(), 0, "reserved, not extended");
        partial.write_at(0, &data[..300]).unwrap();
        assert_eq!((len(), partial.in_order_end()), (300, 300));
        partial.write_at(700, &data[700..]).unwrap();
        assert_eq!((len(), partial.in_order_end()), (1001, 300));
        partial.write_at(300, &data[300..700]).unwrap();
        let sealed = partial.seal().unwrap();
        assert_eq!(len(), 1000);
        let mut back = vec![0; 1001];
        assert_eq!(sealed.read_at(0, &mut back).unwrap(), 1000);
        assert_eq!(back[..1000], data);
    }

    #[test]
    fn after_a_kill_the_claims_are_what_is_left() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        partial.write_at(0, &data[..400]).unwrap();
        partial.checkpoint(&set(&[(0, 200)])).unwrap();
        partial.checkpoint(&set(&[(200, 300)])).unwrap();
        drop(partial);
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert_eq!(resumed.durable, set(&[(0, 300)]));
        assert_eq!(resumed.partial.in_order_end(), 300);
        assert_eq!(std::fs::metadata(on_disk(&model, &entry)).unwrap().len(), 300);
        resumed.partial.write_at(600, &data[600..]).unwrap();
        resumed.partial.checkpoint(&set(&[(600, 1000)])).unwrap();
        drop(resumed);
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert_eq!(resumed.durable, set(&[(0, 300), (600, 1000)]));
        assert_eq!(resumed.partial.in_order_end(), 300);
        let other = lfs_entry("other", b"x");
        assert!(Partial::resume(&model, &other, OURS).unwrap().is_none());
    }

    #[test]
    fn claims_behind_a_torn_record_count_again_after_a_restart() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        partial.write_at(0, &data).unwrap();
        partial.checkpoint(&set(&[(0, 500)])).unwrap();
        drop(partial);
        let claims = model.path().join(".muster/partial").join(PartialName::of(&entry.path, OURS).claims());
        let mut torn = std::fs::read(&claims).unwrap();
        torn.extend([7; 11]);
        std::fs::write(&claims, torn).unwrap();
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert_eq!(resumed.durable, set(&[(0, 500)]));
        resumed.partial.write_at(500, &data[500..]).unwrap();
        resumed.partial.checkpoint(&set(&[(500, 1000)])).unwrap();
        drop(resumed);
        assert_eq!(Partial::resume(&model, &entry, OURS).unwrap().unwrap().durable, set(&[(0, 1000)]));
    }

    #[test]
    fn claims_beyond_the_bytes_on_disk_are_not_believed() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        partial.write_at(0, &data[..100]).unwrap();
        partial.checkpoint(&set(&[(0, 900)])).unwrap();
        drop(partial);
        assert_eq!(Partial::resume(&model, &entry, OURS).unwrap().unwrap().durable, set(&[(0, 100)]));
    }

    #[test]
    fn after_a_failed_write_nothing_is_written_claimed_or_sealed() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let mut partial = Partial::create(&model, &entry, OURS).unwrap();
        partial.write_at(0, &data).unwrap();
        partial.checkpoint(&set(&[(0, 500)])).unwrap();
        // A descriptor that cannot write makes the next write fail as a bad disk would.
        partial.file = File::open(on_disk(&model, &entry)).unwrap();
        assert!(matches!(partial.write_at(0, &data), Err(VolumeError::Io { step: Step::Write, .. })));
        assert!(matches!(partial.write_at(0, &data), Err(VolumeError::Poisoned { .. })));
        assert!(matches!(partial.checkpoint(&set(&[(500, 1000)])), Err(VolumeError::Poisoned { .. })));
        let resumed = partial.reopen().unwrap();
        assert_eq!(resumed.durable, set(&[(0, 500)]));
        resumed.partial.write_at(500, &data[500..]).unwrap();
        resumed.partial.seal().unwrap();
    }

    /// Takes every byte and cannot sync.
    fn unsyncable() -> File {
        File::options().read(true).write(true).open("/dev/null").unwrap()
    }

    #[test]
    fn what_could_not_be_synced_is_not_claimed() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let mut partial = Partial::create(&model, &entry, OURS).unwrap();
        partial.write_at(0, &data).unwrap();
        partial.checkpoint(&set(&[(0, 500)])).unwrap();
        partial.file = unsyncable();
        let failed = partial.checkpoint(&set(&[(500, 1000)]));
        assert!(matches!(failed, Err(VolumeError::Io { step: Step::Sync, .. })), "{failed:?}");
        assert!(matches!(partial.checkpoint(&set(&[(500, 1000)])), Err(VolumeError::Poisoned { .. })));
        assert!(matches!(partial.seal(), Err(VolumeError::Poisoned { .. })));
        assert_eq!(Partial::resume(&model, &entry, OURS).unwrap().unwrap().durable, set(&[(0, 500)]));
    }

    #[test]
    fn what_could_not_be_synced_is_not_sealed() {
        let (_place, model) = model();
        let mut partial = Partial::create(&model, &lfs_entry("a", b""), OURS).unwrap();
        partial.file = unsyncable();
        let failed = partial.seal();
        assert!(matches!(failed, Err(VolumeError::Io { step: Step::Sync, .. })), "{failed:?}");
    }

    #[test]
    fn nothing_is_written_or_claimed_past_the_end() {
        let (_place, model) = model();
        let entry = lfs_entry("a", &bytes(10));
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        assert!(matches!(partial.write_at(5, &[0; 6]), Err(VolumeError::PastEnd { end: 11, size: 10, .. })));
        assert!(matches!(partial.write_at(u64::MAX, &[0; 6]), Err(VolumeError::PastEnd { .. })));
        assert!(matches!(partial.checkpoint(&set(&[(5, 11)])), Err(VolumeError::PastEnd { .. })));
        partial.write_at(0, &[1; 9]).unwrap();
        assert!(matches!(partial.seal(), Err(VolumeError::Short { expected: 10, found: 9, .. })));
    }

    #[test]
    fn a_second_partial_of_one_writer_is_refused_and_a_discarded_one_is_gone() {
        let (_place, model) = model();
        let entry = lfs_entry("a", &bytes(10));
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        assert!(matches!(Partial::create(&model, &entry, OURS), Err(VolumeError::Occupied { .. })));
        partial.write_at(0, &bytes(10)).unwrap();
        partial.checkpoint(&set(&[(0, 10)])).unwrap();
        let folder = model.path().join(".muster/partial");
        assert_eq!(names(&folder).len(), 2);
        partial.discard().unwrap();
        assert!(names(&folder).is_empty());
    }

    #[test]
    fn many_connections_write_one_file() {
        let (_place, model) = model();
        let data = bytes(64 * 1024);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        std::thread::scope(|scope| {
            for (i, part) in data.chunks(16 * 1024).enumerate() {
                let partial = &partial;
                scope.spawn(move || {
                    let start = i as u64 * 16 * 1024;
                    for (j, step) in part.chunks(1000).enumerate() {
                        partial.write_at(start + j as u64 * 1000, step).unwrap();
                    }
                    partial.checkpoint(&set(&[(start, start + 16 * 1024)])).unwrap();
                });
            }
        });
        drop(partial);
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert!(resumed.durable.is_whole(entry.size));
        let mut back = vec![0; data.len()];
        resumed.partial.read_at(0, &mut back).unwrap();
        assert_eq!(back, data);
    }

    #[test]
    fn a_planted_link_is_not_written_through() {
        let (place, model) = model();
        let entry = lfs_entry("a", &bytes(10));
        let victim = place.path().join("victim");
        std::fs::write(&victim, b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, on_disk(&model, &entry)).unwrap();
        assert!(Partial::create(&model, &entry, OURS).is_err());
        assert!(Partial::resume(&model, &entry, OURS).is_err());
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        // The whole folder turned into a link out of the model.
        let folder = model.path().join(".muster/partial");
        std::fs::remove_dir_all(&folder).unwrap();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, &folder).unwrap();
        assert!(matches!(Partial::create(&model, &entry, OURS), Err(VolumeError::Steered { .. })));
        assert!(names(&outside).is_empty());
    }

    #[test]
    fn a_full_disk_is_said_before_the_first_byte() {
        let (_place, model) = model();
        let mut entry = lfs_entry("a", &bytes(10));
        entry.size = 1 << 50;
        // File systems with smaller files refuse it for that; those that cannot reserve, not at all.
        match Partial::create(&model, &entry, OURS) {
            Err(VolumeError::NoSpace { .. } | VolumeError::Io { step: Step::Allocate, .. }) => {
                assert!(names(&model.path().join(".muster/partial")).is_empty());
            }
            other => assert!(other.is_ok(), "{other:?}"),
        }
    }

    #[test]
    fn a_partial_is_as_open_as_the_umask_lets_it() {
        let (_place, model) = model();
        let entry = lfs_entry("a", &bytes(10));
        let _partial = Partial::create(&model, &entry, OURS).unwrap();
        let plain = model.path().join("plain");
        std::fs::write(&plain, b"").unwrap();
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&on_disk(&model, &entry)), mode(&plain));
    }
}
