//! Everything that can go wrong between us and a Hub, and what to do about each.
//!
//! Every variant names the host, what was asked for and what came. No text in here holds a
//! token or the query of a signed URL: both are taken out where errors are made.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::core::code::Code;
use crate::core::endpoint::Origin;
use crate::core::repo::Repo;
use crate::core::repo_path::{RepoPath, RepoPathError};
use crate::core::retry::FailureClass;

use super::answer::Answer;
use super::faults::{EntryFault, PageFault};

/// Who we were to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caller {
    /// No token was configured.
    Anonymous,
    /// A token is there, but plain http to another machine may not carry it.
    Withheld,
    /// The token was sent.
    Token,
}

/// What was waited for in vain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The connection, TLS included.
    Connect,
    /// The head of the answer.
    Answer,
    /// The next bytes of the body.
    Body,
    /// More than a byte now and then.
    Trickle,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connect => "no connection",
            Self::Answer => "no answer",
            Self::Body => "no further byte",
            Self::Trickle => "hardly a byte",
        })
    }
}

/// Why the Hub did not give what was asked for.
#[derive(Debug, Error)]
pub enum HubError {
    /// No such repository, or none that this caller may know of. The Hub does not tell which.
    #[error("the {} {} does not exist, or is private ({answer})", .repo.kind, .repo.id)]
    RepoNotFound {
        /// What was asked for.
        repo: Repo,
        /// Who asked.
        caller: Caller,
        /// What came.
        answer: Box<Answer>,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo} has no revision {revision} ({answer})")]
    RevisionNotFound {
        /// The repository.
        repo: Repo,
        /// What was asked for.
        revision: String,
        /// What came.
        answer: Box<Answer>,
    },
    /// The commit has no such file.
    #[error("{repo} has no file {path} ({answer})")]
    EntryNotFound {
        /// The repository.
        repo: Repo,
        /// The file.
        path: String,
        /// What came.
        answer: Box<Answer>,
    },
    /// 404 without a word of what is missing.
    #[error("{asked} was not found ({answer})")]
    NotFound {
        /// What was asked for.
        asked: String,
        /// What came.
        answer: Box<Answer>,
    },
    /// The repository is open only to those whom its owners let in.
    #[error("access to {repo} is restricted by its owners ({answer})")]
    AccessDenied {
        /// The repository.
        repo: Repo,
        /// Who asked.
        caller: Caller,
        /// The repository's page, where access is asked for.
        page: String,
        /// What came.
        answer: Box<Answer>,
    },
    /// The listing hides the digests from this caller, so nothing fetched could be proved.
    #[error("the listing of {repo} hides the digest of {path}: access is restricted by its owners")]
    Masked {
        /// The repository.
        repo: Repo,
        /// The first file concerned.
        path: RepoPath,
        /// Who asked.
        caller: Caller,
        /// The repository's page, where access is asked for.
        page: String,
    },
    /// Taken down by the Hub.
    #[error("{repo} is disabled ({answer})")]
    Disabled {
        /// The repository.
        repo: Repo,
        /// What came.
        answer: Box<Answer>,
    },
    /// The token is unknown to the Hub, or has expired.
    #[error("the token is not valid ({answer})")]
    BadToken {
        /// What came.
        answer: Box<Answer>,
    },
    /// The token is known and may not do this.
    #[error("{asked} is forbidden ({answer})")]
    Forbidden {
        /// What was asked for.
        asked: String,
        /// Who asked.
        caller: Caller,
        /// What came.
        answer: Box<Answer>,
    },
    /// Too many requests.
    #[error("too many requests ({answer})")]
    RateLimited {
        /// How long the server wants us to wait.
        after: Option<Duration>,
        /// Who asked.
        caller: Caller,
        /// What came.
        answer: Box<Answer>,
    },
    /// The server failed.
    #[error("the server failed over {asked} ({answer})")]
    Server {
        /// What was asked for.
        asked: String,
        /// How long the server wants us to wait.
        after: Option<Duration>,
        /// What came.
        answer: Box<Answer>,
    },
    /// Any other refusal.
    #[error("{asked} was refused ({answer})")]
    Rejected {
        /// What was asked for.
        asked: String,
        /// What came.
        answer: Box<Answer>,
    },
    /// It answers, but not as a Hub does.
    #[error("{origin} does not answer as a Hub: {why}")]
    NotAHub {
        /// Who answered.
        origin: Origin,
        /// What came instead.
        why: &'static str,
    },
    /// An answer of the right kind that makes no sense.
    #[error("the answer of {origin} about {asked} is unreadable")]
    Unreadable {
        /// Who answered.
        origin: Origin,
        /// What was asked for.
        asked: String,
        /// What the parser says.
        #[source]
        source: serde_json::Error,
    },
    /// An answer larger than any honest one.
    #[error("the answer of {origin} about {asked} is larger than {limit} bytes")]
    TooLarge {
        /// Who answered.
        origin: Origin,
        /// What was asked for.
        asked: String,
        /// The limit.
        limit: usize,
    },
    /// The pages of a listing make no whole.
    #[error("the listing of {repo} from {origin} cannot be used: {fault}")]
    Pages {
        /// The repository.
        repo: Repo,
        /// Who listed it.
        origin: Origin,
        /// What is wrong.
        fault: PageFault,
    },
    /// An entry of a listing that cannot be believed.
    #[error("the listing of {repo} is wrong about {path}: {fault}")]
    Entry {
        /// The repository.
        repo: Repo,
        /// The entry.
        path: String,
        /// What is wrong.
        fault: EntryFault,
    },
    /// A file name that is not safe to write.
    #[error("{repo} cannot be fetched")]
    UnsafePath {
        /// The repository.
        repo: Repo,
        /// The name and the rule it breaks.
        #[source]
        source: RepoPathError,
    },
    /// Listing and resolver disagree about one file of one commit.
    #[error("{origin} contradicts its own listing about {path}: {what} expected {expected}, found {found}")]
    Contradiction {
        /// Who answered.
        origin: Origin,
        /// The file.
        path: RepoPath,
        /// Size, digest or commit.
        what: &'static str,
        /// From the listing.
        expected: String,
        /// From the resolver.
        found: String,
    },
    /// A redirect that is not followed.
    #[error("{origin} redirects {asked} {why}")]
    Redirect {
        /// Who answered.
        origin: Origin,
        /// What was asked for.
        asked: String,
        /// Where to, or what is wrong with it.
        why: String,
    },
    /// No connection.
    #[error("cannot connect to {origin}")]
    Connect {
        /// Who was called.
        origin: Origin,
        /// Why, without the URL.
        #[source]
        source: reqwest::Error,
    },
    /// The server's certificate, or its TLS, is not acceptable.
    #[error("no trusted connection to {origin}: {why}")]
    Tls {
        /// Who was called.
        origin: Origin,
        /// What TLS says.
        why: String,
    },
    /// The proxy on the way lets only those through whom it knows.
    #[error("the proxy on the way to {origin} wants credentials (407)")]
    Proxy {
        /// Who was called.
        origin: Origin,
    },
    /// The connection broke.
    #[error("the connection to {origin} broke")]
    Broken {
        /// Who was called.
        origin: Origin,
        /// How, without the URL.
        #[source]
        source: reqwest::Error,
    },
    /// Silence.
    #[error("{phase} from {origin} within {} s", .waited.as_secs())]
    Timeout {
        /// Who was called.
        origin: Origin,
        /// What was waited for.
        phase: Phase,
        /// How long.
        waited: Duration,
    },
    /// No HTTP client can be made on this machine.
    #[error("cannot set up the HTTP client")]
    Client {
        /// Why.
        #[source]
        source: reqwest::Error,
    },
}

