//! The runtime under a verb that waits for something.

use std::future::Future;
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep;

use super::exit::{CliError, Exit, Failure};
use super::signals::Signals;
use crate::core::code::Code;
use crate::limits;

/// How long a verb that was asked to stop may take: as long as its work may, and a moment.
const END_WITHIN: Duration = limits::STOP_WITHIN.saturating_add(Duration::from_secs(5));

/// Runs a verb to its end. Blocking work that is left then does not hold the exit up.
///
/// # Errors
/// What the verb ends with, or that there is no runtime.
pub fn run<T>(verb: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot start the runtime"))?;
    let result = runtime.block_on(verb);
    runtime.shutdown_background();
    result
}

/// As [`run`], for a verb that listens for `signals` itself. It ends when it was asked to for long
/// enough, and at once when it is asked again, even while it waits for an output that nobody reads.
///
/// # Errors
/// As [`run`].
pub fn run_to_a_bounded_end(
    signals: impl FnOnce() -> Result<Signals, CliError>,
    verb: impl Future<Output = Result<Exit, Failure>> + Send + 'static,
) -> Result<Exit, Failure> {
    run(async {
        let mut signals = signals()?;
        // On a thread of its own, so that this one can always answer.
        let mut verbs = JoinSet::new();
        verbs.spawn(verb);
        let exit = tokio::select! {
            Some(end) = verbs.join_next() => return unwound(end),
            exit = signals.next() => exit,
        };
        tokio::select! {
            Some(end) = verbs.join_next() => unwound(end),
            exit = signals.next() => Ok(exit),
            () = sleep(END_WITHIN) => Ok(exit),
        }
    })
}

/// A panic of the verb is a panic here.
fn unwound<T>(end: Result<T, JoinError>) -> T {
    end.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}
