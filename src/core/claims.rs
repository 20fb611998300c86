//! The claims file of a partial: an append-only list of ranges that are durable.
//!
//! Format, little-endian: a header of 64 bytes (magic `muster claims 1\n`, the file's size as
//! u64, 36 bytes of digest tag and digest, CRC-32 of the 60 bytes before), then records of 20
//! bytes (start u64, end u64, CRC-32 over the header's CRC and the 16 bytes). A claim is
//! written only after its range was synced (P3). Between claims stand notes, marked by the highest
//! bit of the start: ranges that were written and not synced, which are there still when the
//! process dies and the machine does not. A torn or garbled tail ends the list: what stands
//! before it is believed, what follows is not.

use std::ops::Range;

use super::digest::Digest;
use super::manifest::FileEntry;
use super::range_set::RangeSet;

/// Bytes of the header.
pub const HEADER_LEN: usize = 64;
/// Bytes of one record.
pub const RECORD_LEN: usize = 20;

const MAGIC: &[u8; 16] = b"muster claims 1\n";
/// Marks a note; no file is so long that a start needs the bit.
const NOTE: u64 = 1 << 63;

/// What a claims file says of its partial.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Claims {
    /// Ranges that were synced.
    pub durable: RangeSet,
    /// Ranges that were written, which says something only on the boot that saw them written.
    pub noted: RangeSet,
}

/// The header for a file's claims: it binds them to this size and digest.
#[must_use]
pub fn header(entry: &FileEntry) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..24].copy_from_slice(&entry.size.to_le_bytes());
    match &entry.digest {
        Digest::Sha256(digest) => {
            bytes[24] = 1;
            bytes[28..60].copy_from_slice(digest.as_bytes());
        }
        Digest::GitBlob(digest) => {
            bytes[24] = 2;
            bytes[28..48].copy_from_slice(digest.as_bytes());
        }
    }
    let crc = crc32fast::hash(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The record that claims one range of a file.
#[must_use]
pub fn record(entry: &FileEntry, range: &Range<u64>) -> [u8; RECORD_LEN] {
    sealed(entry, range.start, range.end)
}

/// The record that notes one range of a file.
#[must_use]
pub fn note(entry: &FileEntry, range: &Range<u64>) -> [u8; RECORD_LEN] {
    sealed(entry, range.start | NOTE, range.end)
}

/// What a claims file says of the file that `entry` describes. Nothing when the claims are of
/// another file, another content, or unreadable.
#[must_use]
pub fn parse(bytes: &[u8], entry: &FileEntry) -> Claims {
    let mut claims = Claims::default();
    let header = header(entry);
    let Some(records) = bytes.strip_prefix(&header) else {
        return claims;
    };
    for record in records.chunks_exact(RECORD_LEN) {
        let (marked, end) = (u64_at(record, 0), u64_at(record, 8));
        let start = marked & !NOTE;
        let valid = record[16..] == record_crc(&header, &record[..16]).to_le_bytes();
        if !valid || start >= end || end > entry.size {
            break;
        }
        let said = if marked == start { &mut claims.durable } else { &mut claims.noted };
        said.insert(start..end);
    }
    claims
}

/// Whether these are whole claims of another file or another content: then what stands beside
/// them is not a beginning of the file that `entry` describes either.
#[must_use]
pub fn are_of_other(bytes: &[u8], entry: &FileEntry) -> bool {
    let Some(found) = bytes.get(..HEADER_LEN) else { return false };
    let whole = found.starts_with(MAGIC) && found[60..] == crc32fast::hash(&found[..60]).to_le_bytes();
    whole && found != header(entry)
}

fn sealed(entry: &FileEntry, start: u64, end: u64) -> [u8; RECORD_LEN] {
    let mut bytes = [0; RECORD_LEN];
    bytes[..8].copy_from_slice(&start.to_le_bytes());
    bytes[8..16].copy_from_slice(&end.to_le_bytes());
    let crc = record_crc(&header(entry), &bytes[..16]);
    bytes[16..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn record_crc(header: &[u8; HEADER_LEN], fields: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[60..]);
    crc.update(fields);
    crc.finalize()
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::manifest::tests::entry;

    fn file(entry: &FileEntry, ranges: &[Range<u64>]) -> Vec<u8> {
        let mut bytes = header(entry).to_vec();
        for range in ranges {
            bytes.extend(record(entry, range));
        }
        bytes
    }

    #[test]
    fn claims_are_bound_to_size_and_digest() {
        let own = entry("a", 100);
        let bytes = file(&own, &[0..10, 20..30]);
        assert_eq!(parse(&bytes, &own).durable, RangeSet::from(vec![(0, 10), (20, 30)]));
        assert_eq!(parse(&bytes, &entry("a", 101)), Claims::default());
        let mut other = own.clone();
        other.digest = Digest::parse(&format!("git-sha1:{}", "0".repeat(40))).unwrap();
        assert_eq!(parse(&bytes, &other), Claims::default());
    }

    #[test]
    fn a_note_is_no_claim() {
        let own = entry("a", 100);
        let mut bytes = file(&own, std::slice::from_ref(&(0..10)));
        bytes.extend(note(&own, &(10..30)));
        bytes.extend(note(&own, &(0..5)));
        bytes.extend(record(&own, &(40..50)));
        let Claims { durable, noted } = parse(&bytes, &own);
        assert_eq!(durable, RangeSet::from(vec![(0, 10), (40, 50)]));
        assert_eq!(noted, RangeSet::from(vec![(0, 5), (10, 30)]));
    }

    #[test]
    fn ranges_past_the_end_and_empty_ranges_end_the_list() {
        let own = entry("a", 100);
        for bad in [90..101, 5..5, Range { start: 9, end: 3 }] {
            assert_eq!(parse(&file(&own, &[0..10, bad, 20..30]), &own).durable, RangeSet::from(0..10));
        }
    }

    proptest! {
        #[test]
        fn a_damaged_tail_never_adds_a_claim(
            cuts in prop::collection::vec((0u64..90, 1u64..10), 0..8),
            at in any::<prop::sample::Index>(),
            flip in 0u8..=255,
        ) {
            let own = entry("a", 100);
            let ranges: Vec<_> = cuts.iter().map(|(start, len)| *start..start + len).collect();
            let whole = file(&own, &ranges);
            let full = parse(&whole, &own).durable;
            prop_assert_eq!(full.len_bytes(), ranges.iter().cloned().flatten().collect::<std::collections::BTreeSet<_>>().len() as u64);
            let mut damaged = whole.clone();
            let at = at.index(damaged.len());
            damaged[at] ^= flip;
            prop_assert!(parse(&damaged, &own).durable.difference(&full).is_empty());
            damaged.truncate(at);
            prop_assert!(parse(&damaged, &own).durable.difference(&full).is_empty());
        }
    }
}
