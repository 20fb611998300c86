//! How many bytes a second may come: a bucket of bytes that fills with time.
//!
//! Pure: time is an argument. A [`Bucket`] hands out no byte that it does not hold, so it never owes
//! any and a change counts at once. It holds a tenth of a second's bytes at most, and hands them out
//! in steps of a fiftieth: in no span of time come more than its length and that tenth allow.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use thiserror::Error;

use super::units::{self, UnitError};

/// The lowest limit, bytes a second: below it a pull is better paused.
const RATE_MIN: u64 = 1000;
/// The bucket holds the bytes of a second divided by this.
const HELD_ONE_IN: u64 = 10;
/// So many steps a second, when they are not too small.
const STEPS_PER_S: u64 = 50;
/// The smallest step, bytes.
const STEP_MIN: u64 = 256;
/// The smallest bucket, bytes.
const HELD_MIN: u64 = 2 * STEP_MIN;
/// Bytes a second of one connection below which there are to be fewer of them: what a system has
/// received and nobody has read is not under the limit, and each connection has its own of that.
const CONNECTION_MIN: u64 = 128 << 10;

/// Bytes a second, enough of them to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rate(u64);

impl Rate {
    /// A rate; `None` when it is too low to be one.
    #[must_use]
    pub fn new(bytes_per_s: u64) -> Option<Self> {
        (bytes_per_s >= RATE_MIN).then_some(Self(bytes_per_s))
    }

    /// Bytes a second.
    #[must_use]
    pub const fn bytes_per_s(self) -> u64 {
        self.0
    }

    /// Bytes that are taken in one step.
    #[must_use]
    pub fn step(self) -> u64 {
        (self.0 / STEPS_PER_S).max(STEP_MIN)
    }

    /// Connections that this rate keeps moving.
    #[must_use]
    pub fn connections(self) -> usize {
        usize::try_from(self.0 / CONNECTION_MIN).unwrap_or(usize::MAX).max(1)
    }

    fn held(self) -> f64 {
        (self.0 / HELD_ONE_IN).max(HELD_MIN) as f64
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&units::rate(self.0 as f64))
    }
}

/// What somebody wants: a rate, or expressly none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Limit {
    /// As fast as it goes.
    #[default]
    None,
    /// No more than this.
    Rate(Rate),
}

/// Why a text is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LimitError {
    /// Neither a size nor `none`.
    #[error("{0}")]
    Unit(UnitError),
    /// Hardly anything.
    #[error("`{text}` a second is too little: write at least {RATE_MIN}B, or pause the download; `none` lifts a limit")]
    TooLow {
        /// What was given.
        text: String,
    },
}

impl Limit {
    /// Parses bytes a second: `200MB`, `1Gbit`, `64KiB/s`, `none`.
    ///
    /// # Errors
    /// [`LimitError`]; a bare prefix is refused with both readings.
    pub fn parse(text: &str) -> Result<Self, LimitError> {
        let size = text.trim();
        if size == "none" {
            return Ok(Self::None);
        }
        let size = size.strip_suffix("/s").unwrap_or(size);
        let bytes = units::parse_size(size).map_err(LimitError::Unit)?;
        Rate::new(bytes).map(Self::Rate).ok_or_else(|| LimitError::TooLow { text: size.to_owned() })
    }

    /// The text form; parsing it gives the same limit.
    #[must_use]
    pub fn text(self) -> String {
        match self {
            Self::None => "none".to_owned(),
            Self::Rate(rate) => format!("{}B", rate.0),
        }
    }

    /// The rate, if there is one.
    #[must_use]
    pub const fn rate(self) -> Option<Rate> {
        match self {
            Self::None => None,
            Self::Rate(rate) => Some(rate),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Rate(rate) => rate.fmt(f),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(de::Error::custom)
    }
}

/// The lower of two rates.
#[must_use]
pub fn lower(a: Option<Rate>, b: Option<Rate>) -> Option<Rate> {
    a.into_iter().chain(b).min()
}

/// Bytes that may pass now, and how many more with time.
#[derive(Debug, Clone, Copy)]
pub struct Bucket {
    rate: Rate,
    /// Bytes in it.
    level: f64,
    /// When they were counted.
    at: Duration,
}

impl Bucket {
    /// An empty bucket.
    #[must_use]
    pub const fn new(rate: Rate, now: Duration) -> Self {
        Self { rate, level: 0.0, at: now }
    }

