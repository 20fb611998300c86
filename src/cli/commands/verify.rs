//! `muster verify`: hashes a model again.

use crate::cli::args::VerifyArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Hashes a model again.
///
/// # Errors
/// What the user is told.
pub fn run(args: VerifyArgs, context: Context) -> Result<Exit, Failure> {
    let _model = resolve::model(&args.model, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster verify` is not wired up").into())
}
