//! From a sealed partial to a file under its final name.
//!
//! Invariant (P1): only a [`Verified`] reaches a final name, and one is made from a [`Proof`]
//! for that very file. Order: rename, sync the directory, drop the claims, open anew, read the
//! identity, wait until it counts, record.

use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;

use thiserror::Error;

use super::claims_file::ClaimsFile;
use super::dir::Dir;
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::partial::{Place, drop_pages, read_at};
use super::quarantine::Quarantine;
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;
use crate::core::receipt::{FileRecord, Proved};
use crate::core::verify::Proof;

/// A partial with all its bytes, synced; nobody writes to it any more.
#[derive(Debug)]
pub struct Sealed {
    place: Place,
    file: File,
    inode: u64,
}

impl Sealed {
    pub(super) const fn new(place: Place, file: File, inode: u64) -> Self {
        Self { place, file, inode }
    }

    /// The file it is to become.
    pub const fn entry(&self) -> &FileEntry {
        &self.place.entry
    }

    /// Reads bytes, as many as there are up to the buffer's end.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        read_at(&self.file, offset, bytes).map_err(|e| self.place.fail(Step::Read, e))
    }

    /// Gives the pages of a range back, so that a read-back comes from the disk.
    pub fn drop_pages(&self, range: &Range<u64>) {
        drop_pages(&self.file, range);
    }

    /// Accepts the proof for these bytes.
    ///
    /// # Errors
    /// [`VolumeError::OtherProof`] for the proof of another content.
    pub fn verified(self, proof: Proof, proved: Proved) -> Result<Verified> {
        if proof.size() != self.place.entry.size || proof.digest() != self.place.entry.digest {
            return Err(VolumeError::OtherProof { path: self.place.shown() });
        }
        Ok(Verified { place: self.place, inode: self.inode, proof, proved })
    }

    /// Sets bad bytes aside; the partial is gone afterwards. Returns where they are.
    pub fn quarantine(self, quarantine: &Quarantine) -> Result<PathBuf> {
        let kept = quarantine.take(&self.place.dir, &self.place.name.partial(), self.place.entry.path.file_name())?;
        self.place.discard()?;
        Ok(kept)
    }

    /// Removes the partial and its claims.
    pub fn discard(self) -> Result<()> {
        self.place.discard()
    }
}

/// Why a verified file did not get its name.
#[derive(Debug, Error)]
pub enum PublishError {
    /// Something has the name. Move it away and publish again.
    #[error("{} exists already", .path.display())]
    Occupied {
        /// The final name.
        path: PathBuf,
        /// The file, still unpublished.
        verified: Box<Verified>,
    },
    /// The volume failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
}

/// A file whose bytes are proved and durable, not yet under its final name.
#[derive(Debug)]
pub struct Verified {
    place: Place,
    inode: u64,
    proof: Proof,
    proved: Proved,
}

impl Verified {
    /// The file it is to become.
    pub const fn entry(&self) -> &FileEntry {
        &self.place.entry
    }

    /// Moves it to its final name and returns the record for the receipt.
    ///
    /// Never replaces anything. The caller has checked that it still owns the volume.
    ///
    /// # Errors
    /// [`PublishError::Occupied`] gives the file back.
    pub fn publish(self, model: &ModelDir) -> std::result::Result<FileRecord, PublishError> {
        let entry = &self.place.entry;
        let parent = self.parent(model)?;
        let name = entry.path.file_name();
        match self.place.dir.rename_new(&self.place.name.partial(), &parent, name) {
            Err(VolumeError::Occupied { path }) => {
                return Err(PublishError::Occupied { path, verified: Box::new(self) });
            }
            other => other?,
        }
        parent.sync()?;
        self.place.dir.remove(&self.place.name.claims())?;
        let published = model.open_published(&entry.path)?;
        let identity = published.identity();
        if identity.inode != self.inode {
            return Err(VolumeError::Replaced { path: parent.shown(name) }.into());
        }
        let settled = model.settle(&identity)?;
        let identity = if settled { identity } else { identity.distrusted() };
        Ok(FileRecord::new(entry.path.clone(), &self.proof, identity, self.proved))
    }

    /// Keeps it beside the model's files until an update swaps it in. All of it is claimed, so a
    /// restart finds it whole.
    pub fn stage(self) -> Result<Staged> {
        let Place { dir, name, entry } = &self.place;
        ClaimsFile::create(dir, name, entry, &RangeSet::from(0..entry.size))?;
        Ok(Staged(self))
    }

    fn parent(&self, model: &ModelDir) -> Result<Dir> {
        match self.place.entry.path.ancestors().last() {
            Some(parent) => model.root().make_folder(parent),
            None => Ok(model.root().clone()),
        }
    }
}

/// A verified file that waits for the update it belongs to.
#[derive(Debug)]
pub struct Staged(Verified);

impl Staged {
    /// The file it is to become.
    pub const fn entry(&self) -> &FileEntry {
        self.0.entry()
    }

    /// As [`Verified::publish`].
    ///
    /// # Errors
    /// As [`Verified::publish`].
    pub fn publish(self, model: &ModelDir) -> std::result::Result<FileRecord, PublishError> {
        self.0.publish(model)
    }
}
