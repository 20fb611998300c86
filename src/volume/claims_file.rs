//! The claims file beside a partial.
//!
//! Invariants: a range is claimed only by a caller that has synced it, and a claim counts only once
//! [`Unsynced::sync`] has returned; a note promises nothing but that the range was written. The
//! file stays small: it is written anew when its records outgrow what they say. The format is
//! `core::claims`'s.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::sync::Arc;

use super::dir::Dir;
use super::error::{Result, Step, VolumeError};
use super::partial::Place;
use super::small_file::Temp;
use super::sync;
use super::writer::PartialName;
use crate::core::claims::{self, Claims};
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;

/// Most bytes of claims that are read.
const LIMIT: u64 = 32 << 20;
/// Length at which a claims file is written anew, in bytes: 200,000 records.
const REWRITE_AT: usize = 4 << 20;

/// An open claims file.
#[derive(Debug)]
pub(super) struct ClaimsFile {
    file: Arc<File>,
    /// Whether its name is durable.
    named: bool,
    durable: RangeSet,
    len: usize,
}

/// Claims that were written and wait for their sync.
#[must_use = "a claim that is not synced may be gone after a power cut"]
pub(super) struct Unsynced {
    file: Arc<File>,
    named: bool,
}

impl ClaimsFile {
    /// Begins the claims of a new partial. Nothing of it is durable yet.
    pub(super) fn begin(place: &Place) -> Result<Self> {
        let name = place.name.claims();
        // Claims of a partial that is gone.
        place.dir.remove(&name)?;
        let file = Arc::new(place.dir.create_file(&name)?);
        let mut this = Self { file, named: false, durable: RangeSet::new(), len: 0 };
        this.append(place, &claims::header(&place.entry))?;
        stay_beside(place)?;
        Ok(this)
    }

    /// Makes the claims file of a partial, with these ranges in it. An earlier one stands until
    /// the new one is durable. Both names, the partial's and its own, are durable afterwards.
    pub(super) fn create(place: &Place, durable: &RangeSet) -> Result<Self> {
        let Place { dir, name, entry } = place;
        let claims = name.claims();
        let temp = Temp::create(dir, "claims")?;
        // The same open file under another descriptor: it goes on where this one ends.
        let file = temp.file.try_clone().map_err(|e| VolumeError::new(Step::Create, dir.shown(&claims), e))?;
        let mut this = Self { file: Arc::new(file), named: true, durable: durable.clone(), len: 0 };
        let mut bytes = claims::header(entry).to_vec();
        durable.iter().for_each(|range| bytes.extend(claims::record(entry, &range)));
        this.append(place, &bytes)?;
        Unsynced { file: Arc::clone(&this.file), named: true }.sync(place)?;
        temp.rename_to(&claims)?;
        dir.sync()?;
        Ok(this)
    }

    /// As [`Self::create`], for a partial that has its name already.
    ///
    /// # Errors
    /// Also when the partial is gone.
    pub(super) fn create_beside(place: &Place, durable: &RangeSet) -> Result<Self> {
        let this = Self::create(place, durable)?;
        stay_beside(place)?;
        Ok(this)
    }

    /// Adds ranges that were synced before. They are claimed once the result was synced.
    pub(super) fn claim(&mut self, place: &Place, ranges: &RangeSet) -> Result<Unsynced> {
        self.durable.extend(ranges);
        if self.len > REWRITE_AT {
            *self = Self::create_beside(place, &self.durable)?;
        } else {
            let bytes: Vec<u8> = ranges.iter().flat_map(|range| claims::record(&place.entry, &range)).collect();
            self.append(place, &bytes)?;
        }
        Ok(Unsynced { file: Arc::clone(&self.file), named: std::mem::replace(&mut self.named, true) })
    }

    /// Adds ranges that were written and may still be lost with the machine.
    pub(super) fn note(&mut self, place: &Place, ranges: &RangeSet) -> Result<()> {
        let bytes: Vec<u8> = ranges.iter().flat_map(|range| claims::note(&place.entry, &range)).collect();
        self.append(place, &bytes)
    }

    fn append(&mut self, place: &Place, bytes: &[u8]) -> Result<()> {
        self.len += bytes.len();
        (&*self.file)
            .write_all(bytes)
            .map_err(|e| VolumeError::new(Step::Write, place.dir.shown(&place.name.claims()), e))
    }
}

impl Unsynced {
    /// Makes the claims durable, and once both names beside each other.
    pub(super) fn sync(self, place: &Place) -> Result<()> {
        sync::data(&self.file, "claims")
            .map_err(|e| VolumeError::new(Step::Sync, place.dir.shown(&place.name.claims()), e))?;
        if self.named { Ok(()) } else { place.dir.sync() }
    }
}

/// Takes a new claims file away again when its partial is gone: its writer lost the volume while it
/// worked, and claims of nothing would stay behind.
///
/// # Errors
/// When the partial is gone.
pub(super) fn stay_beside(place: &Place) -> Result<()> {
    let Place { dir, name, .. } = place;
    if dir.look(&name.partial())?.is_none() && dir.look(&name.fenced())?.is_none() {
        dir.remove(&name.claims())?;
        return Err(VolumeError::new(Step::Look, place.shown(), rustix::io::Errno::NOENT));
    }
    Ok(())
}

/// What the claims beside a partial say.
#[derive(Debug, Default)]
pub(super) struct Claimed {
    /// What they prove; nothing when there are none or they are unusable.
    pub(super) claims: Claims,
    /// Whether they are of another content: then the partial is, too.
    pub(super) of_other: bool,
}

impl Claimed {
    /// What of the partial is there, when the boot that wrote it is still running or not.
    pub(super) fn trusted(self, same_boot: bool) -> RangeSet {
        let Claims { mut durable, noted } = self.claims;
        if same_boot {
            durable.extend(&noted);
        }
        durable
    }
}

/// What the claims of a partial prove durable; nothing when there are none or they are unusable.
pub(super) fn read(dir: &Dir, name: &PartialName, entry: &FileEntry) -> Result<RangeSet> {
    look(dir, name, entry).map(|claimed| claimed.claims.durable)
}

/// What the claims of a partial say.
pub(super) fn look(dir: &Dir, name: &PartialName, entry: &FileEntry) -> Result<Claimed> {
    let file = match dir.open_file(&name.claims()) {
        Err(error) if error.is_missing() => return Ok(Claimed::default()),
        other => other?,
    };
    let mut bytes = Vec::new();
    file.take(LIMIT).read_to_end(&mut bytes).map_err(|e| VolumeError::new(Step::Read, dir.shown(&name.claims()), e))?;
    Ok(Claimed { claims: claims::parse(&bytes, entry), of_other: claims::are_of_other(&bytes, entry) })
}
