//! The head of a GGUF file: does it describe the whole file, and which part of a split is it?
//!
//! The format (`ggml-org/ggml`, `docs/gguf.md`; types and sizes as in `gguf-py` 0.19): magic,
//! version, counts, metadata by key, a name, shape, type and offset for each tensor, then, aligned,
//! the data. Versions 2 and 3 in either byte order, and 1 with its shorter counts. Invariant: in a
//! file that is accepted the tensors lie one behind the other, each begins aligned, and at most
//! padding is between them and behind the last.
//!
//! The GGUF readers on crates.io allocate what a count in the file asks for, or want the whole file
//! mapped; none says whether the file is complete. Here nothing is allocated but for bytes that are
//! there. The head says nothing of its own length: [`read`] asks for more until it has it all.

mod cursor;

use std::collections::HashSet;

use thiserror::Error;

use self::cursor::{Cursor, Stop};
use super::structure::plain;

/// Longest head that is read: metadata (vocabularies are most of it, some 10 MB) and tensor infos.
pub const HEAD_MAX: u64 = 100_000_000;
/// Alignment of a file that names none.
const ALIGNMENT: u64 = 32;

/// Why a file is no whole GGUF file. Names are in one line and cut short.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum GgufError {
    /// Other first bytes.
    #[error("it does not begin with GGUF")]
    Magic,
    /// A version that this program does not know.
    #[error("its GGUF version {found} is unknown to this program")]
    Version {
        /// The version.
        found: u32,
    },
    /// The file ends inside its head.
    #[error("the file ends inside its GGUF head, after {size} bytes")]
    PastEnd {
        /// Bytes of the file.
        size: u64,
    },
    /// Longer than [`HEAD_MAX`].
    #[error("its GGUF head is longer than {HEAD_MAX} bytes")]
    TooLong,
    /// A type of metadata that the format does not have.
    #[error("the metadata {key} has the type {found}, which GGUF does not have")]
    Kind {
        /// Its key.
        key: String,
        /// The type.
        found: u32,
    },
    /// The same key or name again.
    #[error("{name} is listed twice")]
    Twice {
        /// Key of metadata, or name of a tensor.
        name: String,
    },
    /// An alignment that is no power of two.
    #[error("its alignment of {found} bytes is no power of two")]
    Alignment {
        /// The alignment.
        found: u64,
    },
    /// A shape that cannot be.
    #[error("the shape of the tensor {name} does not fit its type")]
    Shape {
        /// Its name.
        name: String,
    },
    /// Not where the alignment has it begin.
    #[error("the tensor {name} is not aligned")]
    Unaligned {
        /// Its name.
        name: String,
    },
    /// Two tensors in one place.
    #[error("the tensors {first} and {second} overlap")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The other.
        second: String,
    },
    /// More than padding before a tensor.
    #[error("{count} bytes of data before the tensor {name} belong to no tensor")]
    Hole {
        /// How many.
        count: u64,
        /// The tensor behind them.
        name: String,
    },
    /// More than padding behind the last tensor.
    #[error("{count} bytes behind the last tensor belong to no tensor")]
    Trailing {
        /// How many.
        count: u64,
    },
    /// The file ends before its last tensor does.
    #[error("the tensors need a file of {expected} bytes, and it has {found}")]
    Cut {
        /// By the head.
        expected: u64,
        /// In the file.
        found: u64,
    },
}

/// What the head of a whole file says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gguf {
    /// Tensors in this file.
    pub tensors: u64,
    /// `split.no`: which part this is, from 0.
    pub split_no: Option<u64>,
    /// `split.count`: how many parts there are.
    pub split_count: Option<u64>,
    /// `split.tensors.count`: tensors of all parts together.
    pub split_tensors: Option<u64>,
}

/// How far a reading came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reading {
    /// To the end of the head.
    Done(Gguf),
    /// The head has at least so many bytes, and more than were given.
    More(u64),
}

/// Reads the first bytes of a file of `size` bytes.
///
/// # Errors
/// [`GgufError`] names the first thing that is wrong.
pub fn read(head: &[u8], size: u64) -> Result<Reading, GgufError> {
    let mut cursor = Cursor::new(head);
    match whole(&mut cursor, size) {
        Ok(gguf) => Ok(Reading::Done(gguf)),
        Err(Stop::Wrong(error)) => Err(error),
        Err(Stop::Short(need)) if need > size => Err(GgufError::PastEnd { size }),
        Err(Stop::Short(need)) if need > HEAD_MAX => Err(GgufError::TooLong),
        Err(Stop::Short(need)) => Ok(Reading::More(need)),
    }
}

