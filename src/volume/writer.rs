//! Who writes a partial, and what its files are called.
//!
//! Names are private to a writer, so two that both believe they own a volume never write into
//! one file (P6), and bounded in length whatever the file's path (P9).

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use thiserror::Error;

use crate::core::digest::Sha256;
use crate::core::repo_path::RepoPath;

const PARTIAL: &str = ".incomplete";
const CLAIMS: &str = ".claims";
const FENCED: &str = ".fenced";
/// Digits of a path's hash in a name.
const HASH_DIGITS: usize = 32;

/// The text names no writer.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{}` names no writer", .text.escape_debug())]
pub struct WriterIdError {
    /// What was given.
    pub text: String,
}

/// One run of one owner, written `<epoch>-<8 hex>`. The random part tells apart two that took
/// the same epoch because the file system let them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WriterId {
    epoch: u64,
    random: u32,
}

impl WriterId {
    /// A writer of this epoch; `random` is a fresh random number.
    pub const fn new(epoch: u64, random: u32) -> Self {
        Self { epoch, random }
    }

    /// Parses the written form, which each writer has one of.
    ///
    /// # Errors
    /// [`WriterIdError`].
    pub fn parse(text: &str) -> Result<Self, WriterIdError> {
        let parts = text.split_once('-').and_then(|(epoch, random)| {
            Some(Self { epoch: epoch.parse().ok()?, random: u32::from_str_radix(random, 16).ok()? })
        });
        parts.filter(|id| id.to_string() == text).ok_or_else(|| WriterIdError { text: text.to_owned() })
    }

    /// The epoch it owned the volume in.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl fmt::Display for WriterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{:08x}", self.epoch, self.random)
    }
}

impl TryFrom<String> for WriterId {
    type Error = WriterIdError;
    fn try_from(text: String) -> Result<Self, WriterIdError> {
        Self::parse(&text)
    }
}

impl From<WriterId> for String {
    fn from(id: WriterId) -> Self {
        id.to_string()
    }
}

/// The part of a partial's name that stands for its path: 128 bits of the path's SHA-256.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathHash(String);

impl PathHash {
    /// Of a file's path.
    pub fn of(path: &RepoPath) -> Self {
        let digest = Sha256::from_bytes(sha2::Sha256::digest(path.as_str().as_bytes()).into());
        Self(digest.to_string()[..HASH_DIGITS].to_owned())
    }

    fn parse(text: &str) -> Option<Self> {
        let hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (text.len() == HASH_DIGITS && hex).then(|| Self(text.to_owned()))
    }
}

/// The names of one partial and its claims.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PartialName {
    pub(super) path: PathHash,
    pub(super) writer: WriterId,
}

impl PartialName {
    pub(super) fn of(path: &RepoPath, writer: WriterId) -> Self {
        Self { path: PathHash::of(path), writer }
    }

    /// The partial itself.
    pub(super) fn partial(&self) -> String {
        self.with(PARTIAL)
    }

    /// Its claims.
    pub(super) fn claims(&self) -> String {
        self.with(CLAIMS)
    }

    /// The partial of an earlier writer, out of that writer's reach.
    pub(super) fn fenced(&self) -> String {
        self.with(FENCED)
    }

    fn with(&self, end: &str) -> String {
        format!("{}-{}{end}", self.path.0, self.writer)
    }

    /// Reads a name in `partial/`; `None` when it is not one of ours.
    pub(super) fn parse(name: &str) -> Option<(Self, Part)> {
        let ends = [(PARTIAL, Part::Partial), (FENCED, Part::Fenced), (CLAIMS, Part::Claims)];
        let (stem, part) = ends.iter().find_map(|(end, part)| Some((name.strip_suffix(end)?, *part)))?;
        let (path, writer) = stem.split_once('-')?;
        Some((Self { path: PathHash::parse(path)?, writer: WriterId::parse(writer).ok()? }, part))
    }
}

/// What a name in `partial/` is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Claims,
    Fenced,
    Partial,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn names_are_short_and_read_back(path in "[^/\\\\:\\pC.][^/\\\\:\\pC]{0,60}", epoch in any::<u64>(), random in any::<u32>()) {
            let path = RepoPath::parse(&path).unwrap();
            let name = PartialName::of(&path, WriterId::new(epoch, random));
            for (text, part) in [(name.partial(), Part::Partial), (name.claims(), Part::Claims), (name.fenced(), Part::Fenced)] {
                prop_assert!(text.len() <= 80 && text.is_ascii());
                prop_assert_eq!(PartialName::parse(&text), Some((name.clone(), part)));
            }
        }
    }

    #[test]
    fn a_writer_has_one_spelling() {
        assert_eq!(WriterId::parse("7-0000beef").unwrap(), WriterId::new(7, 0xbeef));
        for bad in ["", "7", "07-0000beef", "7-beef", "7-0000BEEF", "+7-0000beef", "7-0000beef/..", "-1-00000000"] {
            assert!(WriterId::parse(bad).is_err(), "{bad}");
        }
        assert!(PartialName::parse("../x-7-0000beef.incomplete").is_none());
    }
}
