//! Handing a proved model directory to the launcher.
//!
//! Owns the replacement of this process by the command: the in-use lock stays open across it,
//! so the directory counts as used for as long as the launcher, or any child that inherited
//! the descriptor, lives. Must not run anything before the gate is open.

#![allow(clippy::disallowed_methods, reason = "home of the hand-over to another program")]

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use thiserror::Error;

use crate::core::repo::CommitId;
use crate::volume::VolumeError;
use crate::volume::in_use::InUse;

/// Environment variable with the model directory.
pub const ENV_DIR: &str = "MUSTER_MODEL_DIR";
/// Environment variable with the commit.
pub const ENV_COMMIT: &str = "MUSTER_COMMIT";
/// What stands for the directory in the command's arguments.
pub const PLACEHOLDER: &str = "{}";

/// The command did not start.
#[derive(Debug, Error)]
pub enum ExecError {
    /// No such program.
    #[error("the command `{program}` was not found")]
    NotFound {
        /// The program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// There is such a program, and it cannot run.
    #[error("the command `{program}` cannot be run")]
    NotRunnable {
        /// The program.
        program: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The lock could not be kept for the command.
    #[error("the in-use lock could not be handed to the command")]
    Lock(#[source] VolumeError),
}

impl ExecError {
    /// The exit code a shell would give.
    #[must_use]
    pub const fn exit(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotRunnable { .. } => 126,
            Self::Lock(_) => 1,
        }
    }
}

/// Replaces this process by `command`, with the directory in place of `{}`. Returns only when
/// that failed.
pub fn hand_over(command: &[OsString], directory: &Path, commit: CommitId, lock: Option<&InUse>) -> ExecError {
    let words: Vec<_> = command.iter().map(|word| fill_in(word, directory)).collect();
    let Some((program, args)) = words.split_first() else {
        let source = io::Error::from(io::ErrorKind::NotFound);
        return ExecError::NotFound { program: String::new(), source };
    };
    if let Some(Err(error)) = lock.map(InUse::keep_across_exec) {
        return ExecError::Lock(error);
    }
    let source = Command::new(program).args(args).env(ENV_DIR, directory).env(ENV_COMMIT, commit.to_string()).exec();
    let program = program.to_string_lossy().into_owned();
    match source.kind() {
        io::ErrorKind::NotFound => ExecError::NotFound { program, source },
        _ => ExecError::NotRunnable { program, source },
    }
}

/// Puts the directory in place of `{}`, unless the word looks like JSON: an empty object inside
/// a launcher's own arguments is not ours.
fn fill_in(word: &OsStr, directory: &Path) -> OsString {
    let mut between = Vec::new();
    let mut rest = word.as_bytes();
    while let Some(at) = rest.windows(2).position(|window| window == PLACEHOLDER.as_bytes()) {
        between.push(&rest[..at]);
        rest = &rest[at + 2..];
    }
    between.push(rest);
    if between.concat().iter().any(|byte| b"{}\"".contains(byte)) {
        return word.to_owned();
    }
    OsString::from_vec(between.join(directory.as_os_str().as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_takes_the_place_of_the_braces() {
        for (word, filled) in [
            ("{}", "/m/x"),
            ("--model={}", "--model=/m/x"),
            ("{}/config.json:{}", "/m/x/config.json:/m/x"),
            ("serve", "serve"),
            ("", ""),
            ("{", "{"),
            // JSON of the launcher's own.
            (r#"{"a": {}}"#, r#"{"a": {}}"#),
            ("{{}}", "{{}}"),
        ] {
            assert_eq!(fill_in(OsStr::new(word), Path::new("/m/x")), OsStr::new(filled), "{word}");
        }
    }

    #[test]
    fn a_command_that_is_not_there_or_cannot_run_is_told_apart_as_a_shell_does() {
        let start =
            |program: &str| hand_over(&[program.into()], Path::new("/"), CommitId::from_bytes([0; 20]), None).exit();
        assert_eq!(start("/nonexistent/launcher"), 127);
        assert_eq!(start(env!("CARGO_MANIFEST_DIR")), 126);
        assert_eq!(start(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")), 126);
    }
}
