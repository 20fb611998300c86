//! From a sealed partial to a file under its final name.
//!
//! Invariant (P1): only a [`Verified`] reaches a final name, and one is made from a [`Proof`]
//! for that very file. Order: rename, sync the directory, drop the claims, open anew, read the
//! identity, wait until it counts, record. Files of one batch share the sync of their directories: all are
//! renamed, then each directory is synced once, and only then any of them has a record.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use super::aside::Aside;
use super::claims_file::ClaimsFile;
use super::dir::Dir;
use super::error::{Result, Step, VolumeError};
use super::identity;
use super::model_dir::ModelDir;
use super::pages::{drop_pages, read_at};
use super::partial::Place;
use super::quarantine::Quarantine;
use crate::core::identity::Identity;
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;
use crate::core::receipt::{FileRecord, Proved};
use crate::core::verify::Proof;
use crate::parallel::in_parallel;

/// A partial with all its bytes, synced; nobody writes to it any more.
#[derive(Debug)]
pub struct Sealed {
    place: Place,
    file: File,
    identity: Identity,
}

impl Sealed {
    pub(super) const fn new(place: Place, file: File, identity: Identity) -> Self {
        Self { place, file, identity }
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
        Ok(Verified { place: self.place, sealed: self.identity, proof, proved })
    }

    /// Sets bad bytes aside; the partial is gone afterwards. Returns where they are.
    pub fn quarantine(self, quarantine: &Quarantine) -> Result<Aside> {
        let kept =
            quarantine.take(&self.place.dir, &self.place.name.partial(), self.place.entry.path.file_name(), false)?;
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
    /// As it was before its bytes were proved.
    sealed: Identity,
    proof: Proof,
    proved: Proved,
}

impl Verified {
    /// The file it is to become.
    pub const fn entry(&self) -> &FileEntry {
        &self.place.entry
    }

    /// Moves it to its final name and returns the record for the receipt, once its identity
    /// counts: that takes some milliseconds.
    ///
    /// Never replaces anything. The caller has checked that it still owns the volume.
    ///
    /// # Errors
    /// [`PublishError::Occupied`] gives the file back.
    pub fn publish(self, model: &ModelDir) -> std::result::Result<FileRecord, PublishError> {
        let record = self.place(model)?;
        Ok(model.settle_record(record)?)
    }

    /// As [`Self::publish`], but returns at once: the identity of the record does not count before
    /// [`ModelDir::counts_at`] says so, or [`ModelDir::settle_record`] was waited for.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn place(self, model: &ModelDir) -> std::result::Result<FileRecord, PublishError> {
        let named = self.name(model, &mut Folders::default())?;
        named.folder.sync()?;
        Ok(named.record(model)?)
    }

    /// Moves it to its final name, which is not durable before [`records`] has been called.
    ///
    /// # Errors
    /// As [`Self::publish`].
    pub fn name(self, model: &ModelDir, folders: &mut Folders) -> std::result::Result<Named, PublishError> {
        let folder = folders.of(model, self.entry())?;
        // Until here nothing of ours touches what was sealed, so another change time is somebody's
        // write, even with the other times put back.
        let before = self.place.dir.look(&self.place.name.partial())?;
        let touched = before.is_some_and(|stat| identity::of(&stat) != self.sealed);
        let name = self.place.entry.path.file_name();
        match self.place.dir.rename_new(&self.place.name.partial(), &folder, name) {
            Err(VolumeError::Occupied { path }) => Err(PublishError::Occupied { path, verified: Box::new(self) }),
            Err(error) => Err(error.into()),
            Ok(()) => Ok(Named { verified: self, folder, touched }),
        }
    }

    /// Keeps it beside the model's files until an update swaps it in. All of it is claimed, so a
    /// restart finds it whole.
    pub fn stage(self) -> Result<Staged> {
        ClaimsFile::create_beside(&self.place, &RangeSet::from(0..self.place.entry.size))?;
        Ok(Staged(self))
    }
}

/// The folders that the files of one batch go to, each opened once.
#[derive(Debug, Default)]
pub struct Folders(HashMap<String, Dir>);

impl Folders {
    fn of(&mut self, model: &ModelDir, entry: &FileEntry) -> Result<Dir> {
        let Some(parent) = entry.path.ancestors().last() else { return Ok(model.root().clone()) };
        if let Some(known) = self.0.get(parent) {
            return Ok(known.clone());
        }
        let folder = model.root().make_folder(parent)?;
        self.0.insert(parent.to_owned(), folder.clone());
        Ok(folder)
    }
}

