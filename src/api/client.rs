//! The client of the API, for the verbs.
//!
//! Finds the owner of a volume by its record and talks to its socket. Invariant: a token goes into
//! [`Client::submit`]'s body and nowhere else. It never takes or makes anything on the volume.

use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, RequestBuilder};
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::dto::{Accepting, EditsReport, Health, History, Limiting, Refusal, SeenVerdict, Submitted, Undoing};
use super::socket::NAME;
use crate::core::code::Code;
use crate::core::job::{JobError, JobSpec};
use crate::core::limit::Limit;
use crate::core::model_name::ModelName;
use crate::core::status::{ModelStatus, Report};
use crate::daemon::limiting::LimitReport;
use crate::hub::Token;
use crate::volume::owner::{ProcessFacts, Record};
use crate::volume::{Volume, VolumeError};

/// For an answer. The owner is on this host; it waits for its disk at most.
const TIMEOUT: Duration = Duration::from_secs(20);
/// For a sign of life. Well below half a lease: who waits for an owner that stands still looks at its
/// record between two tries, and a longer gap would begin the lease again.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// For removals, which may unlink terabytes, and for what hashes a large file.
const LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// Why the owner did not answer as wanted.
#[derive(Debug, Error)]
pub enum ClientError {
    /// The owner records cannot be read.
    #[error("the owner of the volume cannot be told")]
    Volume(#[from] VolumeError),
    /// No client can be made.
    #[error("no client for the socket")]
    Client(#[source] reqwest::Error),
    /// Nobody answers, or no longer.
    #[error("the owner of the volume does not answer at {}", .socket.display())]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// It said no.
    #[error("{}", .0.message)]
    Refused(JobError),
    /// It answered something else; it may be of another version.
    #[error("the answer from {} cannot be read", .socket.display())]
    Garbled {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
}

impl ClientError {
    /// The outcome.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Volume(error) => error.code(),
            Self::Client(_) => Code::Internal,
            Self::Unreachable { .. } | Self::Garbled { .. } => Code::DaemonUnreachable,
            Self::Refused(error) => error.code,
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Volume(error) => error.hint().map(str::to_owned),
            Self::Client(_) => None,
            Self::Unreachable { .. } => Some("muster status shows what is known without it".to_owned()),
            Self::Garbled { .. } => Some("use the same version of muster as the daemon".to_owned()),
            Self::Refused(error) => error.hint.clone(),
        }
    }
}

/// A connection to the living owner of a volume.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    socket: PathBuf,
    record: Record,
}

