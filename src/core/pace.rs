//! How many connections work at once.
//!
//! Starts low, tries more, and keeps what brought more; a try that brought less is taken back at
//! once and its level avoided for a while. Steps back when many connections fail, and remembers the
//! level that carried best. Pure: the caller measures a window and passes what it saw.

use std::time::Duration;

/// How often the number of connections is reconsidered.
pub const WINDOW: Duration = Duration::from_secs(1);

/// Connections at the start, unless a level is remembered.
const START: usize = 8;
/// Growth of throughput that is worth more connections.
const GAIN: f64 = 1.05;
/// Up to so many they stay unless they bring less: each pauses between two files, and the others fill
/// the pause.
const PLENTY: usize = 16;
/// Bytes a second that no server grudges a connection: where each brings as much and has a file of its
/// own, another would come out of its file's order, to be read from the disk again for the hash.
const FAST: f64 = 100e6;
/// Growth from one window to the next that shows that connections are still starting.
const STARTING: f64 = 1.25;
/// Windows that they may take for it.
const PATIENCE: u32 = 6;
/// Less than this share of the throughput before a try: more connections do harm.
const HARM: f64 = 0.9;
/// Less than this share of the gain that as many connections could bring is weak.
const WEAK: f64 = 0.5;
/// This share of it needs no second look.
const CLEAR: f64 = 0.8;
/// Windows that decide about a try that is not clear.
const LOOKS: u32 = 3;
/// Less than this share of it in one window, or than this in a few, neither: what new connections do
/// not bring yet is no excuse for what the others lost.
const CRASH: f64 = 0.25;
const FALL: f64 = 0.6;
/// More connections than carried most, and less than this share of it: a collapse.
const COLLAPSE: f64 = 0.5;
/// Less than this share of the throughput at the beginning of a rest ends it: more may help.
const SUNK: f64 = 0.85;
/// More than this share of it does so too.
const RISEN: f64 = 1.25;
/// One connection in this many that fails in a window is no sign of too many.
const FAILURES_ONE_IN: usize = 4;
/// Nor are fewer than this, unless all of them fail.
const FAILURES_MIN: usize = 3;
/// Windows without a try after one that brought nothing; doubled after each.
const REST: u32 = 10;
const REST_MAX: u32 = 320;
/// Windows until what did harm is tried again.
const HARMLESS_AFTER: u32 = 120;

/// What one window of time brought.
#[derive(Debug, Clone, Copy)]
pub struct Window {
    /// Its length.
    pub span: Duration,
    /// Bytes received in it.
    pub bytes: u64,
    /// Connections that failed in it, throttled ones included.
    pub failures: u32,
    /// Whether every allowed connection had work, and none waited for leave to ask for it.
    pub busy: bool,
    /// Files that are not fetched yet: more connections than these share one.
    pub files: usize,
}

/// The number of connections, adapting.
#[derive(Debug, Clone)]
pub struct Pace {
    level: usize,
    max: usize,
    pinned: bool,
    phase: Phase,
    /// The throughput of the last window.
    rate: f64,
    /// Files that there were in it.
    files: usize,
    /// The throughput of the last few.
    recent: f64,
    /// Windows that the first connections took until they brought all they could.
    starts_in: u32,
    best: (f64, usize),
    /// A level that did harm, until the rest after it has ended.
    harmful: Option<usize>,
    /// Whether a try has failed to bring more: from then on they are small.
    careful: bool,
    rest: u32,
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// There were other connections so many windows ago; what they bring decides whether they stay.
    Trying { before: Option<Before>, windows: u32, peak: Peak },
    /// Windows until the next try, and what those since the last one brought.
    Resting { left: u32, peak: Peak },
}

/// The best throughput of some windows: connections that begin their next file in one of them at the
/// same time make it look worse than it is.
#[derive(Debug, Clone, Copy, Default)]
struct Peak {
    rate: f64,
    windows: u32,
}

