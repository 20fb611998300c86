//! Which file system it is, and what may be believed of it.
//!
//! Magic numbers are those of `statfs(2)` and `linux/magic.h`. An unknown one gets the careful
//! answer to every question.

use std::os::fd::AsFd;

/// A kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FsKind {
    /// Btrfs.
    Btrfs,
    /// Ceph.
    Ceph,
    /// Ext2 to ext4, which share a number.
    Ext4,
    /// Anything behind FUSE.
    Fuse,
    /// IBM Storage Scale.
    Gpfs,
    /// Lustre.
    Lustre,
    /// NFS, any version.
    Nfs,
    /// None of these.
    Other,
    /// Overlayfs, as in containers.
    Overlay,
    /// SMB.
    Smb,
    /// Memory.
    Tmpfs,
    /// XFS.
    Xfs,
    /// ZFS.
    Zfs,
}

impl FsKind {
    /// Of the file system that a file or directory is on; `Other` when it does not say.
    pub fn of(fd: &impl AsFd) -> Self {
        #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a bit pattern of 32 bits")]
        rustix::fs::fstatfs(fd).map_or(Self::Other, |stat| Self::from_magic(stat.f_type as u32))
    }

    const fn from_magic(magic: u32) -> Self {
        match magic {
            0x9123_683e => Self::Btrfs,
            0x00c3_6400 => Self::Ceph,
            0xef53 => Self::Ext4,
            0x6573_5546 => Self::Fuse,
            0x4750_4653 => Self::Gpfs,
            0x0bd0_0bd0 => Self::Lustre,
            0x6969 => Self::Nfs,
            0x794c_7630 => Self::Overlay,
            0xff53_4d42 | 0xfe53_4d42 | 0x517b => Self::Smb,
            0x0102_1994 => Self::Tmpfs,
            0x5846_5342 => Self::Xfs,
            0x2fc1_2fc1 => Self::Zfs,
            _ => Self::Other,
        }
    }

    /// Whether what was written at an offset is what a read finds there. Elsewhere positioned
    /// writes have corrupted files in the field, so the file is read back.
    pub const fn trusts_positioned_writes(self) -> bool {
        matches!(self, Self::Btrfs | Self::Ext4 | Self::Tmpfs | Self::Xfs | Self::Zfs)
    }

    /// Whether only this host can have it mounted for writing.
    pub const fn is_single_host(self) -> bool {
        matches!(self, Self::Btrfs | Self::Ext4 | Self::Overlay | Self::Tmpfs | Self::Xfs | Self::Zfs)
    }

    /// How far two changes may lie apart and still carry one time, in nanoseconds: a kernel tick
    /// where the local kernel stamps, else what the coarsest server stores.
    pub const fn granularity_ns(self) -> i64 {
        if self.trusts_positioned_writes() { 10_000_000 } else { 2_000_000_000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_file_system_is_not_trusted() {
        let unknown = FsKind::from_magic(0x1234_5678);
        assert_eq!(unknown, FsKind::Other);
        assert!(!unknown.trusts_positioned_writes() && !unknown.is_single_host());
        for network in [FsKind::Nfs, FsKind::Fuse, FsKind::Lustre, FsKind::Gpfs, FsKind::Ceph, FsKind::Smb] {
            assert!(!network.trusts_positioned_writes() && !network.is_single_host());
        }
    }
}
