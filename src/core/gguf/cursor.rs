//! Numbers, texts and values of a GGUF head, one behind the other.
//!
//! Invariant: nothing is allocated, and nothing is read that is not there: what is missing is told.

use super::{GgufError, shown};

/// Lists within lists; the format allows any number, its own library none.
const DEPTH_MAX: usize = 8;

/// Why a reading did not come to its end.
pub(super) enum Stop {
    /// The head has at least so many bytes.
    Short(u64),
    /// It says something that cannot be.
    Wrong(GgufError),
}

impl From<GgufError> for Stop {
    fn from(error: GgufError) -> Self {
        Self::Wrong(error)
    }
}

/// Reads numbers and texts, and knows where it is.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    /// Bytes gone past.
    pub(super) at: u64,
    /// Whether counts have 64 bits: not so in version 1.
    pub(super) wide: bool,
    /// Whether the highest byte comes first.
    pub(super) swapped: bool,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, wide: true, swapped: false }
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(len).ok_or(Stop::Short(u64::MAX))?;
        let range = usize::try_from(self.at).ok().zip(usize::try_from(end).ok());
        let bytes = range.and_then(|(start, end)| self.bytes.get(start..end)).ok_or(Stop::Short(end))?;
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Stop> {
        let bytes = self.take(N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        if self.swapped {
            array.reverse();
        }
        Ok(array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Stop> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Stop> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn count(&mut self) -> Result<u64, Stop> {
        if self.wide { self.u64() } else { self.u32().map(u64::from) }
    }

    pub(super) fn text(&mut self) -> Result<&'a [u8], Stop> {
        let len = self.count()?;
        self.take(len)
    }

    /// Goes past a value; returns it when it is a whole number that is not negative.
    pub(super) fn value(&mut self, kind: u32, key: &[u8], depth: usize) -> Result<Option<u64>, Stop> {
        let signed = |number: i64| u64::try_from(number).ok();
        Ok(match kind {
            0 => Some(u64::from(self.array::<1>()?[0])),
            1 => signed(i64::from(i8::from_le_bytes(self.array()?))),
            2 => Some(u64::from(u16::from_le_bytes(self.array()?))),
            3 => signed(i64::from(i16::from_le_bytes(self.array()?))),
            4 => Some(u64::from(self.u32()?)),
            5 => signed(i64::from(i32::from_le_bytes(self.array()?))),
            10 => Some(self.u64()?),
            11 => signed(i64::from_le_bytes(self.array()?)),
            8 => {
                self.text()?;
                None
            }
            9 if depth < DEPTH_MAX => {
                self.list(key, depth)?;
                None
            }
            _ => {
                let bytes = width(kind).ok_or_else(|| GgufError::Kind { key: shown(key), found: kind })?;
                self.take(bytes)?;
                None
            }
        })
    }

    fn list(&mut self, key: &[u8], depth: usize) -> Result<(), Stop> {
        let kind = self.u32()?;
        let count = self.count()?;
        if let Some(bytes) = width(kind) {
            let bytes = count.checked_mul(bytes).ok_or(Stop::Short(u64::MAX))?;
            self.take(bytes)?;
            return Ok(());
        }
        for _ in 0..count {
            self.value(kind, key, depth + 1)?;
        }
        Ok(())
    }
}

/// Bytes of a value of a type that always has as many.
const fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