    /// What it fills with.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Fills with another rate from now on. What it holds beyond the new measure is gone.
    pub fn set(&mut self, rate: Rate, now: Duration) {
        self.fill(now);
        self.rate = rate;
        self.level = self.level.min(rate.held());
    }

    /// Takes as many of `want` bytes as may pass now, one step at most.
    ///
    /// # Errors
    /// How long to wait when there is not enough for a step, or for all that is wanted.
    pub fn take(&mut self, want: u64, now: Duration) -> Result<u64, Duration> {
        self.fill(now);
        let step = want.min(self.rate.step());
        let lacking = step as f64 - self.level;
        if lacking <= 0.0 {
            self.level -= step as f64;
            return Ok(step);
        }
        // A whole number of nanoseconds, upwards: waiting that long is enough.
        Err(Duration::from_nanos(units::whole((lacking * 1e9 / self.rate.0 as f64).ceil()).max(1)))
    }

    /// Puts back what was taken and did not pass.
    pub fn put_back(&mut self, bytes: u64) {
        self.level = (self.level + bytes as f64).min(self.rate.held());
    }

    fn fill(&mut self, now: Duration) {
        let span = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        self.level = (self.level + span.as_secs_f64() * self.rate.0 as f64).min(self.rate.held());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rate(bytes: u64) -> Rate {
        Rate::new(bytes).unwrap()
    }

    /// Takes all it can for `span`, waiting as it is told and `late` longer; when and how much.
    fn greedy(bucket: &mut Bucket, from: Duration, span: Duration, want: u64, late: Duration) -> Vec<(Duration, u64)> {
        let (mut now, mut taken) = (from, Vec::new());
        while now < from + span {
            match bucket.take(want, now) {
                Ok(bytes) => taken.push((now, bytes)),
                Err(pause) => now += pause + late,
            }
        }
        taken
    }

    fn within(taken: &[(Duration, u64)], from: Duration, span: Duration) -> f64 {
        taken.iter().filter(|(at, _)| (from..from + span).contains(at)).map(|(_, bytes)| *bytes as f64).sum()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn over_any_ten_seconds_it_is_exact_and_over_any_tenth_it_is_no_burst(
            // From 64 kB/s to 10 GB/s, each magnitude as likely.
            exponent in 4.81f64..10.0,
            chunk in 1u64..(512 << 10),
            late_us in 0u64..2_000,
            start in 0u64..5_000,
        ) {
            let limit = rate(units::whole(10f64.powf(exponent)));
            let want = chunk.max(limit.bytes_per_s() / 2000);
            let begin = Duration::from_millis(start);
            let mut bucket = Bucket::new(limit, Duration::ZERO);
            let taken = greedy(&mut bucket, begin, Duration::from_secs(13), want, Duration::from_micros(late_us));
            let per_s = limit.bytes_per_s() as f64;
            for tenth in 0..30u32 {
                let from = begin + Duration::from_millis(100) * tenth;
                let ten = within(&taken, from, Duration::from_secs(10)) / (per_s * 10.0);
                prop_assert!((0.95..=1.05).contains(&ten), "{ten} of the limit in ten seconds");
            }
            for hundredth in 0..600u32 {
                let from = begin + Duration::from_millis(20) * hundredth;
                let burst = within(&taken, from, Duration::from_millis(100)) / (per_s * 0.1);
                prop_assert!(burst <= 2.0 + 1e-9, "{burst} times the limit in a tenth of a second");
            }
        }

        #[test]
        fn whatever_is_done_to_it_no_more_passes_than_time_and_a_tenth_of_a_second_allow(
            steps in prop::collection::vec((0u64..2_000, 1_000u64..1_000_000_000, any::<u64>(), 0u8..4), 1..200),
        ) {
            let mut bucket = Bucket::new(rate(1_000_000), Duration::ZERO);
            let (mut now, mut allowed, mut passed) = (Duration::ZERO, 0.0, 0.0);
            for (millis, bytes, want, what) in steps {
                let span = Duration::from_millis(millis);
                now += span;
                allowed += span.as_secs_f64() * bucket.rate().bytes_per_s() as f64;
                match what {
                    0 => bucket.set(rate(bytes), now),
                    1 => {
                        let took = bucket.take(want, now).unwrap_or(0);
                        bucket.put_back(took / 2);
                        passed += (took - took / 2) as f64;
                    }
                    _ => passed += bucket.take(want, now).unwrap_or(0) as f64,
                }
                prop_assert!(passed <= allowed + 1.0, "{passed} of {allowed}");
                let held = bucket.level;
                prop_assert!((0.0..=bucket.rate().held()).contains(&held), "it holds {held}: it owes nothing and hoards nothing");
            }
        }
    }

    #[test]
    fn what_was_waited_for_is_there_and_nothing_needs_no_wait() {
        for bytes in [1_000, 64_000, 200_000_000, 10_000_000_000] {
            let mut bucket = Bucket::new(rate(bytes), Duration::ZERO);
            let wait = bucket.take(u64::MAX, Duration::ZERO).unwrap_err();
            assert!(wait <= Duration::from_millis(256), "{wait:?}");
            assert_eq!(bucket.take(u64::MAX, wait), Ok(rate(bytes).step()));
            assert_eq!(bucket.take(0, wait), Ok(0));
        }
    }

    #[test]
    fn a_change_counts_at_once() {
        let (slow, fast) = (rate(64_000), rate(10_000_000_000));
        let mut bucket = Bucket::new(fast, Duration::ZERO);
        let second = Duration::from_secs(1);
        bucket.set(slow, second);
        let taken = greedy(&mut bucket, second, second, 1 << 20, Duration::ZERO);
        let came = within(&taken, second, second);
        assert!((60_000.0..=72_000.0).contains(&came), "nothing of what the old limit had saved: {came}");
        bucket.set(fast, 2 * second);
        let wait = bucket.take(1 << 20, 2 * second).unwrap_err();
        assert!(wait < Duration::from_millis(1), "no old debt: {wait:?}");
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        let mut bucket = Bucket::new(rate(100_000), Duration::from_secs(10));
        assert!(bucket.take(1, Duration::from_secs(5)).is_err());
        assert!(bucket.take(1, Duration::from_secs(10)).is_err());
        assert_eq!(bucket.take(1, Duration::from_secs(11)), Ok(1));
    }

    #[test]
    fn limits_are_sizes_a_second_or_none() {
        for (text, bytes) in [("200MB", 200_000_000), ("1Gbit", 125_000_000), ("64KiB/s", 65536), (" 1kB ", 1000)] {
            assert_eq!(Limit::parse(text), Ok(Limit::Rate(rate(bytes))), "{text}");
        }
        assert_eq!(Limit::parse("none"), Ok(Limit::None));
        assert!(matches!(Limit::parse("10M"), Err(LimitError::Unit(UnitError::Ambiguous { .. }))));
        assert!(matches!(Limit::parse("200"), Err(LimitError::Unit(UnitError::NoUnit { .. }))));
        for text in ["0", "0MB", "999B"] {
            assert!(matches!(Limit::parse(text), Err(LimitError::TooLow { .. })), "{text}");
        }
        for limit in [Limit::None, Limit::Rate(rate(1234))] {
            assert_eq!(Limit::parse(&limit.text()), Ok(limit));
            let json = serde_json::to_string(&limit).unwrap();
            assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), limit);
        }
        assert_eq!(Limit::Rate(rate(200_000_000)).to_string(), "200 MB/s");
    }

    #[test]
    fn a_low_limit_is_not_spread_over_many_connections() {
        let connections = |bytes| rate(bytes).connections();
        assert_eq!((connections(1000), connections(1 << 20), connections(200_000_000)), (1, 8, 1525));
        assert_eq!(lower(Some(rate(2000)), Some(rate(1000))), Some(rate(1000)));
        assert_eq!(lower(None, Some(rate(1000))), Some(rate(1000)));
        assert_eq!(lower(None, None), None);
    }
}
