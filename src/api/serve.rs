//! Serving an owner's API at its doors.
//!
//! Owns who is let in: by the kernel's word about the peer of a unix socket, by a bearer token
//! over TCP. [`serve`] is a task of the daemon's supervisor and ends with its token.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::answer::ApiError;
use super::bearer::BearerToken;
use super::socket::{Access, UnixDoor};
use super::{connections, routes};
use crate::blocking::Blocking;
use crate::core::code::Code;
use crate::core::status::DaemonStatus;
use crate::daemon::{Daemon, Jobs};

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
    let stop = service.0.stop.clone();
    let mut router = routes::router(service.0);
    if let Door::Tcp { token, .. } = &door {
        router = router.layer(middleware::from_fn_with_state(token.clone(), ask_for_token));
    }
    connections::run(&door, router, Router::new().fallback(refuse_peer), stop).await;
}

/// Who sent a request.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    /// A process of this host.
    Local { uid: u32, pid: Option<i32> },
    /// Somebody with the token.
    Remote(SocketAddr),
    /// Whoever it was, the kernel did not say.
    Unknown,
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local { uid, pid: Some(pid) } => write!(f, "uid {uid}, process {pid}"),
            Self::Local { uid, pid: None } => write!(f, "uid {uid}"),
            Self::Remote(address) => write!(f, "{address}"),
            Self::Unknown => f.write_str("an unknown peer"),
        }
    }
}

/// A connection that came in.
pub(super) enum Accepted {
    Unix(UnixStream, Access),
    Tcp(TcpStream, SocketAddr),
}

impl Accepted {
    /// Who it is, and whether it is welcome.
    pub(super) fn caller(&self) -> (Caller, bool) {
        match self {
            // Its token is looked at with each request.
            Self::Tcp(_, address) => (Caller::Remote(*address), true),
            Self::Unix(stream, access) => match stream.peer_cred() {
                Ok(peer) => {
                    let caller = Caller::Local { uid: peer.uid(), pid: peer.pid() };
                    let welcome = access.admits(&peer);
                    if welcome {
                        debug!(%caller, "connected");
                    } else {
                        warn!(%caller, "refused at the socket");
                    }
                    (caller, welcome)
                }
                Err(error) => {
                    warn!(%error, "a peer without credentials is refused");
                    (Caller::Unknown, false)
                }
            },
        }
    }
}

impl Door {
    pub(super) async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Unix(door) => Ok(Accepted::Unix(door.listener().accept().await?.0, door.access())),
            Self::Tcp { listener, .. } => {
                let (stream, address) = listener.accept().await?;
                Ok(Accepted::Tcp(stream, address))
            }
        }
    }
}

async fn ask_for_token(State(token): State<BearerToken>, request: Request, next: Next) -> Response {
    let for_probes = matches!(request.uri().path(), "/healthz" | "/readyz");
    if for_probes || token.is_shown_in(request.headers()) {
        return next.run(request).await;
    }
    let hint = "send `Authorization: Bearer …` with the token that the daemon was started with";
    ApiError::new(Code::Refused, "the bearer token is missing or wrong", Some(hint)).into_response()
}

async fn refuse_peer() -> ApiError {
    let hint = "run as the daemon's user or in its api_group; `muster status` works without the socket";
    ApiError::new(Code::Refused, "this user may not use the socket", Some(hint))
}
