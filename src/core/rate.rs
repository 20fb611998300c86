//! How fast bytes come and when they will all be there.
//!
//! Invariant: only what arrived inside the window counts. A first sample is a starting point and
//! never a gain, so that bytes found on disk after a resume do not look like speed; a counter
//! that falls starts the window anew.

use std::collections::VecDeque;
use std::time::Duration;

/// How far back the rate looks.
const WINDOW: Duration = Duration::from_secs(15);
/// Shortest span that says anything about speed.
const SPAN_MIN: Duration = Duration::from_secs(2);
/// Samples closer together than this replace each other, which bounds the window's memory.
const SAMPLE_GAP: Duration = Duration::from_millis(250);
/// An estimate beyond this is no estimate.
const ETA_MAX: Duration = Duration::from_secs(30 * 86_400);

/// A sliding window over a counter of received bytes.
#[derive(Debug, Clone, Default)]
pub struct RateWindow {
    samples: VecDeque<(Duration, u64)>,
}

impl RateWindow {
    /// Takes one sample: the counter's value `bytes` at time `now` (of any clock that only goes
    /// forward).
    pub fn push(&mut self, now: Duration, bytes: u64) {
        if self.samples.back().is_some_and(|&(at, last)| bytes < last || now < at) {
            self.samples.clear();
        }
        let too_close = |at: Duration| now.saturating_sub(at) < SAMPLE_GAP;
        match self.samples.len().checked_sub(2).and_then(|at| self.samples.get(at)) {
            Some(&(before_last, _)) if too_close(before_last) => {
                self.samples.pop_back();
            }
            _ => {}
        }
        self.samples.push_back((now, bytes));
        // One sample older than the window stays: it is where the window begins.
        while self.samples.get(1).is_some_and(|&(at, _)| now.saturating_sub(at) >= WINDOW) {
            self.samples.pop_front();
        }
    }

    /// Bytes a second at time `now`; unknown until the samples span two seconds. Silence counts:
    /// the rate sinks to 0 while nothing comes.
    #[must_use]
    pub fn bytes_per_s(&self, now: Duration) -> Option<f64> {
        let &(first_at, first) = self.samples.front()?;
        let &(_, last) = self.samples.back()?;
        let span = now.saturating_sub(first_at);
        (span >= SPAN_MIN).then(|| (last - first) as f64 / span.as_secs_f64())
    }

    /// How long `remaining` bytes will take at the present rate; unknown while there is none.
    #[must_use]
    pub fn eta(&self, now: Duration, remaining: u64) -> Option<Duration> {
        let rate = self.bytes_per_s(now)?;
        if remaining == 0 {
            return Some(Duration::ZERO);
        }
        let eta = Duration::try_from_secs_f64(remaining as f64 / rate).ok()?;
        (rate > 0.0 && eta <= ETA_MAX).then_some(eta)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_rate_is_a_number_and_the_window_stays_small_whatever_the_counter_does(
            samples in prop::collection::vec((0u64..100_000, any::<u64>()), 0..300),
            ask in 0u64..200_000,
            remaining in any::<u64>(),
        ) {
            let mut window = RateWindow::default();
            for (millis, bytes) in samples {
                window.push(Duration::from_millis(millis), bytes);
                prop_assert!(window.samples.len() < 100);
                let now = Duration::from_millis(ask);
                prop_assert!(window.bytes_per_s(now).is_none_or(|rate| rate.is_finite() && rate >= 0.0));
                prop_assert!(window.eta(now, remaining).is_none_or(|eta| eta <= ETA_MAX));
            }
        }
    }

    const MB: u64 = 1_000_000;

    fn at(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    #[test]
    fn bytes_found_on_disk_after_a_resume_are_no_speed() {
        let mut window = RateWindow::default();
        window.push(at(100.0), 262_400 * MB);
        assert_eq!(window.bytes_per_s(at(100.5)), None, "too early to say");
        for second in 1..=5_u32 {
            window.push(at(100.0 + f64::from(second)), (262_400 + 100 * u64::from(second)) * MB);
        }
        assert!((window.bytes_per_s(at(105.0)).unwrap() - 100e6).abs() < 1.0);
        assert_eq!(window.eta(at(105.0), 1_000 * MB), Some(at(10.0)));
    }

    #[test]
    fn only_the_window_counts_and_silence_sinks_the_rate_to_nothing() {
        let mut window = RateWindow::default();
        for second in 0..60_u32 {
            window.push(at(f64::from(second)), u64::from(second.min(30)) * 100 * MB);
        }
        assert_eq!(window.bytes_per_s(at(59.0)), Some(0.0));
        assert_eq!(window.eta(at(59.0), MB), None, "no rate, no promise");
        assert!(window.samples.len() < 100);
    }

    #[test]
    fn a_counter_that_falls_starts_anew_and_many_samples_stay_few() {
        let mut window = RateWindow::default();
        for step in 0..10_000_u32 {
            window.push(at(f64::from(step) / 1000.0), u64::from(step));
        }
        assert!(window.samples.len() < 100, "{}", window.samples.len());
        window.push(at(10.0), 5);
        assert_eq!(window.bytes_per_s(at(20.0)), Some(0.0));
        assert_eq!(window.eta(at(11.0), 0), None, "one second says nothing");
    }
}
