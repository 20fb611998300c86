//! `muster pause`: stops a download.

use crate::cli::args::PauseArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Stops a download.
///
/// # Errors
/// What the user is told.
pub fn run(args: PauseArgs, context: Context) -> Result<Exit, Failure> {
    let _model = resolve::model(&args.model, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster pause` is not wired up").into())
}
