//! Partials that earlier writers left behind.
//!
//! Invariant (P6): a partial of a writer that may still live is never written into. It is
//! fenced, that is renamed so that a late publish of that writer fails, and its claimed ranges
//! are copied; only a provably dead writer's file is taken as it is.

use std::collections::{HashMap, HashSet};
use std::fs::File;

use rustix::fs::FileType;

use super::claims_file::{self, Claimed};
use super::dir::{Dir, kind_of, size_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::pages::drop_pages;
use super::partial::{Partial, Place, Resumed};
use super::writer::{Part, PartialName, PathHash, WriterId};
use super::{identity, small_file, sync};
use crate::core::identity::Observed;
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
    allocated: u64,
    has_claims: bool,
    inode: u64,
    links: u64,
}

/// How a partial may be taken over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeOver {
    /// Its writer is provably dead: go on in the same file.
    InPlace {
        /// The writer died since this machine booted, so what it wrote is still there, claimed or
        /// not.
        same_boot: bool,
    },
    /// Its writer may wake up: copy what it claimed into a file of one's own. The leftover stays
    /// until it is discarded.
    Copy,
}

impl TakeOver {
    /// The ranges that may be taken of a leftover of `len` bytes; what the disk lacks of them is
    /// found out by whoever opens it.
    fn trusted(self, claimed: Claimed, len: u64, entry: &FileEntry) -> RangeSet {
        let same_boot = self == Self::InPlace { same_boot: true };
        let of_other = claimed.of_other;
        let mut trusted = claimed.trusted(same_boot);
        // One byte more than the file has: it was written out of order, and its length says nothing.
        if same_boot && !of_other && len <= entry.size {
            trusted.insert(0..len);
        }
        trusted
    }
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

    /// Bytes of the blocks it has, written or only reserved.
    pub const fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Whether claims stand beside it.
    pub const fn has_claims(&self) -> bool {
        self.has_claims
    }

    /// Bytes of `entry` that it brings when it is taken over like this: what it claims, and its
    /// in-order length where that can be trusted; none when it is of another content. Creates
    /// nothing.
    pub fn worth(&self, model: &ModelDir, entry: &FileEntry, how: TakeOver) -> Result<u64> {
        let Some(dir) = existing_partials(model)? else { return Ok(0) };
        let claimed = claims_file::look(&dir, &self.name, entry)?;
        Ok(how.trusted(claimed, self.size, entry).len_bytes())
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

/// Fences every partial of other writers than `ours` and lists them. Claims without a partial,
/// and small files half written, are removed: a manifest or receipt that an earlier writer is
/// about to name will find nothing to name.
///
/// `still_ours` is asked before each step, and after: what was fenced by one who had lost the volume
/// is the new owner's and gets its name back. The caller asks once more before it uses anything.
pub fn fence(model: &ModelDir, ours: WriterId, still_ours: &dyn Fn() -> bool) -> Result<Vec<Leftover>> {
    let dir = model.partials()?;
    let Found { partials, orphans } = find(&dir)?;
    let mut fenced = Vec::new();
    for mut leftover in partials.into_iter().filter(|leftover| leftover.writer() != ours) {
        if !still_ours() {
            return Ok(fenced);
        }
        let was_fenced = leftover.fenced;
        match leftover.fence(&dir) {
            // Its writer was faster: it is published or gone, and the final name will tell.
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error),
            Ok(()) if !was_fenced && !still_ours() => {
                dir.rename_new(&leftover.name.fenced(), &dir, &leftover.name.partial())?;
                return Ok(fenced);
            }
            Ok(()) => fenced.push(leftover),
        }
    }
    if !still_ours() {
        return Ok(fenced);
    }
    small_file::sweep_all(&model.make_own()?)?;
    small_file::sweep_all(&dir)?;
    for orphan in orphans.iter().filter(|orphan| orphan.writer != ours) {
        dir.remove(&orphan.claims())?;
    }
    dir.sync()?;
    Ok(fenced)
}

/// The partials in a model directory, of whatever writer.
pub fn leftovers(model: &ModelDir) -> Result<Vec<Leftover>> {
    match existing_partials(model)? {
        None => Ok(Vec::new()),
        Some(dir) => Ok(find(&dir)?.partials),
    }
}

/// Removes leftovers that are a second name of a published file, and says how many. Giving a file its
/// final name is a change of two folders, and a file system that lost its power may have kept both
/// names (btrfs does): whatever happens to the leftover then changes the times of the published file.
pub fn drop_second_names(model: &ModelDir, entries: &[FileEntry]) -> Result<usize> {
    let mut doubled = leftovers(model)?;
    doubled.retain(|leftover| leftover.links > 1);
    if doubled.is_empty() {
        return Ok(0);
    }
    let published: HashMap<_, _> = entries.iter().map(|entry| (PathHash::of(&entry.path), entry)).collect();
    let is_second = |leftover: &Leftover| {
        let observed = published.get(leftover.path()).map(|entry| model.observe(&entry.path));
        matches!(observed, Some(Observed::Present(found)) if found.inode == leftover.inode)
    };
    doubled.retain(is_second);
    let dropped = doubled.len();
    for leftover in doubled {
        leftover.discard(model)?;
    }
    if dropped > 0 {
        model.partials()?.sync()?;
    }
    Ok(dropped)
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
        let claimed = claims_file::look(&dir, &leftover.name, entry)?;
        match how {
            TakeOver::InPlace { .. } => take_in_place(Place::of(model, entry, writer)?, &leftover, claimed, how),
            TakeOver::Copy => {
                let claimed = claimed.trusted(false);
                let source = dir.open_file(&leftover.file_name())?;
                copy_ranges(Self::create(model, entry, writer)?, &source, &claimed, go_on)
            }
        }
    }
}

