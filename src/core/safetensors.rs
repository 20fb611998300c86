//! The header of a safetensors file: does it describe the whole file, and nothing else?
//!
//! The format (`huggingface/safetensors`, README and `safetensors/src/tensor.rs` of 0.8): eight
//! bytes of header length, little-endian; a JSON object of at most 100 MB that gives each tensor a
//! type, a shape and half-open offsets into the data behind the header; and `__metadata__`, texts
//! by name. Invariant: of a header that is accepted, every byte of the data belongs to exactly one
//! tensor, and each takes as many bytes as its shape and type need.
//!
//! The crate `safetensors` is not used, but for the oracle of the tests: it wants the whole file in
//! memory or mapped, refuses types that are newer than itself, keeps the last of two tensors of one
//! name, and does not tell a hole from an overlap. A type unknown here is checked by its offsets.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use thiserror::Error;

use super::structure::plain;

/// Bytes before the header: its length.
pub const PREFIX: usize = 8;
/// Longest header, by the format's own limit.
pub const HEADER_MAX: u64 = 100_000_000;

/// Why a file is no whole safetensors file. Names of tensors are in one line and cut short.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// Not even a length.
    #[error("a file of {size} bytes is too short for a safetensors header")]
    TooShort {
        /// Bytes of the file.
        size: u64,
    },
    /// Longer than [`HEADER_MAX`]: most of the time no safetensors file at all.
    #[error("its first bytes ask for a safetensors header of {len} bytes, and {HEADER_MAX} are the most there may be")]
    TooLong {
        /// Its length, as the file says.
        len: u64,
    },
    /// The file ends inside its header.
    #[error("the safetensors header has {len} bytes, and the file ends after {size}")]
    PastEnd {
        /// Its length, as the file says.
        len: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// No JSON, or of another shape.
    #[error("the safetensors header is not readable: {why}")]
    Json {
        /// What the parser says.
        why: String,
    },
    /// Two tensors of one name.
    #[error("the tensor {name} is listed twice")]
    Twice {
        /// Its name.
        name: String,
    },
    /// A tensor that ends before it starts.
    #[error("the tensor {name} ends before it starts")]
    Backwards {
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
    /// Bytes of no tensor.
    #[error("{count} bytes of data before the tensor {name} belong to no tensor")]
    Hole {
        /// How many.
        count: u64,
        /// The tensor behind them.
        name: String,
    },
    /// A shape of more elements than can be.
    #[error("the shape of the tensor {name} is larger than can be")]
    Overflow {
        /// Its name.
        name: String,
    },
    /// Elements of less than a byte that end within one.
    #[error("the tensor {name} does not end with a whole byte")]
    Unaligned {
        /// Its name.
        name: String,
    },
    /// Offsets that do not fit the shape.
    #[error("the tensor {name} has {found} bytes, and its shape and type need {expected}")]
    Size {
        /// Its name.
        name: String,
        /// By shape and type.
        expected: u64,
        /// By its offsets.
        found: u64,
    },
    /// Bytes behind the last tensor.
    #[error("{count} bytes behind the last tensor belong to no tensor")]
    Trailing {
        /// How many.
        count: u64,
    },
    /// The file ends before its last tensor does.
    #[error("the tensors need {expected} bytes of data, and the file has {found}")]
    Cut {
        /// By the header.
        expected: u64,
        /// In the file.
        found: u64,
    },
}

/// A header that describes its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header<'a> {
    names: Vec<Cow<'a, str>>,
}

impl<'a> Header<'a> {
    /// Length of the header of a file of `size` bytes that begins with `prefix`.
    ///
    /// # Errors
    /// [`HeaderError`] when it does not fit.
    pub fn length(prefix: [u8; PREFIX], size: u64) -> Result<u64, HeaderError> {
        let len = u64::from_le_bytes(prefix);
        let room = size.checked_sub(PREFIX as u64).ok_or(HeaderError::TooShort { size })?;
        if len > HEADER_MAX {
            return Err(HeaderError::TooLong { len });
        }
        if len > room {
            return Err(HeaderError::PastEnd { len, size });
        }
        Ok(len)
    }

