//! Reading a published file from its disk, whatever the page cache holds.
//!
//! Owns the two ways: past the cache, where the file system takes that, else through it with the pages
//! given back first. Invariant: [`FromDisk::asks_the_disk`] says no when the bytes of a range would come
//! out of the cache all the same; pages that are mapped or not yet written cannot be given back.

use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use super::dir::stat_of;
use super::error::{Result, Step, VolumeError};
use super::fs_kind::FsKind;
use super::model_dir::{ModelDir, PublishedFile};
use super::pages::read_at;
use crate::core::identity::Identity;
use crate::core::repo_path::RepoPath;

/// What direct I/O asks of address, offset and length, in bytes.
const ALIGN: usize = 4096;

/// How much it matters that the disk is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asking {
    /// Past the cache where that is known to be sound and cheap.
    Gently,
    /// Past the cache wherever it can be tried.
    Firmly,
}

/// A published file whose bytes are read from the disk.
#[derive(Debug)]
pub struct FromDisk {
    file: PublishedFile,
    direct: Option<File>,
    /// A read past the cache was refused: a device may ask for more than pages.
    refused: AtomicBool,
    in_memory: bool,
}

/// Memory that reads past the cache may fill.
#[derive(Debug)]
pub struct Room {
    memory: Vec<u8>,
    base: usize,
    len: usize,
}

impl Room {
    /// Room for `bytes` bytes, rounded up to whole pages.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let len = bytes.next_multiple_of(ALIGN).max(ALIGN);
        let memory = vec![0; len + ALIGN];
        let base = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { memory, base, len }
    }

    /// Bytes that fit.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: there is room for a page at least.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.memory[self.base..self.base + len.min(self.len)]
    }
}

impl ModelDir {
    /// Opens a file of the model to read it from its disk.
    ///
    /// # Errors
    /// As [`ModelDir::open_published`].
    pub fn open_from_disk(&self, path: &RepoPath, asking: Asking) -> Result<FromDisk> {
        let file = self.open_published(path)?;
        let kind = self.fs_kind();
        let direct = match asking {
            Asking::Gently if !kind.takes_direct_writes() => None,
            _ => self.root().open_direct_to_read(path.as_str()).ok(),
        };
        let inode = |file: &File| stat_of(file).ok().map(|stat| stat.st_ino);
        // Another file took the name in between: then it is looked at through the cache.
        let direct = direct.filter(|direct| inode(direct) == Some(file.identity().inode));
        Ok(FromDisk { file, direct, refused: AtomicBool::new(false), in_memory: kind == FsKind::Tmpfs })
    }
}

impl FromDisk {
    /// What it was when it was opened.
    pub const fn identity(&self) -> Identity {
        self.file.identity()
    }

    /// What it is now.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn identity_now(&self) -> Result<Identity> {
        self.file.identity_now()
    }

    /// Makes sure, as far as it goes, that what is read of `range` comes from the disk. `false` when it
    /// does not: then what is read says nothing about the disk.
    pub fn asks_the_disk(&self, range: &Range<u64>) -> bool {
        self.forget(range);
        // In memory there is no other place that it could come from.
        self.in_memory || self.direct().is_some() || !self.is_cached(range)
    }

    /// Gives the pages of a range back, where reading went through the cache.
    pub fn forget(&self, range: &Range<u64>) {
        if self.direct().is_none() {
            self.file.drop_pages(range);
        }
    }

    /// Reads `len` bytes at `offset`, a multiple of a page, or up to the file's end.
    ///
    /// # Errors
    /// The disk's.
    pub fn read<'a>(&self, offset: u64, len: usize, room: &'a mut Room) -> Result<&'a [u8]> {
        if let Some(direct) = self.direct() {
            let pages = room.bytes(len.next_multiple_of(ALIGN));
            match read_direct(direct, offset, pages) {
                Ok(count) => return Ok(&room.bytes(count.min(len))[..]),
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                    self.refused.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(VolumeError::new(Step::Read, self.file.path(), error)),
            }
        }
        let count = self.file.read_at(offset, room.bytes(len))?;
        Ok(&room.bytes(count)[..])
    }

    fn direct(&self) -> Option<&File> {
        self.direct.as_ref().filter(|_| !self.refused.load(Ordering::Relaxed))
    }

    /// Whether the cache has any of these bytes. From the end, since a look may make the system read ahead.
    fn is_cached(&self, range: &Range<u64>) -> bool {
        let end = range.end.min(self.identity().size);
        let pages = range.start / ALIGN as u64..end.div_ceil(ALIGN as u64);
        pages.rev().any(|page| self.file.read_cached_at(page * ALIGN as u64, &mut [0]))
    }
}

/// Reads until the buffer is full or the file ends; a short read that ends within a page is the end.
fn read_direct(file: &File, offset: u64, pages: &mut [u8]) -> std::io::Result<usize> {
    let count = read_at_once(file, offset, pages)?;
    if count == pages.len() || !count.is_multiple_of(ALIGN) || count == 0 {
        return Ok(count);
    }
    Ok(count + read_at(file, offset + count as u64, &mut pages[count..])?)
}

fn read_at_once(file: &File, offset: u64, pages: &mut [u8]) -> std::io::Result<usize> {
    use std::os::unix::fs::FileExt as _;
    loop {
        match file.read_at(pages, offset) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bytes, lfs_entry, model, verified};
    use super::*;

    #[test]
    fn both_ways_read_the_same_bytes_up_to_the_end() {
        for len in [0, 1, ALIGN - 1, ALIGN, ALIGN + 1, 3 * ALIGN, (1 << 20) + 77] {
            let (_place, model) = model();
            let data = bytes(len);
            let entry = lfs_entry("a", &data);
            verified(&model, &entry, &data).publish(&model).unwrap();
            for asking in [Asking::Gently, Asking::Firmly] {
                let file = model.open_from_disk(&entry.path, asking).unwrap();
                assert_eq!(file.identity(), file.identity_now().unwrap());
                let mut room = Room::new(5000);
                let (mut read, mut at) = (Vec::new(), 0);
                loop {
                    let got = file.read(at, room.len(), &mut room).unwrap();
                    if got.is_empty() {
                        break;
                    }
                    read.extend_from_slice(got);
                    at = read.len().next_multiple_of(ALIGN) as u64;
                    assert!(read.len().is_multiple_of(ALIGN) || read.len() == len);
                }
                assert_eq!(read, data, "{len} {asking:?}");
            }
        }
    }
}
