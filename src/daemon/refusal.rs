//! Why a request about a job is refused, for whoever made it.

use thiserror::Error;

use super::error::WorkError;
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::job::{JobError, JobState};
use crate::core::model_name::ModelName;
use crate::gate::accept::AcceptError;

/// Why a request about a job is refused.
#[derive(Debug, Error)]
pub enum JobRefusal {
    /// There is no such model.
    #[error("there is no model {name} on this volume")]
    Unknown {
        /// The name asked for.
        name: ModelName,
    },
    /// Another request for the same directory is being worked on.
    #[error("{name} is being pulled already, at {revision} with {selection}")]
    Busy {
        /// The model.
        name: ModelName,
        /// What is being pulled.
        revision: String,
        /// With which selection.
        selection: String,
    },
    /// It makes no sense in this state.
    #[error("{name} is {}, so it cannot be {verb}", .state.word())]
    State {
        /// The model.
        name: ModelName,
        /// Its state.
        state: JobState,
        /// What was asked for.
        verb: &'static str,
    },
    /// It is being worked on, or removed.
    #[error("{name} is being worked on")]
    Running {
        /// The model.
        name: ModelName,
    },
    /// The work itself failed.
    #[error(transparent)]
    Work(#[from] WorkError),
    /// A file is not taken for right.
    #[error(transparent)]
    Accept(#[from] AcceptError),
}

impl JobRefusal {
    /// The outcome.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } => Code::UnknownModel,
            Self::Busy { .. } => Code::Held,
            Self::State { .. } => Code::Usage,
            Self::Running { .. } => Code::Held,
            Self::Work(error) => error.code(),
            Self::Accept(error) => error.code(),
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { .. } => Some("muster list shows what is there; muster pull brings a model".to_owned()),
            Self::Busy { name, .. } => {
                Some(format!("wait for it, or `muster cancel {name}` first; or choose another place with --to NAME"))
            }
            Self::State { .. } => None,
            Self::Running { name } => Some(format!("`muster cancel {name}` first")),
            Self::Work(error) => error.hint(),
            Self::Accept(error) => error.hint(),
        }
    }

    /// The form that is sent and shown.
    #[must_use]
    pub fn to_job_error(&self) -> JobError {
        JobError { code: self.code(), message: in_words(self), hint: self.hint() }
    }
}
