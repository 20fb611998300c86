//! A daemon under a manager of services: what it is told, and when.
//!
//! Owns the judgement that lies between [`Pulse`] and [`Notifier`]: a loop that is stuck ends the signs of life, so
//! that the manager starts the daemon anew; a volume that does not answer is told and ends nothing, since only it
//! can mend that.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::notify::Notifier;
use crate::clock;
use crate::core::status::DaemonStatus;
use crate::core::units;
use crate::daemon::pulse::{Life, Pulse};
use crate::daemon::supervisor::Supervisor;
use crate::daemon::{Jobs, report};

/// How often the status line is made anew.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// A volume that is silent for this long is worth a line.
const SILENCE_TOLD: Duration = Duration::from_secs(15);

/// What the manager is told of.
#[derive(Clone)]
pub struct Serviced {
    /// Who is told.
    pub notifier: Arc<Notifier>,
    /// The volume, as it was named.
    pub volume: PathBuf,
    /// Its jobs.
    pub jobs: Jobs,
    /// Its loops.
    pub pulse: Pulse,
}

impl Serviced {
    /// Says that the daemon is ready, and goes on telling for as long as it runs.
    pub fn begin(&self, supervisor: &mut Supervisor) {
        self.notifier.ready(&self.line(Life::default()));
        if self.notifier.has_manager() {
            let (told, stop) = (self.clone(), supervisor.token());
            supervisor.spawn(async move {
                keep_telling(&told.notifier, &told.pulse, |life| told.line(life), stop).await;
            });
        }
    }

    /// One line for people.
    #[must_use]
    pub fn line(&self, life: Life) -> String {
        with_life(&format!("owns {}; {}", self.volume.display(), of_jobs(&self.jobs)), life)
    }
}

/// What keeps it from its work comes first.
fn with_life(standing: &str, life: Life) -> String {
    let silent = life.volume_silent.filter(|silent| *silent >= SILENCE_TOLD);
    let silent = silent.map(|silent| format!("the volume has not answered for {}", units::duration(silent)));
    let parts = [life.defect(), silent, Some(standing.to_owned())];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Shows signs of life while there is life, and how the daemon stands by what `tell` says, until `stop`.
async fn keep_telling(notifier: &Notifier, pulse: &Pulse, tell: impl Fn(Life) -> String, stop: CancellationToken) {
    // Twice as often as the manager asks for, as it says itself.
    let watchdog = notifier.watchdog();
    let mut ticks = interval(watchdog.map_or(STATUS_EVERY, |span| (span / 2).min(STATUS_EVERY)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = String::new();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        let life = pulse.look(clock::monotonic());
        match life.defect() {
            None if watchdog.is_some() => notifier.alive(),
            None => {}
            Some(defect) => error!("{defect}"),
        }
        let now = tell(life);
        if now != last {
            notifier.status(&now);
            last = now;
        }
    }
}

/// How many jobs are in which state, and how far those are that work.
fn of_jobs(jobs: &Jobs) -> String {
    let report = report::of_jobs(jobs, DaemonStatus::default());
    if report.models.is_empty() {
        return "no models".to_owned();
    }
    let mut states = BTreeMap::new();
    let (mut verified, mut total) = (0, 0);
    for model in &report.models {
        *states.entry(model.state.word()).or_insert(0_u64) += 1;
        if let Some(bytes) = model.bytes.filter(|bytes| bytes.verified < bytes.total) {
            (verified, total) = (verified + bytes.verified, total + bytes.total);
        }
    }
    let counts: Vec<_> = states.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let line = format!("{}: {}", units::count(report.models.len() as u64, "model"), counts.join(", "));
    if total == 0 {
        return line;
    }
    format!("{line}; {} of {} verified", units::bytes_beside(verified, total), units::bytes(total))
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;
    use crate::config::Environment;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_loop_that_is_stuck_ends_the_signs_of_life_and_is_named() {
        let name = format!("muster-serviced-{}", std::process::id());
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let heard = move || {
            let mut bytes = [0; 4096];
            let length = listener.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let variables = [("NOTIFY_SOCKET", &*format!("@{name}")), ("WATCHDOG_USEC", "20000")];
        let notifier = Notifier::of(&Environment::of(&variables), 1);
        let (pulse, mut supervisor) = (Pulse::default(), Supervisor::default());
        let (stop, watched) = (supervisor.token(), pulse.clone());
        let turns = pulse.begin("scheduler", Duration::from_secs(60));
        supervisor
            .spawn(async move { keep_telling(&notifier, &watched, |life| with_life("owns it", life), stop).await });
        assert_eq!([heard(), heard()], ["WATCHDOG=1", "STATUS=owns it"]);
        assert_eq!(heard(), "WATCHDOG=1", "it goes on");
        drop(turns);
        let stuck = |said: &String| said.starts_with("STATUS=stuck: no turn of the scheduler for");
        let first = (0..1000).map(|_| heard()).find(stuck).unwrap();
        let next = heard();
        assert!(stuck(&next) && next != first, "only how long it has been stuck: {next}");
        supervisor.stop(Duration::from_secs(5)).await;
    }
}
