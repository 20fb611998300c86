//! `muster doctor`: checks a volume and its surroundings, and advises.
//!
//! Owns what the checks are asked and how their findings are told.

mod given;
mod text;

use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::pull::hub_config;
use crate::api::path_bytes_on;
use crate::blocking::Blocking;
use crate::cli::args::DoctorArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::signals::Signals;
use crate::cli::{Context, runtime};
use crate::clock;
use crate::config::{Connections, SettingOrigin, Settings, Size};
use crate::core::code::Code;
use crate::doctor::{Call, Check, Examination, Offline, Questions, SCHEMA, Summary, outcome};
use crate::hub::{HubConfig, Timeouts};
use crate::limits::CONNECTIONS_ADAPTIVE_MAX;

/// Longest that the endpoint may take for each step of an answer: whoever looks at a screen waits.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a signal waits for the tries to be tidied up.
const TIDY_WITHIN: Duration = Duration::from_secs(3);

/// Checks, tells, and ends with the outcome of the first problem.
///
/// # Errors
/// What the user is told.
pub fn run(args: DoctorArgs, context: Context) -> Result<Exit, Failure> {
    let (started_at, started) = (clock::now(), clock::since_boot());
    let examination = Examination {
        questions: questions(&context),
        call: call(&args, &context.settings),
        given: given::checks(&context),
    };
    let mut teller = text::Teller::new(&context.ui, &context.settings.volume.to_string());
    let checks = runtime::run(async {
        let mut signals = Signals::listen()?.and_hangup(false)?;
        let (stop, blocking) = (CancellationToken::new(), Blocking::new(Handle::current(), 1));
        let mut tell = |check: &Check| teller.tell(check);
        let mut work = Box::pin(examination.run(&blocking, &stop, &mut tell));
        tokio::select! {
            checks = &mut work => Ok(Ok(checks)),
            exit = signals.next() => {
                stop.cancel();
                // A disk that hangs keeps what is on it; the next doctor tidies up.
                let _tidied = timeout(TIDY_WITHIN, work).await;
                Ok(Err(exit))
            }
        }
    })?;
    let checks = match checks {
        Ok(checks) => checks,
        Err(exit) => return Ok(exit),
    };
    let code = outcome(&checks);
    let exit = code.map_or(Exit::Success, Exit::Code);
    if context.ui.is_json() {
        let volume = context.settings.volume.value.display().to_string();
        let elapsed_ms = u64::try_from(clock::since_boot().saturating_sub(started).as_millis()).unwrap_or(u64::MAX);
        let (schema, summary, exit_code) = (SCHEMA, Summary::of(&checks), exit.number());
        let program = program();
        context.ui.result_json(&Report {
            schema,
            program,
            volume,
            started_at,
            elapsed_ms,
            exit_code,
            code,
            summary,
            checks,
        })?;
    } else {
        teller.end(&checks, exit.number())?;
    }
    Ok(exit)
}

/// The JSON form.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    program: String,
    volume: String,
    started_at: Timestamp,
    elapsed_ms: u64,
    exit_code: u8,
    code: Option<Code>,
    summary: Summary,
    checks: Vec<Check>,
}

fn questions(context: &Context) -> Questions {
    let Settings { volume, state_dir, reserve, readback, retire_after, connections, daemon, .. } = &context.settings;
    let scratch =
        context.environment.text("TMPDIR").ok().flatten().map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
    Questions {
        volume: volume.value.clone(),
        state_dir: state_dir.value.clone(),
        reserve: reserve.value.fixed().map(Size::bytes),
        readback: readback.value,
        retire_after: retire_after.value,
        socket: daemon.socket.value.clone(),
        socket_path: path_bytes_on(&volume.value),
        connections: connections.value.fixed().map_or(CONNECTIONS_ADAPTIVE_MAX, Connections::get),
        jobs: daemon.jobs.value.get(),
        scratch,
        program: program(),
    }
}

fn origin_of(origin: &SettingOrigin) -> String {
    if *origin == SettingOrigin::Default { "the default".to_owned() } else { format!("from {origin}") }
}

fn program() -> String {
    concat!("muster ", env!("CARGO_PKG_VERSION")).to_owned()
}

fn call(args: &DoctorArgs, settings: &Settings) -> Result<Call, Offline> {
    if args.offline || settings.offline.value {
        let origin = if args.offline { "--offline".to_owned() } else { settings.offline.origin.to_string() };
        return Err(Offline::Asked(origin));
    }
    let config = hub_config(settings).map_err(|error: CliError| Offline::BadToken {
        code: error.code,
        why: error.one_line(),
        hint: error.hint,
    })?;
    let Timeouts { connect, header, idle } = config.timeouts;
    let timeouts = Timeouts { connect: connect.min(PATIENCE), header: header.min(PATIENCE), idle: idle.min(PATIENCE) };
    Ok(Call { config: HubConfig { timeouts, ..config }, origin: origin_of(&settings.endpoint.origin) })
}
