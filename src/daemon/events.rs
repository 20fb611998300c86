//! What happened, for whoever follows.
//!
//! Owns the words of the event stream. Order: the events of one model come in the order they
//! happened; `ready`, `failed`, `paused`, `cancelled` and `removed` end a job's stream until it
//! is taken up again. A follower that is too slow loses events, never order.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::core::job::{JobError, JobState};
use crate::core::model_name::ModelName;

/// Events that a follower may lag behind before it loses the oldest.
pub(super) const BACKLOG: usize = 256;

/// One event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: Timestamp,
    /// Which model.
    pub id: ModelName,
    /// The state it entered; null when it was removed.
    pub state: Option<JobState>,
    /// Why, when it went wrong.
    pub error: Option<JobError>,
}
