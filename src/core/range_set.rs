//! Sets of byte ranges of one file.
//!
//! Ranges are half-open `start..end`, in bytes. Invariant: the ranges of a set are sorted, not
//! empty, and neither overlap nor touch, so equal sets have equal representations.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A set of bytes of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct RangeSet(Vec<Range<u64>>);

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a range; an empty one adds nothing.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|r| r.end < range.start);
        let last = self.0.partition_point(|r| r.start <= range.end);
        let mut merged = range;
        if first < last {
            merged.start = merged.start.min(self.0[first].start);
            merged.end = merged.end.max(self.0[last - 1].end);
        }
        self.0.splice(first..last, [merged]);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let first = self.0.partition_point(|r| r.end <= range.start);
        let last = self.0.partition_point(|r| r.start < range.end);
        if first >= last {
            return;
        }
        let left = self.0[first].start..range.start;
        let right = range.end..self.0[last - 1].end;
        self.0.splice(first..last, [left, right].into_iter().filter(|r| !r.is_empty()));
    }

    /// Whether every byte of `range` is in the set.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let at = self.0.partition_point(|r| r.end < range.end);
        self.0.get(at).is_some_and(|r| r.start <= range.start && range.end <= r.end)
    }

    /// Bytes in the set.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.0.iter().map(|r| r.end - r.start).sum()
    }

    /// Whether there is no byte in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the set is the whole of a file of `size` bytes.
    #[must_use]
    pub fn is_whole(&self, size: u64) -> bool {
        self.contains(&(0..size))
    }

    /// End of the run of bytes that starts at `from`; `from` itself when that byte is missing.
    #[must_use]
    pub fn run_end(&self, from: u64) -> u64 {
        let at = self.0.partition_point(|r| r.end <= from);
        self.0.get(at).filter(|r| r.start <= from).map_or(from, |r| r.end)
    }

    /// What is missing of `0..size`.
    #[must_use]
    pub fn missing(&self, size: u64) -> Self {
        let mut rest = Self::from(0..size);
        self.iter().for_each(|range| rest.remove(range));
        rest
    }

    /// The bytes of this set that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut rest = self.clone();
        other.iter().for_each(|range| rest.remove(range));
        rest
    }

    /// Adds every range of `other`.
    pub fn extend(&mut self, other: &Self) {
        other.iter().for_each(|range| self.insert(range));
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.0.iter().cloned()
    }

    /// The first range.
    #[must_use]
    pub fn first(&self) -> Option<Range<u64>> {
        self.0.first().cloned()
    }
}

impl From<Range<u64>> for RangeSet {
    fn from(range: Range<u64>) -> Self {
        let mut set = Self::new();
        set.insert(range);
        set
    }
}

impl From<Vec<(u64, u64)>> for RangeSet {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut set = Self::new();
        for (start, end) in pairs {
            set.insert(start..end);
        }
        set
    }
}

impl From<RangeSet> for Vec<(u64, u64)> {
    fn from(set: RangeSet) -> Self {
        set.0.into_iter().map(|r| (r.start, r.end)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn sets_are_subtracted_and_joined_byte_by_byte_and_survive_being_written(
            one in prop::collection::vec((0u64..64, 0u64..20), 0..12),
            other in prop::collection::vec((0u64..64, 0u64..20), 0..12),
        ) {
            let set = |cuts: &[(u64, u64)]| RangeSet::from(cuts.iter().map(|(at, len)| (*at, at + len)).collect::<Vec<_>>());
            let bytes = |set: &RangeSet| set.iter().flatten().collect::<BTreeSet<_>>();
            let (one, other) = (set(&one), set(&other));
            prop_assert_eq!(bytes(&one.difference(&other)), &bytes(&one) - &bytes(&other));
            let mut both = one.clone();
            both.extend(&other);
            prop_assert_eq!(bytes(&both), &bytes(&one) | &bytes(&other));
            prop_assert_eq!(both.difference(&other), one.difference(&other));
            prop_assert_eq!(serde_json::from_str::<RangeSet>(&serde_json::to_string(&both).unwrap()).unwrap(), both);
        }

        #[test]
        fn a_range_set_is_a_set_of_bytes(
            steps in prop::collection::vec((any::<bool>(), 0u64..64, 0u64..20), 0..40),
            probe in (0u64..64, 0u64..20),
        ) {
            let mut set = RangeSet::new();
            let mut bytes = BTreeSet::new();
            for (add, start, len) in steps {
                let range = start..start + len;
                if add {
                    set.insert(range.clone());
                    bytes.extend(range);
                } else {
                    set.remove(range.clone());
                    bytes.retain(|byte| !range.contains(byte));
                }
                prop_assert!(set.0.iter().all(|r| r.start < r.end));
                prop_assert!(set.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
            prop_assert_eq!(set.iter().flatten().collect::<Vec<_>>(), bytes.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(set.len_bytes(), bytes.len() as u64);
            let range = probe.0..probe.0 + probe.1;
            prop_assert_eq!(set.contains(&range), range.clone().all(|byte| bytes.contains(&byte)));
            let end = (probe.0..u64::MAX).find(|byte| !bytes.contains(byte)).unwrap();
            prop_assert_eq!(set.run_end(probe.0), end);
            prop_assert_eq!(set.missing(84).iter().flatten().collect::<Vec<_>>(), (0..84).filter(|b| !bytes.contains(b)).collect::<Vec<_>>());
        }
    }
}