/// A file under its final name, which may be gone after a power cut.
#[derive(Debug)]
#[must_use = "a name that is not synced may be gone after a power cut"]
pub struct Named {
    verified: Verified,
    folder: Dir,
    /// Whether somebody changed it after it was sealed.
    touched: bool,
}

impl Named {
    /// Its record. The name is durable.
    fn record(self, model: &ModelDir) -> Result<FileRecord> {
        let Self { verified: Verified { place, sealed, proof, proved }, folder, touched } = self;
        place.dir.remove(&place.name.claims())?;
        let published = model.open_published(&place.entry.path)?;
        let identity = published.identity();
        if identity.inode != sealed.inode {
            return Err(VolumeError::Replaced { path: folder.shown(place.entry.path.file_name()) });
        }
        // A rename leaves these two alone: somebody has written to the file since it was sealed.
        let written = (identity.size, identity.mtime_ns) != (sealed.size, sealed.mtime_ns);
        let identity = if touched || written { identity.distrusted() } else { identity };
        model.note_blocks([proof.blocks()]);
        Ok(FileRecord::new(place.entry.path, &proof, identity, proved))
    }
}

/// Makes the names of a batch durable, each folder once, by so many threads; returns the record of each
/// file in the same order. As after [`Verified::place`] their identities do not count yet.
///
/// A folder that could not be synced fails all files of the batch that it holds.
pub fn records(batch: Vec<Named>, model: &ModelDir, threads: usize) -> Vec<Result<FileRecord>> {
    let mut folders: Vec<Dir> = Vec::new();
    for Named { folder, .. } in &batch {
        if !folders.iter().any(|known| known.path() == folder.path()) {
            folders.push(folder.clone());
        }
    }
    let synced = in_parallel(threads, &folders, Dir::sync);
    let failed: HashMap<&Path, VolumeError> =
        folders.iter().zip(synced).filter_map(|(folder, synced)| Some((folder.path(), synced.err()?))).collect();
    let record = |named: Named| match failed.get(named.folder.path()) {
        Some(error) => {
            let errno = error.errno().unwrap_or(Errno::IO);
            Err(VolumeError::new(Step::Sync, named.folder.path(), errno))
        }
        None => named.record(model),
    };
    batch.into_iter().map(record).collect()
}

/// A verified file that waits for the update it belongs to.
#[derive(Debug)]
pub struct Staged(Verified);

impl Staged {
    /// The file it is to become.
    pub const fn entry(&self) -> &FileEntry {
        self.0.entry()
    }

    /// As [`Verified::place`].
    ///
    /// # Errors
    /// As [`Verified::publish`].
    pub fn place(self, model: &ModelDir) -> std::result::Result<FileRecord, PublishError> {
        self.0.place(model)
    }

    /// As [`Verified::name`].
    ///
    /// # Errors
    /// As [`Verified::publish`].
    pub fn name(self, model: &ModelDir, folders: &mut Folders) -> std::result::Result<Named, PublishError> {
        self.0.name(model, folders)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::super::partial::Partial;
    use super::super::sync::seen;
    use super::super::testing::{OURS, bytes, lfs_entry, model, names, proof, sealed, set, verified};
    use super::*;
    use crate::core::identity::Observed;
    use crate::core::manifest::Manifest;
    use crate::core::manifest::tests::source;
    use crate::core::receipt::{Receipt, Witness};

    #[test]
    fn a_final_name_appears_only_when_the_bytes_are_proved() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("sub folder/größe 模型.bin", &data);
        let absent = || assert_eq!(model.observe(&entry.path), Observed::Missing);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        absent();
        partial.write_at(0, &data).unwrap();
        partial.checkpoint(&set(&[(0, 1000)])).unwrap();
        absent();
        let sealed = partial.seal().unwrap();
        absent();
        let verified = sealed.verified(proof(&entry, &data), Proved::Stream).unwrap();
        absent();
        let record = verified.publish(&model).unwrap();
        assert_eq!(model.observe(&entry.path), Observed::Present(record.identity));
        assert!(record.proves(&entry));
        assert_eq!(std::fs::read(model.path_of(&entry.path)).unwrap(), data);
        assert!(names(&model.path().join(".muster/partial")).is_empty(), "partial and claims are gone");
    }

