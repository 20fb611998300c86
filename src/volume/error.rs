//! What can go wrong on a volume, with the step and the path it happened at.
//!
//! Owns the reading of error numbers: nobody above looks at one. A failed step is never
//! repeated here, and a failed write or sync is final (P3).

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::core::code::Code;
use crate::core::local_edits::LocalEditsError;
use crate::core::manifest::ManifestError;
use crate::core::receipt::ReceiptError;
use crate::core::retry::FailureClass;

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reserving blocks.
    Allocate,
    /// Making a file.
    Create,
    /// Making a folder.
    CreateFolder,
    /// Making a second name.
    Link,
    /// Reading a folder.
    List,
    /// Taking a lock.
    Lock,
    /// Reading attributes.
    Look,
    /// Opening.
    Open,
    /// Reading.
    Read,
    /// Removing.
    Remove,
    /// Renaming.
    Rename,
    /// Changing length, mode or times.
    Set,
    /// Making durable.
    Sync,
    /// Writing.
    Write,
}

impl Step {
    const fn verb(self) -> &'static str {
        match self {
            Self::Allocate => "reserve space for",
            Self::Create | Self::CreateFolder => "create",
            Self::Link => "link",
            Self::List => "list",
            Self::Lock => "lock",
            Self::Look => "look at",
            Self::Open => "open",
            Self::Read => "read",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Set => "change",
            Self::Sync => "sync",
            Self::Write => "write",
        }
    }
}

