//! The command line: arguments in, output and exit code out.
//!
//! Owns how people are talked to. `args` says what may be said, `resolve` what it means,
//! `commands` does it, `ui` prints, `exit` maps outcomes to codes. Nothing below this layer
//! prints or ends the process.

pub mod args;
pub mod asking;
pub mod bearer_file;
pub mod commands;
pub mod exit;
pub mod facts;
pub mod hashing;
pub mod model_ref;
pub mod notify;
pub mod owning;
pub mod progress;
pub mod reload;
pub mod repo_text;
pub mod resolve;
pub mod runtime;
pub mod serviced;
pub mod signals;
pub mod told;
pub mod ui;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::{self, Auto, Environment, LogLevel, Settings};
use crate::core::code::Code;
use crate::telemetry::{self, Logging, Reader};
use args::{Cli, GlobalArgs, Verb};
use exit::{CliError, Exit, Failure};
use ui::{Ui, UiOptions};

/// What every verb gets beside its arguments.
#[derive(Debug)]
pub struct Context {
    /// File and environment over defaults, and the global flags; paths are absolute.
    pub settings: Settings,
    /// The printer.
    pub ui: Ui,
    /// The environment the settings came from.
    pub environment: Environment,
    /// The configuration file that a flag named.
    pub config: Option<PathBuf>,
    /// The directory muster was started in.
    pub here: PathBuf,
}

/// Runs one command line, program name first.
#[must_use]
pub fn run(arguments: &[OsString], environment: Environment) -> ExitCode {
    let cli = match args::parse(arguments, &environment) {
        Ok(cli) => cli,
        Err(error) => return answer_clap(&error, arguments, &environment),
    };
    let ui = Ui::new(options(&cli.global), &environment);
    let outcome = context(&cli, ui.clone(), environment).and_then(|context| commands::dispatch(cli.verb, context));
    match outcome {
        Ok(exit) => exit.into(),
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(Failure::Error(error)) => {
            ui.error(&error);
            Exit::Code(error.code).into()
        }
    }
}

fn context(cli: &Cli, ui: Ui, environment: Environment) -> Result<Context, Failure> {
    let here = std::env::current_dir()
        .map_err(|error| CliError::from_error(Code::Usage, &error).context("cannot tell the working directory"))?;
    let file = config::load(cli.global.config.as_deref(), &environment)?;
    let mut settings = Settings::resolve(file.as_ref(), &environment)?;
    settings.volume = settings.volume.overridden("--volume", cli.global.volume.clone());
    settings.log.level = settings.log.level.overridden("--log", cli.global.log);
    let verbose = cli.global.verbose.then_some(Auto::Fixed(LogLevel::Debug));
    settings.log.level = settings.log.level.overridden("--verbose", verbose);
    let settings = settings.anchored(&here);
    start_logging(&settings, &cli.verb, &ui);
    let config = cli.global.config.clone().map(|file| here.join(file));
    Ok(Context { settings, ui, environment, config, here })
}

fn start_logging(settings: &Settings, verb: &Verb, ui: &Ui) {
    let serves = matches!(verb, Verb::Daemon(_) | Verb::Mirror(_));
    let by_verb = if serves { LogLevel::Info } else { LogLevel::Warn };
    let level = settings.log.level.value.fixed().unwrap_or(by_verb);
    // What is done in the background is read afterwards.
    let is_watched = !serves && !matches!(verb, Verb::Pull(args) if args.detached);
    let reader = if is_watched { Reader::Person } else { Reader::Operator };
    let logging = Logging { level, format: settings.log.format.value, reader, colour: ui.has_colour() };
    telemetry::start(logging, ui.log_writer());
}

/// Help and version are results; everything else that clap says is a usage error.
fn answer_clap(error: &clap::Error, arguments: &[OsString], environment: &Environment) -> ExitCode {
    // Nothing was parsed, so the flags that shape output are looked for by eye.
    let given = |flag: &str| arguments.iter().skip(1).take_while(|word| *word != "--").any(|word| word == flag);
    let options = UiOptions { json: given("--json"), quiet: false, no_color: given("--no-color") };
    let ui = Ui::new(options, environment);
    let text = error.render();
    if !error.use_stderr() {
        let shown = if ui.has_colour_on_stdout() { text.ansi().to_string() } else { text.to_string() };
        return match ui.result_bytes(format!("{}\n", shown.trim_end()).as_bytes()) {
            Ok(()) | Err(Failure::OutputClosed) => ExitCode::SUCCESS,
            Err(Failure::Error(error)) => Exit::Code(error.code).into(),
        };
    }
    ui.usage(&text);
    Exit::Code(Code::Usage).into()
}

const fn options(global: &GlobalArgs) -> UiOptions {
    UiOptions { json: global.json, quiet: global.quiet, no_color: global.no_color }
}
