//! The command line as typed values: what may be said, and the help that says so.
//!
//! Owns the clap tree. Invariant: every flag that takes a value has an environment twin shown in
//! its help. Those that are settings are read by `config` for all three layers, so clap only
//! shows their names; the rest is read by clap. It must not decide anything: that is `resolve`'s.

#![allow(clippy::doc_markdown, reason = "comments of arguments are their help, and help is no Markdown")]

mod accept;
mod adopt;
mod gate;
mod jobs;
mod limit;
mod look;
mod pull;
mod repair;
mod scrub;
mod serve;
mod sign;
mod tools;

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::{ArgAction, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use accept::AcceptArgs;
pub use adopt::AdoptArgs;
pub use gate::{GateArgs, VerifyArgs, Wait};
pub use jobs::{CancelArgs, PauseArgs, RemoveArgs, ResumeArgs};
pub use limit::LimitArgs;
pub use look::{DoctorArgs, HistoryArgs, ListArgs, StatusArgs};
pub use pull::{PullArgs, TransferArgs};
pub use repair::RepairArgs;
pub use scrub::ScrubArgs;
pub use serve::{DaemonArgs, DemoArgs, MirrorArgs};
pub use sign::{KeygenArgs, SignArgs};
pub use tools::{CompletionsArgs, ManArgs, SchemaArgs};

use crate::config::{Auto, CONFIG_VARIABLE, Environment, KEYS, LogLevel, Value};

/// The whole command line.
#[derive(Debug, Parser)]
#[command(
    name = "muster",
    version,
    about = "Brings a sharded model onto a volume, proves every byte, and lets the launcher start only then",
    after_help = "Exit codes: 0 ok or open, 1 internal, 2 usage, 10 incomplete, 11 corrupt, 12 refused, \
13 unknown model, 14 daemon unreachable, 15 held or in use, 16 no space, 17 upstream refused, \
18 could not check, 19 stalled, 124 timed out, 126/127 command not runnable or not found, \
129/130/143 interrupted.",
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    infer_subcommands = false
)]
pub struct Cli {
    /// What every verb takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Flags that every verb takes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub struct GlobalArgs {
    /// Root directory of the models [default: ./models]
    #[arg(long, global = true, value_name = "DIR", env = "MUSTER_VOLUME")]
    pub volume: Option<PathBuf>,
    /// Configuration file, read instead of the ones that are looked for
    #[arg(long, global = true, value_name = "FILE", env = "MUSTER_CONFIG")]
    pub config: Option<PathBuf>,
    /// Prints the result as JSON on stdout
    #[arg(long, global = true)]
    pub json: bool,
    /// Prints results and errors only
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Least important events to log: off, error, warn, info, debug, trace or auto
    #[arg(long, global = true, value_name = "LEVEL", env = "MUSTER_LOG", value_parser = <Auto<LogLevel> as Value>::parse)]
    pub log: Option<Auto<LogLevel>>,
    /// Logs as much as --log debug does
    #[arg(long, global = true, conflicts_with = "log")]
    pub verbose: bool,
    /// Prints without colours, as NO_COLOR does
    #[arg(long, global = true, action = ArgAction::SetTrue)]
    pub no_color: bool,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Brings a repository onto the volume and proves every byte
    Pull(PullArgs),
    /// Takes over a directory that another tool filled
    Adopt(AdoptArgs),
    /// Shows where every model stands
    Status(StatusArgs),
    /// Lists the models on the volume
    List(ListArgs),
    /// Shows what happened to a model, and when
    History(HistoryArgs),
    /// Lets a command start only if the model is complete and proved
    Gate(GateArgs),
    /// Hashes every file of a model again and refreshes its receipt
    Verify(VerifyArgs),
    /// Replaces what is wrong in a model, and keeps what is right of it
    Repair(RepairArgs),
    /// Reads models again, or a part of them, and names the blocks that are wrong
    Scrub(ScrubArgs),
    /// Takes files that were changed on purpose for right
    Accept(AcceptArgs),
    /// Signs a verified model, so that others can check it
    Sign(SignArgs),
    /// Makes a pair of keys that sign models and check signatures
    Keygen(KeygenArgs),
    /// Stops a download; what is durable is kept
    Pause(PauseArgs),
    /// Goes on with a paused or failed download
    Resume(ResumeArgs),
    /// Gives a download up
    Cancel(CancelArgs),
    /// Takes a model off the volume
    Remove(RemoveArgs),
    /// Shows and changes how fast bytes may come
    Limit(LimitArgs),
    /// Serves the verified models of the volume as a read-only Hub
    Mirror(MirrorArgs),
    /// Owns the volume and works on jobs until it is stopped
    Daemon(DaemonArgs),
    /// Checks a volume and its surroundings, and advises
    Doctor(DoctorArgs),
    /// Shows the whole story on a made-up model, without a network
    Demo(DemoArgs),
    /// Prints a JSON schema of the output, or lists the schemas
    Schema(SchemaArgs),
    /// Prints completions for a shell
    Completions(CompletionsArgs),
    /// Prints the manual page of muster or of one verb
    Man(ManArgs),
}

