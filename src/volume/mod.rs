//! Everything that touches the volume.
//!
//! Owns every path, open, write, sync, rename and removal below a volume's root. Invariants: no
//! unverified byte gets a final name (P1), nothing is claimed before it is durable (P3), and no
//! path, link or folder of somebody else steers a write out of a model directory (P9). Plain
//! blocking calls: the layers above decide on which thread. No network, no database, no tasks.

#![allow(clippy::disallowed_methods, reason = "home of the file system calls")]

pub mod adopt;
pub mod aside;
mod blocks_file;
mod claims_file;
pub mod condemned;
pub mod contents;
mod copy;
pub mod dir;
mod direct;
pub mod error;
pub mod folding;
pub mod foreign;
pub mod from_disk;
pub mod fs_kind;
pub mod identity;
pub mod in_use;
pub mod inventory;
pub mod key_file;
pub mod layout;
pub mod model_dir;
pub mod owner;
mod pages;
pub mod partial;
pub mod place;
pub mod probe;
pub mod publish;
pub mod quarantine;
pub mod removal;
pub mod retired;
pub mod salvage;
mod scrubbed_file;
pub mod signature;
pub mod slab;
pub mod small_file;
pub mod space;
pub mod surface;
mod sync;
pub mod whole;
pub mod writer;

pub use error::VolumeError;
pub use layout::Volume;
pub use model_dir::ModelDir;

#[cfg(test)]
mod testing;
