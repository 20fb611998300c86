//! The name of a model on a volume: its directory, relative to the volume's root.
//!
//! Invariant: one to four plain components, none hidden, so a name can neither leave the volume
//! nor enter `.muster`.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::repo::Repo;
use super::repo_path::RepoPath;

/// The text cannot name a model directory.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{}` cannot name a model on a volume: {why}", .text.escape_debug())]
pub struct ModelNameError {
    /// What was given.
    pub text: String,
    /// The rule it breaks.
    pub why: &'static str,
}

/// A directory below the volume's root, with `/` between its components.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ModelName(String);

impl ModelName {
    /// Parses what `--to` or MODEL said.
    ///
    /// # Errors
    /// [`ModelNameError`].
    pub fn parse(text: &str) -> Result<Self, ModelNameError> {
        let refuse = |why| ModelNameError { text: text.to_owned(), why };
        let path = RepoPath::parse(text.trim_end_matches('/')).map_err(|error| refuse(error.why))?;
        if path.components().any(|component| component.starts_with('.')) {
            return Err(refuse("a component starts with a dot"));
        }
        if path.components().count() > 4 {
            return Err(refuse("it has more than four components"));
        }
        Ok(Self(path.into()))
    }

    /// Where a repository goes when nobody says otherwise.
    #[must_use]
    pub fn of(repo: &Repo) -> Self {
        Self(repo.to_string())
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for ModelName {
    type Error = ModelNameError;
    fn try_from(text: String) -> Result<Self, ModelNameError> {
        Self::parse(&text)
    }
}

impl From<ModelName> for String {
    fn from(name: ModelName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::repo::{RepoId, RepoKind};

    #[test]
    fn a_name_stays_below_the_volume_and_out_of_our_folder() {
        for good in ["kimi-k2.5-nvfp4", "org/name", "datasets/org/name", "org/name/"] {
            assert!(ModelName::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "..", "a/../b", "/a", ".muster", ".muster/x", ".hidden/x", "a//b", "a/b/c/d/e", "a\n"] {
            assert!(ModelName::parse(bad).is_err(), "{bad:?}");
        }
        let repo = Repo { kind: RepoKind::Dataset, id: RepoId::parse("org/name").unwrap() };
        assert_eq!(ModelName::of(&repo).as_str(), "datasets/org/name");
    }
}
