//! `muster mirror`: serves verified models as a read-only Hub.

use crate::cli::args::MirrorArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Serves verified models as a read-only Hub.
///
/// # Errors
/// What the user is told.
pub fn run(args: MirrorArgs, context: Context) -> Result<Exit, Failure> {
    let _request = resolve::mirror(args, &context.settings, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster mirror` is not wired up").into())
}
