//! What may be shown of a server's answer: escaped, cut, without the queries of URLs.
//!
//! Everything a server says about a failure passes through here before a person or a log sees
//! it.

use std::fmt;

use reqwest::header::HeaderMap;
use serde_json::Value;

use super::auth::Credential;
use crate::core::endpoint::Origin;

/// Most characters of a server's words that are shown.
const MESSAGE_MAX: usize = 300;
/// Most characters of a request's id.
const REQUEST_ID_MAX: usize = 120;

/// What a server answered, as far as it may be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Who answered.
    pub origin: Origin,
    /// The HTTP status.
    pub status: u16,
    /// The server's own words, escaped, cut, and free of secrets.
    pub message: Option<String>,
    /// What the server's operators can find the request by.
    pub request_id: Option<String>,
}

impl Answer {
    /// What may be shown of an answer: who, which status, the server's words, the request's id.
    /// Should it hold the caller's own secret, that is taken out.
    pub(super) fn read(
        origin: Origin,
        status: u16,
        headers: &HeaderMap,
        body: &[u8],
        secret: Option<&Credential>,
    ) -> Self {
        let request_id = ["x-request-id", "x-amzn-trace-id", "x-amz-cf-id"].iter().find_map(|name| headers.get(*name));
        let request_id =
            request_id.map(|value| shown(&String::from_utf8_lossy(value.as_bytes()), REQUEST_ID_MAX, secret));
        Self { origin, status, message: server_message(headers, body, secret), request_id }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HTTP {} from {}", self.status, self.origin)?;
        if let Some(message) = &self.message {
            write!(f, ", saying \"{message}\"")?;
        }
        if let Some(id) = &self.request_id {
            write!(f, ", request id {id}")?;
        }
        Ok(())
    }
}

/// The server's words about a failure: its `X-Error-Message`, then what its JSON, XML or plain
/// text body says; escaped, cut, without `secret`, and without the queries of URLs, which may be
/// signed.
pub(super) fn server_message(headers: &HeaderMap, body: &[u8], secret: Option<&Credential>) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(value) = headers.get("x-error-message") {
        parts.push(String::from_utf8_lossy(value.as_bytes()).into_owned());
    }
    match serde_json::from_slice::<Value>(body) {
        Ok(value) => json_words(&value, &mut parts),
        Err(_) => parts.extend(plain_words(&String::from_utf8_lossy(body))),
    }
    let (mut seen, mut chars): (Vec<&str>, usize) = (Vec::new(), 0);
    for part in parts.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        // What is beyond the cut is not even compared.
        if chars > MESSAGE_MAX {
            break;
        }
        if !seen.contains(&part) {
            chars += part.chars().count();
            seen.push(part);
        }
    }
    let joined = seen.join("; ");
    (!joined.is_empty()).then(|| shown(&joined, MESSAGE_MAX, secret))
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
        list.iter().map(|one| &one["message"]).for_each(push);
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

/// A foreign text in one line of at most `max` characters. The secret goes before the cut, which
/// would leave a part of it.
pub(super) fn shown(text: &str, max: usize, secret: Option<&Credential>) -> String {
    let text = secret.map_or_else(|| text.to_owned(), |secret| secret.scrub(text));
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
pub(super) mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use crate::core::endpoint::Endpoint;
    use crate::hub::auth::{Token, TokenPlace};

    use super::*;

    pub(in crate::hub) fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn the_servers_words_are_shown_once_cut_and_escaped() {
        let words = |pairs: &[(&str, &str)], body: &str| server_message(&headers(pairs), body.as_bytes(), None);
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
    fn a_secret_that_is_sent_back_is_not_shown_not_even_a_part_of_it() {
        let token = Token::parse("hf_secret", TokenPlace::Submitted).unwrap().unwrap();
        let endpoint = Endpoint::parse("https://h.example").unwrap();
        let secret = Credential::bind(token, &endpoint).unwrap();
        let bodies = [
            "hf_secret".to_owned(),
            "x".repeat(MESSAGE_MAX - 5) + "hf_secret",
            r#"{"error":"\u0068f_secret"}"#.to_owned(),
        ];
        for body in bodies {
            let fields = headers(&[("X-Request-Id", "hf_secret"), ("X-Error-Message", "you sent hf_secret")]);
            let answer = Answer::read(endpoint.origin(), 500, &fields, body.as_bytes(), Some(&secret)).to_string();
            assert!(!answer.contains("hf_s") && answer.contains("you sent …"), "{answer}");
        }
    }

    #[test]
    fn a_body_of_many_messages_is_read_no_further_than_it_is_shown() {
        let many: Vec<_> = (0..200_000).map(|n| format!("{{\"message\":\"{n}\"}}")).collect();
        let body = format!("{{\"errors\":[{}]}}", many.join(","));
        let words = server_message(&HeaderMap::new(), body.as_bytes(), None).unwrap();
        assert!(words.starts_with("0; 1; 2") && words.ends_with('…'), "{words}");
    }

    #[test]
    fn the_request_id_is_taken_in_the_hubs_order() {
        let id = |pairs: &[(&str, &str)]| {
            Answer::read(Endpoint::parse("https://h.example").unwrap().origin(), 500, &headers(pairs), b"", None)
                .request_id
        };
        let all = [("X-Amz-Cf-Id", "c"), ("X-Amzn-Trace-Id", "b"), ("X-Request-Id", "a")];
        assert_eq!(id(&all).as_deref(), Some("a"));
        assert_eq!(id(&all[..2]).as_deref(), Some("b"));
        assert_eq!(id(&all[..1]).as_deref(), Some("c"));
    }
}
