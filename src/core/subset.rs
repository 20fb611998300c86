//! Which part of a model is to be read: all, one of several parts, or so much of it.
//!
//! Owns the choice. Pure. Invariants: of `1/t` to `t/t` each block is in at least one; a share of a model goes on
//! where the last reading ended, oldest first, so that repeated shares reach everything.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use jiff::Timestamp;
use thiserror::Error;

use super::blocks::{BLOCK_SIZE, blocks_in};
use super::manifest::{FileEntry, Manifest};
use super::scrubbed::Scrubbed;
use super::units::{self, UnitError};

/// Most parts that a model may be cut into.
const PARTS_MAX: u64 = 1_000_000;
/// What a share is counted in.
const WHOLE_PPM: u64 = 1_000_000;

/// A part of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Subset {
    /// All of it.
    #[default]
    All,
    /// The n-th of so many parts, always the same one.
    Part {
        /// From 1.
        n: u64,
        /// Of how many.
        of: u64,
    },
    /// What was not read for longest: so many millionths of all bytes.
    Share {
        /// From 1 to 1,000,000.
        ppm: u64,
    },
    /// What was not read for longest: so many bytes.
    Bytes(u64),
}

/// Why a text is no subset.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SubsetError {
    /// Not `n/t`.
    #[error("`{text}` is no part: write n/t with n from 1 to t, at most {PARTS_MAX}")]
    Part {
        /// What was given.
        text: String,
    },
    /// Not `x%`.
    #[error("`{text}` is no share: write a percentage above 0% and up to 100%")]
    Share {
        /// What was given.
        text: String,
    },
    /// No size either.
    #[error("{0}; or write n/t, or a percentage")]
    Size(UnitError),
    /// Nothing.
    #[error("nothing is to be read")]
    Nothing,
}

impl FromStr for Subset {
    type Err = SubsetError;

    fn from_str(text: &str) -> Result<Self, SubsetError> {
        let text = text.trim();
        if let Some((n, of)) = text.split_once('/') {
            let parsed = n.trim().parse().ok().zip(of.trim().parse().ok());
            let part = parsed.filter(|(n, of)| (1..=*of).contains(n) && *of <= PARTS_MAX);
            return part.map(|(n, of)| Self::Part { n, of }).ok_or_else(|| SubsetError::Part { text: text.to_owned() });
        }
        if let Some(share) = text.strip_suffix('%') {
            let percent: Option<f64> = share.trim().parse().ok().filter(|share: &f64| *share > 0.0 && *share <= 100.0);
            let ppm = percent.map(|percent| units::whole((percent * 1e4).ceil()).min(WHOLE_PPM));
            return ppm.map(|ppm| Self::Share { ppm }).ok_or_else(|| SubsetError::Share { text: text.to_owned() });
        }
        match units::parse_size(text).map_err(SubsetError::Size)? {
            0 => Err(SubsetError::Nothing),
            bytes => Ok(Self::Bytes(bytes)),
        }
    }
}

impl fmt::Display for Subset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("everything"),
            Self::Part { n, of } => write!(f, "part {n} of {of}"),
            Self::Share { ppm } => write!(f, "{}%", *ppm as f64 / 1e4),
            Self::Bytes(bytes) => f.write_str(&units::bytes(*bytes)),
        }
    }
}

/// Blocks of one file, one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portion<'a> {
    /// The file.
    pub entry: &'a FileEntry,
    /// The blocks.
    pub blocks: Range<u64>,
}

impl Portion<'_> {
    /// Bytes in them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let byte = |block: u64| block.saturating_mul(BLOCK_SIZE).min(self.entry.size);
        byte(self.blocks.end) - byte(self.blocks.start)
    }
}

/// What a choice goes by.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// What was read when.
    pub record: &'a Scrubbed,
    /// When the files were proved.
    pub proved_at: Option<Timestamp>,
    /// Whether the digests of a file's blocks are known; without them it can only be read whole.
    pub has_blocks: &'a dyn Fn(&FileEntry) -> bool,
}

