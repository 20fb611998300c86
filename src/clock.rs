//! The one place that reads clocks.
//!
//! Times that are stored or shown are [`Timestamp`]s; spans are measured on the boot clock,
//! which runs on while the machine sleeps and never jumps.

#![allow(clippy::disallowed_methods, reason = "this is the home of the clocks")]

use std::time::{Duration, Instant};

use jiff::civil::Weekday;
use jiff::{Timestamp, Zoned};

/// The wall clock.
#[must_use]
pub fn now() -> Timestamp {
    Timestamp::now()
}

/// The day of the week and the minute from midnight, where this machine is.
#[must_use]
pub fn time_of_week() -> (Weekday, u16) {
    let now = Zoned::now();
    let minute = u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs());
    (now.weekday(), minute)
}

/// Time since boot, suspended time included (`CLOCK_BOOTTIME`).
#[must_use]
pub fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time that the machine was awake (`CLOCK_MONOTONIC`): what a manager of services measures by.
#[must_use]
pub fn monotonic() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// The clock that timers of the runtime use.
#[must_use]
pub fn instant() -> Instant {
    Instant::now()
}
