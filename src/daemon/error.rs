//! How a job ends badly, for whoever asked for it.

use thiserror::Error;

use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::job::JobError;
use crate::core::local_edits::{Conflict, EditReason, LocalEditsError};
use crate::core::manifest::ManifestError;
use crate::core::model_name::ModelName;
use crate::core::reason::Why;
use crate::core::receipt::ReceiptError;
use crate::core::repo::{CommitId, Repo, Revision};
use crate::core::repo_path::RepoPath;
use crate::core::retry::FailureClass;
use crate::core::selection::Selection;
use crate::core::shell::quoted;
use crate::core::units;
use crate::fetch::owned::WriteError;
use crate::fetch::{FetchError, OwnershipLost};
use crate::gate::sign::SignError;
use crate::hub::HubError;
use crate::volume::VolumeError;
use crate::volume::publish::PublishError;

/// Why a job did not end with a receipt.
#[derive(Debug, Error)]
pub enum WorkError {
    /// The Hub could not be asked, or refused.
    #[error("{repo} could not be listed")]
    Hub {
        /// The repository.
        repo: Repo,
        /// Why.
        #[source]
        source: HubError,
    },
    /// The Hub did not answer where a branch is, and the directory has a commit of it.
    #[error("{repo} could not be asked where {revision} is now")]
    Unanswered {
        /// The repository.
        repo: Repo,
        /// What was asked for.
        revision: Revision,
        /// The commit in the directory.
        held: CommitId,
        /// Why.
        #[source]
        source: HubError,
    },
    /// The listing is no manifest.
    #[error("the files of {repo} cannot be pulled")]
    Manifest {
        /// The repository.
        repo: Repo,
        /// Why.
        #[source]
        source: ManifestError,
    },
    /// Two names that this volume takes for one.
    #[error("{repo} has both {one:?} and {other:?}, which are one name on this volume")]
    Collision {
        /// The repository.
        repo: Repo,
        /// One of the names.
        one: String,
        /// The other.
        other: String,
    },
    /// The volume failed.
    #[error("the volume failed")]
    Volume(#[from] VolumeError),
    /// A verified file did not get its name.
    #[error("a verified file could not be put in place")]
    Publish(#[from] PublishError),
    /// Fetching ended the job.
    #[error("the download ended")]
    Fetch(#[from] FetchError),
    /// Some files could not be had; the others are in place.
    #[error("{} of {wanted} files could not be fetched", .failed.len())]
    Unfinished {
        /// The files given up; never empty.
        failed: Vec<FetchError>,
        /// Files that were wanted.
        wanted: usize,
        /// The first of them, for the chain of causes.
        #[source]
        first: Box<WorkErrorText>,
    },
    /// Not all files are proved.
    #[error("no receipt can be written")]
    Receipt(#[from] ReceiptError),
    /// The directory holds another repository.
    #[error("{name} holds {held}, not {asked}")]
    OtherRepo {
        /// The model.
        name: ModelName,
        /// What is there.
        held: Repo,
        /// What was asked for.
        asked: Repo,
    },
    /// The directory holds another selection of the same repository.
    #[error("{name} was pulled with {held}, now {asked} is asked for")]
    OtherSelection {
        /// The model.
        name: ModelName,
        /// What is there.
        held: Selection,
        /// What was asked for.
        asked: Selection,
    },
    /// The volume has not enough room.
    #[error(
        "not enough space: {} more needed, {} free after keeping {} in reserve",
        units::bytes(*.needed), units::bytes(*.free), units::bytes(*.reserve)
    )]
    NoSpace {
        /// Bytes still to be written, over all jobs.
        needed: u64,
        /// Bytes that may be used.
        free: u64,
        /// Bytes kept free.
        reserve: u64,
    },
    /// A launcher reads the model.
    #[error("{name} is in use")]
    InUse {
        /// The model.
        name: ModelName,
    },
    /// A launcher reads the model, and some of what it reads is wrong.
    #[error("{name} is in use, and {} wrong ({}); the gate is closed for the next launcher", files_are(*.count), .first)]
    WrongInUse {
        /// The model.
        name: ModelName,
        /// How many files are wrong.
        count: usize,
        /// The first of them.
        first: RepoPath,
    },
    /// No request may be sent, and the other copy has not what is wrong here.
    #[error("offline, and {directory} has not the right bytes of {} ({first})", units::count(*.count as u64, "file"))]
    NotInCopy {
        /// The other copy.
        directory: String,
        /// How many files it does not have right.
        count: usize,
        /// The first of them.
        first: RepoPath,
    },
    /// Something that is no plain file has a file's name.
    #[error("at {path}, or at a folder above it, there is a link or something else that is no plain file")]
    NotAFile {
        /// The name.
        path: RepoPath,
    },
    /// A file cannot be read to be checked.
    #[error("{path} is there and cannot be checked: {why}")]
    Unreadable {
        /// The name.
        path: RepoPath,
        /// Why.
        why: String,
    },
    /// A file was changed here on purpose, and by its publisher too.
    #[error("{name} stays as it is, for {conflict}")]
    EditedBoth {
        /// The model.
        name: ModelName,
        /// The file, and what there is of it.
        conflict: Conflict,
    },
    /// A file that was accepted here is not what was accepted. Nobody could fetch it again.
    #[error("{path} was accepted here as it was (\"{reason}\") and is not that any more: {why}")]
    EditSpoiled {
        /// The model.
        name: ModelName,
        /// The file.
        path: RepoPath,
        /// Why it was changed.
        reason: EditReason,
        /// What is there now.
        why: Why,
    },
    /// It is complete, and the signature that it should have could not be made.
    #[error("the model cannot be signed")]
    Sign(#[from] SignError),
    /// Somebody wrote to a file after it was verified.
    #[error("{path} changed after it was verified")]
    Changed {
        /// The file.
        path: RepoPath,
    },
    /// No request may be sent, and the set is not complete.
    #[error("offline, and {repo} at {revision} is not complete here")]
    Offline {
        /// The repository.
        repo: Repo,
        /// What was asked for.
        revision: Revision,
    },
    /// Somebody else owns the volume now.
    #[error("the work stops")]
    Ownership(#[from] OwnershipLost),
    /// Stopped on request.
    #[error("stopped")]
    Stopped,
}

impl From<WriteError> for WorkError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Volume(error) => error.into(),
            WriteError::Ownership(lost) => lost.into(),
        }
    }
}

fn files_are(count: usize) -> String {
    format!("{} of its files {}", count, if count == 1 { "is" } else { "are" })
}

/// The words of an error that stays elsewhere.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct WorkErrorText(pub String);

impl WorkError {
    /// What a directory should hold could not be told.
    pub(super) fn unexpected(name: &ModelName, error: VolumeError) -> Self {
        match error {
            VolumeError::LocalEdits { source: LocalEditsError::Conflict(conflict), .. } => {
                Self::EditedBoth { name: name.clone(), conflict }
            }
            other => other.into(),
        }
    }

