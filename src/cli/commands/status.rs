//! `muster status`: shows where models stand.

use crate::cli::Context;
use crate::cli::args::StatusArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::core::code::Code;

/// Shows where models stand.
///
/// # Errors
/// What the user is told.
pub fn run(_args: StatusArgs, _context: Context) -> Result<Exit, Failure> {
    Err(CliError::new(Code::Internal, "`muster status` is not wired up").into())
}
