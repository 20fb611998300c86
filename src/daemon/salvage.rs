//! What is right of a file that is to be fetched again.
//!
//! Owns the choice of where right blocks are looked for: first in what was set aside under the file's
//! name, then in another copy that the user named. Invariants: both are believed nothing: a block is
//! taken when its digest is right, a whole file when its hash is; the digests of blocks are believed no
//! more, for the hash of the finished file decides. A digest list that is missing costs fetching, a
//! wrong one does, too, and no more.

use std::path::Path;

use tracing::{info, warn};

use super::bench::Bench;
use super::error::WorkError;
use super::repair::Thrift;
use crate::core::blocks::{BlockTable, Blocks, blocks_in};
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::digest::Digest;
use crate::core::manifest::FileEntry;
use crate::core::model_name::ModelName;
use crate::core::range_set::RangeSet;
use crate::core::repair::{RefusedCopy, RepairedFile};
use crate::core::verify::FileHasher;
use crate::fetch::Wanted;
use crate::fetch::owned::{WriteError, begin};
use crate::parallel::{cores, in_parallel};
use crate::volume::aside::Aside;
use crate::volume::partial::Partial;
use crate::volume::salvage::Donor;
use crate::volume::{ModelDir, VolumeError};

/// Files set aside under one name that are looked into: what is older was right for something else.
const ASIDE_MAX: usize = 2;
/// Bytes read at a time.
const BUFFER: usize = 256 << 10;

/// Where right bytes are looked for.
pub(super) struct Sources<'a> {
    pub(super) bench: &'a Bench,
    pub(super) model: &'a ModelDir,
    pub(super) name: &'a ModelName,
    /// Another copy of the model.
    pub(super) copy: Option<&'a ModelDir>,
    pub(super) digests: Digests,
    pub(super) thrift: Thrift,
    pub(super) go_on: &'a (dyn Fn() -> bool + Sync),
}

/// The digests of blocks, ours and the other copy's.
pub(super) struct Digests(pub(super) Vec<BlockTable>);

impl Digests {
    fn of(&self, entry: &FileEntry) -> Option<Blocks> {
        let Digest::Sha256(sha256) = entry.digest else { return None };
        self.0.iter().find_map(|table| table.of(entry.size, &sha256))
    }
}

/// What became of a file.
pub(super) struct Salvaged {
    pub(super) wanted: Wanted,
    pub(super) done: RepairedFile,
    pub(super) refused: Option<RefusedCopy>,
}

impl Sources<'_> {
    /// Takes what is right into the file's partial. `moved` is where the wrong file went just now. Blocks.
    pub(super) fn salvage(&self, wanted: Wanted, moved: Option<&Aside>) -> Result<Salvaged, WorkError> {
        let Wanted { id, entry, adopted } = wanted;
        let blocks = self.digests.of(&entry);
        let mut work = Salvage { sources: self, entry: &entry, blocks: blocks.as_ref(), partial: adopted };
        let mut done = RepairedFile {
            file: entry.path.clone(),
            blocks: blocks_in(entry.size),
            bad_blocks: None,
            bytes_kept: 0,
            bytes_copied: 0,
            bytes_to_fetch: 0,
            shared: false,
            set_aside: moved.map(|aside| shown(&aside.path())),
        };
        for (aside, stays) in self.set_aside(&entry)? {
            if let Some((kept, bad)) = work.take_from_aside(&aside)? {
                done.bytes_kept += kept;
                done.bad_blocks.get_or_insert(bad);
                done.set_aside.get_or_insert_with(|| shown(&aside.path()));
            }
            if self.thrift == Thrift::Drop && !stays && (self.go_on)() {
                aside.discard()?;
                info!(file = %aside.path().display(), "a wrong file is removed, for want of room to keep it");
                done.set_aside.take_if(|place| *place == shown(&aside.path()));
            }
        }
        let refused = match self.copy {
            Some(copy) if work.lacks() => {
                let (came, refused) = work.take_from_copy(copy)?;
                done.bytes_copied = came;
                refused
            }
            _ => None,
        };
        let partial = work.partial;
        done.bytes_to_fetch = partial.as_ref().map_or(entry.size, |(_, durable)| entry.size - durable.len_bytes());
        done.shared = done.bytes_kept > 0 && self.model.shares_blocks();
        Ok(Salvaged { wanted: Wanted { id, entry, adopted: partial }, done, refused })
    }

    fn set_aside(&self, entry: &FileEntry) -> Result<Vec<(Aside, bool)>, VolumeError> {
        let mut found = self.bench.volume.set_aside_of(self.name, &entry.path)?;
        found.truncate(ASIDE_MAX);
        Ok(found)
    }
}

/// One file on its way.
struct Salvage<'a> {
    sources: &'a Sources<'a>,
    entry: &'a FileEntry,
    blocks: Option<&'a Blocks>,
    partial: Option<(Partial, RangeSet)>,
}

