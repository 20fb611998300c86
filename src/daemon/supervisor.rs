//! The only place that starts tasks and threads which nobody waits for in line.
//!
//! Invariant: whatever it started has ended when [`Supervisor::stop`] returns, or was given its
//! time and told so. Also owns the runtime of the data plane, so that a slow disk never stops
//! the answers of the control plane.

#![allow(clippy::disallowed_methods, reason = "this is the home of tasks and threads")]

use std::future::Future;
use std::io;
use std::num::NonZero;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{error, warn};

/// Tasks with one token and one end.
#[derive(Debug, Default)]
pub struct Supervisor {
    token: CancellationToken,
    tasks: JoinSet<()>,
}

impl Supervisor {
    /// Cancelled when the tasks are to stop.
    pub fn token(&self) -> CancellationToken {
        self.token.clone()
    }

    /// Starts a task. It watches [`Supervisor::token`].
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Tells all tasks to stop and waits, at most `within`; then goes without the rest.
    pub async fn stop(mut self, within: Duration) {
        self.token.cancel();
        let all = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Err(error) = ended {
                    error!(%error, "a task ended badly");
                }
            }
        };
        if tokio::time::timeout(within, all).await.is_err() {
            warn!(seconds = within.as_secs(), "not everything stopped in time; what is durable stays");
            self.tasks.abort_all();
        }
    }
}

/// The runtime on which connections run.
#[derive(Debug)]
pub struct DataPlane(Option<Runtime>);

impl DataPlane {
    /// Starts its threads, one a core.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start() -> io::Result<Self> {
        let threads = std::thread::available_parallelism().map_or(2, NonZero::get).max(2);
        let runtime =
            Builder::new_multi_thread().worker_threads(threads).thread_name("muster-data").enable_all().build()?;
        Ok(Self(Some(runtime)))
    }

    /// Where to start its tasks.
    pub fn handle(&self) -> Handle {
        self.0.as_ref().expect("the runtime lives as long as this value").handle().clone()
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        // May happen on a thread of another runtime, where waiting is not allowed.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
