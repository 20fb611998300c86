//! How fetching ends badly.

use thiserror::Error;

use super::owned::{OwnershipLost, WriteError};
use crate::core::code::Code;
use crate::core::repo_path::RepoPath;
use crate::core::verify::Mismatch;
use crate::sources::ReadError;
use crate::volume::VolumeError;

/// Why a file that was received whole is not verified.
#[derive(Debug, Error)]
pub(crate) enum FinishError {
    /// The disk failed.
    #[error("the disk failed")]
    Volume(#[from] VolumeError),
    /// Another process owns the volume.
    #[error("{0}")]
    Ownership(#[from] OwnershipLost),
    /// The file could not be given its name.
    #[error("{0}")]
    Publish(#[from] PublishError),
    /// The bytes are not the file's; they were set aside.
    #[error("{0}")]
    Mismatch(Mismatch),
    /// A stop came first; what came is claimed.
    #[error("stopped")]
    Stopped,
}

impl From<WriteError> for FinishError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Volume(error) => Self::Volume(error),
            WriteError::Ownership(lost) => Self::Ownership(lost),
        }
    }
}

/// A verified file could not be given its final name, or not be remembered.
#[derive(Debug, Error)]
#[error("{message}")]
pub struct PublishError {
    /// What happened.
    pub message: String,
    /// Why.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
    /// The outcome that follows.
    pub code: Code,
    /// What to do next, where that is known.
    pub hint: Option<String>,
}

/// Why a file, or the whole job, was given up.
#[derive(Debug, Error)]
pub enum FetchError {
    /// A read failed once too often, or for good.
    #[error("{path} could not be fetched")]
    Read {
        /// The file.
        path: RepoPath,
        /// The last failure.
        #[source]
        source: Box<ReadError>,
    },
    /// What the source serves is not what the manifest says, each time.
    #[error("{path} is corrupt at its source: {mismatch} in each of {fetches} fetches")]
    Corrupt {
        /// The file.
        path: RepoPath,
        /// The last mismatch.
        mismatch: Mismatch,
        /// How often it was fetched.
        fetches: u32,
    },
    /// The volume failed.
    #[error("{path} could not be written")]
    Volume {
        /// The file.
        path: RepoPath,
        /// Why.
        #[source]
        source: VolumeError,
    },
    /// Publishing failed: the volume, or its ownership.
    #[error("{path} could not be published")]
    Publish {
        /// The file.
        path: RepoPath,
        /// Why.
        #[source]
        source: PublishError,
    },
    /// Another process owns the volume.
    #[error("the download stops")]
    Ownership(#[source] OwnershipLost),
    /// Stopped on request; what is durable stays.
    #[error("stopped")]
    Stopped,
}

impl FetchError {
    /// The outcome of a job that ends with this.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Read { source, .. } => source.problem.code(),
            Self::Corrupt { .. } => Code::Corrupt,
            Self::Volume { source, .. } => source.code(),
            Self::Publish { source, .. } => source.code,
            Self::Ownership(_) => Code::Held,
            Self::Stopped => Code::Interrupted,
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Read { source, .. } => source.problem.hint(),
            Self::Corrupt { .. } => Some(
                "the repository itself is damaged, or a proxy is: ask its owner, or try another endpoint".to_owned(),
            ),
            Self::Volume { source, .. } => source.hint().map(str::to_owned),
            Self::Publish { source, .. } => source.hint.clone(),
            Self::Ownership(_) | Self::Stopped => None,
        }
    }
}
