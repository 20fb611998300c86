//! Looking at published files block by block: which bytes are wrong, to 16 MiB.
//!
//! Owns the first look, several blocks at a time, and what a file comes to. Invariants: a block counts as
//! wrong only when `second_look` agrees, so neither one bad read nor a bad page in
//! the cache nor a damaged list of digests condemns a file; a file counts at all only when its identity
//! was the same before the first read and after the last. It writes nothing.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::hash::cannot;
use super::second_look::{confirm, confirm_whole};
use crate::core::blocks::{BlockTable, Blocks, blocks_in};
use crate::core::causes::in_words;
use crate::core::digest::Digest;
use crate::core::identity::{Identity, Observed};
use crate::core::manifest::FileEntry;
use crate::core::reason::Why;
use crate::core::verify::{FileHasher, Mismatch};
use crate::parallel::{cores, in_parallel};
use crate::volume::from_disk::{Asking, FromDisk, Room};
use crate::volume::{ModelDir, VolumeError};

/// Bytes read at a time without a limit: enough for a disk to be busy with.
const STEP: u64 = 1 << 20;
/// The smallest step: a page.
const STEP_MIN: u64 = 4096;

/// What is asked of one file.
#[derive(Debug, Clone)]
pub struct Ask<'a> {
    /// The file as it should be.
    pub entry: &'a FileEntry,
    /// The digests of its blocks; without them it is read whole.
    pub known: Option<Blocks>,
    /// Which blocks.
    pub blocks: Range<u64>,
}

impl<'a> Ask<'a> {
    /// All of a file, by what is known of its blocks.
    #[must_use]
    pub fn whole(entry: &'a FileEntry, table: &BlockTable) -> Self {
        let known = match entry.digest {
            Digest::Sha256(sha256) => table.of(entry.size, &sha256),
            // What a receipt says of its SHA-256 is not what the manifest says.
            Digest::GitBlob(_) => None,
        };
        Self { entry, known, blocks: 0..blocks_in(entry.size) }
    }
}

/// What keeps the reading in bounds.
#[derive(Clone, Copy)]
pub struct Reins<'a> {
    /// Hears of bytes that are about to be read and waits until they may be; `false` when nothing more is
    /// to be read.
    pub pass: &'a (dyn Fn(u64) -> bool + Sync),
    /// Most bytes of one read.
    pub step: u64,
    /// Most threads.
    pub threads: usize,
}

impl Reins<'_> {
    /// As fast as it goes, to the end.
    #[must_use]
    pub fn loose() -> Self {
        Self { pass: &|_| true, step: STEP, threads: cores() }
    }

    pub(super) fn room(&self) -> Room {
        // Whole pages, rounded down: a read is no larger than it may be.
        let step = self.step.clamp(STEP_MIN, STEP) / STEP_MIN * STEP_MIN;
        Room::new(usize::try_from(step).unwrap_or(1 << 20))
    }
}

/// A block that is not right, twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBlock {
    /// Its number, from 0.
    pub index: u64,
    /// Its bytes in the file, as it should be.
    pub range: Range<u64>,
    /// In what way.
    pub fault: Fault,
}

/// In what way a block is not right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Other bytes, the same ones each time, or too few.
    Wrong,
    /// Nobody can tell: it cannot be read, or comes out differently each time.
    Unreadable {
        /// Why.
        why: String,
    },
}

/// Where a file is not right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Damage {
    /// In these blocks, in order. A file that is only too long has none.
    Blocks(Vec<BadBlock>),
    /// Somewhere: its blocks' digests are not known.
    Somewhere {
        /// What its bytes hash to; unknown where the size says it already.
        found: Option<Digest>,
    },
}

/// What one file came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// What it was before the first read and after the last.
    pub identity: Identity,
    /// The blocks that were read.
    pub read: Range<u64>,
    /// The digests of its blocks, where they are known.
    pub blocks: Option<Blocks>,
    /// Whether `blocks` is news: not known before, or known wrongly.
    pub is_news: bool,
    /// Blocks, or whole files, that were right the second time.
    pub transient: u64,
    /// Where it is not right; nothing when it is.
    pub damage: Option<Damage>,
}

impl Examined {
    /// Whether it has another size than it should.
    #[must_use]
    pub const fn has_other_size(&self, entry: &FileEntry) -> bool {
        self.identity.size != entry.size
    }

    /// Whether bytes are wrong for certain, and not only unreadable.
    #[must_use]
    pub fn is_wrong(&self, entry: &FileEntry) -> bool {
        self.has_other_size(entry)
            || match &self.damage {
                None => false,
                Some(Damage::Somewhere { .. }) => true,
                Some(Damage::Blocks(bad)) => bad.iter().any(|block| block.fault == Fault::Wrong),
            }
    }
}

