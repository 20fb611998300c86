//! A pull that does its own work: the owner of the volume, for one job.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};

use super::{Pull, told};
use crate::cli::exit::{CliError, Exit};
use crate::cli::progress::Line;
use crate::cli::signals::Signals;
use crate::clock;
use crate::config::Size;
use crate::core::code::Code;
use crate::core::job::JobState;
use crate::core::manifest::Manifest;
use crate::core::status::ModelStatus;
use crate::daemon::preview::Preview;
use crate::daemon::{Daemon, JobRefusal, Options, StartError, report};
use crate::hub::HubConfig;
use crate::volume::Volume;
use crate::volume::owner::{Lapsed, Lease, LeaseWatch, OwnerError, current};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a volume that somebody holds is looked at.
const KNOCK_EVERY: Duration = Duration::from_secs(1);

/// How the pull ended.
pub(super) enum End {
    Done(Manifest),
    Stopped(Exit),
}

/// Owns the volume, does the job, gives the volume back.
pub(super) async fn pull(pull: &Pull, hub: HubConfig, seen: Preview, signals: &mut Signals) -> Result<End, CliError> {
    let options = options(pull, hub);
    let manifest = seen.resolved.manifest.clone();
    let daemon = tokio::select! {
        daemon = own(pull, options) => daemon?,
        exit = signals.next() => return Ok(End::Stopped(exit)),
    };
    let submitted = daemon.jobs().submit(pull.request.spec.clone(), None, Some(seen.resolved));
    if let Err(error) = submitted {
        daemon.stop().await;
        return Err(refused(&error));
    }
    let end = follow(pull, &daemon, manifest, signals).await;
    tokio::select! {
        () = daemon.stop() => end,
        exit = signals.next() => Ok(End::Stopped(exit)),
    }
}

fn options(pull: &Pull, hub: HubConfig) -> Options {
    let settings = &pull.settings;
    Options {
        volume: settings.volume.value.clone(),
        state_dir: settings.state_dir.value.clone(),
        jobs: 1,
        foreground: true,
        readback: settings.readback.value,
        reserve: settings.reserve.value.fixed().map(Size::bytes),
        retry_for: Some(settings.retry_for.value),
        retire_after: settings.retire_after.value,
        hub,
        offline: settings.offline.value,
        socket: None,
    }
}

/// Becomes the owner, waiting for one that is there as long as that may take.
async fn own(pull: &Pull, options: Options) -> Result<Daemon, CliError> {
    let mut watch: Option<LeaseWatch> = None;
    let mut lapsed: Option<Lapsed> = None;
    loop {
        let holder = match Daemon::start(options.clone(), lapsed.take()).await {
            Ok(daemon) => return Ok(daemon),
            Err(StartError::Owner(OwnerError::Held(holder))) if pull.request.wait_for_owner => holder,
            Err(error) => return Err(not_started(&error)),
        };
        if watch.is_none() {
            pull.ui.note(&format!("{holder}; waiting for it (--no-wait ends at once)"));
        }
        let watch = watch.get_or_insert_with(|| LeaseWatch::begin(holder.seen.clone(), clock::since_boot()));
        sleep(KNOCK_EVERY).await;
        let seen = Volume::open(&options.volume).and_then(|volume| current(&volume.owners()?));
        if let Ok(Some(seen)) = seen
            && let Lease::Over(over) = watch.observe(&seen, clock::since_boot())
        {
            lapsed = Some(over);
        }
    }
}

/// Shows progress until the job ends or somebody stops it.
async fn follow(pull: &Pull, daemon: &Daemon, manifest: Manifest, signals: &mut Signals) -> Result<End, CliError> {
    let name = &pull.request.spec.name;
    let (jobs, lost) = (daemon.jobs(), daemon.lost());
    let mut progress = pull.ui.progress();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = loop {
        tokio::select! {
            _ = looks.tick() => {}
            exit = signals.next() => break Ok(End::Stopped(exit)),
            () = lost.cancelled() => {
                break Err(CliError::new(Code::Held, "another process has taken the volume")
                    .hint("pull again: the new owner goes on with what is there"));
            }
        }
        let report = report::of_jobs(&jobs, daemon.status());
        let Some(model) = report.models.iter().find(|model| model.id == *name) else { continue };
        progress.show(&Line::from(model), clock::since_boot());
        if let Some(end) = ended(model, &manifest) {
            break end;
        }
    };
    progress.finish();
    end
}

fn ended(model: &ModelStatus, manifest: &Manifest) -> Option<Result<End, CliError>> {
    match model.state {
        JobState::Ready => Some(Ok(End::Done(manifest.clone()))),
        JobState::Failed => {
            let unknown = || CliError::new(Code::Internal, "the job failed without a reason");
            Some(Err(model.error.clone().map_or_else(unknown, CliError::from)))
        }
        JobState::Paused | JobState::Cancelled => {
            let word = model.state.word();
            Some(Err(CliError::new(Code::Interrupted, format!("the job was {word} by somebody else"))))
        }
        _ => None,
    }
}

fn refused(error: &JobRefusal) -> CliError {
    match error {
        JobRefusal::Work(error) => told(error),
        error => CliError::from_error(error.code(), error),
    }
}

fn not_started(error: &StartError) -> CliError {
    let told = CliError::from_error(error.code(), error);
    match error.hint() {
        Some(hint) => told.hint(hint),
        None => told,
    }
}