/// The clap tree, for parsing, completions and manual pages.
#[must_use]
pub fn command(environment: &Environment) -> Command {
    show_twins(Cli::command(), environment)
}

/// The environment variables that flags have as their twins.
#[must_use]
pub fn twins() -> BTreeSet<String> {
    let tree = Cli::command();
    let all = tree.get_subcommands().flat_map(Command::get_arguments).chain(tree.get_arguments());
    all.filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned())).collect()
}

/// Parses a command line, program name first.
///
/// # Errors
/// What clap has to say, which may also be the help or the version.
pub fn parse<I, T>(arguments: I, environment: &Environment) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let mut command = command(environment);
    let mut matches = command.try_get_matches_from_mut(arguments)?;
    Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// Settings are read from the environment by `config`, so here only their twins' names are
/// shown; an empty variable is an unset one for the rest; no value is ever shown.
fn show_twins(command: Command, environment: &Environment) -> Command {
    let command = command.mut_args(|arg| {
        let Some(name) = arg.get_env().and_then(|name| name.to_str()).map(str::to_owned) else { return arg };
        if !is_setting(&name) && environment.is_set(&name) {
            return arg.hide_env_values(true);
        }
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        arg.env(clap::builder::Resettable::Reset).help(format!("{help} [env: {name}]"))
    });
    command.mut_subcommands(|verb| show_twins(verb, environment))
}

fn is_setting(variable: &str) -> bool {
    variable == CONFIG_VARIABLE || KEYS.iter().any(|key| key.env == variable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::units::parse_size;

    fn parsed(line: &str) -> Result<Cli, String> {
        parse(line.split(' '), &Environment::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_tree_is_sound() {
        command(&Environment::default()).debug_assert();
    }

    #[test]
    fn every_flag_with_a_value_has_a_twin_that_its_help_shows() {
        for verb in command(&Environment::default()).get_subcommands() {
            for arg in verb.get_arguments().filter(|arg| arg.get_long().is_some() && arg.get_action().takes_values()) {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("[env: MUSTER_"), "{} --{}: {help}", verb.get_name(), arg.get_long().unwrap());
                assert!(!help.contains("MUSTER_PORT") && !help.contains("MUSTER_SERVICE_"), "{help}");
            }
        }
    }

    #[test]
    fn a_bare_unit_is_refused_with_both_readings() {
        let error = parsed("muster pull a/b --reserve 10M").unwrap_err();
        assert!(error.contains(&parse_size("10M").unwrap_err().to_string()), "{error}");
        assert!(error.contains("--reserve"), "{error}");
    }

    #[test]
    fn a_command_follows_the_gate_with_all_its_own_flags() {
        let Cli { verb: Verb::Gate(gate), .. } = parsed("muster gate kimi --wait -- vllm serve {} --json").unwrap()
        else {
            panic!("another verb")
        };
        assert_eq!(gate.wait, Some(Wait::Forever));
        assert_eq!(gate.command, ["vllm", "serve", "{}", "--json"]);
        assert!(parsed("muster gate kimi --hold -- vllm").is_err());
        let Cli { verb: Verb::Gate(gate), .. } = parsed("muster gate kimi --wait=2h").unwrap() else {
            panic!("another verb")
        };
        assert_eq!(gate.wait, Some(Wait::AtMost(std::time::Duration::from_secs(7200))));
    }

    #[test]
    fn verbs_that_do_not_exist_yet_are_not_in_the_tree() {
        for verb in ["unpack", "help"] {
            assert!(parsed(&format!("muster {verb}")).is_err(), "{verb}");
        }
    }

    #[test]
    fn files_and_includes_do_not_mix_and_destinations_do_not_either() {
        assert!(parsed("muster pull a/b config.json --include *.json").is_err());
        assert!(parsed("muster pull a/b --to x --local-dir y").is_err());
        assert!(parsed("muster pull a/b config.json --exclude *.bin --include-x").is_err());
        assert!(parsed("muster pull a/b config.json tokenizer/ --exclude *.bin").is_ok());
    }
}
