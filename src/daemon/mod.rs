//! The owner of a volume: jobs, their work, and what everybody may know of it.
//!
//! Owns the volume for as long as it runs: the store, the owner record, the workers. It is the
//! same for `muster daemon` and for a `pull` in the foreground, which is a daemon for its own
//! job. It knows nothing of sockets, flags or terminals.

mod admit;
mod beginnings;
mod bench;
pub mod bounds;
mod bytes;
pub mod edits;
mod entry;
pub mod error;
pub mod events;
pub mod held;
pub mod jobs;
pub mod limiting;
pub mod live;
pub mod memory;
pub mod preview;
pub mod pulse;
mod recover;
pub mod refusal;
mod repair;
pub mod report;
mod reporter;
pub mod resolve;
pub mod run;
mod salvage;
mod scheduler;
pub mod scrubbing;
mod settling;
mod signing;
pub mod supervisor;
mod survey;
mod take_up;
mod turns;
mod update;
mod worker;

pub use error::WorkError;
pub use jobs::Jobs;
pub use limiting::LimitPolicy;
pub use refusal::JobRefusal;
pub use run::{Daemon, Options, StartError};
