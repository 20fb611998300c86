//! One file of the plan: what it lacks, and who may join in.

use super::{STEPS_AHEAD, Way};
use crate::core::range_set::RangeSet;

#[derive(Debug)]
pub(super) struct File {
    pub(super) size: u64,
    pub(super) unassigned: RangeSet,
    pub(super) active: usize,
    pub(super) hashed: u64,
    pub(super) way: Way,
    pub(super) held: bool,
    /// A range was answered with that range.
    pub(super) proven: bool,
    /// How often a slow connection was taken away from it.
    pub(super) relieved: u32,
    /// Whether it was named as one that comes next.
    pub(super) named: bool,
    /// Its place among those that wait.
    pub(super) rank: Option<u64>,
}

impl File {
    pub(super) const fn new(size: u64, missing: RangeSet, way: Way) -> Self {
        Self {
            size,
            unassigned: missing,
            active: 0,
            hashed: 0,
            way,
            held: false,
            proven: false,
            relieved: 0,
            named: false,
            rank: None,
        }
    }

    /// Whether a connection may start on the first missing range beside `others`.
    pub(super) fn may_start(&self, others: usize, step: u64) -> bool {
        let Some(first) = self.unassigned.first() else { return false };
        let ahead = first.start.saturating_sub(self.hashed);
        let near = others == 0 || ahead <= STEPS_AHEAD * step * (others as u64 + 1);
        !self.held && near && (self.active == 0 || self.may_be_shared())
    }

    pub(super) fn may_be_shared(&self) -> bool {
        self.way == Way::Ranges && self.proven && !self.held
    }
}
