//! `muster remove`: takes a model off the volume.

use crate::cli::args::RemoveArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Takes a model off the volume.
///
/// # Errors
/// What the user is told.
pub fn run(args: RemoveArgs, context: Context) -> Result<Exit, Failure> {
    let _model = resolve::model(&args.model, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster remove` is not wired up").into())
}
