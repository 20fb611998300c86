//! What other downloaders left in a directory.
//!
//! Owns the names that the official client, aria2 and git-lfs give to what is not finished, and the
//! signs of the official client's cache. Invariant: all of it is only read. A client that lives may
//! hold any of it, so nothing is renamed, written or removed.

use std::collections::HashMap;
use std::fmt;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, SeekFrom, seek};

use super::adopt::copy_ranges;
use super::dir::{Dir, Entry, size_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::pages::read_at;
use super::partial::{Partial, Resumed};
use super::place::canonical;
use super::writer::WriterId;
use crate::core::digest::Digest;
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;

/// Where the official client keeps what it knows of a directory of its own.
pub const CLIENT_FOLDER: &str = ".cache/huggingface";
/// Where below that its partials are, in the folders of their files.
const DOWNLOADS: &str = ".cache/huggingface/download";
const INCOMPLETE: &str = ".incomplete";
/// Digits of what tells its writers apart, since 1.18.
const UNIQUE_DIGITS: usize = 8;
/// How the text begins that git has in place of a large file.
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/v1";
/// Most bytes of such a text.
const POINTER_MAX: u64 = 1024;
/// What the folders of repositories in the official client's cache begin with.
const CACHED: [&str; 3] = ["models--", "datasets--", "spaces--"];

/// The beginning of a file, as the official client wrote it: bytes in order, without a hole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Beginning {
    name: String,
    len: u64,
}

impl Beginning {
    /// Its bytes.
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has none; such a one is never found.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// Why a file is not what its name says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remark {
    /// What git has in its place until git-lfs fetches it.
    Pointer,
    /// A downloader says that it is not finished.
    Unfinished {
        /// The file that says so.
        control: String,
    },
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pointer => f.write_str("a git-lfs pointer, not the file itself"),
            Self::Unfinished { control } => write!(f, "an unfinished download of aria2, says {control} beside it"),
        }
    }
}

/// The partials that the official client left in a directory, by the digest in their names: one of
/// another commit is never taken for this one's.
#[derive(Debug, Default)]
pub struct Beginnings {
    dir: Option<Dir>,
    names: HashMap<String, Vec<String>>,
}

impl Beginnings {
    /// The longest that is there of this file, if there is any.
    pub fn of(&self, entry: &FileEntry) -> Option<Beginning> {
        let dir = self.dir.as_ref()?;
        let etag = match entry.digest {
            Digest::Sha256(digest) => digest.to_string(),
            Digest::GitBlob(digest) => digest.to_string(),
        };
        let whole = |name: &String| {
            let len = whole_len(dir, name).filter(|len| *len <= entry.size)?;
            Some(Beginning { name: format!("{DOWNLOADS}/{name}"), len })
        };
        self.names.get(&etag)?.iter().filter_map(whole).max_by_key(Beginning::len)
    }
}

impl ModelDir {
    /// What the official client left of files that it had not finished.
    pub fn beginnings(&self) -> Result<Beginnings> {
        let Ok(dir) = self.root().folder(DOWNLOADS) else { return Ok(Beginnings::default()) };
        let mut names: HashMap<String, Vec<String>> = HashMap::new();
        for Entry { name, kind } in dir.walk(|_| true)?.files {
            if let (FileType::RegularFile, Some(etag)) = (kind, etag_of(&name)) {
                names.entry(etag.to_owned()).or_default().push(name);
            }
        }
        Ok(Beginnings { dir: Some(dir), names })
    }

    /// Some bytes of a beginning; fewer where it ends sooner by now.
    pub fn sample(&self, beginning: &Beginning, range: &Range<u64>) -> Result<Vec<u8>> {
        let file = self.root().open_file(&beginning.name)?;
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
        let shown = || self.root().shown(&beginning.name);
        let count = read_at(&file, range.start, &mut bytes).map_err(|e| VolumeError::new(Step::Read, shown(), e))?;
        bytes.truncate(count);
        Ok(bytes)
    }

