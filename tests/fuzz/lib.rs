//! The targets, and the macro that makes a program of one.

#[path = "targets/mod.rs"]
pub mod targets;