    #[test]
    fn each_step_is_durable_before_the_next_one_counts_on_it() {
        let (_place, model) = model();
        let data = bytes(1000);
        let entry = lfs_entry("sub/a", &data);
        let partial = Partial::create(&model, &entry, OURS).unwrap();
        seen::take();
        partial.write_at(0, &data).unwrap();
        partial.checkpoint(&set(&[(0, 600)])).unwrap();
        assert_eq!(
            seen::take(),
            ["data partial", "data claims", "names partial"],
            "the first claims come with their name"
        );
        partial.checkpoint(&set(&[(600, 1000)])).unwrap();
        assert_eq!(seen::take(), ["data partial", "data claims"]);
        let sealed = partial.seal().unwrap();
        assert_eq!(seen::take(), ["all partial"]);
        let record = sealed.verified(proof(&entry, &data), Proved::Stream).unwrap().publish(&model).unwrap();
        assert_eq!(seen::take(), ["names model", "named a", "names sub"]);
        let manifest = Manifest::seal(source(), vec![entry]).unwrap();
        let witness = Witness { at: jiff::Timestamp::UNIX_EPOCH, program: "muster".into(), host: "here".into() };
        model.store_receipt(&Receipt::seal(&manifest, vec![record], witness).unwrap()).unwrap();
        assert_eq!(seen::take(), ["all receipt.json", "named receipt.json", "names .muster"]);
    }

    #[test]
    fn the_names_of_a_batch_are_durable_before_any_of_it_has_a_record() {
        let (_place, model) = model();
        let entries = ["a", "sub/b", "sub/c", "d"].map(|path| lfs_entry(path, path.as_bytes()));
        let batch: Vec<_> = entries.iter().map(|e| verified(&model, e, e.path.as_str().as_bytes())).collect();
        seen::take();
        let mut folders = Folders::default();
        let named: Vec<_> = batch.into_iter().map(|file| file.name(&model, &mut folders).unwrap()).collect();
        assert_eq!(seen::take(), ["named a", "names model", "named b", "named c", "named d"], "the folder is new");
        let records = records(named, &model, 1);
        assert_eq!(seen::take(), ["names model", "names sub"], "each folder once");
        for (record, entry) in records.into_iter().zip(&entries) {
            let record = record.unwrap();
            assert!(record.proves(entry));
            assert_eq!(model.observe(&entry.path), Observed::Present(record.identity));
        }
        assert!(names(&model.path().join(".muster/partial")).is_empty());
    }

    #[test]
    fn one_of_a_batch_that_cannot_be_named_keeps_no_other_from_its_record() {
        let (_place, model) = model();
        let entries = ["a", "b"].map(|path| lfs_entry(path, path.as_bytes()));
        let mut batch = entries.iter().map(|e| verified(&model, e, e.path.as_str().as_bytes()));
        std::fs::write(model.path().join("a"), b"somebody's").unwrap();
        let mut folders = Folders::default();
        let refused = batch.next().unwrap().name(&model, &mut folders);
        assert!(matches!(refused, Err(PublishError::Occupied { .. })));
        let named = batch.next().unwrap().name(&model, &mut folders).unwrap();
        assert!(records(vec![named], &model, 4).remove(0).unwrap().proves(&entries[1]));
        assert_eq!(std::fs::read(model.path().join("a")).unwrap(), b"somebody's");
    }

    #[test]
    fn a_proof_of_other_bytes_publishes_nothing() {
        let (_place, model) = model();
        let (entry, other) = (lfs_entry("a", b"12"), lfs_entry("b", b"21"));
        let sealed = sealed(&model, &entry, b"12");
        let refused = sealed.verified(proof(&other, b"21"), Proved::Stream);
        assert!(matches!(refused, Err(VolumeError::OtherProof { .. })));
        assert_eq!(model.observe(&entry.path), Observed::Missing);
    }

    #[test]
    fn an_empty_file_is_published_like_any_other() {
        let (_place, model) = model();
        let entry = lfs_entry("empty", b"");
        let record = verified(&model, &entry, b"").publish(&model).unwrap();
        assert_eq!((record.size, record.identity.size), (0, 0));
    }

