//! Hashing files of a model directory in place, several at a time.
//!
//! Owns the reading. Invariant: a file counts as right only when its identity was the same
//! before its first byte was read and after its last. Memory is one buffer for each thread.

use crate::core::causes::in_words;
use crate::core::identity::Identity;
use crate::core::manifest::FileEntry;
use crate::core::reason::Why;
use crate::core::retry::FailureClass;
use crate::core::verify::{FileHasher, Mismatch, Proof};
use crate::parallel::{cores, in_parallel};
use crate::volume::model_dir::PublishedFile;
use crate::volume::{ModelDir, VolumeError};

/// Bytes read at a time: hashed while they are in the core's own cache, 5 % cheaper than 1 MiB.
const BUFFER_SIZE: u64 = 256 << 10;
/// Most files looked at together: a look waits for a server, not for a core.
pub(super) const LOOKS_MAX: usize = 16;
/// Files below which a thread of its own does not pay.
const LOOKS_EACH: usize = 32;

/// A file whose bytes are the manifest's.
#[derive(Debug)]
pub(crate) struct Hashed {
    /// The evidence.
    pub proof: Proof,
    /// What it was before and after.
    pub identity: Identity,
}

/// What happens to the pages of a file that is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pages {
    /// They stay: a launcher is about to read them.
    Keep,
    /// They go, before and after: the disk is asked, and nobody else's cache is pushed out.
    Drop,
}

/// Hashes each entry's file; answers in the order of `entries`. `on_bytes` hears of every read.
pub(crate) fn hash_files(
    dir: &ModelDir,
    entries: &[&FileEntry],
    pages: Pages,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Vec<Result<Hashed, Why>> {
    let answers = hash_each(dir, entries, pages, on_bytes, |_, answer| answer, || true);
    answers.into_iter().flatten().collect()
}

/// As [`hash_files`]; each answer goes through `each` as soon as it is there, on the thread that hashed. Once
/// `go_on` says no, the files that nobody began with have no answer.
pub(crate) fn hash_each<R: Send>(
    dir: &ModelDir,
    entries: &[&FileEntry],
    pages: Pages,
    on_bytes: &(dyn Fn(u64) + Sync),
    each: impl Fn(&FileEntry, Result<Hashed, Why>) -> R + Sync,
    go_on: impl Fn() -> bool + Sync,
) -> Vec<Option<R>> {
    // Largest first, so that no thread starts on a huge file when the others are done.
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(entries[*at].size));
    let hash = |at: &usize| {
        let entry = entries[*at];
        (*at, go_on().then(|| each(entry, hash_file(dir, entry, pages, on_bytes))))
    };
    let mut answers = in_parallel(cores(), &order, hash);
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Does cheap work on each item, on a few threads when there are many.
pub(crate) fn look_at<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    in_parallel((items.len() / LOOKS_EACH).min(LOOKS_MAX), items, look)
}

fn hash_file(dir: &ModelDir, entry: &FileEntry, pages: Pages, on_bytes: &(dyn Fn(u64) + Sync)) -> Result<Hashed, Why> {
    let mut reopened = false;
    loop {
        let answer = dir.open_published(&entry.path).and_then(|file| read_all(&file, entry, pages, on_bytes));
        match answer {
            // The server of a network file system forgot the handle: that says nothing of the bytes.
            Err(error) if !reopened && matches!(error.class(), FailureClass::Transient { .. }) => reopened = true,
            Err(error) => return Err(cannot(&error, entry)),
            Ok(verdict) => return verdict,
        }
    }
}

