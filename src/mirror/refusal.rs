//! Answers that are no success, as the Hub words them.
//!
//! Clients decide by status and `X-Error-Code`, people read `X-Error-Message`; both are set on
//! every refusal, for an answer to HEAD has no body.

use axum::Json;
use axum::http::header::{ALLOW, CONTENT_RANGE, HeaderName, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::{CONTROLS, utf8_percent_encode};

use crate::core::repo::{Repo, Revision};
use crate::core::repo_path::RepoPath;

const ERROR_CODE: HeaderName = HeaderName::from_static("x-error-code");
const ERROR_MESSAGE: HeaderName = HeaderName::from_static("x-error-message");

/// Why a request gets nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Refusal {
    /// A token is needed and none came. The Hub does not say then whether there is anything.
    NoToken,
    /// Another token.
    WrongToken,
    /// No such page.
    NoRoute,
    /// The method has no meaning there.
    Method { allowed: &'static str },
    /// The request's body cannot be read.
    BadRequest,
    /// Nothing verified of that name.
    NoRepo { repo: Repo },
    /// The repository is here, at other commits.
    NoRevision { revision: String, held: Vec<Revision> },
    /// No such file or folder.
    NoEntry { path: String },
    /// The file is not as it was when it was verified.
    Drifted { path: RepoPath },
    /// The file cannot be opened or read.
    Unreadable { path: RepoPath },
    /// The volume cannot be read.
    VolumeUnreadable,
    /// The range begins at or after the end.
    Unsatisfiable { size: u64 },
}

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::NoToken | Self::WrongToken => StatusCode::UNAUTHORIZED,
            Self::NoRoute | Self::NoRepo { .. } | Self::NoRevision { .. } | Self::NoEntry { .. } => {
                StatusCode::NOT_FOUND
            }
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::BadRequest => StatusCode::BAD_REQUEST,
            Self::Drifted { .. } | Self::Unreadable { .. } | Self::VolumeUnreadable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unsatisfiable { .. } => StatusCode::RANGE_NOT_SATISFIABLE,
        }
    }

    /// The Hub's name for the case, where it has one.
    fn code(&self) -> Option<&'static str> {
        match self {
            Self::NoToken | Self::NoRepo { .. } => Some("RepoNotFound"),
            Self::NoRevision { .. } => Some("RevisionNotFound"),
            Self::NoEntry { .. } => Some("EntryNotFound"),
            _ => None,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NoToken => "Invalid username or password.".to_owned(),
            // Word for word the one message by which clients tell a bad token.
            Self::WrongToken => "Invalid credentials in Authorization header".to_owned(),
            Self::NoRoute => "Not found".to_owned(),
            Self::Method { allowed } => format!("This mirror is read-only: {allowed} is allowed here"),
            Self::BadRequest => "The body is no list of paths".to_owned(),
            Self::NoRepo { .. } => "Repository not found: this mirror has no verified copy of it".to_owned(),
            Self::NoRevision { revision, held } => {
                let held: Vec<_> = held.iter().map(Revision::as_str).collect();
                format!("Invalid rev id: {revision}; this mirror has {}", held.join(", "))
            }
            Self::NoEntry { path } => format!("Entry not found: {path}"),
            Self::Drifted { path } => {
                format!("{path} has changed on this mirror since it was verified and is not served")
            }
            Self::Unreadable { path } => format!("{path} cannot be read on this mirror"),
            Self::VolumeUnreadable => "The volume of this mirror cannot be read".to_owned(),
            Self::Unsatisfiable { size } => format!("The range is outside the file of {size} bytes"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let message = self.message();
        let mut response = (self.status(), Json(serde_json::json!({ "error": message }))).into_response();
        let headers = response.headers_mut();
        if let Some(code) = self.code() {
            headers.insert(ERROR_CODE, HeaderValue::from_static(code));
        }
        // A header is ASCII; file names need not be.
        if let Ok(value) = HeaderValue::from_str(&utf8_percent_encode(&message, CONTROLS).to_string()) {
            headers.insert(ERROR_MESSAGE, value);
        }
        match self {
            Self::NoToken | Self::WrongToken => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::Method { allowed } => {
                headers.insert(ALLOW, HeaderValue::from_static(allowed));
            }
            Self::Unsatisfiable { size } => {
                if let Ok(value) = HeaderValue::from_str(&format!("bytes */{size}")) {
                    headers.insert(CONTENT_RANGE, value);
                }
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_it_in_headers_that_are_ascii() {
        let path = RepoPath::parse("größe/模型 1.json").unwrap();
        let response = Refusal::Drifted { path }.into_response();
        assert_eq!(response.status(), 503);
        let message = response.headers()[ERROR_MESSAGE].to_str().unwrap();
        assert!(message.contains("1.json has changed"), "{message}");
        assert_eq!(response.headers().get(ERROR_CODE), None);
        let response = Refusal::NoEntry { path: "x".into() }.into_response();
        assert_eq!(response.headers()[ERROR_CODE], "EntryNotFound");
        let response = Refusal::Unsatisfiable { size: 7 }.into_response();
        assert_eq!(response.headers()[CONTENT_RANGE], "bytes */7");
    }
}
