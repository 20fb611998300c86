//! The token that TCP callers must send.
//!
//! Invariant (P7): it is kept and compared as its digest, in constant time, and never printed.

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

    /// Whether the request shows it.
    pub(super) fn is_shown_in(&self, headers: &HeaderMap) -> bool {
        let shown = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let (scheme, token) = shown.split_at(shown.iter().position(|byte| *byte == b' ').unwrap_or(shown.len()));
        self.is(token.trim_ascii()) && scheme.eq_ignore_ascii_case(b"bearer")
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
            token.is_shown_in(&headers)
        };
        assert!(shown("Bearer s3cret") && shown("bearer  s3cret "));
        for wrong in ["Bearer s3cre", "Bearer s3cret2", "Bearer ", "Basic s3cret", "s3cret", ""] {
            assert!(!shown(wrong), "{wrong:?}");
        }
        assert!(!token.is_shown_in(&HeaderMap::new()));
        assert!(!format!("{token:?}").contains("s3cret"));
        assert!(BearerToken::parse(" \n").is_err() && BearerToken::parse("a b").is_err());
    }
}
