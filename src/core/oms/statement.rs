//! What is signed: the files of one model, each with its SHA-256 (in-toto statement, predicate of OMS 1.0).
//!
//! Invariants of a [`Statement`]: paths are well-formed, sorted and unique; the subject's digest is the
//! one over all files'; method `files`, hash SHA-256. A statement of anybody else is read as strictly,
//! except where the specification wants leniency: order may be by component, names of models are free.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Digest as _;
use thiserror::Error;

use super::is_below;
use crate::core::digest::Sha256;
use crate::core::repo_path::{OWN_DIR, RepoPath, RepoPathError};

/// Kind of the statement (in-toto attestation framework, version 1).
const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// Kind of what it says (section 5.1 of the specification).
const PREDICATE: &str = "https://model_signing/signature/v1.0";
const ALGORITHM: &str = "sha256";
const METHOD: &str = "files";
const SHARDS: &str = "shards";
/// Longest text of somebody else's that an error repeats.
const SHOWN_MAX: usize = 100;

/// Why a payload that was signed is no statement about a model.
#[derive(Debug, Error)]
pub enum StatementError {
    /// Not JSON of the shape.
    #[error("what was signed is no statement about a model")]
    Shape(#[source] serde_json::Error),
    /// Another kind of statement.
    #[error("what was signed is a statement of kind `{found}`, not {STATEMENT}")]
    Kind {
        /// Its `_type`.
        found: String,
    },
    /// It says something else than which files there are.
    #[error("what was signed says `{found}`, not {PREDICATE}")]
    Predicate {
        /// Its `predicateType`.
        found: String,
    },
    /// Not one model.
    #[error("what was signed has {count} subjects, and one model is one")]
    Subjects {
        /// How many.
        count: usize,
    },
    /// No digest over all.
    #[error("what was signed has no SHA-256 over all its files")]
    NoRoot,
    /// Another digest over all than its files have.
    #[error("what was signed contradicts itself: sha256 {}… over all files is said, {}… is right", .said.short(), .right.short())]
    Root {
        /// What it says.
        said: Sha256,
        /// What its files come to.
        right: Sha256,
    },
    /// Digests of pieces.
    #[error("what was signed are shards of files, and only whole files can be compared here")]
    Shards,
    /// Another way to list files.
    #[error("what was signed lists files by a method `{found}` that nobody here knows")]
    Method {
        /// Its name.
        found: String,
    },
    /// Another hash.
    #[error("what was signed has digests by `{found}`, and only sha256 can be compared here")]
    Hash {
        /// Its name.
        found: String,
    },
    /// Another hash of one file.
    #[error("{name} has a digest by `{found}`, and only sha256 can be compared here")]
    Algorithm {
        /// The file.
        name: String,
        /// The hash's name.
        found: String,
    },
    /// No digest.
    #[error("the digest of {name} is no SHA-256")]
    Digest {
        /// The file.
        name: String,
    },
    /// Nothing.
    #[error("what was signed lists no file")]
    NoFiles,
    /// A path that leads elsewhere.
    #[error("what was signed lists a name that no file may have")]
    Path(#[source] RepoPathError),
    /// A file of ours.
    #[error(
        "what was signed lists {name}, which changes while the model does not: sign again, with `{OWN_DIR}` in its ignored paths"
    )]
    Ours {
        /// The file.
        name: String,
    },
    /// Twice the same.
    #[error("what was signed lists {name} twice")]
    Twice {
        /// The file.
        name: String,
    },
    /// Out of order.
    #[error("what was signed lists {name} out of order")]
    Unsorted {
        /// The file.
        name: String,
    },
    /// An ignored path that is none.
    #[error("what was signed ignores `{path}`, which is no plain path in the model")]
    Ignored {
        /// The path.
        path: String,
    },
}

/// The files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    model: String,
    /// Sorted by path.
    files: Vec<(RepoPath, Sha256)>,
    ignored: Vec<String>,
}

impl Statement {
    /// A statement about `files`; `ignored` are the paths that it does not speak of.
    ///
    /// # Errors
    /// [`StatementError::NoFiles`], [`StatementError::Twice`].
    pub fn new(
        model: &str,
        mut files: Vec<(RepoPath, Sha256)>,
        mut ignored: Vec<String>,
    ) -> Result<Self, StatementError> {
        files.sort();
        ignored.sort();
        if files.is_empty() {
            return Err(StatementError::NoFiles);
        }
        check_order(&files)?;
        Ok(Self { model: model.to_owned(), files, ignored })
    }

