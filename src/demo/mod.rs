//! The repository that `muster demo` plays with.
//!
//! Owns what is in it and how it gets onto a volume: as a verified model, made through the very
//! steps that a pulled one goes through, so that the mirror may serve it. The story that is told
//! with it is `cli`'s.

pub mod make;
pub mod shape;
mod weights;

pub use weights::SHARD_MIN;