    /// Reads the header of a file that has `data` bytes behind it.
    ///
    /// # Errors
    /// [`HeaderError`] names the first tensor that is wrong.
    pub fn read(json: &'a [u8], data: u64) -> Result<Self, HeaderError> {
        let refuse = |error: &dyn fmt::Display| HeaderError::Json { why: plain(&error.to_string()) };
        let text = std::str::from_utf8(json).map_err(|error| refuse(&error))?;
        let Tensors(mut tensors) = serde_json::from_str(text).map_err(|error| refuse(&error))?;
        let mut names = HashSet::with_capacity(tensors.len());
        if let Some((name, _)) = tensors.iter().find(|(name, _)| !names.insert(&**name)) {
            return Err(HeaderError::Twice { name: plain(name) });
        }
        drop(names);
        // Headers in any order are read by everybody; 0.3 of the format's own library wrote them by name.
        tensors.sort_by_key(|(_, tensor)| tensor.data_offsets);
        covers(&tensors, data)?;
        Ok(Self { names: tensors.into_iter().map(|(name, _)| name).collect() })
    }

    /// Names of the tensors, as their data lies in the file.
    #[must_use]
    pub fn names(&self) -> &[Cow<'a, str>] {
        &self.names
    }
}

fn covers(tensors: &[(Cow<'_, str>, Tensor)], data: u64) -> Result<(), HeaderError> {
    let mut end = 0;
    let mut before: &str = "";
    for (name, tensor) in tensors {
        let (start, stop) = tensor.data_offsets;
        if stop < start {
            return Err(HeaderError::Backwards { name: plain(name) });
        }
        if start < end {
            return Err(HeaderError::Overlap { first: plain(before), second: plain(name) });
        }
        if start > end {
            return Err(HeaderError::Hole { count: start - end, name: plain(name) });
        }
        tensor.fits(name)?;
        (end, before) = (stop, name);
    }
    if end < data {
        return Err(HeaderError::Trailing { count: data - end });
    }
    if end > data {
        return Err(HeaderError::Cut { expected: end, found: data });
    }
    Ok(())
}

#[derive(Deserialize)]
struct Tensor {
    dtype: Bits,
    shape: Elements,
    data_offsets: (u64, u64),
}

impl Tensor {
    fn fits(&self, name: &str) -> Result<(), HeaderError> {
        let overflow = || HeaderError::Overflow { name: plain(name) };
        let elements = self.shape.0.ok_or_else(overflow)?;
        let Some(bits) = self.dtype.0 else { return Ok(()) };
        let bits = elements.checked_mul(bits).ok_or_else(overflow)?;
        if bits % 8 != 0 {
            return Err(HeaderError::Unaligned { name: plain(name) });
        }
        let (expected, found) = (bits / 8, self.data_offsets.1 - self.data_offsets.0);
        if expected != found {
            return Err(HeaderError::Size { name: plain(name), expected, found });
        }
        Ok(())
    }
}

/// Elements of a shape; none when they are more than can be.
struct Elements(Option<u64>);

impl<'de> Deserialize<'de> for Elements {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;
        impl<'de> Visitor<'de> for Shape {
            type Value = Elements;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of lengths")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut lengths: A) -> Result<Elements, A::Error> {
                let mut product = Some(1u64);
                while let Some(length) = lengths.next_element()? {
                    product = product.and_then(|product| product.checked_mul(length));
                }
                Ok(Elements(product))
            }
        }
        deserializer.deserialize_seq(Shape)
    }
}

/// A text that is not copied when it has no escapes: a model has hundreds of thousands of names.
pub(super) struct Name<'a>(pub(super) Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(Text)
    }
}

/// Bits of one element; unknown for a type that is newer than this program.
struct Bits(Option<u64>);

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = Bits;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a type")
            }
            fn visit_str<E>(self, word: &str) -> Result<Bits, E> {
                Ok(Bits(bits_of(word)))
            }
        }
        deserializer.deserialize_str(Word)
    }
}

