//! What is durable, and what a power cut leaves.
//!
//! The model is the meanest that POSIX and the file systems in use allow: bytes and length of a file are durable
//! after an `fsync` or `fdatasync` of that file, its times and mode after an `fsync`; a name after an `fsync` of
//! its folder, with the earlier changes that it rests on; a rename is one change, of two names. After a sync that
//! failed, what was unsynced then is nowhere, whatever a later sync says: its place reads as zeros at once.
//! Everything is told as what has to be undone, so a file that is durable stays the very file it was.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT};

use super::nodes::{Nodes, Result};

/// Unsynced bytes are kept or lost in blocks of so many.
const BLOCK: u64 = 4096;

/// Which unsynced changes are on the disk after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    Everything,
    /// Some, by chance with this seed: any blocks of data; of the changes of names the first ones, or any.
    Some(u64),
}

type Names = HashMap<u64, BTreeMap<OsString, u64>>;
type Slot = (u64, OsString);

pub(super) struct Power {
    live: Names,
    durable: Names,
    pending: Vec<Change>,
    files: HashMap<u64, Unsynced>,
    held: HashMap<u64, Arc<OwnedFd>>,
    /// What lost its last name, so that it can get it back.
    graveyard: PathBuf,
    buried: HashSet<u64>,
}

/// Names before and after; one or two.
struct Change(Vec<(Slot, Option<u64>, Option<u64>)>);

/// How a file differs from what is durable of it.
struct Unsynced {
    size: u64,
    /// In the order of the writes: where, how long, and what was there; zeros where that is shorter.
    dirty: Vec<(u64, u64, Vec<u8>)>,
    modified: Timespec,
    mode: u32,
}

impl Power {
    pub(super) fn start(nodes: &Nodes) -> Result<Self> {
        let mut graveyard = nodes.root_path().as_os_str().to_owned();
        graveyard.push(".graveyard");
        std::fs::create_dir(&graveyard).expect("a folder beside the backing one");
        let mut power = Self {
            live: Names::new(),
            durable: Names::new(),
            pending: Vec::new(),
            files: HashMap::new(),
            held: HashMap::new(),
            graveyard: graveyard.into(),
            buried: HashSet::new(),
        };
        power.scan(nodes, nodes.root())?;
        power.durable = power.live.clone();
        Ok(power)
    }

