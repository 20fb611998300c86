//! Small files of ours: manifests, receipts, owner records, the status.
//!
//! Invariant: a reader sees the old bytes or the new bytes, never none and never half, because
//! a name only ever moves onto a whole file. Mode 0644 whatever the umask. The one exception are
//! the signs of life, which must go on moving where there is no room for a second file: they are
//! written over, see [`overwrite`].

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;

use rustix::fs::Mode;

use super::dir::{Dir, kind_of, stat_of};
use super::error::{Result, Step, VolumeError};
use super::{identity, sync};

/// End of the names that exist only while a file is being written.
const TEMP: &str = ".tmp";
/// What a file system gives out at a time; and what is left in the last block of a file that may have to
/// be written over by a longer one.
const BLOCK: usize = 4096;
const SPARE: usize = 1024;
/// Longest file that is written over.
const OVERWRITE_MAX: usize = 64 << 20;
/// Age at which a temporary file's writer is surely gone, in nanoseconds.
const TEMP_AGE_NS: i64 = 3600 * 1_000_000_000;

/// Writes a file so that it survives a power cut: data first, then its name.
pub fn store(dir: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    Temp::write(dir, name, bytes, Durable::Yes)?.rename_to(name)?;
    dir.sync()
}

/// As [`store`], but leaves a file alone that already has these bytes. `true` when it wrote.
pub fn store_changed(dir: &Dir, name: &str, bytes: &[u8]) -> Result<bool> {
    let same = dir.open_file(name).is_ok_and(|file| has_bytes(file, bytes));
    if !same {
        store(dir, name, bytes)?;
    }
    Ok(!same)
}

/// As [`store`], and fails when something has the name: the lock-free way to be the only one.
///
/// # Errors
/// [`VolumeError::Occupied`].
pub fn store_new(dir: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    let temp = Temp::write(dir, name, bytes, Durable::Yes)?;
    dir.link(&temp.name, name)?;
    drop(temp);
    dir.sync()
}

/// Replaces a file without waiting for the disk: for what is rewritten every few seconds.
pub fn replace(dir: &Dir, name: &str, bytes: &[u8]) -> Result<()> {
    Temp::write(dir, name, bytes, Durable::No)?.rename_to(name)
}

/// As [`replace`], and where no second file fits on the disk it writes over the first, which is kept long
/// enough for that: `json` is followed by spaces. The mixture that a reader may see then is no JSON to it.
pub fn replace_even_if_full(dir: &Dir, name: &str, mut json: Vec<u8>) -> Result<()> {
    json.resize((json.len() + SPARE).next_multiple_of(BLOCK), b' ');
    match replace(dir, name, &json) {
        Err(full @ VolumeError::NoSpace { .. }) => match overwrite(dir, name, json.trim_ascii_end()) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(full),
        },
        other => other,
    }
}

/// Writes `json` over a file, in one write and without taking room, and spaces over what is left of it.
/// `false`, and nothing happens, when the file is not there or too short. Its length and its name are
/// as durable as they were, so a power cut leaves the old bytes or the new ones. A reader that comes at that very
/// instant may see the beginning of the one and the end of the other.
pub fn overwrite(dir: &Dir, name: &str, json: &[u8]) -> Result<bool> {
    let file = match dir.open_for_writing(name) {
        Err(error) if error.is_missing() => return Ok(false),
        other => other?,
    };
    let stat = stat_of(&file).map_err(|e| VolumeError::new(Step::Look, dir.shown(name), e))?;
    let len = usize::try_from(super::dir::size_of(&stat)).unwrap_or(usize::MAX);
    if len < json.len() || len > OVERWRITE_MAX {
        return Ok(false);
    }
    let mut bytes = json.to_vec();
    bytes.resize(len, b' ');
    file.write_all_at(&bytes, 0).map_err(|e| VolumeError::new(Step::Write, dir.shown(name), e))?;
    Ok(true)
}

/// Reads a file of at most `limit` bytes; `None` when it is not there.
pub fn read(dir: &Dir, name: &str, limit: u64) -> Result<Option<Vec<u8>>> {
    let file = match dir.open_file(name) {
        Err(error) if error.is_missing() => return Ok(None),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes).map_err(|e| VolumeError::new(Step::Read, dir.shown(name), e))?;
    if bytes.len() as u64 > limit {
        return Err(VolumeError::TooLarge { path: dir.shown(name), limit });
    }
    Ok(Some(bytes))
}

/// Removes temporary files whose writer died long ago.
pub fn sweep(dir: &Dir) -> Result<()> {
    sweep_older(dir, TEMP_AGE_NS)
}

/// Removes all temporary files of a folder in which nobody else may write: a writer that lost the
/// volume and still lives finds its rename failing.
pub fn sweep_all(dir: &Dir) -> Result<()> {
    sweep_older(dir, i64::MIN)
}

