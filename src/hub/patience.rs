//! How long a body may keep its reader waiting: not for one long silence, and not for many short
//! ones with a byte between them.
//!
//! Counts only the time that was waited for the server: a slow disk between two reads is none of
//! its. There is no limit on a whole body, and none on a slow one that moves.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use tokio::time::timeout;

use crate::clock;

/// Fewer bytes than this in a whole idle timeout are a trickle. With the default of a minute
/// that is some 17 bytes a second: no link that carries anything is as slow, and one that is loses one
/// request in that time.
const TRICKLE_BELOW: u64 = 1 << 10;

/// What a body's reader has borne since the last time it was content.
#[derive(Debug)]
pub struct Patience {
    idle: Duration,
    waited: Duration,
    brought: u64,
}

/// Why a body is not waited for any longer.
#[derive(Debug)]
pub enum Lost {
    /// No byte at all for as long as silence is borne.
    Silence,
    /// Hardly a byte.
    Trickle {
        /// Bytes that came.
        bytes: u64,
        /// In this time.
        within: Duration,
    },
    /// The connection broke.
    Broken(reqwest::Error),
}

impl Patience {
    /// Patience with a body of which `idle` may be waited in one go.
    #[must_use]
    pub const fn new(idle: Duration) -> Self {
        Self { idle, waited: Duration::ZERO, brought: 0 }
    }

    /// The next bytes of a body, or nothing at its end.
    ///
    /// # Errors
    /// [`Lost`]. A trickle is told before the next wait, so that what came with it is not lost.
    pub async fn chunk(&mut self, response: &mut Response) -> Result<Option<Bytes>, Lost> {
        if let Some((bytes, within)) = self.trickle() {
            return Err(Lost::Trickle { bytes, within });
        }
        let began = clock::since_boot();
        let chunk = timeout(self.idle, response.chunk()).await.map_err(|_| Lost::Silence)?.map_err(Lost::Broken)?;
        self.came(clock::since_boot().saturating_sub(began), chunk.as_ref().map_or(0, Bytes::len) as u64);
        Ok(chunk)
    }

    /// Nothing more is expected than the end.
    pub const fn content(&mut self) {
        (self.waited, self.brought) = (Duration::ZERO, 0);
    }

    fn came(&mut self, waited: Duration, bytes: u64) {
        self.waited += waited;
        self.brought += bytes;
    }

    /// What came in which time, if that is too little. Otherwise counting begins anew.
    fn trickle(&mut self) -> Option<(u64, Duration)> {
        if self.waited < self.idle {
            return None;
        }
        let borne = (self.brought, self.waited);
        self.content();
        (borne.0 < TRICKLE_BELOW).then_some(borne)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_byte_every_twenty_seconds_is_a_trickle() {
        let mut patience = Patience::new(30 * S);
        patience.came(20 * S, 1);
        assert_eq!(patience.trickle(), None, "too early to say");
        patience.came(20 * S, 1);
        assert_eq!(patience.trickle(), Some((2, 40 * S)));
    }

    #[test]
    fn a_slow_body_that_moves_is_borne_for_ever() {
        let mut patience = Patience::new(30 * S);
        for _ in 0..100_000 {
            patience.came(S, 50);
            assert_eq!(patience.trickle(), None);
        }
    }

    #[test]
    fn what_came_fast_does_not_excuse_what_follows() {
        let mut patience = Patience::new(30 * S);
        patience.came(30 * S, 1 << 30);
        assert_eq!(patience.trickle(), None);
        patience.came(29 * S, 1);
        patience.came(S, 1);
        assert_eq!(patience.trickle(), Some((2, 30 * S)));
    }
}
