//! What a Hub wants its users to know: `X-HF-Warning: topic; message`, in any answer.
//!
//! Each topic is told once, as the official client does, and only of the endpoint itself. Foreign
//! text: escaped, cut, without the queries of URLs and without the token.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use reqwest::header::HeaderMap;

use super::answer::shown;
use super::auth::Credential;
use crate::core::endpoint::Origin;

/// Most characters of a topic, and of a message.
const TOPIC_MAX: usize = 60;
const MESSAGE_MAX: usize = 600;
/// Topics told in the life of a process; what comes after them is not.
const TOPICS_MAX: usize = 32;

/// What was told already.
#[derive(Debug, Default)]
pub(super) struct Notices(Mutex<BTreeSet<String>>);

impl Notices {
    /// Tells what is new in an answer of `origin`.
    pub(super) fn tell(&self, origin: &Origin, headers: &HeaderMap, credential: Option<&Credential>) {
        for (topic, message) in read(headers, credential) {
            if self.is_new(format!("{origin} {topic}")) {
                tracing::warn!(host = %origin, topic, "the Hub says: {message}");
            }
        }
    }

    fn is_new(&self, topic: String) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.len() < TOPICS_MAX && told.insert(topic)
    }
}

fn read(headers: &HeaderMap, secret: Option<&Credential>) -> impl Iterator<Item = (String, String)> {
    headers.get_all("x-hf-warning").iter().filter_map(move |value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        let (topic, message) = text.split_once(';').unwrap_or(("", &text));
        let message = shown(message, MESSAGE_MAX, secret);
        (!message.is_empty()).then(|| (shown(topic, TOPIC_MAX, secret), message))
    })
}

#[cfg(test)]
mod tests {
    use super::super::answer::tests::headers;
    use super::*;

    #[test]
    fn a_notice_has_a_topic_and_a_message_fit_to_be_shown() {
        let read = |value: &str| read(&headers(&[("X-HF-Warning", value)]), None).next();
        let told = |topic: &str, message: &str| Some((topic.to_owned(), message.to_owned()));
        assert_eq!(read("deprecated; use  v2 instead"), told("deprecated", "use v2 instead"));
        assert_eq!(read("no topic at all"), told("", "no topic at all"));
        assert_eq!(read("t; see https://h.example/x?token=secret"), told("t", "see https://h.example/x?…"));
        assert_eq!(read("t; \u{9b}31m"), told("t", "\\u{9b}31m"));
        assert_eq!(read("t;  "), None);
        let long = read(&format!("{};{}", "t".repeat(1000), "m".repeat(5000))).unwrap();
        assert_eq!((long.0.chars().count(), long.1.chars().count()), (TOPIC_MAX + 1, MESSAGE_MAX + 1));
    }

    #[test]
    fn a_topic_is_told_once_and_topics_are_bounded() {
        let notices = Notices::default();
        assert!(notices.is_new("a".into()) && !notices.is_new("a".into()));
        assert!((0..1000).filter(|n| notices.is_new(n.to_string())).count() < TOPICS_MAX);
    }
}
