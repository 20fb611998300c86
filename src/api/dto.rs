//! Bodies that are no core types.
//!
//! The rest is what `core` and the daemon already say: the report, a model's status, a job's
//! request, an event, an error.

use serde::{Deserialize, Serialize};

use crate::core::job::{JobError, JobSpec};
use crate::core::limit::Limit;
use crate::core::model_name::ModelName;
use crate::core::status::SCHEMA;
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
