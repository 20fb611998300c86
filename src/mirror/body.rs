//! The bytes of one answer: read from the volume in bounded steps, as fast as the client takes
//! them.
//!
//! Invariant: every byte sent was read while the file still had the identity it was verified
//! with; when that ends, so does the connection, short of the promised length. One step is on
//! its way to the client and one is read ahead. A client that goes away stops the reading.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use futures_util::stream;

use super::catalog::OpenFile;
use crate::blocking::{Blocking, Started};

/// Bytes read at a time.
const STEP: u64 = 256 * 1024;

/// Called with the number of body bytes that were handed to the connection.
pub(super) type OnSent = Arc<dyn Fn(u64) + Send + Sync>;

/// The body that carries `range` of `file`.
pub(super) fn of(file: OpenFile, range: Range<u64>, reads: Blocking, on_sent: Option<OnSent>) -> Body {
    let mut sending = Sending { file: Arc::new(file), left: range, reads, ahead: None, on_sent };
    sending.read_ahead();
    Body::from_stream(stream::unfold(sending, Sending::next))
}

struct Sending {
    file: Arc<OpenFile>,
    /// What nobody has begun to read.
    left: Range<u64>,
    reads: Blocking,
    /// The step being read; none at the end.
    ahead: Option<Started<io::Result<Bytes>>>,
    on_sent: Option<OnSent>,
}

impl Sending {
    async fn next(mut self) -> Option<(io::Result<Bytes>, Self)> {
        let step = self.ahead.take()?.wait().await;
        match &step {
            Ok(bytes) => {
                self.read_ahead();
                if let Some(on_sent) = &self.on_sent {
                    on_sent(bytes.len() as u64);
                }
            }
            Err(error) => {
                tracing::warn!(file = %self.file.path(), %error, "an answer ends early");
                self.left = 0..0;
            }
        }
        Some((step, self))
    }

    fn read_ahead(&mut self) {
        let len = (self.left.end - self.left.start).min(STEP);
        if len == 0 {
            return;
        }
        let at = self.left.start;
        self.left.start += len;
        let file = Arc::clone(&self.file);
        self.ahead = Some(self.reads.start(move || read(&file, at, len)));
    }
}

fn read(file: &OpenFile, at: u64, len: u64) -> io::Result<Bytes> {
    let mut buf = vec![0; usize::try_from(len).map_err(io::Error::other)?];
    file.read_exact_at(at, &mut buf)?;
    Ok(buf.into())
}
