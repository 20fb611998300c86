//! The outcomes every surface shares: their names in JSON and their exit codes.
//!
//! One table. An exit code that is not here is never produced by muster itself; after `gate`
//! has handed over to a command the code is the command's.

use serde::{Deserialize, Serialize};

/// How a verb ended. The name in JSON is the variant's in snake case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// A defect of muster.
    Internal,
    /// A flag, configuration or name that makes no sense.
    Usage,
    /// Files are missing or not proved.
    Incomplete,
    /// Bytes differ from the manifest.
    Corrupt,
    /// Refused by policy or trust.
    Refused,
    /// No such model on the volume.
    UnknownModel,
    /// The daemon does not answer.
    DaemonUnreachable,
    /// Held by another writer, or in use.
    Held,
    /// Not enough space.
    NoSpace,
    /// The Hub or its storage refused.
    UpstreamRefused,
    /// Neither right nor wrong could be established.
    CouldNotCheck,
    /// No byte for too long.
    Stalled,
    /// Out of time while bytes moved.
    TimedOut,
    /// Stopped by a signal.
    Interrupted,
}

impl Code {
    /// All of them.
    const ALL: [Self; 14] = [
        Self::Internal,
        Self::Usage,
        Self::Incomplete,
        Self::Corrupt,
        Self::Refused,
        Self::UnknownModel,
        Self::DaemonUnreachable,
        Self::Held,
        Self::NoSpace,
        Self::UpstreamRefused,
        Self::CouldNotCheck,
        Self::Stalled,
        Self::TimedOut,
        Self::Interrupted,
    ];

    /// The outcome behind the exit code of another run of this program.
    #[must_use]
    pub fn of_exit(exit: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|code| i32::from(code.exit()) == exit)
    }

    /// The exit code. Interruption is 130 here; the verb that knows the signal adds it to 128.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Incomplete => 10,
            Self::Corrupt => 11,
            Self::Refused => 12,
            Self::UnknownModel => 13,
            Self::DaemonUnreachable => 14,
            Self::Held => 15,
            Self::NoSpace => 16,
            Self::UpstreamRefused => 17,
            Self::CouldNotCheck => 18,
            Self::Stalled => 19,
            Self::TimedOut => 124,
            Self::Interrupted => 130,
        }
    }
}