    #[test]
    fn nothing_that_stands_there_is_replaced() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"new");
        let path = model.path_of(&entry.path);
        std::fs::write(&path, b"old").unwrap();
        let Err(PublishError::Occupied { verified, .. }) = verified(&model, &entry, b"new").publish(&model) else {
            panic!("it was replaced")
        };
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        std::fs::remove_file(&path).unwrap();
        verified.publish(&model).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_folder_turned_into_a_link_takes_nothing_outside() {
        let (place, model) = model();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        symlink(&outside, model.path().join("sub")).unwrap();
        for path in ["sub/file", "sub/deeper/file"] {
            let entry = lfs_entry(path, b"x");
            let refused = verified(&model, &entry, b"x").publish(&model);
            assert!(matches!(refused, Err(PublishError::Volume(VolumeError::Steered { .. }))));
            assert_eq!(model.observe(&entry.path), Observed::NotRegular);
        }
        assert!(names(&outside).is_empty());
    }

    #[test]
    fn a_writer_that_was_fenced_cannot_publish() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"x");
        let late = verified(&model, &entry, b"x");
        super::super::adopt::fence(&model, super::super::testing::THEIRS, &|| true).unwrap();
        let failed = late.publish(&model);
        assert!(matches!(failed, Err(PublishError::Volume(error)) if error.is_missing()));
        assert_eq!(model.observe(&entry.path), Observed::Missing);
    }

    #[test]
    fn a_file_that_is_not_the_sealed_one_gets_no_record() {
        let (_place, model) = model();
        let mut other = verified(&model, &lfs_entry("a", b"x"), b"x");
        // As if somebody had put another file under the partial's name.
        other.sealed.inode += 1;
        let refused = other.publish(&model);
        assert!(matches!(refused, Err(PublishError::Volume(VolumeError::Replaced { .. }))), "{refused:?}");
    }

    #[test]
    fn a_file_written_to_between_its_proof_and_its_name_is_not_believed() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"right");
        let verified = verified(&model, &entry, b"right");
        let partial = super::super::writer::PartialName::of(&entry.path, OURS).partial();
        std::fs::write(model.path().join(".muster/partial").join(partial), b"wrong").unwrap();
        let record = verified.publish(&model).unwrap();
        let Observed::Present(now) = model.observe(&entry.path) else { panic!("it is there") };
        assert_eq!(record.identity, now.distrusted(), "whoever checks next hashes it");
    }

    #[test]
    fn a_later_change_shows_in_the_identity() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"x");
        let record = verified(&model, &entry, b"x").publish(&model).unwrap();
        std::fs::write(model.path_of(&entry.path), b"y").unwrap();
        let Observed::Present(now) = model.observe(&entry.path) else { panic!("it is there") };
        assert_ne!(now, record.identity);
    }

    #[test]
    fn folders_keep_their_group_and_follow_the_umask() {
        let (_place, model) = model();
        std::fs::set_permissions(model.path(), std::fs::Permissions::from_mode(0o2775)).unwrap();
        let entry = lfs_entry("sub/a", b"x");
        verified(&model, &entry, b"x").publish(&model).unwrap();
        let plain = model.path().join("plain");
        std::fs::create_dir(&plain).unwrap();
        let of = |path: &std::path::Path| {
            let meta = std::fs::metadata(path).unwrap();
            (meta.mode() & 0o7777, meta.gid())
        };
        assert_eq!(of(&model.path().join("sub")), of(&plain));
        assert_eq!(of(&plain).0 & 0o2000, 0o2000);
    }

    #[test]
    fn a_staged_file_is_found_whole_after_a_restart() {
        let (_place, model) = model();
        let data = bytes(500);
        let entry = lfs_entry("a", &data);
        let staged = verified(&model, &entry, &data).stage().unwrap();
        assert_eq!(model.observe(&entry.path), Observed::Missing);
        let resumed = Partial::resume(&model, &entry, OURS).unwrap().unwrap();
        assert!(resumed.durable.is_whole(entry.size));
        drop(resumed);
        staged.place(&model).unwrap();
        assert_eq!(std::fs::read(model.path_of(&entry.path)).unwrap(), data);
    }

    #[test]
    fn bad_bytes_go_to_the_quarantine() {
        let (place, model) = model();
        let volume = super::super::Volume::create(place.path()).unwrap();
        let entry = lfs_entry("a", b"right");
        let kept = sealed(&model, &entry, b"wrong").quarantine(&volume.quarantine().unwrap()).unwrap();
        assert_eq!(std::fs::read(kept.path()).unwrap(), b"wrong");
        assert!(names(&model.path().join(".muster/partial")).is_empty());
    }
}
