//! `muster cancel`: gives a download up.

use crate::cli::Context;
use crate::cli::args::CancelArgs;
use crate::cli::asking::{self, Change};
use crate::cli::exit::{Exit, Failure};

/// Asks the owner of the volume.
///
/// # Errors
/// What the user is told.
#[allow(clippy::needless_pass_by_value, reason = "every verb has this signature")]
pub fn run(args: CancelArgs, context: Context) -> Result<Exit, Failure> {
    asking::change(Change::Cancel, &args.model, &context)
}