/// A failure on the volume.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The file system or the quota is full.
    #[error("no space to {} {}", .step.verb(), .path.display())]
    NoSpace {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The file system is mounted read-only.
    #[error("cannot {} {} on a read-only file system", .step.verb(), .path.display())]
    ReadOnly {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// No permission.
    #[error("not allowed to {} {}", .step.verb(), .path.display())]
    Denied {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Not there.
    #[error("cannot {} {}: it does not exist", .step.verb(), .path.display())]
    Missing {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A symbolic link, or something else that is no folder, where a plain folder or file belongs.
    #[error("refused to {} {}: a link or a file stands where a folder or a regular file belongs", .step.verb(), .path.display())]
    Steered {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Any other answer of the system.
    #[error("could not {} {}", .step.verb(), .path.display())]
    Io {
        /// What was being done.
        step: Step,
        /// To what.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Something has the name already.
    #[error("{} exists already", .path.display())]
    Occupied {
        /// The name.
        path: PathBuf,
    },
    /// Not a regular file.
    #[error("{} is not a regular file", .path.display())]
    NotRegular {
        /// What is there.
        path: PathBuf,
    },
    /// A small file of ours that is not small.
    #[error("{} is larger than {limit} bytes", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes it may have.
        limit: u64,
    },
    /// A folder or a tree with more entries than are looked at.
    #[error("{} has more than {limit} entries", .path.display())]
    TooMany {
        /// The folder.
        path: PathBuf,
        /// Most entries that are looked at.
        limit: usize,
    },
    /// An earlier write or sync of this partial failed; it has to be reopened.
    #[error("an earlier write to {} failed", .path.display())]
    Poisoned {
        /// The partial.
        path: PathBuf,
    },
    /// Bytes past the end of the file that the manifest describes.
    #[error("byte {end} is past the end of {} ({size} bytes)", .path.display())]
    PastEnd {
        /// The partial.
        path: PathBuf,
        /// End of the range.
        end: u64,
        /// Size in the manifest.
        size: u64,
    },
    /// A partial was sealed before its last byte.
    #[error("{} has {found} of {expected} bytes", .path.display())]
    Short {
        /// The partial.
        path: PathBuf,
        /// Size in the manifest.
        expected: u64,
        /// Bytes on disk.
        found: u64,
    },
    /// A proof of another file.
    #[error("the proof at hand is not one of {}", .path.display())]
    OtherProof {
        /// The partial.
        path: PathBuf,
    },
    /// Another file has come under a name of ours.
    #[error("{} was replaced by somebody else", .path.display())]
    Replaced {
        /// The name.
        path: PathBuf,
    },
    /// The stored manifest is no manifest.
    #[error("{} is not usable", .path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ManifestError,
    },
    /// The stored receipt is none, or one for another manifest.
    #[error("{} is not usable", .path.display())]
    Receipt {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ReceiptError,
    },
    /// What was changed here on purpose is not known, or does not fit the manifest.
    #[error("{} is not usable", .path.display())]
    LocalEdits {
        /// The file.
        path: PathBuf,
        /// Why.
        source: LocalEditsError,
    },
}

/// What this module returns.
pub type Result<T> = std::result::Result<T, VolumeError>;

impl VolumeError {
    /// Sorts an answer of the system into its situation.
    pub(crate) fn new(step: Step, path: impl Into<PathBuf>, error: impl Into<io::Error>) -> Self {
        let (path, source) = (path.into(), error.into());
        match Errno::from_io_error(&source) {
            Some(Errno::NOSPC | Errno::DQUOT) => Self::NoSpace { step, path, source },
            Some(Errno::ROFS) => Self::ReadOnly { step, path, source },
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied { step, path, source },
            Some(Errno::NOENT) => Self::Missing { step, path, source },
            Some(Errno::EXIST) => Self::Occupied { path },
            Some(Errno::LOOP | Errno::NOTDIR) => Self::Steered { step, path, source },
            // RESOLVE_BENEATH answers an attempt to leave with it; for a rename it is two devices.
            Some(Errno::XDEV) if step != Step::Rename => Self::Steered { step, path, source },
            _ => Self::Io { step, path, source },
        }
    }

    /// Whether the thing is simply not there.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// The system's error number, when there is one.
    pub(crate) fn errno(&self) -> Option<Errno> {
        match self {
            Self::NoSpace { source, .. }
            | Self::ReadOnly { source, .. }
            | Self::Denied { source, .. }
            | Self::Missing { source, .. }
            | Self::Steered { source, .. }
            | Self::Io { source, .. } => Errno::from_io_error(source),
            _ => None,
        }
    }

    /// What it means for the next try.
    pub fn class(&self) -> FailureClass {
        match self.errno() {
            // The server of a network file system forgot the handle: reopening is enough.
            Some(Errno::STALE) => FailureClass::Transient { after: None },
            _ => FailureClass::Local,
        }
    }

    /// The outcome to show.
    pub const fn code(&self) -> Code {
        match self {
            Self::NoSpace { .. } => Code::NoSpace,
            Self::Occupied { .. } | Self::Replaced { .. } => Code::Held,
            Self::Receipt { .. } => Code::Incomplete,
            Self::LocalEdits { source: LocalEditsError::Conflict(_), .. } => Code::Refused,
            Self::Poisoned { .. } | Self::PastEnd { .. } | Self::Short { .. } | Self::OtherProof { .. } => {
                Code::Internal
            }
            _ => Code::CouldNotCheck,
        }
    }

    /// What to do next, when something can be done.
    pub fn hint(&self) -> Option<&'static str> {
        if self.errno() == Some(Errno::DQUOT) {
            return Some("the quota of this user or group is used up: ask for more, or remove a model");
        }
        if matches!(self.errno(), Some(Errno::MFILE | Errno::NFILE)) {
            return Some("too many files are open: raise the limit (`ulimit -n`), or use fewer connections");
        }
        if self.errno() == Some(Errno::IO) {
            return Some(
                "the disk failed, or its file system was taken out of service: see the kernel's log (`dmesg`), check it, then pull again",
            );
        }
        match self {
            Self::NoSpace { .. } => {
                Some("free some space or inodes (`df`, `df -i`), or remove a model; what is there is kept and used")
            }
            Self::ReadOnly { .. } => Some("mount the volume for writing on the host that pulls"),
            Self::Denied { .. } => Some("run as a user that may use this directory, or change its mode or group"),
            Self::Steered { .. } => Some("put a plain folder or file there; links inside a volume are not followed"),
            Self::Occupied { .. } => Some("move the file away, or let `muster adopt` check it"),
            Self::Manifest { .. } => Some("pull the model again: the files that are right are kept"),
            Self::Receipt { .. } => Some("`muster verify` makes a new receipt"),
            Self::LocalEdits { source: LocalEditsError::Conflict(_), .. } => Some(
                "`muster accept --undo` brings the published file; change it again and accept that, if it is still needed",
            ),
            Self::LocalEdits { .. } => Some(
                "use the program that wrote it; or move it away, and accept again what was changed here on purpose",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_become_situations() {
        let of = |errno: Errno| VolumeError::new(Step::Write, "/v/x", errno);
        assert!(matches!(of(Errno::NOSPC), VolumeError::NoSpace { .. }));
        assert_eq!(of(Errno::DQUOT).code(), Code::NoSpace);
        assert_ne!(of(Errno::DQUOT).hint(), of(Errno::NOSPC).hint());
        assert!(matches!(of(Errno::ROFS), VolumeError::ReadOnly { .. }));
        assert!(matches!(of(Errno::LOOP), VolumeError::Steered { .. }));
        assert!(matches!(VolumeError::new(Step::Rename, "x", Errno::XDEV), VolumeError::Io { .. }));
        assert_eq!(of(Errno::STALE).class(), FailureClass::Transient { after: None });
        assert_eq!(of(Errno::IO).class(), FailureClass::Local);
        assert_eq!(of(Errno::NOSPC).to_string(), "no space to write /v/x");
    }
}
