//! Taking changed files for right, on an operator's word.
//!
//! Owns the first half of `muster accept`: the bytes are hashed, the record of deliberate edits is
//! written, and then the receipt gets their proofs. Invariants: no file of the model is touched; a
//! crash after any step leaves the gate closed or the edit accepted, since a receipt that does not
//! have the accepted digest proves nothing; what was verified before keeps its proof and its date.

use thiserror::Error;

use super::hash::hash_as_it_is;
use crate::clock;
use crate::core::code::Code;
use crate::core::identity::Observed;
use crate::core::local_edits::{EditReason, LocalEdit, LocalEdits, Published, is_weights};
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::reason::Why;
use crate::core::receipt::{FileRecord, Proved, Receipt};
use crate::core::repo_path::RepoPath;
use crate::volume::in_use::Attempt;
use crate::volume::{ModelDir, VolumeError};

/// Who accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who {
    /// Number of the user, where the system knows it.
    pub uid: Option<u32>,
    /// Name of the user, as the session has it.
    pub user: Option<String>,
    /// Name of the host.
    pub host: String,
}

/// The name of this host.
#[must_use]
pub fn here() -> String {
    super::verify::host()
}

/// What is to be taken for right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Acceptance {
    /// The files.
    pub paths: Vec<RepoPath>,
    /// Why.
    pub reason: EditReason,
    /// Weights too.
    pub force: bool,
    /// On whose word.
    pub who: Who,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The files that count as they are now.
    pub edits: Vec<LocalEdit>,
    /// Files that have the published bytes, so that there was nothing to accept.
    pub unchanged: Vec<RepoPath>,
    /// Everything that was changed here on purpose, now.
    pub all: LocalEdits,
    /// Whether the receipt proves the directory. Without one the gate is closed.
    pub receipt: bool,
}

/// Why nothing was accepted.
#[derive(Debug, Error)]
pub enum AcceptError {
    /// There is no manifest to change anything of.
    #[error("{directory} has no manifest")]
    NoManifest {
        /// The directory.
        directory: String,
    },
    /// Not one of the manifest's files.
    #[error("{path} is no file of the model's manifest, so there is nothing to accept in its place")]
    NotInManifest {
        /// The path.
        path: RepoPath,
    },
    /// Nothing is there.
    #[error("{path} is not there, and a missing file cannot be accepted")]
    NotThere {
        /// The path.
        path: RepoPath,
    },
    /// Nothing to undo.
    #[error("{path} was not changed here on purpose, as far as anybody said, so there is nothing to undo")]
    NotAccepted {
        /// The path.
        path: RepoPath,
    },
    /// A file that nobody edits by hand.
    #[error("{path} holds weights: other bytes there are damage, unless somebody is sure")]
    Weights {
        /// The path.
        path: RepoPath,
    },
    /// It cannot be hashed.
    #[error("{path}: {why}")]
    Unreadable {
        /// The path.
        path: RepoPath,
        /// Why.
        why: Why,
    },
    /// A writer is at work.
    #[error("a writer is changing this directory")]
    Held,
    /// Another process owns the volume now.
    #[error("another process has taken the volume")]
    Lost,
    /// The volume failed.
    #[error("the edit cannot be recorded")]
    Volume(#[from] VolumeError),
}

impl AcceptError {
    /// The outcome.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::NoManifest { .. } => Code::UnknownModel,
            Self::NotInManifest { .. } | Self::NotAccepted { .. } => Code::Usage,
            Self::NotThere { .. } => Code::Incomplete,
            Self::Weights { .. } => Code::Refused,
            Self::Unreadable { why, .. } => why.code(),
            Self::Held | Self::Lost => Code::Held,
            Self::Volume(error) => error.code(),
        }
    }

    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Self::NoManifest { .. } => "muster pull brings a model; muster list shows what is there",
            Self::NotInManifest { .. } => {
                "paths are those of the repository; a file beyond them needs no word, unless a policy of the gate minds it"
            }
            Self::NotThere { .. } => {
                "muster pull brings the published file back; put an empty file there if that is meant"
            }
            Self::NotAccepted { .. } => "muster gate and muster status name what was; muster pull mends the rest",
            Self::Weights { .. } => "muster verify tells what is wrong with it; --force accepts it all the same",
            Self::Unreadable { why: Why::Changing, .. } => "try again when nobody writes to it any more",
            Self::Unreadable { .. } => "make it a readable regular file, then try again",
            Self::Held | Self::Lost => "try again when it is done; muster status tells what goes on",
            Self::Volume(error) => return error.hint().map(str::to_owned),
        };
        Some(text.to_owned())
    }
}

