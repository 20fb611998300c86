//! The way past the page cache.
//!
//! Owns when it is taken: in large files, on file systems that are good at it. Nothing depends on it: what
//! is not taken this way goes through the cache.

use std::fs::File;
use std::io;

use rustix::io::Errno;

use super::dir::stat_of;
use super::fs_kind::FsKind;
use super::partial::Place;

/// Smallest file that is written past the page cache, in bytes.
pub(super) const DIRECT_FROM: u64 = 4 << 20;

/// The file once more, past the page cache, where its file system is good at that.
pub(super) fn open(place: &Place, file: &File) -> Option<File> {
    if place.entry.size < DIRECT_FROM || !FsKind::of(file).takes_direct_writes() {
        return None;
    }
    let direct = place.dir.open_direct(&place.name.partial()).ok()?;
    let inode = |file: &File| stat_of(file).ok().map(|stat| stat.st_ino);
    (inode(&direct).is_some() && inode(&direct) == inode(file)).then_some(direct)
}

/// What a direct write came to, or one through the page cache when its layout was refused: a
/// device may ask for more than pages.
pub(super) fn unless_refused(direct: io::Result<()>, through: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    match direct {
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => through(),
        other => other,
    }
}
