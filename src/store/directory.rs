//! The state directory around the database: its lock, who wrote it, and setting it aside.
//!
//! Invariant: while a [`Directory`] lives, its lock file is locked and lies in the directory that
//! has the path now. The note about the writer is a plain file, so a database that a later version
//! wrote is told before the engine sees a byte of it, and one that is unreadable still has a name
//! on it. Nothing here deletes a database.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::error::{StoreError, Unusable};

pub(super) const LOCK: &str = "lock";
const NOTE: &str = "written-by.json";
const ASIDE: &str = ".set-aside-";

/// How many databases may be set aside before somebody has to look at them.
pub(super) const ASIDE_MAX: usize = 16;

/// How often a directory that moved away under us is looked for again.
const CLAIM_ATTEMPTS: usize = 4;

/// A database that could not be used, and where it is now.
#[derive(Debug)]
pub struct SetAside {
    /// Its directory, as it was found. Nothing deletes it.
    pub path: PathBuf,
    /// Why it could not be used.
    pub why: Unusable,
    /// The program that wrote it, where that is known.
    pub written_by: Option<String>,
}

/// Who wrote a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Its schema.
    pub(super) schema: u32,
    /// Program and version.
    pub(super) program: String,
    /// When it was opened.
    pub(super) opened_at: Timestamp,
}

/// A state directory that is ours while this value lives.
#[derive(Debug)]
pub(super) struct Directory {
    dir: PathBuf,
    _lock: File,
}

impl Directory {
    /// Makes the directory if need be and locks it.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Directory`].
    pub(super) fn claim(dir: &Path) -> Result<Self, StoreError> {
        let locked = || StoreError::Locked { dir: dir.to_owned() };
        for _ in 0..CLAIM_ATTEMPTS {
            make(dir)?;
            let path = dir.join(LOCK);
            let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
            let file = match file {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(|error| trouble("open", &path, error))?,
            };
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(locked()),
                Err(TryLockError::Error(error)) => return Err(trouble("lock", &path, error)),
            }
            // The one who had the lock may have set the directory aside, lock file and all.
            if is_at(&file, &path) {
                return Ok(Self { dir: dir.to_owned(), _lock: file });
            }
        }
        Err(locked())
    }

    /// The path.
    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    /// Who wrote the database, as far as that is known.
    pub(super) fn note(&self) -> Option<Note> {
        note_in(&self.dir)
    }

    /// Whether the engine's file is there.
    pub(super) fn has_database(&self) -> bool {
        self.dir.join("db").exists()
    }

    /// Leaves the note about who writes the database from now on.
    pub(super) fn sign(&self, note: &Note) -> Result<(), StoreError> {
        let (path, temp) = (self.dir.join(NOTE), self.dir.join("written-by.json.new"));
        let bytes = serde_json::to_vec(note).expect("a note has string keys only");
        let write = || {
            let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&temp)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&temp, &path)
        };
        write().map_err(|error| trouble("write", &path, error))
    }

    /// Renames the whole directory to the next free `….set-aside-<n>`.
    ///
    /// # Errors
    /// [`StoreError::Crowded`], [`StoreError::Directory`].
    pub(super) fn set_aside(self, why: Unusable, written_by: Option<String>) -> Result<SetAside, StoreError> {
        let numbers = aside_numbers(&self.dir).map_err(|error| trouble("list the neighbours of", &self.dir, error))?;
        if numbers.len() >= ASIDE_MAX {
            return Err(StoreError::Crowded { dir: self.dir, count: numbers.len() });
        }
        let next = numbers.iter().max().map_or(1, |last| last.saturating_add(1));
        let path = beside(&self.dir, &format!("{ASIDE}{next}"));
        fs::rename(&self.dir, &path).map_err(|error| trouble("set aside", &self.dir, error))?;
        Ok(SetAside { path, why, written_by })
    }
}

/// Who wrote the database in a directory that may be anybody's.
pub(super) fn note_in(dir: &Path) -> Option<Note> {
    serde_json::from_slice(&fs::read(dir.join(NOTE)).ok()?).ok()
}

/// Makes an error of a failed step on a path.
pub(super) fn trouble(action: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Directory { action, path: path.to_owned(), source }
}

fn make(dir: &Path) -> Result<(), StoreError> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent).map_err(|error| trouble("make", parent, error))?;
    }
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(trouble("make", dir, error)),
        _ => Ok(()),
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
        _ => false,
    }
}

/// The databases that were set aside from `dir`, in order.
pub(super) fn asides(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut numbers = aside_numbers(dir)?;
    numbers.sort_unstable();
    Ok(numbers.into_iter().map(|number| beside(dir, &format!("{ASIDE}{number}"))).collect())
}

/// The neighbour of a state directory whose name has this end more.
pub(super) fn beside(dir: &Path, end: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(end);
    name.into()
}

fn aside_numbers(dir: &Path) -> io::Result<Vec<u64>> {
    let (Some(parent), Some(name)) = (dir.parent(), dir.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let mut numbers = Vec::new();
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(numbers),
        other => other?,
    };
    for entry in entries {
        let entry = entry?.file_name();
        let rest = entry.to_str().and_then(|entry| entry.strip_prefix(name)?.strip_prefix(ASIDE));
        numbers.extend(rest.and_then(|number| number.parse::<u64>().ok()));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_claimant_at_a_time() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("deep/state");
        let first = Directory::claim(&dir).unwrap();
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert!(matches!(Directory::claim(&dir), Err(StoreError::Locked { .. })));
        drop(first);
        Directory::claim(&dir).unwrap();
    }

    #[test]
    fn what_is_set_aside_gets_the_next_number_and_is_kept_within_a_bound() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state");
        for number in 1..=ASIDE_MAX {
            let aside = Directory::claim(&dir).unwrap().set_aside(Unusable::Emptied, None).unwrap();
            assert_eq!(aside.path, root.path().join(format!("state.set-aside-{number}")));
            assert!(aside.path.join(LOCK).exists() && !dir.exists());
        }
        let crowded = Directory::claim(&dir).unwrap().set_aside(Unusable::Emptied, None);
        assert!(matches!(crowded, Err(StoreError::Crowded { count: ASIDE_MAX, .. })), "{crowded:?}");
        assert!(dir.exists());
    }

    #[test]
    fn the_note_survives_and_a_garbled_one_is_none() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::claim(&root.path().join("state")).unwrap();
        assert_eq!(directory.note(), None);
        let note = Note { schema: 1, program: "muster 0".into(), opened_at: Timestamp::UNIX_EPOCH };
        directory.sign(&note).unwrap();
        assert_eq!(directory.note(), Some(note));
        fs::write(directory.path().join(NOTE), b"{\"schema\":").unwrap();
        assert_eq!(directory.note(), None);
    }
}
