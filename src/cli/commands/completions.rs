//! `muster completions`: prints completions for a shell, made from the clap tree.

use crate::cli::Context;
use crate::cli::args::{self, CompletionsArgs};
use crate::cli::exit::{Exit, Failure};

/// Prints the completions.
///
/// # Errors
/// Only when stdout cannot be written.
pub fn run(args: CompletionsArgs, context: Context) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut args::command(&context.environment), "muster", &mut script);
    context.ui.result_bytes(&script)?;
    Ok(Exit::Success)
}
