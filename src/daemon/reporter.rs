//! The status that everybody may read, once a second.
//!
//! Invariant: only the owner of the volume tells its story. One that lost it, however late it finds
//! out, leaves the status of the new owner alone.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::jobs::Jobs;
use super::pulse::Pulse;
use super::report;
use crate::clock;
use crate::core::status::DaemonStatus;
use crate::volume::owner::{Lost, Ownership};

/// How often the report is written and rates are sampled.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Who tells, and about what.
pub(super) struct Reporter {
    pub(super) jobs: Jobs,
    pub(super) ownership: Arc<Ownership>,
    pub(super) me: DaemonStatus,
}

impl Reporter {
    /// Writes until it is stopped.
    pub(super) async fn keep_writing(self, pulse: Pulse, stop: CancellationToken) {
        let turns = pulse.begin("reporter", REPORT_EVERY);
        let mut ticks = interval(REPORT_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => return,
            }
            turns.turn();
            let now = clock::since_boot();
            self.jobs.all().iter().for_each(|seen| seen.live.sample(now));
            turns.at_volume(self.write()).await;
        }
    }

    /// Writes once.
    pub(super) async fn write(&self) {
        let report = report::of_jobs(&self.jobs, self.me.clone());
        let bytes = serde_json::to_vec(&report).expect("a report has string keys only");
        let (bench, ownership) = (Arc::clone(self.jobs.bench()), Arc::clone(&self.ownership));
        let written = self.jobs.bench().blocking.run(move || {
            // A late heartbeat takes nothing away: who reads sees how old the report is.
            match ownership.permit(clock::since_boot()) {
                Err(Lost::Superseded { .. } | Lost::Released) => Ok(()),
                Ok(()) | Err(_) => bench.volume.replace_status(bytes),
            }
        });
        if let Err(error) = written.await {
            warn!(%error, "the status file could not be written");
        }
    }
}
