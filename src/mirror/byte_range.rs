//! The `Range` request header: which bytes of a file an answer carries.
//!
//! Only a single range is answered in part. A header that is malformed, of another unit or of
//! several ranges is ignored, as RFC 9110 §14.2 allows, and the answer is the whole file.

use std::ops::Range;

/// What a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// Everything, with status 200.
    Whole,
    /// These bytes, with status 206; never empty.
    Part(Range<u64>),
    /// Nothing that exists, status 416.
    Unsatisfiable,
}

/// Reads a `Range` header for a file of `size` bytes.
pub fn asked(header: Option<&str>, size: u64) -> Asked {
    let Some((first, last)) = header.and_then(single_range) else {
        return Asked::Whole;
    };
    let range = match (first, last) {
        (Some(first), last) => {
            if last.is_some_and(|last| last < first) {
                return Asked::Whole;
            }
            first..last.map_or(size, |last| last.saturating_add(1).min(size))
        }
        (None, Some(suffix)) => size.saturating_sub(suffix)..size,
        (None, None) => return Asked::Whole,
    };
    if range.is_empty() { Asked::Unsatisfiable } else { Asked::Part(range) }
}

fn single_range(header: &str) -> Option<(Option<u64>, Option<u64>)> {
    let (unit, spec) = header.split_once('=')?;
    let (first, last) = spec.trim().split_once('-')?;
    let number = |text: &str| -> Option<Option<u64>> {
        match text {
            "" => Some(None),
            _ if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok().map(Some),
            _ => None,
        }
    };
    unit.trim().eq_ignore_ascii_case("bytes").then_some((number(first)?, number(last)?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn single_ranges_are_cut_to_the_file() {
        for (header, expected) in [
            ("bytes=0-0", Asked::Part(0..1)),
            ("bytes=2-4", Asked::Part(2..5)),
            ("bytes=2-", Asked::Part(2..10)),
            ("bytes=-3", Asked::Part(7..10)),
            ("bytes=-30", Asked::Part(0..10)),
            ("bytes=9-99", Asked::Part(9..10)),
            ("Bytes= 1-2", Asked::Part(1..3)),
            ("bytes=10-", Asked::Unsatisfiable),
            ("bytes=10-20", Asked::Unsatisfiable),
            ("bytes=-0", Asked::Unsatisfiable),
        ] {
            assert_eq!(asked(Some(header), 10), expected, "{header}");
        }
        assert_eq!(asked(Some("bytes=0-"), 0), Asked::Unsatisfiable);
        assert_eq!(asked(Some("bytes=1-18446744073709551615"), 10), Asked::Part(1..10));
    }

    #[test]
    fn what_is_no_single_range_is_ignored() {
        for header in ["bytes=4-2", "bytes=0-1,4-5", "lines=0-1", "bytes=-", "bytes=a-b", "bytes", "bytes=+1-2", ""] {
            assert_eq!(asked(Some(header), 10), Asked::Whole, "{header}");
        }
        assert_eq!(asked(None, 10), Asked::Whole);
    }

    proptest! {
        #[test]
        fn a_part_is_never_empty_and_inside_the_file(first in any::<Option<u64>>(), last in any::<Option<u64>>(), size in 0u64..100) {
            let text = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
            if let Asked::Part(range) = asked(Some(&format!("bytes={}-{}", text(first), text(last))), size) {
                prop_assert!(range.start < range.end && range.end <= size);
            }
        }
    }
}
