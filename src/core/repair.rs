//! What a repair is asked for, and what it did.
//!
//! Owns the words of both, as they are stored with a job and shown by `status`. It decides nothing.

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::repo_path::RepoPath;

/// What a repair is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repair {
    /// Which files are looked at.
    pub look: Look,
    /// Where right bytes come from, beside what is right here; else from the Hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<From>,
}

/// Which files of a directory are read, whatever their identities say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Look {
    /// Those that something is known against; all, when nothing is known.
    Known,
    /// All.
    Everything,
    /// These.
    Files(Vec<RepoPath>),
}

/// Where right bytes come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum From {
    /// A directory with another copy, as an absolute path. It is believed nothing.
    Directory(String),
    /// A server that speaks as the Hub does. It is sent no token.
    Endpoint(Endpoint),
}

impl Repair {
    /// The server that is asked instead of the job's.
    #[must_use]
    pub const fn endpoint(&self) -> Option<&Endpoint> {
        match &self.from {
            Some(From::Endpoint(endpoint)) => Some(endpoint),
            _ => None,
        }
    }

    /// The directory with another copy.
    #[must_use]
    pub fn directory(&self) -> Option<&str> {
        match &self.from {
            Some(From::Directory(directory)) => Some(directory),
            _ => None,
        }
    }
}

/// What a repair did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repaired {
    /// Files that were brought anew.
    pub files: Vec<RepairedFile>,
    /// What the other copy has wrong, and none of it was used.
    pub refused: Vec<RefusedCopy>,
    /// Bytes that came over the network, wasted ones included.
    pub bytes_fetched: u64,
}

/// A file that was brought anew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairedFile {
    /// The file.
    pub file: RepoPath,
    /// Blocks that it has.
    pub blocks: u64,
    /// Blocks that were not right in what was here; null when there were no digests of blocks, or
    /// nothing was here.
    pub bad_blocks: Option<u64>,
    /// Bytes taken from what was here.
    pub bytes_kept: u64,
    /// Bytes taken from the other copy.
    pub bytes_copied: u64,
    /// Bytes that the network had to bring.
    pub bytes_to_fetch: u64,
    /// Whether what was taken shares its blocks on the disk with where it came from.
    pub shared: bool,
    /// Where the wrong file is now; null when it was missing, or there was no room to keep it.
    pub set_aside: Option<String>,
}

/// A file of the other copy that is wrong, too.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedCopy {
    /// The file.
    pub file: RepoPath,
    /// How many of the blocks that were wanted are wrong or missing there; null when the file as a whole
    /// is, for want of digests of its blocks.
    pub blocks: Option<u64>,
}
