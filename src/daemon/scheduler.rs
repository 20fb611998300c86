//! Which job is worked on, and what its end means.
//!
//! Owns the running workers. Invariant: every worker it started has ended when [`run`] returns.

use std::time::Duration;

use tokio::select;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::error::WorkError;
use super::jobs::Jobs;
use super::pulse::Pulse;
use crate::clock;
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;

/// How often it turns with nothing to do.
const TURN_EVERY: Duration = Duration::from_secs(5);

/// Works on queued jobs, `most` at a time, until `stop`.
pub(super) async fn run(jobs: Jobs, most: usize, pulse: Pulse, stop: CancellationToken) {
    let turns = pulse.begin("scheduler", TURN_EVERY);
    let mut workers: JoinSet<(ModelName, Result<Manifest, WorkError>)> = JoinSet::new();
    loop {
        turns.turn();
        while !stop.is_cancelled()
            && let Some(work) = jobs.take(most, clock::since_boot())
        {
            let name = work.spec.name.clone();
            workers.spawn(async move { (name, work.run().await) });
        }
        let again = jobs.next_again(clock::since_boot());
        select! {
            () = jobs.changed() => {}
            () = sleep(TURN_EVERY) => {}
            () = sleep(again.unwrap_or_default()), if again.is_some() && !stop.is_cancelled() => {}
            Some(ended) = workers.join_next() => match ended {
                Ok((name, result)) => jobs.ended(&name, result),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                Err(_) => {}
            },
            () = stop.cancelled() => {
                jobs.stop_all();
                if workers.is_empty() {
                    return;
                }
                if let Some(Ok((name, result))) = workers.join_next().await {
                    jobs.ended(&name, result);
                }
            }
        }
    }
}
