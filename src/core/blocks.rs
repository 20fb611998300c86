//! Block digests: where a file went wrong, to 16 MiB.
//!
//! Owns the digests of a file's blocks and their stored form. A block's digest is no second hash: it is
//! the state that the file's own SHA-256 is in at the block's end (its chaining value, FIPS 180-4 §6.2.2),
//! so the hash that runs anyway gives it for nothing. A block is right when hashing it from the state
//! before it leads to the state behind it. Invariant: a value speaks of a file whose bytes led from the
//! first state to the last, the file's SHA-256; whoever checks every block has proved that digest and
//! has trusted no stored state.
//!
//! Format of the stored form: records one behind another, little-endian: magic `blk1`, the file's size
//! as u64, its SHA-256, the states between its blocks (32 bytes each, words as in a digest), CRC-32 of
//! all that. A file of one block has no record. What is torn or garbled is passed over to the next magic.

use std::collections::HashMap;
use std::ops::Range;

use sha2::Digest as _;
use sha2::digest::common::hazmat::{SerializableState, SerializedState};

use super::digest::Sha256;

/// Bytes of a block; the last one of a file may have fewer.
pub const BLOCK_SIZE: u64 = 16 << 20;

const MAGIC: &[u8; 4] = b"blk1";
/// Bytes of a record before its states: magic, size, digest.
const HEAD_LEN: usize = 4 + 8 + 32;
const STATE_LEN: usize = 32;
const CRC_LEN: usize = 4;
/// Most damaged places that are passed over: each may cost a look at all that follows.
const TEARS_MAX: usize = 64;
/// Bytes of a block of SHA-256, which its state counts.
const SHA_BLOCK: u64 = 64;

/// What SHA-256 is in after a number of whole blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State([u8; STATE_LEN]);

impl State {
    /// The state of a hash that has taken whole blocks so far.
    pub(super) fn of(sha256: &sha2::Sha256) -> Self {
        let mut state = [0; STATE_LEN];
        state.copy_from_slice(&sha256.serialize()[..STATE_LEN]);
        Self(swapped(state))
    }

    /// A hash that has taken `bytes` bytes, whole blocks of SHA-256, and is in this state.
    fn resumed(self, bytes: u64) -> sha2::Sha256 {
        let mut whole: SerializedState<sha2::Sha256> = sha2::Sha256::new().serialize();
        whole[..STATE_LEN].copy_from_slice(&swapped(self.0));
        whole[STATE_LEN..STATE_LEN + 8].copy_from_slice(&(bytes / SHA_BLOCK).to_le_bytes());
        sha2::Sha256::deserialize(&whole).expect("the buffer of a new hash is empty, whatever its state")
    }
}

/// The digests of a file's blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    size: u64,
    sha256: Sha256,
    /// Between the blocks: one fewer than there are blocks.
    states: Box<[State]>,
}

impl Blocks {
    pub(super) fn new(size: u64, sha256: Sha256, states: Vec<State>) -> Option<Self> {
        (states.len() as u64 + 1 == blocks_in(size)).then(|| Self { size, sha256, states: states.into() })
    }

    /// A file of one block, whose digest is the file's; `None` for a larger one.
    #[must_use]
    pub fn whole(size: u64, sha256: Sha256) -> Option<Self> {
        Self::new(size, sha256, Vec::new())
    }

    /// The file's size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// The file's SHA-256.
    #[must_use]
    pub const fn sha256(&self) -> Sha256 {
        self.sha256
    }

    /// Number of blocks; an empty file has one.
    #[must_use]
    pub fn count(&self) -> u64 {
        blocks_in(self.size)
    }

    /// The bytes of the block with this number, counted from 0.
    #[must_use]
    pub fn range(&self, index: u64) -> Range<u64> {
        let start = index.saturating_mul(BLOCK_SIZE).min(self.size);
        start..start.saturating_add(BLOCK_SIZE).min(self.size)
    }

    /// A hash that takes the bytes of the block with this number, counted from 0.
    ///
    /// # Panics
    /// When there is no such block.
    #[must_use]
    pub fn hasher(&self, index: u64) -> BlockHasher {
        assert!(index < self.count(), "block {index} of {}", self.count());
        let at = usize::try_from(index).expect("as many blocks as states in memory");
        let sha256 = match at.checked_sub(1) {
            None => sha2::Sha256::new(),
            Some(before) => self.states[before].resumed(index * BLOCK_SIZE),
        };
        let leads_to = self.states.get(at).map_or(End::File(self.sha256), |state| End::Block(*state));
        let Range { start, end } = self.range(index);
        BlockHasher { sha256, left: Some(end - start), leads_to }
    }

