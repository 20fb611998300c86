//! A policy held against a model. Pure: the facts are arguments. Invariant: a fact that could not
//! be had keeps a rule from being met.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use super::breach::Breach;
use super::look::{Finding, Outcome, is_forbidden};
use super::{Demand, Policy, Rule};
use crate::core::digest::Sha256;
use crate::core::reason::{Reason, Why};
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;

/// What is known of a model.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its repository.
    pub repo: &'a str,
    /// Its commit.
    pub commit: CommitId,
    /// When it was last verified as a whole.
    pub verified_at: Timestamp,
    /// Whether every byte was hashed just now.
    pub hashed_now: bool,
    /// The time.
    pub now: Timestamp,
    /// The files that [`Policy::documents`] names.
    pub documents: &'a BTreeMap<RepoPath, Document>,
    /// What lies in the directory, for [`Policy::needs_names`]; or why that cannot be told.
    pub names: Result<&'a [Name], &'a str>,
    /// The digests of the files that [`Policy::digests`] names; or why there is none.
    pub digests: &'a BTreeMap<String, Result<Sha256, String>>,
    /// Files that were changed here on purpose.
    pub local_edits: &'a [RepoPath],
}

/// A file that a condition is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// It is not there.
    Missing,
    /// What is in it.
    Json(Value),
    /// It is there, and no JSON.
    NoJson {
        /// What the parser says.
        why: String,
    },
    /// It is there, and nobody can tell what is in it.
    Unreadable {
        /// Why.
        why: String,
    },
}

/// What a name in the directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A link, or something odder.
    Other,
}

/// A name in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Its path below the directory.
    pub path: String,
    /// What it stands for.
    pub kind: Kind,
    /// Its permission bits.
    pub mode: u32,
    /// Whether the manifest does not have it.
    pub is_extra: bool,
}

/// What was demanded and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The file it is about, or the first of several.
    pub file: Option<RepoPath>,
    /// The place in that file.
    pub pointer: Option<String>,
    /// What it is about, in words.
    pub about: String,
    /// What was demanded.
    pub expected: String,
    /// What was found.
    pub found: String,
}

/// What became of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is about other repositories.
    Elsewhere,
    /// It is met.
    Met(Seen),
    /// It is not met, or nobody can tell.
    Broken(Breach),
}

impl Policy {
    /// The files whose content conditions are about.
    pub fn documents(&self) -> impl Iterator<Item = &RepoPath> {
        self.rules().iter().filter_map(|rule| match &rule.demand {
            Demand::Json(condition) => Some(&condition.file),
            _ => None,
        })
    }

    /// Whether a rule is about names or modes in the directory.
    #[must_use]
    pub fn needs_names(&self) -> bool {
        let is_about_names = |demand: &Demand| {
            matches!(
                demand,
                Demand::Forbid { .. } | Demand::Require { .. } | Demand::NoExtra { .. } | Demand::Modes { .. }
            )
        };
        self.rules().iter().any(|rule| is_about_names(&rule.demand))
    }

    /// The files among `names` whose digest decides.
    #[must_use]
    pub fn digests<'a>(&self, names: &'a [Name]) -> Vec<&'a Name> {
        let decides = |name: &Name| {
            self.rules().iter().any(|rule| match &rule.demand {
                Demand::Forbid { names, except, except_sha256 } => {
                    !except_sha256.is_empty() && is_forbidden(name, names, except)
                }
                _ => false,
            })
        };
        names.iter().filter(|name| name.kind == Kind::File && decides(name)).collect()
    }

    /// The verdict of each rule, in their order.
    #[must_use]
    pub fn judge(&self, facts: &Facts<'_>) -> Vec<Verdict> {
        self.rules().iter().map(|rule| rule.judge(facts)).collect()
    }
}

/// The reasons to stay closed among verdicts.
#[must_use]
pub fn reasons(verdicts: &[Verdict]) -> Vec<Reason> {
    let broken = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Broken(breach) => Some(breach),
        Verdict::Elsewhere | Verdict::Met(_) => None,
    });
    broken.map(|breach| Reason { file: breach.seen.file.clone(), why: Why::Policy(Box::new(breach.clone())) }).collect()
}

impl Rule {
    /// Holds it against a model.
    #[must_use]
    pub fn judge(&self, facts: &Facts<'_>) -> Verdict {
        if !self.is_about(facts.repo) {
            return Verdict::Elsewhere;
        }
        let Finding { seen, outcome } = self.demand.find(facts);
        match outcome {
            Outcome::Met => Verdict::Met(seen),
            Outcome::Broken(remedy) => Verdict::Broken(Breach::new(self, seen, remedy, false)),
            Outcome::Unknown(remedy) => Verdict::Broken(Breach::new(self, seen, remedy, true)),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} expected, {} found", self.about, self.expected, self.found)
    }
}
