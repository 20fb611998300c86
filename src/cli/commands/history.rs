//! `muster history`: shows the audit trail of a model.

use crate::cli::args::HistoryArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, resolve};
use crate::core::code::Code;

/// Shows the audit trail of a model.
///
/// # Errors
/// What the user is told.
pub fn run(args: HistoryArgs, context: Context) -> Result<Exit, Failure> {
    let _model = resolve::model(&args.model, &context.here)?;
    Err(CliError::new(Code::Internal, "`muster history` is not wired up").into())
}
