//! From an HTTP answer that is no success to the situation it stands for.
//!
//! The order of the tests is the Hub's own convention (`huggingface_hub`'s
//! `hf_raise_for_status`): a later rule would also match what an earlier one means.

use std::time::Duration;

use reqwest::header::HeaderMap;

use crate::core::endpoint::Endpoint;
use crate::core::repo::{CommitId, Repo, Revision};
use crate::core::repo_path::RepoPath;

use super::answer::Answer;
use super::error::{Caller, HubError};

/// What the Hub says of a repository it has switched off.
const DISABLED: &str = "Access to this resource is disabled.";
/// What the Hub says of a token it does not know; any other 401 means "no such repository, for you".
const BAD_TOKEN: &str = "Invalid credentials in Authorization header";

/// What was asked of the Hub, for messages and for reading its refusals.
#[derive(Debug, Clone, Copy)]
pub enum Asked<'a> {
    /// Which commit a revision is.
    Revision(&'a Repo, &'a Revision),
    /// What a commit holds.
    Listing(&'a Repo, CommitId),
    /// Where a file is, or its bytes.
    File(&'a Repo, CommitId, &'a RepoPath),
}

impl Asked<'_> {
    /// The repository it is about.
    #[must_use]
    pub const fn repo(&self) -> &Repo {
        match self {
            Self::Revision(repo, _) | Self::Listing(repo, _) | Self::File(repo, ..) => repo,
        }
    }

    fn revision(&self) -> String {
        match self {
            Self::Revision(_, revision) => revision.to_string(),
            Self::Listing(_, commit) | Self::File(_, commit, _) => commit.to_string(),
        }
    }
}

impl std::fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Revision(repo, revision) => write!(f, "revision {revision} of {repo}"),
            Self::Listing(repo, commit) => write!(f, "the file list of {repo} at {}", commit.short()),
            Self::File(repo, _, path) => write!(f, "{path} of {repo}"),
        }
    }
}

/// The facts of a refusal.
pub(super) struct Refusal<'a> {
    pub(super) asked: Asked<'a>,
    pub(super) endpoint: &'a Endpoint,
    pub(super) caller: Caller,
    pub(super) headers: &'a HeaderMap,
    /// The server's wish, when it has one.
    pub(super) after: Option<Duration>,
    pub(super) answer: Answer,
}

impl Refusal<'_> {
    /// The situation.
    pub(super) fn into_error(self) -> HubError {
        let Self { asked, endpoint, caller, headers, after, answer } = self;
        let answer = Box::new(answer);
        let repo = asked.repo().clone();
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("");
        let (code, words) = (text("x-error-code"), text("x-error-message"));
        match (code, answer.status) {
            ("RevisionNotFound", _) => HubError::RevisionNotFound { repo, revision: asked.revision(), answer },
            ("EntryNotFound", _) => not_there(asked, answer),
            ("GatedRepo", _) => {
                let page = endpoint.join(&repo.to_string()).to_string();
                HubError::AccessDenied { repo, caller, page, answer }
            }
            _ if words == DISABLED => HubError::Disabled { repo, answer },
            ("RepoNotFound", _) => HubError::RepoNotFound { repo, caller, answer },
            (_, 401) if words == BAD_TOKEN => HubError::BadToken { answer },
            (_, 401) => HubError::RepoNotFound { repo, caller, answer },
            (_, 403) => HubError::Forbidden { asked: asked.to_string(), caller, answer },
            (_, 404 | 410) => not_there(asked, answer),
            (_, 429) => HubError::RateLimited { after, caller, answer },
            (_, 408 | 500..) => HubError::Server { asked: asked.to_string(), after, answer },
            _ => HubError::Rejected { asked: asked.to_string(), answer },
        }
    }
}

fn not_there(asked: Asked<'_>, answer: Box<Answer>) -> HubError {
    match asked {
        Asked::File(repo, _, path) => HubError::EntryNotFound { repo: repo.clone(), path: path.to_string(), answer },
        Asked::Revision(..) | Asked::Listing(..) => HubError::NotFound { asked: asked.to_string(), answer },
    }
}

