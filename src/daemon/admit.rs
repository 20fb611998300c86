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
    /// Promises room for the files that `name` is to get, or says how much is lacking. Blocks.
    pub(super) fn admit(&self, name: &ModelName, wanted: Vec<FileEntry>) -> Result<(), WorkError> {
        let model = self.volume.model(name)?;
        let observe = |entry: &FileEntry| model.as_ref().map_or(Observed::Missing, |dir| dir.observe(&entry.path));
        let promised = wanted.into_iter().map(|entry| Promised { before: observe(&entry), entry }).collect();
        let mut promises = self.promises.0.lock().unwrap_or_else(PoisonError::into_inner);
        promises.insert(name.clone(), promised);
        let mut needed = 0u64;
        for (name, files) in promises.iter() {
            needed = needed.saturating_add(outstanding(self.volume.model(name)?.as_ref(), files)?);
        }
        let own = promises.get(name).map_or(Ok(0), |files| outstanding(model.as_ref(), files))?;
        let space = self.volume.space()?;
        let reserve = self.reserve.unwrap_or_else(|| space.default_reserve());
        let free = space.free.saturating_sub(reserve);
        if own > 0 && needed > free {
            promises.remove(name);
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
