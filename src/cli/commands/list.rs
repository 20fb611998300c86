//! `muster list`: lists the models on a volume.

use crate::cli::Context;
use crate::cli::args::ListArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::core::code::Code;

/// Lists the models on a volume.
///
/// # Errors
/// What the user is told.
pub fn run(_args: ListArgs, _context: Context) -> Result<Exit, Failure> {
    Err(CliError::new(Code::Internal, "`muster list` is not wired up").into())
}