impl Client {
    /// Finds the owner of a volume: alive, on this host, and answering. `None` when there is none
    /// such; who owns the volume then, [`Volume::owner`] tells.
    ///
    /// # Errors
    /// [`ClientError::Refused`] when it answers and does not let this user in.
    pub async fn find(volume: &Volume) -> Result<Option<Self>, ClientError> {
        let Some(glance) = volume.owner()? else { return Ok(None) };
        if glance.is_dead() {
            return Ok(None);
        }
        let Some(record) = glance.record else { return Ok(None) };
        let ours = ProcessFacts::read().boot_id;
        if record.boot_id != ours || ours.is_empty() {
            return Ok(None);
        }
        for socket in candidates(volume, &record) {
            let client = Self { http: http(&socket)?, socket, record: record.clone() };
            let probe = client.request(Method::GET, "healthz").timeout(PROBE_TIMEOUT);
            match client.send::<Health>(probe).await {
                Ok(_) => return Ok(Some(client)),
                Err(ClientError::Unreachable { .. } | ClientError::Garbled { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// What whoever listens at a socket says of itself: `ok`, or why it does not work.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`], [`ClientError::Garbled`].
    pub async fn readiness(socket: &Path) -> Result<Health, ClientError> {
        let unreachable = |source: reqwest::Error| ClientError::Unreachable {
            socket: socket.to_owned(),
            source: source.without_url(),
        };
        let asked = http(socket)?.get("http://muster/readyz").timeout(PROBE_TIMEOUT).send().await;
        let bytes = asked.map_err(unreachable)?.bytes().await.map_err(unreachable)?;
        serde_json::from_slice(&bytes).map_err(|source| ClientError::Garbled { socket: socket.to_owned(), source })
    }

    /// The socket it talks to.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What the owner says about itself.
    #[must_use]
    pub const fn owner(&self) -> &Record {
        &self.record
    }

    /// Asks for a model. The token is for the job's endpoint and is kept in memory only.
    pub async fn submit(&self, job: &JobSpec, token: Option<&Token>) -> Result<ModelStatus, ClientError> {
        let body = Submitted { job, token: token.map(Token::hand_over) };
        self.send(self.request(Method::POST, "v1/models").json(&body)).await
    }

    /// Everything, as it is now. Follow a job by asking every half second.
    pub async fn report(&self) -> Result<Report, ClientError> {
        self.get("v1/models").await
    }

    /// One model, as it is now.
    pub async fn model(&self, name: &ModelName) -> Result<ModelStatus, ClientError> {
        self.get(&at(name, "")).await
    }

    /// A model's audit trail.
    pub async fn history(&self, name: &ModelName) -> Result<History, ClientError> {
        self.get(&at(name, "/history")).await
    }

    /// Stops a job; what is durable is kept. It stops in its own time.
    pub async fn pause(&self, name: &ModelName) -> Result<ModelStatus, ClientError> {
        self.send(self.request(Method::POST, &at(name, "/pause"))).await
    }

    /// Goes on with a job.
    pub async fn resume(&self, name: &ModelName) -> Result<ModelStatus, ClientError> {
        self.send(self.request(Method::POST, &at(name, "/resume"))).await
    }

    /// Gives a job up. It stops in its own time.
    pub async fn cancel(&self, name: &ModelName) -> Result<ModelStatus, ClientError> {
        self.send(self.request(Method::POST, &at(name, "/cancel"))).await
    }

    /// Which limits are in force.
    pub async fn limits(&self) -> Result<LimitReport, ClientError> {
        self.get("v1/limits").await
    }

    /// Limits one job; nothing is what the owner's configuration says.
    pub async fn limit(&self, name: &ModelName, limit: Option<Limit>) -> Result<ModelStatus, ClientError> {
        self.send(self.request(Method::POST, &at(name, "/limit")).json(&Limiting { limit })).await
    }

    /// Limits all jobs together.
    pub async fn limit_all(&self, limit: Option<Limit>) -> Result<LimitReport, ClientError> {
        self.send(self.request(Method::POST, "v1/limits").json(&Limiting { limit })).await
    }

    /// Takes a model off the volume.
    pub async fn remove(&self, name: &ModelName, now: bool) -> Result<(), ClientError> {
        let path = format!("{}?now={now}", at(name, "/remove"));
        self.body(self.request(Method::POST, &path).timeout(LONG_TIMEOUT)).await.map(|_nothing| ())
    }

    /// Takes files of a model for right as they are.
    pub async fn accept(&self, name: &ModelName, what: &Accepting) -> Result<EditsReport, ClientError> {
        self.send(self.request(Method::POST, &at(name, "/accept")).timeout(LONG_TIMEOUT).json(what)).await
    }

    /// Undoes deliberate edits.
    pub async fn undo(&self, name: &ModelName, what: &Undoing) -> Result<EditsReport, ClientError> {
        self.send(self.request(Method::POST, &at(name, "/undo")).timeout(LONG_TIMEOUT).json(what)).await
    }

    /// Lets the owner know what a gate decided, for the model's history.
    pub async fn saw(&self, name: &ModelName, verdict: &SeenVerdict) -> Result<(), ClientError> {
        let path = at(name, "/verdict");
        self.body(self.request(Method::POST, &path).json(verdict)).await.map(|_nothing| ())
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.send(self.request(Method::GET, path)).await
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://muster/{path}"))
    }

    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ClientError> {
        let bytes = self.body(request).await?;
        serde_json::from_slice(&bytes).map_err(|source| self.garbled(source))
    }

    async fn body(&self, request: RequestBuilder) -> Result<Vec<u8>, ClientError> {
        let unreachable = |source: reqwest::Error| ClientError::Unreachable {
            socket: self.socket.clone(),
            source: source.without_url(),
        };
        let response = request.send().await.map_err(unreachable)?;
        let status = response.status();
        let bytes = response.bytes().await.map_err(unreachable)?;
        if status.is_success() {
            return Ok(bytes.into());
        }
        let refusal: Refusal = serde_json::from_slice(&bytes).map_err(|source| self.garbled(source))?;
        Err(ClientError::Refused(refusal.error))
    }

    fn garbled(&self, source: serde_json::Error) -> ClientError {
        ClientError::Garbled { socket: self.socket.clone(), source }
    }
}

/// Where the owner may answer: as it says; and on the volume as it is seen from here, which may be
/// mounted elsewhere.
fn candidates(volume: &Volume, record: &Record) -> Vec<PathBuf> {
    let Some(said) = record.socket.as_ref().map(PathBuf::from) else { return Vec::new() };
    let seen = volume.path().join(".muster").join(NAME);
    let on_volume = said.ends_with(Path::new(".muster").join(NAME)) && seen != said;
    let mut sockets = if on_volume { vec![seen] } else { Vec::new() };
    sockets.push(said);
    sockets
}

fn http(socket: &Path) -> Result<reqwest::Client, ClientError> {
    // Fails only when this process has a provider already, which is then used.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .unix_socket(socket)
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .tls_certs_only([])
        .timeout(TIMEOUT)
        .build()
        .map_err(ClientError::Client)
}

/// The path of a model: its id is one component, slashes encoded.
fn at(name: &ModelName, action: &str) -> String {
    format!("v1/models/{}{action}", utf8_percent_encode(name.as_str(), NON_ALPHANUMERIC))
}
