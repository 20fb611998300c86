//! The second look at what was not right at first: nothing is condemned by one read.
//!
//! Owns who is to blame. Each suspect is read again from the disk itself; what is right then was a bad read
//! or a bad page, and is forgotten. What is wrong again is read a third time, blocks one behind the other
//! in one run that trusts no digest between them: when the run as a whole is right, the list of digests was
//! wrong and is mended; and bytes that come out differently each time tell nothing but that.
//!
//! Why that is enough: a wrong state in the list makes the two blocks beside it wrong, so a run that
//! reaches to right blocks on both sides, or to an end of the file, begins and ends with right states.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::blocks::{BadBlock, Damage, Examined, Fault, Fed, Reins, Whole, feed, hash_whole};
use super::hash::cannot;
use crate::core::blocks::{BLOCK_SIZE, Blocks};
use crate::core::causes::in_words;
use crate::core::identity::Identity;
use crate::core::manifest::FileEntry;
use crate::core::reason::Why;
use crate::volume::ModelDir;
use crate::volume::from_disk::{Asking, FromDisk};

const UNSTEADY: &str = "it comes out differently each time it is read";
const UNPROVED: &str = "it is not what its digest says, and that is not proved: a block beside it cannot be read";
const CACHED: &str = "its bytes are in memory and the disk cannot be asked past them";

/// What a look at one block came to.
enum Look {
    Right,
    /// By a checksum of the bytes, to compare two looks.
    Wrong(u32),
    Unreadable(String),
}

/// Looks again at `suspects`, sorted; the first read of `examined` found them not right. Nothing when it was
/// stopped.
pub(super) fn confirm(
    dir: &ModelDir,
    examined: Examined,
    entry: &FileEntry,
    blocks: &Blocks,
    suspects: Vec<u64>,
    reins: &Reins<'_>,
) -> Option<Result<Examined, Why>> {
    let file = match open_again(dir, entry, examined.identity) {
        Ok(file) => file,
        Err(why) => return Some(Err(why)),
    };
    let mut second = Second { file: &file, blocks, reins, wrong: BTreeMap::new(), bad: BTreeMap::new(), right: 0 };
    let mut known_right: BTreeSet<u64> = examined.read.clone().collect();
    for index in suspects {
        known_right.remove(&index);
        second.look(index)?;
    }
    // As far as right blocks on both sides, or the ends of the file.
    let transient = second.right;
    loop {
        let wrong: Vec<u64> = second.wrong.keys().copied().collect();
        let beside = wrong.iter().flat_map(|at| [at.checked_sub(1), Some(at + 1).filter(|at| *at < blocks.count())]);
        let is_known = |at: &u64| known_right.contains(at) || wrong.contains(at) || second.bad.contains_key(at);
        let unknown: Vec<u64> = beside.flatten().filter(|at| !is_known(at)).collect();
        if unknown.is_empty() {
            break;
        }
        for index in unknown {
            let before = second.right;
            second.look(index)?;
            if second.right > before {
                known_right.insert(index);
            }
        }
    }
    let mut mended = blocks.clone();
    for run in runs(second.wrong.keys().copied()) {
        second.settle(&run, &mut mended)?;
    }
    let bad: Vec<_> = second.bad.into_values().collect();
    let is_news = mended != *blocks;
    let damage = if bad.is_empty() { None } else { Some(Damage::Blocks(bad)) };
    Some(Ok(Examined { blocks: Some(mended), is_news, transient, damage, ..examined }))
}

/// Hashes a file again whose first whole hash was not right. Nothing when it was stopped.
pub(super) fn confirm_whole(
    dir: &ModelDir,
    examined: Examined,
    entry: &FileEntry,
    first: &Whole,
    reins: &Reins<'_>,
) -> Option<Result<Examined, Why>> {
    let file = match open_again(dir, entry, examined.identity) {
        Ok(file) => file,
        Err(why) => return Some(Err(why)),
    };
    let asks = file.asks_the_disk(&(0..entry.size));
    let unreadable = |at: u64, why: String| {
        let index = at / BLOCK_SIZE;
        let start = index * BLOCK_SIZE;
        let range = start..start.saturating_add(BLOCK_SIZE).min(entry.size);
        Damage::Blocks(vec![BadBlock { index, range, fault: Fault::Unreadable { why } }])
    };
    let damage = match (first, hash_whole(&file, entry, reins)?) {
        (_, Whole::Right(blocks)) => {
            return Some(Ok(Examined { blocks: Some(blocks), is_news: true, transient: 1, ..examined }));
        }
        (_, Whole::Unreadable(at, why)) => unreadable(at, why),
        (_, Whole::Other(_)) if !asks => unreadable(0, CACHED.to_owned()),
        (Whole::Other(first), Whole::Other(found)) if *first == found => Damage::Somewhere { found: Some(found) },
        (_, Whole::Other(_)) => unreadable(0, UNSTEADY.to_owned()),
    };
    Some(Ok(Examined { damage: Some(damage), ..examined }))
}

