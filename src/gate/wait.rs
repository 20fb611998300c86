//! Waiting for a gate that is closed for now.
//!
//! Owns what is worth waiting for, how often to look, and when to give up. Time and progress are
//! arguments, so every ending can be tested without waiting.

use std::time::Duration;

use crate::core::code::Code;

/// First pause between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(200);
/// Longest pause between two looks.
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Least time between two progress lines.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// How long a caller is ready to wait.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// In all; none means as long as there is progress.
    pub limit: Option<Duration>,
    /// Without any progress.
    pub stall: Duration,
}

/// What to do after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// It is open.
    Open,
    /// Waiting ends, closed, with this outcome.
    End(Code),
    /// Look again after `pause`.
    Again {
        /// How long to sleep.
        pause: Duration,
        /// Whether a progress line is due.
        say: bool,
    },
}

/// A wait under way. Times are on one clock that only grows.
#[derive(Debug)]
pub struct Waiting {
    patience: Patience,
    started: Duration,
    progress: Option<u64>,
    moved_at: Duration,
    pause: Duration,
    said_at: Option<Duration>,
}

impl Waiting {
    /// Starts at `now`.
    #[must_use]
    pub const fn new(patience: Patience, now: Duration) -> Self {
        Self { patience, started: now, progress: None, moved_at: now, pause: PAUSE_MIN, said_at: None }
    }

    /// Decides after a look at `now` that found the gate closed with `code` (none: open) and this
    /// much `progress`: any number that changes when something moves; none when nobody knows.
    pub fn step(&mut self, now: Duration, code: Option<Code>, progress: Option<u64>) -> Step {
        let Some(code) = code else { return Step::Open };
        if !may_change(code) {
            return Step::End(code);
        }
        if progress.is_some() && progress != self.progress {
            self.progress = progress;
            self.moved_at = now;
        }
        let (waited, still) = (now.saturating_sub(self.started), self.still_for(now));
        if still >= self.patience.stall {
            return Step::End(Code::Stalled);
        }
        let left = self.patience.limit.map_or(Duration::MAX, |limit| limit.saturating_sub(waited));
        if left.is_zero() {
            return Step::End(Code::TimedOut);
        }
        let pause = self.pause.min(left).min(self.patience.stall.saturating_sub(still));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let say = self.said_at.is_none_or(|said| now.saturating_sub(said) >= LINE_EVERY);
        if say {
            self.said_at = Some(now);
        }
        Step::Again { pause, say }
    }

    /// How long nothing has moved.
    #[must_use]
    pub fn still_for(&self, now: Duration) -> Duration {
        now.saturating_sub(self.moved_at)
    }
}

/// Whether a pull that goes on can change the outcome. Wrong bytes, a refusal, a full disk and
/// what cannot be checked need somebody to act.
const fn may_change(code: Code) -> bool {
    matches!(code, Code::Incomplete | Code::UnknownModel | Code::DaemonUnreachable | Code::Held)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Code; 14] = [
        Code::Internal,
        Code::Usage,
        Code::Incomplete,
        Code::Corrupt,
        Code::Refused,
        Code::UnknownModel,
        Code::DaemonUnreachable,
        Code::Held,
        Code::NoSpace,
        Code::UpstreamRefused,
        Code::CouldNotCheck,
        Code::Stalled,
        Code::TimedOut,
        Code::Interrupted,
    ];

    fn patience(limit_s: Option<u64>) -> Patience {
        Patience { limit: limit_s.map(Duration::from_secs), stall: Duration::from_secs(300) }
    }

    /// Runs on virtual time and returns how and when the wait ended.
    fn run(limit_s: Option<u64>, look: impl Fn(u64) -> (Option<Code>, Option<u64>)) -> (Step, u64) {
        let mut waiting = Waiting::new(patience(limit_s), Duration::ZERO);
        let mut now = Duration::ZERO;
        for _ in 0..100_000 {
            let (code, progress) = look(now.as_secs());
            match waiting.step(now, code, progress) {
                Step::Again { pause, .. } => {
                    assert!(!pause.is_zero() && pause <= PAUSE_MAX);
                    now += pause;
                }
                end => return (end, now.as_secs()),
            }
        }
        panic!("the wait does not end");
    }

    #[test]
    fn only_what_a_pull_can_change_is_waited_for() {
        for code in ALL {
            let step = Waiting::new(patience(None), Duration::ZERO).step(Duration::ZERO, Some(code), None);
            match code.exit() {
                10 | 13 | 14 | 15 => assert!(matches!(step, Step::Again { .. }), "{code:?}"),
                _ => assert_eq!(step, Step::End(code)),
            }
        }
    }

    #[test]
    fn an_open_gate_ends_the_wait_whenever_it_opens() {
        let look = |s| (if s < 1000 { Some(Code::Incomplete) } else { None }, Some(s));
        let (step, at) = run(None, look);
        assert_eq!(step, Step::Open);
        assert!((1000..=1002).contains(&at), "{at}");
        assert_eq!(run(Some(5), |_| (None, None)), (Step::Open, 0));
    }

    #[test]
    fn out_of_time_while_bytes_move_is_not_a_stall() {
        assert_eq!(run(Some(900), |s| (Some(Code::Incomplete), Some(s))), (Step::End(Code::TimedOut), 900));
        assert_eq!(run(Some(10), |_| (Some(Code::UnknownModel), None)), (Step::End(Code::TimedOut), 10));
    }

    #[test]
    fn no_byte_for_the_whole_stall_time_ends_the_wait() {
        assert_eq!(run(None, |_| (Some(Code::UnknownModel), None)), (Step::End(Code::Stalled), 300));
        let stops = |s: u64| (Some(Code::Incomplete), Some(s.min(100)));
        let (step, at) = run(Some(10_000), stops);
        assert_eq!(step, Step::End(Code::Stalled));
        assert!((400..=402).contains(&at), "{at}");
    }

    #[test]
    fn progress_that_becomes_unknown_is_no_movement() {
        let (step, at) = run(None, |s| (Some(Code::Held), (s % 2 == 0).then_some(7)));
        assert_eq!(step, Step::End(Code::Stalled));
        assert!(at <= 302, "{at}");
    }

    #[test]
    fn a_line_is_due_at_first_and_then_every_ten_seconds() {
        let mut waiting = Waiting::new(patience(None), Duration::ZERO);
        let mut said = Vec::new();
        for second in 0..31 {
            let now = Duration::from_secs(second);
            if let Step::Again { say: true, .. } = waiting.step(now, Some(Code::Incomplete), Some(second)) {
                said.push(second);
            }
        }
        assert_eq!(said, [0, 10, 20, 30]);
    }
}
