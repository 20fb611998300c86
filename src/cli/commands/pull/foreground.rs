//! A pull that does its own work: the owner of the volume, for one job.

use std::time::Duration;

use tokio::time::sleep;

use super::follow::{self, Followed};
use super::{Ended, Pull, looks};
use crate::api::client::Client;
use crate::api::{Candidate, OwnError, Wish};
use crate::cli::exit::CliError;
use crate::cli::owning;
use crate::cli::progress::Line;
use crate::cli::signals::Signals;
use crate::clock;
use crate::core::code::Code;
use crate::core::job::JobState;
use crate::core::manifest::Manifest;
use crate::core::status::ModelStatus;
use crate::daemon::preview::{Preview, is_complete};
use crate::daemon::resolve::Resolved;
use crate::daemon::{Daemon, Options, StartError, report};
use crate::hub::HubConfig;
use crate::volume::Volume;
use crate::volume::owner::{Lapsed, Lease, LeaseWatch, current};

/// How often progress is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How often a volume that somebody holds is looked at.
const KNOCK_EVERY: Duration = Duration::from_secs(1);

/// Who works on the volume.
enum Owner {
    Us(Box<Daemon>),
    /// Somebody on this host who answers.
    Other(Box<Client>),
    /// Somebody else, who has made the model complete meanwhile.
    Nobody,
}

/// Has the job done: as the owner of the volume, or by the owner there is.
pub(in crate::cli::commands) async fn pull(
    pull: &Pull,
    hub: HubConfig,
    seen: Preview,
    signals: &mut Signals,
) -> Result<Ended, CliError> {
    let manifest = seen.resolved.manifest.clone();
    let token = hub.token.clone();
    let signer = owning::signer(&pull.settings)?;
    let options = Options { signer, ..owning::options(&pull.settings, true, hub) };
    let wish = owning::wish(&pull.settings, &pull.environment, true)?;
    loop {
        let owner = tokio::select! {
            owner = own(pull, &options, &wish, &manifest) => owner?,
            exit = signals.next() => return Ok(Ended::Stopped(exit)),
        };
        match owner {
            Owner::Us(daemon) => return work(pull, *daemon, seen.resolved, signals).await,
            Owner::Nobody => return Ok(Ended::Done(None)),
            Owner::Other(client) => match follow::hand_over(pull, &client, token.as_ref(), signals).await? {
                Followed::Done(model) => return Ok(Ended::Done(Some(model))),
                Followed::Stopped(exit) => return Ok(Ended::Stopped(exit)),
                // The next epoch may be ours.
                Followed::OwnerGone => {}
            },
        }
    }
}

/// Does the job as the owner, and gives the volume back.
async fn work(pull: &Pull, daemon: Daemon, resolved: Resolved, signals: &mut Signals) -> Result<Ended, CliError> {
    if !pull.proved.is_empty() {
        daemon.jobs().learn(&pull.request.spec.name, &pull.proved);
    }
    if let Err(error) = daemon.jobs().submit(pull.request.spec.clone(), None, Some(resolved)) {
        daemon.stop().await;
        return Err(CliError::from(&error));
    }
    let end = watch(pull, &daemon, signals).await;
    tokio::select! {
        () = daemon.stop() => end,
        exit = signals.next() => Ok(Ended::Stopped(exit)),
    }
}

/// Becomes the owner, or finds the one there is. An owner that does not answer here is waited
/// for, as long as that may take; what it does is shown.
async fn own(pull: &Pull, options: &Options, wish: &Wish, manifest: &Manifest) -> Result<Owner, CliError> {
    let mut watch: Option<LeaseWatch> = None;
    let mut lapsed: Option<Lapsed> = None;
    let mut candidate = Candidate::prepare(options.clone(), wish).map_err(|error| CliError::from(&error))?;
    let volume =
        Volume::open(&options.volume).map_err(|error| CliError::from(&OwnError::from(StartError::from(error))))?;
    loop {
        let error = match candidate.own(lapsed.take()).await {
            Ok(daemon) => return Ok(Owner::Us(Box::new(daemon))),
            Err(error) => error,
        };
        let Some(holder) = error.holder() else { return Err(CliError::from(&error)) };
        if let Some(client) = Client::find(&volume).await.map_err(|error| CliError::from(&error))? {
            return Ok(Owner::Other(Box::new(client)));
        }
        if !pull.request.wait_for_owner {
            return Err(CliError::from(&error));
        }
        if watch.is_none() {
            pull.ui.note(&format!("{holder}; waiting for it (--no-wait ends at once)"));
        }
        let watch = watch.get_or_insert_with(|| LeaseWatch::begin(holder.seen.clone(), clock::since_boot()));
        sleep(KNOCK_EVERY).await;
        if is_done(&volume, pull, manifest) {
            return Ok(Owner::Nobody);
        }
        if let Ok(Some(seen)) = volume.owners().and_then(|owners| current(&owners))
            && let Lease::Over(over) = watch.observe(&seen, clock::since_boot())
        {
            lapsed = Some(over);
        }
    }
}

/// Whether the owner there is has made the model complete.
fn is_done(volume: &Volume, pull: &Pull, manifest: &Manifest) -> bool {
    if pull.request.spec.repair.is_some() {
        // What a receipt says of it is what is in doubt.
        return false;
    }
    let model = volume.model(&pull.request.spec.name).ok().flatten();
    model.is_some_and(|model| is_complete(&model, manifest).unwrap_or(false))
}

/// Shows progress until the job ends or somebody stops it.
async fn watch(pull: &Pull, daemon: &Daemon, signals: &mut Signals) -> Result<Ended, CliError> {
    let name = &pull.request.spec.name;
    let (jobs, lost) = (daemon.jobs(), daemon.lost());
    let mut progress = pull.ui.progress();
    let (mut looks, mut events) = (looks(LOOK_EVERY), jobs.follow());
    let end = loop {
        tokio::select! {
            _ = looks.tick() => {}
            // Something happened, or more than this could follow: either way it is time to look.
            _ = events.recv() => {}
            exit = signals.next() => {
                pull.ui.note("stopping: what came is kept, and the same command goes on from there");
                break Ok(Ended::Stopped(exit));
            }
            () = lost.cancelled() => {
                break Err(CliError::new(Code::Held, "another process has taken the volume")
                    .hint("pull again: the new owner goes on with what is there"));
            }
        }
        let Some(model) = report::of_one(&jobs, name) else { continue };
        // Until the job is taken up there is nothing to tell that was not asked for.
        if model.bytes.is_some() {
            progress.show(&Line::from(&model), clock::since_boot());
        }
        if let Some(end) = ended(&model) {
            break end.map(|()| Ended::Done(Some(Box::new(model))));
        }
    };
    progress.finish();
    end
}

/// Whether a job has ended, and how.
pub(super) fn ended(model: &ModelStatus) -> Option<Result<(), CliError>> {
    match model.state {
        JobState::Ready => Some(Ok(())),
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
