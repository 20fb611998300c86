//! Whether the writer of a record can still write.
//!
//! Pure: facts go in. Invariant (P6): "dead" is said only with proof. A host's name proves
//! nothing, nor does a pid of another namespace, nor silence.

use super::process_id::{ProcessFacts, Sight};
use super::record::Record;

/// What is known of a record's writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It runs.
    Alive,
    /// It ended in order, or is provably gone.
    Dead {
        /// It ended since this machine booted, so whatever it wrote is still there.
        same_boot: bool,
    },
    /// Neither can be proved: only its lease tells.
    Unknown,
}

/// Judges a record. `look` looks at a pid of our own namespace; `single_host` says that no other
/// host can have the file system mounted.
pub fn standing(record: &Record, us: &ProcessFacts, single_host: bool, look: impl FnOnce(u32) -> Sight) -> Standing {
    let known = !us.boot_id.is_empty() && !record.boot_id.is_empty();
    let same_boot = known && record.boot_id == us.boot_id;
    if record.ended {
        return Standing::Dead { same_boot };
    }
    if !same_boot {
        return if known && single_host { Standing::Dead { same_boot } } else { Standing::Unknown };
    }
    if us.pid_namespace.is_none() || record.pid_namespace != us.pid_namespace {
        return Standing::Unknown;
    }
    match look(record.pid) {
        Sight::Gone => Standing::Dead { same_boot },
        Sight::Running { start_time } if start_time == record.start_time => Standing::Alive,
        // The pid was given out again; but times of two time namespaces do not compare.
        Sight::Running { .. } if us.time_namespace.is_some() && record.time_namespace == us.time_namespace => {
            Standing::Dead { same_boot }
        }
        Sight::Running { .. } | Sight::Hidden => Standing::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::volume::owner::record::tests::introduction;

    fn us() -> ProcessFacts {
        ProcessFacts {
            host: "here".into(),
            boot_id: "boot".into(),
            pid_namespace: Some(1),
            time_namespace: Some(2),
            pid: 10,
            start_time: 100,
        }
    }

    fn judge(change: impl FnOnce(&mut Record), sight: Sight, single_host: bool) -> Standing {
        let mut record = Record::new(1, &us(), &introduction(0), Timestamp::UNIX_EPOCH);
        change(&mut record);
        standing(&record, &us(), single_host, |pid| {
            assert_eq!(pid, 10);
            sight
        })
    }

    #[test]
    fn death_needs_proof() {
        const DEAD: Standing = Standing::Dead { same_boot: true };
        let running = Sight::Running { start_time: 100 };
        let again = Sight::Running { start_time: 101 };
        for single_host in [false, true] {
            assert_eq!(judge(|_| {}, running, single_host), Standing::Alive);
            assert_eq!(judge(|_| {}, Sight::Gone, single_host), DEAD);
            assert_eq!(judge(|_| {}, again, single_host), DEAD, "the pid was given out again");
            assert_eq!(judge(|_| {}, Sight::Hidden, single_host), Standing::Unknown);
            assert_eq!(judge(|r| r.host = "there".into(), running, single_host), Standing::Alive);
            assert_eq!(judge(|r| r.pid_namespace = Some(9), Sight::Gone, single_host), Standing::Unknown);
            assert_eq!(judge(|r| r.pid_namespace = None, Sight::Gone, single_host), Standing::Unknown);
            assert_eq!(judge(|r| r.time_namespace = Some(9), again, single_host), Standing::Unknown);
            assert_eq!(judge(|r| r.boot_id.clear(), Sight::Gone, single_host), Standing::Unknown);
            assert_eq!(judge(|r| r.ended = true, running, single_host), DEAD);
        }
    }

    #[test]
    fn another_boot_is_proof_only_where_no_other_host_can_write() {
        let other = |record: &mut Record| record.boot_id = "other".into();
        assert_eq!(judge(other, Sight::Gone, true), Standing::Dead { same_boot: false });
        assert_eq!(judge(other, Sight::Gone, false), Standing::Unknown);
    }
}