    fn scan(&mut self, nodes: &Nodes, dir: u64) -> Result<()> {
        self.hold(nodes, dir)?;
        let mut names = BTreeMap::new();
        for entry in std::fs::read_dir(nodes.reach(dir)?).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let stat = nodes.find(dir, &name, 1)?;
            self.hold(nodes, stat.st_ino)?;
            if super::nodes::kind_of(&stat) == fuser::FileType::Directory {
                self.scan(nodes, stat.st_ino)?;
            }
            names.insert(name, stat.st_ino);
        }
        self.live.insert(dir, names);
        Ok(())
    }

    fn hold(&mut self, nodes: &Nodes, ino: u64) -> Result<()> {
        self.held.insert(ino, nodes.get(ino)?);
        Ok(())
    }

    fn reach(&self, ino: u64) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.held[&ino].as_raw_fd()))
    }

    fn live_at(&self, dir: u64, name: &OsStr) -> Option<u64> {
        self.live.get(&dir).and_then(|names| names.get(name)).copied()
    }

    // Changes, told after they were made.

    pub(super) fn made(&mut self, nodes: &Nodes, dir: u64, name: &OsStr, stat: &Stat) -> Result<()> {
        self.hold(nodes, stat.st_ino)?;
        if super::nodes::kind_of(stat) == fuser::FileType::Directory {
            self.live.entry(stat.st_ino).or_default();
            self.durable.entry(stat.st_ino).or_default();
        } else if stat.st_nlink == 1 {
            self.files.insert(stat.st_ino, Unsynced::of(stat));
        }
        self.change(vec![((dir, name.to_owned()), self.live_at(dir, name), Some(stat.st_ino))]);
        Ok(())
    }

    pub(super) fn removed(&mut self, dir: u64, name: &OsStr) {
        self.change(vec![((dir, name.to_owned()), self.live_at(dir, name), None)]);
    }

    pub(super) fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr), exchange: bool) {
        let (moved, replaced) = (self.live_at(from.0, from.1), self.live_at(to.0, to.1));
        let left = if exchange { replaced } else { None };
        self.change(vec![((from.0, from.1.to_owned()), moved, left), ((to.0, to.1.to_owned()), replaced, moved)]);
    }

    fn change(&mut self, slots: Vec<(Slot, Option<u64>, Option<u64>)>) {
        let change = Change(slots);
        change.apply(&mut self.live);
        self.pending.push(change);
    }

    /// Before the entry loses its name: a second one, where the kernel never looks.
    pub(super) fn bury(&mut self, dir: u64, name: &OsStr) -> Result<()> {
        let Some(ino) = self.live_at(dir, name) else { return Ok(()) };
        if self.live.contains_key(&ino) || !self.buried.insert(ino) {
            return Ok(());
        }
        rustix::fs::linkat(CWD, self.reach(ino), CWD, self.grave(ino), AtFlags::SYMLINK_FOLLOW)
    }

    /// Instead of the removal of an empty folder.
    pub(super) fn bury_folder(&mut self, nodes: &Nodes, dir: u64, name: &OsStr) -> Result<()> {
        let ino = self.live_at(dir, name).ok_or(rustix::io::Errno::NOENT)?;
        let empty = std::fs::read_dir(self.reach(ino)).is_ok_and(|mut entries| entries.next().is_none());
        if !empty {
            return Err(rustix::io::Errno::NOTEMPTY);
        }
        self.buried.insert(ino);
        rustix::fs::renameat(nodes.get(dir)?, name, CWD, self.grave(ino))
    }

    fn grave(&self, ino: u64) -> PathBuf {
        self.graveyard.join(ino.to_string())
    }

    // Data.

    /// Before `len` bytes at `at` change, by a write or a cut.
    pub(super) fn touch(&mut self, ino: u64, at: u64, len: u64) -> Result<()> {
        let file = self.open(ino)?;
        let stat = rustix::fs::fstat(&file)?;
        let unsynced = self.files.entry(ino).or_insert_with(|| Unsynced::durable(&stat));
        let size = stat.st_size as u64;
        let mut old = vec![0; size.saturating_sub(at).min(len) as usize];
        file.read_exact_at(&mut old, at).map_err(|_| rustix::io::Errno::IO)?;
        unsynced.dirty.push((at, len, old));
        Ok(())
    }

    /// Before mode or times change.
    pub(super) fn touch_attributes(&mut self, ino: u64) -> Result<()> {
        let stat = rustix::fs::statat(&self.held[&ino], c"", AtFlags::EMPTY_PATH)?;
        self.files.entry(ino).or_insert_with(|| Unsynced::durable(&stat));
        Ok(())
    }

    pub(super) fn synced(&mut self, ino: u64, data_only: bool) -> Result<()> {
        let stat = rustix::fs::statat(&self.held[&ino], c"", AtFlags::EMPTY_PATH)?;
        if let Some(unsynced) = self.files.get_mut(&ino) {
            unsynced.dirty.clear();
            unsynced.size = stat.st_size as u64;
            if !data_only {
                (unsynced.modified, unsynced.mode) = (modified(&stat), stat.st_mode & 0o7777);
                self.files.remove(&ino);
            }
        }
        Ok(())
    }

    /// The pages are clean now, and their bytes are nowhere.
    pub(super) fn sync_failed(&mut self, ino: u64) -> Result<()> {
        let Some(unsynced) = self.files.get_mut(&ino) else { return Ok(()) };
        let lost = std::mem::take(&mut unsynced.dirty);
        let file = self.open(ino)?;
        let size = rustix::fs::fstat(&file)?.st_size as u64;
        for (at, len, _) in lost {
            let end = size.min(at + len);
            if at < end {
                file.write_all_at(&vec![0; (end - at) as usize], at).map_err(|_| rustix::io::Errno::IO)?;
            }
        }
        if let Some(unsynced) = self.files.get_mut(&ino) {
            unsynced.size = size;
        }
        Ok(())
    }

    pub(super) fn synced_names(&mut self, dir: u64) {
        let mut slots: HashSet<Slot> = HashSet::new();
        let mut kept = Vec::new();
        let mut durable = Vec::new();
        for change in std::mem::take(&mut self.pending).into_iter().rev() {
            let touches = change.0.iter().any(|(slot, ..)| slot.0 == dir || slots.contains(slot));
            if touches {
                slots.extend(change.0.iter().map(|(slot, ..)| slot.clone()));
                durable.push(change);
            } else {
                kept.push(change);
            }
        }
        kept.reverse();
        self.pending = kept;
        durable.iter().rev().for_each(|change| change.apply(&mut self.durable));
    }

    // The cut.

    /// Makes the backing folder what the disk holds.
    pub(super) fn roll_back(mut self, kept: Kept) -> Result<()> {
        let mut chance = fastrand::Rng::with_seed(if let Kept::Some(seed) = kept { seed } else { 0 });
        for (ino, unsynced) in std::mem::take(&mut self.files) {
            self.roll_back_file(ino, unsynced, kept, &mut chance)?;
        }
        let target = self.names_after(kept, &mut chance);
        self.lay_out(&target)?;
        std::fs::remove_dir_all(&self.graveyard).expect("the graveyard goes");
        Ok(())
    }

    fn roll_back_file(&self, ino: u64, unsynced: Unsynced, kept: Kept, chance: &mut fastrand::Rng) -> Result<()> {
        let Ok(file) = self.open(ino) else { return Ok(()) };
        let stat = rustix::fs::fstat(&file)?;
        let (now, before) = (stat.st_size as u64, unsynced.size);
        let size = match kept {
            Kept::Nothing => before,
            Kept::Everything => now,
            Kept::Some(_) => match chance.u8(0..3) {
                0 => before,
                1 => now,
                _ => chance.u64(before.min(now)..=before.max(now)),
            },
        };
        if kept != Kept::Everything {
            let everything = kept == Kept::Nothing;
            let lost = unsynced.blocks().into_iter().filter(|_| everything || chance.bool()).collect::<HashSet<_>>();
            for (at, len, old) in unsynced.dirty.iter().rev() {
                restore(&file, *at, *len, old, &lost)?;
            }
            let modified = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
            let times = Timestamps { last_access: modified, last_modification: unsynced.modified };
            rustix::fs::ftruncate(&file, size)?;
            rustix::fs::futimens(&file, &times)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(unsynced.mode))?;
        }
        Ok(())
    }

    fn names_after(&mut self, kept: Kept, chance: &mut fastrand::Rng) -> Names {
        let mut names = self.durable.clone();
        let pending = std::mem::take(&mut self.pending);
        match kept {
            Kept::Nothing => {}
            Kept::Everything => pending.iter().for_each(|change| change.apply(&mut names)),
            Kept::Some(_) if chance.bool() => {
                let first = chance.usize(0..=pending.len());
                pending.iter().take(first).for_each(|change| change.apply(&mut names));
            }
            Kept::Some(_) => {
                for change in pending.iter().filter(|change| change.fits(&names)).collect::<Vec<_>>() {
                    if chance.bool() && change.fits(&names) {
                        change.apply(&mut names);
                    }
                }
            }
        }
        names
    }

    fn lay_out(&mut self, target: &Names) -> Result<()> {
        let is_at = |names: &Names, dir: &u64, name: &OsString, ino: &u64| {
            names.get(dir).and_then(|names| names.get(name)) == Some(ino)
        };
        let live = std::mem::take(&mut self.live);
        for (dir, names) in &live {
            for (name, ino) in names.iter().filter(|(name, ino)| !is_at(target, dir, name, ino)) {
                let folder = &self.held[dir];
                if self.buried.insert(*ino) {
                    rustix::fs::renameat(folder, name, CWD, self.grave(*ino))?;
                } else {
                    rustix::fs::unlinkat(folder, name, AtFlags::empty())?;
                }
            }
        }
        for (dir, names) in target {
            for (name, ino) in names.iter().filter(|(name, ino)| !is_at(&live, dir, name, ino)) {
                let folder = &self.held[dir];
                if live.contains_key(ino) {
                    rustix::fs::renameat(CWD, self.grave(*ino), folder, name)?;
                } else {
                    rustix::fs::linkat(CWD, self.reach(*ino), folder, name, AtFlags::SYMLINK_FOLLOW)?;
                }
            }
        }
        Ok(())
    }

    fn open(&self, ino: u64) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        rustix::fs::open(self.reach(ino), flags, Mode::empty()).map(File::from)
    }
}

