//! `muster daemon`: owns a volume and works on its jobs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::sleep;
use tracing::info;

use super::pull::hub_config;
use crate::api::{Candidate, Client, Door, OwnError, Service, serve};
use crate::cli::args::DaemonArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::notify::Notifier;
use crate::cli::serviced::Serviced;
use crate::cli::signals::Signals;
use crate::cli::{Context, asking, bearer_file, facts, owning, reload, resolve, runtime};
use crate::clock;
use crate::config::Settings;
use crate::core::code::Code;
use crate::daemon::pulse::Life;
use crate::daemon::{Daemon, Options};
use crate::serving::BearerToken;
use crate::volume::Volume;
use crate::volume::owner::{Holder, LEASE, Lapsed, Lease, LeaseWatch};

/// How often the record of a silent owner is read.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// Owns a volume and works on its jobs until it is told to stop.
///
/// # Errors
/// What the user is told.
pub fn run(args: DaemonArgs, context: Context) -> Result<Exit, Failure> {
    let check = args.check;
    let settings = resolve::daemon(args, context.settings.clone(), &context.here)?;
    if check {
        runtime::run(check_health(&settings, &context))
    } else {
        runtime::run(own_and_serve(settings, &context))
    }
}

/// Asks at the socket that was named, else at that of the volume's owner. With one that was named, nobody waits for
/// a volume that hangs.
async fn check_health(settings: &Settings, context: &Context) -> Result<Exit, Failure> {
    let socket = match &settings.daemon.socket.value {
        Some(path) => path.clone(),
        None => asking::find(&facts::open(&settings.volume)?, context).await?.socket().to_owned(),
    };
    let health = Client::readiness(&socket).await.map_err(|error| CliError::from(&error))?;
    if health.status != "ok" {
        let message = format!("the daemon at {} does not work: {}", socket.display(), health.status);
        return Err(CliError::new(Code::DaemonUnreachable, message).into());
    }
    if context.ui.is_json() {
        context.ui.result_json(&health)?;
    } else {
        context.ui.result(&health.status)?;
    }
    Ok(Exit::Success)
}

async fn own_and_serve(settings: Settings, context: &Context) -> Result<Exit, Failure> {
    let notifier = Arc::new(Notifier::of(&context.environment, std::process::id()));
    let mut signals = Signals::listen()?;
    let mut hangups = signal(SignalKind::hangup())
        .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot listen for signals"))?;
    let tcp = tcp(&settings).await?;
    let signer = owning::signer(&settings)?;
    let options = Options { signer, ..owning::options(&settings, false, hub_config(&settings)?) };
    let wish = owning::wish(&settings, &context.environment, false)?;
    let mut candidate = Candidate::prepare(options, &wish).map_err(|error| CliError::from(&error))?;
    let socket = candidate.address().map(|path| format!(", socket {}", path.display())).unwrap_or_default();
    let owned = tokio::select! {
        owned = own(&mut candidate, context, &notifier) => owned,
        exit = signals.next() => return Ok(exit),
    };
    let mut daemon = owned.map_err(|error| CliError::from(&error))?;
    let mut places = socket;
    if let Some((listener, token)) = tcp {
        places.extend(listener.local_addr().ok().map(|address| format!(", http://{address}")));
        let service = Service::of(&mut daemon);
        daemon.supervisor().spawn(serve(Door::Tcp { listener, token }, service));
    }
    let volume = settings.volume.value.display();
    context.ui.note(&format!("muster daemon owns {volume} (pid {}{places})", std::process::id()));
    let serviced = Serviced {
        notifier: Arc::clone(&notifier),
        volume: settings.volume.value.clone(),
        jobs: daemon.jobs(),
        pulse: daemon.pulse(),
    };
    serviced.begin(daemon.supervisor());
    let lost = daemon.lost();
    let end = loop {
        tokio::select! {
            _ = signals.next() => break Ok(Exit::Success),
            () = lost.cancelled() => {
                let lost = CliError::new(Code::Held, "another process has taken the volume");
                break Err(lost.hint("muster status shows who owns it").into());
            }
            () = hung_up(&mut hangups) => {
                notifier.reloading();
                reload::reload(&settings, context, &daemon.jobs());
                notifier.ready(&serviced.line(Life::default()));
            }
        }
    };
    info!("stopping");
    notifier.stopping("stopping: what came is synced and claimed");
    tokio::select! {
        () = daemon.stop() => end,
        exit = signals.next() => Ok(exit),
    }
}

/// Takes the volume. An owner that cannot be proved dead is waited for, one lease.
async fn own(candidate: &mut Candidate, context: &Context, notifier: &Notifier) -> Result<Daemon, OwnError> {
    let mut lapsed = None;
    loop {
        let error = match candidate.own(lapsed.take()).await {
            Ok(daemon) => return Ok(daemon),
            Err(error) => error,
        };
        let Some(holder) = error.holder().filter(|holder| !holder.alive) else { return Err(error) };
        context.ui.note(&format!("{holder}; waiting whether it shows a sign of life"));
        notifier.extend(LEASE + LOOK_EVERY * 10, &format!("{holder}; waiting whether it shows a sign of life"));
        match outlive(holder, &context.settings.volume.value).await {
            Some(over) => lapsed = Some(over),
            None => return Err(error),
        }
    }
}

/// Watches a silent owner: `None` when it moves, or cannot be watched.
async fn outlive(holder: &Holder, volume: &Path) -> Option<Lapsed> {
    let mut watch = LeaseWatch::begin(holder.seen.clone(), clock::since_boot());
    loop {
        sleep(LOOK_EVERY).await;
        let seen = Volume::open(volume).and_then(|volume| volume.owner()).ok()??.seen;
        if seen != holder.seen {
            return None;
        }
        if let Lease::Over(lapsed) = watch.observe(&seen, clock::since_boot()) {
            return Some(lapsed);
        }
    }
}

async fn hung_up(hangups: &mut Signal) {
    if hangups.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}

/// The TCP listener and its token, where one was configured.
async fn tcp(settings: &Settings) -> Result<Option<(TcpListener, BearerToken)>, CliError> {
    let (Some(address), Some(file)) = (settings.daemon.listen.value, settings.daemon.token_file.value.as_deref())
    else {
        return Ok(None);
    };
    let token = bearer_file::read(file)?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        CliError::from_error(Code::CouldNotCheck, &error)
            .context(format!("cannot listen on {}", settings.daemon.listen))
    })?;
    Ok(Some((listener, token)))
}
