//! From an HTTP answer that is no success to the situation it stands for.
//!
//! The order of the tests is the Hub's own convention (`huggingface_hub`'s
//! `hf_raise_for_status`): a later rule would also match what an earlier one means.

use std::time::Duration;

use reqwest::header::HeaderMap;
use serde_json::Value;

use crate::core::endpoint::{Endpoint, Origin};
use crate::core::repo::{CommitId, Repo, Revision};
use crate::core::repo_path::RepoPath;

use super::error::{Answer, Caller, HubError};

/// Most characters of a server's words that are shown.
const MESSAGE_MAX: usize = 300;
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
    pub asked: Asked<'a>,
    pub endpoint: &'a Endpoint,
    pub caller: Caller,
    pub headers: &'a HeaderMap,
    /// The server's wish, when it has one.
    pub after: Option<Duration>,
    pub answer: Answer,
}

impl Refusal<'_> {
    /// The situation.
    pub fn into_error(self) -> HubError {
        let Self { asked, endpoint, caller, headers, after, answer } = self;
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

fn not_there(asked: Asked<'_>, answer: Answer) -> HubError {
    match asked {
        Asked::File(repo, _, path) => HubError::EntryNotFound { repo: repo.clone(), path: path.to_string(), answer },
        Asked::Revision(..) | Asked::Listing(..) => HubError::NotFound { asked: asked.to_string(), answer },
    }
}

/// What may be shown of an answer: who, which status, the server's words, the request's id.
pub(super) fn answer(origin: Origin, status: u16, headers: &HeaderMap, body: &[u8]) -> Answer {
    let request_id = ["x-request-id", "x-amzn-trace-id", "x-amz-cf-id"].iter().find_map(|name| headers.get(*name));
    let request_id = request_id.map(|value| shown(&String::from_utf8_lossy(value.as_bytes()), 120));
    Answer { origin, status, message: server_message(headers, body), request_id }
}

/// The server's words about a failure: its `X-Error-Message`, then what its JSON, XML or plain
/// text body says; escaped, cut, and without the queries of URLs, which may be signed.
#[must_use]
pub fn server_message(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(value) = headers.get("x-error-message") {
        parts.push(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => json_words(&value, &mut parts),
        Err(_) => parts.extend(plain_words(&String::from_utf8_lossy(body))),
    }
    let mut seen: Vec<String> = Vec::new();
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        if !seen.iter().any(|known| known == part) {
            seen.push(part.to_owned());
        }
    }
    let joined = seen.join("; ");
    (!joined.is_empty()).then(|| shown(&joined, MESSAGE_MAX))
}

fn json_words(value: &Value, parts: &mut Vec<String>) {
    let mut push = |value: &Value| parts.extend(value.as_str().map(str::to_owned));
    match &value["error"] {
        Value::Array(list) => list.iter().for_each(&mut push),
        other => push(other),
    }
    push(&value["error_description"]);
    push(&value["message"]);
    if let Value::Array(list) = &value["errors"] {
        list.iter().for_each(|one| push(&one["message"]));
    }
}

/// The words of an XML error of a storage server, or of a plain text; nothing of a page.
fn plain_words(text: &str) -> Option<String> {
    let text = text.trim();
    let between = |tag: &str| {
        let (_, rest) = text.split_once(&format!("<{tag}>"))?;
        rest.split_once(&format!("</{tag}>")).map(|(inner, _)| inner.to_owned())
    };
    if let Some(code) = between("Code") {
        return Some(between("Message").map_or_else(|| code.clone(), |message| format!("{code}: {message}")));
    }
    (!text.starts_with('<')).then(|| text.to_owned())
}

/// A foreign text in one line of at most `max` characters.
fn shown(text: &str, max: usize) -> String {
    let words: Vec<_> = text.split_whitespace().map(without_query).collect();
    let joined = words.join(" ");
    let mut out: String = joined.chars().take(max).flat_map(escaped).collect();
    if joined.chars().count() > max {
        out.push('…');
    }
    out
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    let keep = matches!(c, '"' | '\'' | '\\');
    let (plain, escape) = if keep { (Some(c), None) } else { (None, Some(c.escape_debug())) };
    plain.into_iter().chain(escape.into_iter().flatten())
}

fn without_query(word: &str) -> String {
    match word.split_once('?') {
        Some((before, _)) if before.contains("://") => format!("{before}?…"),
        _ => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use crate::core::code::Code;
    use crate::core::repo::{RepoId, RepoKind};
    use crate::core::retry::FailureClass;

    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    fn repo() -> Repo {
        Repo { kind: RepoKind::Model, id: RepoId::parse("org/model").unwrap() }
    }

    fn refused(asked: Asked<'_>, caller: Caller, status: u16, pairs: &[(&str, &str)], body: &str) -> HubError {
        let endpoint = Endpoint::parse("https://hub.example").unwrap();
        let headers = headers(pairs);
        let answer = answer(endpoint.origin(), status, &headers, body.as_bytes());
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
            let error = refused(asked, Caller::Anonymous, status, &pairs, "");
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
        let hint = |caller, status, code| refused(asked, caller, status, &[("X-Error-Code", code)], "").hint().unwrap();
        assert!(hint(Caller::Anonymous, 401, "GatedRepo").contains("https://hub.example/org/model, then set HF_TOKEN"));
        assert!(
            hint(Caller::Token, 403, "GatedRepo").contains("https://hub.example/org/model with the token's account")
        );
        assert!(hint(Caller::Anonymous, 401, "").contains("HF_TOKEN"));
        assert!(!hint(Caller::Token, 404, "RepoNotFound").contains("HF_TOKEN"));
        assert!(hint(Caller::Withheld, 401, "").contains("plain http"));
    }

    #[test]
    fn the_servers_words_are_shown_once_cut_and_escaped() {
        let words = |pairs: &[(&str, &str)], body: &str| server_message(&headers(pairs), body.as_bytes());
        assert_eq!(words(&[("X-Error-Message", "no")], r#"{"error":"no"}"#).as_deref(), Some("no"));
        assert_eq!(words(&[], r#"{"error":["a","b"],"errors":[{"message":"c"}]}"#).as_deref(), Some("a; b; c"));
        assert_eq!(words(&[], r#"{"error":"a","error_description":"d"}"#).as_deref(), Some("a; d"));
        assert_eq!(words(&[], "<!doctype html><html>"), None);
        assert_eq!(words(&[], ""), None);
        let xml = "<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code><Message>Access denied</Message></Error>";
        assert_eq!(words(&[], xml).as_deref(), Some("AccessDenied: Access denied"));
        let odd = words(&[], "one\r\n\u{1b}[31mtwo \"x\"").unwrap();
        assert_eq!(odd, "one \\u{1b}[31mtwo \"x\"");
        assert_eq!(words(&[], &"x".repeat(1000)).unwrap().chars().count(), MESSAGE_MAX + 1);
        let signed = words(&[], "see https://cdn.example/f?Signature=secret now").unwrap();
        assert_eq!(signed, "see https://cdn.example/f?… now");
    }

    #[test]
    fn the_request_id_is_taken_in_the_hubs_order() {
        let id = |pairs: &[(&str, &str)]| {
            answer(Endpoint::parse("https://h.example").unwrap().origin(), 500, &headers(pairs), b"").request_id
        };
        let all = [("X-Amz-Cf-Id", "c"), ("X-Amzn-Trace-Id", "b"), ("X-Request-Id", "a")];
        assert_eq!(id(&all).as_deref(), Some("a"));
        assert_eq!(id(&all[..2]).as_deref(), Some("b"));
        assert_eq!(id(&all[..1]).as_deref(), Some("c"));
    }
}
