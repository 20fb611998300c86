//! muster brings a sharded model onto a volume, proves that every byte is the right one, and
//! lets the launcher start only then.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests arrange the world they look at"))]
// Tests may touch files, clocks and processes; the same code is linted again without `test`.
pub mod api;
pub mod blocking;
pub mod cli;
pub mod clock;
pub mod config;
pub mod core;
pub mod daemon;
pub mod demo;
pub mod fetch;
pub mod gate;
pub mod hub;
pub mod limits;
pub mod mirror;
pub mod parallel;
pub mod serving;
pub mod sources;
pub mod store;
pub mod telemetry;
pub mod volume;
