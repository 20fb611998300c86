//! How many connections work at once.
//!
//! Starts low, grows while throughput grows, steps back on errors and when more connections
//! bring less, and remembers the level that carried best. Pure: the caller measures a window
//! and passes what it saw.

use std::time::Duration;

/// Connections at the start, unless a level is remembered.
const START: usize = 4;
/// Growth of throughput that is worth another step.
const GAIN: f64 = 1.05;
/// Loss of throughput, against the best level, that counts as collapse.
const COLLAPSE: f64 = 0.5;
/// Windows to stay at a level that brought no gain before trying higher again.
const REST: u32 = 10;

/// What one window of time brought.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Its length.
    pub span: Duration,
    /// Bytes received in it.
    pub bytes: u64,
    /// Connections that failed in it, throttled ones included.
    pub failures: u32,
    /// Whether every allowed connection had work.
    pub busy: bool,
}

/// The number of connections, adapting.
#[derive(Debug, Clone)]
pub struct Pace {
    level: usize,
    max: usize,
    pinned: bool,
    last_rate: f64,
    best: (f64, usize),
    rest: u32,
}

impl Pace {
    /// Adapts between 1 and `max`, from a remembered safe level if there is one.
    #[must_use]
    pub fn adaptive(max: usize, remembered: Option<usize>) -> Self {
        let level = remembered.unwrap_or(START).clamp(1, max.max(1));
        Self { level, max: max.max(1), pinned: false, last_rate: 0.0, best: (0.0, level), rest: 0 }
    }

    /// Exactly `count`, whatever happens.
    #[must_use]
    pub fn pinned(count: usize) -> Self {
        Self { pinned: true, ..Self::adaptive(count.max(1), Some(count)) }
    }

    /// Connections allowed now; at least 1.
    #[must_use]
    pub const fn level(&self) -> usize {
        self.level
    }

    /// The most there may ever be.
    #[must_use]
    pub const fn max(&self) -> usize {
        self.max
    }

    /// The level that carried most.
    #[must_use]
    pub const fn safe_level(&self) -> usize {
        self.best.1
    }

    /// Takes what a window brought and returns the new level.
    pub fn observe(&mut self, window: &Window) -> usize {
        let rate = window.bytes as f64 / window.span.as_secs_f64().max(0.001);
        if self.pinned {
            return self.level;
        }
        if rate > self.best.0 {
            self.best = (rate, self.level);
        }
        if window.failures > 0 {
            self.step_to(self.level.saturating_sub((self.level / 4).max(1)));
        } else if window.busy && self.best.0 > 0.0 && rate < self.best.0 * COLLAPSE && self.level > self.best.1 {
            self.step_to(self.best.1);
        } else if window.busy && self.rest == 0 {
            self.grow(rate);
        } else {
            self.rest = self.rest.saturating_sub(1);
        }
        self.last_rate = rate;
        self.level
    }

    fn grow(&mut self, rate: f64) {
        if rate > self.last_rate * GAIN {
            self.level = (self.level + (self.level / 2).max(1)).min(self.max);
        } else {
            self.rest = REST;
        }
    }

    fn step_to(&mut self, level: usize) {
        self.level = level.max(1);
        self.rest = REST;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_number_of_connections_stays_within_its_bounds_whatever_comes(
            max in 0usize..300,
            remembered in prop::option::of(0usize..1000),
            windows in prop::collection::vec((0u64..20_000, any::<u64>(), 0u32..3, any::<bool>()), 0..200),
        ) {
            let (mut pace, mut pinned) = (Pace::adaptive(max, remembered), Pace::pinned(max));
            for (millis, bytes, failures, busy) in windows {
                let before = pace.level();
                let window = Window { span: Duration::from_millis(millis), bytes, failures, busy };
                let level = pace.observe(&window);
                prop_assert!((1..=max.max(1)).contains(&level) && level == pace.level());
                prop_assert!((1..=max.max(1)).contains(&pace.safe_level()));
                prop_assert!(level <= before + (before / 2).max(1), "it grows by steps");
                prop_assert!(failures == 0 || before == 1 || level < before, "it yields to failures");
                prop_assert!(busy || failures > 0 || level <= before, "nobody grows without work");
                prop_assert_eq!(pinned.observe(&window), max.max(1));
            }
        }
    }

    fn drive(pace: &mut Pace, windows: usize, rate_of: impl Fn(usize) -> u64) -> Vec<usize> {
        let window = |bytes| Window { span: Duration::from_secs(1), bytes, failures: 0, busy: true };
        (0..windows).map(|_| pace.observe(&window(rate_of(pace.level())))).collect()
    }

    #[test]
    fn it_grows_while_throughput_grows() {
        let mut pace = Pace::adaptive(16, None);
        let levels = drive(&mut pace, 20, |level| level as u64 * 20_000_000);
        assert_eq!(levels.last(), Some(&16));
    }

    #[test]
    fn it_stops_growing_where_the_link_is_full() {
        let mut pace = Pace::adaptive(64, None);
        let levels = drive(&mut pace, 8, |level| level.min(6) as u64 * 10_000_000);
        assert!(levels.iter().all(|level| *level <= 9), "{levels:?}");
    }

    #[test]
    fn it_steps_back_on_errors_and_on_collapse() {
        let mut pace = Pace::adaptive(64, Some(16));
        let failed = Window { span: Duration::from_secs(1), bytes: 1, failures: 1, busy: true };
        assert_eq!(pace.observe(&failed), 12);
        let mut pace = Pace::adaptive(64, None);
        let levels = drive(&mut pace, 40, |level| if level > 20 { 1_000_000 } else { level as u64 * 10_000_000 });
        let collapsed = levels.iter().position(|level| *level > 20).unwrap();
        assert!(levels[collapsed + 1] <= 20, "{levels:?}");
        assert!(pace.safe_level() <= 20);
    }

    #[test]
    fn a_pinned_number_stays() {
        let mut pace = Pace::pinned(3);
        let failed = Window { span: Duration::from_secs(1), bytes: 0, failures: 9, busy: true };
        assert_eq!(pace.observe(&failed), 3);
    }
}
