//! Hashing a whole model directory again, and what follows from it.
//!
//! Owns `muster verify`: the receipt is renewed when every file is right, and set aside when one
//! is wrong, so that the gate stays closed whatever the identities say. Invariant: a receipt
//! that somebody else wrote meanwhile is left alone.

use std::path::PathBuf;

use serde::Serialize;

use super::check::{Answer, Listener, Notice, Unloaded, expected, load_manifest, unopened};
use super::hash::{Hashed, Pages, hash_files, look_at};
use super::structure::{Structure, look_into};
use super::survey::missing_files;
use crate::clock;
use crate::core::causes::in_words;
use crate::core::gate::{Decision, Outcome};
use crate::core::identity::Observed;
use crate::core::local_edits::{Expected, LocalEdits};
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::reason::Why;
use crate::core::receipt::{FileRecord, Proved, Receipt, Witness};
use crate::core::repo_path::RepoPath;
use crate::core::structure::Strictness;
use crate::volume::identity::is_settled;
use crate::volume::in_use::Attempt;
use crate::volume::quarantine::Quarantine;
use crate::volume::{ModelDir, VolumeError};

/// What became of the receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReceiptFate {
    /// Written anew: every file is right.
    Renewed,
    /// As it was: there was nothing to change, or it could not be changed.
    Kept,
    /// Set aside: a file is wrong.
    SetAside,
}

/// What `verify` found and did.
#[derive(Debug)]
pub struct Verified {
    /// The verdict; every file that is right counts as hashed.
    pub answer: Answer,
    /// What became of the receipt.
    pub receipt: ReceiptFate,
    /// Bad files that were set aside, and where they are now.
    pub quarantined: Vec<(RepoPath, PathBuf)>,
}

/// Opens the place for bad files, when there are any.
pub type OpenQuarantine<'a> = &'a dyn Fn(&ModelDir) -> Result<Quarantine, VolumeError>;

/// Hashes every file of the manifest in `directory`. With a `quarantine`, bad files are moved
/// there.
#[must_use]
pub fn verify(
    directory: PathBuf,
    quarantine: Option<OpenQuarantine<'_>>,
    strictness: Strictness,
    listener: &Listener<'_>,
) -> Verified {
    let started = clock::since_boot();
    let dir = ModelDir::open(&directory);
    let (found, done) = match dir.as_ref().map_err(unopened).and_then(|dir| Ok((dir, loaded(dir)?))) {
        Ok((dir, expected)) => {
            let (manifest, edits) = (expected.manifest(), expected.edits());
            let done = Work { dir, manifest, edits, strictness, listener }.run(quarantine);
            (Some(expected), done)
        }
        Err(why) => (None, Done::nothing(Decision::closed(why, None, vec![]))),
    };
    let took = clock::since_boot().saturating_sub(started);
    let Done { decision, structure, receipt, quarantined } = done;
    let (manifest, edits) = match found.map(Expected::into_parts) {
        Some((manifest, edits)) => (Some(manifest), edits),
        None => (None, LocalEdits::default()),
    };
    let structure = Structure { strictness, ..structure };
    let answer = Answer { edits, structure, ..Answer::of_files(directory, manifest, decision, took) };
    Verified { answer, receipt, quarantined }
}

fn loaded(dir: &ModelDir) -> Result<Expected, Why> {
    load_manifest(dir).and_then(|manifest| expected(dir, &manifest)).map_err(|unloaded| match unloaded {
        Unloaded::Stale => Why::Unsteady,
        Unloaded::For(why) => why,
    })
}

struct Done {
    decision: Decision,
    structure: Structure,
    receipt: ReceiptFate,
    quarantined: Vec<(RepoPath, PathBuf)>,
}

impl Done {
    fn nothing(decision: Decision) -> Self {
        let structure = Structure::default();
        Self { decision, structure, receipt: ReceiptFate::Kept, quarantined: Vec::new() }
    }
}

struct Work<'a> {
    dir: &'a ModelDir,
    /// With the deliberate edits in it.
    manifest: &'a Manifest,
    edits: &'a LocalEdits,
    strictness: Strictness,
    listener: &'a Listener<'a>,
}