    /// A hash over several blocks, one behind the other, that trusts no state between them.
    ///
    /// # Panics
    /// When there are no such blocks.
    #[must_use]
    pub fn run_hasher(&self, run: Range<u64>) -> RunHasher {
        assert!(!run.is_empty() && run.end <= self.count(), "blocks {run:?} of {}", self.count());
        let BlockHasher { sha256, .. } = self.hasher(run.start);
        let BlockHasher { leads_to, .. } = self.hasher(run.end - 1);
        let bytes = self.range(run.start).start..self.range(run.end - 1).end;
        RunHasher { sha256, first: run.start, position: bytes.start, end: bytes.end, states: Vec::new(), leads_to }
    }

    fn to_record(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_LEN + self.states.len() * STATE_LEN + CRC_LEN);
        bytes.extend(MAGIC);
        bytes.extend(self.size.to_le_bytes());
        bytes.extend(self.sha256.as_bytes());
        self.states.iter().for_each(|state| bytes.extend(state.0));
        let crc = crc32fast::hash(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// The first record and what follows it; `None` when it is torn or garbled.
    fn from_record(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let head = bytes.get(..HEAD_LEN).filter(|head| head.starts_with(MAGIC))?;
        let size = u64::from_le_bytes(head[4..12].try_into().ok()?);
        let sha256 = Sha256::from_bytes(head[12..].try_into().ok()?);
        let states = usize::try_from(blocks_in(size) - 1).ok()?.checked_mul(STATE_LEN)?;
        let (record, rest) = bytes.split_at_checked(states.checked_add(HEAD_LEN + CRC_LEN)?)?;
        let (sealed, crc) = record.split_at(HEAD_LEN + states);
        if crc != crc32fast::hash(sealed).to_le_bytes() {
            return None;
        }
        let (states, _whole) = sealed[HEAD_LEN..].as_chunks();
        Some((Self::new(size, sha256, states.iter().copied().map(State).collect())?, rest))
    }
}

/// A running hash over one block.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    sha256: sha2::Sha256,
    /// Bytes to come; `None` once there were too many.
    left: Option<u64>,
    leads_to: End,
}

#[derive(Debug, Clone)]
enum End {
    Block(State),
    File(Sha256),
}

impl BlockHasher {
    /// Takes the next bytes of the block.
    pub fn update(&mut self, bytes: &[u8]) {
        self.left = self.left.and_then(|left| left.checked_sub(bytes.len() as u64));
        self.sha256.update(bytes);
    }

    /// Ends the block: whether these were all of its bytes, and the right ones.
    #[must_use]
    pub fn is_right(self) -> bool {
        let led = match self.leads_to {
            End::Block(state) => State::of(&self.sha256) == state,
            End::File(sha256) => self.sha256.finalize().as_slice() == sha256.as_bytes(),
        };
        self.left == Some(0) && led
    }
}

/// A running hash over blocks one behind the other.
#[derive(Debug, Clone)]
pub struct RunHasher {
    sha256: sha2::Sha256,
    first: u64,
    position: u64,
    end: u64,
    /// Where the hash stood between the blocks so far.
    states: Vec<State>,
    leads_to: End,
}

impl RunHasher {
    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = usize::try_from(BLOCK_SIZE - self.position % BLOCK_SIZE).unwrap_or(usize::MAX);
            let (block, behind) = bytes.split_at(room.min(bytes.len()));
            self.sha256.update(block);
            self.position += block.len() as u64;
            if self.position.is_multiple_of(BLOCK_SIZE) && self.position < self.end {
                self.states.push(State::of(&self.sha256));
            }
            bytes = behind;
        }
    }

    /// Ends the run. When these were all of its bytes, and the right ones, it gives the digests of `blocks`
    /// with those of this run as they were found: then it is the ones known so far that were wrong.
    #[must_use]
    pub fn mend(self, blocks: &Blocks) -> Option<Blocks> {
        let led = match self.leads_to {
            End::Block(state) => State::of(&self.sha256) == state,
            End::File(sha256) => self.sha256.finalize().as_slice() == sha256.as_bytes(),
        };
        if !led || self.position != self.end {
            return None;
        }
        let mut states = blocks.states.clone();
        let first = usize::try_from(self.first).ok()?;
        states.get_mut(first..first + self.states.len())?.copy_from_slice(&self.states);
        Some(Blocks { states, ..blocks.clone() })
    }
}

