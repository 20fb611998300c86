//! `muster man`: prints manual pages, made from the clap tree.

use clap::Command;

use crate::cli::Context;
use crate::cli::args::{self, ManArgs};
use crate::cli::exit::{CliError, Exit, Failure};
use crate::core::code::Code;

/// Prints the page of muster or of one verb.
///
/// # Errors
/// A usage error for a verb that does not exist.
pub fn run(args: ManArgs, context: Context) -> Result<Exit, Failure> {
    let muster = args::command(&context.environment);
    let page = match args.verb {
        None => muster,
        Some(verb) => of_verb(muster, &verb)?,
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page)
        .render(&mut text)
        .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot make the manual page"))?;
    context.ui.result_bytes(&text)?;
    Ok(Exit::Success)
}

fn of_verb(mut muster: Command, verb: &str) -> Result<Command, CliError> {
    // Building hands the global flags down to the verbs.
    muster.build();
    let verbs: Vec<_> = muster.get_subcommands().map(Command::get_name).collect();
    let unknown = CliError::usage(format!("no verb is called `{verb}`")).hint(format!("verbs: {}", verbs.join(", ")));
    let found = muster.find_subcommand(verb).cloned().ok_or(unknown)?;
    Ok(found.version(env!("CARGO_PKG_VERSION")))
}
