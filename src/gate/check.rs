//! One look at a model directory, and the verdict.
//!
//! Owns the order of the steps: lock, manifest, receipt, every file, the receipt again.
//! Invariants: nothing is written in the model directory; whatever cannot be read keeps the gate
//! closed; and the verdict speaks of one state of the directory, not of a mixture.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::policy::Scene;
use super::remember::{Key, Memory, RememberError};
use super::structure::Structure;
use super::survey::{Survey, missing_files};
use super::trust::Demand;
use crate::clock;
use crate::core::causes::in_words;
use crate::core::digest::{Digest, Sha256};
use crate::core::gate::{Decision, Outcome};
use crate::core::local_edits::{Expected, LocalEdits, LocalEditsError};
use crate::core::manifest::{FileEntry, Manifest, ManifestId};
use crate::core::policy::Policy;
use crate::core::policy::judge::{Verdict as RuleVerdict, reasons};
use crate::core::reason::Why;
use crate::core::receipt::{Receipt, ReceiptError};
use crate::core::repo::Revision;
use crate::core::repo_path::RepoPath;
use crate::core::retry::FailureClass;
use crate::core::structure::Strictness;
use crate::volume::in_use::{Attempt, InUse};
use crate::volume::{ModelDir, VolumeError};

/// Times a directory that changes under the check is looked at from the start.
const ROUNDS_MAX: usize = 3;

/// What is asked of a gate.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Hash everything, whatever the receipt says.
    pub full: bool,
    /// Closed (12) for any other manifest.
    pub manifest_id: Option<ManifestId>,
    /// Closed (10) for any other branch, tag or commit.
    pub revision: Option<Revision>,
    /// What the operator demands beside that.
    pub policy: Option<Arc<Policy>>,
    /// Where to remember what was hashed.
    pub remember: Option<PathBuf>,
    /// Hash nothing while another reason keeps the gate closed anyway: for a wait.
    pub lazy: bool,
    /// What a fault in the structure of the weight files means.
    pub structure: Strictness,
    /// Closed (12) for everything that was not signed by this key.
    pub signature: Option<Arc<Demand>>,
}

/// What is worth telling while a check goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Files are about to be hashed.
    Hashing {
        /// How many.
        files: u64,
        /// How much.
        bytes: u64,
    },
    /// The directory cannot be locked, so an update could not know of the launcher.
    NoLock,
    /// What was hashed will have to be hashed again next time.
    NotRemembered {
        /// Why.
        why: String,
    },
    /// `verify` could not renew the receipt or set it aside.
    ReceiptKept {
        /// Why.
        why: String,
    },
    /// `verify` could not set a bad file aside.
    NotQuarantined {
        /// The file.
        file: RepoPath,
        /// Why.
        why: String,
    },
}

/// The verdict, and what was seen.
#[derive(Debug)]
pub struct Answer {
    /// The directory, as an absolute path.
    pub directory: PathBuf,
    /// Its manifest, or that of a first pull that has not ended, deliberate edits laid over it.
    pub manifest: Option<Manifest>,
    /// What was changed in it on purpose; the manifest has these files as they are here.
    pub edits: LocalEdits,
    /// Open, or closed and why.
    pub decision: Decision,
    /// What a look into the weight files found; nobody looks while files are missing or wrong.
    pub structure: Structure,
    /// How long it took.
    pub took: Duration,
    /// The verdict of each rule of the policy; none when the files were not right.
    pub verdicts: Vec<RuleVerdict>,
    /// The key that signed these very files, where a signature was demanded.
    pub signed: Option<Sha256>,
    /// The lock that keeps the directory as it is, where it could be taken and the gate is open.
    pub lock: Option<InUse>,
}

impl Answer {
    /// For a model of which only the place where it would be is known; `looked` says in words
    /// where it was looked for.
    #[must_use]
    pub fn unknown(directory: &Path, looked: String) -> Self {
        let decision = Decision::closed(Why::NeverPulled { looked }, None, vec![]);
        Self::of_files(directory.to_owned(), None, decision, Duration::ZERO)
    }

