//! The facts that a policy is held against, gathered from a model directory.
//!
//! Owns the reading of the model's JSON files and of what lies in the directory. Invariants: what a
//! condition is judged by are the bytes that were verified; a file that changes meanwhile means
//! another round; and what cannot be read is never taken for absent. Writes nothing.

use std::collections::BTreeMap;

use sha2::Digest as _;

use crate::clock;
use crate::core::causes::in_words;
use crate::core::digest::Sha256;
use crate::core::identity::Identity;
use crate::core::manifest::Manifest;
use crate::core::policy::Policy;
use crate::core::policy::judge::{Document, Facts, Name, Verdict};
use crate::core::receipt::Receipt;
use crate::core::repo_path::RepoPath;
use crate::core::units;
use crate::limits::POLICY_FILE_MAX_BYTES;
use crate::volume::{ModelDir, VolumeError};

/// A directory whose every file was found right.
pub(super) struct Scene<'a> {
    /// The directory.
    pub(super) dir: &'a ModelDir,
    /// Its manifest.
    pub(super) manifest: &'a Manifest,
    /// Its receipt.
    pub(super) receipt: &'a Receipt,
    /// The identity by which a file of the manifest was found right.
    pub(super) identity: &'a dyn Fn(&RepoPath) -> Option<Identity>,
    /// Whether every byte was hashed for this very check.
    pub(super) hashed_now: bool,
    /// Files that were changed here on purpose.
    pub(super) local_edits: &'a [RepoPath],
}

/// Something is another than a moment before: look again.
pub(super) struct Changed;

impl Scene<'_> {
    /// The verdict of each rule.
    pub(super) fn judge(&self, policy: &Policy) -> Result<Vec<Verdict>, Changed> {
        let mut documents = BTreeMap::new();
        for path in policy.documents() {
            if !documents.contains_key(path) {
                documents.insert(path.clone(), self.document(path)?);
            }
        }
        let names = if policy.needs_names() { self.names() } else { Ok(Vec::new()) };
        let mut digests = BTreeMap::new();
        for name in policy.digests(names.as_deref().unwrap_or_default()) {
            digests.insert(name.path.clone(), self.digest(&name.path)?);
        }
        let source = self.manifest.source();
        let facts = Facts {
            repo: &source.repo.to_string(),
            commit: source.commit,
            verified_at: self.receipt.verified_at(),
            hashed_now: self.hashed_now,
            now: clock::now(),
            documents: &documents,
            names: names.as_deref().map_err(String::as_str),
            digests: &digests,
            local_edits: self.local_edits,
        };
        Ok(policy.judge(&facts))
    }

    fn document(&self, path: &RepoPath) -> Result<Document, Changed> {
        Ok(match self.read(path)? {
            Read::Absent => Document::Missing,
            Read::Not(why) => Document::Unreadable { why },
            Read::Whole(bytes) => match serde_json::from_slice(&bytes) {
                Ok(value) => Document::Json(value),
                Err(error) => Document::NoJson { why: error.to_string() },
            },
        })
    }

    fn names(&self) -> Result<Vec<Name>, String> {
        let contents = self.dir.contents().map_err(|error| in_words(&error))?;
        let is_known = |path: &str| RepoPath::parse(path).is_ok_and(|path| self.manifest.file(&path).is_some());
        let named = contents.into_iter().map(|content| Name {
            is_extra: !is_known(&content.path),
            path: content.path,
            kind: content.kind,
            mode: content.mode,
        });
        Ok(named.collect())
    }

    fn digest(&self, path: &str) -> Result<Result<Sha256, String>, Changed> {
        let Ok(path) = RepoPath::parse(path) else { return Ok(Err("a name that no repository has".to_owned())) };
        Ok(match self.read(&path)? {
            Read::Whole(bytes) => Ok(Sha256::from_bytes(sha2::Sha256::digest(&bytes).into())),
            Read::Absent => Err("it cannot be opened by this name".to_owned()),
            Read::Not(why) => Err(why),
        })
    }

    fn read(&self, path: &RepoPath) -> Result<Read, Changed> {
        let read = match self.dir.open_published(path) {
            Ok(file) => read_whole(&file, (self.identity)(path)),
            Err(error) => Err(error),
        };
        match read {
            Ok(read) => read,
            Err(VolumeError::Missing { .. }) if self.manifest.file(path).is_none() => Ok(Read::Absent),
            // It was there when it was found right.
            Err(VolumeError::Missing { .. }) => Err(Changed),
            Err(VolumeError::NotRegular { .. } | VolumeError::Steered { .. }) => {
                Ok(Read::Not("a link, folder or device, which a gate does not follow".to_owned()))
            }
            Err(error) => Ok(Read::Not(in_words(&error))),
        }
    }
}

/// What came of reading a file.
enum Read {
    /// All of it.
    Whole(Vec<u8>),
    /// It is not there.
    Absent,
    /// It is there and was not read, for this reason.
    Not(String),
}

/// The outer error is the system's.
fn read_whole(
    file: &crate::volume::model_dir::PublishedFile,
    right: Option<Identity>,
) -> Result<Result<Read, Changed>, VolumeError> {
    let identity = file.identity();
    if right.is_some_and(|right| right != identity) {
        return Ok(Err(Changed));
    }
    if identity.size > POLICY_FILE_MAX_BYTES {
        let (size, most) = (units::bytes(identity.size), units::bytes(POLICY_FILE_MAX_BYTES));
        return Ok(Ok(Read::Not(format!("{size}, and a rule reads at most {most}"))));
    }
    let mut bytes = vec![0; usize::try_from(identity.size).unwrap_or(0)];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(filled as u64, &mut bytes[filled..])? {
            0 => return Ok(Err(Changed)),
            count => filled += count,
        }
    }
    let same = file.identity_now()? == identity;
    Ok(if same { Ok(Read::Whole(bytes)) } else { Err(Changed) })
}
