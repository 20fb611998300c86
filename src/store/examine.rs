//! How a database is without taking it: whether it could be used, and what lies beside it.
//!
//! Invariant: nothing in the state directory is opened for writing, locked or moved. The engine
//! changes whatever it opens, so a copy is opened, in a folder of its own that goes at the end; a
//! database that somebody writes to meanwhile is not judged.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::copy::{COPIED_MAX, Copy, files, total};
use super::directory::{ASIDE_MAX, LOCK, asides, trouble};
use super::error::{StoreError, Unusable};
use super::{Opened, Store};

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
        let copy = Copy::make(dir, &found, scratch.join(format!("muster-doctor-{:016x}", fastrand::u64(..))))?;
        let unchanged = files(dir).is_ok_and(|again| again == found);
        if unchanged && !is_locked(&dir.join(LOCK)) {
            let (health, undecodable) = judge(&copy, program, now)?;
            examined.undecodable = undecodable;
            health
        } else {
            Health::InUse
        }
    };
    Ok(examined)
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

/// Opens the copy as the next owner would open the database.
fn judge(copy: &Copy, program: &str, now: Timestamp) -> Result<(Health, u64), StoreError> {
    let Opened { store, fresh, notice } = Store::open(&copy.state(), program, now)?;
    let jobs = store.jobs().map(|jobs| jobs.len());
    Ok(match (notice, jobs) {
        (Some(aside), _) => (Health::Unusable(aside.why), 0),
        (None, Err(StoreError::Failed { fault, .. })) => (Health::Unusable(Unusable::Unreadable(fault)), 0),
        (None, Err(error)) => return Err(error),
        (None, Ok(_)) if fresh => (Health::Empty, 0),
        (None, Ok(_)) => (Health::Sound, store.undecodable()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::copy::Found;
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
