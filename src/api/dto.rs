//! Bodies that are no core types.
//!
//! The rest is what `core` and the daemon already say: the report, a model's status, a job's
//! request, an event, an error.

use serde::{Deserialize, Serialize};

use crate::core::job::{JobError, JobSpec};
use crate::core::limit::Limit;
use crate::core::local_edits::{EditReason, LocalEdit};
use crate::core::model_name::ModelName;
use crate::core::repo_path::RepoPath;
use crate::core::status::SCHEMA;
use crate::daemon::edits::Undone;
use crate::gate::accept::Accepted;
use crate::store::AuditEntry;

/// Body of `POST /v1/models`. Cannot be printed: it may hold a token.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// What to pull.
    pub job: JobSpec,
    /// A token for the job's endpoint; kept in memory only.
    #[serde(default)]
    pub token: Option<String>,
}

/// [`Submission`] as the client sends it.
#[derive(Serialize)]
pub(super) struct Submitted<'a> {
    pub(super) job: &'a JobSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) token: Option<&'a str>,
}

/// Query of `POST /v1/models/{id}/remove`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Removal {
    /// Frees the space at once.
    #[serde(default)]
    pub now: bool,
}

/// Answer of `GET /v1/models/{id}/history`, and what `muster history --json` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// Version of the form.
    pub schema: u32,
    /// The model.
    pub id: ModelName,
    /// What happened, oldest first.
    pub entries: Vec<AuditEntry>,
}

impl History {
    /// The history of a model.
    #[must_use]
    pub const fn new(id: ModelName, entries: Vec<AuditEntry>) -> Self {
        Self { schema: SCHEMA, id, entries }
    }
}

/// Body of `POST /v1/limits` and of `POST /v1/models/{id}/limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limiting {
    /// Bytes a second as in `--limit`; null is what the configuration says.
    pub limit: Option<Limit>,
}

/// What a gate lets the owner know, in `POST /v1/models/{id}/verdict`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SeenVerdict {
    /// Whether it opened.
    pub open: bool,
    /// The line that people saw.
    pub line: String,
}

/// Body of `POST /v1/models/{id}/accept`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accepting {
    /// Files to take for right as they are.
    pub paths: Vec<RepoPath>,
    /// Why.
    pub reason: EditReason,
    /// Weights too.
    #[serde(default)]
    pub force: bool,
    /// The caller's name; the number of the user is the kernel's word.
    #[serde(default)]
    pub user: Option<String>,
}

/// Body of `POST /v1/models/{id}/undo`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Undoing {
    /// Files whose edits are undone.
    pub paths: Vec<RepoPath>,
    /// Even while the model is in use.
    #[serde(default)]
    pub force: bool,
}

/// Answer of both, and what `muster accept --json` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditsReport {
    /// Version of the form.
    pub schema: u32,
    /// The model; null for a directory elsewhere.
    pub id: Option<ModelName>,
    /// Files that were taken for right.
    pub accepted: Vec<RepoPath>,
    /// Files that have the published bytes, so that there was nothing to take.
    pub unchanged: Vec<RepoPath>,
    /// Edited files that were set aside.
    pub set_aside: Vec<SetAside>,
    /// Whether the directory has a receipt for what it should hold now.
    pub receipt: bool,
    /// Everything that is changed here on purpose.
    pub local_edits: Vec<LocalEdit>,
}

/// A file that was set aside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// The file.
    pub file: RepoPath,
    /// Where it is now.
    pub place: String,
}

impl EditsReport {
    /// Of files that were accepted.
    #[must_use]
    pub fn accepted(id: Option<ModelName>, Accepted { edits, unchanged, all, receipt }: Accepted) -> Self {
        let accepted = edits.into_iter().map(|edit| edit.path).collect();
        let local_edits = all.files().to_vec();
        Self { schema: SCHEMA, id, accepted, unchanged, set_aside: Vec::new(), receipt, local_edits }
    }

    /// Of edits that were undone.
    #[must_use]
    pub fn undone(id: ModelName, Undone { set_aside, left, complete: receipt }: Undone) -> Self {
        let set_aside = set_aside
            .into_iter()
            .map(|(file, place)| SetAside { file, place: place.to_string_lossy().into_owned() })
            .collect();
        let local_edits = left.files().to_vec();
        Self {
            schema: SCHEMA,
            id: Some(id),
            accepted: Vec::new(),
            unchanged: Vec::new(),
            set_aside,
            receipt,
            local_edits,
        }
    }
}

/// Every answer that is no success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why.
    pub error: JobError,
}

/// Answer of `/healthz` and `/readyz`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// `ok`, or what is wrong.
    pub status: String,
}
