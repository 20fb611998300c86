//! The files and folders that the kernel knows, by their inode number in the backing folder.
//!
//! Each is held open (`O_PATH`) as long as it is known, so its number is given to no other file meanwhile,
//! and it is reached without a path.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fuser::{FileAttr, FileType, INodeNo};
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::times::Times;

pub(super) type Result<T> = std::result::Result<T, Errno>;

pub(super) struct Nodes {
    root: PathBuf,
    root_ino: u64,
    known: Mutex<HashMap<u64, Known>>,
}

struct Known {
    fd: Arc<OwnedFd>,
    lookups: u64,
}

impl Nodes {
    pub(super) fn new(root: &Path) -> Result<Self> {
        let fd = rustix::fs::open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let root_ino = rustix::fs::fstat(&fd)?.st_ino;
        let known = HashMap::from([(root_ino, Known { fd: Arc::new(fd), lookups: u64::MAX / 2 })]);
        Ok(Self { root: root.to_owned(), root_ino, known: Mutex::new(known) })
    }

    pub(super) const fn root(&self) -> u64 {
        self.root_ino
    }

    pub(super) fn root_path(&self) -> &Path {
        &self.root
    }

    /// The number in the backing folder.
    pub(super) fn number(&self, ino: INodeNo) -> u64 {
        if ino == INodeNo::ROOT { self.root_ino } else { ino.0 }
    }

    /// The number as the kernel knows it.
    pub(super) fn told(&self, ino: u64) -> INodeNo {
        if ino == self.root_ino { INodeNo::ROOT } else { INodeNo(ino) }
    }

    pub(super) fn get(&self, ino: u64) -> Result<Arc<OwnedFd>> {
        self.known.lock().unwrap().get(&ino).map(|known| Arc::clone(&known.fd)).ok_or(Errno::STALE)
    }

    /// An entry of a folder; it is known from now on, `lookups` times more.
    pub(super) fn find(&self, parent: u64, name: &OsStr, lookups: u64) -> Result<Stat> {
        let parent = self.get(parent)?;
        let fd = rustix::fs::openat(&parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let mut known = self.known.lock().unwrap();
        let entry = known.entry(stat.st_ino).or_insert_with(|| Known { fd: Arc::new(fd), lookups: 0 });
        entry.lookups += lookups;
        Ok(stat)
    }

    pub(super) fn forget(&self, ino: u64, lookups: u64) {
        let mut known = self.known.lock().unwrap();
        if let Some(entry) = known.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(lookups);
            if entry.lookups == 0 {
                known.remove(&ino);
            }
        }
    }

    pub(super) fn stat(&self, ino: u64) -> Result<Stat> {
        rustix::fs::statat(&self.get(ino)?, c"", AtFlags::EMPTY_PATH)
    }

    /// A path that leads to the very file, whatever its name.
    pub(super) fn reach(&self, ino: u64) -> Result<PathBuf> {
        let fd = self.get(ino)?;
        // The descriptor stays in the table: whoever uses the path is served before the kernel forgets it.
        Ok(PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())))
    }

    /// Where it is below the root, for rules and the log; empty for the root.
    pub(super) fn path(&self, ino: u64) -> String {
        let Some(link) = self.reach(ino).ok().and_then(|path| std::fs::read_link(path).ok()) else {
            return String::new();
        };
        let link = link.to_string_lossy();
        let link = link.strip_suffix(" (deleted)").unwrap_or(&link);
        let root = self.root.to_string_lossy();
        link.strip_prefix(&*root).unwrap_or(link).trim_start_matches('/').to_owned()
    }

    pub(super) fn path_in(&self, parent: u64, name: &OsStr) -> String {
        let parent = self.path(parent);
        let name = name.to_string_lossy();
        if parent.is_empty() { name.into_owned() } else { format!("{parent}/{name}") }
    }

    pub(super) fn attr(&self, stat: &Stat, times: &Times, path: &str) -> FileAttr {
        let mtime = times.told(stat.st_mtime, stat.st_mtime_nsec as i64, path);
        FileAttr {
            ino: self.told(stat.st_ino),
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            atime: times.told(stat.st_atime, stat.st_atime_nsec as i64, path),
            mtime,
            ctime: times.told(stat.st_ctime, stat.st_ctime_nsec as i64, path),
            crtime: mtime,
            kind: kind_of(stat),
            perm: (stat.st_mode & 0o7777) as u16,
            nlink: stat.st_nlink as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: stat.st_rdev as u32,
            blksize: 4096,
            flags: 0,
        }
    }
}

pub(super) fn kind_of(stat: &Stat) -> FileType {
    kind(rustix::fs::FileType::from_raw_mode(stat.st_mode))
}

pub(super) fn kind(kind: rustix::fs::FileType) -> FileType {
    use rustix::fs::FileType as Found;
    match kind {
        Found::Directory => FileType::Directory,
        Found::Symlink => FileType::Symlink,
        Found::Socket => FileType::Socket,
        Found::Fifo => FileType::NamedPipe,
        Found::CharacterDevice => FileType::CharDevice,
        Found::BlockDevice => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}
