//! Partials that earlier writers left behind.
//!
//! Invariant (P6): a partial of a writer that may still live is never written into. It is
//! fenced, that is renamed so that a late publish of that writer fails, and its claimed ranges
//! are copied; only a provably dead writer's file is taken as it is.

use rustix::fs::FileType;

use super::claims_file;
use super::dir::{Dir, kind_of, size_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::partial::{Partial, Place, Resumed, drop_pages};
use super::writer::{Part, PartialName, PathHash, WriterId};
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;

/// Bytes copied between two looks at whether to stop.
const COPY_STEP: u64 = 64 << 20;

/// A partial of an earlier writer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    name: PartialName,
    fenced: bool,
    size: u64,
    has_claims: bool,
}

/// How a partial may be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Its writer is provably dead: go on in the same file.
    InPlace {
        /// The writer died since this machine booted, so what it wrote in order is still there,
        /// claimed or not.
        same_boot: bool,
    },
    /// Its writer may wake up: copy what it claimed into a file of one's own. The leftover stays
    /// until it is discarded.
    Copy,
}

impl Leftover {
    /// Which file it is of.
    pub const fn path(&self) -> &PathHash {
        &self.name.path
    }

    /// Who wrote it.
    pub const fn writer(&self) -> WriterId {
        self.name.writer
    }

    /// Its length in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whether claims stand beside it.
    pub const fn has_claims(&self) -> bool {
        self.has_claims
    }

    /// Removes it and its claims.
    pub fn discard(self, model: &ModelDir) -> Result<()> {
        let dir = model.partials()?;
        dir.remove(&self.file_name())?;
        dir.remove(&self.name.claims()).map(drop)
    }

    fn file_name(&self) -> String {
        if self.fenced { self.name.fenced() } else { self.name.partial() }
    }

    /// Takes it out of its writer's reach.
    fn fence(&mut self, dir: &Dir) -> Result<()> {
        if !self.fenced {
            dir.rename(&self.name.partial(), dir, &self.name.fenced())?;
            self.fenced = true;
        }
        Ok(())
    }
}

/// Fences every partial of other writers than `ours` and lists them. Claims without a partial
/// are removed.
pub fn fence(model: &ModelDir, ours: WriterId) -> Result<Vec<Leftover>> {
    let dir = model.partials()?;
    let mut found = leftovers(model)?;
    found.retain(|leftover| leftover.writer() != ours);
    for leftover in &mut found {
        match leftover.fence(&dir) {
            // Its writer was faster: it is published or gone, and the final name will tell.
            Err(error) if error.is_missing() => leftover.size = 0,
            other => other?,
        }
    }
    dir.sync()?;
    Ok(found)
}

/// The partials in a model directory, of whatever writer.
pub fn leftovers(model: &ModelDir) -> Result<Vec<Leftover>> {
    let Some(dir) = existing_partials(model)? else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut claims = Vec::new();
    for entry in dir.list()? {
        let Some((name, part)) = PartialName::parse(&entry.name) else { continue };
        // A link or folder with such a name was planted; it is left alone.
        let stat = dir.look(&entry.name)?.filter(|stat| kind_of(stat) == FileType::RegularFile);
        let Some(stat) = stat else { continue };
        match part {
            Part::Claims => claims.push(name),
            Part::Fenced | Part::Partial => {
                found.push(Leftover { name, fenced: part == Part::Fenced, size: size_of(&stat), has_claims: false })
            }
        }
    }
    for leftover in &mut found {
        leftover.has_claims = claims.contains(&leftover.name);
    }
    found.sort_by(|a, b| (&a.name.path, a.writer()).cmp(&(&b.name.path, b.writer())));
    Ok(found)
}

impl Partial {
    /// Takes over a partial of an earlier writer as one of `writer`'s. The ranges that come with
    /// it are durable and claimed, and no hash has seen them yet.
    ///
    /// `go_on` is asked now and then while copying; once it says no, what was copied is all that
    /// comes.
    ///
    /// # Errors
    /// [`VolumeError::Occupied`] when `writer` has a partial of this file already.
    pub fn take_over(
        model: &ModelDir,
        entry: &FileEntry,
        writer: WriterId,
        mut leftover: Leftover,
        how: TakeOver,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Resumed> {
        let dir = model.partials()?;
        leftover.fence(&dir)?;
        dir.sync()?;
        let claimed = claims_file::read(&dir, &leftover.name, entry)?;
        match how {
            TakeOver::InPlace { same_boot } => {
                let place = Place::of(model, entry, writer)?;
                take_in_place(place, &leftover, claimed, same_boot)
            }
            TakeOver::Copy => copy(Self::create(model, entry, writer)?, &dir, &leftover, &claimed, go_on),
        }
    }
}

fn take_in_place(place: Place, leftover: &Leftover, claimed: RangeSet, same_boot: bool) -> Result<Resumed> {
    let dir = &place.dir;
    let file = dir.open_for_writing(&leftover.file_name())?;
    let stat = stat_of(&file).map_err(|e| place.fail(Step::Look, e))?;
    if stat.st_nlink != 1 {
        // Another name for the same bytes: writing here would write there.
        return Err(VolumeError::Replaced { path: dir.shown(&leftover.file_name()) });
    }
    if dir.look(&place.name.partial())?.is_some() {
        return Err(VolumeError::Occupied { path: place.shown() });
    }
    let mut trusted = claimed;
    let prefix = 0..size_of(&stat);
    // One byte more than the file has: it was written out of order, and its length says nothing.
    if same_boot && prefix.end <= place.entry.size {
        // The writer is gone, its pages are not. Synced and dropped, the next read comes from
        // the disk: an error that only the dead writer was told of then shows in the hash.
        file.sync_data().map_err(|e| place.fail(Step::Sync, e))?;
        drop_pages(&file, &prefix);
        trusted.insert(prefix);
    }
    // Claims first: a crash in between leaves the leftover and its own claims as they were.
    let (dir, name) = (place.dir.clone(), place.name.partial());
    let resumed = Partial::existing(place, file, trusted)?;
    dir.rename_new(&leftover.file_name(), &dir, &name)?;
    dir.sync()?;
    dir.remove(&leftover.name.claims())?;
    Ok(resumed)
}

fn copy(
    partial: Partial,
    dir: &Dir,
    leftover: &Leftover,
    claimed: &RangeSet,
    go_on: &dyn Fn() -> bool,
) -> Result<Resumed> {
    let source = dir.open_file(&leftover.file_name())?;
    let mut durable = RangeSet::new();
    'ranges: for range in claimed.iter() {
        let mut at = range.start;
        while at < range.end {
            if !go_on() {
                break 'ranges;
            }
            let step = at..range.end.min(at + COPY_STEP);
            let copied = partial.fill_from(&source, &step)?;
            durable.insert(at..at + copied);
            if copied < step.end - at {
                // Shorter than its claims: what is missing is fetched.
                break;
            }
            at = step.end;
        }
    }
    partial.checkpoint(&durable)?;
    Ok(Resumed { partial, durable })
}

fn existing_partials(model: &ModelDir) -> Result<Option<Dir>> {
    match model.own()?.map(|own| own.folder("partial")) {
        None => Ok(None),
        Some(Err(error)) if error.is_missing() => Ok(None),
        Some(other) => other.map(Some),
    }
}
