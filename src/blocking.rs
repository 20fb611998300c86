//! The bounded pool for work that blocks: syncs, renames, hashing from disk.
//!
//! Owns the only way from async code to a blocking thread. A caller that goes away does not
//! stop work already begun: a sync is always seen through.

#![allow(clippy::disallowed_methods, reason = "this is the home of blocking threads")]

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinHandle};

/// Runs blocking work, at most so many pieces at once.
#[derive(Debug, Clone)]
pub struct Blocking {
    runtime: Handle,
    permits: Arc<Semaphore>,
}

impl Blocking {
    /// A pool of `threads` on the threads of `runtime`.
    #[must_use]
    pub fn new(runtime: Handle, threads: usize) -> Self {
        Self { runtime, permits: Arc::new(Semaphore::new(threads.max(1))) }
    }

    /// Runs `work` on a blocking thread; waits for a free place first.
    ///
    /// # Panics
    /// When `work` panicked: the panic goes on in the caller.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        self.start(work).wait().await
    }

    /// Starts `work` whose number its callers bound, without waiting for a free place.
    pub fn start_at_once<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Started<T> {
        Started(self.runtime.spawn_blocking(move || Ok(work())))
    }

    /// Starts `work` and goes on; it is done whether or not anybody waits.
    pub fn start<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Started<T> {
        let (runtime, permits) = (self.runtime.clone(), Arc::clone(&self.permits));
        Started(self.runtime.spawn(async move {
            let _permit = permits.acquire_owned().await.expect("the semaphore is never closed");
            runtime.spawn_blocking(work).await
        }))
    }
}

/// Work that was started.
#[derive(Debug)]
pub struct Started<T>(JoinHandle<Result<T, JoinError>>);

impl<T> Started<T> {
    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.0.is_finished()
    }

    /// Waits for its result.
    ///
    /// # Panics
    /// When the work panicked: the panic goes on here.
    pub async fn wait(self) -> T {
        match self.0.await.and_then(|inner| inner) {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime is shutting down under us; there is no one left to answer.
                Err(_) => std::future::pending().await,
            },
        }
    }
}
