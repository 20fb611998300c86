//! How many requests an origin will still take, and when the next may go: pure arithmetic.
//!
//! The Hub counts requests in fixed windows and says in every answer what is left (the IETF
//! draft of `RateLimit` header fields, and `Retry-After` with a refusal). A [`Budget`] reserves what is
//! left at admission, spreads the last of a window over its rest, and stops everybody after a
//! refusal. Time is what has passed since any fixed moment; it and randomness are arguments.

use std::time::Duration;

use super::retry::{Failures, delay};

/// What a request is for. Servers count these apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// Questions to the API.
    Api,
    /// Where a file is.
    Resolve,
    /// A file's bytes.
    Data,
}

/// Longest window that is believed; the Hub's are 300 s.
pub const WINDOW_MAX: Duration = Duration::from_secs(600);
/// Waiters for a new window come back spread over this.
const REOPEN_SPREAD: Duration = Duration::from_secs(1);
/// How far two answers about one window may differ in when it ends.
const ROUNDING: Duration = Duration::from_secs(2);
/// Requests left at which spreading starts: few, for what is left is known and reserved, and a job
/// that could end with it is not to be slowed down.
const SPREAD_BELOW: u64 = 10;
/// The share of a small quota, as one part in this many, at which it starts.
const SPREAD_ONE_IN: u64 = 10;

/// What a server says about its limits in one answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// The wait it asks for, by `Retry-After`.
    pub retry_after: Option<Duration>,
    /// Requests left, and time until they are replenished.
    pub left: Option<(u64, Duration)>,
    /// Requests in a whole window.
    pub quota: Option<u64>,
}

impl Limits {
    /// The wait a refusal stands for, when the server says one.
    pub fn wish(&self) -> Option<Duration> {
        self.retry_after.or_else(|| self.left.filter(|(left, _)| *left == 0).map(|(_, reset)| reset))
    }
}

/// One origin's state.
#[derive(Debug, Default)]
pub struct Budget {
    pause: Option<Pause>,
    refusals: Failures,
    windows: [Option<Window>; 3],
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    since: Duration,
    refusals: u32,
    wish: Option<Duration>,
}

impl Pause {
    fn ends(&self, random: f64) -> Duration {
        self.since + delay(self.refusals, self.wish, random)
    }

    fn ends_for_all(&self) -> Duration {
        self.ends(0.0).max(self.ends(1.0))
    }
}

#[derive(Debug, Clone, Copy)]
struct Window {
    left: u64,
    spread_below: u64,
    resets: Duration,
    next: Duration,
}

impl Budget {
    /// Admits one request, or says when to ask again. `random` in `0..=1` is the caller's own
    /// and stays the same while it waits, so that waiters come back one by one.
    pub fn admit(&mut self, traffic: Traffic, now: Duration, random: f64) -> Result<(), Duration> {
        if let Some(pause) = self.pause {
            let ends = pause.ends(random);
            if now < ends {
                return Err(ends);
            }
            // Whoever waited least must not let go of a pause that others still obey.
            if now >= pause.ends_for_all() {
                self.pause = None;
            }
        }
        let Some(window) = &mut self.windows[traffic as usize] else { return Ok(()) };
        if now >= window.resets {
            // A waiter is spread over the first moment of the new window by its own number.
            self.windows[traffic as usize] = None;
            return Ok(());
        }
        if window.left == 0 {
            return Err(window.resets + REOPEN_SPREAD.mul_f64(random));
        }
        if window.left <= window.spread_below {
            if now < window.next {
                return Err(window.next);
            }
            let rest = window.resets.saturating_sub(now);
            window.next = now + rest / u32::try_from(window.left).unwrap_or(u32::MAX).max(1);
        }
        window.left -= 1;
        Ok(())
    }

