//! How fast connections go, and what is usual among them.
//!
//! Pure: the caller looks once a window and passes what it saw. What is usual is what a quarter of
//! the connections reach; it is forgotten slowly, for at the tail only slow ones may be left.

use std::time::Duration;

/// A connection with less than this share of the usual speed is slow.
const SLOW: f64 = 0.5;
/// What is left of a usual speed that is not seen any more, after each look.
const REMEMBERED: f64 = 0.98;
/// An answer that took longer was waited for for another reason, in seconds.
const ANSWER_MAX_S: f64 = 1.0;
/// What one answer counts beside those before it.
const RECENT: f64 = 0.1;
/// Looks after which nobody is slow any more, when nobody was fast in them: it is not the connection.
const FAST_WITHIN: u32 = 15;
/// Growth from one look to the next that shows that a connection is still starting.
const STARTING: f64 = 1.1;
/// Looks without a byte that are no slowness: an answer takes its time.
const WITHOUT_MAX: u32 = 3;
/// Looks before a connection is judged by its speed.
const LOOKS_MIN: u32 = 3;

/// How fast one assignment goes.
#[derive(Debug, Clone, Copy)]
pub struct Speed {
    /// Bytes a second, recent ones more than others.
    rate: f64,
    /// The position at the last look.
    seen: u64,
    looks: u32,
    /// Of the looks, those before the first byte.
    without: u32,
    /// Whether it was faster at the last look than at the one before: it is still starting.
    is_growing: bool,
}

impl Speed {
    /// Of an assignment that begins at `position`.
    #[must_use]
    pub const fn starting_at(position: u64) -> Self {
        Self { rate: 0.0, seen: position, looks: 0, without: 0, is_growing: false }
    }

    /// Looks at where it got in the last `span`.
    pub fn look(&mut self, position: u64, span: Duration) {
        let rate = position.saturating_sub(self.seen) as f64 / span.as_secs_f64().max(0.001);
        if self.looks == self.without && rate == 0.0 {
            self.without += 1;
        }
        self.is_growing = rate > self.rate * STARTING;
        // The first look saw only a part of its span, and an answer that had yet to come.
        self.rate =
            if self.is_growing || self.looks < self.without + 2 { rate } else { f64::midpoint(self.rate, rate) };
        self.looks += 1;
        self.seen = position;
    }

    /// Bytes a second, once that says something.
    #[must_use]
    pub fn known(&self) -> Option<f64> {
        let least = LOOKS_MIN + self.without.min(WITHOUT_MAX);
        (self.looks >= least && !self.is_growing).then_some(self.rate)
    }

    /// Bytes a second at least, of an assignment that ends at `position`: how much of a second the
    /// last of it took is not known.
    #[must_use]
    pub fn at_least(&self, position: u64) -> f64 {
        self.rate.max(position.saturating_sub(self.seen) as f64)
    }
}

/// The usual speed of the connections of a job.
#[derive(Debug, Default)]
pub struct Usual {
    /// Bytes a second; 0 before anything is known.
    rate: f64,
    /// Speeds of what ended since the last look.
    ended: Vec<f64>,
    /// Looks since somebody was not slow.
    since_fast: u32,
    /// Seconds from a request to its answer, recent ones more than others; unknown before the first.
    answer_s: Option<f64>,
}

impl Usual {
    /// Bytes a second; 0 before anything is known.
    #[must_use]
    pub const fn rate(&self) -> f64 {
        self.rate
    }

    /// Seconds from a request to its answer; 0 before anything is known.
    #[must_use]
    pub fn answer_s(&self) -> f64 {
        self.answer_s.unwrap_or_default()
    }

    /// A request was answered after this time.
    pub fn answered(&mut self, after: Duration) {
        let after = after.as_secs_f64().min(ANSWER_MAX_S);
        self.answer_s = Some(self.answer_s.map_or(after, |before| before + (after - before) * RECENT));
    }

    /// An assignment ended, with this speed at least.
    pub fn ended(&mut self, rate: f64) {
        self.ended.push(rate);
    }

    /// Takes the speeds that are known at a look.
    pub fn look(&mut self, known: impl Iterator<Item = f64>) {
        let mut rates = std::mem::take(&mut self.ended);
        rates.extend(known);
        self.rate *= REMEMBERED;
        let fast = rates.iter().any(|rate| *rate > 0.0 && *rate >= self.rate * SLOW);
        self.since_fast = if fast { 0 } else { self.since_fast.saturating_add(1) };
        if rates.len() > 1 {
            let fast = rates.len() * 3 / 4;
            self.rate = self.rate.max(*rates.select_nth_unstable_by(fast, f64::total_cmp).1);
        }
    }

    /// The speed of a connection that is slow, after `patience` times the looks that a verdict takes.
    #[must_use]
    pub fn slow(&self, speed: &Speed, patience: u32) -> Option<f64> {
        let rate = speed.known().filter(|rate| *rate < self.rate * SLOW && self.since_fast <= FAST_WITHIN)?;
        (speed.looks >= LOOKS_MIN.saturating_mul(patience)).then_some(rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn going(rate: u64, looks: u64) -> Speed {
        let mut speed = Speed::starting_at(0);
        (1..=looks).for_each(|look| speed.look(look * rate, SECOND));
        speed
    }

    #[test]
    fn a_speed_is_known_after_three_looks_and_recent_ones_count_more() {
        assert_eq!(going(100, 2).known(), None);
        let mut speed = going(100, 3);
        assert_eq!(speed.known(), Some(100.0));
        speed.look(300, SECOND);
        assert_eq!(speed.known(), Some(50.0));
        assert!((speed.at_least(400) - 100.0).abs() < 0.1);
    }

    #[test]
    fn what_a_quarter_reach_is_usual_and_forgotten_slowly() {
        let mut usual = Usual::default();
        usual.ended(90.0);
        usual.look([10.0, 20.0, 80.0].into_iter());
        assert!((usual.rate() - 90.0).abs() < 0.1);
        assert_eq!(usual.slow(&going(10, 3), 1), Some(10.0));
        assert_eq!(usual.slow(&going(10, 3), 2), None, "more patience");
        assert_eq!(usual.slow(&going(60, 3), 1), None);
        (0..10).for_each(|_| usual.look([1.0, 1.0].into_iter()));
        assert!(usual.rate() > 70.0 && usual.rate() < 90.0, "{}", usual.rate());
    }

    #[test]
    fn when_nobody_is_fast_any_more_nobody_is_slow() {
        let mut usual = Usual::default();
        usual.look([90.0, 90.0].into_iter());
        let stalled = going(0, 6);
        for look in 1..=30 {
            assert_eq!(usual.slow(&stalled, 1).is_some(), look <= 16, "look {look}");
            usual.look([0.0, 0.0].into_iter());
        }
        usual.look([0.0, 90.0].into_iter());
        assert!(usual.slow(&stalled, 1).is_some());
    }
}