impl Change {
    fn apply(&self, names: &mut Names) {
        for ((dir, name), _, after) in &self.0 {
            let names = names.entry(*dir).or_default();
            match after {
                Some(ino) => names.insert(name.clone(), *ino),
                None => names.remove(name),
            };
        }
    }

    /// Whether it can be made on top of these.
    fn fits(&self, names: &Names) -> bool {
        self.0
            .iter()
            .all(|((dir, name), before, _)| names.get(dir).and_then(|names| names.get(name)) == before.as_ref())
    }
}

impl Unsynced {
    /// A new file: nothing of it is durable but that it is there, once its name is.
    fn of(stat: &Stat) -> Self {
        Self { size: 0, ..Self::durable(stat) }
    }

    fn durable(stat: &Stat) -> Self {
        Self { size: stat.st_size as u64, dirty: Vec::new(), modified: modified(stat), mode: stat.st_mode & 0o7777 }
    }

    /// The blocks with unsynced bytes.
    fn blocks(&self) -> Vec<u64> {
        let blocks = self.dirty.iter().flat_map(|(at, len, _)| at / BLOCK..(at + len).div_ceil(BLOCK));
        let mut blocks: Vec<_> = blocks.collect();
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }
}

/// Puts back what was there, in the blocks that were lost.
fn restore(file: &File, at: u64, len: u64, old: &[u8], lost: &HashSet<u64>) -> Result<()> {
    let end = at + len;
    for block in at / BLOCK..end.div_ceil(BLOCK) {
        if !lost.contains(&block) {
            continue;
        }
        let (first, last) = ((block * BLOCK).max(at), ((block + 1) * BLOCK).min(end));
        let mut bytes = vec![0; (last - first) as usize];
        let known = old.len() as u64;
        let from = (first - at).min(known) as usize..(last - at).min(known) as usize;
        bytes[..from.len()].copy_from_slice(&old[from]);
        file.write_all_at(&bytes, first).map_err(|_| rustix::io::Errno::IO)?;
    }
    Ok(())
}

fn modified(stat: &Stat) -> Timespec {
    Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec as i64 }
}