fn open_again(dir: &ModelDir, entry: &FileEntry, identity: Identity) -> Result<FromDisk, Why> {
    let file = dir.open_from_disk(&entry.path, Asking::Firmly).map_err(|error| cannot(&error, entry))?;
    if file.identity() == identity { Ok(file) } else { Err(Why::Changing) }
}

struct Second<'a> {
    file: &'a FromDisk,
    blocks: &'a Blocks,
    reins: &'a Reins<'a>,
    /// Wrong again, with the checksums of their bytes.
    wrong: BTreeMap<u64, u32>,
    bad: BTreeMap<u64, BadBlock>,
    /// How many were right.
    right: u64,
}

impl Second<'_> {
    /// Sorts one block; nothing when it was stopped.
    fn look(&mut self, index: u64) -> Option<()> {
        let range = self.blocks.range(index);
        let asks = self.file.asks_the_disk(&range);
        match self.read(index)? {
            Look::Right => self.right += 1,
            Look::Wrong(_) if !asks => self.condemn(index, Fault::Unreadable { why: CACHED.to_owned() }),
            Look::Wrong(sum) => {
                self.wrong.insert(index, sum);
            }
            Look::Unreadable(why) => self.condemn(index, Fault::Unreadable { why }),
        }
        Some(())
    }

    fn read(&self, index: u64) -> Option<Look> {
        let (mut hasher, mut sum) = (self.blocks.hasher(index), crc32fast::Hasher::new());
        let fed = feed(self.file, &self.blocks.range(index), self.reins, |bytes| {
            hasher.update(bytes);
            sum.update(bytes);
        });
        match fed {
            Fed::Stopped => None,
            Fed::Failed(_, error) => Some(Look::Unreadable(in_words(&error))),
            Fed::All if hasher.is_right() => Some(Look::Right),
            Fed::All => Some(Look::Wrong(sum.finalize())),
        }
    }

    /// The third look: at wrong blocks one behind the other. Nothing when it was stopped.
    fn settle(&mut self, run: &Range<u64>, mended: &mut Blocks) -> Option<()> {
        let (mut chain, mut faults) = (self.blocks.run_hasher(run.clone()), Vec::new());
        for index in run.clone() {
            let mut sum = crc32fast::Hasher::new();
            let range = self.blocks.range(index);
            self.file.asks_the_disk(&range);
            let fed = feed(self.file, &range, self.reins, |bytes| {
                chain.update(bytes);
                sum.update(bytes);
            });
            let fault = match fed {
                Fed::Stopped => return None,
                Fed::Failed(_, error) => Fault::Unreadable { why: in_words(&error) },
                Fed::All if self.wrong.get(&index) == Some(&sum.finalize()) => Fault::Wrong,
                Fed::All => Fault::Unreadable { why: UNSTEADY.to_owned() },
            };
            faults.push((index, fault));
        }
        // Every byte of the run is right, and what is between its ends was not.
        if let Some(right) = chain.mend(mended) {
            *mended = right;
            return Some(());
        }
        let beside = [run.start.checked_sub(1), Some(run.end)];
        let is_proved = !beside.iter().flatten().any(|at| self.bad.contains_key(at));
        for (index, fault) in faults {
            let unproved = || Fault::Unreadable { why: UNPROVED.to_owned() };
            self.condemn(index, if is_proved { fault } else { unproved() });
        }
        Some(())
    }

    fn condemn(&mut self, index: u64, fault: Fault) {
        self.bad.insert(index, BadBlock { index, range: self.blocks.range(index), fault });
    }
}

/// Numbers one behind the other, as ranges.
fn runs(sorted: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for at in sorted {
        match runs.last_mut() {
            Some(run) if run.end == at => run.end += 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_one_behind_the_other_are_one_run() {
        assert_eq!(runs([0, 1, 4, 6, 7, 8].into_iter()), [0..2, 4..5, 6..9]);
        assert!(runs([].into_iter()).is_empty());
    }
}
