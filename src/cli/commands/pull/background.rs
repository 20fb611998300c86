//! A pull that goes on after its command has returned.
//!
//! The same command runs again in a session of its own, with its output in a log file on the
//! volume. This one returns when that one owns the volume, or tells why it does not.

use std::ffi::OsString;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;

use super::Pull;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::clock;
use crate::core::code::Code;
use crate::volume::Volume;
use crate::volume::owner::current;

/// How long the background process is watched: what cannot start fails sooner.
const START_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Bytes of its log that are shown when it failed.
const SHOWN_MAX: usize = 4000;

/// Leaves the terminal's session, so that its end is not ours.
pub(super) fn leave_session() {
    // Fails only for a process that leads a session already.
    let _ = rustix::process::setsid();
}

/// Starts the pull in the background.
pub(super) fn start(pull: &Pull) -> Result<Exit, Failure> {
    let fail = |error: &dyn std::error::Error, doing: &str| CliError::new(Code::Internal, format!("{doing}: {error}"));
    let settings = &pull.settings;
    let volume = Volume::create(&settings.volume.value).map_err(|error| {
        let hint = error.hint().unwrap_or("choose another volume with --volume DIR");
        CliError::from(&error).hint(hint)
    })?;
    let folder = volume.log_dir().map_err(|error| fail(&error, "cannot make the log folder"))?;
    let name = pull.request.spec.name.as_str().replace('/', "--");
    let log_path = folder.join(format!("{name}-{}.log", clock::now().as_second()));
    #[expect(clippy::disallowed_methods, reason = "the log of a process this module starts")]
    let log = File::create(&log_path).map_err(|error| fail(&error, "cannot make the log file"))?;
    let errors = log.try_clone().map_err(|error| fail(&error, "cannot share the log file"))?;
    let program = std::env::current_exe().map_err(|error| fail(&error, "cannot find this program"))?;
    #[expect(clippy::disallowed_methods, reason = "the home of detached pulls")]
    let mut command = Command::new(program);
    command.args(detached(std::env::args_os().skip(1))).stdin(Stdio::null()).stdout(log).stderr(errors);
    let mut child = command.spawn().map_err(|error| fail(&error, "cannot start in the background"))?;
    wait_until_it_owns(&volume, &mut child, &log_path)?;
    let follow = format!("muster status --watch --volume {}", settings.volume.value.display());
    if pull.ui.is_json() {
        let (pid, log) = (child.id(), log_path.display().to_string());
        pull.ui.result_json(&json!({"pid": pid, "log": log, "follow": follow}))?;
    } else {
        let (pid, log) = (child.id(), log_path.display());
        pull.ui.result(&format!("started in the background (pid {pid}, log {log}); follow: {follow}"))?;
    }
    Ok(Exit::Success)
}

fn wait_until_it_owns(volume: &Volume, child: &mut Child, log: &std::path::Path) -> Result<(), CliError> {
    let until = clock::since_boot() + START_WITHIN;
    while clock::since_boot() < until {
        let owner = volume.owners().and_then(|owners| current(&owners)).ok().flatten().and_then(|seen| seen.record());
        if owner.is_some_and(|record| record.pid == child.id()) {
            return Ok(());
        }
        if let Ok(Some(status)) = child.try_wait() {
            if status.success() {
                return Ok(());
            }
            #[expect(clippy::disallowed_methods, reason = "the log of a process this module starts")]
            let said = std::fs::read_to_string(log).unwrap_or_default();
            let start = said.len().saturating_sub(SHOWN_MAX);
            let said = said.get(start..).unwrap_or_default().trim().to_owned();
            let code = status.code().and_then(Code::of_exit).unwrap_or(Code::Internal);
            return Err(CliError::new(code, "the background pull ended at once").context(said));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    // It may be waiting for another owner, or following it: the log says so.
    Ok(())
}

/// The same arguments, for the process that does it. What comes after `--` is no flag.
fn detached(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut flags = true;
    arguments.map(move |argument| {
        flags &= argument != "--";
        if flags && argument == "--detach" { "--detached".into() } else { argument }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flag_is_replaced() {
        let arguments = ["pull", "org/x", "--detach", "--", "--detach"];
        let replaced: Vec<_> = detached(arguments.iter().map(OsString::from)).collect();
        assert_eq!(replaced, ["pull", "org/x", "--detached", "--", "--detach"]);
    }
}
