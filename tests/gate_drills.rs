//! Drills of the gate through the real binary: many harmless changes, and races with updates.
//!
//! They are drawn from a seed, which is printed. `MUSTER_DRILL_CHANGES` (200) is how many harmless changes
//! are made, `MUSTER_DRILL_RACES` (20) how many updates a gate races with, `MUSTER_DRILL_SEED` the seed:
//! `MUSTER_DRILL_CHANGES=1000 MUSTER_DRILL_RACES=500 cargo test --test gate_drills -- --nocapture`.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

#[path = "gate_drills/changes.rs"]
mod changes;
#[path = "gate_drills/races.rs"]
mod races;
