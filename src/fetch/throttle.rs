//! Keeps the bytes of a job, and of all jobs of a volume, under their limits.
//!
//! Owns the waiting: a connection passes before it goes on reading, so that a server is slowed by
//! its full socket. Invariants: what did not pass is not counted; one connection of a job waits
//! for the volume's limit at a time, so that jobs share it evenly; a change wakes whoever waits.
//! Without a limit a step costs two loads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::select;
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::clock;
use crate::core::limit::{Bucket, Rate, lower};
use crate::sources::{Body, ReadError};

/// A limit that may change at any time.
#[derive(Debug, Default)]
pub struct Valve {
    bucket: Mutex<Option<Bucket>>,
    is_limited: AtomicBool,
    changed: Notify,
}

impl Valve {
    /// No more than this from now on; `None` is as much as comes.
    pub fn set(&self, rate: Option<Rate>) {
        let now = clock::since_boot();
        {
            let mut bucket = self.bucket();
            match (&mut *bucket, rate) {
                (Some(bucket), Some(rate)) if bucket.rate() == rate => return,
                (Some(bucket), Some(rate)) => bucket.set(rate, now),
                (bucket, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
            }
            self.is_limited.store(rate.is_some(), Relaxed);
        }
        self.changed.notify_waiters();
    }

    /// What is in force.
    pub fn rate(&self) -> Option<Rate> {
        if self.is_limited.load(Relaxed) { self.bucket().map(|bucket| bucket.rate()) } else { None }
    }

    /// Takes as many of `want` bytes as may pass; waits for the first of them.
    async fn pass(&self, want: u64) -> u64 {
        loop {
            let change = self.changed.notified();
            tokio::pin!(change);
            change.as_mut().enable();
            let pause = match self.bucket().as_mut().map(|bucket| bucket.take(want, clock::since_boot())) {
                None => return want,
                Some(Ok(bytes)) => return bytes,
                Some(Err(pause)) => pause,
            };
            select! {
                () = sleep(pause) => {}
                () = change => {}
            }
        }
    }

    /// Waits until so many bytes may pass, on a thread that may block. `false` as soon as `go_on` says no;
    /// it is asked several times a second.
    pub fn wait(&self, mut want: u64, go_on: &dyn Fn() -> bool) -> bool {
        while go_on() {
            let taken = self.bucket().as_mut().map(|bucket| bucket.take(want, clock::since_boot()));
            match taken {
                None => return true,
                Some(Ok(bytes)) if bytes == want => return true,
                Some(Ok(bytes)) => want -= bytes,
                Some(Err(pause)) => std::thread::sleep(pause),
            }
        }
        false
    }

    fn put_back(&self, bytes: u64) {
        if let Some(bucket) = self.bucket().as_mut() {
            bucket.put_back(bytes);
        }
    }

    fn bucket(&self) -> MutexGuard<'_, Option<Bucket>> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits that a job is under: its own, and the volume's.
#[derive(Debug, Clone, Default)]
pub struct Throttle(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    own: Valve,
    volume: Arc<Valve>,
    /// Held by the connection whose turn it is.
    turn: tokio::sync::Mutex<()>,
    /// Microseconds that there was nobody but waiters, since the job began.
    held_us: AtomicU64,
}

impl Throttle {
    /// Under a volume's limit and one of its own.
    #[must_use]
    pub fn below(volume: &Arc<Valve>) -> Self {
        Self(Arc::new(Inner { volume: Arc::clone(volume), ..Inner::default() }))
    }

    /// The job's own limit from now on.
    pub fn set(&self, rate: Option<Rate>) {
        self.0.own.set(rate);
    }

    /// What holds the job: its own limit and the volume's.
    #[must_use]
    pub fn rates(&self) -> (Option<Rate>, Option<Rate>) {
        (self.0.own.rate(), self.0.volume.rate())
    }

    /// Connections that its limit keeps moving.
    #[must_use]
    pub fn connections(&self) -> usize {
        let (own, volume) = self.rates();
        lower(own, volume).map_or(usize::MAX, Rate::connections)
    }

    /// How long the job was held up so far, whichever of its connections waited.
    #[must_use]
    pub fn held(&self) -> Duration {
        Duration::from_micros(self.0.held_us.load(Relaxed))
    }

    fn is_limited(&self) -> bool {
        self.0.own.is_limited.load(Relaxed) || self.0.volume.is_limited.load(Relaxed)
    }

    /// Waits until some of `want` bytes may pass, and says how many: all, without a limit. A caller
    /// that goes away while it waits has taken nothing of the volume's.
    pub async fn pass(&self, want: usize) -> usize {
        if want == 0 || !self.is_limited() {
            return want;
        }
        let Inner { own, volume, turn, held_us } = &*self.0;
        let _turn = turn.lock().await;
        let began = clock::since_boot();
        let owned = own.pass(want as u64).await;
        // Dropped while it waits, it gives back what did not pass.
        let mut rest = Rest { valve: own, bytes: owned };
        let passed = volume.pass(owned).await;
        rest.bytes = owned - passed;
        let waited = clock::since_boot().saturating_sub(began).as_micros();
        held_us.fetch_add(u64::try_from(waited).unwrap_or(u64::MAX), Relaxed);
        usize::try_from(passed).unwrap_or(want)
    }
}

struct Rest<'a> {
    valve: &'a Valve,
    bytes: u64,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.valve.put_back(self.bytes);
        }
    }
}

