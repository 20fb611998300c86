//! Good files of an older commit, set aside when an update or a removal takes their names.
//!
//! Locks may lie (P6), so a launcher may still read them: they are moved, never unlinked, and
//! removed only when they have been here for long enough.

use std::time::Duration;

use super::aside::Aside;
use super::dir::{Dir, size_of};
use super::error::{Result, VolumeError};
use super::identity;
use super::model_dir::ModelDir;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;

const RETIRED: &str = "retired";
/// Times that a file of one commit may be retired before the first of them is old enough to go.
const TIMES_MAX: usize = 10_000;

impl ModelDir {
    /// Moves a file of `commit` aside and returns where it is now; `None` when it is not there.
    /// What is retired already stays: somebody may read it still. Both folders are durable
    /// afterwards.
    pub fn retire(&self, path: &RepoPath, commit: &CommitId) -> Result<Option<Aside>> {
        if self.root().look(path.as_str())?.is_none() {
            return Ok(None);
        }
        let retired = self.make_own()?.make_folder(RETIRED)?;
        for number in 0..TIMES_MAX {
            let place = match number {
                0 => commit.to_string(),
                _ => format!("{commit}.{number}"),
            };
            let place = match path.ancestors().last() {
                Some(parent) => format!("{place}/{parent}"),
                None => place,
            };
            let dir = retired.make_folder(&place)?;
            match self.root().rename_new(path.as_str(), &dir, path.file_name()) {
                Err(VolumeError::Occupied { .. }) => continue,
                other => other?,
            }
            dir.sync()?;
            self.sync_parent(path)?;
            return Ok(Some(Aside { dir, name: path.file_name().to_owned() }));
        }
        Err(VolumeError::Occupied { path: retired.shown(&commit.to_string()).join(path.as_str()) })
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

#[cfg(test)]
mod tests {
    use super::super::testing::{lfs_entry, model, names, verified};
    use super::*;

    #[test]
    fn retired_files_stay_until_they_are_old_enough() {
        let (_place, model) = model();
        let commit = CommitId::from_bytes([7; 20]);
        let (a, b) = (lfs_entry("sub/a", b"four"), lfs_entry("b", b"one"));
        for (entry, data) in [(&a, &b"four"[..]), (&b, b"one")] {
            verified(&model, entry, data).publish(&model).unwrap();
            assert!(model.retire(&entry.path, &commit).unwrap().is_some());
            assert!(model.retire(&entry.path, &commit).unwrap().is_none());
        }
        let place = model.path().join(".muster/retired").join(commit.to_string());
        assert_eq!(std::fs::read(place.join("sub/a")).unwrap(), b"four");
        assert_eq!(model.retired_bytes().unwrap(), 7);
        assert_eq!(model.empty_retired(Duration::from_secs(3600)).unwrap(), 0);
        assert_eq!(model.empty_retired(Duration::ZERO).unwrap(), 7);
        assert!(names(&model.path().join(".muster/retired")).is_empty());
        model.remove_empty_folders().unwrap();
        assert_eq!(names(model.path()), [".muster"]);
    }

    #[test]
    fn what_is_retired_twice_is_kept_twice_and_can_go_back() {
        let (_place, model) = model();
        let commit = CommitId::from_bytes([7; 20]);
        let entry = lfs_entry("sub/a", b"x");
        for number in ["", ".1"] {
            verified(&model, &entry, b"x").publish(&model).unwrap();
            let aside = model.retire(&entry.path, &commit).unwrap().unwrap();
            assert!(aside.path().ends_with(format!("retired/{commit}{number}/sub/a")));
            assert!(aside.path().exists());
            model.put_back(&entry.path, &aside).unwrap();
            assert!(model.put_back(&entry.path, &aside).unwrap_err().is_missing());
            model.retire(&entry.path, &commit).unwrap().unwrap();
        }
        verified(&model, &entry, b"x").publish(&model).unwrap();
        let aside = model.retire(&entry.path, &commit).unwrap().unwrap();
        verified(&model, &entry, b"x").publish(&model).unwrap();
        assert!(matches!(model.put_back(&entry.path, &aside), Err(VolumeError::Occupied { .. })));
        assert!(aside.path().exists(), "nothing is replaced");
    }

    #[test]
    fn a_file_that_is_retired_by_half_is_retired() {
        let (_place, model) = model();
        let (entry, commit) = (lfs_entry("a", b"old"), CommitId::from_bytes([7; 20]));
        verified(&model, &entry, b"old").publish(&model).unwrap();
        let place = model.path().join(".muster/retired").join(commit.to_string());
        std::fs::create_dir_all(&place).unwrap();
        // As btrfs leaves it when the power goes between the syncs of the two folders.
        std::fs::hard_link(model.path_of(&entry.path), place.join("a")).unwrap();
        assert!(model.retire(&entry.path, &commit).unwrap().is_some());
        assert!(!model.path_of(&entry.path).exists());
        assert_eq!(std::fs::read(place.join("a")).unwrap(), b"old");
    }

    #[test]
    fn a_launcher_keeps_reading_what_was_retired() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"old");
        verified(&model, &entry, b"old").publish(&model).unwrap();
        let open = model.open_published(&entry.path).unwrap();
        model.retire(&entry.path, &CommitId::from_bytes([1; 20])).unwrap();
        verified(&model, &lfs_entry("a", b"new"), b"new").publish(&model).unwrap();
        let mut bytes = [0; 3];
        open.read_at(0, &mut bytes).unwrap();
        assert_eq!(&bytes, b"old");
    }
}
