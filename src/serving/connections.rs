//! The connections of a server: how many, how long they may be silent, how they end.
//!
//! `axum::serve` bounds none of these and leaves its tasks behind; here each connection is a task
//! of one set, and the set is empty when [`run`] returns. Who waits for a connection gets one soon:
//! those that are open end after their answer, an idle one at once, as long as somebody waits.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// After a failed accept: descriptors run out for a while, not for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// While somebody waits, so often one more of the open connections is asked to end, the oldest first.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);

/// What a server allows itself and its callers.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections served at a time; others wait for one of them to end.
    pub connections: usize,
    /// For the head of a request, and so for an idle connection.
    pub header_timeout: Duration,
    /// How long answers under way may go on once the server stops.
    pub stop_within: Duration,
}

/// Where connections come in, and what each of them is served.
pub trait Accepts: Sync {
    /// What a connection is.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Waits for the next connection. Must lose none when it is dropped half-way.
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Stream, Router)>> + Send;
}

/// Serves what `door` accepts until `stop` is ready. Then the door goes, and answers under way
/// have their time; when this returns, every connection has ended.
pub async fn run(door: impl Accepts, bounds: Bounds, stop: impl Future<Output = ()>) {
    let mut stop = pin!(stop);
    let slots = Arc::new(Semaphore::new(bounds.connections));
    let (stopping, crowded) = (CancellationToken::new(), Arc::new(Notify::new()));
    let mut connections = JoinSet::new();
    let mut waiting = None;
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = accept(&door), if waiting.is_none() => waiting = Some(accepted),
            Ok(slot) = Arc::clone(&slots).acquire_owned(), if waiting.is_some() => {
                if let Some((stream, router)) = waiting.take() {
                    let ends = Ends { stopping: stopping.clone(), crowded: Arc::clone(&crowded) };
                    connections.spawn(serve_one(stream, router, slot, bounds.header_timeout, ends));
                }
            }
            () = tokio::time::sleep(CROWDED_PAUSE), if waiting.is_some() => crowded.notify_one(),
        }
    }
    drop(waiting);
    drop(door);
    stopping.cancel();
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(bounds.stop_within, all_ended).await.is_err() {
        info!(connections = connections.len(), "cutting answers that are still under way");
        connections.shutdown().await;
    }
}

async fn accept<D: Accepts>(door: &D) -> (D::Stream, Router) {
    loop {
        match door.accept().await {
            Ok(accepted) => return accepted,
            // The caller went away again.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) => {
                warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// What ends a connection before its caller does.
struct Ends {
    stopping: CancellationToken,
    crowded: Arc<Notify>,
}

async fn serve_one(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    slot: OwnedSemaphorePermit,
    header_timeout: Duration,
    ends: Ends,
) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = async { tokio::select! { () = ends.stopping.cancelled() => {}, () = ends.crowded.notified() => {} } } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
    drop(slot);
}
