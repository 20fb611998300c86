//! `muster pull`: brings a repository onto the volume.

use crate::cli::args::PullArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Brings a repository onto the volume.
///
/// # Errors
/// What the user is told.
pub fn run(args: PullArgs, context: Context) -> Result<Exit, Failure> {
    let (_request, _settings) = resolve::pull(args, context.settings, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster pull` is not wired up").into())
}