/// Looks at files; `each` hears what every one came to as soon as that is known, on the thread that found out.
/// Of those that were not looked at to the end when the reins said stop, nobody hears.
pub fn examine(
    dir: &ModelDir,
    asks: &[Ask<'_>],
    reins: &Reins<'_>,
    each: &(dyn Fn(&Ask<'_>, Result<Examined, Why>) + Sync),
) {
    let courses: Vec<_> = asks.iter().map(Course::new).collect();
    let units: Vec<(usize, u64)> =
        courses.iter().enumerate().flat_map(|(at, course)| course.units().map(move |unit| (at, unit))).collect();
    in_parallel(reins.threads.max(1), &units, |(at, unit)| courses[*at].step(dir, *unit, reins, each));
}

/// Looks at one file; nothing when the reins said stop.
#[must_use]
pub fn examine_one(dir: &ModelDir, ask: &Ask<'_>, reins: &Reins<'_>) -> Option<Result<Examined, Why>> {
    let answer = Mutex::new(None);
    let take = |_: &Ask<'_>, result| *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    examine(dir, std::slice::from_ref(ask), reins, &take);
    answer.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// One file on its way.
struct Course<'a> {
    ask: &'a Ask<'a>,
    opened: Mutex<Option<Arc<Result<FromDisk, Why>>>>,
    /// Units that have not ended.
    left: AtomicUsize,
    stopped: AtomicBool,
    /// Blocks that were not right at first.
    suspects: Mutex<Vec<u64>>,
    /// What the whole hash came to, where there are no blocks.
    whole: Mutex<Option<Whole>>,
}

/// What a whole hash came to.
pub(super) enum Whole {
    Right(Blocks),
    Other(Digest),
    /// From which byte on.
    Unreadable(u64, String),
}

impl<'a> Course<'a> {
    fn new(ask: &'a Ask<'a>) -> Self {
        let (opened, suspects, whole) = (Mutex::default(), Mutex::default(), Mutex::default());
        let course = Self { ask, opened, left: AtomicUsize::new(0), stopped: AtomicBool::new(false), suspects, whole };
        Self { left: AtomicUsize::new(course.units().count()), ..course }
    }

    fn units(&self) -> Range<u64> {
        if self.ask.known.is_some() { self.ask.blocks.clone() } else { 0..1 }
    }

    /// Does one unit; with the last one, the file is judged.
    fn step(
        &self,
        dir: &ModelDir,
        unit: u64,
        reins: &Reins<'_>,
        each: &(dyn Fn(&Ask<'_>, Result<Examined, Why>) + Sync),
    ) {
        if !self.stopped.load(Ordering::Acquire) {
            let file = self.file(dir);
            let done = file.as_ref().as_ref().is_ok_and(|file| self.look(file, unit, reins)) || file.is_err();
            if !done {
                self.stopped.store(true, Ordering::Release);
            }
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let file = self.lock(&self.opened).take();
        if self.stopped.load(Ordering::Acquire) {
            return;
        }
        let answer = match file.as_deref() {
            None => return,
            Some(Err(why)) => Some(Err(why.clone())),
            Some(Ok(file)) => self.judge(dir, file, reins),
        };
        if let Some(answer) = answer {
            each(self.ask, answer);
        }
    }

    /// The first look at a unit; `false` when it was stopped.
    fn look(&self, file: &FromDisk, unit: u64, reins: &Reins<'_>) -> bool {
        let Some(blocks) = &self.ask.known else {
            if file.identity().size != self.ask.entry.size {
                return true;
            }
            let Some(whole) = hash_whole(file, self.ask.entry, reins) else { return false };
            *self.lock(&self.whole) = Some(whole);
            return true;
        };
        let mut hasher = blocks.hasher(unit);
        let fed = feed(file, &blocks.range(unit), reins, |bytes| hasher.update(bytes));
        match fed {
            Fed::Stopped => return false,
            Fed::All if hasher.is_right() => {}
            Fed::All | Fed::Failed(..) => self.lock(&self.suspects).push(unit),
        }
        true
    }

    /// What the file comes to; nothing when it was stopped on the way.
    fn judge(&self, dir: &ModelDir, file: &FromDisk, reins: &Reins<'_>) -> Option<Result<Examined, Why>> {
        let (entry, identity) = (self.ask.entry, file.identity());
        let right = Examined {
            identity,
            read: self.ask.blocks.clone(),
            blocks: self.ask.known.clone(),
            is_news: false,
            transient: 0,
            damage: None,
        };
        let found = match (&self.ask.known, self.lock(&self.whole).take()) {
            (Some(blocks), _) => {
                let mut suspects = std::mem::take(&mut *self.lock(&self.suspects));
                suspects.sort_unstable();
                if suspects.is_empty() { Ok(right) } else { confirm(dir, right, entry, blocks, suspects, reins)? }
            }
            (None, Some(Whole::Right(blocks))) => Ok(Examined { blocks: Some(blocks), is_news: true, ..right }),
            (None, Some(first)) => confirm_whole(dir, right, entry, &first, reins)?,
            // It has another size.
            (None, None) => Ok(Examined { damage: Some(Damage::Somewhere { found: None }), ..right }),
        };
        Some(found.and_then(|mut examined| {
            if identity.size != entry.size && examined.damage.is_none() {
                examined.damage = Some(Damage::Blocks(Vec::new()));
            }
            // The name has to lead to this very file still.
            let same = file.identity_now().is_ok_and(|now| now == identity)
                && dir.observe(&entry.path) == Observed::Present(identity);
            if same { Ok(examined) } else { Err(Why::Changing) }
        }))
    }

    fn file(&self, dir: &ModelDir) -> Arc<Result<FromDisk, Why>> {
        let mut opened = self.lock(&self.opened);
        let open = || {
            let entry = self.ask.entry;
            Arc::new(dir.open_from_disk(&entry.path, Asking::Gently).map_err(|error| cannot(&error, entry)))
        };
        Arc::clone(opened.get_or_insert_with(open))
    }

    #[expect(clippy::unused_self, reason = "reads like the others")]
    fn lock<'l, T>(&self, mutex: &'l Mutex<T>) -> MutexGuard<'l, T> {
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How reading a range ended.
pub(super) enum Fed {
    /// All of it was read, or the file ended.
    All,
    /// The disk failed, from this byte on.
    Failed(u64, VolumeError),
    /// The reins said so.
    Stopped,
}

/// Reads a range that begins on a page, from the disk.
pub(super) fn feed(file: &FromDisk, range: &Range<u64>, reins: &Reins<'_>, mut take: impl FnMut(&[u8])) -> Fed {
    let mut room = reins.room();
    let end = range.end.min(file.identity().size);
    let mut at = range.start;
    file.forget(range);
    while at < end {
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(room.len());
        if !(reins.pass)(len as u64) {
            return Fed::Stopped;
        }
        match file.read(at, len, &mut room) {
            Ok(bytes) => {
                take(bytes);
                at += bytes.len() as u64;
                if bytes.len() < len {
                    break;
                }
            }
            Err(error) => return Fed::Failed(at, error),
        }
    }
    file.forget(range);
    Fed::All
}

/// Hashes all of a file; nothing when it was stopped.
pub(super) fn hash_whole(file: &FromDisk, entry: &FileEntry, reins: &Reins<'_>) -> Option<Whole> {
    let mut hasher = FileHasher::new(entry);
    match feed(file, &(0..entry.size), reins, |bytes| hasher.update(bytes)) {
        Fed::Stopped => return None,
        Fed::Failed(at, error) => return Some(Whole::Unreadable(at, in_words(&error))),
        Fed::All => {}
    }
    Some(match hasher.finish() {
        Ok(proof) => Whole::Right(proof.blocks().clone()),
        Err(Mismatch::Digest { found, .. }) => Whole::Other(found),
        Err(Mismatch::Size { found, expected }) => {
            Whole::Unreadable(found, format!("reading ended at byte {found} of {expected}"))
        }
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use super::*;
    use crate::core::blocks::{BLOCK_SIZE, records};
    use crate::core::verify::tests::lfs_entry;

    const SIZE: u64 = 3 * BLOCK_SIZE + 5;

    fn data() -> Vec<u8> {
        (0..SIZE).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    }

    /// A file of four blocks, as it should be.
    fn place() -> (tempfile::TempDir, ModelDir, FileEntry, Blocks) {
        let (place, data) = (tempfile::tempdir().unwrap(), data());
        let entry = lfs_entry("a", &data);
        let mut hasher = FileHasher::new(&entry);
        hasher.update(&data);
        std::fs::write(place.path().join("a"), &data).unwrap();
        let dir = ModelDir::open(place.path()).unwrap();
        (place, dir, entry, hasher.finish().unwrap().blocks().clone())
    }

    fn flip(place: &Path, at: u64) {
        let file = std::fs::File::options().read(true).write(true).open(place.join("a")).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    }

    fn look(dir: &ModelDir, entry: &FileEntry, known: Option<Blocks>, blocks: Range<u64>) -> Result<Examined, Why> {
        examine_one(dir, &Ask { entry, known, blocks }, &Reins::loose()).unwrap()
    }

    fn bad(examined: &Examined) -> Vec<u64> {
        match &examined.damage {
            Some(Damage::Blocks(bad)) => bad.iter().map(|block| block.index).collect(),
            other => panic!("{other:?}"),
        }
    }

    /// The same with other states between the blocks, as damage would leave them if no checksum told.
    fn garbled(blocks: &Blocks, states: &[usize]) -> Blocks {
        let mut bytes = records([blocks]);
        for state in states {
            bytes[4 + 8 + 32 + state * 32] ^= 0x40;
        }
        let end = bytes.len() - 4;
        let crc = crc32fast::hash(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        BlockTable::parse(&bytes).of(blocks.size(), &blocks.sha256()).unwrap()
    }

    #[test]
    fn wrong_bytes_are_named_to_the_block_and_the_others_are_not() {
        let (place, dir, entry, blocks) = place();
        assert_eq!(look(&dir, &entry, Some(blocks.clone()), 0..4).unwrap().damage, None);
        let found = look(&dir, &entry, None, 0..4).unwrap();
        assert_eq!((found.blocks.as_ref(), found.is_news, found.damage), (Some(&blocks), true, None));
        for (at, expected) in [(0, vec![0]), (SIZE - 1, vec![0, 3]), (BLOCK_SIZE, vec![0, 1, 3])] {
            flip(place.path(), at);
            let found = look(&dir, &entry, Some(blocks.clone()), 0..4).unwrap();
            assert_eq!((bad(&found), found.is_wrong(&entry), found.is_news), (expected, true, false));
        }
        let found = look(&dir, &entry, Some(blocks.clone()), 2..3).unwrap();
        assert_eq!(found.damage, None, "nothing was asked about the others");
        let found = look(&dir, &entry, None, 0..4).unwrap();
        assert!(matches!(found.damage, Some(Damage::Somewhere { found: Some(_) })) && found.blocks.is_none());
        std::fs::remove_file(place.path().join("a")).unwrap();
        assert_eq!(look(&dir, &entry, Some(blocks), 0..4), Err(Why::Missing { size: SIZE }));
    }

    #[test]
    fn a_file_of_another_size_is_wrong_and_its_right_blocks_are_right() {
        let (place, dir, entry, blocks) = place();
        let file = std::fs::File::options().write(true).open(place.path().join("a")).unwrap();
        for (len, expected) in
            [(SIZE + 1, vec![]), (SIZE - 1, vec![3]), (BLOCK_SIZE, vec![1, 2, 3]), (0, vec![0, 1, 2, 3])]
        {
            file.set_len(len).unwrap();
            let found = look(&dir, &entry, Some(blocks.clone()), 0..4).unwrap();
            assert!(found.is_wrong(&entry) && found.has_other_size(&entry));
            assert_eq!(bad(&found), expected, "{len}");
            let found = look(&dir, &entry, None, 0..4).unwrap();
            assert_eq!(found.damage, Some(Damage::Somewhere { found: None }), "{len}");
        }
    }

    #[test]
    fn a_garbled_list_condemns_no_block_and_is_mended() {
        let (place, dir, entry, blocks) = place();
        for states in [vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![0, 1, 2]] {
            for asked in [0..4, 1..2, 3..4] {
                let found = look(&dir, &entry, Some(garbled(&blocks, &states)), asked.clone()).unwrap();
                assert_eq!(found.damage, None, "{states:?} {asked:?}");
                if asked == (0..4) {
                    assert_eq!((found.blocks.as_ref(), found.is_news), (Some(&blocks), true), "{states:?}");
                }
            }
        }
        flip(place.path(), SIZE - 1);
        let found = look(&dir, &entry, Some(garbled(&blocks, &[0])), 0..4).unwrap();
        assert_eq!((bad(&found), found.blocks.as_ref()), (vec![3], Some(&blocks)), "both at once");
    }

    #[test]
    fn reins_end_it_and_are_heard_before_each_read() {
        let (_place, dir, entry, blocks) = place();
        let passed = std::sync::atomic::AtomicU64::new(0);
        let pass = |bytes| passed.fetch_add(bytes, Ordering::Relaxed) < 10 << 20;
        let reins = Reins { pass: &pass, step: 1 << 20, threads: 1 };
        let ask = Ask { entry: &entry, known: Some(blocks), blocks: 0..4 };
        assert!(examine_one(&dir, &ask, &reins).is_none());
        assert_eq!(passed.load(Ordering::Relaxed), 11 << 20);
    }
}
