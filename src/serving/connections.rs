//! The connections of a server: how many, how long they may be silent, how they end.
//!
//! `axum::serve` bounds none of these and leaves its tasks behind; here each connection is a task
//! of one set, and the set is empty when [`run`] returns. Who waits for a connection gets one soon:
//! those that are open end after their answer, an idle one at once, as long as somebody waits; but
//! whoever just came has time to ask first, and nobody is asked to end once nobody waits.

use std::collections::VecDeque;
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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::clock;

/// After a failed accept: descriptors run out for a while, not for ever.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// While somebody waits, so often one more of the open connections is asked to end, the oldest first.
const CROWDED_PAUSE: Duration = Duration::from_millis(5);
/// A connection that is younger is left alone: its first request may be on its way.
const TIME_TO_ASK: Duration = Duration::from_secs(1);

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
    let stopping = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut open = Open::default();
    let mut waiting = None;
    loop {
        tokio::select! {
            biased;
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = accept(&door), if waiting.is_none() => waiting = Some(accepted),
            Ok(slot) = Arc::clone(&slots).acquire_owned(), if waiting.is_some() => {
                if let Some((stream, router)) = waiting.take() {
                    let ends = Ends { stopping: stopping.clone(), crowded: open.opened(clock::since_boot()) };
                    connections.spawn(serve_one(stream, router, slot, bounds.header_timeout, ends));
                }
            }
            () = tokio::time::sleep(CROWDED_PAUSE), if waiting.is_some() => open.end_the_oldest(clock::since_boot()),
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

/// The connections that nobody asked to end yet, the oldest first, and when each came.
#[derive(Default)]
struct Open(VecDeque<(Duration, oneshot::Sender<()>)>);

impl Open {
    /// One more; its receiver hears when it should end.
    fn opened(&mut self, now: Duration) -> oneshot::Receiver<()> {
        self.0.retain(|(_, end)| !end.is_closed());
        let (end, asked) = oneshot::channel();
        self.0.push_back((now, end));
        asked
    }

    /// Asks the oldest to end, if it had its time to ask.
    fn end_the_oldest(&mut self, now: Duration) {
        self.0.retain(|(_, end)| !end.is_closed());
        if let Some((_, end)) = self.0.pop_front_if(|(came, _)| now.saturating_sub(*came) >= TIME_TO_ASK) {
            // It may have ended by itself just now.
            let _ = end.send(());
        }
    }
}

/// What ends a connection before its caller does.
struct Ends {
    stopping: CancellationToken,
    crowded: oneshot::Receiver<()>,
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
        () = async { tokio::select! { () = ends.stopping.cancelled() => {}, Ok(()) = ends.crowded => {} } } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "a connection ended early");
    }
    drop(slot);
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
    use tokio::sync::{Mutex, mpsc};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// A door that lets in what the test brings; each answer takes one of its permits.
    struct Brought(Mutex<mpsc::UnboundedReceiver<DuplexStream>>, Arc<Semaphore>);

    impl Accepts for Brought {
        type Stream = DuplexStream;

        async fn accept(&self) -> io::Result<(DuplexStream, Router)> {
            let stream = self.0.lock().await.recv().await.expect("the test holds the other end");
            let answers = Arc::clone(&self.1);
            let answer = async move || {
                answers.acquire().await.unwrap().forget();
                "here"
            };
            Ok((stream, Router::new().route("/", get(answer))))
        }
    }

    async fn ask(caller: &mut DuplexStream) -> String {
        caller.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, caller.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer
    }

    #[test]
    fn the_oldest_that_had_its_time_to_ask_is_the_one_to_end() {
        let (start, mut open) = (Duration::from_secs(100), Open::default());
        let [ended, mut old, mut young] = [start, start, start + TIME_TO_ASK].map(|now| open.opened(now));
        drop(ended);
        open.end_the_oldest(start + TIME_TO_ASK / 2);
        assert!(old.try_recv().is_err(), "its request may be on its way");
        open.end_the_oldest(start + TIME_TO_ASK);
        assert_eq!(old.try_recv(), Ok(()));
        open.end_the_oldest(start + TIME_TO_ASK);
        assert!(young.try_recv().is_err(), "its request may be on its way");
    }

    #[tokio::test]
    async fn who_waits_comes_in_when_another_ends_and_is_answered_however_late_it_asks() {
        let (bring, brought) = mpsc::unbounded_channel();
        let enter = || {
            let (caller, served) = tokio::io::duplex(4096);
            bring.send(served).unwrap();
            caller
        };
        let answers = Arc::new(Semaphore::new(1));
        let door = Brought(Mutex::new(brought), Arc::clone(&answers));
        let bounds = Bounds { connections: 1, header_timeout: PATIENCE, stop_within: PATIENCE };
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(run(door, bounds, async { drop(stopped.await) }));

        let (mut silent, mut waiting) = (enter(), enter());
        assert!(ask(&mut waiting).await.ends_with("here"));
        assert_eq!(silent.read(&mut [0]).await.unwrap(), 0, "it made room");

        let mut busy = enter();
        let answer = tokio::spawn(async move { ask(&mut busy).await });
        let mut late = enter();
        // Long enough for the one that cannot end yet to be asked to again and again.
        tokio::time::sleep(TIME_TO_ASK + CROWDED_PAUSE * 4).await;
        answers.add_permits(2);
        assert!(answer.await.unwrap().ends_with("here"));
        // The crowd is over: what it wished must not meet who came in after it.
        assert!(ask(&mut late).await.ends_with("here"));

        stop.send(()).unwrap();
        tokio::time::timeout(PATIENCE, server).await.unwrap().unwrap();
    }
}
