//! `muster resume`: goes on with a download.

use crate::cli::args::ResumeArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Goes on with a download.
///
/// # Errors
/// What the user is told.
pub fn run(args: ResumeArgs, context: Context) -> Result<Exit, Failure> {
    let _model = resolve::model(&args.model, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster resume` is not wired up").into())
}
