//! The volume: the root directory one owner writes to, and where things are on it.
//!
//! Owns the names below `<volume>/.muster` and the way from a [`ModelName`] to its directory.
//! Opening creates nothing; what is missing is made by the calls that need it.

use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::dir::Dir;
use super::error::{Result, VolumeError};
use super::fs_kind::FsKind;
use super::model_dir::{MANIFEST, ModelDir, PENDING};
use super::quarantine::Quarantine;
use super::small_file;
use super::space::Space;
use crate::core::model_name::ModelName;
use crate::core::repo_path::OWN_DIR;

const OWNERS: &str = "owners";
const STATE: &str = "state";
const QUARANTINE: &str = "quarantine";
const LOG: &str = "log";
const STATUS: &str = "status.json";
/// What the volume is called where its path means nothing.
const ID: &str = "id";
/// Digits of that.
const ID_LEN: usize = 16;
/// Most bytes of a status.
const STATUS_MAX: u64 = 256 << 20;
/// Folders between the root and a model, itself included; as many as a [`ModelName`] has.
const DEPTH_MAX: usize = 4;
/// Most folders that are looked at to find models.
const FOLDERS_MAX: usize = 100_000;

/// A volume.
#[derive(Debug, Clone)]
pub struct Volume {
    root: Dir,
}

impl Volume {
    /// Opens a volume that exists. Creates nothing.
    pub fn open(path: &Path) -> Result<Self> {
        Ok(Self { root: Dir::open(path)? })
    }

    /// Opens a volume for writing; makes it, and the owner's area, when missing.
    pub fn create(path: &Path) -> Result<Self> {
        let this = Self { root: Dir::create(path)? };
        small_file::sweep(&this.area()?)?;
        Ok(this)
    }

    pub(super) const fn root(&self) -> &Dir {
        &self.root
    }

    /// The root's path as the user gave it.
    pub fn path(&self) -> &Path {
        self.root.path()
    }

    /// Kind of file system it is on.
    pub fn fs_kind(&self) -> FsKind {
        FsKind::of(&self.root)
    }

    /// Room on it.
    pub fn space(&self) -> Result<Space> {
        Space::of(&self.root)
    }

    /// The owner's area, made when missing.
    pub fn area(&self) -> Result<Dir> {
        self.root.make_folder(OWN_DIR)
    }

    /// The owner's area; `None` when nobody ever owned the volume.
    pub fn existing_area(&self) -> Result<Option<Dir>> {
        found(self.root.folder(OWN_DIR))
    }

    /// The folder of the owner records, made when missing.
    pub fn owners(&self) -> Result<Dir> {
        self.area()?.make_folder(OWNERS)
    }

    /// The folder of the owner records; `None` when nobody ever owned the volume.
    pub fn existing_owners(&self) -> Result<Option<Dir>> {
        match self.existing_area()? {
            None => Ok(None),
            Some(area) => found(area.folder(OWNERS)),
        }
    }

    /// The folder for the database, for the owner's eyes only, made when missing.
    pub fn state_dir(&self) -> Result<PathBuf> {
        Ok(self.area()?.make_private_folder(STATE)?.path().to_path_buf())
    }

    /// What tells this volume from others, for what is kept of it elsewhere: made of `random` at
    /// the first call, and the same ever after, wherever the volume is mounted.
    pub fn id(&self, random: u64) -> Result<String> {
        let area = self.area()?;
        if let Some(id) = read_id(&area)? {
            return Ok(id);
        }
        let id = format!("{random:016x}");
        match small_file::store_new(&area, ID, id.as_bytes()) {
            // Somebody was faster, or it holds something else.
            Err(VolumeError::Occupied { .. }) => match read_id(&area)? {
                Some(theirs) => Ok(theirs),
                None => small_file::store(&area, ID, id.as_bytes()).map(|()| id),
            },
            done => done.map(|()| id),
        }
    }

    /// The folder for the logs of detached pulls, made when missing.
    pub fn log_dir(&self) -> Result<PathBuf> {
        Ok(self.area()?.make_folder(LOG)?.path().to_path_buf())
    }

    /// The place for bad bytes, made when missing.
    pub fn quarantine(&self) -> Result<Quarantine> {
        Ok(Quarantine::at(self.area()?.make_folder(QUARANTINE)?))
    }

    /// Replaces the status that everybody may read; on a full disk, too.
    pub fn replace_status(&self, json: Vec<u8>) -> Result<()> {
        small_file::replace_even_if_full(&self.area()?, STATUS, json)
    }

    /// The status; `None` when there is none.
    pub fn status(&self) -> Result<Option<Vec<u8>>> {
        match self.existing_area()? {
            None => Ok(None),
            Some(area) => small_file::read(&area, STATUS, STATUS_MAX),
        }
    }

    /// Opens a model's directory for reading; `None` when there is no such directory.
    pub fn model(&self, name: &ModelName) -> Result<Option<ModelDir>> {
        Ok(found(self.root.folder(name.as_str()))?.map(ModelDir::at))
    }

    /// Opens a model's directory for writing; makes it when missing.
    pub fn create_model(&self, name: &ModelName) -> Result<ModelDir> {
        ModelDir::prepare(self.root.make_folder(name.as_str())?)
    }

