//! Where the mirror's clients come in, and within which bounds.

use std::io;
use std::time::Duration;

use axum::Router;
use tokio::net::{TcpListener, TcpStream};

use crate::serving::{Accepts, Bounds};

/// Each connection costs at most two descriptors and two read buffers.
pub(super) const BOUNDS: Bounds =
    Bounds { connections: 256, header_timeout: Duration::from_secs(60), stop_within: Duration::from_secs(5) };
/// How long a peer may leave what was sent unacknowledged, or its window closed.
const SEND_TIMEOUT: Duration = Duration::from_secs(120);

/// Everybody is served the same.
pub(super) struct Door {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
}

impl Accepts for Door {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Router)> {
        let (stream, _) = self.listener.accept().await?;
        // Both only help: without them the connection is served all the same.
        let _ = stream.set_nodelay(true);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(
            &stream,
            u32::try_from(SEND_TIMEOUT.as_millis()).unwrap_or(u32::MAX),
        );
        Ok((stream, self.router.clone()))
    }
}
