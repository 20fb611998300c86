//! The body of one answer: the bytes asked for, in order, and never one more.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;

use super::error::{Problem, ReadError};
use super::head::is_pointer;
use super::health::{Blame, Served};
use crate::core::digest::Digest;
use crate::core::endpoint::Origin;
use crate::core::manifest::FileEntry;
use crate::core::repo_path::RepoPath;
use crate::hub::{Lost, Patience};

/// The bytes of one read, in order.
#[derive(Debug)]
pub struct Body {
    path: RepoPath,
    digest: Digest,
    host: Origin,
    served: Served,
    response: Response,
    range: Range<u64>,
    /// Where the next byte of the answer belongs.
    position: u64,
    partial: bool,
    idle: Duration,
    patience: Patience,
}

impl Body {
    /// The body of an answer of `host` whose head was found right for `range` of a file.
    pub(super) fn new(
        entry: &FileEntry,
        range: Range<u64>,
        (host, response): (Origin, Response),
        served: Served,
        idle: Duration,
    ) -> Self {
        let partial = response.status() == reqwest::StatusCode::PARTIAL_CONTENT;
        Self {
            path: entry.path.clone(),
            digest: entry.digest,
            host,
            served,
            response,
            position: if partial { range.start } else { 0 },
            range,
            partial,
            idle,
            patience: Patience::new(idle),
        }
    }

    /// The next bytes asked for and where they belong; nothing after the last of them.
    ///
    /// # Errors
    /// [`ReadError`] when the body breaks, pauses too long, ends early or does not end.
    pub async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        loop {
            let Some(mut bytes) = self.chunk().await.map_err(|problem| self.failed(problem))? else { return Ok(None) };
            self.served.now();
            let at = self.position;
            self.position += bytes.len() as u64;
            let skipped = self.range.start.saturating_sub(at).min(bytes.len() as u64);
            if skipped < bytes.len() as u64 {
                let wanted = bytes.split_off(usize::try_from(skipped).unwrap_or(usize::MAX));
                return Ok(Some((at + skipped, wanted)));
            }
        }
    }

    async fn chunk(&mut self) -> Result<Option<Bytes>, Problem> {
        let received = self.position.saturating_sub(self.range.start);
        if self.position >= self.range.end {
            self.patience.content();
        }
        match self.patience.chunk(&mut self.response).await {
            Err(Lost::Silence) => Err(Problem::Idle { after: self.idle, received }),
            Err(Lost::Trickle { bytes, within }) => Err(Problem::Trickle { bytes, within, received }),
            Err(Lost::Broken(source)) => Err(Problem::Broken { received, source: source.without_url() }),
            Ok(None) if self.position < self.range.end => Err(Problem::Short { received }),
            Ok(Some(bytes)) if bytes.len() as u64 > self.range.end - self.position => Err(Problem::TooLong),
            Ok(Some(bytes)) if self.position == 0 && is_pointer(&bytes, &self.digest) => Err(Problem::Pointer),
            Ok(bytes) => Ok(bytes),
        }
    }

    fn failed(&self, problem: Problem) -> ReadError {
        let (path, range, host) = (self.path.clone(), self.range.clone(), self.host.clone());
        ReadError { path, range, host, problem, blame: Blame::Request }
    }

    /// End of the bytes asked for.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.range.end
    }

    /// Whether the server answered with a part of the file: it knows ranges.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        self.partial
    }
}
