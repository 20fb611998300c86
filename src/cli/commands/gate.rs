//! `muster gate`: decides whether a launcher may start.

use crate::cli::args::GateArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Decides whether a launcher may start.
///
/// # Errors
/// What the user is told.
pub fn run(args: GateArgs, context: Context) -> Result<Exit, Failure> {
    let _request = resolve::gate(args, &context.environment, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster gate` is not wired up").into())
}
