//! A model directory: what a loader expects, and one folder of ours that describes it.
//!
//! Invariant: [`ModelDir::open`] and everything that reads creates nothing, so a read-only mount
//! is enough for the gate. Manifest and receipt are written durably; the receipt is written
//! last and set aside first.

use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::path::{Path, PathBuf};

use rustix::io::{Errno, ReadWriteFlags};

use super::dir::{Dir, Walk, stat_of};
use super::error::{Result, Step, VolumeError};
use super::fs_kind::FsKind;
use super::pages::{drop_pages, read_at};
use super::{identity, in_use, small_file};
use crate::core::identity::{Identity, Observed};
use crate::core::local_edits::{Expected, LocalEdits, LocalEditsError};
use crate::core::manifest::Manifest;
use crate::core::receipt::{FileRecord, Receipt};
use crate::core::repo_path::{OWN_DIR, RepoPath};

pub(super) const MANIFEST: &str = "manifest.json";
pub(super) const PENDING: &str = "manifest.pending.json";
pub(super) const RECEIPT: &str = "receipt.json";
const PREVIOUS: &str = "receipt.previous.json";
const LOCAL_EDITS: &str = "local.json";
const PARTIALS: &str = "partial";

/// Most bytes of a manifest or receipt: a million files fit.
const LIMIT: u64 = 1 << 30;
/// Times a file is opened when a network file system says that the handle is stale.
const STALE_TRIES: usize = 3;

/// A model directory.
#[derive(Debug, Clone)]
pub struct ModelDir {
    root: Dir,
    kind: FsKind,
}

impl ModelDir {
    /// Opens the directory that a user named, for reading. Creates nothing.
    pub fn open(path: &Path) -> Result<Self> {
        Dir::open(path).map(Self::at)
    }

    /// Opens a directory for writing; makes it, and our folder in it, when missing.
    pub fn create(path: &Path) -> Result<Self> {
        Self::prepare(Dir::create(path)?)
    }

    pub(super) fn at(root: Dir) -> Self {
        let kind = FsKind::of(&root);
        Self { root, kind }
    }

    pub(super) fn prepare(root: Dir) -> Result<Self> {
        let this = Self::at(root);
        let own = this.make_own()?;
        small_file::sweep(&own)?;
        in_use::make(&own)?;
        small_file::sweep(&own.make_folder(PARTIALS)?)?;
        Ok(this)
    }

    /// The path as the user gave it.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Where a file of the model is or will be, for messages and for the launcher.
    pub fn path_of(&self, path: &RepoPath) -> PathBuf {
        self.root.shown(path.as_str())
    }

    /// Kind of file system it is on.
    pub const fn fs_kind(&self) -> FsKind {
        self.kind
    }

    /// The manifest; `None` when there is none.
    ///
    /// # Errors
    /// [`VolumeError::Manifest`] when it is unusable.
    pub fn manifest(&self) -> Result<Option<Manifest>> {
        self.read_manifest(MANIFEST)
    }

    /// The manifest of a pull or update that has not ended.
    ///
    /// # Errors
    /// As [`Self::manifest`].
    pub fn pending_manifest(&self) -> Result<Option<Manifest>> {
        self.read_manifest(PENDING)
    }

    /// Writes the manifest, unless it is there already.
    pub fn store_manifest(&self, manifest: &Manifest) -> Result<()> {
        small_file::store_changed(&self.make_own()?, MANIFEST, &manifest.to_json()).map(drop)
    }

    /// Writes the pending manifest, unless it is there already.
    pub fn store_pending_manifest(&self, manifest: &Manifest) -> Result<()> {
        small_file::store_changed(&self.make_own()?, PENDING, &manifest.to_json()).map(drop)
    }

    /// Makes the pending manifest the manifest; `false` when there is none.
    pub fn promote_pending(&self) -> Result<bool> {
        self.move_own(PENDING, MANIFEST)
    }

    /// Gives up a pending manifest; `false` when there is none.
    pub fn drop_pending(&self) -> Result<bool> {
        self.remove_own(PENDING)
    }

    /// What was changed here on purpose.
    ///
    /// # Errors
    /// [`VolumeError::LocalEdits`] when that is not known.
    pub fn local_edits(&self) -> Result<LocalEdits> {
        let Some(bytes) = self.local_edits_bytes()? else { return Ok(LocalEdits::default()) };
        LocalEdits::from_json(&bytes).map_err(|source| self.bad_edits(source))
    }

    /// The record of deliberate edits as it is stored, to compare two looks at it.
    pub fn local_edits_bytes(&self) -> Result<Option<Vec<u8>>> {
        self.read_own(LOCAL_EDITS)
    }

