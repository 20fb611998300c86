//! muster brings a sharded model onto a volume, proves that every byte is the right one, and
//! lets the launcher start only then.
//!
//! Three kinds of users: operators of a shared volume run `muster daemon`; anyone who wants to
//! know asks `muster status`; deployment pipelines put `muster gate` in front of the launcher.
//!
//! # Reading order
//!
//! Layers only look down, and `tests/architecture.rs` keeps it so.
//!
//! | layer | modules | |
//! |---|---|---|
//! | 0 | [`core`] | what muster knows, pure: manifest, ranges, claims, plan, proof, receipt, gate |
//! | 0 | [`limits`], [`clock`], [`blocking`], [`parallel`] | bounds; the homes of clocks and threads |
//! | 1 | [`hub`], [`volume`], [`store`] | the only users of the Hub's API, of files, of sled |
//! | 2 | [`sources`], [`fetch`] | one ranged read, exact or refused; from missing ranges to verified files |
//! | 2 | [`serving`] | connections within bounds, for those who serve |
//! | 3 | [`daemon`], [`gate`], [`mirror`], [`demo`] | the owner of a volume; the decision; a read-only Hub |
//! | 3 | [`doctor`] | what stands in the way of work, and advice |
//! | 4 | [`api`], [`cli`], [`config`], [`telemetry`] | programs and people talk to us here |
//!
//! # Promises
//!
//! A file has its final name only when its bytes are proved and durable. The gate opens only on
//! proof. Nothing is claimed before it is durable. Stopping costs almost nothing. The database is
//! disposable, and locks may lie. `ARCHITECTURE.md` has all eleven, with the tests that prove them.

// Tests may touch files, clocks and processes; the same code is linted again without `test`.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests arrange the world they look at"))]

pub mod api;
pub mod blocking;
pub mod cli;
pub mod clock;
pub mod config;
pub mod core;
pub mod daemon;
pub mod demo;
pub mod doctor;
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
