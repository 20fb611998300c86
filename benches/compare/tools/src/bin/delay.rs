//! A TCP proxy that makes a far server out of a near one: `delay RTT_MS WINDOW LISTEN=TARGET…`.
//!
//! The kernels of many machines have no netem. Towards the client the bytes in flight are held to a
//! window that starts at ten segments, doubles each round trip as acknowledged bytes come back, ends
//! at WINDOW bytes, and starts over after a silence, as TCP's does; there is no loss and no shared
//! bottleneck. A byte takes half a round trip each way; the handshake costs a whole one before the
//! request moves. Acknowledgements are those of a client that always reads.

use std::collections::VecDeque;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

const SEGMENT: u64 = 1448;
const INITIAL_WINDOW: u64 = 10 * SEGMENT;
const READ_MAX: usize = 256 * 1024;

struct Link {
    rtt: Duration,
    window_max: u64,
}

/// Bytes on their way, and when they arrive.
struct Flight {
    arrives: Instant,
    bytes: Vec<u8>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [rtt_ms, window, routes @ ..] = arguments.as_slice() else {
        return Err("usage: delay RTT_MS WINDOW LISTEN=TARGET…".into());
    };
    let link = Arc::new(Link { rtt: Duration::from_millis(rtt_ms.parse()?), window_max: window.parse()? });
    let mut listeners = Vec::new();
    for route in routes {
        let (listen, target) = route.split_once('=').ok_or("a route is LISTEN=TARGET")?;
        let listener = TcpListener::bind(listen).await?;
        listeners.push(tokio::spawn(serve(listener, target.to_owned(), Arc::clone(&link))));
    }
    for listener in listeners {
        listener.await??;
    }
    Ok(())
}

async fn serve(listener: TcpListener, target: String, link: Arc<Link>) -> io::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        let target = target.clone();
        let link = Arc::clone(&link);
        tokio::spawn(async move {
            // A connection that breaks ends by itself; its peer sees it closed.
            let _ = carry(client, &target, &link).await;
        });
    }
}

async fn carry(client: TcpStream, target: &str, link: &Arc<Link>) -> io::Result<()> {
    let opened = Instant::now();
    let server = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let half = link.rtt / 2;

    let (up, up_arrivals) = mpsc::channel(64);
    let upward = async {
        tokio::join!(depart_up(client_read, up, opened + link.rtt, half), arrive(up_arrivals, server_write));
    };
    let (down, down_arrivals) = mpsc::channel(1 << 16);
    let downward = async {
        tokio::join!(depart_down(server_read, down, link), arrive(down_arrivals, client_write));
    };
    tokio::join!(upward, downward);
    Ok(())
}

/// Requests: small, so only late. Nothing leaves before the handshake could have ended.
async fn depart_up(mut from: OwnedReadHalf, to: mpsc::Sender<Flight>, earliest: Instant, half: Duration) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let arrives = Instant::now().max(earliest) + half;
        let flight = Flight { arrives, bytes: buffer[..length].to_vec() };
        if to.send(flight).await.is_err() {
            return;
        }
    }
}

/// Answers: never more unacknowledged bytes than the window of this moment.
async fn depart_down(mut from: OwnedReadHalf, to: mpsc::Sender<Flight>, link: &Link) {
    let mut window = INITIAL_WINDOW.min(link.window_max);
    let mut in_flight = 0;
    let mut acknowledgements: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut last_departure = Instant::now();
    loop {
        let now = Instant::now();
        while let Some(&(due, length)) = acknowledgements.front()
            && due <= now
        {
            acknowledgements.pop_front();
            in_flight -= length;
            window = (window + length).min(link.window_max);
        }
        // Small leftovers of a full window wait for more room: a system call for each would cost more than TCP does.
        let room = window - in_flight.min(window);
        if room < SEGMENT.min(window) || (room < window / 16 && !acknowledgements.is_empty()) {
            let Some(&(due, _)) = acknowledgements.front() else { return };
            sleep_until(due).await;
            continue;
        }
        let mut bytes = Vec::with_capacity(READ_MAX.min(room as usize));
        let Ok(length @ 1..) = (&mut from).take(room.min(READ_MAX as u64)).read_buf(&mut bytes).await else { return };
        let now = Instant::now();
        // As TCP: after a silence longer than a retransmission timeout the window starts small again.
        if acknowledgements.iter().all(|&(due, _)| due <= now) && now - last_departure > 2 * link.rtt {
            window = INITIAL_WINDOW.min(link.window_max);
        }
        last_departure = now;
        in_flight += length as u64;
        acknowledgements.push_back((now + link.rtt, length as u64));
        if to.send(Flight { arrives: now + link.rtt / 2, bytes }).await.is_err() {
            return;
        }
    }
}

/// Hands over what has arrived; a receiver that does not read holds up the rest, and ends it by closing.
async fn arrive(mut flights: mpsc::Receiver<Flight>, mut to: OwnedWriteHalf) {
    while let Some(flight) = flights.recv().await {
        sleep_until(flight.arrives).await;
        if to.write_all(&flight.bytes).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}