    /// Writes what was changed here on purpose; without edits there is no record.
    pub fn store_local_edits(&self, edits: &LocalEdits) -> Result<()> {
        if edits.files().is_empty() {
            return self.remove_own(LOCAL_EDITS).map(drop);
        }
        small_file::store_changed(&self.make_own()?, LOCAL_EDITS, &edits.to_json()).map(drop)
    }

    /// What the directory should hold, when its manifest is `published`.
    ///
    /// # Errors
    /// [`VolumeError::LocalEdits`] when that is not known, or a file changed here and there.
    pub fn expected(&self, published: Manifest) -> Result<Expected> {
        Expected::of(published, self.local_edits()?).map_err(|source| self.bad_edits(source))
    }

    /// The receipt for `manifest`, deliberate edits included; `None` when there is none.
    ///
    /// # Errors
    /// [`VolumeError::Receipt`] when it is unusable or for another manifest;
    /// [`VolumeError::LocalEdits`] when the edits are.
    pub fn receipt(&self, manifest: &Manifest) -> Result<Option<Receipt>> {
        let Some(bytes) = self.receipt_bytes()? else { return Ok(None) };
        let edited = match self.local_edits()? {
            none if none.files().is_empty() => None,
            edits => Some(Expected::of(manifest.clone(), edits).map_err(|source| self.bad_edits(source))?),
        };
        match Receipt::from_json(&bytes, edited.as_ref().map_or(manifest, Expected::manifest)) {
            Ok(receipt) => Ok(Some(receipt)),
            Err(source) => Err(VolumeError::Receipt { path: self.own_path(RECEIPT), source }),
        }
    }

    /// The receipt as it is stored, to compare two looks at it.
    pub fn receipt_bytes(&self) -> Result<Option<Vec<u8>>> {
        self.read_own(RECEIPT)
    }

    /// The identity of the stored receipt, to notice a new one without reading it.
    pub fn receipt_identity(&self) -> Result<Option<Identity>> {
        let Some(own) = self.own()? else { return Ok(None) };
        Ok(own.look(RECEIPT)?.map(|stat| identity::of(&stat)))
    }

    /// Writes the receipt, unless it is there already, and keeps the block digests of its files.
    pub fn store_receipt(&self, receipt: &Receipt) -> Result<()> {
        self.keep_blocks(receipt);
        small_file::store_changed(&self.make_own()?, RECEIPT, &receipt.to_json()).map(drop)
    }

    /// Closes the gate before anything changes; `false` when there is no receipt.
    pub fn set_receipt_aside(&self) -> Result<bool> {
        self.move_own(RECEIPT, PREVIOUS)
    }

    /// Undoes [`Self::set_receipt_aside`], unless there is a receipt again.
    pub fn put_receipt_back(&self) -> Result<()> {
        let own = self.make_own()?;
        own.rename_new(PREVIOUS, &own, RECEIPT)?;
        own.sync()
    }

    /// The receipt that was set aside, as it was stored: its proofs hold for files that did not
    /// change.
    pub fn previous_receipt_bytes(&self) -> Result<Option<Vec<u8>>> {
        self.read_own(PREVIOUS)
    }

    /// What stands where a file belongs, read from a fresh descriptor.
    pub fn observe(&self, path: &RepoPath) -> Observed {
        match self.open_published(path) {
            Ok(file) => Observed::Present(file.identity),
            Err(VolumeError::Missing { .. }) => Observed::Missing,
            Err(VolumeError::NotRegular { .. } | VolumeError::Steered { .. }) => Observed::NotRegular,
            Err(error) => Observed::Unreadable { why: why(&error) },
        }
    }

    /// Opens a file of the model for reading.
    pub fn open_published(&self, path: &RepoPath) -> Result<PublishedFile> {
        let mut tries = 1;
        loop {
            match self.try_open(path) {
                Err(error) if error.errno() == Some(Errno::STALE) && tries < STALE_TRIES => tries += 1,
                other => return other,
            }
        }
    }

    /// Waits until the record's identity counts. One that cannot be waited out is made equal to no
    /// file's, so that whoever checks next hashes the file.
    pub fn settle_record(&self, record: FileRecord) -> Result<FileRecord> {
        let identity = if self.settle(&record.identity)? { record.identity } else { record.identity.distrusted() };
        Ok(FileRecord { identity, ..record })
    }

    /// Whether an identity counts when the file system's clock shows `now_ns`: for example in the
    /// change time of a file that was just renamed.
    pub fn counts_at(&self, identity: &Identity, now_ns: i64) -> bool {
        identity::is_settled(identity, now_ns, self.fs_kind())
    }

