//! The cheap check of a file on disk: its identity.
//!
//! A difference means "hash this file again" and never "bad" by itself. How an identity is
//! read, and when it may be believed, is `volume::identity`'s.

use serde::{Deserialize, Serialize};

/// Inode, size and times of a regular file. The device number is left out on purpose: the same
/// volume has another one on another mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since 1970.
    pub ctime_ns: i64,
}

impl Identity {
    /// The same, made equal to no file's: for an identity that could not be waited out. The next
    /// check hashes the file.
    #[must_use]
    pub const fn distrusted(self) -> Self {
        Self { ctime_ns: i64::MIN, ..self }
    }
}

/// What stands where a file of the manifest belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Observed {
    /// Nothing.
    Missing,
    /// A link, a folder, a device, or a link on the way there.
    NotRegular,
    /// A regular file that opens.
    Present(Identity),
    /// Something that could not be opened or looked at.
    Unreadable {
        /// The system's words.
        why: String,
    },
}
