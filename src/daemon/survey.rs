//! What of a manifest is in a model directory already.
//!
//! Compares names, identities and records; hashes only what no record speaks for. It changes
//! nothing: what has to go is listed, and moved by whoever may.

use std::collections::HashMap;

use super::error::WorkError;
use crate::core::identity::Observed;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::plan::FileId;
use crate::core::reason::Why;
use crate::core::receipt::{FileRecord, Proved, recorded_files};
use crate::core::repo_path::RepoPath;
use crate::gate::hash::{Pages, hash_files};
use crate::volume::{ModelDir, VolumeError};

/// Every record of ours that may speak for a file, newest knowledge last.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<RepoPath, Vec<FileRecord>>);

/// What is to happen to a file that has a name it must not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Displace {
    /// Right for an older commit.
    Retire,
    /// Right for none we know.
    Quarantine,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Files that are in place, each with its proof.
    pub(super) proved: Vec<FileRecord>,
    /// Files to fetch.
    pub(super) wanted: Vec<FileId>,
    /// Files that are in the way.
    pub(super) displaced: Vec<(RepoPath, Displace)>,
    /// Whether a file was hashed because no record spoke for it as it is now.
    pub(super) rehashed: bool,
}

impl Known {
    /// Reads the receipts of the directory and adds what the store remembers.
    pub(super) fn load(model: &ModelDir, stored: Vec<FileRecord>) -> Result<Self, VolumeError> {
        let mut known = Self::default();
        let receipts = [model.previous_receipt_bytes()?, model.receipt_bytes()?];
        let received = receipts.into_iter().flatten().flat_map(|bytes| recorded_files(&bytes));
        for record in received.chain(stored) {
            known.0.entry(record.path.clone()).or_default().push(record);
        }
        Ok(known)
    }

    /// The record of the file as it is now.
    fn of(&self, path: &RepoPath, observed: &Observed) -> Option<&FileRecord> {
        let Observed::Present(identity) = observed else { return None };
        self.0.get(path)?.iter().rev().find(|record| record.identity == *identity)
    }
}

/// Looks at every file of the manifest, and at the files of ours that it has no longer. Blocks.
/// `on_bytes` hears of every read.
pub(super) fn survey(
    model: &ModelDir,
    manifest: &Manifest,
    known: &Known,
    on_bytes: &(dyn Fn(u64) + Sync),
) -> Result<Survey, WorkError> {
    let mut survey = Survey::default();
    let mut unknown = Vec::new();
    for (at, entry) in manifest.files().iter().enumerate() {
        let observed = model.observe(&entry.path);
        match (&observed, known.of(&entry.path, &observed)) {
            (_, Some(record)) if record.proves(entry) => survey.proved.push(record.clone()),
            (_, Some(_)) => survey.displace(at, entry, Displace::Retire),
            (Observed::Missing, None) => survey.wanted.push(FileId(at)),
            (Observed::NotRegular, None) => return Err(WorkError::NotAFile { path: entry.path.clone() }),
            (Observed::Unreadable { why }, None) => {
                return Err(WorkError::Unreadable { path: entry.path.clone(), why: why.clone() });
            }
            (Observed::Present(identity), None) if identity.size != entry.size => {
                survey.displace(at, entry, Displace::Quarantine);
            }
            (Observed::Present(_), None) => unknown.push(at),
        }
    }
    survey.hash(model, manifest, &unknown, on_bytes)?;
    survey.leave(model, manifest, known);
    Ok(survey)
}

impl Survey {
    fn displace(&mut self, at: usize, entry: &FileEntry, how: Displace) {
        self.displaced.push((entry.path.clone(), how));
        self.wanted.push(FileId(at));
    }

    fn hash(
        &mut self,
        model: &ModelDir,
        manifest: &Manifest,
        unknown: &[usize],
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Result<(), WorkError> {
        let entries: Vec<&FileEntry> = unknown.iter().map(|at| &manifest.files()[*at]).collect();
        self.rehashed = !entries.is_empty();
        let answers = hash_files(model, &entries, Pages::Drop, on_bytes);
        for ((at, entry), answer) in unknown.iter().zip(entries).zip(answers) {
            match answer {
                Ok(hashed) => {
                    let settled = model.settle(&hashed.identity)?;
                    let identity = if settled { hashed.identity } else { hashed.identity.distrusted() };
                    self.proved.push(FileRecord::new(entry.path.clone(), &hashed.proof, identity, Proved::Readback));
                }
                Err(Why::Missing { .. }) => self.wanted.push(FileId(*at)),
                Err(Why::Bytes { .. } | Why::Size { .. }) => self.displace(*at, entry, Displace::Quarantine),
                Err(why) => {
                    return Err(WorkError::Unreadable { path: entry.path.clone(), why: format!("{why:?}") });
                }
            }
        }
        self.wanted.sort();
        Ok(())
    }

    /// Files of ours from an older manifest that this one has not.
    fn leave(&mut self, model: &ModelDir, manifest: &Manifest, known: &Known) {
        let gone = known.0.keys().filter(|path| manifest.file(path).is_none());
        let ours = gone.filter(|path| known.of(path, &model.observe(path)).is_some());
        self.displaced.extend(ours.map(|path| (path.clone(), Displace::Retire)));
        self.displaced.sort_by(|a, b| a.0.cmp(&b.0));
    }
}
