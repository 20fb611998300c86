//! The pure core: what muster knows, without doing anything.
//!
//! Values in, values out. Nothing here reads a clock, a file, the environment, the network or a
//! source of randomness: time, randomness and facts are arguments. Every other layer may use
//! this one; this one uses none.

pub mod blocks;
pub mod budget;
pub mod causes;
pub mod claims;
pub mod code;
pub mod digest;
pub mod endpoint;
pub mod fold;
pub mod gate;
pub mod gguf;
pub mod hours;
pub mod identity;
pub mod job;
pub mod limit;
pub mod local_edits;
pub mod manifest;
pub mod model_name;
pub mod oms;
pub mod pace;
pub mod plan;
pub mod policy;
pub mod range_set;
pub mod rate;
pub mod readback;
pub mod reason;
pub mod receipt;
pub mod repair;
pub mod repo;
pub mod repo_path;
pub mod retry;
pub mod safetensors;
pub mod scrubbed;
pub mod selection;
pub mod shard_index;
pub mod shards;
pub mod shell;
pub mod speed;
pub mod status;
pub mod structure;
pub mod subset;
pub mod units;
pub mod verify;