/// What there was before a try.
#[derive(Debug, Clone, Copy)]
struct Before {
    level: usize,
    rate: f64,
}

impl Pace {
    /// Adapts between 1 and `max`, from a remembered safe level if there is one.
    #[must_use]
    pub fn adaptive(max: usize, remembered: Option<usize>) -> Self {
        let level = remembered.unwrap_or(START).clamp(1, max.max(1));
        Self {
            level,
            max: max.max(1),
            pinned: false,
            phase: Phase::Trying { before: None, windows: 0, peak: Peak::default() },
            recent: 0.0,
            starts_in: 1,
            rate: 0.0,
            files: 0,
            best: (0.0, level),
            harmful: None,
            careful: false,
            rest: REST,
        }
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
        if self.pinned {
            return self.level;
        }
        let last = self.rate;
        self.rate = window.bytes as f64 / window.span.as_secs_f64().max(0.001);
        self.recent = f64::midpoint(self.recent, self.rate);
        self.files = window.files;
        if self.recent > self.best.0 {
            self.best = (self.recent, self.level);
        }
        if self.is_overload(window.failures) {
            self.rest = REST;
            self.step_back(self.level - (self.level / 4).max(1).min(self.level - 1));
        } else if window.busy && window.bytes > 0 {
            // One that brought nothing says nothing about how many.
            self.judge(last);
        }
        self.level
    }

    /// Whether so many failures in one window are more than what happens to single connections.
    fn is_overload(&self, failures: u32) -> bool {
        let failures = failures as usize;
        failures >= self.level || (failures >= FAILURES_MIN && failures * FAILURES_ONE_IN >= self.level)
    }

    /// What a window says in which every connection had work; `last` is what the one before brought.
    fn judge(&mut self, last: f64) {
        match self.phase {
            Phase::Trying { before, windows, peak } => self.judge_try(before, windows, peak, last),
            Phase::Resting { left, mut peak } => {
                if peak.windows == 0 {
                    // What it was at another level says nothing.
                    self.recent = self.rate;
                }
                peak.add(self.rate);
                if self.level > self.best.1 && self.recent < self.best.0 * COLLAPSE {
                    self.step_back(self.best.1);
                } else if left == 0 {
                    self.grow(peak.rate);
                } else if peak.windows > LOOKS && self.has_changed(peak.rate) {
                    self.rest = REST;
                    self.careful &= self.recent < peak.rate;
                    self.grow(self.recent);
                } else {
                    self.phase = Phase::Resting { left: left - 1, peak };
                }
            }
        }
    }

    fn judge_try(&mut self, before: Option<Before>, windows: u32, mut peak: Peak, last: f64) {
        if before.is_some_and(|before| self.has_collapsed(before)) {
            return self.take_back(before);
        }
        let has_started = self.has_started(before, windows, last);
        if has_started {
            peak.add(self.rate);
        }
        let Some(before) = before else {
            if has_started {
                self.starts_in = windows.saturating_sub(1).max(1);
                return self.grow(peak.rate);
            }
            self.phase = Phase::Trying { before: None, windows: windows + 1, peak };
            return;
        };
        let (gain, hoped) = (peak.rate / before.rate, self.level as f64 / before.level as f64);
        let is_clear = hoped > 1.0 && gain >= 1.0 + (hoped - 1.0) * CLEAR;
        if !has_started || (!is_clear && peak.windows < LOOKS) {
            self.phase = Phase::Trying { before: Some(before), windows: windows + 1, peak };
        } else if gain < HARM {
            self.take_back(Some(before));
        } else if gain < GAIN {
            let stays = gain >= 1.0 && self.level <= PLENTY.min(self.files);
            self.careful = true;
            self.step_back(if stays { self.level } else { before.level });
            self.rest = (self.rest * 2).min(REST_MAX);
        } else if self.level > before.level + 1 && gain < 1.0 + (hoped - 1.0) * WEAK {
            // It brought more, but far less than it could: between the two it may be better than at both.
            self.attempt(usize::midpoint(before.level, self.level), peak.rate);
        } else {
            self.rest = REST;
            self.grow(peak.rate);
        }
    }

