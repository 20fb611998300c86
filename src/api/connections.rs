//! Connections: how many, how long they may be silent, how they end.
//!
//! Each connection is a task of one set, and the set is empty when [`run`] returns.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::serve::{Accepted, Caller, Door};

/// Connections served at a time; others wait to be accepted.
const CONNECTIONS: usize = 128;
/// For the head of a request, and so for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long answers under way may go on once the owner stops.
const STOP_WITHIN: Duration = Duration::from_secs(2);
/// After a failed accept: descriptors run out for a while, not for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `admitted` to callers that the door lets in and `refused` to the others, until `stop`.
pub(super) async fn run(door: &Door, admitted: Router, refused: Router, stop: CancellationToken) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let (accepted, slot) = tokio::select! {
            () = stop.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            Some(accepted) = accept(door, &slots) => accepted,
        };
        let (caller, welcome) = accepted.caller();
        let router = if welcome { admitted.clone() } else { refused.clone() };
        match accepted {
            Accepted::Unix(stream, _) => connections.spawn(one(stream, caller, router, slot, stop.clone())),
            Accepted::Tcp(stream, _) => connections.spawn(one(stream, caller, router, slot, stop.clone())),
        };
    }
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, all_ended).await.is_err() {
        info!(connections = connections.len(), "cutting answers that are still under way");
        connections.shutdown().await;
    }
}

async fn accept(door: &Door, slots: &Arc<Semaphore>) -> Option<(Accepted, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    loop {
        match door.accept().await {
            Ok(accepted) => return Some((accepted, slot)),
            // The caller went away again.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn one<S>(stream: S, caller: Caller, router: Router, slot: OwnedSemaphorePermit, stop: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(caller.clone());
        TowerToHyperService::new(router.clone()).call(request.map(Body::new))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
    drop(slot);
}