fn sweep_older(dir: &Dir, age_ns: i64) -> Result<()> {
    let temps: Vec<_> = dir.list()?.into_iter().filter(|entry| entry.name.ends_with(TEMP)).collect();
    if temps.is_empty() {
        return Ok(());
    }
    let now = identity::filesystem_now(dir)?;
    for temp in temps {
        let Some(stat) = dir.look(&temp.name)? else { continue };
        if kind_of(&stat).is_file() && now.saturating_sub(identity::of(&stat).mtime_ns) > age_ns {
            dir.remove(&temp.name)?;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Durable {
    Yes,
    No,
}

/// A file under a name that only its writer uses; removed again unless it was renamed.
pub(super) struct Temp<'a> {
    dir: &'a Dir,
    name: String,
    pub(super) file: File,
    renamed: bool,
}

impl<'a> Temp<'a> {
    pub(super) fn create(dir: &'a Dir, stem: &str) -> Result<Self> {
        // Private by chance alone: two writers on two hosts may share a pid.
        let name = format!(".{stem}.{:016x}{TEMP}", fastrand::u64(..));
        let file = dir.create_file(&name)?;
        Ok(Self { dir, name, file, renamed: false })
    }

    fn write(dir: &'a Dir, stem: &str, bytes: &[u8], durable: Durable) -> Result<Self> {
        let mut temp = Self::create(dir, stem)?;
        let path = dir.shown(stem);
        temp.file.write_all(bytes).map_err(|e| VolumeError::new(Step::Write, &path, e))?;
        rustix::fs::fchmod(&temp.file, Mode::from_raw_mode(0o644))
            .map_err(|e| VolumeError::new(Step::Set, &path, e))?;
        if durable == Durable::Yes {
            sync::all(&temp.file, stem).map_err(|e| VolumeError::new(Step::Sync, &path, e))?;
        }
        Ok(temp)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn rename_to(mut self, name: &str) -> Result<()> {
        self.dir.rename(&self.name, self.dir, name)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temp<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            // What stays behind is swept later.
            let _left = self.dir.remove(&self.name);
        }
    }
}

fn has_bytes(file: File, bytes: &[u8]) -> bool {
    let same_size = stat_of(&file).is_ok_and(|stat| super::dir::size_of(&stat) == bytes.len() as u64);
    let mut found = Vec::new();
    same_size && file.take(bytes.len() as u64 + 1).read_to_end(&mut found).is_ok() && found == bytes
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn place() -> (tempfile::TempDir, Dir) {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        (place, dir)
    }

    #[test]
    fn a_reader_never_sees_an_empty_or_half_file() {
        let (_place, dir) = place();
        replace(&dir, "status.json", &[b'0'; 5000]).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut seen = 0;
                while !done.load(Ordering::Relaxed) || seen == 0 {
                    let bytes = read(&dir, "status.json", 5000).unwrap().expect("always there");
                    assert_eq!(bytes.len(), 5000);
                    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                    seen += 1;
                }
            });
            for round in 0..300u32 {
                replace(&dir, "status.json", &[b'0' + u8::try_from(round % 10).unwrap(); 5000]).unwrap();
            }
            done.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(dir.list().unwrap().len(), 1, "no temporary file stays");
    }

    #[test]
    fn what_is_written_over_keeps_its_length_and_inode_and_what_does_not_fit_is_left_alone() {
        let (place, dir) = place();
        assert!(!overwrite(&dir, "m", b"{}").unwrap(), "there is none");
        store(&dir, "m", b"{\"a\": 1}   ").unwrap();
        let inode = || std::fs::metadata(place.path().join("m")).unwrap().ino();
        let before = inode();
        assert!(overwrite(&dir, "m", b"{\"b\": 22}").unwrap());
        assert_eq!(read(&dir, "m", 20).unwrap().unwrap(), b"{\"b\": 22}  ");
        assert!(!overwrite(&dir, "m", b"{\"much too long\": 22}").unwrap());
        assert_eq!((read(&dir, "m", 20).unwrap().unwrap(), inode()), (b"{\"b\": 22}  ".to_vec(), before));
    }

    #[test]
    fn everybody_may_read_it_and_unchanged_bytes_are_left_alone() {
        let (place, dir) = place();
        assert!(store_changed(&dir, "m", b"one").unwrap());
        let path = place.path().join("m");
        let before = std::fs::metadata(&path).unwrap();
        assert_eq!(before.permissions().mode() & 0o7777, 0o644);
        assert!(!store_changed(&dir, "m", b"one").unwrap());
        assert_eq!(std::fs::metadata(&path).unwrap().ino(), before.ino());
        assert!(store_changed(&dir, "m", b"two").unwrap());
        assert_ne!(std::fs::metadata(&path).unwrap().ino(), before.ino());
    }

    #[test]
    fn only_one_of_many_gets_a_new_name() {
        let (_place, dir) = place();
        let won = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..8u8)
                .map(|i| {
                    scope.spawn({
                        let dir = &dir;
                        move || store_new(dir, "7.json", &[i]).is_ok()
                    })
                })
                .collect();
            tries.into_iter().filter_map(|t| t.join().unwrap().then_some(())).count()
        });
        assert_eq!(won, 1);
        assert_eq!(dir.list().unwrap().len(), 1);
    }

    #[test]
    fn a_file_beyond_its_bound_is_refused_and_a_missing_one_is_none() {
        let (_place, dir) = place();
        store(&dir, "m", b"12345").unwrap();
        assert_eq!(read(&dir, "m", 5).unwrap().unwrap(), b"12345");
        assert!(matches!(read(&dir, "m", 4), Err(VolumeError::TooLarge { .. })));
        assert!(read(&dir, "other", 4).unwrap().is_none());
    }

    #[test]
    fn only_old_temporary_files_are_swept() {
        let (place, dir) = place();
        std::fs::write(place.path().join(".a.tmp"), b"").unwrap();
        let old = File::create(place.path().join(".b.tmp")).unwrap();
        old.set_modified(std::time::UNIX_EPOCH).unwrap();
        sweep(&dir).unwrap();
        assert_eq!(dir.list().unwrap().len(), 1);
        assert!(dir.look(".a.tmp").unwrap().is_some());
    }
}
