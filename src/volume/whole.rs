//! Small files, each written in one go from memory.
//!
//! Such a file has a partial like any other, under a name private to its writer that a later owner can take
//! away (P6), but no reserved blocks and no claims: there is never a half of it that would be worth keeping.
//! Invariant: after a failed write or sync nothing of it stays, because a second sync proves nothing (P3).

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use super::dir::{Dir, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::partial::Place;
use super::publish::Sealed;
use super::writer::{PartialName, WriterId};
use super::{identity, sync};
use crate::core::manifest::FileEntry;

/// Where one writer's small files are begun.
#[derive(Debug)]
pub struct WholeFiles {
    partials: Dir,
    writer: WriterId,
}

/// A file with all its bytes, none of which is durable.
#[derive(Debug)]
pub struct Written {
    place: Place,
    file: File,
}

impl WholeFiles {
    /// Of a model directory.
    pub fn of(model: &ModelDir, writer: WriterId) -> Result<Self> {
        Ok(Self { partials: model.partials()?, writer })
    }

    /// Writes all bytes of a file; what a failed try left of it makes room.
    pub fn write(&self, entry: &FileEntry, bytes: &[u8]) -> Result<Written> {
        let name = PartialName::of(&entry.path, self.writer);
        let place = Place { dir: self.partials.clone(), name, entry: entry.clone() };
        let file = place.create_anew()?;
        let written = file.write_all_at(bytes, 0).map_err(|e| place.fail(Step::Write, e));
        kept(&place, written)?;
        Ok(Written { place, file })
    }
}

impl Written {
    /// Makes it durable, through the descriptor that wrote it.
    ///
    /// # Errors
    /// [`VolumeError::Short`] when somebody cut it.
    pub fn seal(self) -> Result<Sealed> {
        let Self { place, file } = self;
        // Not fdatasync: the times are part of the identity and have to survive too.
        kept(&place, sync::all(&file, "partial").map_err(|e| place.fail(Step::Sync, e)))?;
        let stat = stat_of(&file).map_err(|e| place.fail(Step::Look, e))?;
        let (identity, expected) = (identity::of(&stat), place.entry.size);
        if identity.size != expected {
            return Err(VolumeError::Short { path: place.shown(), expected, found: identity.size });
        }
        Ok(Sealed::new(place, file, identity))
    }

    /// Removes it.
    pub fn discard(self) -> Result<()> {
        self.place.discard()
    }
}

/// Removes the file when its step failed; the error to tell is the step's.
fn kept(place: &Place, step: Result<()>) -> Result<()> {
    step.inspect_err(|_| {
        let _left = place.discard();
    })
}

#[cfg(test)]
mod tests {
    use super::super::publish::Folders;
    use super::super::sync::seen;
    use super::super::testing::{OURS, lfs_entry, model, names, proof};
    use super::*;
    use crate::core::receipt::Proved;

    #[test]
    fn a_small_file_is_synced_before_it_is_sealed_and_named_after() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"small");
        let written = WholeFiles::of(&model, OURS).unwrap().write(&entry, b"small").unwrap();
        assert_eq!(names(&model.path().join(".muster/partial")).len(), 1, "no claims");
        seen::take();
        let sealed = written.seal().unwrap();
        assert_eq!(seen::take(), ["all partial"]);
        let verified = sealed.verified(proof(&entry, b"small"), Proved::Stream).unwrap();
        let named = verified.name(&model, &mut Folders::default()).unwrap();
        assert!(super::super::publish::records(vec![named], &model, 1).remove(0).unwrap().proves(&entry));
        assert_eq!(std::fs::read(model.path().join("a")).unwrap(), b"small");
    }

    #[test]
    fn what_an_earlier_try_left_makes_room() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"small");
        let files = WholeFiles::of(&model, OURS).unwrap();
        drop(files.write(&entry, b"sm").unwrap());
        let sealed = files.write(&entry, b"small").unwrap().seal().unwrap();
        let mut bytes = [0; 9];
        assert_eq!(sealed.read_at(0, &mut bytes).unwrap(), 5);
    }

    #[test]
    fn a_file_that_somebody_cut_is_not_sealed() {
        let (_place, model) = model();
        let written = WholeFiles::of(&model, OURS).unwrap().write(&lfs_entry("a", b"small"), b"small").unwrap();
        written.file.set_len(3).unwrap();
        assert!(matches!(written.seal(), Err(VolumeError::Short { expected: 5, found: 3, .. })));
    }

    #[test]
    fn what_could_not_be_written_leaves_nothing() {
        let (_place, model) = model();
        let files = WholeFiles::of(&model, OURS).unwrap();
        let written = files.write(&lfs_entry("a", b"small"), b"small").unwrap();
        let failed = Err(written.place.fail(Step::Sync, rustix::io::Errno::IO));
        assert!(kept(&written.place, failed).is_err());
        assert!(names(&model.path().join(".muster/partial")).is_empty());
    }
}
