//! Owning a volume: at most one process writes, and one that lost the volume finds out.
//!
//! Owns `.muster/owners/`. The highest epoch owns. An epoch is taken by giving a whole, synced
//! record its name with `link(2)`, which fails for all but one; nobody ever writes another's
//! record. Invariants (P6): no lock is needed; a living owner that beats is never robbed; whoever
//! cannot be proved dead is waited for a whole lease; and a writer asks [`Ownership::permit`]
//! before every claim, publish and removal. Between that answer and the write a moment remains,
//! for which partials have private names and are renamed by a new owner.

pub mod glance;
pub mod lease;
pub mod process_id;
pub mod record;
pub mod standing;

use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rustix::io::Errno;
use thiserror::Error;

use super::adopt::TakeOver;
use super::dir::Dir;
use super::error::{Step, VolumeError};
use super::fs_kind::FsKind;
use super::small_file;
use super::sync;
use super::writer::WriterId;

pub use glance::Glance;
pub use lease::{HALF_LEASE, HEARTBEAT, LEASE, Lapsed, Lease, LeaseWatch, Liveness, Reading, SECOND_LOOK, liveness};
pub use process_id::{ProcessFacts, ignored_from_the_start};
pub use record::{Introduction, Record, Seen, current};
pub use standing::Standing;

/// How many records of the past are kept, for those who find partials of that time.
const RECORDS_KEPT: usize = 32;
/// A heartbeat that is further ahead than this comes from another clock.
const CLOCKS_AGREE_S: i64 = -5;
/// How often a race for an epoch is run again. Each lost one means that somebody else won.
const ATTEMPTS: usize = 8;

/// Why a volume cannot be owned.
#[derive(Debug, Error)]
pub enum OwnerError {
    /// Somebody has it, or may have it.
    #[error("{0}")]
    Held(Box<Holder>),
    /// Others took it, again and again.
    #[error("others keep taking the volume")]
    Contended,
    /// A record has the highest number there is: somebody forged one.
    #[error("the volume has an owner record with the number {}", u64::MAX)]
    Exhausted,
    /// The volume does not answer.
    #[error("cannot read or write the owner records")]
    Volume(#[from] VolumeError),
}

/// Who stands in the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The record as it was read: to begin a [`LeaseWatch`] with.
    pub seen: Seen,
    /// What it says, when it can be read.
    pub record: Option<Record>,
    /// Whether its process provably runs. If not, its lease will tell; and a process that runs
    /// but has stopped beating loses the volume by its lease too.
    pub alive: bool,
    /// Age of its last heartbeat, if the clocks agree.
    pub age: Option<SignedDuration>,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.record {
            Some(record) => {
                write!(f, "the volume is held by process {} on {}", record.pid, record.host)?;
                match self.age.map(|age| age.as_secs()) {
                    None => Ok(()),
                    Some(age) if age < CLOCKS_AGREE_S => write!(f, ", heartbeat {} s ahead of the clock here", -age),
                    Some(age) => write!(f, ", heartbeat {} s ago", age.max(0)),
                }
            }
            None => write!(f, "the volume is held by an unreadable owner record, number {}", self.seen.epoch()),
        }
    }
}

/// Why a writer may not write.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Lost {
    /// Somebody took the volume. For good.
    #[error("the volume was taken by owner {by}")]
    Superseded {
        /// The highest epoch.
        by: u64,
    },
    /// The own record is gone or is another's. The next heartbeat restores it or finds out.
    #[error("the owner record of this process is gone")]
    Displaced,
    /// The last heartbeat is too old. The next one mends it.
    #[error("the last heartbeat was {} s ago", .silent_for.as_secs())]
    Stale {
        /// By the own clock.
        silent_for: Duration,
    },
    /// It was given back. For good: a late heartbeat must not bring it back to life.
    #[error("the volume was given back")]
    Released,
    /// The records cannot be read.
    #[error("the owner records cannot be read")]
    Unreadable,
}

/// The volume is ours, as long as [`Ownership::permit`] says so.
#[derive(Debug)]
pub struct Ownership {
    owners: Dir,
    writer: WriterId,
    state: Mutex<State>,
    earlier: Vec<(WriterId, TakeOver)>,
}

