//! `muster cancel`: gives a download up.

use crate::cli::args::CancelArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Gives a download up.
///
/// # Errors
/// What the user is told.
pub fn run(args: CancelArgs, context: Context) -> Result<Exit, Failure> {
    let _model = resolve::model(&args.model, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster cancel` is not wired up").into())
}