    /// What is known of a file whose bytes are not the manifest's.
    pub fn remark(&self, entry: &FileEntry) -> Option<Remark> {
        let control = format!("{}.aria2", entry.path);
        if self.root().look(&control).is_ok_and(|found| found.is_some()) {
            return Some(Remark::Unfinished { control });
        }
        let file = self.root().open_file(entry.path.as_str()).ok()?;
        if size_of(&stat_of(&file).ok()?) > POINTER_MAX {
            return None;
        }
        let mut text = Vec::new();
        file.take(POINTER_MAX).read_to_end(&mut text).ok()?;
        text.starts_with(POINTER).then_some(Remark::Pointer)
    }

    /// Whether the official client keeps its records in this directory.
    pub fn has_client_folder(&self) -> bool {
        self.root().folder(CLIENT_FOLDER).is_ok()
    }
}

impl Partial {
    /// Begins a partial with a copy of what the official client has of the file, blocks shared
    /// where the file system can. What comes is durable and claimed, and no hash has seen it yet.
    ///
    /// `go_on` is asked now and then; once it says no, what was copied is all that comes.
    pub fn begin_with(
        model: &ModelDir,
        entry: &FileEntry,
        writer: WriterId,
        beginning: &Beginning,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Resumed> {
        let source = model.root().open_file(&beginning.name)?;
        let partial = Self::create_anew(model, entry, writer)?;
        copy_ranges(partial, &source, &RangeSet::from(0..beginning.len), go_on)
    }
}

/// The folder of the official client's cache that a directory belongs to: files there are links to
/// what several commits share, and they are the client's to remove.
///
/// # Errors
/// When the path leads nowhere.
pub fn client_cache(path: &Path) -> Result<Option<PathBuf>> {
    let path = canonical(path)?;
    let is_cached = |component: &Component<'_>| {
        let name = component.as_os_str().to_str();
        name.is_some_and(|name| CACHED.iter().any(|start| name.starts_with(start)))
    };
    let mut above = PathBuf::new();
    for component in path.components() {
        above.push(component);
        // Anybody may call a folder so; with these two inside it is no accident.
        if is_cached(&component) && ["blobs", "snapshots"].iter().all(|name| above.join(name).is_dir()) {
            return Ok(Some(above));
        }
    }
    let below = Dir::open(&path)?.list()?;
    let holds =
        |entry: &Entry| entry.kind == FileType::Directory && CACHED.iter().any(|start| entry.name.starts_with(start));
    let repo = below.iter().find(|entry| holds(entry) && path.join(&entry.name).join("snapshots").is_dir());
    Ok(repo.map(|_| path))
}

/// The digest in the name of one of the official client's partials: `<hash or name>.<etag>`, and since
/// 1.18 what tells writers apart.
fn etag_of(name: &str) -> Option<&str> {
    let (stem, last) = name.strip_suffix(INCOMPLETE)?.rsplit_once('.')?;
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if last.len() == UNIQUE_DIGITS && is_hex(last) { stem.rsplit_once('.').map(|(_, etag)| etag) } else { Some(last) }
}