    /// Reads what was signed.
    ///
    /// # Errors
    /// [`StatementError`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, StatementError> {
        let head: Head = serde_json::from_slice(bytes).map_err(StatementError::Shape)?;
        if head.kind != STATEMENT {
            return Err(StatementError::Kind { found: shown(&head.kind) });
        }
        if head.predicate_type != PREDICATE {
            return Err(StatementError::Predicate { found: shown(&head.predicate_type) });
        }
        let subjects: Vec<Subject> = serde_json::from_value(head.subject).map_err(StatementError::Shape)?;
        let count = subjects.len();
        let Ok([subject]) = <[Subject; 1]>::try_from(subjects) else {
            return Err(StatementError::Subjects { count });
        };
        let Predicate { resources, serialization } =
            serde_json::from_value(head.predicate).map_err(StatementError::Shape)?;
        check_method(&serialization)?;
        let ignored = serialization.ignore_paths.unwrap_or_default();
        if let Some(path) = ignored.iter().find(|path| !is_plain(path)) {
            return Err(StatementError::Ignored { path: shown(path) });
        }
        let mut files = resources.into_iter().map(file).collect::<Result<Vec<_>, _>>()?;
        if files.is_empty() {
            return Err(StatementError::NoFiles);
        }
        let said = subject.digest.get(ALGORITHM).and_then(|text| Sha256::parse(text).ok());
        let (said, right) = (said.ok_or(StatementError::NoRoot)?, root_of(&files));
        if said != right {
            return Err(StatementError::Root { said, right });
        }
        check_order(&files)?;
        files.sort();
        Ok(Self { model: subject.name, files, ignored })
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let root = root_of(&self.files).to_string();
        let resource = |(path, sha256): &(RepoPath, Sha256)| Resource {
            name: path.as_str().to_owned(),
            algorithm: ALGORITHM.to_owned(),
            digest: sha256.to_string(),
        };
        let whole = Whole {
            kind: STATEMENT,
            subject: [Subject { name: self.model.clone(), digest: BTreeMap::from([(ALGORITHM.to_owned(), root)]) }],
            predicate_type: PREDICATE,
            predicate: Predicate {
                resources: self.files.iter().map(resource).collect(),
                serialization: Serialization {
                    method: METHOD.to_owned(),
                    hash_type: ALGORITHM.to_owned(),
                    allow_symlinks: false,
                    ignore_paths: Some(self.ignored.clone()),
                },
            },
        };
        serde_json::to_vec(&whole).expect("a statement has string keys only")
    }

    /// The files, sorted by path.
    #[must_use]
    pub fn files(&self) -> &[(RepoPath, Sha256)] {
        &self.files
    }

    /// What the bytes of a file hash to; none when it is not listed.
    #[must_use]
    pub fn sha256(&self, path: &RepoPath) -> Option<Sha256> {
        let at = self.files.binary_search_by(|(listed, _)| listed.cmp(path)).ok()?;
        self.files.get(at).map(|(_, sha256)| *sha256)
    }

    /// The ignored path that `path` is or is in.
    #[must_use]
    pub fn ignored(&self, path: &str) -> Option<&str> {
        self.ignored.iter().map(String::as_str).find(|ignored| is_below(path, ignored))
    }
}

#[derive(Serialize)]
struct Whole {
    #[serde(rename = "_type")]
    kind: &'static str,
    subject: [Subject; 1],
    #[serde(rename = "predicateType")]
    predicate_type: &'static str,
    predicate: Predicate,
}

#[derive(Deserialize)]
struct Head {
    #[serde(rename = "_type")]
    kind: String,
    #[serde(rename = "predicateType")]
    predicate_type: String,
    subject: Value,
    #[serde(default)]
    predicate: Value,
}

#[derive(Serialize, Deserialize)]
struct Subject {
    name: String,
    digest: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct Predicate {
    serialization: Serialization,
    resources: Vec<Resource>,
}

#[derive(Serialize, Deserialize)]
struct Serialization {
    method: String,
    hash_type: String,
    /// A gate follows no link, whatever is allowed.
    allow_symlinks: bool,
    ignore_paths: Option<Vec<String>>,
}

#[derive(Serialize, Deserialize)]
struct Resource {
    name: String,
    algorithm: String,
    digest: String,
}

fn check_method(serialization: &Serialization) -> Result<(), StatementError> {
    match serialization.method.as_str() {
        METHOD => {}
        SHARDS => return Err(StatementError::Shards),
        other => return Err(StatementError::Method { found: shown(other) }),
    }
    match serialization.hash_type.as_str() {
        ALGORITHM => Ok(()),
        other => Err(StatementError::Hash { found: shown(other) }),
    }
}

fn file(resource: Resource) -> Result<(RepoPath, Sha256), StatementError> {
    let Resource { name, algorithm, digest } = resource;
    if algorithm != ALGORITHM {
        return Err(StatementError::Algorithm { name: shown(&name), found: shown(&algorithm) });
    }
    let Ok(sha256) = Sha256::parse(&digest) else { return Err(StatementError::Digest { name: shown(&name) }) };
    match RepoPath::parse(&name) {
        Ok(path) => Ok((path, sha256)),
        Err(_) if is_below(&name, OWN_DIR) => Err(StatementError::Ours { name: shown(&name) }),
        Err(error) => Err(StatementError::Path(error)),
    }
}

/// By code points, as the specification wants it; or by components, as its reference implementation
/// does it: `a/b` and then `a.json`.
fn check_order(files: &[(RepoPath, Sha256)]) -> Result<(), StatementError> {
    let by_components = |a: &RepoPath, b: &RepoPath| a.components().cmp(b.components());
    let wrong = |order: &dyn Fn(&RepoPath, &RepoPath) -> Ordering| {
        files.windows(2).map(|pair| (&pair[0].0, &pair[1].0)).find(|(a, b)| order(a, b) != Ordering::Less)
    };
    let (Some((_, late)), Some(_)) = (wrong(&RepoPath::cmp), wrong(&by_components)) else { return Ok(()) };
    let mut paths: Vec<_> = files.iter().map(|(path, _)| path).collect();
    paths.sort();
    let name = |path: &RepoPath| path.as_str().to_owned();
    match paths.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(StatementError::Twice { name: name(pair[0]) }),
        None => Err(StatementError::Unsorted { name: name(late) }),
    }
}