    /// A verdict over files and nothing else.
    pub(super) fn of_files(directory: PathBuf, manifest: Option<Manifest>, decision: Decision, took: Duration) -> Self {
        let (edits, structure, verdicts) = (LocalEdits::default(), Structure::default(), Vec::new());
        Self { directory, manifest, edits, decision, structure, took, verdicts, signed: None, lock: None }
    }
}

/// A gate in front of one directory. It may be asked several times: what it hashed once it does
/// not hash again.
#[derive(Debug)]
pub struct Gate {
    directory: PathBuf,
    question: Question,
    /// Hashed by this gate itself.
    fresh: Memory,
    /// What the last round found in the weight files.
    structure: Structure,
    /// What the last round's policy came to.
    verdicts: Vec<RuleVerdict>,
    /// The key whose signature the last round found good.
    signed: Option<Sha256>,
}

/// Where a check tells what it does; heard from several threads.
pub struct Listener<'a> {
    /// Notices, in order.
    pub notice: &'a (dyn Fn(Notice) + Sync),
    /// Bytes hashed, read by read.
    pub bytes: &'a (dyn Fn(u64) + Sync),
}

/// What one round came to.
struct Verdict {
    decision: Decision,
    manifest: Option<Manifest>,
    edits: LocalEdits,
    lock: Option<InUse>,
}

impl Gate {
    /// A gate in front of `directory`, which need not exist.
    #[must_use]
    pub fn new(directory: &Path, question: Question) -> Self {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let (structure, verdicts) = (Structure::default(), Vec::new());
        Self { directory, question, fresh: Memory::default(), structure, verdicts, signed: None }
    }

    /// Looks at the directory and decides.
    pub fn check(&mut self, listener: &Listener<'_>) -> Answer {
        let started = clock::since_boot();
        let Verdict { decision, manifest, edits, lock } = self.rounds(listener);
        let lock = lock.filter(|_| decision.is_open());
        let took = clock::since_boot().saturating_sub(started);
        let (directory, structure) = (self.directory.clone(), self.structure.clone());
        let verdicts = std::mem::take(&mut self.verdicts);
        Answer { directory, manifest, edits, decision, structure, took, verdicts, signed: self.signed, lock }
    }

    fn rounds(&mut self, listener: &Listener<'_>) -> Verdict {
        for _ in 0..ROUNDS_MAX {
            if let Some(verdict) = self.round(listener) {
                return verdict;
            }
        }
        let edits = LocalEdits::default();
        Verdict { decision: Decision::closed(Why::Unsteady, None, vec![]), manifest: None, edits, lock: None }
    }

