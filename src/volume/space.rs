//! Room on the volume's file system.

use std::os::fd::AsFd;

use super::dir::Dir;
use super::error::{Result, Step, VolumeError};
use crate::limits;

/// Room of a file system, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What an ordinary user may still write; the superuser's share is not counted.
    pub free: u64,
    /// All there is.
    pub total: u64,
}

impl Space {
    /// Of the file system that `dir` is on.
    pub fn of(dir: &Dir) -> Result<Self> {
        let stat = rustix::fs::fstatvfs(dir.as_fd()).map_err(|e| VolumeError::new(Step::Look, dir.path(), e))?;
        Ok(Self {
            free: stat.f_bavail.saturating_mul(stat.f_frsize),
            total: stat.f_blocks.saturating_mul(stat.f_frsize),
        })
    }

    /// What is kept free unless the user says otherwise: 1 % of all, at most 10 GiB.
    pub const fn default_reserve(&self) -> u64 {
        let share = self.total / limits::RESERVE_ONE_IN;
        if share < limits::RESERVE_MAX_BYTES { share } else { limits::RESERVE_MAX_BYTES }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_a_percent_up_to_ten_gibibytes() {
        assert_eq!(Space { free: 0, total: 100 << 30 }.default_reserve(), 1 << 30);
        assert_eq!(Space { free: 0, total: 1700 << 30 }.default_reserve(), 10 << 30);
        let place = tempfile::tempdir().unwrap();
        let space = Space::of(&Dir::open(place.path()).unwrap()).unwrap();
        assert!(space.total > 0 && space.free <= space.total);
    }
}
