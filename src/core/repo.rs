//! Names on the Hub: kind and id of a repository, the revision a user asks for and the commit
//! it stands for.
//!
//! A [`CommitId`] is minted from a resolve answer or from 40 hexadecimal digits only; nothing
//! that touches files accepts a [`Revision`].

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::digest::{DigestError, decode_hex, digest_type};

/// Why a text names no repository or revision.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RepoError {
    /// Not `name` or `organisation/name` in the Hub's alphabet.
    #[error("`{text}` is no repository id")]
    Id {
        /// What was given.
        text: String,
    },
    /// Not one of the kinds.
    #[error("`{text}` is no repository type")]
    Kind {
        /// What was given.
        text: String,
    },
    /// Empty, or with characters that no git reference has.
    #[error("`{text}` is no revision")]
    Revision {
        /// What was given.
        text: String,
    },
}

/// Kind of repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RepoKind {
    /// A model.
    #[default]
    Model,
    /// A dataset.
    Dataset,
    /// A space.
    Space,
}

impl RepoKind {
    /// The segment after `/api/`, and of the directory for other kinds than models.
    #[must_use]
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
            Self::Space => "spaces",
        }
    }

    /// The prefix of a repository's pages and default directory: empty for models.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
            Self::Space => "spaces/",
        }
    }
}

impl fmt::Display for RepoKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Dataset => "dataset",
            Self::Space => "space",
        })
    }
}

impl std::str::FromStr for RepoKind {
    type Err = RepoError;
    fn from_str(text: &str) -> Result<Self, RepoError> {
        match text {
            "model" | "models" => Ok(Self::Model),
            "dataset" | "datasets" => Ok(Self::Dataset),
            "space" | "spaces" => Ok(Self::Space),
            _ => Err(RepoError::Kind { text: printable(text) }),
        }
    }
}

/// A repository id: one segment (the Hub's legacy names) or two.
///
/// Segments have 1 to 96 of `[A-Za-z0-9._-]`, and do not start or end with `.` or `-` nor
/// contain `..` or `--`, as the Hub demands. So an id is always a safe relative path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoId(String);

impl RepoId {
    /// Parses `name` or `organisation/name`.
    ///
    /// # Errors
    /// [`RepoError::Id`].
    pub fn parse(text: &str) -> Result<Self, RepoError> {
        let segments: Vec<_> = text.split('/').collect();
        if segments.len() <= 2 && segments.iter().all(|segment| is_id_segment(segment)) {
            return Ok(Self(text.to_owned()));
        }
        Err(RepoError::Id { text: printable(text) })
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RepoId {
    type Error = RepoError;
    fn try_from(text: String) -> Result<Self, RepoError> {
        Self::parse(&text)
    }
}

impl From<RepoId> for String {
    fn from(id: RepoId) -> Self {
        id.0
    }
}

/// A repository: kind and id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Repo {
    /// Model, dataset or space.
    pub kind: RepoKind,
    /// Its id.
    pub id: RepoId,
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.prefix(), self.id)
    }
}

/// What the user asked for: a branch, a tag, a pull-request reference or a commit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Revision(String);

impl Revision {
    /// Parses a revision: a git reference name of at most 255 bytes.
    ///
    /// # Errors
    /// [`RepoError::Revision`].
    pub fn parse(text: &str) -> Result<Self, RepoError> {
        let odd = |c: char| c.is_control() || c.is_whitespace() || "~^:?*[\\".contains(c);
        let bad = text.is_empty()
            || text.len() > 255
            || text.contains(odd)
            || text.split('/').any(|s| s.is_empty() || s.starts_with('.') || s.ends_with(".lock"))
            || text.contains("..")
            || text.starts_with('-');
        if bad {
            return Err(RepoError::Revision { text: printable(text) });
        }
        Ok(Self(text.to_owned()))
    }

    /// The revision as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The commit, when the revision is one: exactly 40 lower-case hexadecimal digits, the rule
    /// by which the official client skips the resolve request.
    #[must_use]
    pub fn as_commit(&self) -> Option<CommitId> {
        let lower = self.0.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if lower { CommitId::parse(&self.0).ok() } else { None }
    }
}

impl Default for Revision {
    fn default() -> Self {
        Self("main".to_owned())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Revision {
    type Error = RepoError;
    fn try_from(text: String) -> Result<Self, RepoError> {
        Self::parse(&text)
    }
}

impl From<Revision> for String {
    fn from(revision: Revision) -> Self {
        revision.0
    }
}

digest_type!(
    /// A resolved commit.
    CommitId, 20, "commit"
);

fn is_id_segment(segment: &str) -> bool {
    (1..=96).contains(&segment.len())
        && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        && !segment.starts_with(['.', '-'])
        && !segment.ends_with(['.', '-'])
        && !segment.contains("..")
        && !segment.contains("--")
}

fn printable(text: &str) -> String {
    text.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_always_a_safe_relative_path() {
        for good in ["gpt2", "nvidia/Kimi-K2.5-NVFP4", "a/b_c.d"] {
            assert_eq!(RepoId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "/", "a/", "/a", "a/b/c", "../a", "a/..", ".a/b", "a b/c", "a/b--c", "é/a", "a\0/b"] {
            assert!(RepoId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_forty_lower_case_digits_are_a_commit() {
        let hex = "5c9d1e0123456789abcdef0123456789abcdef01";
        assert_eq!(Revision::parse(hex).unwrap().as_commit().unwrap().to_string(), hex);
        assert_eq!(Revision::parse(&hex.to_uppercase()).unwrap().as_commit(), None);
        assert_eq!(Revision::parse("main").unwrap().as_commit(), None);
        assert!(Revision::parse("refs/pr/1").is_ok());
        for bad in ["", "a b", "a..b", "a//b", "-x", "a\n", "x.lock", ".hidden"] {
            assert!(Revision::parse(bad).is_err(), "{bad:?}");
        }
    }
}
