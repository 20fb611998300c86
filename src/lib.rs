//! muster brings a sharded model onto a volume, proves that every byte is the right one, and
//! lets the launcher start only then.

// Tests may touch files, clocks and processes; the same code is linted again without `test`.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests arrange the world they look at"))]

pub mod clock;
pub mod core;
pub mod hub;
pub mod store;
pub mod volume;