/// The blocks that belong to `subset`, in the order in which they are to be read.
#[must_use]
pub fn choose<'a>(manifest: &'a Manifest, subset: Subset, known: Known<'_>) -> Vec<Portion<'a>> {
    let all = || manifest.files().iter().map(|entry| Portion { entry, blocks: 0..blocks_in(entry.size) });
    match subset {
        Subset::All => all().collect(),
        Subset::Part { n, of } => {
            let total: u128 = manifest.files().iter().map(|entry| u128::from(blocks_in(entry.size))).sum();
            let cut = |n: u64| total * u128::from(n) / u128::from(of);
            part(manifest, cut(n - 1)..cut(n), known)
        }
        Subset::Share { ppm } => {
            let bytes = u128::from(manifest.total_bytes()) * u128::from(ppm);
            share(manifest, u64::try_from(bytes.div_ceil(u128::from(WHOLE_PPM))).unwrap_or(u64::MAX), known)
        }
        Subset::Bytes(bytes) => share(manifest, bytes, known),
    }
}

/// Those of all blocks, in the manifest's order, that have these numbers. A file that can only be read whole
/// belongs to whoever has its first block.
fn part<'a>(manifest: &'a Manifest, wanted: Range<u128>, known: Known<'_>) -> Vec<Portion<'a>> {
    let (mut portions, mut first) = (Vec::new(), 0u128);
    for entry in manifest.files() {
        let blocks = blocks_in(entry.size);
        let within = |at: u128| u64::try_from(at.saturating_sub(first)).unwrap_or(u64::MAX).min(blocks);
        let chosen = if (known.has_blocks)(entry) {
            within(wanted.start)..within(wanted.end)
        } else if wanted.contains(&first) {
            0..blocks
        } else {
            0..0
        };
        if !chosen.is_empty() {
            portions.push(Portion { entry, blocks: chosen });
        }
        first += u128::from(blocks);
    }
    portions
}