impl HubError {
    /// What the failure means for the next try.
    #[must_use]
    pub const fn class(&self) -> FailureClass {
        match self {
            Self::RateLimited { after, .. } | Self::Server { after, .. } => FailureClass::Transient { after: *after },
            Self::Connect { .. } | Self::Broken { .. } | Self::Timeout { .. } => {
                FailureClass::Transient { after: None }
            }
            Self::Client { .. } => FailureClass::Local,
            Self::RepoNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::EntryNotFound { .. }
            | Self::NotFound { .. }
            | Self::AccessDenied { .. }
            | Self::Masked { .. }
            | Self::Disabled { .. }
            | Self::BadToken { .. }
            | Self::Forbidden { .. }
            | Self::Rejected { .. }
            | Self::NotAHub { .. }
            | Self::Unreadable { .. }
            | Self::TooLarge { .. }
            | Self::Pages { .. }
            | Self::Entry { .. }
            | Self::UnsafePath { .. }
            | Self::Contradiction { .. }
            | Self::Redirect { .. }
            | Self::Tls { .. }
            | Self::Proxy { .. } => FailureClass::Permanent,
        }
    }

    /// How a verb that fails with this ends.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::UnsafePath { .. } => Code::Refused,
            Self::Connect { .. }
            | Self::Broken { .. }
            | Self::Timeout { .. }
            | Self::Tls { .. }
            | Self::Proxy { .. } => Code::CouldNotCheck,
            Self::Client { .. } => Code::Internal,
            Self::RepoNotFound { .. }
            | Self::RevisionNotFound { .. }
            | Self::EntryNotFound { .. }
            | Self::NotFound { .. }
            | Self::AccessDenied { .. }
            | Self::Masked { .. }
            | Self::Disabled { .. }
            | Self::BadToken { .. }
            | Self::Forbidden { .. }
            | Self::RateLimited { .. }
            | Self::Server { .. }
            | Self::Rejected { .. }
            | Self::NotAHub { .. }
            | Self::Unreadable { .. }
            | Self::TooLarge { .. }
            | Self::Pages { .. }
            | Self::Entry { .. }
            | Self::Contradiction { .. }
            | Self::Redirect { .. } => Code::UpstreamRefused,
        }
    }
}
