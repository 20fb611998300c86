//! What can go wrong with one ranged read, and what that means for the next try.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use thiserror::Error;

use super::health::Blame;
use crate::core::code::Code;
use crate::core::endpoint::Origin;
use crate::core::repo_path::RepoPath;
use crate::core::retry::FailureClass;
use crate::hub::HubError;

/// A read that failed: where, and why (P10).
#[derive(Debug)]
pub struct ReadError {
    /// The file.
    pub path: RepoPath,
    /// The bytes asked for.
    pub range: Range<u64>,
    /// Who was asked.
    pub host: Origin,
    /// What happened.
    pub problem: Problem,
    /// Whose failure it is.
    pub blame: Blame,
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, range, host, problem, .. } = self;
        write!(f, "{path} bytes {}..{} from {host}: {problem}", range.start, range.end)
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.problem)
    }
}

/// What happened to a read.
#[derive(Debug, Error)]
pub enum Problem {
    /// The file could not be located.
    #[error("the file could not be located")]
    Locate(#[source] HubError),
    /// No answer came.
    #[error("no answer came")]
    Ask(#[source] HubError),
    /// The connection broke in the middle of a body.
    #[error("the connection broke after {received} bytes")]
    Broken {
        /// Bytes of this read that came before.
        received: u64,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// No byte for too long in the middle of a body.
    #[error("no bytes for {} s after {received} bytes", .after.as_secs())]
    Idle {
        /// How long was waited.
        after: Duration,
        /// Bytes of this read that came before.
        received: u64,
    },
    /// Hardly a byte for too long in the middle of a body.
    #[error("only {bytes} bytes came in {} s after {received} bytes", .within.as_secs())]
    Trickle {
        /// Bytes that came in that time.
        bytes: u64,
        /// How long was waited.
        within: Duration,
        /// Bytes of this read that came.
        received: u64,
    },
    /// A status that is no answer to a ranged read.
    #[error("status {status} came{}", shown(.content_type.as_ref(), .words.as_ref()))]
    Status {
        /// The status code.
        status: u16,
        /// What the server says the body is.
        content_type: Option<String>,
        /// The server's words, printable.
        words: Option<String>,
        /// Whether the Hub itself answered, so that a 403 is about permission.
        at_hub: bool,
        /// Whether the file was located again for this read, so that its URL was new.
        renewed: bool,
    },
    /// A page for people in place of a file: a captive portal, a proxy's complaint.
    #[error("a page came (content type `{content_type}`) where the file was expected")]
    Page {
        /// What the server says it is.
        content_type: String,
    },
    /// What Git stores in place of a large file.
    #[error("the file's Git LFS pointer came in place of the file")]
    Pointer,
    /// A redirect that nobody should follow.
    #[error("a redirect came that is not followed")]
    Redirect(#[source] HubError),
    /// Redirects without end.
    #[error("more than {hops} redirects came")]
    Redirects {
        /// How many were followed.
        hops: usize,
    },
    /// Status 200 to a ranged request that does not start at 0.
    #[error("the server ignores ranges: status 200 came for a part of the file")]
    RangeIgnored,
    /// Status 206 with other bytes than asked for.
    #[error("Content-Range `{came}` came for another range")]
    WrongRange {
        /// The header, printable.
        came: String,
    },
    /// The range is not inside the file, says the server.
    #[error("the server refuses the range (416), it says `{came}`")]
    RangeRefused {
        /// The Content-Range header, printable.
        came: String,
    },
    /// The body has another length than the range.
    #[error("a body of {came} bytes came where {expected} were expected{}", shown(.content_type.as_ref(), None))]
    WrongLength {
        /// Bytes expected.
        expected: u64,
        /// Bytes announced.
        came: u64,
        /// What the server says the body is.
        content_type: Option<String>,
    },
    /// More bytes than were asked for.
    #[error("more bytes came than were asked for")]
    TooLong,
    /// The body ended early without an error.
    #[error("the body ended after {received} bytes")]
    Short {
        /// Bytes of this read that came.
        received: u64,
    },
    /// The body is compressed although identity was asked for.
    #[error("the body came with content encoding `{encoding}`")]
    Encoded {
        /// The encoding.
        encoding: String,
    },
}

impl Problem {
    /// What this means for the next try.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        match self {
            Self::Locate(error) | Self::Ask(error) => error.class(),
            Self::Broken { .. } | Self::Idle { .. } | Self::Trickle { .. } | Self::Short { .. } => {
                FailureClass::Transient { after: None }
            }
            Self::Status { status, at_hub, renewed, .. } => status_class(*status, *at_hub, *renewed),
            Self::Redirect(_) | Self::Redirects { .. } => FailureClass::Permanent,
            Self::RangeIgnored
            | Self::WrongRange { .. }
            | Self::RangeRefused { .. }
            | Self::WrongLength { .. }
            | Self::TooLong
            | Self::Page { .. }
            | Self::Pointer
            | Self::Encoded { .. } => FailureClass::Corrupt,
        }
    }

    /// The outcome when this is what a job ends with.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Locate(error) | Self::Ask(error) => error.code(),
            Self::Broken { .. } | Self::Idle { .. } | Self::Trickle { .. } | Self::Short { .. } => Code::Stalled,
            _ => Code::UpstreamRefused,
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Locate(error) | Self::Ask(error) => error.hint(),
            Self::Status { status: 400, .. } => {
                Some("very large files can need Xet storage, which plain HTTP does not reach".to_owned())
            }
            Self::Status { status: 404 | 410, .. } => {
                Some("the storage lacks the file: try again later, or ask the repository's owner".to_owned())
            }
            Self::Status { .. } => {
                Some("pull again later: what came is kept; if it stays so, tell who runs that server".to_owned())
            }
            Self::Page { .. } => {
                Some("open the address in a browser on this machine: a network may want a sign-in first".to_owned())
            }
            Self::Pointer => Some(
                "that server passes on what Git holds of large files: use an endpoint that serves the files themselves"
                    .to_owned(),
            ),
            Self::Encoded { .. } | Self::WrongLength { .. } => {
                Some("a proxy on the way may rewrite answers: try without it, or ask its operator".to_owned())
            }
            _ => None,
        }
    }

    /// Whether an origin in trouble fails so.
    #[must_use]
    pub fn may_be_of_origin(&self) -> bool {
        match self {
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..=599),
            Self::Locate(error) | Self::Ask(error) => matches!(error.class(), FailureClass::Transient { .. }),
            _ => false,
        }
    }
}

fn status_class(status: u16, at_hub: bool, renewed: bool) -> FailureClass {
    match status {
        // Its wish is kept by the origin, for everybody.
        408 | 429 | 500..=599 => FailureClass::Transient { after: None },
        // A signed URL that ran out, or leads where the file no longer is; but the Hub's own word, or
        // one about a URL just signed, means no.
        401 | 403 | 404 | 410 if !at_hub && !renewed => FailureClass::StaleUrl,
        _ => FailureClass::Permanent,
    }
}

fn shown(content_type: Option<&String>, words: Option<&String>) -> String {
    let kind = content_type.map(|kind| format!(" with content type `{kind}`")).unwrap_or_default();
    let words = words.map(|words| format!(": {words}")).unwrap_or_default();
    kind + &words
}
