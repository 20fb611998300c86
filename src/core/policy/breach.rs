//! A rule that keeps the gate closed: what was demanded, what was found where, and what would help.

use std::fmt;

use super::Rule;
use super::judge::Seen;
use crate::core::code::Code;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;

/// A rule that is not met, or of which nobody can tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breach {
    /// Which rule, and where it was written.
    pub rule: String,
    /// The operator's words.
    pub message: String,
    /// The operator's advice.
    pub hint: Option<String>,
    /// What was demanded and found, and where.
    pub seen: Seen,
    /// Whether nobody can tell, so that it is no refusal.
    pub unknown: bool,
    /// What would help.
    pub remedy: Remedy,
}

/// What would help against a breach, for whoever knows how the model is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Remedy {
    /// Another model, another launcher, or another value in this file.
    Change {
        /// The file.
        file: RepoPath,
    },
    /// The file goes, or the rule lets it be by its name.
    Except,
    /// The file goes, or the rule lets it be by its digest.
    ExceptDigest,
    /// A pull that brings more files.
    Pull,
    /// Other permission bits, as `chmod` takes them.
    Modes {
        /// The change.
        change: String,
    },
    /// This commit.
    Commit(CommitId),
    /// Another verification.
    Verify,
    /// Time.
    Wait,
    /// The published file again.
    Undo {
        /// The file.
        file: RepoPath,
    },
    /// That the file can be read.
    Readable,
    /// Clocks that agree.
    Clocks,
}

impl Breach {
    pub(super) fn new(rule: &Rule, seen: Seen, remedy: Remedy, unknown: bool) -> Self {
        let (message, hint) = (rule.message.clone(), rule.hint.clone());
        Self { rule: rule.shown(), message, hint, seen, unknown, remedy }
    }

    /// The outcome it stands for.
    #[must_use]
    pub const fn code(&self) -> Code {
        if self.unknown { Code::CouldNotCheck } else { Code::Refused }
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doubt = if self.unknown { "it cannot be told whether this rule is met: " } else { "" };
        write!(f, "{doubt}{} ({}: {})", self.message, self.rule, self.seen)
    }
}
