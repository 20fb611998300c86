//! One endpoint's client: single requests, their redirects and their retries.
//!
//! Every request of muster to a Hub or its storage is made by the client in here, so that all
//! have the same timeouts, the same proxies and trust roots (`HTTPS_PROXY`, `NO_PROXY`,
//! `SSL_CERT_FILE`, for API and data alike), `Accept-Encoding: identity`, and no redirects that
//! nobody looked at.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode, redirect};
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use url::Url;

use crate::core::budget::Traffic;
use crate::core::endpoint::{Endpoint, Origin, redacted};
use crate::core::retry::{FailureClass, Failures, delay};

use super::answer::{Answer, server_message};
use super::auth::{Credential, Token};
use super::error::{Caller, HubError, Phase};
use super::notices::Notices;
use super::origins::Origins;
use super::patience::{Lost, Patience};
use super::refusal::{Asked, Refusal};
use super::transport::{failed, timed_out};
use super::trust;

/// Tries of one API call that may fail in a row.
const TRIES: u32 = 5;
/// Redirects followed for one question, as the official client does.
pub(super) const HOPS_MAX: usize = 20;
/// Most of an error's body that is read, in bytes.
const ERROR_BODY_MAX: usize = 64 * 1024;

/// How long each kind of silence is borne. There is no limit on a whole transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// From sending a request to the head of the answer.
    pub header: Duration,
    /// Between two reads of a body.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { connect: seconds(10), header: seconds(30), idle: seconds(30) }
    }
}

/// What a client is made from.
#[derive(Debug, Clone)]
pub struct HubConfig {
    /// The Hub.
    pub endpoint: Endpoint,
    /// The token configured for this endpoint, and for no other.
    pub token: Option<Token>,
    /// The `User-Agent`.
    pub user_agent: String,
    /// Bounds on silence.
    pub timeouts: Timeouts,
}

impl HubConfig {
    /// An anonymous client's configuration.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let user_agent = concat!("muster/", env!("CARGO_PKG_VERSION")).to_owned();
        Self { endpoint, token: None, user_agent, timeouts: Timeouts::default() }
    }
}

/// A client of one endpoint. Clones share connections and back-off.
#[derive(Debug, Clone)]
pub struct HubClient {
    http: reqwest::Client,
    endpoint: Endpoint,
    credential: Option<Credential>,
    caller: Caller,
    origins: Arc<Origins>,
    notices: Arc<Notices>,
    timeouts: Timeouts,
}

impl HubClient {
    /// Makes a client. No request is sent.
    ///
    /// # Errors
    /// [`HubError::Client`] when no HTTP client can be made, [`HubError::Tls`] when an https
    /// endpoint is to be used and there are no certificates where the environment says.
    pub fn new(config: HubConfig) -> Result<Self, HubError> {
        let http = http_client(&config)?;
        let (credential, caller) = bind(config.token, &config.endpoint);
        let (origins, notices) = (Arc::default(), Arc::default());
        Ok(Self { http, endpoint: config.endpoint, credential, caller, origins, notices, timeouts: config.timeouts })
    }

    /// A client of another endpoint that shares connections and back-off with this one, and
    /// has the token given here or none.
    #[must_use]
    pub fn at(&self, endpoint: Endpoint, token: Option<Token>) -> Self {
        let (credential, caller) = bind(token, &endpoint);
        Self { endpoint, credential, caller, ..self.clone() }
    }

    /// The endpoint.
    #[must_use]
    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The HTTP client underneath, which follows no redirect.
    #[must_use]
    pub const fn http(&self) -> &reqwest::Client {
        &self.http
    }

    /// The back-off shared by all requests.
    #[must_use]
    pub const fn origins(&self) -> &Arc<Origins> {
        &self.origins
    }

    /// Bounds on silence.
    #[must_use]
    pub const fn timeouts(&self) -> &Timeouts {
        &self.timeouts
    }

