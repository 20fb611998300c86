//! One question that every Hub has an answer to: who are we?
//!
//! Owns the look at an endpoint that fetches nothing: whether it answers, how soon, what its clock
//! says, and whether it knows the token. It is asked once; a failure is the answer.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::{DATE, HeaderMap};
use reqwest::{Method, StatusCode};
use serde_json::Value;

use super::client::{HubClient, is_page};
use super::error::HubError;
use crate::clock;
use crate::core::budget::Traffic;
use crate::core::endpoint::Origin;

/// Where a Hub says whose token came.
const WHOAMI: &str = "api/whoami-v2";
/// Most of the answer that is read, in bytes.
const BODY_MAX: usize = 256 << 10;
/// Most characters of a name.
const NAME_MAX: usize = 80;

/// How an endpoint answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting {
    /// The HTTP status.
    pub status: u16,
    /// From the request to the head of the answer, connection included.
    pub took: Duration,
    /// The server's clock.
    pub date: Option<Timestamp>,
    /// When the head of the answer came, by our clock.
    pub at: Timestamp,
    /// Whose the token is, where the server knows.
    pub account: Option<String>,
    /// The server's own words about a failure, free of secrets.
    pub words: Option<String>,
    /// Whether a page for people came: a login page of the network, perhaps.
    pub is_page: bool,
    /// The other server that it sent us to.
    pub elsewhere: Option<Origin>,
}

impl HubClient {
    /// Asks the endpoint who we are. Without a token that is a question too, and 401 a good answer.
    ///
    /// # Errors
    /// The situations of a connection.
    pub async fn greet(&self) -> Result<Greeting, HubError> {
        let url = self.endpoint().join(WHOAMI);
        let origin = Origin::of(&url);
        let start = clock::since_boot();
        let response = self.send(self.request(Method::GET, &url), &origin, Traffic::Api).await?;
        let (took, at) = (clock::since_boot().saturating_sub(start), clock::now());
        let (status, headers) = (response.status(), response.headers().clone());
        let target = headers.get(reqwest::header::LOCATION).filter(|_| status.is_redirection());
        let target = target.and_then(|target| url.join(target.to_str().ok()?).ok());
        let body = self.read(response, BODY_MAX, &"who we are").await.unwrap_or_default();
        let name = (status == StatusCode::OK).then(|| account(&body)).flatten();
        let words = (!status.is_success()).then(|| self.words(&headers, &body)).flatten();
        Ok(Greeting {
            status: status.as_u16(),
            took,
            date: date(&headers),
            at,
            account: name.map(|name| self.scrubbed(&name)),
            words,
            is_page: status == StatusCode::OK && is_page(&headers),
            elsewhere: target.map(|target| Origin::of(&target)).filter(|target| *target != origin),
        })
    }
}

fn date(headers: &HeaderMap) -> Option<Timestamp> {
    let text = headers.get(DATE)?.to_str().ok()?;
    Timestamp::try_from(httpdate::parse_http_date(text).ok()?).ok()
}

fn account(body: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let name = answer.get("name")?.as_str()?;
    Some(name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect())
}

#[cfg(test)]
mod tests {
    use reqwest::header::HeaderValue;

    use super::*;

    #[test]
    fn an_answer_tells_its_time_and_whose_the_token_is() {
        let mut headers = HeaderMap::new();
        assert_eq!(date(&headers), None);
        headers.insert(DATE, HeaderValue::from_static("Thu, 01 Jan 2026 00:00:07 GMT"));
        assert_eq!(date(&headers), "2026-01-01T00:00:07Z".parse().ok());
        headers.insert(DATE, HeaderValue::from_static("soon"));
        assert_eq!(date(&headers), None);
        assert_eq!(account(br#"{"type":"user","name":"some\u001bbody"}"#).as_deref(), Some("somebody"));
        for none in ["", "{}", r#"{"name":7}"#, "<html>"] {
            assert_eq!(account(none.as_bytes()), None, "{none}");
        }
    }
}
