//! What `status` says: the report the owner writes once a second and everybody reads.
//!
//! The shape is public (`muster schema status`). Bytes are integers, times are UTC, and what is
//! not known is null, never 0. A reader that did not write the report says how old it is.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::code::Code;
use super::job::{JobError, JobState};
use super::local_edits::LocalEdit;
use super::model_name::ModelName;
use super::repair::Repaired;
use super::repo::{CommitId, RepoId, RepoKind, Revision};
use super::repo_path::RepoPath;
use super::scrubbed::Finding;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Everything known about one volume.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Absolute path of the volume's root, as the writer sees it.
    pub volume: String,
    /// When these facts were true.
    pub written_at: Timestamp,
    /// Who owns the volume.
    pub daemon: DaemonStatus,
    /// The models, sorted by id.
    pub models: Vec<ModelStatus>,
}

impl Report {
    /// Reads the stored form; `None` when it is no report, or one of another version.
    #[must_use]
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok().filter(|report: &Self| report.schema == SCHEMA)
    }
}

/// The owner of a volume.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Whether there is a live owner; null when that could not be told.
    pub running: Option<bool>,
    /// Its host.
    pub host: Option<String>,
    /// Its process id on that host.
    pub pid: Option<u32>,
    /// Its program version.
    pub version: Option<String>,
    /// Age of these facts, seconds.
    pub age_s: Option<f64>,
    /// What somebody should know about this owner: a state that was set aside, and where it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

/// One model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelStatus {
    /// Its name on the volume.
    pub id: ModelName,
    /// Repository id.
    pub repo: RepoId,
    /// Kind of repository.
    pub repo_type: RepoKind,
    /// What was asked for.
    pub revision: Revision,
    /// What it resolved to.
    pub commit: Option<CommitId>,
    /// Include and exclude patterns as flags; null for the whole repository.
    pub selection: Option<String>,
    /// Absolute directory.
    pub directory: String,
    /// Where the job stands.
    pub state: JobState,
    /// What is going on inside the state, in a word or two: `fetching`, `hashing`, `disk`,
    /// `no_space`, `backing off`.
    pub phase: Option<String>,
    /// Files.
    pub files: Option<Count>,
    /// Shards; a model in one file has none.
    pub shards: Option<Count>,
    /// Bytes.
    pub bytes: Option<Bytes>,
    /// Bytes of files that are there and are being hashed; absent when nothing is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hashing: Option<Hashing>,
    /// Bytes received per second, over the last seconds.
    pub rate_bytes_per_s: Option<u64>,
    /// Seconds to the end at that rate.
    pub eta_s: Option<u64>,
    /// Seconds since the last byte came.
    pub last_byte_age_s: Option<f64>,
    /// The limit that its bytes are under; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitStatus>,
    /// Connections with a request under way.
    pub connections: u32,
    /// Why it failed or was paused.
    pub error: Option<JobError>,
    /// What was changed in its directory on purpose; absent when there is nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub local_edits: Vec<LocalEdit>,
    /// What the last repair of this owner did, or has done so far; absent when there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repaired: Option<Repaired>,
    /// What is known of its being read again; absent when that is nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<ScrubStatus>,
}

/// What is known of a model's being read again from the disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScrubStatus {
    /// When something of it was last read.
    pub last_at: Option<Timestamp>,
    /// The shard that waits longest to be read.
    pub oldest_file: Option<RepoPath>,
    /// When all of that was last read, or proved; null when it never was.
    pub oldest_at: Option<Timestamp>,
    /// Bytes read so far; it only grows.
    pub bytes: u64,
    /// Blocks found wrong or unreadable so far; it only grows.
    pub bad_blocks: u64,
    /// Reads that were right only the second time, so far; it only grows.
    pub bad_reads: u64,
    /// What is not right now.
    pub findings: Vec<FindingStatus>,
}

/// Something that is not right about a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FindingStatus {
    /// The file.
    pub file: RepoPath,
    /// Number of the block of 16 MiB, from 0; null when the place is not known.
    pub block: Option<u64>,
    /// Its first byte.
    pub start: Option<u64>,
    /// The byte behind its last.
    pub end: Option<u64>,
    /// Wrong bytes, or bytes that cannot be read.
    pub code: Code,
    /// The finding in words.
    pub message: String,
    /// When it was found.
    pub found_at: Timestamp,
    /// By which host.
    pub host: String,
}

impl From<&Finding> for FindingStatus {
    fn from(finding: &Finding) -> Self {
        let Finding { file, fault, at, host, .. } = finding;
        let bytes = fault.bytes();
        Self {
            file: file.clone(),
            block: fault.block(),
            start: bytes.as_ref().map(|bytes| bytes.start),
            end: bytes.map(|bytes| bytes.end),
            code: fault.code(),
            message: finding.words(),
            found_at: *at,
            host: host.clone(),
        }
    }
}

/// What keeps a job from going faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitStatus {
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Whose limit it is.
    pub of: LimitOf,
}

/// Whose limit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitOf {
    /// The job's own.
    Job,
    /// That of all jobs of the volume together.
    Volume,
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// All.
    pub total: u64,
    /// Verified and in place.
    pub verified: u64,
}

/// The three honest numbers, and what they are measured against.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bytes {
    /// Bytes of the manifest.
    pub total: u64,
    /// Written here, whether synced or not.
    pub received: u64,
    /// Synced and claimed.
    pub durable: u64,
    /// In files whose digest matched.
    pub verified: u64,
}

/// How far hashing of files that are there has come, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashing {
    /// To be hashed.
    pub total: u64,
    /// Of those, hashed.
    pub hashed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_another_version_is_none() {
        let daemon = DaemonStatus::default();
        let at = Timestamp::UNIX_EPOCH;
        let report = Report { schema: SCHEMA, volume: "/v".to_owned(), written_at: at, daemon, models: vec![] };
        let bytes = |report: &Report| serde_json::to_vec(report).unwrap();
        assert_eq!(Report::from_json(&bytes(&report)), Some(report.clone()));
        assert_eq!(Report::from_json(&bytes(&Report { schema: 2, ..report })), None);
        assert_eq!(Report::from_json(b"{"), None);
    }
}