    /// A request with what all have: `Accept-Encoding: identity`, the user agent, and the
    /// token if and only if `url` is on the endpoint's own origin.
    pub fn request(&self, method: Method, url: &Url) -> RequestBuilder {
        let request = self.http.request(method, url.clone());
        match self.credential.as_ref().and_then(|credential| credential.header_for(url)) {
            Some(header) => request.header(AUTHORIZATION, header),
            None => request,
        }
    }

    /// Sends a request made by [`Self::request`] when `origin` will take it, waits for the head
    /// of the answer, and learns from its limits. Any status is a success here.
    ///
    /// # Errors
    /// The situations of a connection: [`HubError::Connect`], [`HubError::Tls`], [`HubError::Proxy`],
    /// [`HubError::Broken`], [`HubError::Timeout`].
    pub async fn send(&self, request: RequestBuilder, origin: &Origin, traffic: Traffic) -> Result<Response, HubError> {
        self.origins.admit(origin, traffic).await;
        // The connection has its own bound, within this one.
        let bound = self.timeouts.connect + self.timeouts.header;
        let sent = timeout(bound, request.send()).await;
        let response = sent
            .map_err(|_| timed_out(origin, Phase::Answer, &self.timeouts))?
            .map_err(|source| failed(source, origin, Phase::Answer, &self.timeouts))?;
        let (status, headers) = (response.status(), response.headers());
        if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Err(HubError::Proxy { origin: origin.clone() });
        }
        self.origins.observe(origin, traffic, status.as_u16(), headers);
        if *origin == self.endpoint.origin() {
            self.notices.tell(origin, headers, self.credential.as_ref());
        }
        tracing::debug!(%origin, ?traffic, status = status.as_u16(), "answer");
        Ok(response)
    }

    /// The situation that an answer of the Hub stands for which is neither success nor
    /// redirect. Reads its body, bounded, for the server's words.
    pub async fn refused(&self, asked: Asked<'_>, response: Response) -> HubError {
        let origin = Origin::of(response.url());
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let body = self.read(response, ERROR_BODY_MAX, &asked).await.unwrap_or_default();
        let answer = Answer::read(origin, status, &headers, &body, self.credential.as_ref());
        let after = super::origins::wish(&headers);
        Refusal { asked, endpoint: &self.endpoint, caller: self.caller, headers: &headers, after, answer }.into_error()
    }

    /// The server's words about a failure, fit to be shown: see [`Answer::message`].
    #[must_use]
    pub fn words(&self, headers: &HeaderMap, body: &[u8]) -> Option<String> {
        server_message(headers, body, self.credential.as_ref())
    }

    /// The repository's page for people.
    pub(super) fn page(&self, asked: Asked<'_>) -> String {
        self.endpoint.join(&asked.repo().to_string()).to_string()
    }

    /// Who we are to the endpoint.
    #[must_use]
    pub const fn caller(&self) -> Caller {
        self.caller
    }

    /// Repeats `call` while it fails in a way that may pass, with growing delays.
    pub(super) async fn retrying<T, F>(&self, mut call: impl FnMut() -> F) -> Result<T, HubError>
    where
        F: Future<Output = Result<T, HubError>>,
    {
        let mut failures = Failures::default();
        loop {
            let error = match call().await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let FailureClass::Transient { after } = error.class() else { return Err(error) };
            let count = failures.failed();
            if count >= TRIES {
                return Err(error);
            }
            tracing::debug!(%error, count, "trying again");
            // A wait the server asked for is kept by the origin, for everybody.
            if after.is_none() {
                tokio::time::sleep(delay(count, None, fastrand::f64())).await;
            }
        }
    }

    /// One question to the API: the parsed answer and its headers. Redirects are followed
    /// inside the endpoint's origin (a renamed repository answers with one).
    pub(super) async fn ask<T: DeserializeOwned>(
        &self,
        url: &Url,
        asked: Asked<'_>,
        limit: usize,
    ) -> Result<(T, HeaderMap), HubError> {
        let mut url = url.clone();
        for _ in 0..=HOPS_MAX {
            let origin = Origin::of(&url);
            let response = self.send(self.request(Method::GET, &url), &origin, Traffic::Api).await?;
            if let Some(target) = redirect_target(&url, &response, asked)? {
                if Origin::of(&target) != origin {
                    return Err(bad_redirect(&url, asked, format!("to another server, {}", Origin::of(&target))));
                }
                url = target;
                continue;
            }
            if !response.status().is_success() {
                return Err(self.refused(asked, response).await);
            }
            let headers = response.headers().clone();
            if is_page(&headers) {
                return Err(HubError::NotAHub { origin, why: "a page for people came instead of data" });
            }
            if is_encoded(&headers) {
                return Err(HubError::NotAHub { origin, why: "its answers are compressed, which nobody asked for" });
            }
            let body = self.read(response, limit, &asked).await?;
            let value = serde_json::from_slice(&body).map_err(|source| HubError::Unreadable {
                origin,
                asked: asked.to_string(),
                source,
            })?;
            return Ok((value, headers));
        }
        Err(bad_redirect(&url, asked, format!("more than {HOPS_MAX} times")))
    }

    /// `text` without our token, should the server have sent it back.
    pub(super) fn scrubbed(&self, text: &str) -> String {
        self.credential.as_ref().map_or_else(|| text.to_owned(), |credential| credential.scrub(text))
    }

    /// The body of an answer, of at most `limit` bytes.
    pub(super) async fn read(
        &self,
        mut response: Response,
        limit: usize,
        asked: &(dyn Display + Sync),
    ) -> Result<Vec<u8>, HubError> {
        let origin = Origin::of(response.url());
        let too_large = || HubError::TooLarge { origin: origin.clone(), asked: asked.to_string(), limit };
        if response.content_length().is_some_and(|length| length > limit as u64) {
            return Err(too_large());
        }
        let (mut body, mut patience) = (Vec::new(), Patience::new(self.timeouts.idle));
        loop {
            let chunk = patience.chunk(&mut response).await.map_err(|lost| match lost {
                Lost::Silence => timed_out(&origin, Phase::Body, &self.timeouts),
                Lost::Trickle { .. } => timed_out(&origin, Phase::Trickle, &self.timeouts),
                Lost::Broken(source) => failed(source, &origin, Phase::Body, &self.timeouts),
            });
            let Some(chunk) = chunk? else { return Ok(body) };
            if body.len() + chunk.len() > limit {
                return Err(too_large());
            }
            body.extend_from_slice(&chunk);
        }
    }
}