    /// Waits until an identity counts; `false` when the file system's clock did not get there in
    /// 2.1 s.
    pub fn settle(&self, identity: &Identity) -> Result<bool> {
        identity::settle(&self.make_own()?, self.kind, identity)
    }

    /// The file system's own clock, in nanoseconds since 1970.
    pub fn filesystem_now(&self) -> Result<i64> {
        identity::filesystem_now(&self.make_own()?)
    }

    /// Everything in the directory but our own folder, links not followed.
    pub fn walk(&self) -> Result<Walk> {
        let mut walk = self.root.walk(|folder| folder != OWN_DIR)?;
        walk.files.retain(|entry| entry.name != OWN_DIR);
        Ok(walk)
    }

    pub(super) const fn root(&self) -> &Dir {
        &self.root
    }

    /// Our folder; `None` when there is none.
    pub(super) fn own(&self) -> Result<Option<Dir>> {
        match self.root.folder(OWN_DIR) {
            Err(error) if error.is_missing() => Ok(None),
            other => other.map(Some),
        }
    }

    /// Our folder, made when missing.
    pub(super) fn make_own(&self) -> Result<Dir> {
        self.root.make_folder(OWN_DIR)
    }

    /// The folder of the partials, made when missing.
    pub(super) fn partials(&self) -> Result<Dir> {
        self.make_own()?.make_folder(PARTIALS)
    }

    fn try_open(&self, path: &RepoPath) -> Result<PublishedFile> {
        let file = self.root.open_file(path.as_str())?;
        let stat = stat_of(&file).map_err(|e| VolumeError::new(Step::Look, self.path_of(path), e))?;
        let in_memory = self.kind == FsKind::Tmpfs;
        Ok(PublishedFile { file, path: self.path_of(path), identity: identity::of(&stat), in_memory })
    }

    fn bad_edits(&self, source: LocalEditsError) -> VolumeError {
        VolumeError::LocalEdits { path: self.own_path(LOCAL_EDITS), source }
    }

    fn own_path(&self, name: &str) -> PathBuf {
        self.root.path().join(OWN_DIR).join(name)
    }

    fn read_manifest(&self, name: &str) -> Result<Option<Manifest>> {
        let Some(bytes) = self.read_own(name)? else { return Ok(None) };
        match Manifest::from_json(&bytes) {
            Ok(manifest) => Ok(Some(manifest)),
            Err(source) => Err(VolumeError::Manifest { path: self.own_path(name), source }),
        }
    }

    pub(super) fn read_own(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(own) = self.own()? else { return Ok(None) };
        small_file::read(&own, name, LIMIT)
    }

    pub(super) fn move_own(&self, from: &str, to: &str) -> Result<bool> {
        let Some(own) = self.own()? else { return Ok(false) };
        match own.rename(from, &own, to) {
            Err(error) if error.is_missing() => return Ok(false),
            other => other?,
        }
        own.sync()?;
        Ok(true)
    }

    pub(super) fn remove_own(&self, name: &str) -> Result<bool> {
        let Some(own) = self.own()? else { return Ok(false) };
        let removed = own.remove(name)?;
        own.sync()?;
        Ok(removed)
    }
}

/// A file of a model, open for reading.
#[derive(Debug)]
pub struct PublishedFile {
    file: File,
    path: PathBuf,
    identity: Identity,
    /// Whether reading it never waits for a device.
    in_memory: bool,
}

impl PublishedFile {
    /// What it was when it was opened.
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// What it is now: equal to [`Self::identity`] when nothing changed while it was read.
    pub fn identity_now(&self) -> Result<Identity> {
        let stat = stat_of(&self.file).map_err(|e| VolumeError::new(Step::Look, &self.path, e))?;
        Ok(identity::of(&stat))
    }