impl Salvage<'_> {
    fn missing(&self) -> RangeSet {
        let all = || RangeSet::from(0..self.entry.size);
        self.partial.as_ref().map_or_else(all, |(_, durable)| durable.missing(self.entry.size))
    }

    fn lacks(&self) -> bool {
        !self.missing().is_empty()
    }

    /// Bytes taken, and blocks that were wrong there; nothing when it cannot be looked into.
    fn take_from_aside(&mut self, aside: &Aside) -> Result<Option<(u64, u64)>, WorkError> {
        let Some(blocks) = self.blocks.filter(|_| self.lacks()) else { return Ok(None) };
        let donor = match Donor::aside(aside) {
            Ok(donor) => donor,
            Err(error) => {
                warn!(file = %aside.path().display(), error = in_words(&error), "it cannot be looked into");
                return Ok(None);
            }
        };
        let examined = examine(&donor, blocks, &self.missing(), self.sources.go_on);
        let came = self.take(&donor, &examined.right)?;
        Ok(Some((came, examined.wrong)))
    }

    /// Bytes taken from the other copy, and what it has wrong.
    fn take_from_copy(&mut self, copy: &ModelDir) -> Result<(u64, Option<RefusedCopy>), WorkError> {
        let path = &self.entry.path;
        let refuse = |blocks| Some(RefusedCopy { file: path.clone(), blocks });
        let donor = match copy.open_published(path) {
            Ok(file) => Donor::from(file),
            Err(error) => {
                warn!(file = %path, error = in_words(&error), "the other copy does not have it");
                return Ok((0, refuse(None)));
            }
        };
        let missing = self.missing();
        let (right, refused) = match self.blocks {
            Some(blocks) => {
                let Examined { right, wrong } = examine(&donor, blocks, &missing, self.sources.go_on);
                (right, if wrong > 0 { refuse(Some(wrong)) } else { None })
            }
            None if is_right(&donor, self.entry, self.sources.go_on) => (missing, None),
            None => (RangeSet::new(), refuse(None)),
        };
        // Who was stopped has not read it all.
        let refused = refused.filter(|_| (self.sources.go_on)());
        if let Some(RefusedCopy { blocks, .. }) = &refused {
            warn!(file = %donor.path().display(), ?blocks, "the other copy is wrong, too; what is wrong is not used");
        }
        Ok((self.take(&donor, &right)?, refused))
    }

    /// Copies ranges that are right. Without room for the partial nothing is taken.
    fn take(&mut self, donor: &Donor, right: &RangeSet) -> Result<u64, WorkError> {
        if right.is_empty() {
            return Ok(0);
        }
        let Sources { bench, model, go_on, .. } = self.sources;
        let create = || Partial::create_anew(model, self.entry, bench.writer);
        let (partial, durable) = match &mut self.partial {
            Some(partial) => partial,
            none => match begin(&bench.may_write, create, Partial::discard) {
                Err(WriteError::Volume(error))
                    if self.sources.thrift == Thrift::Drop && error.code() == Code::NoSpace =>
                {
                    info!(file = %self.entry.path, "no room to take over what is right of it: it is fetched whole");
                    return Ok(0);
                }
                made => none.insert((made?, RangeSet::new())),
            },
        };
        let still_ours = || go_on() && (bench.may_write)().is_ok();
        let came = partial.graft(donor, right, &still_ours)?;
        (bench.may_write)()?;
        durable.extend(&came);
        if !go_on() {
            return Err(WorkError::Stopped);
        }
        Ok(came.len_bytes())
    }
}

/// What of the wanted ranges is right in a file.
struct Examined {
    right: RangeSet,
    /// Blocks that are not.
    wrong: u64,
}

/// Reads every block that has wanted bytes, from the disk where it can, and those that cannot be read are
/// wrong.
fn examine(donor: &Donor, blocks: &Blocks, wanted: &RangeSet, go_on: &(dyn Fn() -> bool + Sync)) -> Examined {
    let lacks = |index: &u64| {
        let block = RangeSet::from(blocks.range(*index));
        block.difference(wanted).len_bytes() < block.len_bytes()
    };
    let indices: Vec<u64> = (0..blocks.count()).filter(lacks).collect();
    let answers = in_parallel(cores(), &indices, |index| go_on() && block_is_right(donor, blocks, *index));
    let mut right = RangeSet::new();
    for (index, _) in indices.iter().zip(&answers).filter(|(_, is_right)| **is_right) {
        right.insert(blocks.range(*index));
    }
    let wrong = answers.iter().filter(|is_right| !**is_right).count() as u64;
    Examined { right: wanted.difference(&wanted.difference(&right)), wrong }
}

fn block_is_right(donor: &Donor, blocks: &Blocks, index: u64) -> bool {
    let range = blocks.range(index);
    if donor.len() < range.end {
        return false;
    }
    // What is shared with the original is what the disk has, not what a page says.
    donor.drop_pages(&range);
    let mut hasher = blocks.hasher(index);
    let fed = feed(donor, range, |bytes| hasher.update(bytes));
    fed.is_some() && hasher.is_right()
}

/// Whether the whole file is right: for want of digests of its blocks.
fn is_right(donor: &Donor, entry: &FileEntry, go_on: &dyn Fn() -> bool) -> bool {
    if donor.len() != entry.size {
        return false;
    }
    donor.drop_pages(&(0..entry.size));
    let mut hasher = FileHasher::new(entry);
    let step = BUFFER as u64 * 64;
    let mut at = 0;
    while at < entry.size {
        let end = entry.size.min(at + step);
        if !go_on() || feed(donor, at..end, |bytes| hasher.update(bytes)).is_none() {
            return false;
        }
        at = end;
    }
    hasher.finish().is_ok()
}

/// Reads a range to its end; nothing when it cannot be.
fn feed(donor: &Donor, range: std::ops::Range<u64>, mut take: impl FnMut(&[u8])) -> Option<()> {
    let mut buffer = vec![0; BUFFER];
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at).map_or(BUFFER, |left| left.min(BUFFER));
        match donor.read_at(at, &mut buffer[..want]) {
            Ok(count) if count > 0 => {
                take(&buffer[..count]);
                at += count as u64;
            }
            Ok(_) => return None,
            Err(error) => {
                info!(file = %donor.path().display(), at, error = in_words(&error), "a block cannot be read");
                return None;
            }
        }
    }
    Some(())
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
