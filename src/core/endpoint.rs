//! Where a Hub lives, and which requests count as going to the same place.
//!
//! Owns the rule of P7: a token belongs to one [`Origin`] (scheme, host, port), and plain http
//! may carry it only to this machine.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use url::{Host, Url};

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// Not an absolute URL.
    #[error("`{text}` is no endpoint URL")]
    Malformed {
        /// What was given, without credentials.
        text: String,
    },
    /// Neither http nor https.
    #[error("an endpoint has the scheme http or https, not `{scheme}`")]
    Scheme {
        /// The scheme given.
        scheme: String,
    },
    /// Credentials, a query or a fragment inside the URL.
    #[error("an endpoint URL has no user name, password, query or fragment")]
    Extra,
}

/// Base URL of a Hub-compatible server.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint(Url);

impl Endpoint {
    /// Parses a base URL; trailing slashes do not count.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn parse(text: &str) -> Result<Self, EndpointError> {
        let shown = || text.rsplit('@').next().unwrap_or("").chars().take(200).flat_map(char::escape_debug).collect();
        let mut url = Url::parse(text.trim()).map_err(|_| EndpointError::Malformed { text: shown() })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(EndpointError::Scheme { scheme: url.scheme().to_owned() });
        }
        let extra = !url.username().is_empty() || url.password().is_some();
        if extra || url.query().is_some() || url.fragment().is_some() {
            return Err(EndpointError::Extra);
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(Self(url))
    }

    /// The URL of `path` below the endpoint. `path` is already percent-encoded and starts
    /// without a slash.
    #[must_use]
    pub fn join(&self, path: &str) -> Url {
        let mut url = self.0.clone();
        let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
        url.set_path(&format!("{}/{path}", self.0.path().trim_end_matches('/')));
        url.set_query(query);
        url
    }

    /// Scheme, host and port.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin::of(&self.0)
    }

    /// Whether a token may be sent there: https, or this machine.
    #[must_use]
    pub fn may_carry_token(&self) -> bool {
        self.0.scheme() == "https" || is_loopback(&self.0)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;
    fn try_from(text: String) -> Result<Self, EndpointError> {
        Self::parse(&text)
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

/// Scheme, host and port of a URL. Two spellings of one host are one origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Origin(String);

impl Origin {
    /// The origin of a URL.
    #[must_use]
    pub fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A URL fit to be shown: without user information, and with the query of a signed URL
/// replaced.
#[must_use]
pub fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    let query = url.query().is_some();
    url.set_query(None);
    url.set_fragment(None);
    // Both fail only for URLs that cannot have credentials.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    if query { format!("{url}?…") } else { url.to_string() }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_keeps_its_base_path() {
        let endpoint = Endpoint::parse("https://mirror.example/hf/").unwrap();
        assert_eq!(endpoint.to_string(), "https://mirror.example/hf");
        assert_eq!(endpoint.join("api/models/a/b?x=1").as_str(), "https://mirror.example/hf/api/models/a/b?x=1");
        assert_eq!(Endpoint::parse("http://127.0.0.1:8080").unwrap().join("a").as_str(), "http://127.0.0.1:8080/a");
    }

    #[test]
    fn odd_endpoints_are_refused_without_showing_credentials() {
        assert!(matches!(Endpoint::parse("ftp://x"), Err(EndpointError::Scheme { .. })));
        assert!(matches!(Endpoint::parse("https://u:secret@x"), Err(EndpointError::Extra)));
        let error = Endpoint::parse("u:secret@x y").unwrap_err().to_string();
        assert!(!error.contains("secret"), "{error}");
    }

    #[test]
    fn scheme_host_and_port_make_an_origin() {
        let origin = |text: &str| Origin::of(&Url::parse(text).unwrap());
        assert_eq!(origin("https://HUB.example/a"), origin("https://hub.example:443/b?c"));
        assert_ne!(origin("https://hub.example"), origin("http://hub.example"));
        assert_ne!(origin("https://hub.example"), origin("https://hub.example:444"));
    }

    #[test]
    fn plain_http_carries_a_token_only_to_this_machine() {
        for (text, expected) in [
            ("https://hub.example", true),
            ("http://hub.example", false),
            ("http://localhost:1", true),
            ("http://127.0.0.9:1", true),
            ("http://[::1]:1", true),
            ("http://127.0.0.1.example", false),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().may_carry_token(), expected, "{text}");
        }
    }

    #[test]
    fn a_signed_url_is_shown_without_its_query() {
        let url = Url::parse("https://u:p@cdn.example/file?Signature=secret#f").unwrap();
        assert_eq!(redacted(&url), "https://cdn.example/file?…");
    }
}