    /// Whether what the connections bring is known. New ones start slowly: as slowly as the first
    /// ones did, unless they do well already.
    fn has_started(&self, before: Option<Before>, windows: u32, last: f64) -> bool {
        let is_growing = self.rate > last * STARTING && windows < PATIENCE;
        let Some(before) = before else { return windows >= 1 && !is_growing };
        let hoped = self.level as f64 / before.level as f64;
        let does_well = hoped > 1.0 && self.rate >= before.rate * (1.0 + (hoped - 1.0) * CLEAR);
        let waits = if hoped < 1.0 { 1 } else { self.starts_in };
        does_well || (windows >= waits && !is_growing)
    }

    /// Whether a try does such harm that it needs no second look.
    fn has_collapsed(&self, before: Before) -> bool {
        self.rate < before.rate * CRASH || self.recent < before.rate * FALL
    }

    /// Whether the throughput is no longer what it was: then the same number may bring more or less.
    fn has_changed(&self, rate: f64) -> bool {
        self.recent < rate * SUNK || self.recent > rate * RISEN
    }

    /// Tries so many connections where the present ones bring `rate`.
    fn attempt(&mut self, level: usize, rate: f64) {
        let before = Before { level: self.level, rate };
        self.phase = Phase::Trying { before: Some(before), windows: 0, peak: Peak::default() };
        self.level = level;
    }

    /// Tries more connections, where that is not known to do harm and may be worth a file's order.
    fn grow(&mut self, rate: f64) {
        let step = if self.careful { (self.level / 4).max(1) } else { self.level };
        let most = self.harmful.map_or(self.max, |harmful| usize::midpoint(self.level, harmful));
        let useful = if rate > FAST * self.level as f64 { self.files.max(self.level) } else { self.max };
        let level = (self.level + step).min(most).min(useful).min(self.max);
        if level > self.level {
            self.attempt(level, rate);
        } else {
            // What did harm once is tried again after a long rest.
            let left = if self.harmful.take().is_some() { HARMLESS_AFTER } else { self.rest };
            self.phase = Phase::Resting { left, peak: Peak::default() };
        }
    }

    fn take_back(&mut self, before: Option<Before>) {
        let Some(before) = before else { return };
        self.careful = true;
        if self.level > before.level {
            self.harmful = Some(self.level);
        }
        self.step_back(before.level);
    }

    fn step_back(&mut self, level: usize) {
        self.level = level.max(1);
        self.phase = Phase::Resting { left: self.rest, peak: Peak::default() };
    }
}