    /// Learns from an answer.
    pub fn observe(&mut self, traffic: Traffic, status: u16, limits: Limits, now: Duration) {
        if let Some((left, reset)) = limits.left {
            self.learn(traffic, left, now + reset, limits.quota, now);
        }
        let refused = status == 429 || (status == 503 && limits.retry_after.is_some());
        if refused {
            // Answers to requests that were under way when the pause began are one refusal.
            let again = self.pause.is_none_or(|pause| now.saturating_sub(pause.since) > REOPEN_SPREAD);
            let refusals = if again { self.refusals.failed() } else { self.refusals.in_a_row().max(1) };
            self.pause = Some(Pause { since: now, refusals, wish: limits.wish() });
        } else if status < 400 {
            self.refusals.progressed();
        }
    }

    /// Nothing is known that a new one would not know.
    pub fn is_idle(&self, now: Duration) -> bool {
        self.pause.is_none_or(|pause| now >= pause.ends_for_all())
            && self.windows.iter().flatten().all(|window| now >= window.resets)
    }

    fn learn(&mut self, traffic: Traffic, left: u64, resets: Duration, quota: Option<u64>, now: Duration) {
        let slot = &mut self.windows[traffic as usize];
        let spread_below = quota.map_or(SPREAD_BELOW, |quota| (quota / SPREAD_ONE_IN).min(SPREAD_BELOW));
        // Within one window an answer may not know yet of requests admitted since: the smaller
        // number counts. The server's seconds are rounded, hence the tolerance. A window that
        // ends at another time is another window, and the latest word about it counts.
        let near = |old: &Window| resets <= old.resets + ROUNDING && old.resets <= resets + ROUNDING;
        let same = slot.filter(|old| now < old.resets && near(old));
        *slot = Some(match same {
            Some(old) => Window { left: old.left.min(left), spread_below, resets: old.resets.max(resets), ..old },
            None => Window { left, spread_below, resets, next: now },
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn left(left: u64, reset_s: u64, quota: u64) -> Limits {
        Limits { retry_after: None, left: Some((left, Duration::from_secs(reset_s))), quota: Some(quota) }
    }

    const S: Duration = Duration::from_secs(1);

    proptest! {
        #[test]
        fn whatever_servers_say_everybody_is_let_go_in_the_end(
            answers in prop::collection::vec((0usize..3, 0usize..5, prop::option::of(any::<u64>()), prop::option::of((0u64..20, any::<u64>())), 0u64..400), 0..40),
            random in 0.0f64..=1.0,
        ) {
            let kinds = [Traffic::Api, Traffic::Resolve, Traffic::Data];
            let (mut budget, mut now) = (Budget::default(), S * 1_000_000);
            for (kind, status, retry_after, left, pause) in answers {
                now += Duration::from_secs(pause);
                let left = left.map(|(left, reset)| (left, Duration::from_secs(reset).min(WINDOW_MAX)));
                let limits = Limits { retry_after: retry_after.map(Duration::from_secs), left, quota: Some(100) };
                budget.observe(kinds[kind], [200, 206, 404, 429, 503][status], limits, now);
            }
            for kind in kinds {
                let mut at = now;
                while let Err(again) = budget.admit(kind, at, random) {
                    prop_assert!(again > at, "a wait is a wait");
                    at = again;
                    prop_assert!(at.saturating_sub(now) <= S * 1500, "nobody waits for ever");
                }
            }
            prop_assert!(budget.is_idle(now + S * 1500));
        }
    }

    #[test]
    fn a_429_stops_every_kind_of_request_until_the_server_wants_them_again() {
        let now = S * 1_000_000;
        let mut budget = Budget::default();
        budget.observe(Traffic::Resolve, 429, Limits { retry_after: Some(S * 20), ..Limits::default() }, now);
        for traffic in [Traffic::Api, Traffic::Resolve, Traffic::Data] {
            assert!(budget.admit(traffic, now, 0.0).is_err());
            assert!(budget.admit(traffic, now + S * 19, 0.0).is_err());
        }
        let (early, late) = (budget.admit(Traffic::Api, now, 0.0), budget.admit(Traffic::Api, now, 1.0));
        assert_eq!(early, Err(now + S * 20));
        assert!(late.unwrap_err() >= now + S * 23, "waiters spread");
        assert_eq!(budget.admit(Traffic::Api, now + S * 20, 0.0), Ok(()));
        assert!(budget.admit(Traffic::Api, now + S * 20, 1.0).is_err(), "the others still wait their own time");
        assert_eq!(budget.admit(Traffic::Api, now + S * 40, 1.0), Ok(()));
        assert!(budget.is_idle(now + S * 40));
    }

    #[test]
    fn refusals_without_a_wish_back_off_further_each_time() {
        let now = S * 1_000_000;
        let mut budget = Budget::default();
        let wait =
            |budget: &mut Budget, at: Duration| budget.admit(Traffic::Data, at, 0.0).unwrap_err().saturating_sub(at);
        budget.observe(Traffic::Data, 429, Limits::default(), now);
        let first = wait(&mut budget, now);
        budget.observe(Traffic::Data, 429, Limits::default(), now);
        assert_eq!(wait(&mut budget, now), first, "answers of one wave are one refusal");
        budget.observe(Traffic::Data, 429, Limits::default(), now + S * 2);
        assert!(wait(&mut budget, now + S * 2) > first);
        budget.observe(Traffic::Data, 206, Limits::default(), now + S * 9);
        budget.observe(Traffic::Data, 429, Limits::default(), now + S * 10);
        assert_eq!(wait(&mut budget, now + S * 10), first, "a success starts the row again");
    }

    #[test]
    fn a_503_pauses_the_origin_only_when_it_says_for_how_long() {
        let now = S * 1_000_000;
        let mut budget = Budget::default();
        budget.observe(Traffic::Data, 503, Limits::default(), now);
        assert_eq!(budget.admit(Traffic::Data, now, 0.5), Ok(()));
        budget.observe(Traffic::Data, 503, Limits { retry_after: Some(S), ..Limits::default() }, now);
        assert!(budget.admit(Traffic::Data, now, 0.5).is_err());
    }

    #[test]
    fn no_more_is_admitted_than_the_server_has_left() {
        let now = S * 1_000_000;
        let mut budget = Budget::default();
        budget.observe(Traffic::Resolve, 302, left(3, 10, 5), now);
        for _ in 0..3 {
            assert_eq!(budget.admit(Traffic::Resolve, now, 0.0), Ok(()));
        }
        assert_eq!(budget.admit(Traffic::Resolve, now, 0.0), Err(now + S * 10));
        assert_eq!(budget.admit(Traffic::Api, now, 0.0), Ok(()), "another kind is counted apart");
        budget.observe(Traffic::Resolve, 302, left(2, 9, 5), now + S);
        assert!(budget.admit(Traffic::Resolve, now + S, 0.0).is_err(), "an older answer gives nothing back");
        assert_eq!(budget.admit(Traffic::Resolve, now + S * 10, 0.0), Ok(()), "a new window");
    }

    #[test]
    fn a_window_that_ends_sooner_than_was_said_is_believed() {
        let now = S * 1_000_000;
        let mut budget = Budget::default();
        budget.observe(Traffic::Resolve, 302, left(2999, 300, 3000), now);
        budget.observe(Traffic::Resolve, 302, left(0, 2, 3000), now);
        assert_eq!(budget.admit(Traffic::Resolve, now, 0.0), Err(now + S * 2));
        assert_eq!(budget.admit(Traffic::Resolve, now + S * 2, 0.0), Ok(()));
    }

    #[test]
    fn the_last_requests_of_a_window_are_spread_over_it() {
        let now = S * 1_000_000;
        let mut budget = Budget::default();
        budget.observe(Traffic::Resolve, 302, left(10, 100, 3000), now);
        let mut at = now;
        let mut admitted = Vec::new();
        for _ in 0..100 {
            match budget.admit(Traffic::Resolve, at, 0.0) {
                Ok(()) => admitted.push(at.saturating_sub(now)),
                Err(again) => {
                    assert!(again > at);
                    at = again;
                }
            }
            if at >= now + S * 100 {
                break;
            }
        }
        assert_eq!(admitted.len(), 10);
        assert!(admitted.windows(2).all(|pair| pair[1] >= pair[0] + S * 9), "{admitted:?}");
    }
}
