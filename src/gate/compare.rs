//! A directory beside a manifest that it does not have yet.
//!
//! Owns the report of `muster adopt --no-fetch`: every file of the right size is hashed, in parallel.
//! Invariant: it reads and nothing else, so a read-only mount is enough.

use std::path::PathBuf;

use super::check::{Answer, Listener, Notice};
use super::hash::{Hashed, Pages, hash_files, look_at};
use crate::clock;
use crate::core::gate::{Decision, Finding, Outcome, inspect};
use crate::core::local_edits::Expected;
use crate::core::manifest::FileEntry;
use crate::core::receipt::{FileRecord, Proved};
use crate::volume::{ModelDir, VolumeError};

/// What was found.
#[derive(Debug)]
pub struct Compared {
    /// The verdict; every file that is right counts as hashed.
    pub answer: Answer,
    right: Vec<(FileEntry, Hashed)>,
}

/// Compares `dir` with what it should hold.
#[must_use]
pub fn compare(dir: &ModelDir, directory: PathBuf, expected: Expected, listener: &Listener<'_>) -> Compared {
    let started = clock::since_boot();
    let (manifest, edits) = expected.into_parts();
    let looks = look_at(manifest.files(), |entry| inspect(entry, &[], &dir.observe(&entry.path)));
    let entries: Vec<&FileEntry> = manifest.files().iter().collect();
    let to_hash: Vec<&FileEntry> = entries
        .iter()
        .zip(&looks)
        .filter(|(_, look)| !matches!(look, Finding::Bad(_)))
        .map(|(entry, _)| *entry)
        .collect();
    let bytes = to_hash.iter().map(|entry| entry.size).sum();
    (listener.notice)(Notice::Hashing { files: to_hash.len() as u64, bytes });
    let mut answers = hash_files(dir, &to_hash, Pages::Drop, listener.bytes).into_iter();
    let (mut outcomes, mut right) = (Vec::new(), Vec::new());
    for (entry, look) in entries.into_iter().zip(looks) {
        outcomes.push(match look {
            Finding::Bad(why) => Outcome::Bad(why),
            Finding::Trusted | Finding::HashNeeded => match answers.next() {
                Some(Ok(hashed)) => {
                    right.push((entry.clone(), hashed));
                    Outcome::Hashed
                }
                Some(Err(why)) => Outcome::Bad(why),
                None => Outcome::Deferred,
            },
        });
    }
    let decision = Decision::of_files(&manifest, outcomes);
    let took = clock::since_boot().saturating_sub(started);
    Compared { answer: Answer { edits, ..Answer::of_files(directory, Some(manifest), decision, took) }, right }
}

impl Compared {
    /// The proofs of the files that are right, once their identities count. Makes our folder in the
    /// directory, to ask the file system what time it is.
    pub fn records(&self, dir: &ModelDir) -> Result<Vec<FileRecord>, VolumeError> {
        let record = |(entry, hashed): &(FileEntry, Hashed)| {
            dir.settle_record(FileRecord::new(entry.path.clone(), &hashed.proof, hashed.identity, Proved::Readback))
        };
        self.right.iter().map(record).collect()
    }
}
