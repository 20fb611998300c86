//! Values of the records tree: JSON in a versioned envelope.
//!
//! Owns the envelope and the records that are the store's own. Jobs and files are stored in the
//! form that `core` gives them; `migrations/0001_initial.golden.json` shows every kind as it is on
//! disk, so a change of form cannot slip through. A value of another version decodes to nothing.

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of the values' form.
const VERSION: u32 = 1;

/// Longest detail of an audit entry, in bytes.
const DETAIL_MAX: usize = 1024;

/// What happened to a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// A job was taken in.
    Queued,
    /// Its revision became a commit and a manifest.
    Resolved,
    /// The last byte of the last file was received.
    Fetched,
    /// Every file's digest matched.
    Verified,
    /// A file got its final name.
    Published,
    /// The receipt was written.
    Receipted,
    /// A gate on this host opened, and said so.
    GateOpen,
    /// A gate on this host stayed closed, and said so.
    GateClosed,
    /// A job was paused.
    Paused,
    /// A job went on.
    Resumed,
    /// A job was given up by a user.
    Cancelled,
    /// A file was taken for right as somebody changed it.
    Accepted,
    /// That was undone.
    Undone,
    /// Bytes of a file were found wrong.
    Damaged,
    /// A model was removed.
    Removed,
    /// A job ended with an error.
    Failed,
}

impl Phase {
    /// The word for it, as in JSON.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Resolved => "resolved",
            Self::Fetched => "fetched",
            Self::Verified => "verified",
            Self::Published => "published",
            Self::Receipted => "receipted",
            Self::GateOpen => "gate_open",
            Self::GateClosed => "gate_closed",
            Self::Paused => "paused",
            Self::Resumed => "resumed",
            Self::Cancelled => "cancelled",
            Self::Accepted => "accepted",
            Self::Undone => "undone",
            Self::Damaged => "damaged",
            Self::Removed => "removed",
            Self::Failed => "failed",
        }
    }
}

/// One line of a model's history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// What.
    pub phase: Phase,
    /// More of it, for people. At most 1024 bytes are kept.
    pub detail: String,
}

impl AuditEntry {
    /// The entry with a detail of bounded length.
    pub(super) fn bounded(&self) -> Self {
        let end = self.detail.floor_char_boundary(DETAIL_MAX);
        Self { detail: self.detail[..end].to_owned(), ..*self }
    }
}

/// What was learned about a server, so that the next start need not learn it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginMemory {
    /// Connections at once that it served without throttling.
    pub safe_connections: u16,
    /// The best rate seen, bytes per second.
    pub best_rate: u64,
    /// When this was learned.
    pub updated_at: Timestamp,
}

/// How far a model had come, in bytes. For display: what is durable, the claims say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProgressSnapshot {
    /// Came over the wire.
    pub received: u64,
    /// Synced and claimed.
    pub durable: u64,
    /// Of files whose digest matched.
    pub verified: u64,
}

#[derive(Serialize, Deserialize)]
struct Envelope<T> {
    v: u32,
    is: T,
}

/// The stored form of a record.
pub fn encode(record: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(&Envelope { v: VERSION, is: record }).expect("records have string keys only")
}

/// The record, when the bytes are one of this version.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let envelope: Envelope<T> = serde_json::from_slice(bytes).ok()?;
    (envelope.v == VERSION).then_some(envelope.is)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_of_another_version_is_no_record() {
        let progress = ProgressSnapshot { received: 3, durable: 2, verified: 1 };
        let bytes = encode(&progress);
        assert_eq!(decode(&bytes), Some(progress));
        let newer = String::from_utf8(bytes.clone()).unwrap().replace(r#""v":1"#, r#""v":2"#);
        assert_eq!(decode::<ProgressSnapshot>(newer.as_bytes()), None);
        assert_eq!(decode::<ProgressSnapshot>(&bytes[1..]), None);
        assert_eq!(decode::<ProgressSnapshot>(b""), None);
    }

    #[test]
    fn a_detail_is_cut_between_characters() {
        let entry =
            AuditEntry { at: Timestamp::UNIX_EPOCH, phase: Phase::Failed, detail: format!("x{}", "é".repeat(600)) };
        let detail = entry.bounded().detail;
        assert!(detail.len() == 1023 && entry.detail.starts_with(&detail));
    }
}
