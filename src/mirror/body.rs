//! The bytes of one answer: read from the volume in bounded steps, as fast as the client takes
//! them.
//!
//! Invariant: every byte sent was read while the file still had the identity it was verified
//! with; when that ends, so does the connection, short of the promised length. What is in memory
//! is read where it is sent, as it is asked for; from the first step on that has to wait for a
//! disk, blocking threads read, one step ahead. A client that goes away stops the reading.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use bytes::BytesMut;
use futures_util::stream;

use super::catalog::OpenFile;
use crate::blocking::{Blocking, Started};

/// Bytes read at a time: they fit a core's cache until they are sent.
const STEP: u64 = 256 * 1024;
/// Steps that the connection holds at a time, written or not.
const IN_FLIGHT: usize = 3;

/// Called with the number of body bytes that were handed to the connection.
pub(super) type OnSent = Arc<dyn Fn(u64) + Send + Sync>;

/// The body that carries `range` of `file`.
pub(super) fn of(file: OpenFile, range: Range<u64>, reads: Blocking, on_sent: Option<OnSent>) -> Body {
    let buffers = Buffers::default();
    let sending = Sending { file: Arc::new(file), left: range, reads, buffers, ahead: None, on_sent };
    Body::from_stream(stream::unfold(sending, Sending::next))
}

struct Sending {
    file: Arc<OpenFile>,
    /// What nobody has begun to read.
    left: Range<u64>,
    reads: Blocking,
    buffers: Buffers,
    /// The step that a blocking thread reads; none while memory has it all.
    ahead: Option<Started<io::Result<BytesMut>>>,
    on_sent: Option<OnSent>,
}

impl Sending {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        let read = match self.ahead.take() {
            Some(started) => {
                let read = started.wait().await;
                self.read_ahead();
                read
            }
            None => self.read().await?,
        };
        let step = read.map(|buffer| self.buffers.lend(buffer));
        match &step {
            Ok(bytes) => {
                if let Some(on_sent) = &self.on_sent {
                    on_sent(bytes.len() as u64);
                }
            }
            Err(error) => {
                tracing::warn!(file = %self.file.path(), %error, "an answer ends early");
                (self.left, self.ahead) = (0..0, None);
            }
        }
        Some((step, self))
    }

    /// The next step, from memory or by a blocking thread; `None` at the end.
    async fn read(&mut self) -> Option<io::Result<BytesMut>> {
        let (at, mut buffer) = self.take_step()?;
        if let Some(read) = self.file.read_cached_at(at, &mut buffer) {
            return Some(read.map(|()| buffer));
        }
        let first = self.start(at, buffer);
        let read = first.wait().await;
        self.read_ahead();
        Some(read)
    }

    fn read_ahead(&mut self) {
        if let Some((at, buffer)) = self.take_step() {
            self.ahead = Some(self.start(at, buffer));
        }
    }

    fn start(&self, at: u64, mut buffer: BytesMut) -> Started<io::Result<BytesMut>> {
        let file = Arc::clone(&self.file);
        self.reads.start(move || file.read_exact_at(at, &mut buffer).map(|()| buffer))
    }

    /// Where the next step begins, and a buffer as long as it is.
    fn take_step(&mut self) -> Option<(u64, BytesMut)> {
        let at = self.left.start;
        let len = (self.left.end - at).min(STEP);
        self.left.start += len;
        let len = usize::try_from(len).ok().filter(|len| *len > 0)?;
        Some((at, self.buffers.take(len)))
    }
}

/// Buffers that come back when the connection has written them: new memory for each step would
/// be cleared by the system page by page.
#[derive(Default)]
struct Buffers {
    lent: VecDeque<Bytes>,
}

impl Buffers {
    fn take(&mut self, len: usize) -> BytesMut {
        let returned = self.lent.pop_front_if(|oldest| oldest.is_unique());
        let mut buffer = returned.and_then(|bytes| bytes.try_into_mut().ok()).unwrap_or_default();
        buffer.resize(len, 0);
        buffer
    }

    fn lend(&mut self, buffer: BytesMut) -> Bytes {
        let bytes = buffer.freeze();
        if self.lent.len() == IN_FLIGHT {
            self.lent.pop_front();
        }
        self.lent.push_back(bytes.clone());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_comes_back_once_it_was_sent_and_not_before() {
        let mut buffers = Buffers::default();
        let mut first = buffers.take(8);
        first.fill(7);
        let place = first.as_ptr();
        let sent = buffers.lend(first);
        assert_ne!(buffers.take(8).as_ptr(), place, "it is still to be sent");
        assert_eq!(&sent[..], [7; 8]);
        drop(sent);
        let again = buffers.take(5);
        assert_eq!((again.as_ptr(), again.len()), (place, 5));
    }

    #[test]
    fn no_more_buffers_are_kept_than_a_connection_can_hold() {
        let mut buffers = Buffers::default();
        let mut next = || {
            let buffer = buffers.take(8);
            buffers.lend(buffer)
        };
        let sent: Vec<_> = (0..10).map(|_| next()).collect();
        assert_eq!((sent.len(), buffers.lent.len()), (10, IN_FLIGHT));
    }
}
