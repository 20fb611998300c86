//! Whose certificates count: those of `SSL_CERT_FILE` or `SSL_CERT_DIR`, else this machine's, else the authorities
//! that came with the program.
//!
//! Invariant: whoever names a file is never given other authorities in its place.

#![allow(clippy::disallowed_methods, reason = "the variables of trust have their home here")]

use reqwest::Certificate;

/// What names the authorities to trust, if anything does. An empty variable names nothing.
pub(super) fn named_by() -> Option<&'static str> {
    let names = ["SSL_CERT_FILE", "SSL_CERT_DIR"];
    names.into_iter().find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// The authorities of Mozilla's list, as of this build: what a machine or container without any of its own gets.
pub(super) fn built_in() -> Vec<Certificate> {
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter();
    roots.filter_map(|root| Certificate::from_der(root).ok()).collect()
}

/// How many authorities came with the program.
#[must_use]
pub fn built_in_count() -> usize {
    webpki_root_certs::TLS_SERVER_ROOT_CERTS.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_authorities_can_all_be_used() {
        assert!(built_in_count() > 50);
        assert_eq!(built_in().len(), built_in_count());
        let _ = rustls::crypto::ring::default_provider().install_default();
        assert!(reqwest::Client::builder().tls_certs_only(built_in()).http1_only().build().is_ok());
    }
}