fn bits_of(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BOOL" | "U8" | "I8" | "F8_E5M2" | "F8_E4M3" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" => 8,
        "I16" | "U16" | "F16" | "BF16" => 16,
        "I32" | "U32" | "F32" => 32,
        "I64" | "U64" | "F64" | "C64" => 64,
        _ => return None,
    })
}

/// The object of a header. A map would keep the last of two tensors of one name.
struct Tensors<'a>(Vec<(Cow<'a, str>, Tensor)>);

impl<'de> Deserialize<'de> for Tensors<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Tensors<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Tensors<'de>, A::Error> {
                let (mut tensors, mut metadata) = (Vec::new(), false);
                while let Some(Name(name)) = map.next_key()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut metadata, true) {
                            return Err(A::Error::custom("two entries __metadata__"));
                        }
                        map.next_value::<Option<HashMap<String, String>>>()?;
                    } else {
                        tensors.push((name, map.next_value()?));
                    }
                }
                Ok(Tensors(tensors))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use safetensors::SafeTensors;

    use super::*;

    /// What this module says of the bytes of a whole file.
    fn judge(file: &[u8]) -> Result<Header<'_>, HeaderError> {
        let size = file.len() as u64;
        let prefix = file.first_chunk().copied().ok_or(HeaderError::TooShort { size })?;
        let len = usize::try_from(Header::length(prefix, size)?).unwrap();
        let (json, data) = file[PREFIX..].split_at(len);
        Header::read(json, data.len() as u64)
    }

    fn file(json: &str, data: usize) -> Vec<u8> {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend(json.as_bytes());
        file.resize(file.len() + data, 7);
        file
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},"a":{"dtype":"U8","shape":[3,1],"data_offsets":[0,3]}}  "#;

    #[test]
    fn a_header_that_covers_its_file_is_read_in_the_order_of_the_data() {
        let whole = file(TWO, 11);
        let header = judge(&whole).unwrap();
        assert_eq!(header.names().iter().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(judge(&file("{}", 0)).unwrap().names().len(), 0);
        assert_eq!(judge(&file(r#"{"__metadata__":null}"#, 0)).unwrap().names().len(), 0);
    }

    #[test]
    fn each_way_to_be_wrong_has_its_own_words() {
        let tensor = |name: &str, dtype: &str, shape: &str, start: u64, end: u64| {
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
        };
        let of = |tensors: &[String], data| judge(&file(&format!("{{{}}}", tensors.join(",")), data)).unwrap_err();
        let a = tensor("a", "U8", "[4]", 0, 4);
        for (error, words) in [
            (judge(b"1234").unwrap_err(), "a file of 4 bytes is too short for a safetensors header"),
            (judge(b"version https://git-lfs").unwrap_err(), "are the most there may be"),
            (judge(&file(TWO, 11)[..50]).unwrap_err(), "the file ends after 50"),
            (judge(&file("{]", 0)).unwrap_err(), "is not readable: key must be a string"),
            (judge(&file("[]", 0)).unwrap_err(), "expected an object of tensors"),
            (judge(&file(r#"{"__metadata__":{"a":1}}"#, 0)).unwrap_err(), "expected a string"),
            (of(&[a.clone(), a.clone()], 4), "the tensor a is listed twice"),
            (of(&[a.clone(), tensor("b", "U8", "[4]", 2, 6)], 6), "the tensors a and b overlap"),
            (of(&[a.clone(), tensor("b", "U8", "[4]", 9, 13)], 13), "5 bytes of data before the tensor b"),
            (of(&[tensor("a", "U8", "[4]", 0, 0), tensor("b", "U8", "[0]", 0, 0)], 4), "has 0 bytes, and its shape"),
            (of(&[tensor("a", "F32", "[2]", 0, 4)], 4), "has 4 bytes, and its shape and type need 8"),
            (of(&[tensor("a", "F4", "[3]", 0, 2)], 2), "does not end with a whole byte"),
            (of(&[tensor("a", "U8", "[4294967296,4294967296]", 0, 4)], 4), "larger than can be"),
            (of(std::slice::from_ref(&a), 5), "1 bytes behind the last tensor"),
            (of(std::slice::from_ref(&a), 3), "the tensors need 4 bytes of data, and the file has 3"),
            (of(&[tensor("a", "U8", "[1]", 1, 0)], 0), "ends before it starts"),
        ] {
            assert!(error.to_string().contains(words), "{error}: {words}");
        }
    }

    #[test]
    fn a_type_of_tomorrow_is_checked_by_its_offsets() {
        let header = |end| format!(r#"{{"a":{{"dtype":"F3_E9","shape":[7],"data_offsets":[0,{end}]}}}}"#);
        assert!(judge(&file(&header(5), 5)).is_ok());
        assert_eq!(judge(&file(&header(5), 6)), Err(HeaderError::Trailing { count: 1 }));
    }

    #[test]
    fn a_name_cannot_steer_a_terminal_or_fill_a_screen() {
        let name = format!("\\u001b[2J{}", "x".repeat(5000));
        let whole = file(&format!(r#"{{"{name}":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}}"#), 2);
        let words = judge(&whole).unwrap_err().to_string();
        assert!(words.len() < 300 && !words.chars().any(char::is_control), "{words}");
    }

    /// Tensors that tile their data, and the file.
    fn tiled(tensors: &[(u8, u8, u8)]) -> Vec<u8> {
        let (mut at, mut entries) = (0, Vec::new());
        for (index, (dtype, rows, columns)) in tensors.iter().enumerate() {
            let (dtype, width) =
                [("U8", 1), ("F8_E4M3", 1), ("BF16", 2), ("F32", 4), ("I64", 8)][usize::from(dtype % 5)];
            let end = at + u64::from(*rows) * u64::from(*columns) * width;
            entries.push(format!(
                r#""t{index}":{{"dtype":"{dtype}","shape":[{rows},{columns}],"data_offsets":[{at},{end}]}}"#
            ));
            at = end;
        }
        entries.reverse();
        file(&format!("{{{}}}", entries.join(",")), usize::try_from(at).unwrap())
    }

    proptest! {
        #[test]
        fn what_covers_its_file_passes_and_one_byte_more_or_less_does_not(tensors in prop::collection::vec((0u8..5, 0u8..6, 0u8..6), 0..8)) {
            let mut whole = tiled(&tensors);
            prop_assert_eq!(judge(&whole).map(|header| header.names().len()), Ok(tensors.len()));
            prop_assert!(SafeTensors::read_metadata(&whole).is_ok());
            whole.push(0);
            prop_assert!(judge(&whole).is_err());
            whole.truncate(whole.len() - 2);
            prop_assert!(judge(&whole).is_err());
        }

        #[test]
        fn a_changed_header_is_accepted_exactly_when_the_formats_own_library_accepts_it(
            tensors in prop::collection::vec((0u8..5, 0u8..4, 0u8..4), 1..5),
            changes in prop::collection::vec((any::<prop::sample::Index>(), prop::sample::select(b"0123456789,[]{}\":ab \xff".to_vec())), 1..4),
        ) {
            let mut whole = tiled(&tensors);
            let header = PREFIX + usize::from(whole[0]) + 256 * usize::from(whole[1]);
            for (at, byte) in changes {
                whole[PREFIX + at.index(header - PREFIX)] = byte;
            }
            let (ours, theirs) = (judge(&whole), SafeTensors::read_metadata(&whole));
            if let Ok(theirs) = &theirs {
                // It keeps the last of two of one name.
                let twice = matches!(ours, Err(HeaderError::Twice { .. }));
                prop_assert!(twice || ours.as_ref().is_ok_and(|ours| ours.names().len() == theirs.1.tensors().len()), "{:?}", ours);
            } else if ours.is_ok() {
                let text = theirs.unwrap_err().to_string();
                prop_assert!(text.contains("unknown variant"), "{}", text);
            }
        }
    }
}
