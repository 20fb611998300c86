//! The runtime under a verb that waits for something.

use std::future::Future;

use tokio::runtime::Builder;

use super::exit::{CliError, Failure};
use crate::core::code::Code;

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
