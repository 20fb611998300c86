//! `muster pause`: stops a download; what is durable is kept.

use crate::cli::Context;
use crate::cli::args::PauseArgs;
use crate::cli::asking::{self, Change};
use crate::cli::exit::{Exit, Failure};

/// Asks the owner of the volume.
///
/// # Errors
/// What the user is told.
#[allow(clippy::needless_pass_by_value, reason = "every verb has this signature")]
pub fn run(args: PauseArgs, context: Context) -> Result<Exit, Failure> {
    asking::change(Change::Pause, &args.model, &context)
}