    /// Reads bytes, as many as there are up to the buffer's end.
    pub fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        read_at(&self.file, offset, bytes).map_err(|e| VolumeError::new(Step::Read, &self.path, e))
    }

    /// Fills the buffer if that can be done without waiting for a disk; `false` when it cannot,
    /// or the file ends before: [`Self::read_at`] tells which. Does not block.
    pub fn read_cached_at(&self, offset: u64, bytes: &mut [u8]) -> bool {
        if self.in_memory {
            return read_at(&self.file, offset, bytes).is_ok_and(|count| count == bytes.len());
        }
        let len = bytes.len();
        let read = rustix::io::preadv2(&self.file, &mut [IoSliceMut::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        read.is_ok_and(|count| count == len)
    }

    /// Gives the pages of a range back: reading 500 GB once should not cost everybody's cache.
    pub fn drop_pages(&self, range: &Range<u64>) {
        drop_pages(&self.file, range);
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn into_parts(self) -> (File, PathBuf, u64) {
        (self.file, self.path, self.identity.size)
    }
}

fn why(error: &VolumeError) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bytes, lfs_entry, model, names, verified};
    use super::*;
    use crate::core::manifest::tests::source;
    use crate::core::receipt::Witness;

    #[test]
    fn opening_and_reading_creates_nothing() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::open(place.path()).unwrap();
        assert!(model.manifest().unwrap().is_none());
        assert!(model.pending_manifest().unwrap().is_none());
        assert!(model.receipt_bytes().unwrap().is_none());
        assert_eq!(model.observe(&RepoPath::parse("a/b").unwrap()), Observed::Missing);
        assert!(!model.set_receipt_aside().unwrap() && !model.promote_pending().unwrap());
        assert_eq!(model.retired_bytes().unwrap(), 0);
        assert!(names(place.path()).is_empty());
        assert!(ModelDir::open(&place.path().join("none")).unwrap_err().is_missing());
    }

    #[test]
    fn a_directory_describes_itself_from_pending_to_receipt() {
        let (_place, model) = model();
        let data = bytes(100);
        let entry = lfs_entry("a", &data);
        let manifest = Manifest::seal(source(), vec![entry.clone()]).unwrap();
        model.store_pending_manifest(&manifest).unwrap();
        assert_eq!(model.pending_manifest().unwrap().unwrap(), manifest);
        let record = verified(&model, &entry, &data).publish(&model).unwrap();
        assert!(model.promote_pending().unwrap());
        assert!(model.pending_manifest().unwrap().is_none());
        assert_eq!(model.manifest().unwrap().unwrap(), manifest);
        let witness = Witness { at: jiff::Timestamp::UNIX_EPOCH, program: "p".into(), host: "h".into() };
        let receipt = Receipt::seal(&manifest, vec![record], witness).unwrap();
        model.store_receipt(&receipt).unwrap();
        assert_eq!(model.receipt(&manifest).unwrap().unwrap(), receipt);
        assert_eq!(model.receipt_bytes().unwrap().unwrap(), receipt.to_json());
        assert!(model.set_receipt_aside().unwrap());
        assert!(model.receipt(&manifest).unwrap().is_none());
        assert_eq!(model.previous_receipt_bytes().unwrap().unwrap(), receipt.to_json());
    }

    #[test]
    fn garbled_files_of_ours_are_named() {
        let (_place, model) = model();
        std::fs::write(model.path().join(".muster/manifest.json"), b"{").unwrap();
        let error = model.manifest().unwrap_err();
        assert!(matches!(&error, VolumeError::Manifest { path, .. } if path.ends_with(".muster/manifest.json")));
        std::fs::write(model.path().join(".muster/receipt.json"), b"").unwrap();
        let manifest = Manifest::seal(source(), vec![lfs_entry("a", b"")]).unwrap();
        assert!(matches!(model.receipt(&manifest), Err(VolumeError::Receipt { .. })));
    }

    #[test]
    fn whatever_is_no_regular_file_is_said_to_be_none() {
        let (place, model) = model();
        std::fs::write(place.path().join("real"), b"x").unwrap();
        std::os::unix::fs::symlink("../real", model.path().join("link")).unwrap();
        std::fs::create_dir(model.path().join("folder")).unwrap();
        std::fs::write(model.path().join("file"), b"x").unwrap();
        for name in ["link", "folder", "file/below"] {
            assert_eq!(model.observe(&RepoPath::parse(name).unwrap()), Observed::NotRegular, "{name}");
        }
    }

    #[test]
    fn an_identity_that_changed_while_reading_shows() {
        let (_place, model) = model();
        let entry = lfs_entry("a", b"12345");
        verified(&model, &entry, b"12345").publish(&model).unwrap();
        let file = model.open_published(&entry.path).unwrap();
        let mut bytes = [0; 9];
        assert_eq!(file.read_at(1, &mut bytes).unwrap(), 4);
        file.drop_pages(&(0..5));
        assert_eq!(file.identity_now().unwrap(), file.identity());
        std::fs::write(file.path(), b"54321").unwrap();
        assert_ne!(file.identity_now().unwrap(), file.identity());
    }

    #[test]
    fn a_walk_shows_everything_but_our_folder() {
        let (_place, model) = model();
        verified(&model, &lfs_entry("sub/a", b"x"), b"x").publish(&model).unwrap();
        std::fs::write(model.path().join("extra"), b"").unwrap();
        let mut found: Vec<_> = model.walk().unwrap().files.into_iter().map(|entry| entry.name).collect();
        found.sort();
        assert_eq!(found, ["extra", "sub/a"]);
    }
}
