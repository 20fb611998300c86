//! Good files of an older commit, set aside when an update or a removal takes their names.
//!
//! Locks may lie (P6), so a launcher may still read them: they are moved, never unlinked, and
//! removed only when they have been here for long enough.

use std::time::Duration;

use super::dir::{Dir, size_of};
use super::error::Result;
use super::identity;
use super::model_dir::ModelDir;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;

const RETIRED: &str = "retired";

impl ModelDir {
    /// Moves a file of `commit` aside; `false` when it is not there. Both folders are durable
    /// afterwards.
    pub fn retire(&self, path: &RepoPath, commit: &CommitId) -> Result<bool> {
        if self.root().look(path.as_str())?.is_none() {
            return Ok(false);
        }
        let place = self.make_own()?.make_folder(RETIRED)?.make_folder(&commit.to_string())?;
        let parent = match path.ancestors().last() {
            Some(parent) => place.make_folder(parent)?,
            None => place,
        };
        self.root().rename(path.as_str(), &parent, path.file_name())?;
        parent.sync()?;
        self.sync_parent(path)?;
        Ok(true)
    }

    /// Removes what was retired longer ago than `age` and returns the bytes it had.
    pub fn empty_retired(&self, age: Duration) -> Result<u64> {
        let Some(retired) = self.retired()? else { return Ok(0) };
        let now = self.filesystem_now()?;
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        let walk = retired.walk(|_| true)?;
        let mut freed = 0;
        for file in walk.files {
            let Some(stat) = retired.look(&file.name)? else { continue };
            // The rename that brought it here changed its ctime.
            if now.saturating_sub(identity::of(&stat).ctime_ns) >= age && retired.remove(&file.name)? {
                freed += size_of(&stat);
            }
        }
        for folder in walk.folders {
            // Not empty: something younger is in it.
            let _kept = retired.remove_folder(&folder);
        }
        Ok(freed)
    }

    /// Bytes that are retired and not yet removed.
    pub fn retired_bytes(&self) -> Result<u64> {
        let Some(retired) = self.retired()? else { return Ok(0) };
        let mut bytes = 0;
        for file in retired.walk(|_| true)?.files {
            bytes += retired.look(&file.name)?.map_or(0, |stat| size_of(&stat));
        }
        Ok(bytes)
    }

    /// Removes folders of the model that have become empty.
    pub fn remove_empty_folders(&self) -> Result<()> {
        for folder in self.walk()?.folders {
            let _kept = self.root().remove_folder(&folder);
        }
        Ok(())
    }

    fn retired(&self) -> Result<Option<Dir>> {
        match self.own()?.map(|own| own.folder(RETIRED)) {
            None => Ok(None),
            Some(Err(error)) if error.is_missing() => Ok(None),
            Some(other) => other.map(Some),
        }
    }
}
