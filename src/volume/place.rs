//! Where a directory is, and whose it is.
//!
//! Owns the questions that readers ask of a place before they believe what is in it. Creates
//! nothing.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::dir::{Dir, size_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::quarantine::Quarantine;

/// Permission bits of everybody but the owner.
const OTHERS: u32 = 0o077;

impl Dir {
    /// Whether it belongs to this user and nobody else may enter it.
    pub fn is_private(&self) -> Result<bool> {
        let stat = stat_of(self).map_err(|e| VolumeError::new(Step::Look, self.path(), e))?;
        Ok(stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & OTHERS == 0)
    }

    /// Its canonical path and its device: the same files seen at another place have others.
    #[allow(clippy::useless_conversion, reason = "field types differ by platform")]
    pub fn place(&self) -> Result<(PathBuf, u64)> {
        let stat = stat_of(self).map_err(|e| VolumeError::new(Step::Look, self.path(), e))?;
        Ok((canonical(self.path())?, stat.st_dev.into()))
    }
}

impl ModelDir {
    /// As [`Dir::place`].
    pub fn place(&self) -> Result<(PathBuf, u64)> {
        self.root().place()
    }

    /// Bytes of everything in the directory, partials included: a number that grows while somebody
    /// pulls. What comes and goes meanwhile is left out.
    pub fn bytes_on_disk(&self) -> Result<u64> {
        let walk = self.root().walk(|_| true)?;
        let sizes = walk.files.iter().filter_map(|entry| self.root().look(&entry.name).ok().flatten());
        Ok(sizes.map(|stat| size_of(&stat)).sum())
    }

    /// A quarantine in the directory itself, for a model that is on no volume.
    pub fn own_quarantine(&self) -> Result<Quarantine> {
        Ok(Quarantine::at(self.make_own()?.make_folder("quarantine")?))
    }
}

/// A path without links and dots.
pub fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize().map_err(|e| VolumeError::new(Step::Look, path, e))
}

/// Writes a file that a user named: whole or not at all where that can be. A device, a pipe or a
/// mount of one file, as containers have them, is written into.
pub fn write_result(path: &Path, bytes: &[u8]) -> Result<()> {
    let replaced = match (path.parent(), path.file_name().and_then(|name| name.to_str())) {
        (Some(parent), Some(name)) if !is_special(path) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Dir::open(parent).and_then(|dir| super::small_file::replace(&dir, name, bytes))
        }
        _ => Err(VolumeError::NotRegular { path: path.to_owned() }),
    };
    replaced.or_else(|error| match std::fs::OpenOptions::new().write(true).truncate(true).open(path) {
        Ok(mut file) => file.write_all(bytes).map_err(|e| VolumeError::new(Step::Write, path, e)),
        Err(_) => Err(error),
    })
}

/// Whether the path is a symbolic link itself.
pub fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink())
}

fn is_special(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn a_directory_is_private_only_when_nobody_else_may_enter() {
        let place = tempfile::tempdir().unwrap();
        for (mode, private) in [(0o700, true), (0o750, false), (0o701, false)] {
            std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Dir::open(place.path()).unwrap().is_private().unwrap(), private, "{mode:o}");
        }
    }

    #[test]
    fn a_result_replaces_a_file_and_is_written_through_a_link() {
        let place = tempfile::tempdir().unwrap();
        let (file, link) = (place.path().join("verdict.json"), place.path().join("link"));
        write_result(&file, b"a long first result").unwrap();
        write_result(&file, b"second").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"second");
        symlink(&file, &link).unwrap();
        write_result(&link, b"third").unwrap();
        assert_eq!(std::fs::read(&file).unwrap(), b"third");
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert!(write_result(&place.path().join("no/such"), b"x").is_err());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2);
    }

    #[test]
    fn bytes_on_disk_count_partials_too() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(place.path()).unwrap();
        let before = model.bytes_on_disk().unwrap();
        std::fs::write(place.path().join(".muster/partial/x.incomplete"), [0; 100]).unwrap();
        std::fs::create_dir(place.path().join("sub")).unwrap();
        std::fs::write(place.path().join("sub/y"), [0; 11]).unwrap();
        assert_eq!(model.bytes_on_disk().unwrap(), before + 111);
    }
}
