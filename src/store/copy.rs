//! A copy of a database, to be opened in its stead.
//!
//! The engine changes whatever it opens, also what it then cannot read; so what is only to be looked at, or may
//! have to be set aside as it is, is copied and the copy is opened. Invariant: a copy goes when its value does.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use super::directory::{beside, trouble};
use super::error::StoreError;

/// What the name of a state directory's copy beside it ends with.
const TRIAL: &str = ".trial";

/// A larger database is not copied: it would take its time and its room.
pub(super) const COPIED_MAX: u64 = 512 << 20;
/// Most files of a database.
const FILES_MAX: usize = 100_000;

/// The engine's threads may write for a moment after a database is closed: how often, and how long apart, the
/// removal of a copy is tried.
const REMOVALS: usize = 20;
const REMOVAL_WAIT: Duration = Duration::from_millis(10);

/// One file of a database, as it was when it was looked at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Below the state directory.
    pub(super) path: PathBuf,
    pub(super) size: u64,
    mtime_ns: i128,
}

/// Their bytes.
pub(super) fn total(files: &[Found]) -> u64 {
    files.iter().map(|file| file.size).sum()
}

/// Every regular file below, links not followed; sorted.
pub(super) fn files(dir: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    let mut queue = vec![PathBuf::new()];
    while let Some(at) = queue.pop() {
        for entry in fs::read_dir(dir.join(&at))? {
            let entry = entry?;
            let path = at.join(entry.file_name());
            let metadata = match entry.metadata() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            if metadata.is_dir() {
                queue.push(path);
            } else if metadata.is_file() {
                let mtime_ns = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
                found.push(Found { path, size: metadata.len(), mtime_ns });
            }
            if found.len() + queue.len() > FILES_MAX {
                return Err(io::Error::other(format!("more than {FILES_MAX} files")));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// A copy of a database. Dropped, it goes.
pub(super) struct Copy(PathBuf);

impl Copy {
    /// Copies these files of the database in `dir` to a folder below the new folder `place`.
    ///
    /// # Errors
    /// [`StoreError::Directory`]. Nothing stays.
    pub(super) fn make(dir: &Path, files: &[Found], place: PathBuf) -> Result<Self, StoreError> {
        let make_folder = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        fs::DirBuilder::new().mode(0o700).create(&place).map_err(|error| trouble("make", &place, error))?;
        let copy = Self(place);
        for file in files {
            let (from, to) = (dir.join(&file.path), copy.state().join(&file.path));
            make_folder(to.parent().unwrap_or(&to)).map_err(|error| trouble("make", &to, error))?;
            match fs::copy(&from, &to) {
                // The next look sees that too.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => other.map(drop).map_err(|error| trouble("copy", &from, error))?,
            }
        }
        Ok(copy)
    }

    /// A copy beside the database in `dir`, in a place that one may have been left at; none where none can be
    /// made.
    pub(super) fn beside(dir: &Path) -> Option<Self> {
        let place = beside(dir, TRIAL);
        drop(Self(place.clone()));
        let copied = || {
            let files = files(dir).map_err(|error| trouble("read", dir, error))?;
            if total(&files) > COPIED_MAX { Ok(None) } else { Self::make(dir, &files, place).map(Some) }
        };
        copied().unwrap_or_else(|error: StoreError| {
            tracing::debug!(%error, "the state database is opened without a trial");
            None
        })
    }

    /// Where the copy is.
    pub(super) fn state(&self) -> PathBuf {
        self.0.join("state")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let gone = |_: &usize| match fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                thread::sleep(REMOVAL_WAIT);
                false
            }
            _ => true,
        };
        // What stays all the same is in a folder for temporary files, or goes before the next opening.
        let _left = (0..REMOVALS).find(gone);
    }
}
