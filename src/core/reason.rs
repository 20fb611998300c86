//! Why a gate is closed: what was expected, what came, and the outcome it stands for.
//!
//! Owns the reasons and their words. Every reason has exactly one code; how reasons add up to a
//! verdict is [`super::gate`]'s.

use std::fmt;

use super::code::Code;
use super::digest::Digest;
use super::local_edits::Conflict;
use super::manifest::ManifestId;
use super::oms::cover::Untrusted;
use super::policy::Breach;
use super::repo::{CommitId, Revision};
use super::repo_path::RepoPath;
use super::structure::Fault;
use super::units;

/// Why the gate is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Why {
    /// There is no manifest: nothing was ever pulled here.
    NeverPulled {
        /// Where was looked, in words.
        looked: String,
    },
    /// The manifest cannot be read or understood.
    ManifestUnreadable {
        /// What went wrong.
        why: String,
    },
    /// The caller demanded another manifest.
    OtherManifest {
        /// Demanded.
        expected: ManifestId,
        /// In the directory.
        found: ManifestId,
    },
    /// The caller wants another commit.
    OtherCommit {
        /// Wanted.
        expected: Revision,
        /// In the directory.
        found: CommitId,
    },
    /// Nobody has verified the whole directory, or something is being changed in it.
    NoReceipt,
    /// The receipt is damaged, so it proves nothing.
    ReceiptDamaged {
        /// What is wrong with it.
        why: String,
    },
    /// The receipt proves another manifest.
    ReceiptOfOther {
        /// The manifest in the directory.
        expected: ManifestId,
        /// The one on the receipt.
        found: ManifestId,
    },
    /// The receipt cannot be read or understood by this program.
    ReceiptUnreadable {
        /// What went wrong.
        why: String,
    },
    /// A writer is changing the directory right now.
    Held,
    /// Whoever pulls the model has given up.
    PullFailed {
        /// With what outcome.
        code: Code,
        /// In its words.
        message: String,
    },
    /// The directory kept changing while it was checked.
    Unsteady,
    /// The file is not there.
    Missing {
        /// Bytes that are missing.
        size: u64,
    },
    /// The file has another size.
    Size {
        /// Bytes in the manifest.
        expected: u64,
        /// Bytes on disk.
        found: u64,
    },
    /// A link, folder or device in the file's place.
    NotRegular,
    /// Other bytes.
    Bytes {
        /// In the manifest.
        expected: Digest,
        /// Of the bytes on disk.
        found: Digest,
        /// Whether the identity still is the verified one, so that only a full check sees it.
        disguised: bool,
    },
    /// The file could not be looked at.
    Unreadable {
        /// What went wrong.
        why: String,
    },
    /// The file was written to while it was hashed.
    Changing,
    /// The bytes are the manifest's, and no loader can use them as they are.
    Structure(Box<Fault>),
    /// A rule of the operator's policy is not met, or nobody can tell.
    Policy(Box<Breach>),
    /// The record of deliberate edits cannot be read or understood by this program.
    EditsUnreadable {
        /// What went wrong.
        why: String,
    },
    /// A file was changed here on purpose, over another published file than the manifest has.
    EditedBoth(Conflict),
    /// The model is not what the holder of a key signed.
    Signature(Box<Untrusted>),
}

/// One reason to stay closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reason {
    /// The file it is about; unknown means the whole directory.
    pub file: Option<RepoPath>,
    /// What is wrong.
    pub why: Why,
}

