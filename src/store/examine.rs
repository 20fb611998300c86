//! How a database is without taking it: whether it could be used, and what lies beside it.
//!
//! Invariant: nothing in the state directory is opened for writing, locked or moved. The engine
//! changes whatever it opens, so a copy is opened, in a folder of its own that goes at the end; a
//! database that somebody writes to meanwhile is not judged.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::directory::{ASIDE_MAX, LOCK, asides, trouble};
use super::error::{StoreError, Unusable};
use super::{Opened, Store};

/// A larger database is not copied: it would take its time and its room.
const COPIED_MAX: u64 = 512 << 20;
/// Most files of a database.
const FILES_MAX: usize = 100_000;

/// How a database is.
#[derive(Debug)]
pub enum Health {
    /// There is none.
    Absent,
    /// Every record can be read.
    Sound,
    /// It is there and has nothing in it.
    Empty,
    /// The next owner sets it aside.
    Unusable(Unusable),
    /// A process has it open.
    InUse,
    /// Too large to be copied.
    TooLarge,
}

/// What was found in a state directory.
#[derive(Debug)]
pub struct Examined {
    /// The database.
    pub health: Health,
    /// Its bytes on disk.
    pub bytes: u64,
    /// Records that cannot be read and are skipped.
    pub undecodable: u64,
}

/// Databases that were set aside.
#[derive(Debug)]
pub struct Asides {
    /// Where they are, the oldest first.
    pub paths: Vec<PathBuf>,
    /// Their bytes on disk.
    pub bytes: u64,
    /// Whether there are so many that no further one can be.
    pub crowded: bool,
}

/// Looks beside the state directory `dir`.
///
/// # Errors
/// [`StoreError::Directory`] when the folder around it cannot be read.
pub fn set_aside(dir: &Path) -> Result<Asides, StoreError> {
    let paths = asides(dir).map_err(|error| trouble("list the neighbours of", dir, error))?;
    let bytes = paths.iter().map(|aside| files(aside).map_or(0, |files| total(&files))).sum();
    let crowded = paths.len() >= ASIDE_MAX;
    Ok(Asides { paths, bytes, crowded })
}

/// Looks at the database in `dir`; the copy is made below `scratch`.
///
/// # Errors
/// [`StoreError::Directory`] when the directory cannot be read or the copy not be made.
pub fn examine(dir: &Path, scratch: &Path, program: &str, now: Timestamp) -> Result<Examined, StoreError> {
    let found = match files(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|error| trouble("read", dir, error))?,
    };
    let bytes = total(&found);
    let mut examined = Examined { health: Health::Absent, bytes, undecodable: 0 };
    if found.iter().all(|file| file.path == Path::new(LOCK)) {
        return Ok(examined);
    }
    examined.health = if is_locked(&dir.join(LOCK)) {
        Health::InUse
    } else if bytes > COPIED_MAX {
        Health::TooLarge
    } else {
        let copy = Copy::make(dir, &found, scratch)?;
        let unchanged = files(dir).is_ok_and(|again| again == found);
        if unchanged && !is_locked(&dir.join(LOCK)) {
            let (health, undecodable) = copy.judge(program, now)?;
            examined.undecodable = undecodable;
            health
        } else {
            Health::InUse
        }
    };
    Ok(examined)
}

/// One file of a database, as it was when it was looked at.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Below the state directory.
    path: PathBuf,
    size: u64,
    mtime_ns: i128,
}

fn total(files: &[Found]) -> u64 {
    files.iter().map(|file| file.size).sum()
}

/// Every regular file below, links not followed; sorted.
fn files(dir: &Path) -> io::Result<Vec<Found>> {
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

/// Whether the kernel lists a lock on the file; one held in another container or on another host is
/// not seen. Trying the lock instead could make an owner that starts just now fail.
fn is_locked(lock: &Path) -> bool {
    let Ok(metadata) = fs::symlink_metadata(lock) else { return false };
    let inode = format!(":{}", metadata.ino());
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    // "1: FLOCK  ADVISORY  WRITE 1234 fd:01:5678 0 EOF"
    locks.lines().any(|line| line.contains("FLOCK") && line.split_ascii_whitespace().any(|word| word.ends_with(&inode)))
}

/// A copy of a database. Dropped, it goes.
struct Copy(PathBuf);

impl Copy {
    fn make(dir: &Path, files: &[Found], scratch: &Path) -> Result<Self, StoreError> {
        let place = scratch.join(format!("muster-doctor-{:016x}", fastrand::u64(..)));
        let make_folder = |path: &Path| fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        make_folder(&place).map_err(|error| trouble("make", &place, error))?;
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

    fn state(&self) -> PathBuf {
        self.0.join("state")
    }

    fn judge(&self, program: &str, now: Timestamp) -> Result<(Health, u64), StoreError> {
        let Opened { store, fresh, notice } = Store::open(&self.state(), program, now)?;
        let jobs = store.jobs().map(|jobs| jobs.len());
        Ok(match (notice, jobs) {
            (Some(aside), _) => (Health::Unusable(aside.why), 0),
            (None, Err(StoreError::Failed { fault, .. })) => (Health::Unusable(Unusable::Unreadable(fault)), 0),
            (None, Err(error)) => return Err(error),
            (None, Ok(_)) if fresh => (Health::Empty, 0),
            (None, Ok(_)) => (Health::Sound, store.undecodable()),
        })
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        // In the folder for temporary files: whoever cleans that up takes what stays.
        let _left = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRAM: &str = "muster 0.1.0";

    fn look(dir: &Path) -> Examined {
        let scratch = tempfile::tempdir().unwrap();
        let examined = examine(dir, scratch.path(), PROGRAM, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "the copy goes");
        examined
    }

    /// A moment after a store is closed its engine still holds files, and a neighbour's child the lock.
    fn settled(dir: &Path) -> Examined {
        let looks = (0..200).map(|_| look(dir)).inspect(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
        looks.into_iter().find(|seen| !matches!(seen.health, Health::InUse)).unwrap()
    }

    #[test]
    fn a_database_is_judged_by_a_copy_and_left_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("state");
        assert!(matches!(look(&dir).health, Health::Absent));
        assert!(!dir.exists(), "looking makes nothing");
        let opened = Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH).unwrap();
        opened.store.flush().unwrap();
        assert!(matches!(look(&dir).health, Health::InUse));
        drop(opened);
        let before = files(&dir).unwrap();
        let seen = settled(&dir);
        assert!(matches!(seen.health, Health::Sound) && seen.bytes > 0, "{seen:?}");
        for file in files(&dir).unwrap().iter().filter(|file| file.path != Path::new(LOCK) && file.size > 0) {
            fs::write(dir.join(&file.path), vec![0xff; usize::try_from(file.size).unwrap()]).unwrap();
        }
        assert!(matches!(settled(&dir).health, Health::Unusable(_)));
        let names = |files: &[Found]| files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        assert_eq!(names(&files(&dir).unwrap()), names(&before));
        assert!(set_aside(&dir).unwrap().paths.is_empty());
        fs::create_dir(place.path().join("state.set-aside-1")).unwrap();
        fs::write(place.path().join("state.set-aside-1/db"), [0; 77]).unwrap();
        let aside = set_aside(&dir).unwrap();
        assert_eq!((aside.paths.len(), aside.bytes, aside.crowded), (1, 77, false));
    }
}