/// Takes the files as they are now for right. Blocks. Nothing is written unless `may_write` says
/// that the directory is still the caller's.
///
/// # Errors
/// [`AcceptError`]; nothing was changed, but for [`AcceptError::Volume`] after which the gate is
/// closed or the files are accepted.
pub fn accept(dir: &ModelDir, what: &Acceptance, may_write: &dyn Fn() -> bool) -> Result<Accepted, AcceptError> {
    // An update would change what is accepted under our hands.
    let _lock = match dir.lock_shared() {
        Attempt::Held => return Err(AcceptError::Held),
        Attempt::Taken(lock) => Some(lock),
        Attempt::Unknown | Attempt::Unavailable => None,
    };
    let no_manifest = || AcceptError::NoManifest { directory: dir.path().display().to_string() };
    let published = dir.manifest()?.ok_or_else(no_manifest)?;
    let before = dir.local_edits()?;
    let mut paths = what.paths.clone();
    paths.sort();
    paths.dedup();
    let mut entries = Vec::new();
    for path in &paths {
        let entry = published.file(path).ok_or_else(|| AcceptError::NotInManifest { path: path.clone() })?;
        check(dir, entry, what.force)?;
        entries.push(entry);
    }
    let (mut edits, mut unchanged, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        let (record, is_published) = prove(dir, entry)?;
        if is_published {
            unchanged.push(entry.path.clone());
        } else {
            edits.push(edit(entry, &record, what));
        }
        records.push(record);
    }
    let all = before.without(&unchanged).with(edits.clone());
    let receipt = record(dir, published, &all, records, may_write)?;
    Ok(Accepted { edits, unchanged, all, receipt })
}

/// Writes what was changed on purpose, then the proofs that go with it. `true` when there is a
/// receipt, which then proves all of it.
///
/// # Errors
/// [`AcceptError::Lost`] and [`AcceptError::Volume`].
pub(crate) fn record(
    dir: &ModelDir,
    published: Manifest,
    edits: &LocalEdits,
    proved: Vec<FileRecord>,
    may_write: &dyn Fn() -> bool,
) -> Result<bool, AcceptError> {
    let stored = dir.receipt_bytes()?;
    if !may_write() {
        return Err(AcceptError::Lost);
    }
    dir.store_local_edits(edits)?;
    let Some(stored) = stored else { return Ok(false) };
    // Another file's edit that does not fit the manifest keeps the gate closed anyway.
    let Ok(expected) = dir.expected(published) else { return Ok(false) };
    let Ok(receipt) = Receipt::amended(&stored, expected.manifest(), proved) else { return Ok(false) };
    if !may_write() {
        return Err(AcceptError::Lost);
    }
    dir.store_receipt(&receipt)?;
    Ok(true)
}

/// Hashes a file as it is; `true` when it has the published bytes.
///
/// # Errors
/// [`AcceptError::Unreadable`], [`AcceptError::Volume`].
pub(crate) fn prove(dir: &ModelDir, entry: &FileEntry) -> Result<(FileRecord, bool), AcceptError> {
    let unreadable = |why| AcceptError::Unreadable { path: entry.path.clone(), why };
    // A change in the same tick as the reading would not show afterwards.
    let settled = match dir.observe(&entry.path) {
        Observed::Present(identity) => dir.settle(&identity)?.then_some(identity),
        _ => None,
    };
    let (hashed, is_published) = hash_as_it_is(dir, entry).map_err(unreadable)?;
    let identity = if settled == Some(hashed.identity) { hashed.identity } else { hashed.identity.distrusted() };
    Ok((FileRecord::new(entry.path.clone(), &hashed.proof, identity, Proved::Readback), is_published))
}

fn check(dir: &ModelDir, entry: &FileEntry, force: bool) -> Result<(), AcceptError> {
    let path = entry.path.clone();
    match dir.observe(&entry.path) {
        Observed::Missing => Err(AcceptError::NotThere { path }),
        Observed::NotRegular => Err(AcceptError::Unreadable { path, why: Why::NotRegular }),
        Observed::Unreadable { why } => Err(AcceptError::Unreadable { path, why: Why::Unreadable { why } }),
        Observed::Present(found) if !force && is_weights(&path, found.size.max(entry.size)) => {
            Err(AcceptError::Weights { path })
        }
        Observed::Present(_) => Ok(()),
    }
}

fn edit(entry: &FileEntry, record: &FileRecord, what: &Acceptance) -> LocalEdit {
    let Who { uid, user, host } = what.who.clone();
    LocalEdit {
        path: entry.path.clone(),
        size: record.size,
        sha256: record.sha256,
        published: Published::from(entry),
        reason: what.reason.clone(),
        uid,
        user,
        host,
        at: clock::now(),
    }
}
