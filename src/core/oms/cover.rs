//! Whether a signature is about exactly the files of a model.
//!
//! Owns the comparison: each file of the manifest is listed with the digest its bytes have, no other is
//! listed, and nothing lies in the directory that nobody listed. The root's `.git*` and our own folder are
//! in no signature; the manifest speaks for the former.

use std::fmt;

use super::statement::Statement;
use super::{CLIENT_NOTES, is_left_out};
use crate::core::digest::Sha256;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::reason::{Reason, Why};
use crate::core::repo_path::RepoPath;

/// Why a model is not what was signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untrusted {
    /// There is no signature.
    Absent,
    /// It cannot be read.
    Unreadable {
        /// Why.
        why: String,
    },
    /// It is not a signature by the key, or not of a model.
    Invalid {
        /// Why.
        why: String,
    },
    /// A file of the model that it does not list.
    NotListed,
    /// A file of the model that it leaves out on purpose.
    Hidden {
        /// The ignored path.
        by: String,
    },
    /// A file that it lists and the model has not.
    NoSuchFile,
    /// A file with other bytes than it says.
    Bytes {
        /// SHA-256 in the signature.
        signed: Sha256,
        /// SHA-256 here, where it is known.
        here: Option<Sha256>,
    },
    /// The same, and the change was meant.
    Edited {
        /// SHA-256 in the signature.
        signed: Sha256,
        /// SHA-256 here.
        here: Sha256,
    },
    /// Something in the directory that nobody listed.
    Extra {
        /// Where.
        path: String,
    },
    /// What lies in the directory is not known.
    Unlisted {
        /// Why.
        why: String,
    },
}

impl Untrusted {
    /// The reason to keep a gate closed.
    #[must_use]
    pub fn reason(self, file: Option<RepoPath>) -> Reason {
        Reason { file, why: Why::Signature(Box::new(self)) }
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("a signature is required, and there is none"),
            Self::Unreadable { why } => write!(f, "the signature could not be read: {why}"),
            Self::Invalid { why } => f.write_str(why),
            Self::NotListed => f.write_str("it is not in the signature"),
            Self::Hidden { by } => write!(f, "it is not in the signature, which ignores `{by}` on purpose"),
            Self::NoSuchFile => f.write_str("it is in the signature, and no file of the model"),
            Self::Bytes { signed, here: Some(here) } => {
                write!(f, "sha256 {}… was signed, {}… is here", signed.short(), here.short())
            }
            Self::Bytes { signed, here: None } => write!(f, "other bytes were signed: sha256 {}…", signed.short()),
            Self::Edited { signed, here } => write!(
                f,
                "it was changed here on purpose after it was signed: sha256 {}… was signed, {}… is here",
                signed.short(),
                here.short()
            ),
            Self::Extra { path } => write!(f, "{}: it is in the directory, and nobody signed it", path.escape_debug()),
            Self::Unlisted { why } => write!(f, "what else is in the directory is not known: {why}"),
        }
    }
}

/// What is known of the bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Here {
    /// They hash to this.
    Sha256(Sha256),
    /// They are not what they should be, and hash to something else.
    Wrong,
    /// There are none, or nobody looked: that is a reason of its own.
    Unknown,
}

/// Holds the files of a model against the statement. `here` tells what is known of the file at a place
/// of the manifest, `is_edit` whether it was changed on purpose.
#[must_use]
pub fn compare(
    statement: &Statement,
    manifest: &Manifest,
    here: impl Fn(usize, &FileEntry) -> Here,
    is_edit: impl Fn(&RepoPath) -> bool,
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    for (at, entry) in manifest.files().iter().enumerate() {
        let path = &entry.path;
        let untrusted = match (statement.sha256(path), here(at, entry)) {
            (None, _) if is_left_out(path.as_str()) => None,
            (None, _) => Some(match statement.ignored(path.as_str()) {
                Some(by) => Untrusted::Hidden { by: by.to_owned() },
                None => Untrusted::NotListed,
            }),
            (Some(signed), Here::Sha256(here)) if signed == here => None,
            (Some(signed), Here::Sha256(here)) if is_edit(path) => Some(Untrusted::Edited { signed, here }),
            (Some(signed), Here::Sha256(here)) => Some(Untrusted::Bytes { signed, here: Some(here) }),
            (Some(signed), Here::Wrong) => Some(Untrusted::Bytes { signed, here: None }),
            (Some(_), Here::Unknown) => None,
        };
        reasons.extend(untrusted.map(|untrusted| untrusted.reason(Some(path.clone()))));
    }
    for (path, _) in statement.files().iter().filter(|(path, _)| manifest.file(path).is_none()) {
        reasons.push(Untrusted::NoSuchFile.reason(Some(path.clone())));
    }
    reasons
}

