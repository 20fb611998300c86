//! A look into the weight files of a directory whose bytes are the manifest's.
//!
//! Owns the reading of headers and indexes; what they mean is `core::structure`'s. Invariants: only
//! headers are read, and every one from a file with the identity that the check judged; in memory
//! are the indexes, bounded together, and the headers of a few files, of which one may be large.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::hash::{LOOKS_MAX, Pages};
use crate::core::causes::in_words;
use crate::core::gguf::{self, Gguf, Reading};
use crate::core::identity::Identity;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::reason::{Reason, Why};
use crate::core::repo_path::RepoPath;
use crate::core::retry::FailureClass;
use crate::core::safetensors::{Header, HeaderError, PREFIX};
use crate::core::shard_index::{INDEX_MAX, ShardIndex};
use crate::core::structure::{Fault, Indexed, Role, Strictness, check_splits, is_pointer, reason};
use crate::parallel::in_parallel;
use crate::volume::model_dir::PublishedFile;
use crate::volume::{ModelDir, VolumeError};

/// Files below which a thread of its own does not pay.
const FILES_EACH: usize = 4;
/// Headers from this size on are read one at a time.
const LARGE: u64 = 8 << 20;
/// Bytes of a file that are read first: the whole header of most.
const FIRST: u64 = 128 << 10;

/// What a look into the weight files found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Structure {
    /// What a fault means.
    pub strictness: Strictness,
    /// Headers and indexes that were read.
    pub looked_at: u64,
    /// Faults of what upstream published.
    pub faults: Vec<Reason>,
    /// Files that could not be read; they keep the gate closed whatever faults mean.
    pub unreadable: Vec<Reason>,
    /// Shards named by an index or a split that the selection leaves out.
    pub left_out: u64,
}

impl Structure {
    /// Nobody has looked.
    #[must_use]
    pub fn unseen(strictness: Strictness) -> Self {
        Self { strictness, ..Self::default() }
    }

    /// The reasons to stay closed.
    #[must_use]
    pub fn reasons(&self) -> Vec<Reason> {
        let faults = if self.strictness == Strictness::Check { &self.faults[..] } else { &[] };
        faults.iter().chain(&self.unreadable).cloned().collect()
    }

    /// The faults that are told and keep nobody out.
    #[must_use]
    pub fn warnings(&self) -> &[Reason] {
        if self.strictness == Strictness::Check { &[] } else { &self.faults }
    }
}

/// Looks into the weight files of `manifest`. `identities` has what each file was when it was
/// judged right, in the manifest's order; `pages` is what becomes of those that are read. None when one
/// of them has changed since.
pub(super) fn look_into(
    dir: &ModelDir,
    manifest: &Manifest,
    identities: &[Identity],
    strictness: Strictness,
    pages: Pages,
) -> Option<Structure> {
    let mut found = Structure::unseen(strictness);
    if strictness == Strictness::Off {
        return Some(found);
    }
    let file = |(entry, identity): (_, &Identity)| as_file(dir, entry, *identity, pages);
    let files = manifest.files().iter().zip(identities).filter_map(file);
    let (indexes, weights): (Vec<_>, Vec<_>) = files.partition(|file| file.role == Role::Index);
    found.looked_at = (indexes.len() + weights.len()) as u64;
    // Indexes are as large as all headers together: their names stay where they were read.
    let mut room = INDEX_MAX;
    let texts: Vec<_> = indexes.iter().map(|file| file.index_text(&mut room)).collect();
    let mut readable = Vec::new();
    for (file, text) in indexes.iter().zip(&texts) {
        let path = &file.entry.path;
        match text {
            Ok(text) => match ShardIndex::read(text) {
                Ok(index) => {
                    let (index, faults, left_out) = Indexed::find(path, index, manifest);
                    found.tell(path, faults);
                    found.left_out += left_out as u64;
                    readable.push(index);
                }
                Err(why) => found.tell(path, vec![Fault::Index { why }]),
            },
            Err(Stop::Changed) => return None,
            Err(Stop::For(why)) => found.because(path, why.clone()),
        }
    }
    let claims = Claims::of(&readable);
    let threads = weights.len().div_ceil(FILES_EACH).min(LOOKS_MAX);
    let looks = in_parallel(threads, &weights, |file| file.weights(&claims));
    let mut parts = Vec::new();
    for (file, look) in weights.iter().zip(looks) {
        match look {
            Ok(Look::Placed(faults)) => faults.into_iter().for_each(|(index, faults)| found.tell(index, faults)),
            Ok(Look::Part(gguf)) => parts.push((&file.entry.path, gguf)),
            Err(Stop::Changed) => return None,
            Err(Stop::For(why)) => found.because(&file.entry.path, why),
        }
    }
    let (faults, left_out) = check_splits(&parts, manifest);
    found.faults.extend(faults);
    found.left_out += left_out as u64;
    Some(found)
}

