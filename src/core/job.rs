//! A job: a user's request to have a model on the volume, and where it stands.
//!
//! Owns the states of a job and the words for them. What moves a job from one state to the next
//! is `daemon::worker`'s.

use serde::{Deserialize, Serialize};

use super::code::Code;
use super::endpoint::Endpoint;
use super::limit::Limit;
use super::model_name::ModelName;
use super::repair::Repair;
use super::repo::{CommitId, Repo, Revision};
use super::selection::Selection;

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// Where on the volume.
    pub name: ModelName,
    /// Which repository.
    pub repo: Repo,
    /// Which revision.
    pub revision: Revision,
    /// Which files.
    pub selection: Selection,
    /// From which server.
    pub endpoint: Endpoint,
    /// A pinned number of connections; unknown means adaptive.
    pub connections: Option<u16>,
    /// How fast, where that was said; else the owner's configuration decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Limit>,
    /// Whether a directory with another selection may take this one.
    #[serde(default)]
    pub reselect: bool,
    /// Whether a branch that moved is followed (`false`: stay at the commit on the volume).
    pub update: bool,
    /// What is there is looked at again, and what is wrong brought anew; absent for a pull.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

/// Where a job stands, in the words of `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    /// Waiting for its turn.
    Queued,
    /// Asking the Hub for commit and listing.
    Resolving,
    /// Bytes are wanted.
    Fetching,
    /// Hashing what is on disk.
    Verifying,
    /// Every file present and verified.
    Ready,
    /// Moving a complete directory to another commit.
    Updating,
    /// Stopped by a user, or by a full disk.
    Paused,
    /// Ended with an error.
    Failed,
    /// Once ready; now a file is missing or wrong.
    Damaged,
    /// Given up by a user.
    Cancelled,
}

impl JobState {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Resolving => "resolving",
            Self::Fetching => "fetching",
            Self::Verifying => "verifying",
            Self::Ready => "ready",
            Self::Updating => "updating",
            Self::Paused => "paused",
            Self::Failed => "failed",
            Self::Damaged => "damaged",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether somebody is or will be working on it.
    #[must_use]
    pub const fn is_active(self) -> bool {
        matches!(self, Self::Queued | Self::Resolving | Self::Fetching | Self::Verifying | Self::Updating)
    }
}

/// Why a job ended badly, for people and programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobError {
    /// The outcome.
    pub code: Code,
    /// What happened, causes included.
    pub message: String,
    /// What to do next.
    pub hint: Option<String>,
}

/// A job as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// What was asked for.
    pub spec: JobSpec,
    /// Where it stands.
    pub state: JobState,
    /// The commit it is pinned to, once resolved.
    pub commit: Option<CommitId>,
    /// Why it failed.
    pub error: Option<JobError>,
}

impl Job {
    /// A new job, waiting for its turn.
    #[must_use]
    pub const fn queued(spec: JobSpec) -> Self {
        Self { spec, state: JobState::Queued, commit: None, error: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_one_word_everywhere_and_is_active_while_somebody_works_on_it() {
        let idle = [JobState::Ready, JobState::Paused, JobState::Failed, JobState::Damaged, JobState::Cancelled];
        let active =
            [JobState::Queued, JobState::Resolving, JobState::Fetching, JobState::Verifying, JobState::Updating];
        for state in idle.into_iter().chain(active) {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
            assert_eq!(serde_json::from_value::<JobState>(state.word().into()).unwrap(), state);
            assert_eq!(state.is_active(), active.contains(&state), "{}", state.word());
        }
    }
}
