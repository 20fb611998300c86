//! The process environment as a value, so that everything that depends on it can be tested.

#![allow(clippy::disallowed_methods, reason = "the home of the process environment")]

use std::collections::HashMap;
use std::ffi::OsString;

use super::ConfigError;

/// A snapshot of environment variables. An empty variable is an unset one.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    variables: HashMap<OsString, OsString>,
}

impl Environment {
    /// The environment of this process.
    #[must_use]
    pub fn of_process() -> Self {
        Self { variables: std::env::vars_os().filter(|(_, value)| !value.is_empty()).collect() }
    }

    /// An environment with exactly these variables.
    #[must_use]
    pub fn of(variables: &[(&str, &str)]) -> Self {
        let set = variables.iter().filter(|(_, value)| !value.is_empty());
        Self { variables: set.map(|(name, value)| (name.into(), value.into())).collect() }
    }

    /// The text of a variable, when it is set and not empty.
    ///
    /// # Errors
    /// [`ConfigError::NotUnicode`].
    pub fn text(&self, name: &'static str) -> Result<Option<&str>, ConfigError> {
        let value = self.variables.get(std::ffi::OsStr::new(name));
        value.map(|value| value.to_str().ok_or(ConfigError::NotUnicode { name })).transpose()
    }

    /// The names of all variables, in no order.
    pub fn names(&self) -> impl Iterator<Item = &std::ffi::OsStr> {
        self.variables.keys().map(OsString::as_os_str)
    }

    /// Whether a variable is set and not empty.
    #[must_use]
    pub fn is_set(&self, name: &str) -> bool {
        self.variables.contains_key(std::ffi::OsStr::new(name))
    }
}
