//! A gate that demands a signature.
//!
//! Owns what is believed of a directory when only the holder of a key is trusted: the signature, and the
//! bytes that were hashed for this very check. Invariant: a receipt is believed only when it is the file
//! of a user who was named for that; it was written by who could write into the directory, and so could
//! be anybody's.

use super::survey::Survey;
use crate::core::causes::in_words;
use crate::core::local_edits::LocalEdits;
use crate::core::oms::bundle;
use crate::core::oms::cover::{Untrusted, compare, extras};
use crate::core::oms::key::PublicKey;
use crate::core::oms::statement::Statement;
use crate::core::reason::Reason;
use crate::core::receipt::Receipt;
use crate::volume::ModelDir;

/// Whose signature is demanded, and whose receipt is believed.
#[derive(Debug)]
pub struct Demand {
    /// The key.
    pub key: PublicKey,
    /// Users whose receipts count.
    pub receipts_of: Vec<u32>,
}

impl Demand {
    /// Whether a receipt that this user wrote saves the hashing.
    pub(super) fn believes(&self, writer: Option<u32>) -> bool {
        writer.is_some_and(|writer| self.receipts_of.contains(&writer))
    }

    /// Why the directory is not what was signed; nothing when it is.
    pub(super) fn judge(&self, survey: &Survey<'_>, edits: &LocalEdits, receipt: &Receipt) -> Vec<Reason> {
        let Survey { dir, manifest, .. } = *survey;
        let statement = match self.statement(dir) {
            Ok(statement) => statement,
            Err(untrusted) => return vec![untrusted.reason(None)],
        };
        let is_edit = |path: &_| edits.of(path).is_some();
        let mut reasons = compare(&statement, manifest, |at, _| survey.here(at, receipt), is_edit);
        match dir.walk() {
            Ok(walk) => {
                let names = walk.files.into_iter().map(|entry| entry.name);
                reasons.extend(extras(&statement, manifest, names));
            }
            Err(error) => reasons.push(Untrusted::Unlisted { why: in_words(&error) }.reason(None)),
        }
        reasons
    }

    fn statement(&self, dir: &ModelDir) -> Result<Statement, Untrusted> {
        match dir.signature_bytes() {
            Ok(Some(bytes)) => {
                bundle::open(&bytes, &self.key).map_err(|error| Untrusted::Invalid { why: in_words(&error) })
            }
            Ok(None) => Err(Untrusted::Absent),
            Err(error) => Err(Untrusted::Unreadable { why: in_words(&error) }),
        }
    }
}
