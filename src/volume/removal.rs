//! Taking a whole model directory off the volume.
//!
//! Invariant: a directory is moved aside in one step, so a model is there or not; it is removed
//! only after it has been aside for long enough, since a launcher may still read it.

use std::time::Duration;

use super::aside::Aside;
use super::dir::Dir;
use super::error::{Result, VolumeError};
use super::identity;
use super::layout::Volume;
use crate::core::model_name::ModelName;

const RETIRED: &str = "retired";

impl Volume {
    /// Moves a model's directory to the volume's own area and returns where it is now; `None` when
    /// it is not there.
    pub fn retire_model(&self, name: &ModelName) -> Result<Option<Aside>> {
        let retired = self.area()?.make_folder(RETIRED)?;
        let (parent, own) = match name.as_str().rsplit_once('/') {
            Some((parent, own)) => match self.root().folder(parent) {
                Err(error) if error.is_missing() => return Ok(None),
                other => (other?, own),
            },
            None => (self.root().clone(), name.as_str()),
        };
        let flat = name.as_str().replace('/', "--");
        for number in 0..u16::MAX {
            let aside = Aside { dir: retired.clone(), name: format!("{flat}.{number}") };
            return match parent.rename_new(own, &retired, &aside.name) {
                Err(VolumeError::Occupied { .. }) => continue,
                Err(error) if error.is_missing() => Ok(None),
                Err(error) => Err(error),
                Ok(()) => {
                    retired.sync()?;
                    parent.sync()?;
                    // Empty folders of an organisation are nobody's; one that is not stays.
                    let _kept = name.as_str().split_once('/').map(|(top, _)| self.root().remove_folder(top));
                    Ok(Some(aside))
                }
            };
        }
        Err(VolumeError::Occupied { path: retired.shown(&flat) })
    }

    /// Gives a model's directory its name again.
    ///
    /// # Errors
    /// [`VolumeError::Occupied`] when something has the name.
    pub fn put_model_back(&self, name: &ModelName, aside: &Aside) -> Result<()> {
        match name.as_str().rsplit_once('/') {
            Some((parent, own)) => aside.put_back(&self.root().make_folder(parent)?, own),
            None => aside.put_back(self.root(), name.as_str()),
        }
    }

    /// Removes one directory that was moved aside.
    pub fn empty_retired_model(&self, aside: &Aside) -> Result<()> {
        remove_tree(&aside.dir, &aside.name)
    }

    /// Removes directories that were moved aside longer ago than `age`.
    pub fn empty_retired_models(&self, age: Duration) -> Result<()> {
        let Some(area) = self.existing_area()? else { return Ok(()) };
        let retired = match area.folder(RETIRED) {
            Err(error) if error.is_missing() => return Ok(()),
            other => other?,
        };
        let now = identity::filesystem_now(&retired)?;
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        for entry in retired.list()? {
            let Some(stat) = retired.look(&entry.name)? else { continue };
            // The rename that brought it here changed its ctime.
            if now.saturating_sub(identity::of(&stat).ctime_ns) >= age {
                remove_tree(&retired, &entry.name)?;
            }
        }
        Ok(())
    }
}

fn remove_tree(parent: &Dir, name: &str) -> Result<()> {
    let dir = match parent.folder(name) {
        Err(error) if error.is_missing() => return Ok(()),
        // A link or a file: it goes by its name, never through it.
        Err(VolumeError::Steered { .. }) => return parent.remove(name).map(drop),
        other => other?,
    };
    let walk = dir.walk(|_| true)?;
    for file in walk.files {
        dir.remove(&file.name)?;
    }
    for folder in walk.folders {
        dir.remove_folder(&folder)?;
    }
    parent.remove_folder(name).map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::testing::names;
    use super::*;

    #[test]
    fn a_model_goes_in_one_step_and_links_in_it_lead_nowhere() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("precious"), b"").unwrap();
        let volume = Volume::create(&place.path().join("volume")).unwrap();
        let name = ModelName::parse("org/m").unwrap();
        for _ in 0..2 {
            let model = volume.create_model(&name).unwrap();
            std::os::unix::fs::symlink(&outside, model.path().join("link")).unwrap();
            std::fs::create_dir_all(model.path().join("a/b")).unwrap();
            std::fs::write(model.path().join("a/b/file"), b"x").unwrap();
            let aside = volume.retire_model(&name).unwrap().unwrap();
            volume.put_model_back(&name, &aside).unwrap();
            assert!(volume.model(&name).unwrap().is_some());
            assert!(volume.retire_model(&name).unwrap().is_some());
            assert!(volume.model(&name).unwrap().is_none());
        }
        assert!(volume.retire_model(&name).unwrap().is_none());
        let retired = volume.path().join(".muster/retired");
        volume.empty_retired_models(Duration::from_secs(3600)).unwrap();
        assert_eq!(names(&retired), ["org--m.0", "org--m.1"]);
        volume.empty_retired_models(Duration::ZERO).unwrap();
        assert!(names(&retired).is_empty());
        assert_eq!(names(&outside), ["precious"]);
    }
}