    /// Files given up.
    #[must_use]
    pub fn unfinished(failed: Vec<FetchError>, wanted: usize) -> Self {
        let first = failed.first().map(|error| in_words(error)).unwrap_or_default();
        Self::Unfinished { failed, wanted, first: Box::new(WorkErrorText(first)) }
    }

    /// The outcome.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Hub { source, .. } | Self::Unanswered { source, .. } => source.code(),
            Self::Manifest { source: ManifestError::Empty { .. }, .. }
            | Self::OtherRepo { .. }
            | Self::OtherSelection { .. } => Code::Usage,
            Self::Manifest { .. } | Self::Collision { .. } => Code::UpstreamRefused,
            Self::Volume(source) | Self::Publish(PublishError::Volume(source)) => source.code(),
            Self::Publish(PublishError::Occupied { .. })
            | Self::InUse { .. }
            | Self::WrongInUse { .. }
            | Self::Ownership(_) => Code::Held,
            Self::Fetch(source) => source.code(),
            Self::Unfinished { failed, .. } => failed.first().map_or(Code::Internal, FetchError::code),
            Self::Receipt(_) | Self::Offline { .. } | Self::NotInCopy { .. } => Code::Incomplete,
            Self::NoSpace { .. } => Code::NoSpace,
            Self::Sign(source) => source.code(),
            Self::NotAFile { .. } | Self::Unreadable { .. } | Self::Changed { .. } => Code::CouldNotCheck,
            Self::EditedBoth { .. } => Code::Refused,
            Self::EditSpoiled { why, .. } => why.code(),
            Self::Stopped => Code::Interrupted,
        }
    }

    /// Whether the same request may succeed later, with nothing done about it.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Hub { source, .. } | Self::Unanswered { source, .. }
            if matches!(source.class(), FailureClass::Transient { .. }))
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Hub { source, .. } => source.hint(),
            Self::Unanswered { held, .. } => Some(format!(
                "the directory has commit {held}: pin it with --revision {held}, or set HF_HUB_OFFLINE=1, and no request is needed"
            )),
            Self::Volume(source) | Self::Publish(PublishError::Volume(source)) => source.hint().map(str::to_owned),
            Self::Fetch(source) => source.hint(),
            Self::Unfinished { failed, .. } => failed.first().and_then(FetchError::hint),
            Self::Manifest { source: ManifestError::Empty { .. }, .. } => Some(
                "patterns are matched against whole paths, case-sensitively, as the official client does".to_owned(),
            ),
            Self::Collision { .. } => Some(
                "choose a volume whose file system tells such names apart, or leave one out with --exclude".to_owned(),
            ),
            Self::OtherRepo { .. } => Some("choose another place with --to NAME".to_owned()),
            Self::OtherSelection { .. } => {
                Some("add --reselect to change the selection, or choose another place with --to NAME".to_owned())
            }
            Self::NoSpace { .. } => {
                Some("free some space, choose another volume, or keep less free with --reserve SIZE".to_owned())
            }
            Self::InUse { .. } => Some("stop what was launched from it, then try again".to_owned()),
            Self::WrongInUse { name, .. } => {
                Some(format!("what runs may have read wrong bytes: stop it, then muster repair {name} replaces them"))
            }
            Self::NotInCopy { .. } => {
                Some("name another copy with --from, or unset HF_HUB_OFFLINE to fetch what is missing".to_owned())
            }
            Self::NotAFile { .. } => Some("move it away: muster neither follows nor replaces it".to_owned()),
            Self::Unreadable { .. } => Some("make it readable for this user, or move it away".to_owned()),
            Self::EditedBoth { name, conflict } => Some(format!(
                "muster accept {name} --undo {} brings the published file back and lets the update go on; what is still \
                 needed is changed and accepted again afterwards. --no-update stays at this commit",
                quoted(conflict.edit.path.as_str())
            )),
            Self::EditSpoiled { name, path, why, .. } => {
                let path = quoted(path.as_str());
                let undo = format!("muster accept {name} --undo {path} brings the published file back");
                Some(match why {
                    Why::Missing { .. } => undo,
                    _ => format!("muster accept {name} {path} --reason TEXT takes it as it is now; {undo}"),
                })
            }
            Self::Changed { .. } => Some("pull again: a file that changed is checked anew".to_owned()),
            Self::Offline { .. } => Some("unset HF_HUB_OFFLINE to fetch what is missing".to_owned()),
            Self::Manifest { .. } | Self::Publish(_) | Self::Receipt(_) | Self::Ownership(_) | Self::Stopped => None,
            Self::Sign(_) => Some("pull again: what is there is kept, and signed".to_owned()),
        }
    }

    /// The form that is stored and shown.
    #[must_use]
    pub fn to_job_error(&self) -> JobError {
        JobError { code: self.code(), message: in_words(self), hint: self.hint() }
    }
}
