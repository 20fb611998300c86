//! One shared back-off per origin: what one request learns, all obey.
//!
//! Holds the [`Budget`] of every origin this process talks to, the Hub's and the storage's
//! alike, and does the waiting that a budget asks for. Knows nothing about single requests.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use reqwest::header::HeaderMap;

use crate::clock;
use crate::core::budget::{Budget, Limits, Traffic};
use crate::core::endpoint::Origin;

use super::limits;

/// Origins remembered; beyond it those are forgotten that have nothing to say.
const ORIGINS_MAX: usize = 64;

/// The budgets of all origins.
#[derive(Debug, Default)]
pub struct Origins {
    budgets: Mutex<HashMap<Origin, Budget>>,
    waiting: AtomicUsize,
}

/// Counts one that waits, for as long as it is held.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn counted(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Origins {
    /// Returns when a request to `origin` may be sent. Dropping the future gives the place up.
    pub async fn admit(&self, origin: &Origin, traffic: Traffic) {
        let random = fastrand::f64();
        while let Some(wait) = self.try_admit(origin, traffic, clock::since_boot(), random) {
            tracing::debug!(%origin, ?traffic, wait_ms = wait.as_millis(), "waiting for the server's limits");
            let _counted = Waiting::counted(&self.waiting);
            tokio::time::sleep(wait).await;
        }
    }

    /// Whether a request waits for the limits of its server.
    pub fn holds_up(&self) -> bool {
        self.waiting.load(Relaxed) > 0
    }

    /// Learns from an answer of `origin`; returns the wait that the server asks for.
    pub fn observe(&self, origin: &Origin, traffic: Traffic, status: u16, headers: &HeaderMap) -> Option<Duration> {
        let limits = limits::read(headers, SystemTime::from(clock::now()));
        self.learn(origin, traffic, status, limits, clock::since_boot());
        limits.wish()
    }

    fn try_admit(&self, origin: &Origin, traffic: Traffic, now: Duration, random: f64) -> Option<Duration> {
        let mut budgets = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        let again = budgets.get_mut(origin)?.admit(traffic, now, random).err()?;
        // A timer may fire a little early; a pause of at least a millisecond cannot spin.
        Some(again.saturating_sub(now).max(Duration::from_millis(1)))
    }

    fn learn(&self, origin: &Origin, traffic: Traffic, status: u16, limits: Limits, now: Duration) {
        let mut budgets = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        if !budgets.contains_key(origin) && budgets.len() >= ORIGINS_MAX {
            budgets.retain(|_, budget| !budget.is_idle(now));
        }
        budgets.entry(origin.clone()).or_default().observe(traffic, status, limits, now);
    }
}

/// The wait that an answer asks for.
pub(super) fn wish(headers: &HeaderMap) -> Option<Duration> {
    limits::read(headers, SystemTime::from(clock::now())).wish()
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;

    fn origin(host: &str) -> Origin {
        Origin::of(&Url::parse(&format!("https://{host}")).unwrap())
    }

    #[test]
    fn a_pause_of_one_origin_does_not_hold_another() {
        let (origins, now) = (Origins::default(), Duration::from_secs(1_000_000));
        let refused = Limits { retry_after: Some(Duration::from_secs(9)), ..Limits::default() };
        origins.learn(&origin("a"), Traffic::Data, 429, refused, now);
        assert!(origins.try_admit(&origin("a"), Traffic::Api, now, 0.0) >= Some(Duration::from_secs(9)));
        assert_eq!(origins.try_admit(&origin("b"), Traffic::Api, now, 0.0), None);
    }

    #[test]
    fn idle_origins_are_forgotten() {
        let (origins, now) = (Origins::default(), Duration::from_secs(1_000_000));
        let refused = Limits { retry_after: Some(Duration::from_secs(9)), ..Limits::default() };
        origins.learn(&origin("paused"), Traffic::Data, 429, refused, now);
        for n in 0..1000 {
            origins.learn(&origin(&format!("h{n}")), Traffic::Data, 200, Limits::default(), now);
        }
        let budgets = origins.budgets.lock().unwrap();
        assert!(budgets.len() <= ORIGINS_MAX && budgets.contains_key(&origin("paused")));
    }
}
