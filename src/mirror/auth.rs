//! Who may read from the mirror.
//!
//! Invariant (P7): tokens are kept and compared as SHA-256 digests, in constant time; neither
//! ours nor a client's is ever printed, logged or sent on. Where a mirror may listen without a
//! token is its caller's to decide.

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// The text is no bearer token. It is not repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the token of the mirror is empty or has blanks or control characters")]
pub struct MirrorTokenError;

/// Who is served.
#[derive(Debug, Clone)]
pub enum MirrorAuth {
    /// Everybody who can reach the listener.
    Everybody,
    /// Who shows the token.
    Bearer(MirrorToken),
}

impl MirrorAuth {
    pub(super) fn admits(&self, headers: &HeaderMap) -> Admission {
        let Self::Bearer(token) = self else {
            return Admission::Granted;
        };
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Admission::NoToken;
        };
        let shown = value.as_bytes();
        let scheme_ends = shown.iter().position(|&b| b == b' ').unwrap_or(shown.len());
        let (scheme, shown) = shown.split_at(scheme_ends);
        let is_bearer = scheme.eq_ignore_ascii_case(b"bearer");
        if token.is(shown.trim_ascii()) && is_bearer { Admission::Granted } else { Admission::WrongToken }
    }
}

/// The answer to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    Granted,
    NoToken,
    WrongToken,
}

/// The token of a mirror, kept as its digest only.
#[derive(Clone)]
pub struct MirrorToken([u8; 32]);

impl MirrorToken {
    /// Takes the content of a token file; blanks around it do not count.
    ///
    /// # Errors
    /// [`MirrorTokenError`].
    pub fn parse(text: &str) -> Result<Self, MirrorTokenError> {
        let text = text.trim();
        if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(MirrorTokenError);
        }
        Ok(Self(Sha256::digest(text).into()))
    }

    /// Compares digests, all bytes always: the time says nothing about the token.
    fn is(&self, shown: &[u8]) -> bool {
        let shown: [u8; 32] = Sha256::digest(shown).into();
        let difference = self.0.iter().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        std::hint::black_box(difference) == 0
    }
}

impl std::fmt::Debug for MirrorToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MirrorToken(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> MirrorToken {
        MirrorToken::parse(" hf_secret\n").unwrap()
    }

    #[test]
    fn only_the_token_itself_is_admitted() {
        let auth = MirrorAuth::Bearer(token());
        let shown = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, value.parse().unwrap());
            auth.admits(&headers)
        };
        assert_eq!(shown("Bearer hf_secret"), Admission::Granted);
        assert_eq!(shown("bearer  hf_secret "), Admission::Granted);
        for wrong in ["Bearer hf_secre", "Bearer hf_secret2", "Bearer ", "Basic hf_secret", "hf_secret", ""] {
            assert_eq!(shown(wrong), Admission::WrongToken, "{wrong:?}");
        }
        assert_eq!(auth.admits(&HeaderMap::new()), Admission::NoToken);
    }

    #[test]
    fn a_token_is_never_printed() {
        assert!(!format!("{:?}", MirrorAuth::Bearer(token())).contains("secret"));
        for bad in ["", " \n", "a b", "a\u{7f}"] {
            assert!(MirrorToken::parse(bad).is_err(), "{bad:?}");
        }
    }
}