/// A body whose bytes come no faster than they may. Nothing is read while anything of what was read
/// waits.
#[derive(Debug)]
pub(super) struct Paced {
    body: Body,
    throttle: Throttle,
    waiting: Option<(u64, Bytes)>,
}

impl Paced {
    pub(super) const fn new(body: Body, throttle: Throttle) -> Self {
        Self { body, throttle, waiting: None }
    }

    /// As [`Body::next`]. May be dropped while it waits for the limit: what waits, waits on.
    pub(super) async fn next(&mut self) -> Result<Option<(u64, Bytes)>, ReadError> {
        if self.waiting.is_none() {
            self.waiting = self.body.next().await?;
        }
        let Some((_, bytes)) = &self.waiting else { return Ok(None) };
        let passed = self.throttle.pass(bytes.len()).await;
        let Some((at, mut bytes)) = self.waiting.take() else { return Ok(None) };
        if passed < bytes.len() {
            let rest = bytes.split_off(passed);
            self.waiting = Some((at + passed as u64, rest));
        }
        Ok(Some((at, bytes)))
    }

    pub(super) const fn end(&self) -> u64 {
        self.body.end()
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::*;

    fn rate(bytes: u64) -> Option<Rate> {
        Rate::new(bytes)
    }

    /// Passes `bytes` in chunks by so many connections.
    async fn pass_all(throttle: &Throttle, connections: usize, bytes: usize) {
        let mut tasks = JoinSet::new();
        for _ in 0..connections {
            let throttle = throttle.clone();
            tasks.spawn(async move {
                let mut left = bytes / connections;
                while left > 0 {
                    left -= throttle.pass(left.min(16 << 10)).await;
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
    }

    #[tokio::test]
    async fn the_lower_of_the_two_limits_holds_however_many_connections_there_are() {
        for (own, volume) in [(rate(2_000_000), None), (None, rate(2_000_000)), (rate(2_000_000), rate(9_000_000))] {
            let valve = Arc::new(Valve::default());
            valve.set(volume);
            let throttle = Throttle::below(&valve);
            throttle.set(own);
            let began = clock::since_boot();
            pass_all(&throttle, 8, 800_000).await;
            // A tenth of a second's bytes may have waited in the bucket, which begins empty.
            let took = clock::since_boot().saturating_sub(began);
            assert!(took >= Duration::from_millis(390), "{took:?}");
            assert!(throttle.held() >= Duration::from_millis(300), "{:?}", throttle.held());
        }
    }

    #[test]
    fn who_may_block_waits_as_long_and_not_at_all_once_told_to_stop() {
        let valve = Valve::default();
        assert!(valve.wait(u64::MAX, &|| true) && !valve.wait(1, &|| false));
        valve.set(rate(1_000_000));
        let began = clock::since_boot();
        assert!(valve.wait(400_000, &|| true));
        assert!(clock::since_boot().saturating_sub(began) >= Duration::from_millis(390));
        let asked = AtomicU64::new(0);
        assert!(!valve.wait(u64::MAX, &|| asked.fetch_add(1, Relaxed) < 20));
    }

    #[tokio::test]
    async fn without_a_limit_everything_passes_at_once() {
        let throttle = Throttle::default();
        assert_eq!(throttle.pass(usize::MAX).await, usize::MAX);
        assert_eq!((throttle.held(), throttle.connections(), throttle.pass(0).await), (Duration::ZERO, usize::MAX, 0));
    }

    #[tokio::test]
    async fn a_change_wakes_whoever_waits() {
        let valve = Arc::new(Valve::default());
        let throttle = Throttle::below(&valve);
        throttle.set(rate(1000));
        valve.set(rate(1000));
        let waiting = {
            let throttle = throttle.clone();
            async move { pass_all(&throttle, 4, 8 << 20).await }
        };
        let lifted = async {
            tokio::task::yield_now().await;
            throttle.set(None);
            valve.set(None);
        };
        let both = async { tokio::join!(waiting, lifted) };
        // At 1000 bytes a second it would take two hours.
        timeout(Duration::from_secs(60), both).await.unwrap();
        assert_eq!(throttle.rates(), (None, None));
    }

    #[tokio::test]
    async fn who_goes_away_while_waiting_has_taken_nothing() {
        let valve = Arc::new(Valve::default());
        valve.set(rate(1000));
        let throttle = Throttle::below(&valve);
        throttle.set(rate(1_000_000));
        for _ in 0..50 {
            let _ = timeout(Duration::from_millis(1), throttle.pass(20_000)).await;
        }
        let held = throttle.0.own.bucket().as_mut().unwrap().take(20_000, clock::since_boot());
        assert!(held.is_ok(), "{held:?}");
    }
}
