//! The Hub as far as its quota goes: requests counted in fixed windows, what is left said in every
//! answer, refusals when nothing is.

use std::time::Duration;

use muster::core::budget::Limits;

use super::scenario::{QUOTA_WINDOW_S, Scenario};

pub struct Hub {
    quota: u32,
    used: u32,
    resets_s: f64,
    /// Requests of ours in this window, refused ones included.
    ours: u32,
    pub most_in_a_window: u32,
    pub refused: u64,
}

/// An answer: its status and what it says of limits.
#[derive(Debug, Clone, Copy)]
pub struct Verdict {
    pub status: u16,
    pub limits: Limits,
}

impl Hub {
    pub fn of(scenario: &Scenario) -> Self {
        Self {
            quota: scenario.quota,
            used: scenario.quota - scenario.answers_left(),
            resets_s: scenario.quota_resets_s,
            ours: 0,
            most_in_a_window: 0,
            refused: 0,
        }
    }

    /// Answers a request that counts.
    pub fn answer(&mut self, now: f64) -> Verdict {
        while now >= self.resets_s {
            (self.used, self.ours) = (0, 0);
            self.resets_s += QUOTA_WINDOW_S;
        }
        self.ours += 1;
        self.most_in_a_window = self.most_in_a_window.max(self.ours);
        let granted = self.used < self.quota;
        if granted {
            self.used += 1;
        } else {
            self.refused += 1;
        }
        let reset = Duration::from_secs((self.resets_s - now).ceil() as u64);
        let limits = Limits {
            retry_after: (!granted).then_some(reset),
            left: Some((u64::from(self.quota - self.used), reset)),
            quota: Some(u64::from(self.quota)),
        };
        Verdict { status: if granted { 302 } else { 429 }, limits }
    }
}
