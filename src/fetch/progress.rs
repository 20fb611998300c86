//! What moves while a job fetches, for whoever watches.
//!
//! Owns the counters of one job. They are for display and for deciding that a job stalls;
//! nothing is proved by them.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters of one job; bytes, unless said otherwise.
#[derive(Debug, Default)]
pub struct Progress {
    received: AtomicU64,
    durable: AtomicU64,
    wire: AtomicU64,
    last_byte_ms: AtomicU64,
    connections: AtomicU32,
}

impl Progress {
    /// Bytes written into partials and published files of the job.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }

    /// Bytes of those that are synced and claimed.
    pub fn durable(&self) -> u64 {
        self.durable.load(Relaxed)
    }

    /// Bytes that came over the network since the job was taken up.
    pub fn wire(&self) -> u64 {
        self.wire.load(Relaxed)
    }

    /// When the last byte came, since boot; unknown before the first.
    pub fn last_byte(&self) -> Option<Duration> {
        let at = self.last_byte_ms.load(Relaxed);
        (at > 0).then(|| Duration::from_millis(at))
    }

    /// Connections with a request under way.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Bytes that are on disk already: adopted, or published before.
    pub fn found(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
        self.durable.fetch_add(bytes, Relaxed);
    }

    /// Bytes that partials seem to hold, before anybody looked closer.
    pub fn glimpsed(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn came(&self, bytes: u64, now: Duration) {
        self.received.fetch_add(bytes, Relaxed);
        self.wire.fetch_add(bytes, Relaxed);
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX).max(1);
        self.last_byte_ms.fetch_max(now, Relaxed);
    }

    pub(crate) fn became_durable(&self, bytes: u64) {
        self.durable.fetch_add(bytes, Relaxed);
    }

    /// Bytes that turned out to be worth nothing; the caller says why.
    pub(crate) fn lost(&self, received: u64, durable: u64) {
        self.received.fetch_sub(received, Relaxed);
        self.durable.fetch_sub(durable, Relaxed);
    }

    /// Counts a connection for as long as the guard lives.
    pub(crate) fn connection(&self) -> ConnectionGuard<'_> {
        self.connections.fetch_add(1, Relaxed);
        ConnectionGuard(self)
    }
}

pub(crate) struct ConnectionGuard<'a>(&'a Progress);

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}