/// Where a redirect leads, or none when the answer is no redirect. The query is kept as sent.
/// From https to plain http nothing leads.
pub(super) fn redirect_target(from: &Url, response: &Response, asked: Asked<'_>) -> Result<Option<Url>, HubError> {
    let status = response.status();
    let known = [
        StatusCode::MOVED_PERMANENTLY,
        StatusCode::FOUND,
        StatusCode::SEE_OTHER,
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    if !known.contains(&status) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(LOCATION) else {
        return Err(bad_redirect(from, asked, "to nowhere".to_owned()));
    };
    let location = String::from_utf8_lossy(location.as_bytes());
    let target = from.join(&location).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let Some(mut target) = target else {
        return Err(bad_redirect(from, asked, "to something that is no web address".to_owned()));
    };
    if from.scheme() == "https" && target.scheme() == "http" {
        return Err(bad_redirect(from, asked, format!("from https to plain http, {}", redacted(&target))));
    }
    target.set_fragment(None);
    // A user name in there would become an `Authorization` header. Both calls fail only for
    // URLs without a host.
    let _ = target.set_username("");
    let _ = target.set_password(None);
    Ok(Some(target))
}

pub(super) fn bad_redirect(from: &Url, asked: Asked<'_>, why: String) -> HubError {
    HubError::Redirect { origin: Origin::of(from), asked: asked.to_string(), why }
}

/// Whether an answer is meant for a browser.
pub(super) fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    kind.trim_start().to_ascii_lowercase().starts_with("text/html")
}

/// Whether a body is not what it stands for, but a compressed form of it.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_ENCODING).is_some_and(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