impl Structure {
    fn tell(&mut self, path: &RepoPath, faults: Vec<Fault>) {
        self.faults.extend(faults.into_iter().map(|fault| reason(path, fault)));
    }

    fn because(&mut self, path: &RepoPath, why: Why) {
        let fault = matches!(why, Why::Structure(_));
        let list = if fault { &mut self.faults } else { &mut self.unreadable };
        list.push(Reason { file: Some(path.clone()), why });
    }
}

/// What the indexes say of each shard.
struct Claims<'a> {
    /// The indexes that name it, and its place in them.
    of: HashMap<&'a RepoPath, Vec<(&'a Indexed<'a>, usize)>>,
    /// Held while a large header is in memory.
    large: Mutex<()>,
}

impl<'a> Claims<'a> {
    fn of(indexes: &'a [Indexed<'a>]) -> Self {
        let mut of: HashMap<_, Vec<_>> = HashMap::new();
        for index in indexes {
            for (place, shard) in index.shards.iter().enumerate() {
                if let Some(shard) = shard {
                    of.entry(shard).or_default().push((index, place));
                }
            }
        }
        Self { of, large: Mutex::new(()) }
    }
}

/// A file that is looked into.
struct File<'a> {
    dir: &'a ModelDir,
    entry: &'a FileEntry,
    /// What it was when it was judged right.
    identity: Identity,
    role: Role,
    pages: Pages,
}

/// Faults of an index.
type Told<'a> = (&'a RepoPath, Vec<Fault>);

/// What the head of a weight file says.
enum Look<'a> {
    /// It is whole; what that does to the indexes.
    Placed(Vec<Told<'a>>),
    /// A whole GGUF file.
    Part(Gguf),
}

/// Why a file says nothing.
enum Stop {
    /// It is not what was judged any more.
    Changed,
    For(Why),
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Self {
        Self::For(Why::Structure(Box::new(fault)))
    }
}

impl From<VolumeError> for Stop {
    fn from(error: VolumeError) -> Self {
        let gone =
            matches!(error, VolumeError::Missing { .. } | VolumeError::NotRegular { .. } | VolumeError::Steered { .. });
        if gone || matches!(error.class(), FailureClass::Transient { .. }) {
            return Self::Changed;
        }
        Self::For(Why::Unreadable { why: in_words(&error) })
    }
}

fn as_file<'a>(dir: &'a ModelDir, entry: &'a FileEntry, identity: Identity, pages: Pages) -> Option<File<'a>> {
    Some(File { dir, entry, identity, role: Role::of(&entry.path)?, pages })
}

impl File<'_> {
    /// Does `work` on the file, which is the judged one before and after.
    fn read<T>(&self, work: impl FnOnce(&PublishedFile, u64) -> Result<T, Stop>) -> Result<T, Stop> {
        let file = self.dir.open_published(&self.entry.path)?;
        let before = file.identity();
        if self.identity != before {
            return Err(Stop::Changed);
        }
        let result = work(&file, before.size);
        if self.pages == Pages::Drop {
            file.drop_pages(&(0..before.size));
        }
        if file.identity_now()? == before { result } else { Err(Stop::Changed) }
    }

    /// The bytes of an index, as long as there is `room` for them.
    fn index_text(&self, room: &mut u64) -> Result<Vec<u8>, Stop> {
        self.read(|file, size| {
            *room = room.checked_sub(size).ok_or(Fault::IndexTooLarge { size })?;
            let json = bytes_of(file, 0, size)?;
            if is_pointer(&json) {
                return Err(Fault::Pointer.into());
            }
            Ok(json)
        })
    }

    fn weights<'a>(&self, claims: &Claims<'a>) -> Result<Look<'a>, Stop> {
        if self.role == Role::Gguf {
            return self.read(|file, size| gguf_of(file, size, claims)).map(Look::Part);
        }
        self.read(|file, size| self.placed(file, size, claims)).map(Look::Placed)
    }

    /// Where the indexes have another opinion of a shard than its header.
    fn placed<'a>(&self, file: &PublishedFile, size: u64, claims: &Claims<'a>) -> Result<Vec<Told<'a>>, Stop> {
        let broken = |error| Stop::from(Fault::Safetensors(error));
        let start = bytes_of(file, 0, size.min(FIRST))?;
        if is_pointer(&start) {
            return Err(Fault::Pointer.into());
        }
        let prefix = start.first_chunk().ok_or_else(|| broken(HeaderError::TooShort { size }))?;
        let len = Header::length(*prefix, size).map_err(broken)?;
        let data = size - PREFIX as u64 - len;
        let _alone = (len >= LARGE).then(|| claims.large.lock().unwrap_or_else(PoisonError::into_inner));
        let whole = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(PREFIX);
        let more = if whole > start.len() { bytes_of(file, PREFIX as u64, len)? } else { Vec::new() };
        let header = Header::read(start.get(PREFIX..whole).unwrap_or(&more), data).map_err(broken)?;
        let indexes = claims.of.get(&self.entry.path).into_iter().flatten();
        let told = indexes.map(|(index, place)| {
            let placement = index.index.compare(*place, header.names());
            (&index.path, Indexed::faults_of(placement, &self.entry.path))
        });
        Ok(told.collect())
    }
}

