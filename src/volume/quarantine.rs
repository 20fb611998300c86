//! Bad bytes, set aside for whoever wants to know what they were.
//!
//! Bounded in files and bytes: the oldest make room. Nothing in here is ever used again. What muster did
//! not bring stays all the same, until somebody prunes it: it may be the only copy of something else.

use std::path::PathBuf;

use sha2::Digest as _;

use super::aside::Aside;
use super::dir::{Dir, size_of};
use super::error::{Result, VolumeError};
use super::inventory::{self, folder};
use super::layout::Volume;
use super::model_dir::ModelDir;
use crate::core::digest::Sha256;
use crate::core::model_name::ModelName;
use crate::core::repo_path::RepoPath;

/// The folder's name.
const FOLDER: &str = "quarantine";
/// Digits of what stands for a model in a name here.
const TAG_DIGITS: usize = 12;
/// What follows them in the name of a file that stays until it is pruned.
const STAYS: &str = ".stays";

/// Most files kept.
const FILES_MAX: usize = 64;
/// Most bytes kept: a few shards.
const BYTES_MAX: u64 = 64 << 30;
/// Bytes of the file's own name in a name here.
const NAME_MAX: usize = 150;
/// Highest number of a kept file that is believed.
const NUMBER_MAX: u64 = u64::MAX >> 1;
/// Names that are tried when another writer takes the same number.
const TRIES: u64 = 16;

/// The quarantine of a volume, or of a model directory that has none.
#[derive(Debug, Clone)]
pub struct Quarantine {
    dir: Dir,
    /// Stands for the model in names; none where it does not matter.
    tag: Option<String>,
}

/// One kept file.
#[derive(Debug)]
struct Kept {
    number: u64,
    name: String,
    size: u64,
    /// Whether it stays until it is pruned.
    stays: bool,
}

impl Quarantine {
    pub(super) const fn at(dir: Dir) -> Self {
        Self { dir, tag: None }
    }

    /// The same place; what is put there is known as this model's.
    #[must_use]
    pub fn of_model(self, name: &ModelName) -> Self {
        Self { tag: Some(tag_of(name)), ..self }
    }

    /// Bytes kept.
    pub fn used_bytes(&self) -> Result<u64> {
        Ok(self.kept()?.iter().map(|kept| kept.size).sum())
    }

    /// Moves an entry of `from` here and returns where it is now. One that `stays` makes no room for others.
    pub(super) fn take(&self, from: &Dir, name: &str, file_name: &str, stays: bool) -> Result<Aside> {
        let kept = self.kept()?;
        let next = kept.iter().map(|kept| kept.number + 1).max().unwrap_or(1);
        let file_name = cut(file_name);
        let tag = match (&self.tag, stays) {
            (None, false) => String::new(),
            (tag, _) => {
                format!("{}{}-", tag.as_deref().unwrap_or(&"0".repeat(TAG_DIGITS)), if stays { STAYS } else { "" })
            }
        };
        for number in next..next + TRIES {
            let new = format!("{number:010}-{tag}{file_name}");
            match from.rename_new(name, &self.dir, &new) {
                Err(VolumeError::Occupied { .. }) => {}
                Err(error) => return Err(error),
                Ok(()) => {
                    self.dir.sync()?;
                    self.make_room(number)?;
                    return Ok(Aside { dir: self.dir.clone(), name: new });
                }
            }
        }
        Err(VolumeError::Occupied { path: self.dir.shown(file_name) })
    }

    /// Drops the oldest until the rest is within bounds; `newest` always stays.
    fn make_room(&self, newest: u64) -> Result<()> {
        let mut kept = self.kept()?;
        kept.retain(|kept| !kept.stays);
        kept.sort_by_key(|kept| std::cmp::Reverse(kept.number));
        let mut bytes = 0u64;
        for (at, kept) in kept.iter().enumerate() {
            bytes = bytes.saturating_add(kept.size);
            if kept.number != newest && (at >= FILES_MAX || bytes > BYTES_MAX) {
                self.dir.remove(&kept.name)?;
            }
        }
        Ok(())
    }

