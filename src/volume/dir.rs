//! A directory as a descriptor: the only way this crate reaches a file.
//!
//! Invariant (P9): every open, link, rename and removal starts at the descriptor and follows no
//! symbolic link, in no component, so nothing outside can be reached. The kernel enforces it
//! (`openat2` with `RESOLVE_BENEATH`); where it cannot, each component is opened by itself.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::error::{Result, Step, VolumeError};
use super::sync;

/// Mode of a file or folder before the umask.
pub(crate) const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const FOLDER_MODE: Mode = Mode::from_raw_mode(0o777);
/// Most entries of one folder, and of one walk, that are looked at.
const ENTRIES_MAX: usize = 2_000_000;

/// A directory.
#[derive(Debug, Clone)]
pub struct Dir {
    /// `O_PATH`: search permission is enough to go through it.
    fd: Arc<OwnedFd>,
    path: Arc<Path>,
}

/// One entry of a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name; for a walk its path below where the walk began.
    pub name: String,
    /// What it is, links not followed.
    pub kind: FileType,
}

impl Dir {
    /// Opens the directory that a user named; links on the way to it are the user's own.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| VolumeError::new(Step::Open, path, e))?;
        Ok(Self { fd: Arc::new(fd), path: path.into() })
    }

    /// As [`Self::open`], and makes what is missing of the path.
    pub fn create(path: &Path) -> Result<Self> {
        match Self::open(path) {
            Err(error) if error.is_missing() => {
                let Some(name) = path.file_name() else { return Err(error) };
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                let parent = Self::create(parent.unwrap_or(Path::new(".")))?;
                parent.make_one(name, FOLDER_MODE)?;
                Self::open(path)
            }
            other => other,
        }
    }

    /// The path as the user gave it, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of an entry, for messages.
    pub fn shown(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a folder below this one.
    pub fn folder(&self, name: &str) -> Result<Self> {
        let fd = self.open_raw(name, OFlags::PATH | OFlags::DIRECTORY, Mode::empty(), Step::Open)?;
        Ok(Self { fd: Arc::new(fd), path: self.shown(name).into() })
    }

    /// Opens a folder below this one; makes what is missing of it and syncs each new name.
    pub fn make_folder(&self, name: &str) -> Result<Self> {
        self.make_folder_with(name, FOLDER_MODE)
    }

    /// As [`Self::make_folder`], for the owner's eyes only.
    pub fn make_private_folder(&self, name: &str) -> Result<Self> {
        self.make_folder_with(name, Mode::from_raw_mode(0o700))
    }

    fn make_folder_with(&self, name: &str, mode: Mode) -> Result<Self> {
        match self.folder(name) {
            Err(error) if error.is_missing() => {}
            other => return other,
        }
        name.split('/').try_fold(self.clone(), |dir, component| {
            dir.make_one(component.as_ref(), mode)?;
            dir.folder(component)
        })
    }

    fn make_one(&self, name: &OsStr, mode: Mode) -> Result<()> {
        match rustix::fs::mkdirat(&self.fd, name, mode) {
            Ok(()) => self.sync(),
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(VolumeError::new(Step::CreateFolder, self.path.join(name), error)),
        }
    }

    /// Opens a file for reading. Never waits: a pipe or device opens at once and is found out by
    /// its type.
    pub fn open_file(&self, name: &str) -> Result<File> {
        self.open_with(name, OFlags::RDONLY, Mode::empty())
    }

    /// Opens an existing file for reading and writing.
    pub fn open_for_writing(&self, name: &str) -> Result<File> {
        self.open_with(name, OFlags::RDWR, Mode::empty())
    }

    /// As [`Self::open_for_writing`], past the page cache.
    pub fn open_direct(&self, name: &str) -> Result<File> {
        self.open_with(name, OFlags::RDWR | OFlags::DIRECT, Mode::empty())
    }

    /// Opens a file for reading, past the page cache.
    pub(super) fn open_direct_to_read(&self, name: &str) -> Result<File> {
        self.open_with(name, OFlags::RDONLY | OFlags::DIRECT, Mode::empty())
    }

    /// Opens a file for writing behind its end; makes it when missing, with mode 0666 under the umask.
    pub(super) fn open_to_append(&self, name: &str) -> Result<File> {
        self.open_with(name, OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE, FILE_MODE)
    }

    fn open_with(&self, name: &str, access: OFlags, mode: Mode) -> Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = match self.open_raw(name, flags, mode, Step::Open) {
            // Sockets, devices that are not there, and folders to write into do not even open.
            Err(error) if matches!(error.errno(), Some(Errno::NXIO | Errno::NODEV | Errno::ISDIR)) => {
                return Err(VolumeError::NotRegular { path: self.shown(name) });
            }
            other => File::from(other?),
        };
        let stat = stat_of(&file).map_err(|e| VolumeError::new(Step::Look, self.shown(name), e))?;
        if kind_of(&stat) != FileType::RegularFile {
            return Err(VolumeError::NotRegular { path: self.shown(name) });
        }
        Ok(file)
    }

    /// Makes a new file for reading and writing; mode 0666 under the umask.
    pub fn create_file(&self, name: &str) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        self.open_raw(name, flags, FILE_MODE, Step::Create).map(File::from)
    }

    /// Attributes of an entry, links not followed; `None` when it is not there.
    pub fn look(&self, name: &str) -> Result<Option<Stat>> {
        let (dir, last) = match self.parent_of(name) {
            Err(error) if error.is_missing() => return Ok(None),
            other => other?,
        };
        match rustix::fs::statat(&dir.fd, last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(VolumeError::new(Step::Look, self.shown(name), error)),
        }
    }

    /// Moves an entry, replacing what has the new name.
    pub fn rename(&self, from: &str, to_dir: &Self, to: &str) -> Result<()> {
        let (source, from) = self.parent_of(from)?;
        let (target, to) = to_dir.parent_of(to)?;
        rustix::fs::renameat(&source.fd, from, &target.fd, to)
            .map_err(|e| VolumeError::new(Step::Rename, source.shown(from), e))?;
        sync::named(to);
        Ok(())
    }

    /// Moves an entry to a name that nothing has.
    ///
    /// # Errors
    /// [`VolumeError::Occupied`] with the new name. Where the kernel cannot refuse by itself
    /// (NFS), a moment remains between look and rename.
    pub fn rename_new(&self, from: &str, to_dir: &Self, to: &str) -> Result<()> {
        let (source, from) = self.parent_of(from)?;
        let (target, to) = to_dir.parent_of(to)?;
        match rustix::fs::renameat_with(&source.fd, from, &target.fd, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                if target.look(to)?.is_some() {
                    return Err(VolumeError::Occupied { path: target.shown(to) });
                }
                source.rename(from, &target, to)
            }
            Err(Errno::EXIST) => Err(VolumeError::Occupied { path: target.shown(to) }),
            Err(error) => Err(VolumeError::new(Step::Rename, source.shown(from), error)),
            Ok(()) => {
                sync::named(to);
                Ok(())
            }
        }
    }

    /// Gives a file of this folder a second name, which nothing may have.
    pub fn link(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::linkat(&self.fd, from, &self.fd, to, AtFlags::empty())
            .map_err(|e| VolumeError::new(Step::Link, self.shown(to), e))
    }

    /// Removes a file; `false` when it was not there.
    pub fn remove(&self, name: &str) -> Result<bool> {
        self.unlink(name, AtFlags::empty())
    }

    /// Removes an empty folder; `false` when it was not there.
    pub fn remove_folder(&self, name: &str) -> Result<bool> {
        self.unlink(name, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, name: &str, flags: AtFlags) -> Result<bool> {
        let (dir, last) = match self.parent_of(name) {
            Err(error) if error.is_missing() => return Ok(false),
            other => other?,
        };
        match rustix::fs::unlinkat(&dir.fd, last, flags) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(VolumeError::new(Step::Remove, self.shown(name), error)),
        }
    }

    /// Makes the names in this folder durable.
    pub fn sync(&self) -> Result<()> {
        let fail = |error| VolumeError::new(Step::Sync, &*self.path, error);
        match self.sync_strictly() {
            // Some network file systems cannot sync a folder; their names are durable or never will be.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(()),
            other => other.map_err(fail),
        }
    }

    /// As [`Self::sync`], and says when this file system cannot.
    pub(super) fn sync_strictly(&self) -> std::result::Result<(), Errno> {
        sync::names(&self.reopen()?, self.last())
    }

    /// The entries, in no order. Names that are not UTF-8 are nobody's here and left out.
    pub fn list(&self) -> Result<Vec<Entry>> {
        let fail = |error| VolumeError::new(Step::List, &*self.path, error);
        let mut entries = Vec::new();
        for entry in rustix::fs::Dir::new(self.reopen().map_err(fail)?).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            if entries.len() == ENTRIES_MAX {
                return Err(VolumeError::TooMany { path: self.path.to_path_buf(), limit: ENTRIES_MAX });
            }
            // Not every file system tells the type while listing.
            let kind = match entry.file_type() {
                FileType::Unknown => self.look(name)?.map_or(FileType::Unknown, |stat| kind_of(&stat)),
                known => known,
            };
            entries.push(Entry { name: name.to_owned(), kind });
        }
        Ok(entries)
    }

    /// Everything below that is no folder, then the folders, deepest first. `enter` says by path
    /// which folders to look into.
    pub fn walk(&self, mut enter: impl FnMut(&str) -> bool) -> Result<Walk> {
        let mut walk = Walk::default();
        let mut queue = vec![String::new()];
        while let Some(at) = queue.pop() {
            let dir = if at.is_empty() { self.clone() } else { self.folder(&at)? };
            for Entry { name, kind } in dir.list()? {
                let name = if at.is_empty() { name } else { format!("{at}/{name}") };
                if kind == FileType::Directory && enter(&name) {
                    queue.push(name.clone());
                    walk.folders.push(name);
                } else {
                    walk.files.push(Entry { name, kind });
                }
            }
            if walk.files.len() + walk.folders.len() > ENTRIES_MAX {
                return Err(VolumeError::TooMany { path: self.path.to_path_buf(), limit: ENTRIES_MAX });
            }
        }
        walk.folders.sort_by_key(|folder| std::cmp::Reverse(folder.matches('/').count()));
        Ok(walk)
    }

    fn last(&self) -> &str {
        self.path.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }

    /// A descriptor that can be read and synced, which ours of kind `O_PATH` cannot.
    pub(super) fn reopen(&self) -> std::result::Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.fd, c".", flags, Mode::empty())
    }

    /// The folder that holds an entry, and the entry's last component.
    fn parent_of<'a>(&self, name: &'a str) -> Result<(Self, &'a str)> {
        match name.rsplit_once('/') {
            None => Ok((self.clone(), name)),
            Some((parent, last)) => Ok((self.folder(parent)?, last)),
        }
    }

    fn open_raw(&self, name: &str, flags: OFlags, mode: Mode, step: Step) -> Result<OwnedFd> {
        open_beneath(self.fd.as_fd(), name, flags | OFlags::CLOEXEC, mode)
            .map_err(|e| VolumeError::new(step, self.shown(name), e))
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a walk found, as paths below where it began.
#[derive(Debug, Default)]
pub struct Walk {
    /// Files, links, and folders that were not entered.
    pub files: Vec<Entry>,
    /// Folders, deepest first.
    pub folders: Vec<String>,
}

/// Attributes of an open file.
pub(crate) fn stat_of(file: &impl AsFd) -> std::result::Result<Stat, Errno> {
    rustix::fs::fstat(file)
}

/// What an entry is.
pub(crate) fn kind_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Size in bytes.
pub(crate) fn size_of(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

fn open_beneath(dir: BorrowedFd<'_>, name: &str, flags: OFlags, mode: Mode) -> std::result::Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(dir, name, flags, mode, resolve) {
        // Older kernels, and sandboxes that know no such call.
        Err(Errno::NOSYS | Errno::PERM) => open_by_components(dir, name, flags, mode),
        other => other,
    }
}

fn open_by_components(
    dir: BorrowedFd<'_>,
    name: &str,
    flags: OFlags,
    mode: Mode,
) -> std::result::Result<OwnedFd, Errno> {
    let mut at: Option<OwnedFd> = None;
    let mut rest = name.split('/').peekable();
    while let Some(component) = rest.next() {
        if matches!(component, "" | "." | "..") {
            return Err(Errno::XDEV);
        }
        let from = at.as_ref().map_or(dir, AsFd::as_fd);
        let next = if rest.peek().is_some() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(from, component, flags, Mode::empty())?
        } else {
            rustix::fs::openat(from, component, flags | OFlags::NOFOLLOW, mode)?
        };
        at = Some(next);
    }
    at.ok_or(Errno::NOENT)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn place() -> (tempfile::TempDir, Dir) {
        let place = tempfile::tempdir().unwrap();
        std::fs::create_dir(place.path().join("in")).unwrap();
        let dir = Dir::open(&place.path().join("in")).unwrap();
        (place, dir)
    }

    #[test]
    fn no_way_leads_out_of_a_directory() {
        let (place, dir) = place();
        std::fs::create_dir(place.path().join("out")).unwrap();
        std::fs::write(place.path().join("out/secret"), b"s").unwrap();
        symlink("../out", place.path().join("in/link")).unwrap();
        symlink("../out/secret", place.path().join("in/file")).unwrap();
        for name in ["../out/secret", "link/secret", "file", "/etc/passwd"] {
            for open in [open_beneath, open_by_components] {
                let opened = open(dir.fd.as_fd(), name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
                assert!(opened.is_err(), "{name}");
            }
        }
        for name in ["link/new", "link/deep/new"] {
            assert!(matches!(dir.create_file(name), Err(VolumeError::Steered { .. })));
        }
        assert!(matches!(dir.make_folder("link/deep"), Err(VolumeError::Steered { .. })));
        assert!(matches!(dir.make_folder("link"), Err(VolumeError::Steered { .. })));
        std::fs::write(place.path().join("in/own"), b"o").unwrap();
        assert!(dir.rename("own", &dir, "link/own").is_err());
        assert!(dir.remove("link/secret").is_err());
        let left: Vec<_> =
            std::fs::read_dir(place.path().join("out")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["secret"]);
    }

    #[test]
    fn a_new_name_never_replaces_an_old_file() {
        let (place, dir) = place();
        std::fs::write(place.path().join("in/a"), b"a").unwrap();
        std::fs::write(place.path().join("in/b"), b"b").unwrap();
        assert!(matches!(dir.rename_new("a", &dir, "b"), Err(VolumeError::Occupied { path }) if path.ends_with("b")));
        assert!(matches!(dir.link("a", "b"), Err(VolumeError::Occupied { .. })));
        assert_eq!(std::fs::read(place.path().join("in/b")).unwrap(), b"b");
        dir.rename_new("a", &dir, "c").unwrap();
        assert!(dir.look("a").unwrap().is_none());
    }

    #[test]
    fn whatever_is_no_file_neither_blocks_nor_passes_for_one() {
        let (_place, dir) = place();
        rustix::fs::mknodat(&dir, "pipe", FileType::Fifo, FILE_MODE, 0).unwrap();
        rustix::fs::mknodat(&dir, "socket", FileType::Socket, FILE_MODE, 0).unwrap();
        dir.make_folder("folder").unwrap();
        for name in ["pipe", "socket", "folder"] {
            assert!(matches!(dir.open_file(name), Err(VolumeError::NotRegular { .. })), "{name}");
            assert!(matches!(dir.open_for_writing(name), Err(VolumeError::NotRegular { .. })), "{name}");
        }
    }

    #[test]
    fn a_walk_lists_links_without_following_them() {
        let (place, dir) = place();
        dir.make_folder("a/b").unwrap();
        dir.create_file("a/b/x").unwrap();
        symlink("..", place.path().join("in/a/up")).unwrap();
        let mut walk = dir.walk(|_| true).unwrap();
        walk.files.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<_> = walk.files.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!((names, walk.folders), (vec!["a/b/x", "a/up"], vec!["a/b".to_owned(), "a".to_owned()]));
    }
}
