//! How a verb ends: its exit code, and the error it ends with.
//!
//! Invariant: an error is told once. A cause whose words an earlier line already has is left
//! out, and the hint comes from whoever knew it.

use std::error::Error;
use std::fmt::Write as _;
use std::process::ExitCode;

use serde_json::json;

use crate::config::ConfigError;
use crate::core::code::Code;
use crate::core::job::JobError;

/// How a verb ended without an error to tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It did what was asked for.
    Success,
    /// The answer is not a good one, and was given as the result.
    Code(Code),
    /// A signal ended it: 128 and the signal's number.
    Signal(u8),
    /// The command behind an open gate cannot be run (126) or found (127), as a shell says it.
    NotStarted(u8),
}

impl Exit {
    /// The exit code.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Code(code) => code.exit(),
            Self::Signal(signal) => 128_u8.saturating_add(signal),
            Self::NotStarted(number) => number,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.number())
    }
}

/// Why a verb stopped.
#[derive(Debug)]
pub enum Failure {
    /// Nobody reads stdout any more (`| head`): a quiet success.
    OutputClosed,
    /// An error to tell.
    Error(Box<CliError>),
}

/// An error as it is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CliError {
    /// The outcome.
    pub code: Code,
    /// What happened.
    pub message: String,
    /// Why, outermost first.
    pub causes: Vec<String>,
    /// What to do next.
    pub hint: Option<String>,
}

impl CliError {
    /// An error with its message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), causes: Vec::new(), hint: None }
    }

    /// A usage error.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Code::Usage, message)
    }

    /// An error and everything that caused it.
    pub fn from_error(code: Code, error: &(dyn Error + 'static)) -> Self {
        let causes = std::iter::successors(error.source(), |cause: &&dyn Error| (*cause).source());
        Self { causes: causes.map(ToString::to_string).collect(), ..Self::new(code, error.to_string()) }
    }

    /// An error, everything that caused it, and the hint of whoever knew one.
    pub fn told(code: Code, error: &(dyn Error + 'static), hint: Option<impl Into<String>>) -> Self {
        Self { hint: hint.map(Into::into), ..Self::from_error(code, error) }
    }

    /// The same error with what was being done in front of it.
    #[must_use]
    pub fn context(mut self, doing: impl Into<String>) -> Self {
        let message = std::mem::replace(&mut self.message, doing.into());
        self.causes.insert(0, message);
        self
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Message and causes in one line, for JSON and records.
    #[must_use]
    pub fn one_line(&self) -> String {
        let mut line = self.message.clone();
        for cause in self.news() {
            let _ = write!(line, ": {cause}");
        }
        line
    }

    /// `{"error":{"code":…,"message":…,"hint":…}}`
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        json!({ "error": { "code": self.code, "message": self.one_line(), "hint": self.hint } })
    }

    /// What is told, line by line, each with its label.
    pub(super) fn lines(&self) -> Vec<(&'static str, &str)> {
        let causes = self.news().into_iter().map(|cause| ("caused by:", cause));
        let hint = self.hint.iter().map(|hint| ("hint:", hint.as_str()));
        std::iter::once(("error:", self.message.as_str())).chain(causes).chain(hint).collect()
    }

    /// The causes that say something new.
    fn news(&self) -> Vec<&str> {
        let mut told = vec![self.message.as_str()];
        for cause in self.causes.iter().map(String::as_str) {
            if !told.iter().any(|earlier| earlier.contains(cause)) {
                told.push(cause);
            }
        }
        told.split_off(1)
    }
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Self::Error(Box::new(error))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        let told = CliError::from_error(Code::Usage, &error);
        let hint = match error {
            ConfigError::UnknownKey { .. } => "config/muster.toml in the sources lists every key",
            ConfigError::Policy(_) => "the examples in config/policy of the sources show every kind of rule",
            ConfigError::PolicyUnreadable { .. } => "make it readable, or name another with --policy",
            ConfigError::Unreadable { .. } => "make it readable, or name another with --config",
            _ => return told.into(),
        };
        told.hint(hint).into()
    }
}

impl From<JobError> for CliError {
    fn from(error: JobError) -> Self {
        Self { code: error.code, message: error.message, causes: Vec::new(), hint: error.hint }
    }
}

impl From<&CliError> for JobError {
    fn from(error: &CliError) -> Self {
        Self { code: error.code, message: error.one_line(), hint: error.hint.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> CliError {
        let mut error = CliError::new(Code::NoSpace, "not enough space on /shared").hint("free 12 GB");
        error.causes = vec!["not enough space".into(), "wrote 5 of 9 bytes".into(), "wrote 5 of 9 bytes".into()];
        error
    }

    #[test]
    fn a_cause_is_told_once_and_the_hint_comes_last() {
        let error = sample();
        let told =
            [("error:", "not enough space on /shared"), ("caused by:", "wrote 5 of 9 bytes"), ("hint:", "free 12 GB")];
        assert_eq!(error.lines(), told);
        assert_eq!(sample().one_line(), "not enough space on /shared: wrote 5 of 9 bytes");
    }

    #[test]
    fn the_json_form_names_the_code_and_says_null_for_no_hint() {
        assert_eq!(sample().to_json()["error"]["code"], "no_space");
        let plain = CliError::usage("no").to_json();
        assert!(plain["error"]["hint"].is_null());
    }

    #[test]
    fn codes_follow_the_table_and_signals_add_to_128() {
        assert_eq!(Exit::Success.number(), 0);
        assert_eq!(Exit::Code(Code::Stalled).number(), 19);
        assert_eq!(Exit::Signal(15).number(), 143);
    }

    #[test]
    fn the_chain_of_sources_becomes_the_causes() {
        let inner = std::io::Error::other("disk on fire");
        let error = CliError::from_error(Code::Internal, &inner).context("cannot read /x");
        assert_eq!(error.one_line(), "cannot read /x: disk on fire");
    }
}
