//! Serving an owner's API at its doors.
//!
//! Owns who is let in: by the kernel's word about the peer of a unix socket, by a bearer token
//! over TCP. [`serve`] is a task of the daemon's supervisor and ends with its token.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::answer::ApiError;
use super::routes;
use super::socket::UnixDoor;
use crate::blocking::Blocking;
use crate::core::code::Code;
use crate::core::status::DaemonStatus;
use crate::daemon::pulse::Pulse;
use crate::daemon::{Daemon, Jobs};
use crate::serving::{Accepts, Admission, BearerToken, Bounds, connections};

const BOUNDS: Bounds =
    Bounds { connections: 128, header_timeout: Duration::from_secs(30), stop_within: Duration::from_secs(2) };
/// Followers of the event stream at a time.
const FOLLOWERS: usize = 64;
/// Requests that may be at the store or the volume at a time.
const BLOCKING: usize = 4;

/// What is served: the jobs of one owner. Clones are the same.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

/// What every request needs.
pub(super) struct Shared {
    pub(super) jobs: Jobs,
    pub(super) owner: DaemonStatus,
    pub(super) lost: CancellationToken,
    pub(super) pulse: Pulse,
    pub(super) stop: CancellationToken,
    pub(super) blocking: Blocking,
    pub(super) followers: Arc<Semaphore>,
}

impl Service {
    /// The API of this daemon. Call it inside its runtime.
    pub fn of(daemon: &mut Daemon) -> Self {
        Self(Arc::new(Shared {
            jobs: daemon.jobs(),
            owner: daemon.status(),
            lost: daemon.lost(),
            pulse: daemon.pulse(),
            stop: daemon.supervisor().token(),
            blocking: Blocking::new(Handle::current(), BLOCKING),
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
        }))
    }
}

/// Where callers come in.
#[derive(Debug)]
pub enum Door {
    /// A unix socket; the kernel says who the peer is.
    Unix(UnixDoor),
    /// TCP, for whoever shows the token.
    Tcp {
        /// The listener.
        listener: TcpListener,
        /// What callers must show.
        token: BearerToken,
    },
}

/// Serves until the daemon stops. When this returns, every connection has ended.
pub async fn serve(door: Door, service: Service) {
    let stop = service.0.stop.clone().cancelled_owned();
    let router = routes::router(service.0);
    match door {
        Door::Unix(door) => {
            let refused = Router::new().fallback(refuse_peer);
            connections::run(UnixCallers { door, admitted: router, refused }, BOUNDS, stop).await;
        }
        Door::Tcp { listener, token } => {
            let router = router.layer(middleware::from_fn_with_state(token, ask_for_token));
            connections::run(TcpCallers { listener, router }, BOUNDS, stop).await;
        }
    }
}

/// Who sent a request.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// A process of this host.
    Local { uid: u32, pid: Option<i32> },
    /// Somebody with the token.
    Remote(SocketAddr),
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, pid: Some(pid) } => write!(f, "uid {uid}, process {pid}"),
            Self::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Remote(address) => write!(f, "{address}"),
        }
    }
}

/// Callers of a unix socket: each as the kernel knows it.
struct UnixCallers {
    door: UnixDoor,
    admitted: Router,
    refused: Router,
}

impl Accepts for UnixCallers {
    type Stream = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Router)> {
        let (stream, _) = self.door.listener().accept().await?;
        let router = match stream.peer_cred() {
            Ok(peer) => {
                let caller = Caller::Local { uid: peer.uid(), pid: peer.pid() };
                if self.door.access().admits(&peer) {
                    debug!(%caller, "connected");
                    self.admitted.clone().layer(Extension(caller))
                } else {
                    warn!(%caller, "refused at the socket");
                    self.refused.clone()
                }
            }
            Err(error) => {
                warn!(%error, "a peer without credentials is refused");
                self.refused.clone()
            }
        };
        Ok((stream, router))
    }
}

/// Callers over TCP: their token is looked at with each request.
struct TcpCallers {
    listener: TcpListener,
    router: Router,
}

impl Accepts for TcpCallers {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Router)> {
        let (stream, address) = self.listener.accept().await?;
        Ok((stream, self.router.clone().layer(Extension(Caller::Remote(address)))))
    }
}

async fn ask_for_token(State(token): State<BearerToken>, request: Request, next: Next) -> Response {
    let for_probes = matches!(request.uri().path(), "/healthz" | "/readyz");
    if for_probes || token.admits(request.headers()) == Admission::Granted {
        return next.run(request).await;
    }
    let hint = "send `Authorization: Bearer …` with the token that the daemon was started with";
    ApiError::new(Code::Refused, "the bearer token is missing or wrong", Some(hint)).into_response()
}

async fn refuse_peer() -> ApiError {
    let hint = "run as the daemon's user or in its api_group; `muster status` works without the socket";
    ApiError::new(Code::Refused, "this user may not use the socket", Some(hint))
}
