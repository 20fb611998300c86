//! `muster daemon`: owns a volume and works on its jobs.

use crate::cli::args::DaemonArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Owns a volume and works on its jobs.
///
/// # Errors
/// What the user is told.
pub fn run(args: DaemonArgs, context: Context) -> Result<Exit, Failure> {
    let _settings = resolve::daemon(args, context.settings, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster daemon` is not wired up").into())
}
