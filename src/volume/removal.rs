//! Taking a whole model directory off the volume.
//!
//! Invariant: a directory is moved aside in one step, so a model is there or not; it is removed
//! only after it has been aside for long enough, since a launcher may still read it.

use std::time::Duration;

use super::dir::Dir;
use super::error::{Result, VolumeError};
use super::identity;
use super::layout::Volume;
use crate::core::model_name::ModelName;

const RETIRED: &str = "retired";

impl Volume {
    /// Moves a model's directory to the volume's own area; `false` when it is not there.
    pub fn retire_model(&self, name: &ModelName) -> Result<bool> {
        let retired = self.area()?.make_folder(RETIRED)?;
        let (parent, own) = match name.as_str().rsplit_once('/') {
            Some((parent, own)) => match self.root().folder(parent) {
                Err(error) if error.is_missing() => return Ok(false),
                other => (other?, own),
            },
            None => (self.root().clone(), name.as_str()),
        };
        let flat = name.as_str().replace('/', "--");
        for number in 0..u16::MAX {
            return match parent.rename_new(own, &retired, &format!("{flat}.{number}")) {
                Err(VolumeError::Occupied { .. }) => continue,
                Err(error) if error.is_missing() => Ok(false),
                Err(error) => Err(error),
                Ok(()) => {
                    retired.sync()?;
                    parent.sync()?;
                    // Empty folders of an organisation are nobody's; one that is not stays.
                    let _kept = name.as_str().split_once('/').map(|(top, _)| self.root().remove_folder(top));
                    Ok(true)
                }
            };
        }
        Ok(false)
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
        Ok(dir) => dir,
        // A link or a file: it goes by its name, never through it.
        Err(_) => return parent.remove(name).map(drop),
    };
    for entry in dir.list()? {
        remove_tree(&dir, &entry.name)?;
    }
    parent.remove_folder(name).map(drop)
}
