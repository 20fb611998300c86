//! Whether an owner still turns: each of its loops shows every turn, and whoever watches asks.
//!
//! A loop that waits for the volume is not stuck: the volume is, another process would wait for it as well, and
//! this one goes on when it answers. Invariant: a loop that ended looks stuck, whatever ended it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::core::units;

/// How much longer than usual a turn may take before its loop counts as stuck. A busy machine takes seconds.
const GRACE: Duration = Duration::from_secs(15);

/// The loops of one owner. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Pulse(Arc<Mutex<Vec<Loop>>>);

/// What a look at all loops found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Life {
    /// A loop that shows no turn, and for how long.
    pub stuck: Option<(&'static str, Duration)>,
    /// How long the volume has not answered one of them.
    pub volume_silent: Option<Duration>,
}

impl Life {
    /// What keeps the owner from its work, if it is its own fault.
    #[must_use]
    pub fn defect(&self) -> Option<String> {
        let (name, silent) = self.stuck?;
        Some(format!("stuck: no turn of the {name} for {}", units::duration(silent)))
    }
}

#[derive(Debug, Clone, Copy)]
struct Loop {
    name: &'static str,
    every: Duration,
    last: Duration,
    is_at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Work,
    Volume,
    End,
}

impl Pulse {
    /// A loop begins that turns at least `every` so often.
    pub fn begin(&self, name: &'static str, every: Duration) -> Turns {
        let mut loops = self.loops();
        loops.push(Loop { name, every, last: clock::monotonic(), is_at: At::Work });
        Turns { pulse: self.clone(), at: loops.len() - 1 }
    }

    /// Looks at all of them; `now` is of the monotonic clock.
    #[must_use]
    pub fn look(&self, now: Duration) -> Life {
        let mut life = Life::default();
        for one in self.loops().iter() {
            let silent = now.saturating_sub(one.last);
            match one.is_at {
                At::Volume => life.volume_silent = life.volume_silent.max(Some(silent)),
                At::Work if silent <= one.every + GRACE => {}
                At::Work | At::End => life.stuck = life.stuck.or(Some((one.name, silent))),
            }
        }
        life
    }

    fn loops(&self) -> MutexGuard<'_, Vec<Loop>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turns of one loop, which shows them.
#[derive(Debug)]
pub struct Turns {
    pulse: Pulse,
    at: usize,
}

impl Turns {
    /// Another turn begins.
    pub fn turn(&self) {
        self.is_at(At::Work);
    }

    /// Waits for something that the volume has to answer.
    pub async fn at_volume<T>(&self, work: impl Future<Output = T>) -> T {
        self.is_at(At::Volume);
        let result = work.await;
        self.turn();
        result
    }

    fn is_at(&self, is_at: At) {
        if let Some(one) = self.pulse.loops().get_mut(self.at) {
            (one.last, one.is_at) = (clock::monotonic(), is_at);
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        self.is_at(At::End);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(10);

    fn later(span: Duration) -> Duration {
        clock::monotonic() + span
    }

    #[test]
    fn a_loop_that_turns_in_time_is_alive_and_one_that_does_not_is_named() {
        let pulse = Pulse::default();
        let (quick, slow) = (pulse.begin("quick", EVERY), pulse.begin("slow", 100 * EVERY));
        assert_eq!(pulse.look(later(EVERY)).stuck, None, "late, and within the grace");
        let (name, silent) = pulse.look(later(EVERY + 2 * GRACE)).stuck.unwrap();
        assert!(name == "quick" && silent > EVERY + GRACE, "{name} {silent:?}");
        quick.turn();
        slow.turn();
        assert_eq!(pulse.look(clock::monotonic()), Life::default());
    }

    #[tokio::test]
    async fn one_that_waits_for_the_volume_is_not_stuck_and_tells_for_how_long() {
        let pulse = Pulse::default();
        let turns = pulse.begin("heartbeat", EVERY);
        let waiting = turns.at_volume(async {
            let life = pulse.look(later(100 * EVERY));
            assert_eq!(life.stuck, None);
            assert!(life.volume_silent.unwrap() > 99 * EVERY, "{life:?}");
        });
        waiting.await;
        assert_eq!(pulse.look(clock::monotonic()), Life::default());
        assert!(pulse.look(later(100 * EVERY)).stuck.is_some(), "afterwards it has to turn again");
    }

    #[test]
    fn one_that_ended_is_stuck_at_once() {
        let pulse = Pulse::default();
        let turns = pulse.begin("scheduler", EVERY);
        let _other = pulse.begin("heartbeat", EVERY);
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _turns = turns;
            panic!("a defect");
        }));
        assert!(ended.is_err());
        assert_eq!(pulse.look(clock::monotonic()).stuck.unwrap().0, "scheduler");
    }
}
