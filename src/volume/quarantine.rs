//! Bad bytes, set aside for whoever wants to know what they were.
//!
//! Bounded in files and bytes: the oldest make room. Nothing in here is ever used again.

use super::aside::Aside;
use super::dir::{Dir, size_of};
use super::error::{Result, VolumeError};
use super::model_dir::ModelDir;
use crate::core::repo_path::RepoPath;

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
}

/// One kept file.
#[derive(Debug)]
struct Kept {
    number: u64,
    name: String,
    size: u64,
}

impl Quarantine {
    pub(super) const fn at(dir: Dir) -> Self {
        Self { dir }
    }

    /// Bytes kept.
    pub fn used_bytes(&self) -> Result<u64> {
        Ok(self.kept()?.iter().map(|kept| kept.size).sum())
    }

    /// Moves an entry of `from` here and returns where it is now.
    pub(super) fn take(&self, from: &Dir, name: &str, file_name: &str) -> Result<Aside> {
        let kept = self.kept()?;
        let next = kept.iter().map(|kept| kept.number + 1).max().unwrap_or(1);
        let end = (0..=NAME_MAX).rev().find(|end| file_name.is_char_boundary(*end)).unwrap_or(0);
        let file_name = file_name.get(..end).unwrap_or(file_name);
        for number in next..next + TRIES {
            let new = format!("{number:010}-{file_name}");
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
            let Some(number) = entry.name.split_once('-').and_then(|(number, _)| number.parse().ok()) else { continue };
            // Somebody else's: none of ours comes near it, and the next one would have no number.
            if number > NUMBER_MAX {
                continue;
            }
            if let Some(stat) = self.dir.look(&entry.name)? {
                kept.push(Kept { number, name: entry.name, size: size_of(&stat) });
            }
        }
        Ok(kept)
    }
}

impl ModelDir {
    /// Moves a published file with bad bytes away from its final name, and returns where it is
    /// now. A model directory on another file system than the volume keeps it itself.
    pub fn quarantine(&self, path: &RepoPath, quarantine: &Quarantine) -> Result<Aside> {
        let kept = match quarantine.take(self.root(), path.as_str(), path.file_name()) {
            Err(error) if error.errno() == Some(rustix::io::Errno::XDEV) => {
                let own = Quarantine::at(self.make_own()?.make_folder("quarantine")?);
                own.take(self.root(), path.as_str(), path.file_name())?
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