fn whole(cursor: &mut Cursor<'_>, size: u64) -> Result<Gguf, Stop> {
    if cursor.take(4)? != b"GGUF" {
        return Err(GgufError::Magic.into());
    }
    let version = cursor.u32()?;
    // In the other byte order the version is at the other end.
    cursor.swapped = version != 0 && version.trailing_zeros() >= 16;
    let version = if cursor.swapped { version.swap_bytes() } else { version };
    if !(1..=3).contains(&version) {
        return Err(GgufError::Version { found: version }.into());
    }
    cursor.wide = version > 1;
    let (count, pairs) = (cursor.count()?, cursor.count()?);
    let mut gguf = Gguf { tensors: count, ..Gguf::default() };
    let alignment = metadata(cursor, pairs, &mut gguf)?;
    let tensors = infos(cursor, count)?;
    let start = padded(cursor.at, alignment).ok_or(Stop::Short(u64::MAX))?;
    covers(tensors, alignment, (cursor.at, start), size)?;
    Ok(gguf)
}

/// Goes through the metadata; returns the alignment.
fn metadata(cursor: &mut Cursor<'_>, pairs: u64, gguf: &mut Gguf) -> Result<u64, Stop> {
    let (mut keys, mut alignment) = (HashSet::new(), ALIGNMENT);
    for _ in 0..pairs {
        let key = cursor.text()?;
        if !keys.insert(key) {
            return Err(GgufError::Twice { name: shown(key) }.into());
        }
        let kind = cursor.u32()?;
        let number = cursor.value(kind, key, 0)?;
        match key {
            b"general.alignment" => alignment = number.unwrap_or(ALIGNMENT),
            b"split.no" => gguf.split_no = number,
            b"split.count" => gguf.split_count = number,
            b"split.tensors.count" => gguf.split_tensors = number,
            _ => {}
        }
    }
    if !alignment.is_power_of_two() {
        return Err(GgufError::Alignment { found: alignment }.into());
    }
    Ok(alignment)
}

/// A tensor by its info.
struct Info<'a> {
    name: &'a [u8],
    offset: u64,
    /// Unknown for a type that is newer than this program.
    bytes: Option<u64>,
}

fn infos<'a>(cursor: &mut Cursor<'a>, count: u64) -> Result<Vec<Info<'a>>, Stop> {
    let (mut names, mut infos) = (HashSet::new(), Vec::new());
    for _ in 0..count {
        let name = cursor.text()?;
        if !names.insert(name) {
            return Err(GgufError::Twice { name: shown(name) }.into());
        }
        let shape = || GgufError::Shape { name: shown(name) };
        let dimensions = cursor.u32()?;
        let (mut elements, mut row) = (1u64, None);
        for _ in 0..dimensions {
            let length = cursor.count()?;
            elements = elements.checked_mul(length).ok_or_else(shape)?;
            row = row.or(Some(length));
        }
        let kind = cursor.u32()?;
        let offset = cursor.u64()?;
        let bytes = match block(kind) {
            None => None,
            // Blocks do not go over the end of a row.
            Some((block, _)) if row.unwrap_or(1) % block != 0 => return Err(shape().into()),
            Some((block, bytes)) => Some((elements / block).checked_mul(bytes).ok_or_else(shape)?),
        };
        infos.push(Info { name, offset, bytes });
    }
    Ok(infos)
}

/// `(end, start)` are the end of the head and, aligned, the start of the data.
fn covers(mut infos: Vec<Info<'_>>, alignment: u64, (end, start): (u64, u64), size: u64) -> Result<(), GgufError> {
    infos.sort_by_key(|info| (info.offset, info.bytes));
    let room = size.saturating_sub(start);
    let (mut at, mut before): (u64, &[u8]) = (0, b"");
    for (index, info) in infos.iter().enumerate() {
        let Info { name, offset, bytes } = *info;
        if offset % alignment != 0 {
            return Err(GgufError::Unaligned { name: shown(name) });
        }
        if offset < at {
            return Err(GgufError::Overlap { first: shown(before), second: shown(name) });
        }
        let expected = padded(at, alignment).unwrap_or(u64::MAX);
        if offset > expected {
            return Err(GgufError::Hole { count: offset - expected, name: shown(name) });
        }
        // What an unknown type takes shows in where the next one starts.
        let next = || infos.get(index + 1).map_or(room, |next| next.offset);
        let bytes = bytes.unwrap_or_else(|| next().saturating_sub(offset));
        at = offset.checked_add(bytes).ok_or_else(|| GgufError::Shape { name: shown(name) })?;
        before = name;
    }
    let end = if infos.is_empty() { end } else { start.saturating_add(at) };
    if size < end {
        return Err(GgufError::Cut { expected: end, found: size });
    }
    match padded(end, alignment) {
        Some(padded) if size > padded => Err(GgufError::Trailing { count: size - padded }),
        _ => Ok(()),
    }
}