/// So many bytes, rounded up to a block, of what was not read for longest; what a reading has begun comes first
/// of what is equally old.
fn share<'a>(manifest: &'a Manifest, bytes: u64, known: Known<'_>) -> Vec<Portion<'a>> {
    let Known { record, proved_at, has_blocks } = known;
    let mut order: Vec<&FileEntry> = manifest.files().iter().collect();
    order.sort_by_key(|entry| (record.whole_at(entry, proved_at), !record.is_passing(entry)));
    let (mut portions, mut left) = (Vec::new(), bytes);
    for entry in order {
        if !has_blocks(entry) || entry.size == 0 {
            let portion = Portion { entry, blocks: 0..blocks_in(entry.size) };
            left = left.saturating_sub(portion.bytes());
            portions.push(portion);
        } else {
            for range in record.unread(entry).iter() {
                let first = range.start / BLOCK_SIZE;
                let end = range.end.div_ceil(BLOCK_SIZE).min(first + left.div_ceil(BLOCK_SIZE));
                let portion = Portion { entry, blocks: first..end };
                if !portion.blocks.is_empty() {
                    left = left.saturating_sub(portion.bytes());
                    portions.push(portion);
                }
            }
        }
        if left == 0 {
            break;
        }
    }
    portions
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::core::manifest::tests::{entry, source};
    use crate::core::scrubbed::{Read, Seen};

    fn manifest(sizes: &[u64]) -> Manifest {
        let files = sizes.iter().enumerate().map(|(at, size)| entry(&format!("f{at:03}"), *size)).collect();
        Manifest::seal(source(), files).unwrap()
    }

    fn blocks(portions: &[Portion<'_>]) -> Vec<(String, u64)> {
        let each = |portion: &Portion<'_>| {
            let path = portion.entry.path.to_string();
            portion.blocks.clone().map(move |block| (path.clone(), block)).collect::<Vec<_>>()
        };
        portions.iter().flat_map(each).collect()
    }

    fn read(record: &mut Scrubbed, portions: &[Portion<'_>], second: i64) {
        let seen = Seen { inode: 1, size: 1, mtime_ns: 1 };
        for Portion { entry, blocks } in portions {
            let bytes = blocks.start * BLOCK_SIZE..(blocks.end * BLOCK_SIZE).min(entry.size);
            let read = Read { bytes, bad_reads: 0, seen, faults: vec![] };
            record.took(entry, &read, Timestamp::from_second(second).unwrap(), "h");
        }
    }

    #[test]
    fn subsets_are_parts_shares_or_sizes() {
        for (text, expected) in [
            ("1/7", Subset::Part { n: 1, of: 7 }),
            ("7/7", Subset::Part { n: 7, of: 7 }),
            ("2.5%", Subset::Share { ppm: 25_000 }),
            ("100%", Subset::Share { ppm: 1_000_000 }),
            ("50GB", Subset::Bytes(50_000_000_000)),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["0/7", "8/7", "1/0", "-1/2", "1/x", "0%", "101%", "x%", "NaN%", "0B", "10M", "", "7"] {
            assert!(text.parse::<Subset>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn all_parts_together_are_everything_and_no_two_share_a_block_that_can_be_read_alone(
            sizes in prop::collection::vec(0u64..(70 << 20), 1..12),
            of in 1u64..40,
            whole in any::<u16>(),
        ) {
            let manifest = manifest(&sizes);
            let has_blocks = |entry: &FileEntry| whole >> (entry.size % 16) & 1 == 0;
            let record = Scrubbed::default();
            let known = Known { record: &record, proved_at: None, has_blocks: &has_blocks };
            let everything = blocks(&choose(&manifest, Subset::All, known));
            let mut parts: Vec<_> =
                (1..=of).flat_map(|n| blocks(&choose(&manifest, Subset::Part { n, of }, known))).collect();
            parts.sort();
            prop_assert_eq!(parts, everything);
        }

        #[test]
        fn repeated_shares_reach_everything_in_turn(
            sizes in prop::collection::vec(1u64..(70 << 20), 1..8),
            percent in 1u64..60,
        ) {
            let manifest = manifest(&sizes);
            let mut record = Scrubbed::default();
            let share = Subset::Share { ppm: percent * 10_000 };
            let everything: BTreeSet<_> = {
                let known = Known { record: &record, proved_at: None, has_blocks: &|_| true };
                blocks(&choose(&manifest, Subset::All, known)).into_iter().collect()
            };
            let mut seen = BTreeSet::new();
            for round in 0..100u64.div_ceil(percent) {
                let known = Known { record: &record, proved_at: None, has_blocks: &|_| true };
                let portions = choose(&manifest, share, known);
                let bytes: u64 = portions.iter().map(Portion::bytes).sum();
                prop_assert!(bytes <= manifest.total_bytes() * percent / 100 + 2 * BLOCK_SIZE, "{bytes}");
                seen.extend(blocks(&portions));
                read(&mut record, &portions, i64::try_from(round).unwrap() + 1);
            }
            prop_assert_eq!(seen, everything);
        }
    }

    #[test]
    fn a_share_takes_the_oldest_first_and_a_file_without_digests_whole() {
        let manifest = manifest(&[3 * BLOCK_SIZE, 3 * BLOCK_SIZE, 3 * BLOCK_SIZE]);
        let [a, b, c] = manifest.files() else { panic!() };
        let mut record = Scrubbed::default();
        read(&mut record, &[Portion { entry: c, blocks: 0..3 }], 1);
        read(&mut record, &[Portion { entry: a, blocks: 0..3 }], 2);
        read(&mut record, &[Portion { entry: b, blocks: 0..2 }], 3);
        let chosen = |has_blocks: &dyn Fn(&FileEntry) -> bool, bytes| {
            choose(&manifest, Subset::Bytes(bytes), Known { record: &record, proved_at: None, has_blocks })
                .into_iter()
                .map(|portion| (portion.entry.path.to_string(), portion.blocks))
                .collect::<Vec<_>>()
        };
        let named = |name: &str, blocks| (name.to_owned(), blocks);
        assert_eq!(chosen(&|_| true, 1), [named("f001", 2..3)]);
        assert_eq!(chosen(&|_| true, 3 * BLOCK_SIZE), [named("f001", 2..3), named("f002", 0..2)]);
        assert_eq!(chosen(&|entry| entry.path != b.path, 1), [named("f001", 0..3)]);
    }
}