    fn kept(&self) -> Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in self.dir.list()? {
            let Some((number, rest)) = entry.name.split_once('-') else { continue };
            let Ok(number) = number.parse() else { continue };
            // Somebody else's: none of ours comes near it, and the next one would have no number.
            if number > NUMBER_MAX {
                continue;
            }
            if let Some(stat) = self.dir.look(&entry.name)? {
                let stays = rest.get(TAG_DIGITS..).is_some_and(|rest| rest.starts_with(&format!("{STAYS}-")));
                kept.push(Kept { number, stays, size: size_of(&stat), name: entry.name });
            }
        }
        Ok(kept)
    }

    /// Drops the oldest file that may go and is none of `spared`; `false` when there is none.
    pub fn drop_oldest(&self, spared: &[PathBuf]) -> Result<bool> {
        let mut kept = self.kept()?;
        kept.retain(|kept| !kept.stays && !spared.contains(&self.dir.shown(&kept.name)));
        match kept.iter().min_by_key(|kept| kept.number) {
            Some(oldest) => self.dir.remove(&oldest.name).map(|_| true),
            None => Ok(false),
        }
    }
}

impl ModelDir {
    /// Moves a published file with bad bytes away from its final name, and returns where it is
    /// now. A model directory on another file system than the volume keeps it itself.
    pub fn quarantine(&self, path: &RepoPath, quarantine: &Quarantine) -> Result<Aside> {
        self.set_aside(path, quarantine, false)
    }

    /// As [`Self::quarantine`], for a file that muster did not bring: it stays until it is pruned.
    pub fn keep_aside(&self, path: &RepoPath, quarantine: &Quarantine) -> Result<Aside> {
        self.set_aside(path, quarantine, true)
    }

    fn set_aside(&self, path: &RepoPath, quarantine: &Quarantine, stays: bool) -> Result<Aside> {
        let kept = match quarantine.take(self.root(), path.as_str(), path.file_name(), stays) {
            Err(error) if error.errno() == Some(rustix::io::Errno::XDEV) => {
                let dir = self.make_own()?.make_folder(FOLDER)?;
                let own = Quarantine { dir, tag: quarantine.tag.clone() };
                own.take(self.root(), path.as_str(), path.file_name(), stays)?
            }
            other => other?,
        };
        self.sync_parent(path)?;
        Ok(kept)
    }

    /// Makes it durable that a file has come or gone.
    pub(super) fn sync_parent(&self, path: &RepoPath) -> Result<()> {
        match path.ancestors().last() {
            Some(parent) => self.root().folder(parent)?.sync(),
            None => self.root().sync(),
        }
    }
}

impl Volume {
    /// What is set aside of a model. Creates nothing.
    pub fn kept_aside(&self, name: &ModelName) -> Result<inventory::Kept> {
        let mut all = inventory::Kept::default();
        for (_, kept) in self.aside_of(name)? {
            all.files += 1;
            all.bytes = all.bytes.saturating_add(kept.size);
        }
        Ok(all)
    }

    /// Removes what is set aside of a model, and says what that was.
    pub fn prune(&self, name: &ModelName) -> Result<inventory::Kept> {
        let mut gone = inventory::Kept::default();
        for (dir, kept) in self.aside_of(name)? {
            if dir.remove(&kept.name)? {
                gone.files += 1;
                gone.bytes = gone.bytes.saturating_add(kept.size);
            }
        }
        Ok(gone)
    }

    /// What was set aside of a model under the name of this file, the newest first; `true` for what stays
    /// until it is pruned.
    pub fn set_aside_of(&self, name: &ModelName, path: &RepoPath) -> Result<Vec<(Aside, bool)>> {
        let end = format!("-{}", cut(path.file_name()));
        let mut found = self.aside_of(name)?;
        found.retain(|(_, kept)| kept.name.ends_with(&end));
        found.sort_by_key(|(_, kept)| std::cmp::Reverse(kept.number));
        Ok(found.into_iter().map(|(dir, Kept { name, stays, .. })| (Aside { dir, name }, stays)).collect())
    }

    fn aside_of(&self, name: &ModelName) -> Result<Vec<(Dir, Kept)>> {
        let mut found = Vec::new();
        if let Some(dir) = folder(self.existing_area()?, FOLDER)? {
            let tag = tag_of(name);
            let is_its = |kept: &Kept| kept.name.split_once('-').is_some_and(|(_, rest)| rest.starts_with(&tag));
            let all = Quarantine::at(dir.clone()).kept()?;
            found.extend(all.into_iter().filter(is_its).map(|kept| (dir.clone(), kept)));
        }
        if let Some(model) = self.model(name)?
            && let Some(dir) = folder(model.own()?, FOLDER)?
        {
            found.extend(Quarantine::at(dir.clone()).kept()?.into_iter().map(|kept| (dir.clone(), kept)));
        }
        Ok(found)
    }
}

