//! A file's path inside a repository, fit to be a path on disk.
//!
//! Invariant (P9): a [`RepoPath`] is relative, has only normal components, no control
//! characters, no Windows drive or separator, and never enters the folder that is ours, however a
//! file system folds names. The only way to one is [`RepoPath::parse`].

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::fold::Folding;

/// The folder of ours inside each model directory.
pub const OWN_DIR: &str = ".muster";

/// Longest component Linux file systems store, in bytes.
const COMPONENT_MAX: usize = 255;
/// Longest path accepted, in bytes: `PATH_MAX` less room for the volume's own path.
pub(super) const PATH_MAX: usize = 3072;

/// Why a path from a listing is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("unsafe file name `{}` in the repository: {why}", printable(.path))]
pub struct RepoPathError {
    /// The path as the server sent it.
    pub path: String,
    /// The rule it breaks.
    pub why: &'static str,
}

/// A validated path, with `/` between its components.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RepoPath(String);

impl RepoPath {
    /// Parses a path that a server, a manifest or a user sent.
    ///
    /// # Errors
    /// [`RepoPathError`] names the path and the rule.
    pub fn parse(text: &str) -> Result<Self, RepoPathError> {
        match refusal(text) {
            Some(why) => Err(RepoPathError { path: text.to_owned(), why }),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// The path as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The components, first to last; at least one.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.0.split('/')
    }

    /// The last component.
    #[must_use]
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The folders above the file, outermost first, as paths.
    pub fn ancestors(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(at, _)| &self.0[..at])
    }
}

impl fmt::Display for RepoPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for RepoPath {
    type Error = RepoPathError;
    fn try_from(text: String) -> Result<Self, RepoPathError> {
        Self::parse(&text)
    }
}

impl From<RepoPath> for String {
    fn from(path: RepoPath) -> Self {
        path.0
    }
}

fn refusal(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    if text.len() > PATH_MAX {
        return Some("it is longer than 3072 bytes");
    }
    if text.chars().any(char::is_control) {
        return Some("it has a control character");
    }
    if text.contains('\\') {
        return Some("it has a backslash");
    }
    if text.starts_with('/') {
        return Some("it is absolute");
    }
    let bytes = text.as_bytes();
    if bytes.len() >= 2 && bytes[1] == b':' && bytes[0].is_ascii_alphabetic() {
        return Some("it starts with a drive letter");
    }
    // Whatever the file system takes for our folder is our folder.
    if text.split('/').next().is_some_and(|first| Folding::ALL.apply(first) == OWN_DIR) {
        return Some("the folder .muster belongs to muster");
    }
    text.split('/').find_map(component_refusal)
}

fn component_refusal(component: &str) -> Option<&'static str> {
    match component {
        "" => Some("it has an empty component"),
        "." | ".." => Some("it has a `.` or `..` component"),
        _ if component.len() > COMPONENT_MAX => Some("a component is longer than 255 bytes"),
        _ => None,
    }
}

fn printable(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_spelling_of_traversal_is_refused() {
        let long = "x".repeat(256);
        let deep = "x/".repeat(1600) + "x";
        for bad in [
            "",
            "/etc/x",
            "../x",
            "a/../../b",
            "a/./b",
            "a//b",
            "a/",
            "C:\\x",
            "c:x",
            "C:/x",
            "\\\\host\\s",
            "a\\..\\b",
            "nul\0",
            "new\nline",
            "\u{7f}",
            ".muster/manifest.json",
            ".MUSTER/x",
            ".muster",
            ".mu\u{17f}ter/x",
            ".mus\u{200d}ter/receipt.json",
            &long,
            &deep,
        ] {
            assert!(RepoPath::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn ordinary_and_odd_names_are_kept_as_they_are() {
        for good in [
            "config.json",
            "a/b/c.bin",
            "name with space.txt",
            "größe/模型.json",
            ".gitattributes",
            "..a",
            "-rf",
            "ab:c",
            "sub/.muster",
            "%2e%2e/x",
        ] {
            assert_eq!(RepoPath::parse(good).unwrap().as_str(), good);
        }
        let path = RepoPath::parse("a/b/c").unwrap();
        assert_eq!(path.ancestors().collect::<Vec<_>>(), ["a", "a/b"]);
        assert_eq!(path.file_name(), "c");
    }

    proptest! {
        #[test]
        fn a_parsed_path_never_leaves_its_folder(text in "[a./\\\\:\\PC]{0,40}") {
            if let Ok(path) = RepoPath::parse(&text) {
                let normal = std::path::Path::new(path.as_str())
                    .components()
                    .all(|c| matches!(c, std::path::Component::Normal(_)));
                prop_assert!(normal);
                prop_assert_eq!(path.components().count(), std::path::Path::new(path.as_str()).components().count());
            }
        }
    }
}