    /// One look from start to end; none when something changed meanwhile.
    fn round(&mut self, listener: &Listener<'_>) -> Option<Verdict> {
        self.structure = Structure::unseen(self.question.structure);
        self.verdicts.clear();
        self.signed = None;
        let closed_with = |why, manifest: Option<Manifest>, edits| {
            let decision = Decision::closed(why, manifest.as_ref(), vec![]);
            Some(Verdict { decision, manifest, edits, lock: None })
        };
        let closed = |why, manifest| closed_with(why, manifest, LocalEdits::default());
        let dir = match ModelDir::open(&self.directory) {
            Ok(dir) => dir,
            Err(error) => return closed(unopened(&error), None),
        };
        let lock = match dir.lock_shared() {
            Attempt::Taken(lock) => Some(lock),
            Attempt::Held => return closed(Why::Held, dir.manifest().ok().flatten()),
            Attempt::Unknown | Attempt::Unavailable => None,
        };
        let manifest = match load_manifest(&dir) {
            Ok(manifest) => manifest,
            // Replaced on another host between open and read.
            Err(Unloaded::Stale) => return None,
            Err(Unloaded::For(why)) => return closed(why, None),
        };
        if let Some(why) = self.unwanted(&manifest) {
            return closed(why, Some(manifest));
        }
        let recorded = dir.local_edits_bytes().ok();
        let (manifest, edits) = match expected(&dir, &manifest) {
            Ok(expected) => expected.into_parts(),
            Err(Unloaded::Stale) => return None,
            Err(Unloaded::For(why)) => return closed(why, Some(manifest)),
        };
        let stored = dir.owned_receipt();
        let receipt = match &stored {
            Ok(Some(owned)) => match Receipt::from_json(&owned.bytes, &manifest) {
                Ok(receipt) => Ok((receipt, owned.writer)),
                Err(error) => Err(unusable(&error)),
            },
            Ok(None) => Err(Why::NoReceipt),
            Err(error) if is_stale(error) => return None,
            Err(error) => Err(Why::ReceiptUnreadable { why: in_words(error) }),
        };
        let decision = match receipt {
            Ok((receipt, writer)) => self.files(&dir, (&manifest, &edits), (&receipt, writer), listener),
            Err(why) => Some(Decision::closed(why, Some(&manifest), missing_files(&dir, &manifest))),
        };
        let decision = match (&stored, dir.owned_receipt()) {
            (Ok(before), Ok(now)) if *before != now => return None,
            _ if dir.local_edits_bytes().ok() != recorded => return None,
            // What cannot be read again may have changed.
            (Ok(_), Err(error)) if !is_stale(&error) => {
                return closed_with(Why::ReceiptUnreadable { why: in_words(&error) }, Some(manifest), edits);
            }
            (Ok(_), Err(_)) => return None,
            _ => decision?,
        };
        if lock.is_none() && decision.is_open() {
            (listener.notice)(Notice::NoLock);
        }
        Some(Verdict { decision, manifest: Some(manifest), edits, lock })
    }

    fn unwanted(&self, manifest: &Manifest) -> Option<Why> {
        let source = manifest.source();
        if let Some(expected) = self.question.manifest_id.filter(|id| *id != manifest.id()) {
            return Some(Why::OtherManifest { expected, found: manifest.id() });
        }
        let expected = self.question.revision.clone()?;
        let same = expected == source.revision || expected.as_commit() == Some(source.commit);
        (!same).then_some(Why::OtherCommit { expected, found: source.commit })
    }

    /// Judges every file; none when one changed after it was judged.
    fn files(
        &mut self,
        dir: &ModelDir,
        (manifest, edits): (&Manifest, &LocalEdits),
        (receipt, writer): (&Receipt, Option<u32>),
        listener: &Listener<'_>,
    ) -> Option<Decision> {
        let mut survey = Survey::look(dir, manifest);
        let demand = self.question.signature.clone();
        let believed = !self.question.full && demand.as_ref().is_none_or(|demand| demand.believes(writer));
        // What was hashed before is known by the manifest's digest alone.
        let tells = |entry: &FileEntry| demand.is_none() || matches!(entry.digest, Digest::Sha256(_));
        if believed {
            survey.trust(&Outcome::Trusted, |at, _| receipt.files().get(at).map(|record| record.identity));
        }
        survey.trust(&Outcome::Hashed, |_, entry| self.fresh.verified(entry).filter(|_| tells(entry)));
        let mut memory = if survey.is_settled() { None } else { self.recall(dir, manifest, listener) };
        if let Some(memory) = memory.as_ref().filter(|_| believed) {
            survey.trust(&Outcome::Trusted, |_, entry| memory.verified(entry).filter(|_| tells(entry)));
        }
        if survey.is_settled() || (self.question.lazy && survey.has_bad()) {
            return self.decide(survey, edits, receipt);
        }
        let (files, bytes) = survey.left();
        (listener.notice)(Notice::Hashing { files, bytes });
        for (entry, identity) in survey.hash(receipt, listener.bytes) {
            self.fresh.learn(entry, identity);
            if let Some(memory) = &mut memory {
                memory.learn(entry, identity);
            }
        }
        if let Some(Err(error)) = memory.as_mut().map(Memory::save) {
            (listener.notice)(Notice::NotRemembered { why: in_words(&error) });
        }
        // Hashing took its time: what was judged right must still be what it was.
        if survey.still_holds() { self.decide(survey, edits, receipt) } else { None }
    }