impl Peak {
    fn add(&mut self, rate: f64) {
        self.rate = self.rate.max(rate);
        self.windows += 1;
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
            windows in prop::collection::vec((0u64..20_000, any::<u64>(), 0u32..9, any::<bool>(), 0usize..200), 0..200),
        ) {
            let (mut pace, mut pinned) = (Pace::adaptive(max, remembered), Pace::pinned(max));
            for (millis, bytes, failures, busy, files) in windows {
                let before = pace.level();
                let window = Window { span: Duration::from_millis(millis), bytes, failures, busy, files };
                let level = pace.observe(&window);
                prop_assert!((1..=max.max(1)).contains(&level) && level == pace.level());
                prop_assert!((1..=max.max(1)).contains(&pace.safe_level()));
                prop_assert!(level <= before.max(pace.best.1) * 2, "it doubles at most");
                let many = failures as usize >= before.max(FAILURES_MIN);
                prop_assert!(!many || before == 1 || level < before, "it yields to failures");
                prop_assert!(busy || level <= before, "nobody grows without work");
                prop_assert_eq!(pinned.observe(&window), max.max(1));
            }
        }
    }

    fn drive(pace: &mut Pace, windows: usize, rate_of: impl Fn(usize) -> u64) -> Vec<usize> {
        let window = |bytes| Window { span: Duration::from_secs(1), bytes, failures: 0, busy: true, files: 119 };
        (0..windows).map(|_| pace.observe(&window(rate_of(pace.level())))).collect()
    }

    #[test]
    fn it_grows_while_throughput_grows() {
        let mut pace = Pace::adaptive(16, None);
        let levels = drive(&mut pace, 20, |level| level as u64 * 20_000_000);
        assert_eq!(levels.last(), Some(&16));
    }

    #[test]
    fn fast_connections_with_a_file_each_are_enough_and_slow_ones_are_not() {
        let levels = |rate: u64, files| {
            let mut pace = Pace::adaptive(64, None);
            let window = |bytes| Window { span: Duration::from_secs(1), bytes, failures: 0, busy: true, files };
            (0..10).map(|_| pace.observe(&window(rate * pace.level() as u64))).max().unwrap()
        };
        assert_eq!(levels(150_000_000, 8), 8, "each more would tear a file");
        assert_eq!(levels(150_000_000, 12), 12);
        assert_eq!(levels(150_000_000, 119), 64);
        assert_eq!(levels(20_000_000, 8), 64, "a server that grudges them wants more of them");
    }

    #[test]
    fn it_stops_growing_where_the_link_is_full() {
        let mut pace = Pace::adaptive(64, None);
        let levels = drive(&mut pace, 60, |level| level.min(6) as u64 * 10_000_000);
        assert_eq!(levels[..3], [8, 16, 16]);
        let above = levels.iter().filter(|level| **level > PLENTY).count();
        assert!(levels[2..].iter().all(|level| (PLENTY..=20).contains(level)) && above < 16, "{levels:?}");
    }

    #[test]
    fn a_step_too_far_is_found_out_even_when_it_brought_more() {
        let mut pace = Pace::adaptive(64, None);
        // Above 14 half of it is gone: 16 carry as much as 8 and a little more.
        let levels = drive(&mut pace, 120, |level| if level > 14 { 90_000_000 } else { level as u64 * 10_000_000 });
        let late = &levels[60..];
        assert!(late.iter().all(|level| (12..=15).contains(level)), "{levels:?}");
    }

    #[test]
    fn what_did_harm_is_not_tried_again_soon() {
        let mut pace = Pace::adaptive(64, None);
        let levels = drive(&mut pace, 200, |level| if level > 10 { 1_000_000 } else { level as u64 * 10_000_000 });
        let harmful = levels.iter().filter(|level| **level > 10).count();
        assert!(levels[50..100].iter().all(|level| *level == 10) && harmful < 6, "{levels:?}");
    }

    #[test]
    fn it_steps_back_on_errors_and_on_collapse() {
        let mut pace = Pace::adaptive(64, Some(16));
        let failed = |failures| Window { span: Duration::from_secs(1), bytes: 1, failures, busy: true, files: 119 };
        assert_eq!(pace.observe(&failed(1)), 16, "one of sixteen says nothing");
        assert_eq!(pace.observe(&failed(4)), 12);
        let mut pace = Pace::adaptive(64, None);
        let levels = drive(&mut pace, 40, |level| if level > 20 { 1_000_000 } else { level as u64 * 10_000_000 });
        let collapsed = levels.iter().position(|level| *level > 20).unwrap();
        assert!(levels[collapsed + 1] <= 20, "{levels:?}");
        assert!(pace.safe_level() <= 20);
    }

    #[test]
    fn a_pinned_number_stays() {
        let mut pace = Pace::pinned(3);
        let failed = Window { span: Duration::from_secs(1), bytes: 0, failures: 9, busy: true, files: 119 };
        assert_eq!(pace.observe(&failed), 3);
    }
}
