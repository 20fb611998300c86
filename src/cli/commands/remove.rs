//! `muster remove`: takes a model off the volume.

use crate::cli::Context;
use crate::cli::args::RemoveArgs;
use crate::cli::asking;
use crate::cli::exit::{Exit, Failure};

/// Takes a model off the volume, whether or not somebody owns it.
///
/// # Errors
/// What the user is told.
#[allow(clippy::needless_pass_by_value, reason = "every verb has this signature")]
pub fn run(args: RemoveArgs, context: Context) -> Result<Exit, Failure> {
    asking::remove(&args.model, args.now, &context)
}