    /// The verdict over all files, their signature and, when all are right, over their structure and the
    /// policy; none when a file changed since it was found right.
    fn decide(&mut self, survey: Survey<'_>, edits: &LocalEdits, receipt: &Receipt) -> Option<Decision> {
        let mut untrusted = Vec::new();
        if let Some(demand) = &self.question.signature {
            untrusted = demand.judge(&survey, edits, receipt);
            self.signed = untrusted.is_empty().then(|| demand.key.hint());
        }
        let Some(identities) = survey.all_right() else { return Some(survey.decide().also(untrusted)) };
        self.structure = survey.look_into(&identities, self.question.structure)?;
        if let Some(policy) = &self.question.policy {
            let scene = Scene {
                dir: survey.dir,
                manifest: survey.manifest,
                receipt,
                identity: &|path| survey.identity(path),
                hashed_now: survey.is_hashed(),
                local_edits: &edits.files().iter().map(|edit| edit.path.clone()).collect::<Vec<_>>(),
            };
            self.verdicts = scene.judge(policy).ok()?;
        }
        let broken = self.structure.reasons().into_iter().chain(reasons(&self.verdicts)).chain(untrusted);
        Some(survey.decide().also(broken.collect()))
    }

    /// What earlier gates hashed here.
    fn recall(&self, dir: &ModelDir, manifest: &Manifest, listener: &Listener<'_>) -> Option<Memory> {
        let place = self.question.remember.as_ref()?;
        let memory = dir.place().map_err(RememberError::from).and_then(|(directory, device)| {
            let directory = directory.to_string_lossy().into_owned();
            Memory::open(place, Key { manifest: manifest.id(), directory, device })
        });
        memory.map_err(|error| (listener.notice)(Notice::NotRemembered { why: in_words(&error) })).ok()
    }
}

/// Why there is nothing to look at.
pub(super) fn unopened(error: &VolumeError) -> Why {
    let words = in_words(error);
    if error.is_missing() { Why::NeverPulled { looked: words } } else { Why::ManifestUnreadable { why: words } }
}

/// Why there is no manifest to go by.
pub(super) enum Unloaded {
    /// The server of a network file system forgot the file: look again.
    Stale,
    /// For good.
    For(Why),
}

/// The manifest, or that of a first pull under way.
pub(super) fn load_manifest(dir: &ModelDir) -> Result<Manifest, Unloaded> {
    let loaded = dir.manifest().and_then(|manifest| match manifest {
        Some(manifest) => Ok(Some(manifest)),
        None => dir.pending_manifest(),
    });
    match loaded {
        Ok(Some(manifest)) => Ok(manifest),
        Ok(None) => {
            let looked = format!("{} is no model directory: it has no manifest", dir.path().display());
            Err(Unloaded::For(Why::NeverPulled { looked }))
        }
        Err(error) if is_stale(&error) => Err(Unloaded::Stale),
        Err(error) => Err(Unloaded::For(Why::ManifestUnreadable { why: in_words(&error) })),
    }
}

/// What the directory should hold.
pub(super) fn expected(dir: &ModelDir, published: &Manifest) -> Result<Expected, Unloaded> {
    dir.expected(published.clone()).map_err(|error| match error {
        VolumeError::LocalEdits { source: LocalEditsError::Conflict(conflict), .. } => {
            Unloaded::For(Why::EditedBoth(conflict))
        }
        error if is_stale(&error) => Unloaded::Stale,
        error => Unloaded::For(Why::EditsUnreadable { why: in_words(&error) }),
    })
}

fn is_stale(error: &VolumeError) -> bool {
    matches!(error.class(), FailureClass::Transient { .. })
}

fn unusable(error: &ReceiptError) -> Why {
    match error {
        ReceiptError::OtherManifest { expected, found } => Why::ReceiptOfOther { expected: *expected, found: *found },
        ReceiptError::Schema { .. } => Why::ReceiptUnreadable { why: in_words(error) },
        ReceiptError::Json(_) | ReceiptError::Unproved { .. } => Why::ReceiptDamaged { why: in_words(error) },
    }
}