#[cfg(test)]
mod tests {
    use crate::core::code::Code;
    use crate::core::repo::{RepoId, RepoKind};
    use crate::core::retry::FailureClass;
    use crate::hub::answer::tests::headers;

    use super::*;

    fn repo() -> Repo {
        Repo { kind: RepoKind::Model, id: RepoId::parse("org/model").unwrap() }
    }

    fn refused(asked: Asked<'_>, caller: Caller, status: u16, pairs: &[(&str, &str)]) -> HubError {
        let endpoint = Endpoint::parse("https://hub.example").unwrap();
        let headers = headers(pairs);
        let answer = Answer::read(endpoint.origin(), status, &headers, b"", None);
        Refusal { asked, endpoint: &endpoint, caller, headers: &headers, after: None, answer }.into_error()
    }

    fn name(error: &HubError) -> String {
        let debug = format!("{error:?}");
        debug[..debug.find([' ', '{']).unwrap()].to_owned()
    }

    #[test]
    fn refusals_are_told_apart_in_the_hubs_order() {
        let revision = Revision::default();
        let repo = repo();
        let commit = CommitId::from_bytes([1; 20]);
        let path = RepoPath::parse("a b.json").unwrap();
        let (asks, file) = (Asked::Revision(&repo, &revision), Asked::File(&repo, commit, &path));
        let code = |text| ("X-Error-Code", text);
        let words = |text| ("X-Error-Message", text);
        for (asked, status, pairs, expected) in [
            (asks, 404, vec![code("RevisionNotFound")], "RevisionNotFound"),
            (asks, 401, vec![code("RevisionNotFound"), words(DISABLED)], "RevisionNotFound"),
            (file, 404, vec![code("EntryNotFound")], "EntryNotFound"),
            (asks, 401, vec![code("GatedRepo")], "AccessDenied"),
            (file, 403, vec![code("GatedRepo"), words(DISABLED)], "AccessDenied"),
            (asks, 403, vec![words(DISABLED)], "Disabled"),
            (asks, 404, vec![code("RepoNotFound")], "RepoNotFound"),
            (asks, 401, vec![], "RepoNotFound"),
            (asks, 401, vec![words("Invalid username or password.")], "RepoNotFound"),
            (asks, 401, vec![code("RepoNotFound"), words(BAD_TOKEN)], "RepoNotFound"),
            (file, 401, vec![words(BAD_TOKEN)], "BadToken"),
            (asks, 403, vec![words(BAD_TOKEN)], "Forbidden"),
            (asks, 404, vec![], "NotFound"),
            (file, 404, vec![], "EntryNotFound"),
            (asks, 429, vec![], "RateLimited"),
            (asks, 408, vec![], "Server"),
            (asks, 500, vec![], "Server"),
            (asks, 503, vec![], "Server"),
            (asks, 400, vec![], "Rejected"),
            (asks, 416, vec![], "Rejected"),
        ] {
            let error = refused(asked, Caller::Anonymous, status, &pairs);
            assert_eq!(name(&error), expected, "{status} {pairs:?}");
            assert!(error.to_string().contains("https://hub.example"), "{error}");
            assert_eq!(error.code(), Code::UpstreamRefused);
            let transient = matches!(error.class(), FailureClass::Transient { .. });
            assert_eq!(transient, matches!(expected, "RateLimited" | "Server"), "{expected}");
        }
    }

    #[test]
    fn the_hint_knows_whether_a_token_was_sent() {
        let (repo, revision) = (repo(), Revision::default());
        let asked = Asked::Revision(&repo, &revision);
        let hint = |caller, status, code| refused(asked, caller, status, &[("X-Error-Code", code)]).hint().unwrap();
        assert!(hint(Caller::Anonymous, 401, "GatedRepo").contains("https://hub.example/org/model, then set HF_TOKEN"));
        assert!(
            hint(Caller::Token, 403, "GatedRepo").contains("https://hub.example/org/model with the token's account")
        );
        assert!(hint(Caller::Anonymous, 401, "").contains("HF_TOKEN"));
        assert!(!hint(Caller::Token, 404, "RepoNotFound").contains("HF_TOKEN"));
        assert!(hint(Caller::Withheld, 401, "").contains("plain http"));
    }
}
