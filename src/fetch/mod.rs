//! Fetching: from missing ranges to verified files.
//!
//! Owns the connections of one job, the partials they write and the hashes that run along.
//! Everything it hands on was verified; publishing and remembering are the caller's, who passes
//! them in. It knows neither jobs nor the store, and no clock but the timers of its runtime.

mod ahead;
mod checkpoints;
mod connection;
pub mod error;
mod fates;
mod file;
mod intake;
mod judge;
pub(crate) mod owned;
pub mod pool;
pub mod progress;
mod shared;
mod small;
mod tasks;
mod throttle;

pub use error::FetchError;
pub use owned::{MayWrite, OwnershipLost};
pub use pool::fetch;
pub use progress::Progress;
pub use shared::{Context, Outcome, Pages, Publish, Wanted};
pub use throttle::{Throttle, Valve};