    /// The names of all models: directories with a manifest, finished or pending, sorted. Links
    /// and hidden folders are not entered, nor models to find others inside.
    pub fn models(&self) -> Result<Vec<ModelName>> {
        let mut names = Vec::new();
        let mut looked_at = 0;
        let mut queue = vec![(String::new(), self.root.clone())];
        while let Some((at, dir)) = queue.pop() {
            for entry in dir.list()? {
                if entry.kind != FileType::Directory || entry.name.starts_with('.') {
                    continue;
                }
                looked_at += 1;
                if looked_at > FOLDERS_MAX {
                    return Err(VolumeError::TooMany { path: self.path().to_path_buf(), limit: FOLDERS_MAX });
                }
                let name = if at.is_empty() { entry.name.clone() } else { format!("{at}/{}", entry.name) };
                // A folder that went away, or that we may not enter, holds no model of ours.
                let Ok(folder) = dir.folder(&entry.name) else { continue };
                if is_model(&folder) {
                    names.extend(ModelName::parse(&name));
                } else if name.split('/').count() < DEPTH_MAX {
                    queue.push((name, folder));
                }
            }
        }
        names.sort();
        Ok(names)
    }
}

fn is_model(folder: &Dir) -> bool {
    let Ok(own) = folder.folder(OWN_DIR) else { return false };
    [MANIFEST, PENDING].iter().any(|name| matches!(own.look(name), Ok(Some(_))))
}

fn found<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Err(error) if error.is_missing() => Ok(None),
        other => other.map(Some),
    }
}

fn read_id(area: &Dir) -> Result<Option<String>> {
    // One byte more than it has would be something else, too.
    let bytes = match small_file::read(area, ID, ID_LEN as u64) {
        Err(VolumeError::TooLarge { .. }) => None,
        other => other?,
    };
    let is_id = |text: &String| text.len() == ID_LEN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()).filter(is_id))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::super::testing::{lfs_entry, names};
    use super::*;
    use crate::core::manifest::Manifest;
    use crate::core::manifest::tests::source;

    fn name(text: &str) -> ModelName {
        ModelName::parse(text).unwrap()
    }

    fn add(volume: &Volume, text: &str) -> ModelDir {
        let manifest = Manifest::seal(source(), vec![lfs_entry("a", b"")]).unwrap();
        let model = volume.create_model(&name(text)).unwrap();
        model.store_manifest(&manifest).unwrap();
        model
    }

    #[test]
    fn models_are_found_by_their_manifest_to_a_bounded_depth() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(&place.path().join("new/volume")).unwrap();
        for text in ["org/b", "a", "datasets/org/x", "one/two/three/four"] {
            add(&volume, text);
        }
        let pending = volume.create_model(&name("org/pending")).unwrap();
        pending.store_pending_manifest(&Manifest::seal(source(), vec![lfs_entry("a", b"")]).unwrap()).unwrap();
        volume.create_model(&name("org/nothing-yet")).unwrap();
        ModelDir::create(&volume.path().join(".hidden/model")).unwrap();
        symlink("..", volume.path().join("org/loop")).unwrap();
        let found: Vec<_> = volume.models().unwrap().into_iter().map(String::from).collect();
        assert_eq!(found, ["a", "datasets/org/x", "one/two/three/four", "org/b", "org/pending"]);
        assert!(volume.model(&name("org/none")).unwrap().is_none());
    }

    #[test]
    fn a_link_in_the_place_of_a_model_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let outside = place.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        let volume = Volume::create(&place.path().join("volume")).unwrap();
        symlink(&outside, volume.path().join("org")).unwrap();
        assert!(matches!(volume.create_model(&name("org/m")), Err(VolumeError::Steered { .. })));
        assert!(matches!(volume.model(&name("org/m")), Err(VolumeError::Steered { .. })));
        assert!(names(&outside).is_empty());
    }

    #[test]
    fn opening_creates_nothing_and_the_state_is_private() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::open(place.path()).unwrap();
        assert!(volume.status().unwrap().is_none() && volume.existing_area().unwrap().is_none());
        assert!(volume.models().unwrap().is_empty());
        assert!(names(place.path()).is_empty());
        let state = volume.state_dir().unwrap();
        assert_eq!(std::fs::metadata(state).unwrap().permissions().mode() & 0o7777, 0o700);
        volume.replace_status(b"{}".to_vec()).unwrap();
        assert_eq!(volume.status().unwrap().unwrap().trim_ascii_end(), b"{}");
        assert!(Volume::open(&place.path().join("none")).unwrap_err().is_missing());
    }

    #[test]
    fn a_volume_has_one_id_for_ever_and_a_garbled_one_is_made_anew() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        assert_eq!(volume.id(7).unwrap(), "0000000000000007");
        assert_eq!(volume.id(8).unwrap(), "0000000000000007");
        for garbled in ["", "../../elsewhere..", "000000000000000000000000000000001", "/etc"] {
            std::fs::write(place.path().join(".muster/id"), garbled).unwrap();
            assert_eq!(volume.id(9).unwrap(), "0000000000000009", "{garbled}");
            assert_eq!(volume.id(10).unwrap(), "0000000000000009");
        }
    }
}