/// What is in the folder of the partials.
struct Found {
    partials: Vec<Leftover>,
    /// Claims without a partial.
    orphans: HashSet<PartialName>,
}

fn find(dir: &Dir) -> Result<Found> {
    let mut partials = Vec::new();
    let mut claims = HashSet::new();
    for entry in dir.list()? {
        let Some((name, part)) = PartialName::parse(&entry.name) else { continue };
        // A link or folder with such a name was planted; it is left alone.
        let stat = dir.look(&entry.name)?.filter(|stat| kind_of(stat) == FileType::RegularFile);
        let Some(stat) = stat else { continue };
        match part {
            Part::Claims => {
                claims.insert(name);
            }
            Part::Fenced | Part::Partial => {
                let (size, fenced) = (size_of(&stat), part == Part::Fenced);
                let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
                let (inode, links) = (identity::of(&stat).inode, stat.st_nlink);
                partials.push(Leftover { name, fenced, size, allocated, has_claims: false, inode, links });
            }
        }
    }
    for leftover in &mut partials {
        leftover.has_claims = claims.remove(&leftover.name);
    }
    partials.sort_by(|a, b| (&a.name.path, a.writer()).cmp(&(&b.name.path, b.writer())));
    Ok(Found { partials, orphans: claims })
}

fn take_in_place(place: Place, leftover: &Leftover, claimed: Claimed, how: TakeOver) -> Result<Resumed> {
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
    let trusted = how.trusted(claimed, size_of(&stat), &place.entry);
    if how == (TakeOver::InPlace { same_boot: true }) {
        // The writer is gone, its pages are not. Synced and dropped, the next read comes from
        // the disk: an error that only the dead writer was told of then shows in the hash.
        sync::data(&file, "leftover").map_err(|e| place.fail(Step::Sync, e))?;
        trusted.iter().for_each(|range| drop_pages(&file, &range));
    }
    // Claims first: a crash in between leaves the leftover and its own claims as they were.
    let (dir, name) = (place.dir.clone(), place.name.partial());
    let resumed = Partial::existing(place, file, trusted)?;
    dir.rename_new(&leftover.file_name(), &dir, &name)?;
    dir.sync()?;
    dir.remove(&leftover.name.claims())?;
    Ok(resumed)
}

