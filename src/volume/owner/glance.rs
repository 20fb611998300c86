//! What somebody who only looks can tell of the owner.
//!
//! Reads, creates nothing, and takes nothing: a reader's view of what [`super::Ownership`] decides
//! by.

use super::process_id::{self, ProcessFacts};
use super::record::{self, Record, Seen, current};
use super::standing::{self, Standing};
use crate::volume::Volume;
use crate::volume::dir::Dir;
use crate::volume::error::Result;
use crate::volume::fs_kind::FsKind;

/// One look at the highest record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Glance {
    /// The record as it was read.
    pub seen: Seen,
    /// What it says, when it can be believed.
    pub record: Option<Record>,
    /// Whether its writer still runs, as far as that can be proved.
    pub standing: Standing,
}

impl Glance {
    pub(super) fn of(seen: Seen, owners: &Dir, us: &ProcessFacts) -> Self {
        let record = seen.record();
        let single_host = FsKind::of(owners).is_single_host();
        let judge = |record: &Record| standing::standing(record, us, single_host, process_id::look);
        let standing = record.as_ref().map_or(Standing::Unknown, judge);
        Self { seen, record, standing }
    }

    /// Whether nothing of it writes any more.
    pub const fn is_dead(&self) -> bool {
        matches!(self.standing, Standing::Dead { .. })
    }
}

impl Volume {
    /// Looks at the owner; `None` when nobody ever owned the volume.
    pub fn owner(&self) -> Result<Option<Glance>> {
        let Some(owners) = self.existing_owners()? else { return Ok(None) };
        Ok(current(&owners)?.map(|seen| Glance::of(seen, &owners, &ProcessFacts::read())))
    }

    /// Looks at every record there is, the owner's last.
    pub fn owners_seen(&self) -> Result<Vec<Glance>> {
        let Some(owners) = self.existing_owners()? else { return Ok(Vec::new()) };
        let us = ProcessFacts::read();
        let epochs = record::epochs(&owners)?;
        epochs.into_iter().map(|epoch| Ok(Glance::of(record::read(&owners, epoch)?, &owners, &us))).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;

    use super::*;
    use crate::volume::owner::record::tests::introduction;
    use crate::volume::owner::{Now, Ownership};

    #[test]
    fn looking_makes_nothing_and_sees_an_owner_come_and_go() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::open(place.path()).unwrap();
        assert_eq!(volume.owner().unwrap(), None);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0);
        let now = Now { wall: Timestamp::UNIX_EPOCH, boot: Duration::ZERO };
        let owned =
            Ownership::acquire(volume.owners().unwrap(), &ProcessFacts::read(), &introduction(1), None, now).unwrap();
        let glance = volume.owner().unwrap().unwrap();
        assert_eq!((glance.standing, glance.is_dead()), (Standing::Alive, false));
        assert_eq!(glance.record.unwrap().pid, std::process::id());
        owned.release(now).unwrap();
        assert!(volume.owner().unwrap().unwrap().is_dead());
        let next =
            Ownership::acquire(volume.owners().unwrap(), &ProcessFacts::read(), &introduction(2), None, now).unwrap();
        let seen = volume.owners_seen().unwrap();
        let told: Vec<_> = seen.iter().map(|glance| (glance.seen.epoch(), glance.is_dead())).collect();
        assert_eq!(told, [(1, true), (next.epoch(), false)]);
    }
}
