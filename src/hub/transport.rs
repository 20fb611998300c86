//! What the HTTP library's errors mean: who was called, what was waited for, whether it may
//! work later.
//!
//! Takes the URL out of every error (it may be signed), and finds a certificate problem
//! wherever it is wrapped, since no retry cures one.

use std::error::Error;
use std::io;

use crate::core::endpoint::Origin;

use super::client::Timeouts;
use super::error::{HubError, Phase};

/// What `hyper-util` says when a proxy answers 407 to a request for a tunnel.
const TUNNEL_REFUSED: &str = "proxy authorization required";

/// The situation behind an error of `reqwest`, met while waiting for `phase`.
pub(super) fn failed(source: reqwest::Error, origin: &Origin, phase: Phase, timeouts: &Timeouts) -> HubError {
    let (origin, source) = (origin.clone(), source.without_url());
    if let Some(why) = tls_problem(&source) {
        return HubError::Tls { origin, why };
    }
    if source.is_connect() && is_proxy_refusal(&source) {
        return HubError::Proxy { origin };
    }
    let phase = if source.is_connect() { Phase::Connect } else { phase };
    if source.is_timeout() {
        return timed_out(&origin, phase, timeouts);
    }
    match phase {
        Phase::Connect => HubError::Connect { origin, source },
        Phase::Answer | Phase::Body | Phase::Trickle => HubError::Broken { origin, source },
    }
}

/// Nothing came for as long as `phase` may take.
pub(super) fn timed_out(origin: &Origin, phase: Phase, timeouts: &Timeouts) -> HubError {
    let waited = match phase {
        Phase::Connect => timeouts.connect,
        Phase::Answer => timeouts.header,
        Phase::Body | Phase::Trickle => timeouts.idle,
    };
    HubError::Timeout { origin: origin.clone(), phase, waited }
}

/// Whether a proxy refused a tunnel for want of credentials. Its library keeps the type of that
/// error to itself, so its words have to tell.
fn is_proxy_refusal(error: &(dyn Error + 'static)) -> bool {
    let causes = std::iter::successors(Some(error), |cause| (*cause).source());
    causes.map(ToString::to_string).any(|words| words.contains(TUNNEL_REFUSED))
}

/// The TLS error in a chain, unless it is one of the connection underneath.
fn tls_problem(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls.to_string());
        }
        // An `io::Error` names what its content comes from as its source, not the content.
        let inside = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = inside.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_problem_is_found_however_deep_it_is_wrapped() {
        let tls = rustls::Error::InvalidCertificate(rustls::CertificateError::UnknownIssuer);
        let wrapped = io::Error::other(io::Error::other(io::Error::new(io::ErrorKind::InvalidData, tls)));
        assert!(tls_problem(&wrapped).unwrap().contains("UnknownIssuer"));
        assert_eq!(tls_problem(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }
}
