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
