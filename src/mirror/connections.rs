//! The connections of the mirror: how many, how long they may be silent, how they end.
//!
//! `axum::serve` bounds none of these and leaves its tasks behind; here each connection is a
//! task of one set, and the set is empty when [`run`] returns.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Connections served at a time; others wait to be accepted. Each costs at most two descriptors
/// and two read buffers.
const CONNECTIONS: usize = 256;
/// For the head of a request, and so for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a peer may leave what was sent unacknowledged, or its window closed.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);
/// How long answers under way may go on once the mirror is told to stop.
const STOP_WITHIN: Duration = Duration::from_secs(5);
/// After a failed accept: descriptors run out for a while, not for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is ready, then ends every connection.
pub(super) async fn run(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let mut shutdown = pin!(shutdown);
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => {}
            Some((stream, slot)) = accept(&listener, &slots) => {
                connections.spawn(serve_one(stream, slot, router.clone(), stop.clone()));
            }
        }
    }
    drop(listener);
    stop.cancel();
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_WITHIN, all_ended).await.is_err() {
        tracing::info!(connections = connections.len(), "cutting answers that are still under way");
        connections.shutdown().await;
    }
}

async fn accept(listener: &TcpListener, slots: &Arc<Semaphore>) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, slot)),
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_one(stream: TcpStream, slot: OwnedSemaphorePermit, router: Router, stop: CancellationToken) {
    // Both only help: without them the connection is served all the same.
    let _ = stream.set_nodelay(true);
    let _ = rustix::net::sockopt::set_tcp_user_timeout(
        &stream,
        u32::try_from(SEND_TIMEOUT.as_millis()).unwrap_or(u32::MAX),
    );
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
    drop(slot);
}