/// As much of a file's own name as is in a name here.
fn cut(file_name: &str) -> &str {
    let end = (0..=NAME_MAX).rev().find(|end| file_name.is_char_boundary(*end)).unwrap_or(0);
    file_name.get(..end).unwrap_or(file_name)
}

fn tag_of(name: &ModelName) -> String {
    let digest = Sha256::from_bytes(sha2::Sha256::digest(name.as_str().as_bytes()).into());
    let mut tag = digest.to_string();
    tag.truncate(TAG_DIGITS);
    tag
}

#[cfg(test)]
mod tests {
    use super::super::testing::{lfs_entry, model, names, verified};
    use super::*;

    #[test]
    fn the_oldest_make_room() {
        let (place, model) = model();
        let volume = super::super::Volume::create(place.path()).unwrap();
        let quarantine = volume.quarantine().unwrap();
        for i in 0..FILES_MAX + 3 {
            std::fs::write(model.path().join("bad"), i.to_string()).unwrap();
            let kept = model.quarantine(&RepoPath::parse("bad").unwrap(), &quarantine).unwrap();
            assert_eq!(std::fs::read_to_string(kept.path()).unwrap(), i.to_string());
        }
        let left = names(quarantine.dir.path());
        assert_eq!(left.len(), FILES_MAX);
        assert_eq!(left[0], "0000000004-bad");
        assert!(quarantine.used_bytes().unwrap() > 0);
    }

    #[test]
    fn what_muster_did_not_bring_stays_until_its_model_is_pruned() {
        let (place, model) = model();
        let volume = Volume::create(place.path()).unwrap();
        let (ours, other) = (ModelName::parse("org/model").unwrap(), ModelName::parse("org/other").unwrap());
        let quarantine = volume.quarantine().unwrap().of_model(&ours);
        let bad = RepoPath::parse("bad").unwrap();
        std::fs::write(model.path().join("bad"), b"theirs").unwrap();
        let first = model.keep_aside(&bad, &quarantine).unwrap();
        for _ in 0..FILES_MAX + 3 {
            std::fs::write(model.path().join("bad"), b"ours").unwrap();
            model.quarantine(&bad, &quarantine).unwrap();
        }
        std::fs::write(model.path().join("bad"), b"another").unwrap();
        let another = model.keep_aside(&bad, &volume.quarantine().unwrap().of_model(&other)).unwrap();
        assert_eq!(std::fs::read(first.path()).unwrap(), b"theirs");
        assert_eq!(volume.kept_aside(&ours).unwrap().files, FILES_MAX as u64 + 1);
        assert_eq!(volume.prune(&ours).unwrap().bytes, 6 + 4 * FILES_MAX as u64);
        assert_eq!(volume.kept_aside(&ours).unwrap().files, 0);
        assert_eq!(std::fs::read(another.path()).unwrap(), b"another");
    }

    #[test]
    fn a_planted_number_takes_no_number_away() {
        let (place, model) = model();
        let volume = super::super::Volume::create(place.path()).unwrap();
        let quarantine = volume.quarantine().unwrap();
        std::fs::write(quarantine.dir.shown(&format!("{}-x", u64::MAX)), b"").unwrap();
        std::fs::write(model.path().join("bad"), b"bad").unwrap();
        let kept = model.quarantine(&RepoPath::parse("bad").unwrap(), &quarantine).unwrap();
        assert!(kept.path().ends_with("0000000001-bad"));
    }

    #[test]
    fn a_long_name_is_cut_and_the_final_name_is_free() {
        let (place, model) = model();
        let volume = super::super::Volume::create(place.path()).unwrap();
        let entry = lfs_entry(&format!("sub/{}", "ü".repeat(127)), b"x");
        verified(&model, &entry, b"x").publish(&model).unwrap();
        let kept = model.quarantine(&entry.path, &volume.quarantine().unwrap()).unwrap();
        assert!(kept.path().file_name().unwrap().len() < 180);
        verified(&model, &entry, b"x").publish(&model).unwrap();
    }
}
