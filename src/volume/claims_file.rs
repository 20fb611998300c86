//! The claims file beside a partial.
//!
//! Invariant: a record is appended only by a caller that has synced the record's range, and an
//! append returns only when the record itself is durable. The format is `core::claims`'s.

use std::fs::File;
use std::io::{Read as _, Write as _};

use super::dir::Dir;
use super::error::{Result, Step, VolumeError};
use super::small_file::Temp;
use super::sync;
use super::writer::PartialName;
use crate::core::claims;
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;

/// Most bytes of claims that are read: 1.6 million records, far beyond one a checkpoint.
const LIMIT: u64 = 32 << 20;

/// An open claims file.
#[derive(Debug)]
pub(super) struct ClaimsFile {
    file: File,
}

impl ClaimsFile {
    /// Makes the claims file of a partial, with these ranges in it. An earlier one stands until
    /// the new one is durable. Both names, the partial's and its own, are durable afterwards.
    pub(super) fn create(dir: &Dir, name: &PartialName, entry: &FileEntry, ranges: &RangeSet) -> Result<Self> {
        let claims = name.claims();
        let temp = Temp::create(dir, "claims")?;
        // The same open file under another descriptor: it goes on where this one ends.
        let file = temp.file.try_clone().map_err(|e| VolumeError::new(Step::Create, dir.shown(&claims), e))?;
        let mut this = Self { file };
        let mut bytes = claims::header(entry).to_vec();
        ranges.iter().for_each(|range| bytes.extend(claims::record(entry, &range)));
        this.write(&bytes).map_err(|(step, e)| VolumeError::new(step, dir.shown(&claims), e))?;
        temp.rename_to(&claims)?;
        dir.sync()?;
        Ok(this)
    }

    /// Adds ranges that were synced before.
    pub(super) fn append(&mut self, dir: &Dir, name: &PartialName, entry: &FileEntry, ranges: &RangeSet) -> Result<()> {
        let bytes: Vec<u8> = ranges.iter().flat_map(|range| claims::record(entry, &range)).collect();
        self.write(&bytes).map_err(|(step, e)| VolumeError::new(step, dir.shown(&name.claims()), e))
    }

    fn write(&mut self, bytes: &[u8]) -> std::result::Result<(), (Step, std::io::Error)> {
        self.file.write_all(bytes).map_err(|e| (Step::Write, e))?;
        sync::data(&self.file, "claims").map_err(|e| (Step::Sync, e))
    }
}

/// What the claims beside a partial say.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// What they prove durable; nothing when there are none or they are unusable.
    pub(super) ranges: RangeSet,
    /// Whether they are of another content: then the partial is, too.
    pub(super) of_other: bool,
}

/// What the claims of a partial prove durable; nothing when there are none or they are unusable.
pub(super) fn read(dir: &Dir, name: &PartialName, entry: &FileEntry) -> Result<RangeSet> {
    look(dir, name, entry).map(|claimed| claimed.ranges)
}

/// What the claims of a partial say.
pub(super) fn look(dir: &Dir, name: &PartialName, entry: &FileEntry) -> Result<Claimed> {
    let file = match dir.open_file(&name.claims()) {
        Err(error) if error.is_missing() => return Ok(Claimed::default()),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes).map_err(|e| VolumeError::new(Step::Read, dir.shown(&name.claims()), e))?;
    Ok(Claimed { ranges: claims::parse(&bytes, entry), of_other: claims::are_of_other(&bytes, entry) })
}