/// What lies in the directory and in no list: `names` are its files, links and devices.
#[must_use]
pub fn extras(statement: &Statement, manifest: &Manifest, names: impl Iterator<Item = String>) -> Vec<Reason> {
    let is_known = |name: &str| {
        is_left_out(name)
            || statement.ignored(name).is_some()
            || RepoPath::parse(name).is_ok_and(|path| manifest.file(&path).is_some())
    };
    names.filter(|name| !is_known(name)).map(|path| Untrusted::Extra { path }.reason(None)).collect()
}

/// Whether a statement was made about this model as it is now or was before files were changed on
/// purpose: such a signature stays where it is. `sha256` is what the file at a place of the manifest
/// hashes to.
#[must_use]
pub fn is_about(
    statement: &Statement,
    manifest: &Manifest,
    sha256: impl Fn(usize) -> Option<Sha256>,
    is_edit: impl Fn(&RepoPath) -> bool,
) -> bool {
    let here = |at: usize, entry: &FileEntry| match sha256(at) {
        Some(sha256) if !is_edit(&entry.path) => Here::Sha256(sha256),
        _ => Here::Unknown,
    };
    compare(statement, manifest, here, &is_edit).is_empty()
}

/// What a signature made here does not speak of; the client's notes where there are some.
#[must_use]
pub fn left_out(has_client_notes: bool) -> Vec<String> {
    let own = [crate::core::repo_path::OWN_DIR].into_iter();
    let notes = has_client_notes.then_some(CLIENT_NOTES);
    super::GIT_PATHS.into_iter().chain(own).chain(notes).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::source;
    use crate::core::verify::tests::lfs_entry;

    fn sha256(bytes: &[u8]) -> Sha256 {
        use sha2::Digest as _;
        Sha256::from_bytes(sha2::Sha256::digest(bytes).into())
    }

    fn manifest(names: &[&str]) -> Manifest {
        Manifest::seal(source(), names.iter().map(|name| lfs_entry(name, name.as_bytes())).collect()).unwrap()
    }

    fn statement(names: &[&str], ignored: &[&str]) -> Statement {
        let files = names.iter().map(|name| (RepoPath::parse(name).unwrap(), sha256(name.as_bytes())));
        Statement::new("m", files.collect(), ignored.iter().map(|path| (*path).to_owned()).collect()).unwrap()
    }

    fn right(_: usize, entry: &FileEntry) -> Here {
        Here::Sha256(sha256(entry.path.as_str().as_bytes()))
    }

    fn whys(reasons: &[Reason]) -> Vec<String> {
        reasons.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_file_is_listed_and_no_other() {
        let model = manifest(&["a", "b", ".gitattributes"]);
        assert!(compare(&statement(&["a", "b"], &[]), &model, right, |_| false).is_empty());
        assert!(compare(&statement(&["a", "b", ".gitattributes"], &[]), &model, right, |_| false).is_empty());
        let less = compare(&statement(&["a"], &[]), &model, right, |_| false);
        assert_eq!(whys(&less), ["b: it is not in the signature"]);
        let hidden = compare(&statement(&["a"], &["b"]), &model, right, |_| false);
        assert_eq!(whys(&hidden), ["b: it is not in the signature, which ignores `b` on purpose"]);
        let more = compare(&statement(&["a", "b", "c"], &[]), &model, right, |_| false);
        assert_eq!(whys(&more), ["c: it is in the signature, and no file of the model"]);
    }

    #[test]
    fn what_is_known_of_the_bytes_decides() {
        let (model, signed) = (manifest(&["a"]), statement(&["a"], &[]));
        let with = |here: Here, is_edit: bool| whys(&compare(&signed, &model, |_, _| here, |_| is_edit));
        let other = Here::Sha256(sha256(b"other"));
        assert!(with(other, false)[0].contains("was signed, "));
        assert!(with(other, true)[0].contains("changed here on purpose after it was signed"));
        assert!(with(Here::Wrong, false)[0].contains("other bytes were signed"));
        assert!(with(Here::Unknown, false).is_empty(), "that there is none is a reason of its own");
    }

    #[test]
    fn what_lies_about_is_known_to_the_manifest_or_ignored() {
        let (model, signed) = (manifest(&["a"]), statement(&["a"], &["notes"]));
        let names = ["a", "notes/x", ".git/config", ".muster/x", "evil.py", "sub/.git/x", "a\u{1b}[2J"];
        let found = extras(&signed, &model, names.into_iter().map(str::to_owned));
        let whys = whys(&found);
        assert_eq!(whys.len(), 3, "{whys:?}");
        assert!(whys[0].starts_with("evil.py: it is in the directory"));
        assert!(!whys[2].chars().any(char::is_control), "nothing steers a terminal");
    }

    #[test]
    fn a_signature_is_about_its_model_before_an_edit_and_after_it() {
        let (model, signed) = (manifest(&["a", "b"]), statement(&["a", "b"], &[]));
        let records = |at: usize| Some(sha256(["a", "edited"][at].as_bytes()));
        assert!(is_about(&signed, &model, records, |path| path.as_str() == "b"));
        assert!(!is_about(&signed, &model, records, |_| false));
        assert!(!is_about(&statement(&["a"], &[]), &model, records, |_| true), "another set of files");
    }
}
