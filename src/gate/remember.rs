//! What earlier gates hashed, kept outside the model directory.
//!
//! Owns a private directory of small files, one for each manifest at one place, so that a drift
//! of identities (a recursive chown, another mount) is paid for once. Invariants: only what this
//! user's own gates hashed is believed (own uid, mode 0700); an identity is kept only when it had
//! settled before the hash began; and nothing here is needed: without it the gate hashes again.

use std::collections::HashMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use thiserror::Error;

use crate::core::digest::{Digest, Sha256};
use crate::core::identity::Identity;
use crate::core::manifest::{FileEntry, ManifestId};
use crate::core::repo_path::RepoPath;
use crate::volume::dir::Dir;
use crate::volume::{VolumeError, small_file};

/// Version of the stored form.
const SCHEMA: u32 = 1;
/// Most bytes of one file of memory: a million files of a manifest.
const SIZE_MAX: u64 = 512 << 20;
/// Most files of memory; the oldest goes first.
const FILES_MAX: usize = 256;

/// Why nothing is remembered.
#[derive(Debug, Error)]
pub enum RememberError {
    /// Somebody else could have put verdicts there.
    #[error("{} is not a directory of this user alone (mode 0700)", .path.display())]
    NotPrivate {
        /// The directory.
        path: std::path::PathBuf,
    },
    /// It cannot be used.
    #[error("nothing can be remembered there")]
    Volume(#[from] VolumeError),
}

/// Verified identities of the files of one manifest at one place.
#[derive(Debug, Default)]
pub struct Memory {
    files: HashMap<RepoPath, Known>,
    store: Option<(Dir, Key)>,
    learned: bool,
}

/// Which manifest, and where: the same bytes on another mount have other identities.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// The manifest.
    pub manifest: ManifestId,
    /// Canonical path of the model directory.
    pub directory: String,
    /// Device it is on.
    pub device: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Known {
    path: RepoPath,
    digest: Digest,
    identity: Identity,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    schema: u32,
    #[serde(flatten)]
    key: Key,
    files: Vec<Known>,
}

impl Memory {
    /// Opens what is remembered in `dir` about `key`; makes the directory when it is missing.
    /// A damaged memory is an empty one.
    ///
    /// # Errors
    /// [`RememberError`] when the directory must not be believed or cannot be used.
    pub fn open(dir: &Path, key: Key) -> Result<Self, RememberError> {
        let dir = private_dir(dir)?;
        let bytes = small_file::read(&dir, &key.file_name(), SIZE_MAX)?.unwrap_or_default();
        let known = Self::from_json(&bytes, &key);
        Ok(Self { store: Some((dir, key)), ..known })
    }

    /// What the stored form says about `key`: nothing when it is damaged, of another version or
    /// about something else. It has no place, so nothing is stored of it.
    #[must_use]
    pub fn from_json(bytes: &[u8], key: &Key) -> Self {
        let stored = serde_json::from_slice::<Stored>(bytes).ok();
        let stored = stored.filter(|stored| stored.schema == SCHEMA && stored.key == *key);
        let files = stored.map(|stored| stored.files).unwrap_or_default();
        let files = files.into_iter().map(|known| (known.path.clone(), known)).collect();
        Self { files, store: None, learned: false }
    }

    /// The stored form, with the files sorted by path.
    #[must_use]
    pub fn to_json(&self, key: &Key) -> Vec<u8> {
        let mut files: Vec<_> = self.files.values().cloned().collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let stored = Stored { schema: SCHEMA, key: key.clone(), files };
        serde_json::to_vec(&stored).expect("a memory has string keys only")
    }

    /// The identity under which this entry's bytes were last seen to be right.
    #[must_use]
    pub fn verified(&self, entry: &FileEntry) -> Option<Identity> {
        let known = self.files.get(&entry.path)?;
        (known.digest == entry.digest).then_some(known.identity)
    }

    /// Remembers that the entry's bytes were right under `identity`, which had settled before
    /// they were read.
    pub fn learn(&mut self, entry: &FileEntry, identity: Identity) {
        let known = Known { path: entry.path.clone(), digest: entry.digest, identity };
        self.files.insert(entry.path.clone(), known);
        self.learned = true;
    }

