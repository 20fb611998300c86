//! The only place that starts tasks and threads which nobody waits for in line.
//!
//! Invariant: whatever it started has ended when [`Supervisor::stop`] returns, or was given its
//! time and told so. Also owns the runtime of the data plane, so that a slow disk never stops
//! the answers of the control plane.

#![allow(clippy::disallowed_methods, reason = "this is the home of tasks and threads")]

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::parallel::cores;

/// The nice value of who waits for everybody.
const LEAST: i32 = 19;

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

/// Lets everybody else's threads go before this one, and those that it starts from now on: for the
/// processor by its nice value, and with it for the disk. The kernel takes a thread of that value
/// for the last of the best-effort class, unless it was given another class expressly.
pub fn yield_to_others() {
    if let Err(error) = rustix::process::setpriority_process(None, LEAST) {
        debug!(%error, "the priority stays as it is");
    }
}

/// The runtime on which connections run.
#[derive(Debug)]
pub struct DataPlane(Option<Runtime>);

impl DataPlane {
    /// Starts its threads, one a core; with `low_impact` everybody else's come first.
    ///
    /// # Errors
    /// When the system gives no threads.
    pub fn start(low_impact: bool) -> io::Result<Self> {
        let threads = cores().max(2);
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(threads).thread_name("muster-data").enable_all();
        if low_impact {
            builder.on_thread_start(yield_to_others);
        }
        Ok(Self(Some(builder.build()?)))
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