#[derive(Debug)]
struct State {
    record: Record,
    /// Time since boot before the last heartbeat that worked.
    beat: Duration,
    superseded_by: Option<u64>,
}

/// The times that a step needs.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// The wall clock, for records.
    pub wall: Timestamp,
    /// Time since boot, suspended time included.
    pub boot: Duration,
}

impl Ownership {
    /// Takes the volume whose owner records are in `owners`, when it is free: never owned, or its
    /// owner has ended, is provably dead, or has `lapsed`.
    ///
    /// # Errors
    /// [`OwnerError::Held`]: follow it, give up, or watch its lease and come back.
    pub fn acquire(
        owners: Dir,
        us: &ProcessFacts,
        introduction: &Introduction,
        lapsed: Option<&Lapsed>,
        now: Now,
    ) -> Result<Self, OwnerError> {
        small_file::sweep(&owners)?;
        for _ in 0..ATTEMPTS {
            let highest = current(&owners)?;
            let epoch = highest.as_ref().map_or(Some(1), |seen| seen.epoch().checked_add(1));
            if let Some(seen) = highest {
                // An answer that got lost on the way: the name we failed to make is ours.
                if let Some(record) = seen.record().filter(|record| is_ours(record, us, introduction)) {
                    return Self::settle(owners, record, us, now);
                }
                let free = lapsed.is_some_and(|lapsed| lapsed.covers(&seen));
                if !free {
                    refuse_unless_dead(seen, &owners, us, now)?;
                }
            }
            let record = Record::new(epoch.ok_or(OwnerError::Exhausted)?, us, introduction, now.wall);
            match make(&owners, &record) {
                Ok(()) => return Self::settle(owners, record, us, now),
                Err(VolumeError::Occupied { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(OwnerError::Contended)
    }

    /// The name of this writer.
    pub const fn writer(&self) -> WriterId {
        self.writer
    }

    /// The number of this ownership.
    pub const fn epoch(&self) -> u64 {
        self.writer.epoch()
    }

    /// Shows that this owner lives: every [`HEARTBEAT`].
    ///
    /// # Errors
    /// [`Lost`]. After [`Lost::Superseded`] and [`Lost::Released`] there is no way back; anything
    /// else may mend.
    pub fn beat(&self, now: Now) -> Result<(), Lost> {
        let mut state = self.state();
        self.rewrite(&mut state, now, false)
    }

    /// Whether this owner may write now; `boot` is the time since boot. Ask before each claim,
    /// publish and removal.
    ///
    /// # Errors
    /// [`Lost`]: do not write.
    pub fn permit(&self, boot: Duration) -> Result<(), Lost> {
        let mut state = self.state();
        let silent_for = boot.saturating_sub(state.beat);
        self.check(&mut state)?;
        if silent_for >= HALF_LEASE { Err(Lost::Stale { silent_for }) } else { Ok(()) }
    }

    /// As [`Self::permit`]; what the next heartbeat would mend is mended first. A process that stood still wakes up
    /// with work to do and a heartbeat to make, and nobody says which comes first.
    ///
    /// # Errors
    /// [`Lost`]: do not write.
    pub fn permit_anew(&self, now: Now) -> Result<(), Lost> {
        match self.permit(now.boot) {
            Err(Lost::Stale { .. } | Lost::Displaced) => self.beat(now),
            said => said,
        }
    }

    /// Gives the volume back at the end. The caller's writers have all ended. Without it a
    /// follower finds out by other means, a moment or a lease later.
    ///
    /// # Errors
    /// [`Lost`]: there was nothing to give back.
    pub fn release(&self, now: Now) -> Result<(), Lost> {
        let mut state = self.state();
        self.rewrite(&mut state, now, true)
    }

    /// How a partial of an earlier writer may be taken over.
    pub fn take_over(&self, writer: WriterId) -> TakeOver {
        let known = self.earlier.iter().find(|(earlier, _)| *earlier == writer);
        known.map_or(TakeOver::Copy, |(_, take_over)| *take_over)
    }

    fn settle(owners: Dir, record: Record, us: &ProcessFacts, now: Now) -> Result<Self, OwnerError> {
        let mut epochs = record::epochs(&owners)?;
        epochs.retain(|epoch| *epoch < record.epoch);
        let (old, recent) = epochs.split_at(epochs.len().saturating_sub(RECORDS_KEPT));
        for epoch in old {
            owners.remove(&record::name(*epoch))?;
        }
        let single_host = FsKind::of(&owners).is_single_host();
        let mut earlier = Vec::new();
        for epoch in recent {
            let Some(record) = record::read(&owners, *epoch)?.record() else { continue };
            let take_over = match standing::standing(&record, us, single_host, process_id::look) {
                Standing::Dead { same_boot } => TakeOver::InPlace { same_boot },
                Standing::Alive | Standing::Unknown => TakeOver::Copy,
            };
            earlier.push((record.writer, take_over));
        }
        let writer = record.writer;
        let state = Mutex::new(State { record, beat: now.boot, superseded_by: None });
        Ok(Self { owners, writer, state, earlier })
    }

    fn rewrite(&self, state: &mut State, now: Now, ended: bool) -> Result<(), Lost> {
        match self.check(state) {
            // Somebody tidied up; the number is still ours.
            Ok(()) | Err(Lost::Displaced) => {}
            Err(lost) => return Err(lost),
        }
        let seen = record::read(&self.owners, self.epoch()).map_err(|_| Lost::Unreadable)?;
        // Where `link` let two have one number, both find out here.
        if seen.record().is_some_and(|record| record.writer != self.writer) {
            state.superseded_by = Some(self.epoch());
            return Err(Lost::Superseded { by: self.epoch() });
        }
        let record = state.record.moved(now.wall, ended);
        self.write(&record).map_err(|_| Lost::Unreadable)?;
        (state.record, state.beat) = (record, now.boot);
        Ok(())
    }

    /// A heartbeat goes over the one before: that needs no room on a full disk, and after a power cut a record is
    /// there, where a new file that was never synced may be empty. The end is told by a file of its own where there
    /// is room for one.
    fn write(&self, record: &Record) -> Result<(), VolumeError> {
        let (name, json) = (record::name(self.epoch()), record.to_json());
        if record.ended && small_file::store(&self.owners, &name, &json).is_ok() {
            return Ok(());
        }
        let written = small_file::overwrite(&self.owners, &name, &json)?;
        if written { Ok(()) } else { small_file::replace(&self.owners, &name, &json) }
    }

    fn check(&self, state: &mut State) -> Result<(), Lost> {
        if let Some(by) = state.superseded_by {
            return Err(Lost::Superseded { by });
        }
        if state.record.ended {
            return Err(Lost::Released);
        }
        match record::epochs(&self.owners).map_err(|_| Lost::Unreadable)?.last() {
            Some(&by) if by > self.epoch() => {
                state.superseded_by = Some(by);
                Err(Lost::Superseded { by })
            }
            Some(&highest) if highest == self.epoch() => Ok(()),
            _ => Err(Lost::Displaced),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_ours(record: &Record, us: &ProcessFacts, introduction: &Introduction) -> bool {
    let same = (record.pid, record.start_time, &record.boot_id) == (us.pid, us.start_time, &us.boot_id);
    same && !record.ended && record.writer == WriterId::new(record.epoch, introduction.random)
}

fn refuse_unless_dead(seen: Seen, owners: &Dir, us: &ProcessFacts, now: Now) -> Result<(), OwnerError> {
    let Glance { seen, record, standing } = Glance::of(seen, owners, us);
    if let Standing::Dead { .. } = standing {
        return Ok(());
    }
    let age = record.as_ref().map(|record| record.age(now.wall));
    Err(OwnerError::Held(Box::new(Holder { seen, record, alive: standing == Standing::Alive, age })))
}

/// Makes a record under a name that nothing has.
fn make(owners: &Dir, record: &Record) -> Result<(), VolumeError> {
    let (name, bytes) = (record::name(record.epoch), record.to_json());
    match small_file::store_new(owners, &name, &bytes) {
        // No hard links here. Half a record may be seen then, which says nothing and is waited for.
        Err(error) if matches!(error.errno(), Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK)) => {
            let mut file = owners.create_file(&name)?;
            let write = file.write_all(&bytes).and_then(|()| sync::all(&file, &name));
            write.map_err(|error| VolumeError::new(Step::Write, owners.shown(&name), error))?;
            owners.sync()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests;