/// Section 6.5.1 of the specification: over the raw digests, in the order they stand in.
fn root_of(files: &[(RepoPath, Sha256)]) -> Sha256 {
    let mut hash = sha2::Sha256::new();
    for (_, sha256) in files {
        hash.update(sha256.as_bytes());
    }
    Sha256::from_bytes(hash.finalize().into())
}

/// Section 6.2.1 of the specification.
fn is_plain(path: &str) -> bool {
    let is_component = |text: &str| !matches!(text, "" | "." | "..");
    path.split('/').all(is_component) && !path.contains(['*', '?', '[', '\\']) && !path.chars().any(char::is_control)
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> RepoPath {
        RepoPath::parse(text).unwrap()
    }

    fn statement(names: &[&str]) -> Statement {
        let files = names.iter().zip(1u8..).map(|(name, n)| (path(name), Sha256::from_bytes([n; 32])));
        Statement::new("model", files.collect(), vec![".muster".into()]).unwrap()
    }

    /// The JSON of a statement whose files stand in this order, the digest over all made to fit.
    fn listed(names: &[&str]) -> Vec<u8> {
        let mut json: Value = serde_json::from_slice(&statement(&["a"]).to_json()).unwrap();
        let digest = Sha256::from_bytes([7; 32]);
        let resource = |name: &&str| serde_json::json!({"name": name, "algorithm": ALGORITHM, "digest": digest});
        json["predicate"]["resources"] = names.iter().map(resource).collect();
        let files: Vec<_> = names.iter().map(|_| (path("x"), digest)).collect();
        json["subject"][0]["digest"][ALGORITHM] = root_of(&files).to_string().into();
        json.to_string().into_bytes()
    }

    #[test]
    fn files_are_sorted_by_code_points_as_they_are_written() {
        let made = statement(&["b", "a/c", "a.json", "é"]);
        let names: Vec<_> = made.files().iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(names, ["a.json", "a/c", "b", "é"]);
        assert_eq!(Statement::from_json(&made.to_json()).unwrap(), made);
        assert_eq!(made.sha256(&path("a/c")), Some(Sha256::from_bytes([2; 32])));
        assert_eq!(made.sha256(&path("a")), None);
    }

    #[test]
    fn either_order_is_read_and_no_other() {
        for names in [&["a.json", "a/c", "b"][..], &["a/c", "a.json", "b"]] {
            let read = Statement::from_json(&listed(names)).unwrap();
            assert!(read.files().is_sorted(), "whatever it was");
        }
        for names in [&["b", "a"][..], &["a.json", "b", "a/c"]] {
            assert!(matches!(Statement::from_json(&listed(names)), Err(StatementError::Unsorted { .. })), "{names:?}");
        }
        for names in [&["a", "a"][..], &["b", "a", "b"]] {
            assert!(matches!(Statement::from_json(&listed(names)), Err(StatementError::Twice { .. })), "{names:?}");
        }
        assert!(matches!(Statement::new("m", vec![], vec![]), Err(StatementError::NoFiles)));
    }

    #[test]
    fn an_ignored_path_is_itself_and_what_is_in_it() {
        let made = statement(&["a"]);
        assert_eq!(made.ignored(".muster"), Some(".muster"));
        assert_eq!(made.ignored(".muster/receipt.json"), Some(".muster"));
        for other in [".muster2", "sub/.muster", "a"] {
            assert_eq!(made.ignored(other), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_statement_survives_its_json_form(
            files in prop::collection::btree_map("[a-c./é-]{1,6}", any::<[u8; 32]>(), 1..9),
            model in ".*",
            ignored in prop::collection::btree_set("[a-c]{1,3}(/[a-c]{1,3})?", 0..4),
        ) {
            let parse = |(name, bytes): (String, [u8; 32])| Some((RepoPath::parse(&name).ok()?, Sha256::from_bytes(bytes)));
            let files: Vec<_> = files.into_iter().filter_map(parse).collect();
            let ignored = ignored.into_iter().collect();
            if let Ok(made) = Statement::new(&model, files, ignored) {
                prop_assert_eq!(Statement::from_json(&made.to_json()).unwrap(), made);
            }
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _either = Statement::from_json(&bytes);
        }
    }
}