fn gguf_of(file: &PublishedFile, size: u64, claims: &Claims<'_>) -> Result<Gguf, Stop> {
    let mut len = size.min(FIRST);
    let mut alone = None;
    loop {
        let head = bytes_of(file, 0, len)?;
        if is_pointer(&head) {
            return Err(Fault::Pointer.into());
        }
        match gguf::read(&head, size).map_err(Fault::Gguf)? {
            Reading::Done(gguf) => return Ok(gguf),
            Reading::More(need) => len = need.max(len.saturating_mul(2)).min(size),
        }
        if len >= LARGE && alone.is_none() {
            alone = Some(claims.large.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Bytes of a file that has them.
fn bytes_of(file: &PublishedFile, offset: u64, len: u64) -> Result<Vec<u8>, Stop> {
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| Stop::Changed)?];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(offset + done as u64, &mut bytes[done..])? {
            0 => return Err(Stop::Changed),
            count => done += count,
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::identity::Observed;
    use crate::core::manifest::tests::source;
    use crate::core::verify::tests::lfs_entry;

    /// A directory of these files, its manifest, and what the files are.
    fn directory(files: &[(&str, Vec<u8>)]) -> (tempfile::TempDir, Manifest, Vec<Identity>) {
        let place = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            std::fs::write(place.path().join(name), bytes).unwrap();
        }
        let entries = files.iter().map(|(name, bytes)| lfs_entry(name, bytes)).collect();
        let manifest = Manifest::seal(source(), entries).unwrap();
        let dir = ModelDir::open(place.path()).unwrap();
        let identities = manifest.files().iter().map(|entry| match dir.observe(&entry.path) {
            Observed::Present(identity) => identity,
            other => panic!("{other:?}"),
        });
        let identities = identities.collect();
        (place, manifest, identities)
    }

    fn look(files: &[(&str, Vec<u8>)]) -> Structure {
        let (place, manifest, identities) = directory(files);
        look_into(&ModelDir::open(place.path()).unwrap(), &manifest, &identities, Strictness::Check, Pages::Keep)
            .unwrap()
    }

    /// A file whose header has at least so many bytes.
    fn of_header(least: usize) -> Vec<u8> {
        let blanks = " ".repeat(least);
        let json = format!(r#"{{"a":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}{blanks}}}"#);
        [&(json.len() as u64).to_le_bytes()[..], json.as_bytes(), b"abc"].concat()
    }

    /// A file without tensors whose only metadata is a text of so many bytes.
    fn of_text(len: usize) -> Vec<u8> {
        let text = |text: &[u8]| [&(text.len() as u64).to_le_bytes()[..], text].concat();
        let counts = [0u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
        let kind = 8u32.to_le_bytes();
        [b"GGUF", &3u32.to_le_bytes()[..], &counts, &text(b"k"), &kind, &text(&vec![b'x'; len])].concat()
    }

    #[test]
    fn headers_of_every_size_are_read_to_their_end() {
        let sizes = [1, 128 << 10, (128 << 10) + 1, 9 << 20];
        for size in sizes {
            let (weights, mut gguf) = (of_header(size), of_text(size));
            let found = look(&[("a.safetensors", weights.clone()), ("b.gguf", gguf.clone())]);
            assert_eq!((found.looked_at, found.reasons()), (2, vec![]), "{size}");
            let words = |found: Structure| found.reasons().iter().map(ToString::to_string).collect::<Vec<_>>();
            let cut = look(&[("a.safetensors", weights[..weights.len() - 1].to_vec())]);
            assert_eq!(words(cut), ["a.safetensors: the tensors need 3 bytes of data, and the file has 2"]);
            gguf.pop();
            assert!(words(look(&[("b.gguf", gguf)]))[0].contains("ends inside its GGUF head"));
        }
    }

    #[test]
    fn a_file_that_is_not_the_judged_one_any_more_is_not_spoken_of() {
        for name in ["a.safetensors", "a.gguf", "a.safetensors.index.json"] {
            let (place, manifest, identities) = directory(&[(name, of_header(1)), ("z.json", b"{}".to_vec())]);
            let dir = ModelDir::open(place.path()).unwrap();
            let look = |identities: &[Identity]| look_into(&dir, &manifest, identities, Strictness::Warn, Pages::Keep);
            assert!(look(&identities).is_some());
            let mut other = identities.clone();
            other[0].ctime_ns += 1;
            assert_eq!(look(&other), None, "{name}");
            std::fs::remove_file(place.path().join("z.json")).unwrap();
            assert!(look(&identities).is_some(), "what has no structure is none of its business");
            std::fs::remove_file(place.path().join(name)).unwrap();
            assert_eq!(look(&identities), None, "{name}");
        }
    }
}
