//! Whether what is admitted fits on the volume, before the first byte.
//!
//! Owns the promises of room to running jobs. A promise is what its files still lack blocks for,
//! looked up on the disk whenever somebody asks: what has been written or reserved is missing
//! from the free space already and must not count twice.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use super::bench::Bench;
use super::error::WorkError;
use crate::core::identity::Observed;
use crate::core::manifest::FileEntry;
use crate::core::model_name::ModelName;
use crate::volume::adopt::leftovers;
use crate::volume::writer::PathHash;
use crate::volume::{ModelDir, VolumeError};

/// Room promised to jobs that run, by model.
#[derive(Debug, Default)]
pub(super) struct Promises(Mutex<BTreeMap<ModelName, Vec<Promised>>>);

/// A file that a running job brings.
#[derive(Debug)]
struct Promised {
    entry: FileEntry,
    /// What had the name when it was promised: an update's file has it until the end.
    before: Observed,
}

impl Bench {
    /// Promises room for the files that `name` is to get, or says how much is lacking; `frees` bytes become
    /// free on the way. Blocks.
    pub(super) fn admit(&self, name: &ModelName, wanted: Vec<FileEntry>, frees: u64) -> Result<(), WorkError> {
        let model = self.volume.model(name)?;
        let observe = |entry: &FileEntry| model.as_ref().map_or(Observed::Missing, |dir| dir.observe(&entry.path));
        let own = wanted.into_iter().map(|entry| Promised { before: observe(&entry), entry }).collect();
        let mut all = self.promises.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(name.clone(), own);
        let mut needed = 0u64;
        for (name, files) in all.iter() {
            needed = needed.saturating_add(outstanding(self.volume.model(name)?.as_ref(), files)?);
        }
        let own = all.get(name).map_or(Ok(0), |files| outstanding(model.as_ref(), files))?;
        let space = self.volume.space()?;
        let reserve = self.reserve.unwrap_or_else(|| space.default_reserve());
        let free = space.free.saturating_sub(reserve);
        if own > 0 && needed > free.saturating_add(frees) {
            all.remove(name);
            return Err(WorkError::NoSpace { needed, free, reserve });
        }
        Ok(())
    }
}

impl Promises {
    /// A job has ended.
    pub(super) fn drop(&self, name: &ModelName) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

/// Bytes that these files will still take of the free space.
fn outstanding(model: Option<&ModelDir>, files: &[Promised]) -> Result<u64, VolumeError> {
    let Some(model) = model else { return Ok(files.iter().map(|file| file.entry.size).sum()) };
    let allocated = allocated(model)?;
    let lacking = |file: &Promised| match model.observe(&file.entry.path) {
        now @ Observed::Present(found) if found.size == file.entry.size && now != file.before => 0,
        _ => file.entry.size.saturating_sub(allocated.get(&PathHash::of(&file.entry.path)).copied().unwrap_or(0)),
    };
    Ok(files.iter().map(lacking).sum())
}

/// Bytes of blocks that the partials in a directory have, by file. Creates nothing.
pub(super) fn allocated(model: &ModelDir) -> Result<HashMap<PathHash, u64>, VolumeError> {
    let mut allocated: HashMap<PathHash, u64> = HashMap::new();
    for leftover in leftovers(model)? {
        let most = allocated.entry(leftover.path().clone()).or_default();
        *most = leftover.allocated().max(*most);
    }
    Ok(allocated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::entry;
    use crate::volume::Volume;
    use crate::volume::partial::Partial;
    use crate::volume::writer::WriterId;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_promise_shrinks_as_blocks_are_taken_and_ends_when_a_file_is_in_place() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let (fresh, changed) = (entry("fresh", 4 * MIB), entry("changed", 2 * MIB));
        assert_eq!(outstanding(None, &[promised(&fresh, Observed::Missing)]).unwrap(), 4 * MIB);

        let model = volume.create_model(&ModelName::parse("org/x").unwrap()).unwrap();
        std::fs::write(model.path_of(&changed.path), vec![0; 2 << 20]).unwrap();
        let before = model.observe(&changed.path);
        let files = [promised(&fresh, Observed::Missing), promised(&changed, before)];
        assert_eq!(outstanding(Some(&model), &files).unwrap(), 6 * MIB, "an old file of that size is not the new one");

        let partial = Partial::create(&model, &fresh, WriterId::new(1, 1)).unwrap();
        partial.write_at(0, &vec![7; 3 << 20]).unwrap();
        assert!(outstanding(Some(&model), &files).unwrap() <= 3 * MIB, "what was written counts once");

        partial.discard().unwrap();
        std::fs::write(model.path_of(&fresh.path), vec![1; 4 << 20]).unwrap();
        assert_eq!(outstanding(Some(&model), &files).unwrap(), 2 * MIB);
    }

    fn promised(entry: &FileEntry, before: Observed) -> Promised {
        Promised { entry: entry.clone(), before }
    }
}