/// The outer error is the system's, the inner one is about the bytes.
fn read_all(
    file: &PublishedFile,
    entry: &FileEntry,
    pages: Pages,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<Result<Hashed, Why>, VolumeError> {
    let identity = file.identity();
    if identity.size != entry.size {
        return Ok(Err(Why::Size { expected: entry.size, found: identity.size }));
    }
    let Some(hasher) = feed(file, FileHasher::new(entry), pages, on_bytes)? else { return Ok(Err(Why::Changing)) };
    Ok(hasher.finish().map(|proof| Hashed { proof, identity }).map_err(|mismatch| match mismatch {
        Mismatch::Digest { expected, found } => Why::Bytes { expected, found, disguised: false },
        // The size did not change, so the read that ended early is the disk's fault.
        Mismatch::Size { expected, found } => ended_early(found, expected),
    }))
}

/// Hashes the file as it is, whatever its bytes are, and says whether they are what `entry` says.
/// For a file that an operator calls right.
pub(super) fn hash_as_it_is(dir: &ModelDir, entry: &FileEntry) -> Result<(Hashed, bool), Why> {
    let file = dir.open_published(&entry.path).map_err(|error| cannot(&error, entry))?;
    let identity = file.identity();
    let found = FileEntry { size: identity.size, ..entry.clone() };
    let fed = feed(&file, FileHasher::new(&found), Pages::Keep, &|_| ()).map_err(|error| cannot(&error, entry))?;
    let hasher = fed.ok_or(Why::Changing)?;
    let read = hasher.position();
    let (proof, is_published) = hasher.accept().map_err(|_short| ended_early(read, identity.size))?;
    Ok((Hashed { proof, identity }, is_published))
}

/// Reads the file to its end; nothing when it changed meanwhile.
fn feed(
    file: &PublishedFile,
    mut hasher: FileHasher,
    pages: Pages,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<Option<FileHasher>, VolumeError> {
    let before = file.identity();
    let whole = 0..before.size;
    if pages == Pages::Drop {
        file.drop_pages(&whole);
    }
    let mut buffer = vec![0; usize::try_from(before.size.clamp(1, BUFFER_SIZE)).unwrap_or(1)];
    while hasher.position() < before.size {
        let left = usize::try_from(before.size - hasher.position()).unwrap_or(usize::MAX);
        let room = buffer.len().min(left);
        let count = file.read_at(hasher.position(), &mut buffer[..room])?;
        if count == 0 {
            break;
        }
        hasher.update(&buffer[..count]);
        on_bytes(count as u64);
    }
    if pages == Pages::Drop {
        file.drop_pages(&whole);
    }
    Ok((file.identity_now()? == before).then_some(hasher))
}

fn ended_early(found: u64, expected: u64) -> Why {
    Why::Unreadable { why: format!("reading ended at byte {found} of {expected}") }
}

/// A file that is gone, or is no file any more, since it was looked at.
pub(super) fn cannot(error: &VolumeError, entry: &FileEntry) -> Why {
    match error {
        VolumeError::Missing { .. } => Why::Missing { size: entry.size },
        VolumeError::NotRegular { .. } | VolumeError::Steered { .. } => Why::NotRegular,
        error => Why::Unreadable { why: in_words(error) },
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::core::verify::tests::lfs_entry;

    #[test]
    fn right_wrong_short_and_missing_files_are_told_apart() {
        let place = tempfile::tempdir().unwrap();
        let big = vec![7; 3 << 20];
        let files: [(&str, &[u8], &[u8]); 5] = [
            ("a", b"right", b"right"),
            ("b", b"right", b"wrong"),
            ("c", b"right", b"righ"),
            ("d", &big, &big),
            ("e", b"", b""),
        ];
        for (name, _, on_disk) in files {
            std::fs::write(place.path().join(name), on_disk).unwrap();
        }
        let mut entries: Vec<_> = files.iter().map(|(name, bytes, _)| lfs_entry(name, bytes)).collect();
        entries.push(lfs_entry("gone", b"x"));
        let dir = ModelDir::open(place.path()).unwrap();
        let read = AtomicU64::new(0);
        for pages in [Pages::Keep, Pages::Drop] {
            read.store(0, Ordering::Relaxed);
            let answers = hash_files(&dir, &entries.iter().collect::<Vec<_>>(), pages, &|n| {
                read.fetch_add(n, Ordering::Relaxed);
            });
            assert_eq!(read.load(Ordering::Relaxed), 5 + 5 + (3 << 20));
            assert!(answers[0].is_ok() && answers[3].is_ok() && answers[4].is_ok());
            assert!(matches!(answers[1], Err(Why::Bytes { .. })));
            assert!(matches!(answers[2], Err(Why::Size { expected: 5, found: 4 })));
            assert!(matches!(answers[5], Err(Why::Missing { size: 1 })));
        }
    }
}
