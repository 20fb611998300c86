//! `muster demo`: tells the whole story on a made-up model.

use crate::cli::args::DemoArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Tells the whole story on a made-up model.
///
/// # Errors
/// What the user is told.
pub fn run(args: DemoArgs, context: Context) -> Result<Exit, Failure> {
    let _request = resolve::demo(args, &context.here);
    Err(CliError::new(Code::Internal, "`muster demo` is not wired up").into())
}