/// Block digests of several files, by the files' SHA-256: right for whatever manifest has a file with it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct BlockTable {
    files: HashMap<Sha256, Blocks>,
}

impl BlockTable {
    /// Reads the stored form; a damaged record is not known.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let (mut table, mut rest, mut tears) = (Self::default(), bytes, 0);
        while !rest.is_empty() && tears <= TEARS_MAX {
            if let Some((blocks, behind)) = Blocks::from_record(rest) {
                table.files.insert(blocks.sha256, blocks);
                rest = behind;
            } else {
                tears += 1;
                let next = rest[1..].windows(MAGIC.len()).position(|bytes| bytes == MAGIC);
                rest = next.map_or(&[], |at| &rest[1 + at..]);
            }
        }
        table
    }

    /// The digests of a file of this size with this SHA-256; `None` when they are not known.
    #[must_use]
    pub fn of(&self, size: u64, sha256: &Sha256) -> Option<Blocks> {
        let known = self.files.get(sha256).filter(|blocks| blocks.size == size);
        known.cloned().or_else(|| Blocks::whole(size, *sha256))
    }

    /// Keeps the files that are `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(&Sha256) -> bool) {
        self.files.retain(|sha256, _| wanted(sha256));
    }

    /// The stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut files: Vec<_> = self.files.values().collect();
        files.sort_by_key(|blocks| blocks.sha256);
        records(files)
    }
}

/// The records of these files, to be stored behind others; of files of one block there are none.
#[must_use]
pub fn records<'a>(files: impl IntoIterator<Item = &'a Blocks>) -> Vec<u8> {
    files.into_iter().filter(|blocks| blocks.count() > 1).flat_map(Blocks::to_record).collect()
}

/// Number of blocks of a file of this size; an empty file has one.
#[must_use]
pub const fn blocks_in(size: u64) -> u64 {
    if size == 0 { 1 } else { size.div_ceil(BLOCK_SIZE) }
}