impl Why {
    /// The outcome it stands for.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::NeverPulled { .. } => Code::UnknownModel,
            Self::OtherManifest { .. } | Self::Structure(_) | Self::EditedBoth(_) | Self::Signature(_) => Code::Refused,
            Self::Held => Code::Held,
            Self::PullFailed { code, .. } => *code,
            Self::Policy(breach) => breach.code(),
            Self::Size { .. } | Self::NotRegular | Self::Bytes { .. } => Code::Corrupt,
            Self::OtherCommit { .. }
            | Self::NoReceipt
            | Self::ReceiptDamaged { .. }
            | Self::ReceiptOfOther { .. }
            | Self::Missing { .. } => Code::Incomplete,
            Self::ManifestUnreadable { .. }
            | Self::ReceiptUnreadable { .. }
            | Self::EditsUnreadable { .. }
            | Self::Unsteady
            | Self::Unreadable { .. }
            | Self::Changing => Code::CouldNotCheck,
        }
    }

    /// What was expected, for programs.
    #[must_use]
    pub fn expected(&self) -> Option<String> {
        match self {
            Self::OtherManifest { expected, .. } | Self::ReceiptOfOther { expected, .. } => Some(expected.to_string()),
            Self::OtherCommit { expected, .. } => Some(expected.to_string()),
            Self::Missing { size } => Some(exact(*size)),
            Self::Size { expected, .. } => Some(exact(*expected)),
            Self::NotRegular => Some("a regular file".into()),
            Self::Bytes { expected, .. } => Some(expected.to_string()),
            Self::NoReceipt => Some("a receipt".into()),
            Self::Structure(_) => Some("a whole file that fits the others".into()),
            Self::Policy(breach) => Some(breach.seen.expected.clone()),
            Self::EditedBoth(conflict) => Some(conflict.edit.published.digest.to_string()),
            Self::Signature(_) => Some("the bytes that were signed".into()),
            _ => None,
        }
    }

    /// What was found, for programs.
    #[must_use]
    pub fn found(&self) -> Option<String> {
        match self {
            Self::OtherManifest { found, .. } | Self::ReceiptOfOther { found, .. } => Some(found.to_string()),
            Self::OtherCommit { found, .. } => Some(found.to_string()),
            Self::Missing { .. } => Some("no file".into()),
            Self::Size { found, .. } => Some(exact(*found)),
            Self::NotRegular => Some("a link, folder or device".into()),
            Self::Bytes { found, .. } => Some(found.to_string()),
            Self::ManifestUnreadable { why }
            | Self::ReceiptUnreadable { why }
            | Self::ReceiptDamaged { why }
            | Self::EditsUnreadable { why }
            | Self::Unreadable { why } => Some(why.clone()),
            Self::EditedBoth(Conflict { now, .. }) => now.map(|now| now.digest.to_string()),
            Self::PullFailed { message: words, .. } | Self::NeverPulled { looked: words } => Some(words.clone()),
            Self::Structure(fault) => Some(fault.to_string()),
            Self::Policy(breach) => Some(breach.seen.found.clone()),
            Self::Signature(untrusted) => Some(untrusted.to_string()),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            // It begins with the operator's words, and names the file itself.
            Some(_) if matches!(self.why, Why::Policy(_)) => self.why.fmt(f),
            Some(file) => write!(f, "{file}: {}", self.why),
            None => self.why.fmt(f),
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverPulled { looked } => f.write_str(looked),
            Self::ManifestUnreadable { why } => write!(f, "the manifest could not be read: {why}"),
            Self::OtherManifest { expected, found } => {
                write!(f, "manifest {}… is here, {}… was demanded", found.short(), expected.short())
            }
            Self::OtherCommit { expected, found } => {
                write!(f, "commit {} is here, {expected} was asked for", found.short())
            }
            Self::NoReceipt => f.write_str("not verified as a whole: there is no receipt"),
            Self::ReceiptDamaged { why } => write!(f, "the receipt is damaged: {why}"),
            Self::ReceiptOfOther { .. } => f.write_str("the receipt is for another manifest"),
            Self::ReceiptUnreadable { why } => write!(f, "the receipt could not be read: {why}"),
            Self::Held => f.write_str("a writer is changing this directory"),
            Self::PullFailed { message, .. } => write!(f, "the pull failed: {message}"),
            Self::Unsteady => f.write_str("the directory kept changing while it was checked"),
            Self::Missing { size } => write!(f, "missing ({})", units::bytes(*size)),
            Self::Size { expected, found } if found < expected => {
                write!(f, "{expected} bytes expected, {found} found: {} missing", exact(expected - found))
            }
            Self::Size { expected, found } => {
                write!(f, "{expected} bytes expected, {found} found: {} too many", exact(found - expected))
            }
            Self::NotRegular => f.write_str("a regular file expected, a link, folder or device found"),
            Self::Bytes { expected, found, .. } => write_digests(f, expected, found),
            Self::Unreadable { why } => write!(f, "could not be read: {why}"),
            Self::EditsUnreadable { why } => write!(f, "what was changed here on purpose is not known: {why}"),
            Self::EditedBoth(conflict) => conflict.fmt(f),
            Self::Signature(untrusted) => untrusted.fmt(f),
            Self::Changing => f.write_str("it was written to while it was hashed"),
            Self::Structure(fault) => fault.fmt(f),
            Self::Policy(breach) => breach.fmt(f),
        }
    }
}

fn write_digests(f: &mut fmt::Formatter<'_>, expected: &Digest, found: &Digest) -> fmt::Result {
    match (expected, found) {
        (Digest::Sha256(expected), Digest::Sha256(found)) => {
            write!(f, "sha256 expected {}…, found {}…", expected.short(), found.short())
        }
        (Digest::GitBlob(expected), Digest::GitBlob(found)) => {
            write!(f, "git-sha1 expected {}…, found {}…", expected.short(), found.short())
        }
        _ => write!(f, "{expected} expected, {found} found"),
    }
}

fn exact(bytes: u64) -> String {
    if bytes == 1 { "1 byte".into() } else { format!("{bytes} bytes") }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::core::digest::Sha256;

    /// Wrong bytes, for tests.
    pub(crate) fn bytes_why() -> Why {
        let digest = |byte| Digest::Sha256(Sha256::from_bytes([byte; 32]));
        Why::Bytes { expected: digest(0x9f), found: digest(0x31), disguised: false }
    }

    #[test]
    fn a_reason_says_what_was_expected_and_what_came() {
        assert_eq!(bytes_why().to_string(), "sha256 expected 9f9f9f9f9f9f…, found 313131313131…");
        let short = Why::Size { expected: 10, found: 9 };
        assert_eq!(short.to_string(), "10 bytes expected, 9 found: 1 byte missing");
        assert_eq!((short.expected().unwrap(), short.found().unwrap()), ("10 bytes".into(), "9 bytes".into()));
        assert!(Why::Size { expected: 1, found: 9 }.to_string().ends_with("8 bytes too many"));
    }
}
