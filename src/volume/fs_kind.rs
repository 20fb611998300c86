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

    /// Its name for people; of one that is none of these what its number says, where that is known.
    pub fn name_of(fd: &impl AsFd) -> String {
        #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "a bit pattern of 32 bits")]
        let magic = rustix::fs::fstatfs(fd).map(|stat| stat.f_type as u32);
        magic.map_or_else(|_| "an unknown file system".to_owned(), Self::name)
    }

    fn name(magic: u32) -> String {
        let known = match Self::from_magic(magic) {
            Self::Btrfs => "Btrfs",
            Self::Ceph => "Ceph",
            Self::Ext4 => "ext4",
            Self::Fuse => "FUSE",
            Self::Gpfs => "Storage Scale (GPFS)",
            Self::Lustre => "Lustre",
            Self::Nfs => "NFS",
            Self::Overlay => "overlayfs",
            Self::Smb => "SMB",
            Self::Tmpfs => "tmpfs (memory)",
            Self::Xfs => "XFS",
            Self::Zfs => "ZFS",
            Self::Other => match magic {
                0x0102_1997 => "9p",
                0x4d44 => "FAT",
                0x2011_bab0 => "exFAT",
                0x5346_544e => "NTFS",
                0x8584_58f6 => "ramfs (memory)",
                0x7371_7368 => "SquashFS",
                0xf2f5_2010 => "F2FS",
                0x1983_0326 => "BeeGFS",
                0xca45_1a4e => "bcachefs",
                0xf15f => "eCryptfs",
                other => return format!("file system {other:#x}"),
            },
        };
        known.to_owned()
    }

    /// Largest file it can hold, where that is smaller than a shard may be.
    pub fn file_size_max(fd: &impl AsFd) -> Option<u64> {
        let is_fat = rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == 0x4d44);
        is_fat.then_some(u64::from(u32::MAX))
    }

    /// Whether what was written at an offset is what a read finds there. Elsewhere positioned
    /// writes have corrupted files in the field, so the file is read back.
    pub const fn trusts_positioned_writes(self) -> bool {
        matches!(self, Self::Btrfs | Self::Ext4 | Self::Tmpfs | Self::Xfs | Self::Zfs)
    }

    /// Whether writes past its page cache are known to be sound, and cheaper than those through it.
    pub const fn takes_direct_writes(self) -> bool {
        matches!(self, Self::Ext4 | Self::Xfs)
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

    #[test]
    fn a_file_system_has_a_name_or_shows_its_number() {
        for (magic, name) in [(0xef53, "ext4"), (0x6969, "NFS"), (0x4d44, "FAT"), (0x1234, "file system 0x1234")] {
            assert_eq!(FsKind::name(magic), name);
        }
    }
}