/// The length of a file that was written from its beginning without a gap. Some writers of the official
/// client wrote at several places at once, and then the length says nothing.
fn whole_len(dir: &Dir, name: &str) -> Option<u64> {
    let file = dir.open_file(name).ok()?;
    let stat = stat_of(&file).ok()?;
    let len = size_of(&stat);
    let allocated = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512);
    let is_whole = len > 0 && allocated >= len && seek(&file, SeekFrom::Hole(0)).is_ok_and(|hole| hole >= len);
    is_whole.then_some(len)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};

    use super::super::testing::{OURS, bytes, lfs_entry, model, names, set};
    use super::*;

    fn leave(model: &ModelDir, name: &str, data: &[u8]) -> PathBuf {
        let path = model.path().join(DOWNLOADS).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, data).unwrap();
        path
    }

    #[test]
    fn the_longest_beginning_of_this_very_content_is_copied_and_left_as_it_was() {
        let (_place, model) = model();
        let data = bytes(100_000);
        let entry = lfs_entry("sub/a", &data);
        let etag = entry.digest.to_string();
        let etag = etag.rsplit(':').next().unwrap();
        assert_eq!(model.beginnings().unwrap().of(&entry), None);
        leave(&model, &format!("sub/xGOKKLRSlIhH692hSVvI1-gpoa8=.{etag}.incomplete"), &data[..30_000]);
        let long =
            leave(&model, &format!("sub/xGOKKLRSlIhH692hSVvI1-gpoa8=.{etag}.00c0ffee.incomplete"), &data[..70_000]);
        leave(&model, &format!("sub/xGOKKLRSlIhH692hSVvI1-gpoa8=.{}.incomplete", "0".repeat(64)), &data[..90_000]);
        let trace = |path: &Path| path.metadata().map(|m| (m.ino(), m.mtime_nsec(), m.ctime_nsec(), m.len())).unwrap();
        let before = trace(&long);
        let beginning = model.beginnings().unwrap().of(&entry).unwrap();
        assert_eq!(beginning.len(), 70_000);
        let Resumed { partial, durable } = Partial::begin_with(&model, &entry, OURS, &beginning, &|| true).unwrap();
        assert_eq!(durable, set(&[(0, 70_000)]));
        let mut back = vec![0; 70_000];
        partial.read_at(0, &mut back).unwrap();
        assert_eq!(back, data[..70_000]);
        assert_eq!(trace(&long), before);
        assert_eq!(names(long.parent().unwrap()).len(), 3);
    }

    #[test]
    fn one_with_holes_too_long_or_a_link_is_none() {
        let (place, model) = model();
        let data = bytes(1 << 20);
        let entry = lfs_entry("a", &data);
        let etag = entry.digest.to_string();
        let name = format!("a.{}.incomplete", etag.rsplit(':').next().unwrap());
        let path = leave(&model, &name, b"");
        assert_eq!(model.beginnings().unwrap().of(&entry), None, "an empty one");
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&data[900_000..], 900_000).unwrap();
        assert_eq!(model.beginnings().unwrap().of(&entry), None, "a hole");
        file.write_all_at(&vec![1; 2 << 20], 0).unwrap();
        assert_eq!(model.beginnings().unwrap().of(&entry), None, "longer than the file");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(place.path().join("elsewhere"), &data[..1000]).unwrap();
        symlink(place.path().join("elsewhere"), &path).unwrap();
        assert_eq!(model.beginnings().unwrap().of(&entry), None, "a link");
    }

    #[test]
    fn pointers_and_control_files_are_known() {
        let (_place, model) = model();
        let (a, b, c) = (lfs_entry("a", b"a"), lfs_entry("b", b"b"), lfs_entry("c", b"c"));
        let pointer = [POINTER, b"\noid sha256:00\nsize 7\n"].concat();
        std::fs::write(model.path().join("a"), pointer).unwrap();
        std::fs::write(model.path().join("b"), b"anything").unwrap();
        std::fs::write(model.path().join("c"), b"anything").unwrap();
        std::fs::write(model.path().join("c.aria2"), b"").unwrap();
        assert_eq!(model.remark(&a), Some(Remark::Pointer));
        assert_eq!(model.remark(&b), None);
        assert_eq!(model.remark(&c), Some(Remark::Unfinished { control: "c.aria2".to_owned() }));
    }

    #[test]
    fn the_clients_cache_is_known_from_inside_and_outside() {
        let place = tempfile::tempdir().unwrap();
        let repo = place.path().join("hub/models--org--x");
        let snapshot = repo.join("snapshots").join("a".repeat(40));
        std::fs::create_dir_all(snapshot.join("sub")).unwrap();
        std::fs::create_dir(repo.join("blobs")).unwrap();
        let canonical = repo.canonicalize().unwrap();
        for inside in [snapshot.join("sub"), snapshot, repo.clone()] {
            assert_eq!(client_cache(&inside).unwrap(), Some(canonical.clone()), "{}", inside.display());
        }
        let link = place.path().join("link");
        symlink(&repo, &link).unwrap();
        assert_eq!(client_cache(&link).unwrap(), Some(canonical));
        assert!(client_cache(&place.path().join("hub")).unwrap().is_some());
        let other = place.path().join("models--mine");
        std::fs::create_dir(&other).unwrap();
        assert_eq!(client_cache(&other).unwrap(), None);
    }
}
