//! What can be wrong with a policy: the file, the line, the key, and what belongs there.

use thiserror::Error;

use super::printable;
use crate::core::digest::DigestError;
use crate::core::repo_path::RepoPathError;
use crate::core::selection::PatternError;
use crate::core::units::UnitError;

/// Why a text is no policy.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file} line {line}: {flaw}")]
pub struct PolicyError {
    /// The file.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong there.
    pub flaw: Flaw,
}

/// What is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Flaw {
    /// No TOML, an unknown key, or a value of another type.
    #[error("{message}")]
    Toml {
        /// What the parser says.
        message: String,
    },
    /// It demands nothing, so it is hardly what was meant.
    #[error("the policy is empty: it has neither a [[rule]] nor local_edits")]
    Nothing,
    /// More rules than can be meant.
    #[error("{rules} rules are too many (at most {max})")]
    TooMany {
        /// How many there are.
        rules: usize,
        /// How many may be.
        max: usize,
    },
    /// Without one nobody would know why.
    #[error("{rule} has no `message`: the words that whoever is refused should read")]
    NoMessage {
        /// The rule.
        rule: String,
    },
    /// A rule that is about nothing.
    #[error("{rule} demands nothing: it needs one of {known}")]
    NoDemand {
        /// The rule.
        rule: String,
        /// What makes a demand.
        known: String,
    },
    /// A rule that is about two things.
    #[error("{rule} has `{one}` and `{other}`, which are two demands: write a rule for each")]
    TwoDemands {
        /// The rule.
        rule: String,
        /// The one.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// A key of another kind of rule.
    #[error("{rule}: `{key}` does not belong to a rule with `{demand}`")]
    Foreign {
        /// The rule.
        rule: String,
        /// The key.
        key: &'static str,
        /// What the rule is about.
        demand: &'static str,
    },
    /// No condition, or several.
    #[error("{rule} has {found} conditions, and needs one of equals, not, in, not_in, exists, compare")]
    Conditions {
        /// The rule.
        rule: String,
        /// How many.
        found: usize,
    },
    /// A condition on a value, and nothing says which.
    #[error("{rule} has no `pointer`: only `exists` can be about the file itself (\"\" is the whole document)")]
    NoPointer {
        /// The rule.
        rule: String,
    },
    /// Conditions that contradict each other or say nothing.
    #[error("{rule}: `{key}` makes no sense beside `{beside}`")]
    Senseless {
        /// The rule.
        rule: String,
        /// The key.
        key: &'static str,
        /// What it stands beside.
        beside: &'static str,
    },
    /// A value that does not parse.
    #[error("{rule}: `{key}`: {why}")]
    Value {
        /// The rule.
        rule: String,
        /// The key.
        key: &'static str,
        /// What is wrong with it.
        why: ValueFlaw,
    },
}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueFlaw {
    /// A JSON pointer.
    #[error("`{}` is no JSON pointer: it starts with `/`, and `~` is written ~0 and `/` in a name ~1", printable(.text))]
    Pointer {
        /// What was given.
        text: String,
    },
    /// Bounds on a number.
    #[error("`{}` compares nothing: write for example \">= 1.5\" or \">= 1.5, < 2\"", printable(.text))]
    Compare {
        /// What was given.
        text: String,
    },
    /// Permission bits.
    #[error("`{}` is no mode: write permission bits in octal, for example \"0022\"", printable(.text))]
    Mode {
        /// What was given.
        text: String,
    },
    /// A commit.
    #[error("`{}` is no commit: write all 40 hexadecimal digits", printable(.text))]
    Commit {
        /// What was given.
        text: String,
    },
    /// One of a few words.
    #[error("`{}` is none of {words}", printable(.text))]
    Word {
        /// What was given.
        text: String,
        /// What may be given.
        words: &'static str,
    },
    /// A wildcard where one file is named.
    #[error("`{}` names one file, and wildcards mean nothing there", printable(.text))]
    Wildcard {
        /// What was given.
        text: String,
    },
    /// A list or text with nothing in it.
    #[error("it is empty")]
    Empty,
    /// More than can be meant.
    #[error("it is longer than {max}")]
    TooLong {
        /// How much may be.
        max: usize,
    },
    /// A control character.
    #[error("it has a control character")]
    Control,
    /// A date, or a number that is none.
    #[error("a value of JSON belongs there, and {found} is none")]
    NoJson {
        /// What it is.
        found: &'static str,
    },
    /// A name of a file.
    #[error("{0}")]
    Path(RepoPathError),
    /// A glob.
    #[error("{0}")]
    Pattern(PatternError),
    /// A digest.
    #[error("{0}")]
    Digest(DigestError),
    /// A duration.
    #[error("{0}")]
    Unit(UnitError),
}
