//! Retry is data: what kind of failure it was, and what follows.
//!
//! Owns the classes of failure and the delays between tries. Nothing here sleeps: the caller
//! passes the random number and obeys the answer.

use std::time::Duration;

/// What a failure means for the next try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// It may work later; not before `after`, when the server said so.
    Transient {
        /// The server's own wish.
        after: Option<Duration>,
    },
    /// The signed URL is no longer good: resolve again.
    StaleUrl,
    /// The same request will fail again.
    Permanent,
    /// Bytes came that are not the file's.
    Corrupt,
    /// This machine failed: disk, descriptors, permissions.
    Local,
}

/// First delay of a row of failures.
const BASE: Duration = Duration::from_millis(500);
/// Longest delay that is not the server's wish.
const DELAY_MAX: Duration = Duration::from_secs(60);
/// Waiters for the end of a wish come back spread over so much, a third of it within these bounds.
const SPREAD_MIN: Duration = Duration::from_secs(3);
const SPREAD_MAX: Duration = Duration::from_secs(10);
/// Longest wish of a server that is obeyed at once; a longer one is tried again after this.
const WISH_MAX: Duration = Duration::from_secs(600);

/// The delay before the next try after `failures` (at least 1) in a row.
///
/// Doubles from half a second to a minute; `random` in `0..=1` takes up to half off, so that
/// many waiters do not return in one wave. A server's wish is a lower bound, spread upwards by
/// up to a third, at least 3 s and at most 10 s.
#[must_use]
pub fn delay(failures: u32, after: Option<Duration>, random: f64) -> Duration {
    let random = random.clamp(0.0, 1.0);
    if let Some(after) = after {
        let after = after.min(WISH_MAX);
        let spread = (after / 3).clamp(SPREAD_MIN, SPREAD_MAX);
        return after + spread.mul_f64(random);
    }
    let doubled = BASE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(DELAY_MAX);
    doubled.saturating_sub((doubled / 2).mul_f64(random))
}

/// Failures in a row, of one file or one origin, without one newly durable byte.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Failures {
    in_a_row: u32,
}

impl Failures {
    /// Counts one more.
    pub fn failed(&mut self) -> u32 {
        self.in_a_row = self.in_a_row.saturating_add(1);
        self.in_a_row
    }

    /// A byte became durable: the row starts again.
    pub fn progressed(&mut self) {
        self.in_a_row = 0;
    }

    /// Failures since the last progress.
    #[must_use]
    pub const fn in_a_row(&self) -> u32 {
        self.in_a_row
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn delays_double_up_to_a_minute() {
        let delays: Vec<_> = (1..=10).map(|n| delay(n, None, 0.0).as_millis()).collect();
        assert_eq!(delays[..4], [500, 1000, 2000, 4000]);
        assert_eq!(delays[9], 60_000);
    }

    proptest! {
        #[test]
        fn a_servers_wish_is_never_undercut_and_waiters_spread(seconds in 0u64..500, random in 0.0f64..=1.0) {
            let wish = Duration::from_secs(seconds);
            prop_assert!(delay(1, Some(wish), random) >= wish);
            prop_assert!(delay(1, Some(wish), 1.0) >= delay(1, Some(wish), 0.0) + Duration::from_secs(3));
        }

        #[test]
        fn a_delay_is_never_zero_nor_endless(failures in any::<u32>(), random in any::<f64>()) {
            let delay = delay(failures, None, random);
            prop_assert!(delay >= BASE / 2 && delay <= DELAY_MAX);
        }
    }
}