fn bind(token: Option<Token>, endpoint: &Endpoint) -> (Option<Credential>, Caller) {
    let Some(token) = token else { return (None, Caller::Anonymous) };
    if let Some(credential) = Credential::bind(token, endpoint) {
        return (Some(credential), Caller::Token);
    }
    tracing::warn!(%endpoint, "the token is not sent: plain http to another machine may not carry it");
    (None, Caller::Withheld)
}

fn http_client(config: &HubConfig) -> Result<reqwest::Client, HubError> {
    // Fails only when this process has a provider already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = || {
        let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static("identity"))]);
        let builder = reqwest::Client::builder();
        #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
        let builder = builder.dns_resolver(super::names::Names);
        builder
            .user_agent(&config.user_agent)
            .default_headers(headers)
            .connect_timeout(config.timeouts.connect)
            .pool_idle_timeout(Duration::from_secs(60))
            .tcp_nodelay(true)
            .referer(false)
            .http1_only()
            .redirect(redirect::Policy::none())
    };
    let source = match builder().build() {
        Ok(client) => return Ok(client),
        Err(source) => source,
    };
    // Either there are no certificates, or there can be no client at all.
    let Some(name) = trust::named_by() else {
        tracing::debug!("this machine has no certificates of authorities: those that came with the program count");
        return builder().tls_certs_only(trust::built_in()).build().map_err(|_| HubError::Client { source });
    };
    // Whoever trusts nobody can still talk to a mirror on this host.
    let trusting_nobody = builder().tls_certs_only([]).build().map_err(|_| HubError::Client { source })?;
    let endpoint = &config.endpoint;
    if endpoint.to_string().starts_with("https:") {
        let why = format!("there is no certificate of an authority where {name} says");
        return Err(HubError::Tls { origin: endpoint.origin(), why });
    }
    Ok(trusting_nobody)
}

#[cfg(test)]
mod tests {
    use crate::core::manifest::FileEntry;
    use crate::core::repo::{CommitId, Repo, Revision};

    use super::*;

    /// The callers run these on a set of tasks.
    #[test]
    fn the_clients_futures_may_move_between_threads() {
        fn send<T: Send>(value: T) -> T {
            value
        }
        fn spawn<T: Send + 'static>(_: T) {}
        let _ = |client: HubClient, repo: Repo, revision: Revision, commit: CommitId, entry: FileEntry| {
            drop(send(client.resolve_revision(&repo, &revision)));
            drop(send(client.listing(&repo, commit)));
            drop(send(client.locate(&repo, commit, &entry)));
            spawn(async move { client.locate(&repo, commit, &entry).await });
        };
    }

    #[test]
    fn another_endpoint_is_anonymous_unless_a_token_comes_along() {
        let place = super::super::auth::TokenPlace::Submitted;
        let token = Token::parse("hf_secret", place).unwrap();
        let endpoint = |text: &str| Endpoint::parse(text).unwrap();
        let config = HubConfig { token: token.clone(), ..HubConfig::new(endpoint("https://hub.example")) };
        let client = HubClient::new(config).unwrap();
        let sent = |client: &HubClient, url: &str| {
            let request = client.request(Method::GET, &Url::parse(url).unwrap()).build().unwrap();
            assert_eq!(request.headers().get("accept-encoding"), None, "a default, added when sent");
            request.headers().contains_key(AUTHORIZATION)
        };
        assert!(sent(&client, "https://hub.example/api"));
        let other = client.at(endpoint("https://other.example"), None);
        assert!(!sent(&other, "https://other.example/api") && !sent(&other, "https://hub.example/api"));
        let own = client.at(endpoint("https://other.example"), token.clone());
        assert!(sent(&own, "https://other.example/api") && !sent(&own, "https://hub.example/api"));
        let plain = client.at(endpoint("http://other.example"), token);
        assert!(!sent(&plain, "http://other.example/api"));
        assert_eq!(plain.caller(), Caller::Withheld);
        assert!(!format!("{client:?}").contains("secret"));
    }
}
