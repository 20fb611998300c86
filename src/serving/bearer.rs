//! The token that callers must show.
//!
//! Invariant (P7): it is kept and compared as its digest, in constant time; neither it nor what a
//! caller shows is ever printed, logged or sent on.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// The text is no bearer token. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the token is empty or has blanks or control characters")]
pub struct BearerTokenError;

/// A bearer token, kept as its digest.
#[derive(Clone)]
pub struct BearerToken([u8; 32]);

/// The answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It shows the token.
    Granted,
    /// It shows nothing.
    NoToken,
    /// It shows something else.
    WrongToken,
}

impl BearerToken {
    /// Takes the content of a token file; blanks around it do not count.
    ///
    /// # Errors
    /// [`BearerTokenError`].
    pub fn parse(text: &str) -> Result<Self, BearerTokenError> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BearerTokenError);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Whether the request shows it (RFC 6750, section 2.1).
    #[must_use]
    pub fn admits(&self, headers: &HeaderMap) -> Admission {
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Admission::NoToken;
        };
        let shown = value.as_bytes();
        let scheme_ends = shown.iter().position(|byte| *byte == b' ').unwrap_or(shown.len());
        let (scheme, token) = shown.split_at(scheme_ends);
        // The token first: a wrong scheme takes as long.
        if self.is(token.trim_ascii()) && scheme.eq_ignore_ascii_case(b"bearer") {
            Admission::Granted
        } else {
            Admission::WrongToken
        }
    }

    /// Compares all bytes of the digests always: the time says nothing about the token.
    fn is(&self, shown: &[u8]) -> bool {
        let shown: [u8; 32] = Sha256::digest(shown).into();
        let difference = self.0.iter().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BearerToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_opens() {
        let token = BearerToken::parse(" s3cret\n").unwrap();
        let shown = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            token.admits(&headers)
        };
        for right in ["Bearer s3cret", "bearer  s3cret "] {
            assert_eq!(shown(right), Admission::Granted, "{right:?}");
        }
        for wrong in ["Bearer s3cre", "Bearer s3cret2", "Bearer ", "Basic s3cret", "s3cret", ""] {
            assert_eq!(shown(wrong), Admission::WrongToken, "{wrong:?}");
        }
        assert_eq!(token.admits(&HeaderMap::new()), Admission::NoToken);
    }

    #[test]
    fn a_token_is_never_printed_and_must_be_one_word() {
        assert!(!format!("{:?}", BearerToken::parse("s3cret")).contains("s3cret"));
        for bad in ["", " \n", "a b", "a\u{7f}"] {
            assert!(BearerToken::parse(bad).is_err(), "{bad:?}");
        }
    }
}
