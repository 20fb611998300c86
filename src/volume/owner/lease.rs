//! How long the silence of an owner is believed.
//!
//! Pure: readings and times go in. A watcher trusts its own clock only (`CLOCK_BOOTTIME`), since
//! two hosts agree on no time.

use std::time::Duration;

use jiff::SignedDuration;

use super::record::Seen;
use crate::limits;

/// How often an owner shows that it lives.
pub const HEARTBEAT: Duration = limits::HEARTBEAT_EVERY;
/// An owner whose record stood still for so long has lost the volume.
pub const LEASE: Duration = limits::LEASE;
/// An owner that has not shown itself for so long writes nothing until it has: it may be at the
/// end of its lease on somebody's clock.
pub const HALF_LEASE: Duration = Duration::from_secs(limits::LEASE.as_secs() / 2);
/// A second look at a heartbeat of suspect age comes so much later.
pub const SECOND_LOOK: Duration = Duration::from_secs(3);

/// Ages between these need no second look: a beat that is late by one, and small differences
/// between clocks.
const AGE_MIN: SignedDuration = SignedDuration::from_secs(-5);
const AGE_MAX: SignedDuration = SignedDuration::from_secs(25);

/// Watches the record of an owner that cannot be proved dead.
#[derive(Debug)]
pub struct LeaseWatch {
    seen: Seen,
    still_since: Duration,
    last_look: Duration,
}

/// What a watch has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// It may live. Look again at the latest after [`HEARTBEAT`].
    Running {
        /// How long the record still has to stand still.
        left: Duration,
    },
    /// It stood still for a whole lease.
    Over(Lapsed),
}

/// The proof that an owner's record stood still for a whole lease. It is worth nothing as soon as
/// the record moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lapsed(Seen);

impl Lapsed {
    /// Whether it speaks of this very reading.
    pub fn covers(&self, seen: &Seen) -> bool {
        self.0 == *seen
    }
}

impl LeaseWatch {
    /// Begins to watch; `now` is the time since boot.
    pub fn begin(seen: Seen, now: Duration) -> Self {
        Self { seen, still_since: now, last_look: now }
    }

    /// Takes the next reading of the highest record. Any change begins a new lease, and so does a
    /// gap between two looks: a watcher that slept cannot know that the other was awake.
    pub fn observe(&mut self, seen: &Seen, now: Duration) -> Lease {
        let gap = now.saturating_sub(self.last_look);
        if *seen != self.seen || gap > HALF_LEASE {
            self.seen = seen.clone();
            self.still_since = now;
        }
        self.last_look = now;
        match LEASE.checked_sub(now.saturating_sub(self.still_since)) {
            None | Some(Duration::ZERO) => Lease::Over(Lapsed(self.seen.clone())),
            Some(left) => Lease::Running { left },
        }
    }
}

/// One reading of a sign of life by somebody who only wants to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Something that changes at least once in [`SECOND_LOOK`] while the owner lives: the status
    /// is replaced every second. The counter of the owner record is too slow for it.
    pub pulse: u64,
    /// The reader's wall clock less the time the owner wrote.
    pub age: SignedDuration,
}

/// What one or two readings say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// It lives.
    Alive,
    /// Of suspect age: look again after [`SECOND_LOOK`].
    Suspect,
    /// It lives, and its clock is not ours.
    ClocksDiffer,
    /// It has stopped.
    Dead,
}

/// Judges a sign of life; `second` is the reading [`SECOND_LOOK`] later, once there is one.
pub fn liveness(first: Reading, second: Option<Reading>) -> Liveness {
    let plausible = |reading: Reading| (AGE_MIN..=AGE_MAX).contains(&reading.age);
    match second {
        None if plausible(first) => Liveness::Alive,
        None => Liveness::Suspect,
        Some(second) if second.pulse == first.pulse => Liveness::Dead,
        Some(second) if plausible(second) => Liveness::Alive,
        Some(_) => Liveness::ClocksDiffer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn seen(bytes: &str) -> Seen {
        Seen::new(7, bytes.as_bytes().to_vec())
    }

    #[test]
    fn a_lease_is_over_after_it_stood_still_for_a_whole_one() {
        let mut watch = LeaseWatch::begin(seen("1"), at(100));
        for now in [105, 115, 120, 129] {
            assert_eq!(watch.observe(&seen("1"), at(now)), Lease::Running { left: at(130 - now) });
        }
        let Lease::Over(lapsed) = watch.observe(&seen("1"), at(130)) else { panic!("it is over") };
        assert!(
            lapsed.covers(&seen("1")) && !lapsed.covers(&seen("2")) && !lapsed.covers(&Seen::new(8, b"1".to_vec()))
        );
    }

    #[test]
    fn a_beating_owner_is_never_robbed() {
        let mut watch = LeaseWatch::begin(seen("0"), at(0));
        for now in 1..1000 {
            let reading = seen(&(now / 10).to_string());
            assert!(matches!(watch.observe(&reading, at(now)), Lease::Running { .. }), "{now}");
        }
    }

    #[test]
    fn the_time_a_watcher_slept_does_not_count() {
        let mut watch = LeaseWatch::begin(seen("1"), at(0));
        assert_eq!(watch.observe(&seen("1"), at(3600)), Lease::Running { left: LEASE });
        assert_eq!(watch.observe(&seen("1"), at(3610)), Lease::Running { left: at(20) });
        // A clock that goes back is no reason to take anything.
        assert!(matches!(watch.observe(&seen("1"), at(10)), Lease::Running { .. }));
    }

    #[test]
    fn a_sign_of_life_of_suspect_age_is_looked_at_twice() {
        let reading = |pulse, seconds| Reading { pulse, age: SignedDuration::from_secs(seconds) };
        assert_eq!(liveness(reading(1, 9), None), Liveness::Alive);
        for suspect in [60, -60] {
            assert_eq!(liveness(reading(1, suspect), None), Liveness::Suspect);
            assert_eq!(liveness(reading(1, suspect), Some(reading(1, suspect + 3))), Liveness::Dead);
            assert_eq!(liveness(reading(1, suspect), Some(reading(3, suspect))), Liveness::ClocksDiffer);
        }
        assert_eq!(liveness(reading(1, 60), Some(reading(2, 0))), Liveness::Alive, "it had only been slow");
    }
}
