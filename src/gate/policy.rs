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
use crate::core::policy::judge::{Digested, Document, Facts, Name, Verdict};
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
            Read::TooLarge(why) | Read::Not(why) => Document::Unreadable { why },
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

    fn digest(&self, path: &str) -> Result<Digested, Changed> {
        let unreadable = |why: &str| Digested::Unreadable { why: why.to_owned() };
        let Ok(path) = RepoPath::parse(path) else { return Ok(unreadable("a name that no repository has")) };
        Ok(match self.read(&path)? {
            Read::Whole(bytes) => Digested::As(Sha256::from_bytes(sha2::Sha256::digest(&bytes).into())),
            Read::Absent => unreadable("it cannot be opened by this name"),
            Read::TooLarge(why) => Digested::TooLarge { why },
            Read::Not(why) => Digested::Unreadable { why },
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
    /// It is there, and larger than anybody reads.
    TooLarge(String),
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
        return Ok(Ok(Read::TooLarge(format!("{size}, and a rule reads at most {most}"))));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::{entry, source};
    use crate::core::receipt::{FileRecord, Proved, Witness};
    use crate::core::verify::FileHasher;
    use crate::core::verify::tests::lfs_entry;

    #[test]
    fn only_the_bytes_that_were_found_right_are_judged() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("a.json"), b"{}").unwrap();
        std::fs::write(place.path().join("beside.json"), b"[]").unwrap();
        let dir = ModelDir::open(place.path()).unwrap();
        let a = lfs_entry("a.json", b"{}");
        let manifest = Manifest::seal(source(), vec![a.clone(), entry("gone.json", 1)]).unwrap();
        let mut hasher = FileHasher::new(&a);
        hasher.update(b"{}");
        let right = dir.open_published(&a.path).unwrap().identity();
        let small = Manifest::seal(source(), vec![a.clone()]).unwrap();
        let record = FileRecord::new(a.path.clone(), &hasher.finish().unwrap(), right, Proved::Readback);
        let witness = Witness { at: jiff::Timestamp::UNIX_EPOCH, program: "p".into(), host: "h".into() };
        let receipt = Receipt::seal(&small, vec![record], witness).unwrap();
        let judge = |file: &str, identity: Option<Identity>| {
            let scene = Scene {
                dir: &dir,
                manifest: &manifest,
                receipt: &receipt,
                identity: &|_| identity,
                hashed_now: false,
                local_edits: &[],
            };
            let text = format!("[[rule]]\nmessage = \"m\"\nfile = \"{file}\"\npointer = \"\"\nexists = true");
            scene.judge(&Policy::parse(&text, "p").unwrap()).map(|mut verdicts| verdicts.pop().unwrap())
        };
        assert!(matches!(judge("a.json", Some(right)), Ok(Verdict::Met(_))));
        assert!(judge("a.json", Some(right.distrusted())).is_err(), "it was replaced since it was found right");
        assert!(judge("gone.json", Some(right)).is_err(), "it was there a moment ago");
        assert!(matches!(judge("beside.json", None), Ok(Verdict::Met(_))));
        assert!(matches!(judge("nowhere.json", None), Ok(Verdict::Broken(breach)) if !breach.unknown));
    }
}