/// `sha2` keeps a state's words little-endian, a digest has them big-endian.
fn swapped(mut state: [u8; STATE_LEN]) -> [u8; STATE_LEN] {
    let (words, _whole) = state.as_chunks_mut::<4>();
    for word in words {
        word.reverse();
    }
    state
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;
    use crate::core::verify::FileHasher;
    use crate::core::verify::tests::lfs_entry;

    /// Three blocks, the last one of 5 bytes.
    static DATA: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let len = 2 * BLOCK_SIZE + 5;
        (0..len).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
    });
    static BLOCKS: LazyLock<Blocks> = LazyLock::new(|| blocks_of(&DATA));
    static OTHER: LazyLock<Blocks> = LazyLock::new(|| blocks_of(&DATA[1..]));

    /// The digests of the blocks of a file with these bytes.
    pub(crate) fn blocks_of(bytes: &[u8]) -> Blocks {
        let mut hasher = FileHasher::new(&lfs_entry("x", bytes));
        bytes.chunks(1 << 20).for_each(|bytes| hasher.update(bytes));
        hasher.finish().unwrap().blocks().clone()
    }

    fn is_right(index: u64, bytes: &[u8]) -> bool {
        let mut hasher = BLOCKS.hasher(index);
        bytes.chunks(777_777).for_each(|bytes| hasher.update(bytes));
        hasher.is_right()
    }

    fn block(index: u64) -> &'static [u8] {
        let Range { start, end } = BLOCKS.range(index);
        &DATA[usize::try_from(start).unwrap()..usize::try_from(end).unwrap()]
    }

    #[test]
    fn a_state_is_the_chaining_value_of_the_standard() {
        // FIPS 180-4 §5.3.3: what every SHA-256 begins with.
        let first = "6a09e667bb67ae853c6ef372a54ff53a510e527f9b05688c1f83d9ab5be0cd19";
        assert_eq!(State::of(&sha2::Sha256::new()).0, *Sha256::parse(first).unwrap().as_bytes());
        // The compression function by itself, on the first block.
        let mut words =
            [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a, 0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19];
        sha2::block_api::compress256(&mut words, block(0).as_chunks().0);
        let state: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
        assert_eq!(BLOCKS.states[0].0.as_slice(), state);
    }

    #[test]
    fn each_block_is_checked_by_itself_and_only_its_own_bytes_are_right() {
        assert_eq!(
            (BLOCKS.count(), BLOCKS.range(2), BLOCKS.range(9)),
            (3, 2 * BLOCK_SIZE..BLOCKS.size(), BLOCKS.size()..BLOCKS.size())
        );
        for index in 0..3 {
            assert!(is_right(index, block(index)), "{index}");
            assert!(!is_right(index, &block(index)[1..]), "{index}: one byte short");
            assert!(!is_right(index, &[block(index), &[0]].concat()), "{index}: one byte long");
            assert!(!is_right(index, block((index + 1) % 3)), "{index}: another block's");
            let mut flipped = block(index).to_vec();
            *flipped.last_mut().unwrap() ^= 1;
            assert!(!is_right(index, &flipped), "{index}: flipped");
        }
    }

    #[test]
    fn a_file_of_one_block_needs_no_record_and_one_of_two_has_one_state() {
        for (len, states) in [(0, 0), (1, 0), (BLOCK_SIZE, 0), (BLOCK_SIZE + 1, 1), (2 * BLOCK_SIZE, 1)] {
            let blocks = blocks_of(&DATA[..usize::try_from(len).unwrap()]);
            assert_eq!((blocks.states.len(), blocks.count()), (states, states as u64 + 1), "{len}");
            assert_eq!(Blocks::whole(len, blocks.sha256()).is_some(), states == 0);
            assert_eq!(records([&blocks]).is_empty(), states == 0);
            let table = BlockTable::parse(&records([&blocks]));
            assert_eq!(table.of(len, &blocks.sha256()), Some(blocks));
        }
    }

    #[test]
    fn a_run_of_right_blocks_mends_the_states_between_them_and_a_wrong_one_mends_nothing() {
        let mut wrong = BLOCKS.clone();
        wrong.states = wrong.states.iter().map(|_| State([7; STATE_LEN])).collect();
        let over = |blocks: &Blocks, run: Range<u64>, bytes: &[u8]| {
            let mut hasher = blocks.run_hasher(run);
            bytes.chunks(777_777).for_each(|bytes| hasher.update(bytes));
            hasher.mend(blocks)
        };
        assert_eq!(over(&wrong, 0..3, &DATA).as_ref(), Some(&*BLOCKS));
        assert_eq!(over(&BLOCKS, 1..3, &DATA[usize::try_from(BLOCK_SIZE).unwrap()..]).as_ref(), Some(&*BLOCKS));
        assert_eq!(over(&wrong, 1..3, &DATA[usize::try_from(BLOCK_SIZE).unwrap()..]), None, "from a wrong state");
        assert_eq!(over(&BLOCKS, 0..3, &DATA[1..]), None);
        assert_eq!(over(&BLOCKS, 0..2, &DATA), None, "too many bytes");
    }

    #[test]
    fn what_is_not_wanted_any_more_is_dropped() {
        let other = &*OTHER;
        let mut table = BlockTable::parse(&records([&BLOCKS, other]));
        table.retain(|sha256| *sha256 == other.sha256());
        assert_eq!(table.to_bytes(), records([other]));
        assert_eq!(table.of(BLOCKS.size(), &BLOCKS.sha256()), None);
        assert_eq!(table.of(other.size() + 1, &other.sha256()), None, "of another size");
    }

    #[test]
    fn passing_over_damage_ends() {
        let bytes = MAGIC.repeat(100_000);
        assert_eq!(BlockTable::parse(&bytes), BlockTable::default());
    }

    proptest! {
        #[test]
        fn a_damaged_record_is_no_record_and_the_others_stay(at in any::<prop::sample::Index>(), flip in 1u8..) {
            let both = [BLOCKS.clone(), OTHER.clone()];
            let whole = records(&both);
            let (at, second) = (at.index(whole.len()), whole.len() / 2);
            let mut damaged = whole.clone();
            damaged[at] ^= flip;
            let left = &both[usize::from(at < second)];
            prop_assert_eq!(BlockTable::parse(&damaged).to_bytes(), records([left]));
            // Torn, and somebody has written behind the tear.
            let left: &[Blocks] = if at < second { &[] } else { &both[..1] };
            prop_assert_eq!(BlockTable::parse(&whole[..at]).to_bytes(), records(left));
            let torn = [&whole[..at], &records([&both[1]])].concat();
            let left = if at < second { &both[1..] } else { &both };
            prop_assert_eq!(BlockTable::parse(&torn), BlockTable::parse(&records(left)));
        }
    }
}
