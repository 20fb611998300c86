//! Right bytes taken from a file that is no partial: a wrong one that was set aside, or another copy.
//!
//! Invariants: the file they are taken from is only read; what is taken is written, synced and then
//! claimed as if it had been fetched (P3). Which ranges are right is the caller's to know, and the hash
//! of the whole file decides in the end.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::aside::Aside;
use super::dir::{size_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::{ModelDir, PublishedFile};
use super::pages::{drop_pages, read_at};
use super::partial::Partial;
use super::small_file::Temp;
use crate::core::range_set::RangeSet;

/// Bytes between two checkpoints, and between two looks at whether to stop.
const STEP: u64 = 64 << 20;

/// A file that may have right bytes of another.
#[derive(Debug)]
pub struct Donor {
    file: File,
    path: PathBuf,
    len: u64,
}

impl From<PublishedFile> for Donor {
    fn from(file: PublishedFile) -> Self {
        let (file, path, len) = file.into_parts();
        Self { file, path, len }
    }
}

impl Donor {
    /// One that was set aside.
    ///
    /// # Errors
    /// When it cannot be opened, or is no plain file.
    pub fn aside(aside: &Aside) -> Result<Self> {
        let (file, path) = (aside.dir.open_file(&aside.name)?, aside.path());
        let len = size_of(&stat_of(&file).map_err(|e| VolumeError::new(Step::Look, &path, e))?);
        Ok(Self { file, path, len })
    }

    /// Its length in bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where it is, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads bytes, as many as there are up to the buffer's end.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        read_at(&self.file, offset, bytes).map_err(|e| VolumeError::new(Step::Read, &self.path, e))
    }

    /// Gives the pages of a range back, so that the disk is asked for it.
    pub fn drop_pages(&self, range: &Range<u64>) {
        drop_pages(&self.file, range);
    }
}

impl ModelDir {
    /// Whether what is copied inside this directory shares its blocks with the original.
    pub fn shares_blocks(&self) -> bool {
        let tried = || -> Result<bool> {
            let dir = self.partials()?;
            let (original, copy) = (Temp::create(&dir, "original")?, Temp::create(&dir, "copy")?);
            let written = original.file.write_all_at(&[9; 4096], 0);
            written.map_err(|e| VolumeError::new(Step::Write, dir.shown("original"), e))?;
            Ok(rustix::fs::ioctl_ficlone(&copy.file, &original.file).is_ok())
        };
        tried().unwrap_or(false)
    }
}

impl Partial {
    /// Copies ranges of `donor` to the same places in this partial, blocks shared where the file system
    /// can, and claims what is durable. Returns that; it is less than was wanted when `go_on` said no, or
    /// the donor ends before.
    ///
    /// # Errors
    /// As [`Self::write_at`]; what came before is claimed.
    pub fn graft(&self, donor: &Donor, wanted: &RangeSet, go_on: &dyn Fn() -> bool) -> Result<RangeSet> {
        let mut durable = RangeSet::new();
        for range in wanted.iter() {
            let mut at = range.start;
            while at < range.end && go_on() {
                let step = at..range.end.min(at + STEP);
                let copied = self.fill_from(&donor.file, &step)?;
                let came = RangeSet::from(at..at + copied);
                self.checkpoint(&came)?;
                durable.extend(&came);
                if copied < step.end - at {
                    break;
                }
                at = step.end;
            }
        }
        Ok(durable)
    }
}

#[cfg(test)]
mod tests {
    use super::super::partial::Resumed;
    use super::super::testing::{OURS, bytes, lfs_entry, model, set};
    use super::*;

    #[test]
    fn what_is_taken_is_claimed_and_a_donor_that_ends_gives_less() {
        let (place, model) = model();
        let data = bytes(5000);
        let entry = lfs_entry("a", &data);
        std::fs::write(model.path().join("wrong"), &data[..4000]).unwrap();
        let donor =
            Donor::from(model.open_published(&crate::core::repo_path::RepoPath::parse("wrong").unwrap()).unwrap());
        assert_eq!(donor.len(), 4000);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        let none = partial.graft(&donor, &set(&[(0, 1000)]), &|| false).unwrap();
        assert!(none.is_empty(), "stopped");
        let came = partial.graft(&donor, &set(&[(0, 1000), (2000, 3000), (3500, 5000)]), &|| true).unwrap();
        assert_eq!(came, set(&[(0, 1000), (2000, 3000), (3500, 4000)]));
        drop(partial);
        let Resumed { durable, .. } = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert_eq!(durable, came);
        drop(place);
    }
}