impl Work<'_> {
    fn run(&self, quarantine: Option<OpenQuarantine<'_>>) -> Done {
        let closed = |why, files| Done::nothing(Decision::closed(why, Some(self.manifest), files));
        // Held for as long as it hashes: an update would only make it say nonsense.
        let _lock = match self.dir.lock_shared() {
            Attempt::Held => return closed(Why::Held, vec![]),
            Attempt::Taken(lock) => Some(lock),
            Attempt::Unknown | Attempt::Unavailable => None,
        };
        if !matches!(self.dir.manifest(), Ok(Some(_))) {
            // A first pull is under way, and the receipt is its to write.
            return closed(Why::NoReceipt, missing_files(self.dir, self.manifest));
        }
        let before = self.dir.receipt_bytes().ok();
        let entries: Vec<&FileEntry> = self.manifest.files().iter().collect();
        let bytes = self.manifest.total_bytes();
        (self.listener.notice)(Notice::Hashing { files: entries.len() as u64, bytes });
        let started_ns = self.settle_all();
        let answers = hash_files(self.dir, &entries, Pages::Drop, self.listener.bytes);
        let (mut outcomes, mut right, mut identities) = (Vec::new(), Vec::new(), Vec::new());
        for (entry, answer) in entries.into_iter().zip(answers) {
            outcomes.push(match answer {
                Ok(hashed) => {
                    identities.push(hashed.identity);
                    right.push((entry, hashed));
                    Outcome::Hashed
                }
                Err(why) => Outcome::Bad(why),
            });
        }
        let decision = Decision::of_files(self.manifest, outcomes);
        // Another writer's receipt is newer than what was seen here.
        if self.dir.receipt_bytes().ok() != before {
            return closed(Why::Unsteady, vec![]);
        }
        let receipt = self.receipt(&decision, right, started_ns);
        let quarantined = quarantine.map(|quarantine| self.set_aside(&decision, quarantine)).unwrap_or_default();
        if !decision.is_open() {
            return Done { receipt, quarantined, ..Done::nothing(decision) };
        }
        // The receipt speaks of bytes, and they are right whatever is in them.
        let Some(structure) = look_into(self.dir, self.manifest, &identities, self.strictness, Pages::Drop) else {
            return Done { receipt, ..Done::nothing(Decision::closed(Why::Unsteady, Some(self.manifest), vec![])) };
        };
        Done { decision: decision.also(structure.reasons()), structure, receipt, quarantined }
    }

    /// Waits until no file's last change is too young to tell it from the next, and returns the
    /// file system's time then. Where nothing can be written the time is unknown, and early.
    fn settle_all(&self) -> i64 {
        let looks = look_at(self.manifest.files(), |entry| self.dir.observe(&entry.path));
        let present = looks.into_iter().filter_map(|look| match look {
            Observed::Present(identity) => Some(identity),
            _ => None,
        });
        if let Some(latest) = present.max_by_key(|identity| identity.ctime_ns) {
            let _as_far_as_it_goes = self.dir.settle(&latest);
        }
        self.dir.filesystem_now().unwrap_or(i64::MIN)
    }

    /// Renews or sets aside the receipt. That it could not be done changes no verdict.
    fn receipt(&self, decision: &Decision, right: Vec<(&FileEntry, Hashed)>, started_ns: i64) -> ReceiptFate {
        let wrong = decision.reasons().into_iter().filter(|reason| is_wrong(&reason.why));
        let wrong: Vec<RepoPath> = wrong.filter_map(|reason| reason.file.clone()).collect();
        let done = if decision.is_open() {
            self.renew(right, started_ns).map(|()| ReceiptFate::Renewed)
        } else if !wrong.is_empty() {
            // Or the proof that is set aside would speak for them again.
            let seen = |path: RepoPath| match self.dir.observe(&path) {
                Observed::Present(identity) => Some((path, identity)),
                _ => None,
            };
            let condemned = self.dir.condemn(wrong.into_iter().filter_map(seen));
            condemned
                .and_then(|()| self.dir.set_receipt_aside())
                .map(|moved| if moved { ReceiptFate::SetAside } else { ReceiptFate::Kept })
        } else {
            Ok(ReceiptFate::Kept)
        };
        done.unwrap_or_else(|error| {
            (self.listener.notice)(Notice::ReceiptKept { why: in_words(&error) });
            ReceiptFate::Kept
        })
    }

    fn renew(&self, right: Vec<(&FileEntry, Hashed)>, started_ns: i64) -> Result<(), VolumeError> {
        let kind = self.dir.fs_kind();
        self.dir.note_blocks(right.iter().map(|(_, hashed)| hashed.proof.blocks()));
        let records = right.into_iter().map(|(entry, hashed)| {
            let counts = is_settled(&hashed.identity, started_ns, kind);
            let identity = if counts { hashed.identity } else { hashed.identity.distrusted() };
            FileRecord::new(entry.path.clone(), &hashed.proof, identity, Proved::Readback)
        });
        let records = records.collect();
        let receipt = Receipt::seal(self.manifest, records, witness())
            .map_err(|source| VolumeError::Receipt { path: self.dir.path().to_owned(), source })?;
        self.dir.store_receipt(&receipt)?;
        self.dir.pardon()
    }

    fn set_aside(&self, decision: &Decision, quarantine: OpenQuarantine<'_>) -> Vec<(RepoPath, PathBuf)> {
        let mut moved = Vec::new();
        for reason in decision.reasons() {
            let Some(path) = reason.file.as_ref().filter(|_| is_wrong(&reason.why)) else { continue };
            if self.edits.of(path).is_some() {
                // No pull could fetch it again.
                let (file, why) = (path.clone(), "it was changed here on purpose".to_owned());
                (self.listener.notice)(Notice::NotQuarantined { file, why });
                continue;
            }
            match quarantine(self.dir).and_then(|place| self.dir.quarantine(path, &place)) {
                Ok(aside) => moved.push((path.clone(), aside.path())),
                Err(error) => {
                    (self.listener.notice)(Notice::NotQuarantined { file: path.clone(), why: in_words(&error) });
                }
            }
        }
        moved
    }
}

pub(super) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn witness() -> Witness {
    Witness { at: clock::now(), program: concat!("muster ", env!("CARGO_PKG_VERSION")).to_owned(), host: host() }
}

/// Wrong bytes are there; a file that is missing or cannot be read is another matter.
const fn is_wrong(why: &Why) -> bool {
    matches!(why, Why::Bytes { .. } | Why::Size { .. } | Why::NotRegular)
}
