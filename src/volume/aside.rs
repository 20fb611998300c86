//! Where an entry is that was moved off its name, and the way back.
//!
//! A writer may find out only after a move that it had lost the volume before (P6): what it took
//! was the new owner's, and goes back, unless something else has the name by then.

use std::path::PathBuf;

use super::dir::{Dir, size_of};
use super::error::Result;
use super::model_dir::ModelDir;
use crate::core::repo_path::RepoPath;

/// Where an entry is now.
#[derive(Debug, Clone)]
pub struct Aside {
    pub(super) dir: Dir,
    pub(super) name: String,
}

impl Aside {
    /// The path, for messages.
    pub fn path(&self) -> PathBuf {
        self.dir.shown(&self.name)
    }

    /// Its size in bytes; none when it is gone.
    pub fn size(&self) -> Result<u64> {
        Ok(self.dir.look(&self.name)?.map_or(0, |stat| size_of(&stat)))
    }

    /// Removes it, for want of room.
    pub fn discard(&self) -> Result<bool> {
        self.dir.remove(&self.name)
    }

    pub(super) fn put_back(&self, to: &Dir, name: &str) -> Result<()> {
        self.dir.rename_new(&self.name, to, name)?;
        to.sync()?;
        self.dir.sync()
    }
}

impl ModelDir {
    /// Gives a file of the model its name again.
    ///
    /// # Errors
    /// [`VolumeError::Occupied`](super::VolumeError::Occupied) when something has the name.
    pub fn put_back(&self, path: &RepoPath, aside: &Aside) -> Result<()> {
        let parent = match path.ancestors().last() {
            Some(parent) => self.root().make_folder(parent)?,
            None => self.root().clone(),
        };
        aside.put_back(&parent, path.file_name())
    }
}
