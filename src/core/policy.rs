//! The operator's policy: what a model has to be, beside whole and verified.
//!
//! Owns the rules as values. How they are written is `parse`'s, how they are held against a model
//! [`judge`]'s; both are pure, and the facts are gathered by `gate::policy`. Invariant: a rule makes
//! exactly one demand, and what cannot be established never counts as kept.

mod breach;
mod condition;
mod flaw;
pub mod judge;
mod look;
mod making;
mod number;
mod parse;
mod written;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::digest::Sha256;
use super::repo::CommitId;
use super::selection::Pattern;

pub use breach::{Breach, Remedy};
pub use condition::{Bound, Condition, Missing, Pointer, Test};
pub use flaw::{Flaw, PolicyError, ValueFlaw};

/// What an operator demands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Policy {
    rules: Vec<Rule>,
}

/// One demand, and what is said when it is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Its name.
    pub name: Option<String>,
    /// Where it was written.
    pub origin: Origin,
    /// The repositories whose models it is about; empty for all.
    pub repos: Vec<Pattern>,
    /// What has to be so.
    pub demand: Demand,
    /// What whoever is refused reads.
    pub message: String,
    /// What to do then, in the operator's words.
    pub hint: Option<String>,
}

/// Where a rule was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    /// The file, or the name of a variable.
    pub source: String,
    /// The line, from 1.
    pub line: Option<usize>,
    /// Which rule of the file, from 1.
    pub number: Option<usize>,
}

/// What a rule demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// Of a value in a JSON file of the model, or of the file itself.
    Json(Condition),
    /// No file has such a name, but for exceptions.
    Forbid {
        /// Names.
        names: Globs,
        /// Names that may be all the same.
        except: Globs,
        /// Contents that may be all the same; none when contents do not matter.
        except_sha256: Option<BTreeSet<Sha256>>,
    },
    /// For each of these globs there is a file.
    Require {
        /// Names.
        names: Globs,
    },
    /// No file lies in the directory that is not in the manifest, but for exceptions.
    NoExtra {
        /// Names that may be all the same.
        except: Globs,
    },
    /// Files and folders have none of some permission bits, and files have all of others.
    Modes {
        /// The files; none for all, and then the folders count too.
        files: Option<Globs>,
        /// Bits that nothing may have.
        forbid: u32,
        /// Bits that every file needs.
        require: u32,
    },
    /// The model is at one of these commits.
    Commit(Vec<CommitId>),
    /// Its last verification is no older.
    VerifiedWithin(Duration),
    /// Its last verification is no younger.
    VerifiedFor(Duration),
    /// No file was changed here on purpose.
    NoLocalEdits,
}

/// Globs, and whether they know upper from lower case.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Globs {
    patterns: Vec<Pattern>,
    ignore_case: bool,
}

/// What happens to a model with files that were changed here on purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LocalEdits {
    /// It may be launched, and they are named.
    #[default]
    Allow,
    /// It may not.
    Deny,
}

impl LocalEdits {
    /// The word in files and settings.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Allow, Self::Deny].into_iter().find(|edits| edits.word() == text)
    }
}

impl Policy {
    /// Reads a policy file; `source` is its path, for messages.
    ///
    /// # Errors
    /// [`PolicyError`] with the line: nothing that was written is ignored.
    pub fn parse(text: &str, source: &str) -> Result<Self, PolicyError> {
        parse::file(text, source)
    }

    /// Reads the rules in `[gate]` of a configuration file, which has other tables too.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_config(text: &str, source: &str) -> Result<Self, PolicyError> {
        parse::config(text, source)
    }

    /// The policy that only says this about local edits; `source` names the setting.
    #[must_use]
    pub fn of_local_edits(edits: LocalEdits, source: &str) -> Self {
        let origin = Origin { source: source.to_owned(), line: None, number: None };
        Self { rules: parse::local_edits(edits, origin).into_iter().collect() }
    }

    /// Both: whatever one of them demands.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        self.rules.extend(other.rules);
        self
    }

    /// The rules, in their order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether nothing is demanded.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// What is to become of files that were changed here on purpose: denied when one rule says so.
    #[must_use]
    pub fn local_edits(&self) -> LocalEdits {
        let denied = self.rules.iter().any(|rule| rule.demand == Demand::NoLocalEdits);
        if denied { LocalEdits::Deny } else { LocalEdits::Allow }
    }
}

impl Rule {
    /// Whether it is about models of this repository.
    #[must_use]
    pub fn is_about(&self, repo: &str) -> bool {
        self.repos.is_empty() || self.repos.iter().any(|pattern| pattern.matches_name(repo))
    }

    /// Which rule it is and where it was written: `rule 2 "no pickle" in policy.toml line 9`.
    #[must_use]
    pub fn shown(&self) -> String {
        let number = self.origin.number.map(|number| format!(" {number}")).unwrap_or_default();
        let name = self.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        format!("rule{number}{name} in {}", self.origin)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source)?;
        self.line.map_or(Ok(()), |line| write!(f, " line {line}"))
    }
}

impl Globs {
    /// Whether one of them matches the whole name.
    #[must_use]
    pub fn match_name(&self, name: &str) -> bool {
        if !self.ignore_case {
            return self.patterns.iter().any(|pattern| pattern.matches_name(name));
        }
        let name = name.to_ascii_lowercase();
        self.patterns.iter().any(|pattern| pattern.matches_name(&name))
    }

    /// Each of them by itself.
    fn each(&self) -> impl Iterator<Item = Self> + '_ {
        self.patterns.iter().map(|one| Self { patterns: vec![one.clone()], ignore_case: self.ignore_case })
    }
}

impl fmt::Display for Globs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<_> = self.patterns.iter().map(Pattern::as_str).collect();
        f.write_str(&texts.join(", "))
    }
}

/// Most characters of somebody's text in a message.
const SHOWN_MAX: usize = 160;

/// A text of a model or of its directory, in one line and without what steers a terminal.
fn printable(text: &str) -> String {
    let is_odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    let mut shown = String::new();
    for (at, c) in text.chars().enumerate() {
        if at == SHOWN_MAX {
            shown.push('…');
            break;
        }
        if is_odd(c) { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_denial_of_local_edits_is_enough() {
        let says = |text: &str| Policy::parse(text, "p").unwrap();
        let (allow, deny) = (says("local_edits = \"allow\""), says("local_edits = \"deny\""));
        assert_eq!((allow.local_edits(), deny.local_edits()), (LocalEdits::Allow, LocalEdits::Deny));
        assert_eq!(allow.and(deny).local_edits(), LocalEdits::Deny);
        let by_variable = Policy::of_local_edits(LocalEdits::Deny, "MUSTER_LOCAL_EDITS");
        assert_eq!(by_variable.rules()[0].shown(), "rule \"local_edits\" in MUSTER_LOCAL_EDITS");
        assert!(Policy::of_local_edits(LocalEdits::Allow, "x").is_empty());
    }

    #[test]
    fn a_text_of_a_model_steers_no_terminal_and_fills_no_screen() {
        assert_eq!(printable("a\u{1b}[2J\u{202e}b"), "a\\u{1b}[2J\\u{202e}b");
        assert_eq!(printable(&"x".repeat(500)).chars().count(), SHOWN_MAX + 1);
    }
}