/// Copies ranges of `source` into a partial that has nothing yet, and claims what came.
pub(super) fn copy_ranges(
    partial: Partial,
    source: &File,
    wanted: &RangeSet,
    go_on: &dyn Fn() -> bool,
) -> Result<Resumed> {
    let mut durable = RangeSet::new();
    'ranges: for range in wanted.iter() {
        let mut at = range.start;
        while at < range.end {
            if !go_on() {
                break 'ranges;
            }
            let step = at..range.end.min(at + COPY_STEP);
            let copied = partial.fill_from(source, &step)?;
            durable.insert(at..at + copied);
            if copied < step.end - at {
                // Shorter than was said: what is missing is fetched.
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

#[cfg(test)]
mod tests {
    use super::super::testing::{OURS, THEIRS, bytes, lfs_entry, model, names, proof, set, verified};
    use super::*;
    use crate::core::receipt::Proved;

    const HERE: TakeOver = TakeOver::InPlace { same_boot: true };
    const BOOTED: TakeOver = TakeOver::InPlace { same_boot: false };

    /// A partial of theirs: written in order up to `written`, `claims` of it claimed.
    fn left(model: &ModelDir, entry: &FileEntry, data: &[u8], claims: &[(u64, u64)]) -> Leftover {
        let partial = Partial::create(model, entry, THEIRS).unwrap();
        partial.write_at(0, data).unwrap();
        partial.checkpoint(&set(claims)).unwrap();
        drop(partial);
        only(model)
    }

    fn only(model: &ModelDir) -> Leftover {
        let mut found = leftovers(model).unwrap();
        assert_eq!(found.len(), 1);
        found.remove(0)
    }

    fn finish(model: &ModelDir, resumed: Resumed, data: &[u8]) {
        let Resumed { partial, durable } = resumed;
        let entry = partial.entry().clone();
        for range in durable.missing(entry.size).iter() {
            let at = |offset: u64| usize::try_from(offset).unwrap();
            partial.write_at(range.start, &data[at(range.start)..at(range.end)]).unwrap();
        }
        let sealed = partial.seal().unwrap();
        let mut back = vec![0; data.len()];
        sealed.read_at(0, &mut back).unwrap();
        sealed.verified(proof(&entry, &back), Proved::Readback).unwrap().publish(model).unwrap();
    }

    #[test]
    fn on_the_same_boot_an_in_order_partial_goes_on_from_its_length() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let leftover = left(&model, &entry, &data[..700], &[(0, 300)]);
        assert_eq!((leftover.size(), leftover.has_claims(), leftover.writer()), (700, true, THEIRS));
        let resumed = Partial::take_over(&model, &entry, OURS, leftover, HERE, &|| true).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 700)]));
        assert_eq!(only(&model).writer(), OURS);
        drop(resumed);
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert_eq!(resumed.durable, set(&[(0, 700)]), "what was taken over is claimed");
        finish(&model, resumed, &data);
        assert!(names(&model.path().join(".muster/partial")).is_empty());
    }

    #[test]
    fn after_another_boot_only_claims_count() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let leftover = left(&model, &entry, &data[..700], &[(0, 300)]);
        let resumed = Partial::take_over(&model, &entry, OURS, leftover, BOOTED, &|| true).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 300)]));
        assert_eq!(resumed.partial.in_order_end(), 300);
        finish(&model, resumed, &data);
    }

    #[test]
    fn on_the_same_boot_a_scattered_partial_goes_on_from_its_notes() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, THEIRS).unwrap();
        partial.write_at(0, &data[..100]).unwrap();
        partial.write_at(500, &data[500..600]).unwrap();
        partial.note(&set(&[(500, 600)])).unwrap();
        partial.write_at(900, &data[900..]).unwrap();
        partial.checkpoint(&set(&[(900, 1000)])).unwrap();
        drop(partial);
        let leftover = only(&model);
        assert_eq!(
            leftover.worth(&model, &entry, HERE).unwrap(),
            300,
            "the prefix was noted when it stopped being all"
        );
        assert_eq!(leftover.worth(&model, &entry, BOOTED).unwrap(), 100);
        assert_eq!(leftover.worth(&model, &entry, TakeOver::Copy).unwrap(), 100);
        let resumed = Partial::take_over(&model, &entry, OURS, leftover, HERE, &|| true).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 100), (500, 600), (900, 1000)]));
        drop(resumed);
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert_eq!(resumed.durable, set(&[(0, 100), (500, 600), (900, 1000)]), "what was taken over is claimed");
        finish(&model, resumed, &data);
    }

    #[test]
    fn after_another_boot_notes_do_not_count() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, THEIRS).unwrap();
        partial.write_at(500, &data[500..]).unwrap();
        partial.note(&set(&[(500, 1000)])).unwrap();
        drop(partial);
        let resumed = Partial::take_over(&model, &entry, OURS, only(&model), BOOTED, &|| true).unwrap();
        assert!(resumed.durable.is_empty());
        finish(&model, resumed, &data);
    }

    #[test]
    fn the_length_of_a_scattered_partial_is_not_believed() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, THEIRS).unwrap();
        partial.write_at(0, &data[..100]).unwrap();
        partial.write_at(900, &data[900..]).unwrap();
        partial.checkpoint(&set(&[(0, 50), (900, 1000)])).unwrap();
        drop(partial);
        let resumed = Partial::take_over(&model, &entry, OURS, only(&model), BOOTED, &|| true).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 50), (900, 1000)]));
        finish(&model, resumed, &data);
    }

    #[test]
    fn a_late_writer_touches_neither_our_partial_nor_the_published_file() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let late = Partial::create(&model, &entry, THEIRS).unwrap();
        late.write_at(0, &data[..500]).unwrap();
        late.checkpoint(&set(&[(0, 500)])).unwrap();
        let leftover = fence(&model, OURS, &|| true).unwrap().remove(0);
        let resumed = Partial::take_over(&model, &entry, OURS, leftover.clone(), TakeOver::Copy, &|| true).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 500)]));
        late.write_at(0, &[0; 1000]).unwrap();
        finish(&model, resumed, &data);
        late.write_at(0, &[0; 1000]).unwrap();
        assert_eq!(std::fs::read(model.path_of(&entry.path)).unwrap(), data);
        leftover.discard(&model).unwrap();
        late.seal().unwrap();
        assert!(names(&model.path().join(".muster/partial")).is_empty());
    }

    #[test]
    fn a_copy_that_is_stopped_brings_what_it_has() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let partial = Partial::create(&model, &entry, THEIRS).unwrap();
        partial.write_at(0, &data).unwrap();
        partial.checkpoint(&set(&[(0, 100), (200, 300)])).unwrap();
        let asked = std::cell::Cell::new(0);
        let once = || asked.replace(asked.get() + 1) == 0;
        let resumed = Partial::take_over(&model, &entry, OURS, only(&model), TakeOver::Copy, &once).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 100)]));
    }

    #[test]
    fn fencing_twice_is_fencing_once_and_ours_stays() {
        let (_place, model) = model();
        let data = bytes(100);
        let (a, b) = (lfs_entry("a", &data), lfs_entry("b", &data));
        left(&model, &a, &data[..50], &[(0, 20)]);
        let _ours = Partial::create(&model, &b, OURS).unwrap();
        let first = fence(&model, OURS, &|| true).unwrap();
        let second = fence(&model, OURS, &|| true).unwrap();
        assert_eq!(first, second);
        assert_eq!(first.iter().map(Leftover::writer).collect::<Vec<_>>(), [THEIRS]);
        assert!(first[0].path() == &PathHash::of(&a.path) && first[0].has_claims());
        assert!(Partial::resume(&model, &b, OURS).unwrap().is_some());
        let resumed = Partial::take_over(&model, &a, OURS, first[0].clone(), HERE, &|| true).unwrap();
        assert_eq!(resumed.durable, set(&[(0, 50)]));
    }

    #[test]
    fn who_lost_the_volume_fences_nothing_of_the_new_owner() {
        let (_place, model) = model();
        let data = bytes(100);
        let _theirs = Partial::create(&model, &lfs_entry("a", &data), THEIRS).unwrap();
        let (before, asked) = (only(&model), std::cell::Cell::new(0));
        let lost_after = |times: usize| {
            asked.set(0);
            move |asked: &std::cell::Cell<usize>| asked.replace(asked.get() + 1) < times
        };
        for times in 0..2 {
            let still_ours = lost_after(times);
            assert!(fence(&model, OURS, &|| still_ours(&asked)).unwrap().is_empty());
            assert_eq!(only(&model), before, "lost after {times} looks");
        }
    }

    #[test]
    fn a_writer_whose_partial_was_taken_over_leaves_no_claims_behind() {
        let (_place, model) = model();
        let data = bytes(100);
        let entry = lfs_entry("a", &data);
        let late = Partial::create(&model, &entry, THEIRS).unwrap();
        late.write_at(0, &data).unwrap();
        let leftover = fence(&model, OURS, &|| true).unwrap().remove(0);
        late.checkpoint(&set(&[(0, 50)])).unwrap();
        assert!(only(&model).has_claims(), "as long as the partial is there, its claims are worth something");
        leftover.discard(&model).unwrap();
        let late = Partial::create(&model, &entry, THEIRS).unwrap();
        late.write_at(0, &data).unwrap();
        fence(&model, OURS, &|| true).unwrap().remove(0).discard(&model).unwrap();
        assert!(late.checkpoint(&set(&[(0, 100)])).unwrap_err().is_missing());
        assert!(names(&model.path().join(".muster/partial")).is_empty());
    }

    #[test]
    fn a_receipt_that_an_earlier_writer_is_about_to_name_is_gone() {
        let (_place, model) = model();
        let half = model.path().join(".muster/.receipt.json.00000000000000ff.tmp");
        std::fs::write(&half, b"{").unwrap();
        fence(&model, OURS, &|| true).unwrap();
        assert!(!half.exists());
    }

    #[test]
    fn claims_without_a_partial_go_when_their_writer_is_fenced() {
        let (_place, model) = model();
        let folder = model.path().join(".muster/partial");
        let of = |writer| PartialName::of(&lfs_entry("a", b"").path, writer).claims();
        std::fs::write(folder.join(of(THEIRS)), b"").unwrap();
        std::fs::write(folder.join(of(OURS)), b"").unwrap();
        assert!(fence(&model, OURS, &|| true).unwrap().is_empty());
        assert_eq!(names(&folder), [of(OURS)]);
    }

    #[test]
    fn claims_of_another_content_bring_nothing() {
        let (_place, model) = model();
        let data = bytes(1000);
        let leftover = left(&model, &lfs_entry("a", &data), &data, &[(0, 1000)]);
        let newer = lfs_entry("a", &bytes(999));
        let resumed = Partial::take_over(&model, &newer, OURS, leftover, BOOTED, &|| true).unwrap();
        assert!(resumed.durable.is_empty());
        finish(&model, resumed, &bytes(999));
    }

    #[test]
    fn a_leftover_is_worth_what_it_will_bring() {
        let (_place, model) = model();
        let data = bytes(1000);
        let old = lfs_entry("a", &data);
        let leftover = left(&model, &old, &data[..700], &[(0, 300)]);
        assert_eq!(leftover.worth(&model, &old, TakeOver::Copy).unwrap(), 300, "a copy brings claims only");
        assert_eq!(leftover.worth(&model, &old, TakeOver::InPlace { same_boot: true }).unwrap(), 700);
        let new = lfs_entry("a", &bytes(1001)[1..]);
        assert_eq!(leftover.worth(&model, &new, TakeOver::InPlace { same_boot: true }).unwrap(), 0);
        let resumed = Partial::take_over(&model, &new, OURS, leftover, HERE, &|| true).unwrap();
        assert!(resumed.durable.is_empty());
    }

    #[test]
    fn a_file_with_a_second_name_is_not_written_into() {
        let (place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("a", &data);
        let leftover = left(&model, &entry, &data[..500], &[(0, 500)]);
        let folder = model.path().join(".muster/partial");
        std::fs::hard_link(folder.join(leftover.file_name()), place.path().join("second")).unwrap();
        let refused = Partial::take_over(&model, &entry, OURS, leftover, HERE, &|| true);
        assert!(matches!(refused, Err(VolumeError::Replaced { .. })));
        assert_eq!(std::fs::read(place.path().join("second")).unwrap(), data[..500]);
    }

    #[test]
    fn a_partial_that_is_a_published_file_goes_before_that_is_looked_at_and_another_stays() {
        let (place, model) = model();
        let data = bytes(1000);
        let (a, b) = (lfs_entry("sub/a", &data), lfs_entry("b", &data));
        let folder = model.path().join(".muster/partial");
        let partial = folder.join(PartialName::of(&a.path, THEIRS).partial());
        verified(&model, &a, &data).publish(&model).unwrap();
        // As btrfs leaves it when the power goes after the sync of the final name's folder.
        std::fs::hard_link(model.path_of(&a.path), &partial).unwrap();
        left_alone(&model, &b, &data, place.path());
        assert_eq!(drop_second_names(&model, &[a.clone(), b.clone()]).unwrap(), 1);
        assert!(!partial.exists());
        assert_eq!(std::fs::read(model.path_of(&a.path)).unwrap(), data);
        assert_eq!(only(&model).path(), &PathHash::of(&b.path));
        assert_eq!(drop_second_names(&model, &[a, b]).unwrap(), 0);
    }

    /// A partial with a second name outside of the model.
    fn left_alone(model: &ModelDir, entry: &FileEntry, data: &[u8], outside: &std::path::Path) {
        drop(Partial::create(model, entry, THEIRS).unwrap().write_at(0, data));
        let partial = PartialName::of(&entry.path, THEIRS).partial();
        std::fs::hard_link(model.path().join(".muster/partial").join(partial), outside.join("second")).unwrap();
    }

    #[test]
    fn planted_names_are_no_leftovers() {
        let (_place, model) = model();
        let folder = model.path().join(".muster/partial");
        let name = PartialName::of(&lfs_entry("a", b"").path, THEIRS);
        std::os::unix::fs::symlink("/etc/passwd", folder.join(name.partial())).unwrap();
        std::fs::write(folder.join("something.incomplete"), b"").unwrap();
        assert!(leftovers(&model).unwrap().is_empty());
    }
}
