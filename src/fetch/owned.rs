//! Writing as the owner of the volume, and only as that.
//!
//! Invariant (P6): what was begun by a process that had lost the volume does not stay. It is asked before
//! a name is made and once more after: whoever stood still between the two finds out, and a new owner
//! that has looked already would never find what came late.

use std::sync::Arc;

use thiserror::Error;

use crate::volume::VolumeError;

/// Whether this process may still write.
pub type MayWrite = Arc<dyn Fn() -> Result<(), OwnershipLost> + Send + Sync>;

/// The caller no longer owns the volume.
#[derive(Debug, Clone, Copy, Error)]
#[error("another process owns the volume now")]
pub struct OwnershipLost;

/// Why nothing was written.
#[derive(Debug, Error)]
pub(crate) enum WriteError {
    /// The disk failed.
    #[error("the disk failed")]
    Volume(#[from] VolumeError),
    /// Another process owns the volume.
    #[error("{0}")]
    Ownership(#[from] OwnershipLost),
}

/// Makes something that has a name on the volume; `undo` takes the name away again. Blocks.
pub(crate) fn begin<T>(
    may_write: &MayWrite,
    work: impl FnOnce() -> Result<T, VolumeError>,
    undo: impl FnOnce(T) -> Result<(), VolumeError>,
) -> Result<T, WriteError> {
    may_write()?;
    let made = work()?;
    if let Err(lost) = may_write() {
        // That the volume is lost is what there is to tell.
        let _gone = undo(made);
        return Err(lost.into());
    }
    Ok(made)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use super::*;

    /// May write until it was asked so often.
    fn until(most: u32) -> MayWrite {
        let asked = AtomicU32::new(0);
        Arc::new(move || if asked.fetch_add(1, Relaxed) < most { Ok(()) } else { Err(OwnershipLost) })
    }

    #[test]
    fn what_is_begun_by_who_lost_the_volume_meanwhile_does_not_stay() {
        let there = AtomicU32::new(0);
        let make = || Ok(there.fetch_add(1, Relaxed));
        let undo = |_| {
            there.store(0, Relaxed);
            Ok(())
        };
        assert!(matches!(begin(&until(0), make, undo), Err(WriteError::Ownership(_))));
        assert_eq!(there.load(Relaxed), 0, "nothing was made");
        let undone = AtomicU32::new(0);
        let lost = begin(&until(1), make, |_| {
            undone.store(1, Relaxed);
            undo(0)
        });
        assert!(matches!(lost, Err(WriteError::Ownership(_))));
        assert_eq!((there.load(Relaxed), undone.load(Relaxed)), (0, 1), "made, and taken away again");
        assert!(begin(&until(2), make, undo).is_ok());
        assert_eq!(there.load(Relaxed), 1);
    }
}
