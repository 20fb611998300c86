//! The lock that gates hold for as long as their launcher runs.
//!
//! A courtesy (P6): it makes updates and removals wait, and nothing else depends on it. The file
//! is made once and never replaced, since a lock belongs to an inode. Shared locks need only
//! read permission.

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode};
use rustix::io::{Errno, FdFlags};

use super::dir::Dir;
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;

const NAME: &str = "in-use";

/// How an attempt to lock ended. None of these is an error.
#[derive(Debug)]
pub enum Attempt {
    /// Locked.
    Taken(InUse),
    /// Somebody else holds it.
    Held,
    /// The file system cannot lock, so nobody can know.
    Unknown,
    /// There is no file to lock and none can be made here.
    Unavailable,
}

/// The lock, held until it is dropped and every copy of its descriptor is closed.
#[derive(Debug)]
pub struct InUse {
    file: File,
}

impl InUse {
    /// Lets the lock live on in the program that replaces this one.
    pub fn keep_across_exec(&self) -> Result<()> {
        rustix::io::fcntl_setfd(&self.file, FdFlags::empty()).map_err(|e| VolumeError::new(Step::Lock, NAME, e))
    }

    /// The descriptor, which carries the lock.
    pub fn into_fd(self) -> OwnedFd {
        self.file.into()
    }
}

impl ModelDir {
    /// Takes the lock together with other gates. Does not wait and writes nothing.
    pub fn lock_shared(&self) -> Attempt {
        let Some(own) = self.own().ok().flatten() else { return Attempt::Unavailable };
        let file = own.open_file(NAME);
        file.map_or(Attempt::Unavailable, |file| lock(&own, file, FlockOperation::NonBlockingLockShared))
    }

    /// Takes the lock alone. Does not wait.
    pub fn lock_exclusive(&self) -> Attempt {
        // NFS wants a descriptor that may write for this one.
        let Ok(own) = self.make_own() else { return Attempt::Unavailable };
        let file = make(&own).and_then(|()| own.open_for_writing(NAME).or_else(|_| own.open_file(NAME)));
        file.map_or(Attempt::Unavailable, |file| lock(&own, file, FlockOperation::NonBlockingLockExclusive))
    }
}

/// Makes the file to lock, once.
pub(super) fn make(own: &Dir) -> Result<()> {
    match own.create_file(NAME) {
        Err(VolumeError::Occupied { .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(file) => rustix::fs::fchmod(&file, Mode::from_raw_mode(0o644))
            .map_err(|e| VolumeError::new(Step::Set, own.shown(NAME), e)),
    }
}

fn lock(own: &Dir, file: File, operation: FlockOperation) -> Attempt {
    match rustix::fs::flock(&file, operation) {
        Ok(()) if is_granted_to_everybody(own) => Attempt::Unknown,
        Ok(()) => Attempt::Taken(InUse { file }),
        Err(Errno::WOULDBLOCK) => Attempt::Held,
        Err(_) => Attempt::Unknown,
    }
}

/// Whether a second descriptor gets the lock alone although the first one has it: some network file
/// systems say yes to everybody. One that answers for its own host alone is not found out by this.
fn is_granted_to_everybody(own: &Dir) -> bool {
    let second = own.open_for_writing(NAME).or_else(|_| own.open_file(NAME));
    second.is_ok_and(|file| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_share_the_lock_and_an_update_waits_for_them() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(place.path()).unwrap();
        let Attempt::Taken(first) = model.lock_shared() else { panic!("free") };
        let Attempt::Taken(second) = model.lock_shared() else { panic!("shared") };
        assert!(matches!(model.lock_exclusive(), Attempt::Held));
        drop(first);
        let descriptor = second.into_fd();
        assert!(matches!(model.lock_exclusive(), Attempt::Held));
        drop(descriptor);
        let Attempt::Taken(_alone) = model.lock_exclusive() else { panic!("free again") };
        assert!(matches!(model.lock_shared(), Attempt::Held));
    }

    #[test]
    fn a_gate_writes_nothing_to_get_a_lock() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::open(place.path()).unwrap();
        assert!(matches!(model.lock_shared(), Attempt::Unavailable));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_lock_outlives_exec_only_when_asked() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(place.path()).unwrap();
        let Attempt::Taken(lock) = model.lock_shared() else { panic!("free") };
        assert!(rustix::io::fcntl_getfd(&lock.file).unwrap().contains(FdFlags::CLOEXEC));
        lock.keep_across_exec().unwrap();
        assert!(!rustix::io::fcntl_getfd(&lock.file).unwrap().contains(FdFlags::CLOEXEC));
    }
}