fn padded(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

fn shown(name: &[u8]) -> String {
    plain(&String::from_utf8_lossy(name))
}

/// Elements in a block of a type, and its bytes (`GGML_QUANT_SIZES`).
fn block(kind: u32) -> Option<(u64, u64)> {
    Some(match kind {
        0 | 26 => (1, 4),      // F32, I32
        1 | 25 | 30 => (1, 2), // F16, I16, BF16
        24 => (1, 1),          // I8
        27 | 28 => (1, 8),     // I64, F64
        2 | 20 => (32, 18),    // Q4_0, IQ4_NL
        3 => (32, 20),         // Q4_1
        6 => (32, 22),         // Q5_0
        7 => (32, 24),         // Q5_1
        8 => (32, 34),         // Q8_0
        9 => (32, 40),         // Q8_1
        10 => (256, 84),       // Q2_K
        11 | 21 => (256, 110), // Q3_K, IQ3_S
        12 => (256, 144),      // Q4_K
        13 => (256, 176),      // Q5_K
        14 => (256, 210),      // Q6_K
        15 => (256, 292),      // Q8_K
        16 | 35 => (256, 66),  // IQ2_XXS, TQ2_0
        17 => (256, 74),       // IQ2_XS
        18 => (256, 98),       // IQ3_XXS
        19 => (256, 50),       // IQ1_S
        22 => (256, 82),       // IQ2_S
        23 => (256, 136),      // IQ4_XS
        29 => (256, 56),       // IQ1_M
        34 => (256, 54),       // TQ1_0
        39 => (32, 17),        // MXFP4
        40 => (64, 36),        // NVFP4
        41 => (128, 18),       // Q1_0
        _ => return None,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Writes files, in either byte order.
    pub(crate) struct Writer {
        pub(crate) bytes: Vec<u8>,
        swapped: bool,
    }

    impl Writer {
        fn number(&mut self, mut bytes: Vec<u8>) {
            if self.swapped {
                bytes.reverse();
            }
            self.bytes.extend(bytes);
        }
        fn u32(&mut self, number: u32) {
            self.number(number.to_le_bytes().to_vec());
        }
        fn u64(&mut self, number: u64) {
            self.number(number.to_le_bytes().to_vec());
        }
        fn text(&mut self, text: &str) {
            self.u64(text.len() as u64);
            self.bytes.extend(text.as_bytes());
        }
        fn pad(&mut self) {
            self.bytes.resize(self.bytes.len().next_multiple_of(32), 0);
        }
    }

    /// A whole file: metadata of several types, tensors of so many F32, and padding at its end.
    fn file(swapped: bool, split: Option<(u16, u16, i32)>, tensors: &[u64]) -> Vec<u8> {
        let mut w = Writer { bytes: b"GGUF".to_vec(), swapped };
        w.u32(3);
        w.u64(tensors.len() as u64);
        w.u64(if split.is_some() { 6 } else { 3 });
        w.text("general.architecture");
        w.u32(8);
        w.text("llama");
        w.text("tokenizer.ggml.tokens");
        w.u32(9);
        w.u32(8);
        w.u64(2);
        w.text("a");
        w.text("b");
        w.text("tokenizer.ggml.scores");
        w.u32(9);
        w.u32(6);
        w.u64(3);
        w.bytes.extend([0; 12]);
        if let Some((no, count, all)) = split {
            w.text("split.no");
            w.u32(2);
            w.number(no.to_le_bytes().to_vec());
            w.text("split.count");
            w.u32(2);
            w.number(count.to_le_bytes().to_vec());
            w.text("split.tensors.count");
            w.u32(5);
            w.number(all.to_le_bytes().to_vec());
        }
        let mut offset = 0;
        for (index, elements) in tensors.iter().enumerate() {
            w.text(&format!("blk.{index}.weight"));
            w.u32(1);
            w.u64(*elements);
            w.u32(0);
            w.u64(offset);
            offset += (elements * 4).next_multiple_of(32);
        }
        w.pad();
        w.bytes.resize(w.bytes.len() + usize::try_from(offset).unwrap(), 1);
        w.bytes
    }

    fn judge(file: &[u8]) -> Result<Gguf, GgufError> {
        // As a reader does: more and more of it, until it is enough.
        let mut len = 16.min(file.len());
        for _ in 0..64 {
            match read(&file[..len], file.len() as u64)? {
                Reading::Done(gguf) => return Ok(gguf),
                Reading::More(need) => {
                    let need = usize::try_from(need).unwrap();
                    assert!(need > len && need <= file.len(), "{need} of {}, {len} given", file.len());
                    len = need.max(2 * len).min(file.len());
                }
            }
        }
        panic!("the reading does not end");
    }

    #[test]
    fn a_whole_file_is_accepted_in_either_byte_order_and_with_or_without_its_last_padding() {
        for swapped in [false, true] {
            let whole = file(swapped, Some((1, 3, 40)), &[5, 8, 0, 3]);
            let gguf = Gguf { tensors: 4, split_no: Some(1), split_count: Some(3), split_tensors: Some(40) };
            assert_eq!(judge(&whole), Ok(gguf.clone()));
            assert_eq!(judge(&whole[..whole.len() - 20]), Ok(gguf));
            assert_eq!(judge(&whole[..whole.len() - 21]).unwrap_err().to_string().split(',').count(), 2);
        }
        let none = file(false, None, &[]);
        assert_eq!(judge(&none).unwrap().tensors, 0);
    }

    #[test]
    fn each_way_to_be_wrong_has_its_own_words() {
        let whole = file(false, None, &[8, 8]);
        let with = |at: usize, bytes: &[u8]| {
            let mut file = whole.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            judge(&file).unwrap_err().to_string()
        };
        let longer = [whole.clone(), vec![0; 9]].concat();
        let position = |needle: &[u8]| whole.windows(needle.len()).rposition(|window| window == needle).unwrap();
        let last = position(b"blk.1.weight");
        let offset = last + 12 + 4 + 8 + 4;
        for (error, words) in [
            (with(0, b"version "), "it does not begin with GGUF"),
            (with(4, &[9, 0, 0, 0]), "version 9 is unknown"),
            (judge(&whole[..100]).unwrap_err().to_string(), "ends inside its GGUF head, after 100 bytes"),
            (judge(&whole[..whole.len() - 1]).unwrap_err().to_string(), "the tensors need a file of"),
            (judge(&longer).unwrap_err().to_string(), "9 bytes behind the last tensor"),
            (with(offset, &[0]), "the tensors blk.0.weight and blk.1.weight overlap"),
            (with(offset, &[64]), "32 bytes of data before the tensor blk.1.weight"),
            (with(offset, &[33]), "the tensor blk.1.weight is not aligned"),
            (with(last, b"blk.0"), "blk.0.weight is listed twice"),
            (with(offset - 4, &[2]), "the shape of the tensor blk.1.weight does not fit its type"),
            (with(8, &[255; 8]), "the shape of the tensor "),
            (with(position(b"tokenizer.ggml.scores") + 21, &[77]), "has the type 77, which GGUF does not have"),
        ] {
            assert!(error.contains(words), "{error}: {words}");
        }
    }

    #[test]
    fn a_type_of_tomorrow_is_checked_by_its_offsets() {
        let whole = file(false, None, &[8, 8]);
        let first = whole.windows(5).position(|window| window == b"blk.0").unwrap() + 12 + 4 + 8;
        let mut file = whole.clone();
        file[first] = 200;
        assert!(judge(&file).is_ok());
    }

    proptest! {
        #[test]
        fn whole_files_pass_and_a_byte_more_than_padding_does_not(tensors in prop::collection::vec(0u64..40, 0..6), swapped in any::<bool>(), more in 1usize..40) {
            let whole = file(swapped, None, &tensors);
            prop_assert_eq!(judge(&whole).unwrap().tensors, tensors.len() as u64);
            let longer = [whole.clone(), vec![0; more]].concat();
            prop_assert!(judge(&longer).is_err());
            let padding = tensors.iter().rposition(|n| *n > 0).map_or(31, |last| (32 - tensors[last] * 4 % 32) % 32);
            let shorter = &whole[..whole.len().saturating_sub(usize::try_from(padding).unwrap() + more)];
            prop_assert!(judge(shorter).is_err());
        }

        #[test]
        fn no_change_of_a_head_breaks_the_reader(tensors in prop::collection::vec(0u64..40, 0..4), changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
            let mut whole = file(false, Some((0, 2, 7)), &tensors);
            let len = whole.len();
            for (at, byte) in changes {
                whole[at.index(len)] = byte;
            }
            if let Err(error) = judge(&whole) {
                prop_assert!(!error.to_string().chars().any(char::is_control));
            }
        }
    }
}