    /// Stores what was learned, when there is a place for it.
    ///
    /// # Errors
    /// [`RememberError`]; the verdict does not depend on it.
    pub fn save(&mut self) -> Result<(), RememberError> {
        let (Some((dir, key)), true) = (&self.store, self.learned) else { return Ok(()) };
        small_file::replace(dir, &key.file_name(), &self.to_json(key))?;
        self.learned = false;
        forget_oldest(dir)?;
        Ok(())
    }
}

impl Key {
    fn file_name(&self) -> String {
        let text = format!("{}\n{}\n{}", self.manifest, self.device, self.directory);
        format!("{}.json", Sha256::from_bytes(sha2::Sha256::digest(text).into()))
    }
}

fn private_dir(path: &Path) -> Result<Dir, RememberError> {
    let dir = match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) => Dir::create(parent)?.make_private_folder(name)?,
        _ => Dir::open(path)?,
    };
    if dir.is_private()? { Ok(dir) } else { Err(RememberError::NotPrivate { path: path.to_owned() }) }
}

fn forget_oldest(dir: &Dir) -> Result<(), VolumeError> {
    let entries = dir.list()?;
    let Some(excess) = entries.len().checked_sub(FILES_MAX).filter(|excess| *excess > 0) else { return Ok(()) };
    let mut aged = Vec::new();
    for entry in entries {
        if let Some(stat) = dir.look(&entry.name)? {
            aged.push((crate::volume::identity::of(&stat).mtime_ns, entry.name));
        }
    }
    aged.sort();
    aged.iter().take(excess).try_for_each(|(_, name)| dir.remove(name).map(drop))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::core::verify::tests::lfs_entry;

    fn key(directory: &str) -> Key {
        Key { manifest: Sha256::from_bytes([1; 32]), directory: directory.into(), device: 1 }
    }

    fn identity(ctime_ns: i64) -> Identity {
        Identity { inode: 1, size: 1, mtime_ns: 1, ctime_ns }
    }

    #[test]
    fn what_was_learned_is_known_to_the_next_gate_at_this_place_only() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("state/verified");
        let (a, b) = (lfs_entry("a", b"1"), lfs_entry("b", b"2"));
        let mut memory = Memory::open(&dir, key("/m")).unwrap();
        memory.learn(&a, identity(7));
        memory.save().unwrap();
        let again = Memory::open(&dir, key("/m")).unwrap();
        assert_eq!(again.verified(&a), Some(identity(7)));
        assert_eq!(again.verified(&b), None);
        assert_eq!(again.verified(&lfs_entry("a", b"other bytes")), None);
        assert_eq!(Memory::open(&dir, key("/other")).unwrap().verified(&a), None);
        assert_eq!(std::fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_believed() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("verified");
        std::fs::create_dir(&dir).unwrap();
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o770)).unwrap();
        assert!(matches!(Memory::open(&dir, key("/m")), Err(RememberError::NotPrivate { .. })));
    }

    #[test]
    fn a_damaged_memory_is_an_empty_one() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("verified");
        let entry = lfs_entry("a", b"1");
        let mut memory = Memory::open(&dir, key("/m")).unwrap();
        memory.learn(&entry, identity(7));
        memory.save().unwrap();
        std::fs::write(dir.join(key("/m").file_name()), b"{\"schema\": 1, \"fil").unwrap();
        assert_eq!(Memory::open(&dir, key("/m")).unwrap().verified(&entry), None);
    }

    #[test]
    fn the_oldest_memories_are_forgotten() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("verified");
        let entry = lfs_entry("a", b"1");
        for number in 0..FILES_MAX + 3 {
            let mut memory = Memory::open(&dir, key(&format!("/m{number}"))).unwrap();
            memory.learn(&entry, identity(7));
            memory.save().unwrap();
        }
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), FILES_MAX);
        let last = key(&format!("/m{}", FILES_MAX + 2));
        assert!(Memory::open(&dir, last).unwrap().verified(&entry).is_some());
    }
}
