//! Bytes on their way to a partial, gathered so that they can go past the page cache.
//!
//! Owns the layout that direct I/O asks for: address, offset and length of a write are multiples of
//! a page. Invariant: the memory of a slab lies as its bytes do in the file, so that whatever
//! of it is aligned in the file is aligned in memory.

use std::ops::Range;

/// What direct I/O asks for, in bytes: a page, which every device's sector divides.
const ALIGN: usize = 4096;

/// Consecutive bytes of one file, up to a fixed number.
#[derive(Debug)]
pub struct Slab {
    memory: Vec<u8>,
    /// The first page boundary within the memory.
    base: usize,
    /// The bytes within the memory.
    filled: Range<usize>,
    /// End of the room within the memory.
    end: usize,
    offset: u64,
}

impl Slab {
    /// Room for `bytes` bytes, rounded up to whole pages.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let room = bytes.next_multiple_of(ALIGN).max(ALIGN);
        let memory = vec![0; room + ALIGN];
        let base = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { memory, base, filled: base..base, end: base + room, offset: 0 }
    }

    /// Empties it: what comes next belongs at `offset` of the file.
    pub fn restart(&mut self, offset: u64) {
        let into = usize::try_from(offset % ALIGN as u64).unwrap_or(0);
        self.filled = self.base + into..self.base + into;
        self.offset = offset;
    }

    /// Takes as many bytes as there is room for, and says how many.
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let len = bytes.len().min(self.end - self.filled.end);
        self.memory[self.filled.end..self.filled.end + len].copy_from_slice(&bytes[..len]);
        self.filled.end += len;
        len
    }

    /// Where its bytes belong in the file.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.filled.len() as u64
    }

    /// What it holds.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.filled.clone()]
    }

    /// Whether there is no room left.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.filled.end == self.end
    }

    /// Its bytes in three runs: up to the first page boundary of the file, whole pages, the rest.
    pub(super) fn runs(&self) -> [(u64, &[u8]); 3] {
        let bytes = self.bytes();
        let head =
            usize::try_from(self.offset.next_multiple_of(ALIGN as u64) - self.offset).unwrap_or(0).min(bytes.len());
        let pages = (bytes.len() - head) / ALIGN * ALIGN;
        let (first, rest) = bytes.split_at(head);
        let (whole, last) = rest.split_at(pages);
        let at = self.offset + head as u64;
        [(self.offset, first), (at, whole), (at + pages as u64, last)]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whole_pages_of_the_file_are_whole_pages_in_memory_and_no_byte_is_lost(
            offset in 0u64..40_000,
            room in 1usize..40_000,
            pieces in prop::collection::vec(1usize..9_000, 1..12),
        ) {
            let mut slab = Slab::new(room);
            slab.restart(offset);
            let mut given = Vec::new();
            for (n, len) in pieces.into_iter().enumerate() {
                let piece = vec![u8::try_from(n).unwrap(); len];
                let taken = slab.fill(&piece);
                given.extend_from_slice(&piece[..taken]);
                prop_assert_eq!(taken < len, slab.is_full() && taken < len, "it takes what it has room for");
            }
            prop_assert_eq!(slab.bytes(), &given[..]);
            let [first, pages, last] = slab.runs();
            prop_assert_eq!([first.1, pages.1, last.1].concat(), given.clone());
            prop_assert_eq!((first.0, first.0 + first.1.len() as u64), (offset, pages.0));
            prop_assert_eq!(pages.0 + pages.1.len() as u64, last.0);
            prop_assert!(first.1.len() < ALIGN && last.1.len() < ALIGN);
            if !pages.1.is_empty() {
                prop_assert_eq!((pages.0 % ALIGN as u64, pages.1.as_ptr().align_offset(ALIGN), pages.1.len() % ALIGN), (0, 0, 0));
            }
            prop_assert!(!slab.is_full() || (offset + given.len() as u64).is_multiple_of(ALIGN as u64), "the next one begins on a page");
        }
    }
}
