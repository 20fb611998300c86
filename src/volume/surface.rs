//! What a volume's root says of itself without being written to: whose it is, who may write, how
//! much room there is for names.
//!
//! Reads only, and creates nothing.

use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, StatVfsMountFlags};
use rustix::io::Errno;

use super::dir::{Dir, stat_of};
use super::error::{Result, Step, VolumeError};
use super::fs_kind::FsKind;
use super::layout::Volume;
use crate::core::model_name::ModelName;
use crate::core::repo_path::OWN_DIR;

/// A directory and the file system it is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Surface {
    /// The directory.
    pub path: PathBuf,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permission bits, with setuid, setgid and sticky.
    pub mode: u32,
    /// Whether this process may make names in it, by its mode and its ACL.
    pub writable: bool,
    /// Whether the file system is mounted read-only.
    pub read_only: bool,
    /// The file system, for people.
    pub name: String,
    /// The file system.
    pub kind: FsKind,
    /// Largest file it can hold, where that is smaller than a shard may be.
    pub file_size_max: Option<u64>,
    /// Files that may still be made, and all; `None` where the file system does not count them.
    pub inodes: Option<(u64, u64)>,
}

impl Surface {
    /// Of a directory.
    pub fn of(path: &Path) -> Result<Self> {
        of(&Dir::open(path)?)
    }

    /// Refuses as the first write there would.
    pub fn check_writable(&self) -> Result<()> {
        let errno = if self.read_only { Errno::ROFS } else { Errno::ACCESS };
        if self.writable { Ok(()) } else { Err(VolumeError::new(Step::Write, &self.path, errno)) }
    }
}

/// The nearest directory that exists, from `path` upwards.
pub fn nearest(path: &Path) -> Result<PathBuf> {
    let mut last = None;
    for path in path.ancestors() {
        match Dir::open(if path.as_os_str().is_empty() { Path::new(".") } else { path }) {
            Ok(dir) => return Ok(dir.path().to_path_buf()),
            Err(error) if error.is_missing() => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    Err(last.unwrap_or_else(|| VolumeError::new(Step::Open, path, Errno::NOENT)))
}

impl Volume {
    /// Its root.
    pub fn surface(&self) -> Result<Surface> {
        of(self.root())
    }

    /// The owner's area; `None` when there is none.
    pub fn surface_of_area(&self) -> Result<Option<Surface>> {
        self.existing_area()?.as_ref().map(of).transpose()
    }

    /// The folder of the owner records; `None` when there is none.
    pub fn surface_of_owners(&self) -> Result<Option<Surface>> {
        self.existing_owners()?.as_ref().map(of).transpose()
    }

    /// Whether this process may write in a model's directory and in our folder there.
    pub fn may_write_model(&self, name: &ModelName) -> Result<bool> {
        let Some(model) = self.model(name)? else { return Ok(false) };
        let own = match model.root().folder(OWN_DIR) {
            Err(error) if error.is_missing() => return of(model.root()).map(|surface| surface.writable),
            other => other?,
        };
        Ok(of(model.root())?.writable && of(&own)?.writable)
    }
}

#[allow(clippy::useless_conversion, reason = "field types differ by platform")]
fn of(dir: &Dir) -> Result<Surface> {
    let fail = |error| VolumeError::new(Step::Look, dir.path(), error);
    let stat = stat_of(dir).map_err(fail)?;
    let space = rustix::fs::fstatvfs(dir).map_err(fail)?;
    let may = Access::WRITE_OK | Access::EXEC_OK;
    let read_only = space.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(Surface {
        path: dir.path().to_path_buf(),
        uid: stat.st_uid,
        gid: stat.st_gid,
        mode: u32::from(stat.st_mode) & 0o7777,
        writable: !read_only && rustix::fs::accessat(dir, c".", may, AtFlags::EACCESS).is_ok(),
        read_only,
        name: FsKind::name_of(dir),
        kind: FsKind::of(dir),
        file_size_max: FsKind::file_size_max(dir),
        inodes: (space.f_files > 0).then_some((space.f_favail, space.f_files)),
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_directory_tells_its_mode_and_the_nearest_one_is_found() {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o2770)).unwrap();
        let surface = Surface::of(place.path()).unwrap();
        assert_eq!((surface.mode, surface.writable, surface.read_only), (0o2770, true, false));
        assert_eq!(surface.uid, rustix::process::geteuid().as_raw());
        assert_eq!(nearest(&place.path().join("a/b")).unwrap(), place.path());
        std::fs::write(place.path().join("file"), b"").unwrap();
        assert!(nearest(&place.path().join("file/b")).is_err());
    }
}
