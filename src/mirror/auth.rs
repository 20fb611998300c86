//! Who may read from the mirror. Where one may listen without a token is its caller's to decide.

use axum::http::HeaderMap;

use crate::serving::{Admission, BearerToken};

/// Who is served.
#[derive(Debug, Clone)]
pub enum MirrorAuth {
    /// Everybody who can reach the listener.
    Everybody,
    /// Who shows the token.
    Bearer(BearerToken),
}

impl MirrorAuth {
    pub(super) fn admits(&self, headers: &HeaderMap) -> Admission {
        match self {
            Self::Everybody => Admission::Granted,
            Self::Bearer(token) => token.admits(headers),
        }
    }
}
