//! Errors of the layers below, as they are told.
//!
//! Owns the way from an error with an outcome and a hint to a [`CliError`]. It adds words only where
//! the answer is another verb, which the layers below do not know.

use super::exit::CliError;
use crate::api::{ClientError, OwnError};
use crate::daemon::{JobRefusal, WorkError};
use crate::volume::VolumeError;

impl From<&VolumeError> for CliError {
    fn from(error: &VolumeError) -> Self {
        Self::told(error.code(), error, error.hint())
    }
}

impl From<&WorkError> for CliError {
    fn from(error: &WorkError) -> Self {
        Self::told(error.code(), error, error.hint())
    }
}

impl From<&JobRefusal> for CliError {
    fn from(error: &JobRefusal) -> Self {
        Self::told(error.code(), error, error.hint())
    }
}

impl From<&ClientError> for CliError {
    fn from(error: &ClientError) -> Self {
        Self::told(error.code(), error, error.hint())
    }
}

impl From<&OwnError> for CliError {
    fn from(error: &OwnError) -> Self {
        let ask_it = || "muster status shows what it does; muster pull hands a job over to it".to_owned();
        Self::told(error.code(), error, error.hint().or_else(|| error.holder().map(|_| ask_it())))
    }
}
