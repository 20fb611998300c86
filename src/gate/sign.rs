//! Signing a model that was verified.
//!
//! Owns what a signature of ours speaks of: the files of the manifest as they should be here, each with
//! the SHA-256 that the Hub published or, for small files, that their bytes have now. Invariants: no
//! digest is signed because a receipt says so; a signature of something else never stays beside a new
//! receipt. Who signs has seen to it that the directory was verified, and holds it meanwhile.

use std::collections::HashMap;
use std::path::PathBuf;

use thiserror::Error;

use super::hash::{Pages, hash_files};
use crate::core::code::Code;
use crate::core::digest::{Digest, Sha256};
use crate::core::local_edits::LocalEdits;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::oms::cover::{extras, is_about, left_out};
use crate::core::oms::key::PrivateKey;
use crate::core::oms::statement::{Statement, StatementError};
use crate::core::oms::{bundle, is_left_out};
use crate::core::reason::{Reason, Why};
use crate::core::receipt::FileRecord;
use crate::core::repo_path::RepoPath;
use crate::volume::{ModelDir, VolumeError};

/// What was signed.
#[derive(Debug)]
pub struct Signed {
    /// Where the signature is.
    pub path: PathBuf,
    /// The name of the key.
    pub key: Sha256,
    /// How many files it lists.
    pub files: usize,
    /// What lies in the directory beside them, so that nobody will believe the signature while it does.
    pub extras: Vec<Reason>,
    /// Whether it was written; else the same one was there.
    pub is_new: bool,
}

/// Why a model was not signed.
#[derive(Debug, Error)]
pub enum SignError {
    /// A file is not what it should be.
    #[error("{path}: {why}")]
    File {
        /// The file.
        path: RepoPath,
        /// What is wrong with it.
        why: Why,
    },
    /// There is nothing that a signature would speak of.
    #[error("there is nothing to sign")]
    Statement(#[from] StatementError),
    /// Another process has the directory now.
    #[error("the directory changed while it was signed")]
    Changed,
    /// The volume failed.
    #[error("the signature cannot be written")]
    Volume(#[from] VolumeError),
}

impl SignError {
    /// The outcome.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::File { why, .. } => why.code(),
            Self::Statement(_) => Code::Incomplete,
            Self::Changed => Code::Held,
            Self::Volume(error) => error.code(),
        }
    }
}

/// Signs the model in `dir`, whose files are `manifest`'s: those that were changed on purpose as they are
/// here. Nothing is written unless `may_write` says that this is still so.
///
/// # Errors
/// [`SignError`].
pub fn sign(
    dir: &ModelDir,
    manifest: &Manifest,
    key: &PrivateKey,
    may_write: &dyn Fn() -> bool,
) -> Result<Signed, SignError> {
    let statement = state(dir, manifest)?;
    let signature = bundle::seal(&statement, key);
    let names = dir.walk()?.files.into_iter().map(|entry| entry.name);
    let extras = extras(&statement, manifest, names);
    if !may_write() {
        return Err(SignError::Changed);
    }
    let is_new = dir.store_signature(&signature)?;
    let files = statement.files().len();
    Ok(Signed { path: dir.signature_path(), key: key.public().hint(), files, extras, is_new })
}

/// Keeps a signature out of the way that is not about this model: of an older commit, for one. What a
/// file was before it was changed on purpose is no other model.
///
/// # Errors
/// The volume's.
pub fn set_stale_aside(
    dir: &ModelDir,
    manifest: &Manifest,
    records: &[FileRecord],
    edits: &LocalEdits,
) -> Result<bool, VolumeError> {
    let claimed = match dir.signature_bytes() {
        Ok(Some(bytes)) => bundle::claimed(&bytes),
        Ok(None) => return Ok(false),
        // No signature is so large.
        Err(VolumeError::TooLarge { .. }) => None,
        Err(error) => return Err(error),
    };
    let known: HashMap<&RepoPath, Sha256> = records.iter().map(|record| (&record.path, record.sha256)).collect();
    let sha256 = |at: usize| known.get(&manifest.files().get(at)?.path).copied();
    let is_edit = |path: &RepoPath| edits.of(path).is_some();
    match claimed {
        Some(statement) if is_about(&statement, manifest, sha256, is_edit) => Ok(false),
        _ => dir.set_signature_aside(),
    }
}

fn state(dir: &ModelDir, manifest: &Manifest) -> Result<Statement, SignError> {
    let listed: Vec<&FileEntry> = manifest.files().iter().filter(|entry| !is_left_out(entry.path.as_str())).collect();
    let small: Vec<&FileEntry> =
        listed.iter().copied().filter(|entry| matches!(entry.digest, Digest::GitBlob(_))).collect();
    let mut hashed = hash_files(dir, &small, Pages::Keep, &|_| ()).into_iter();
    let mut files = Vec::new();
    for entry in listed {
        let sha256 = match entry.digest {
            Digest::Sha256(sha256) => sha256,
            Digest::GitBlob(_) => match hashed.next() {
                Some(Ok(hashed)) => hashed.proof.sha256(),
                Some(Err(why)) => return Err(SignError::File { path: entry.path.clone(), why }),
                None => return Err(SignError::File { path: entry.path.clone(), why: Why::Changing }),
            },
        };
        files.push((entry.path.clone(), sha256));
    }
    let model = dir.path().file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned());
    Ok(Statement::new(&model, files, left_out(dir.has_client_notes()?))?)
}
