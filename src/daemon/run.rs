//! Owning a volume from start to end.
//!
//! Owns the order: take the volume, open the store, recover, work, stop, give the volume back.
//! Invariant: when [`Daemon::stop`] returns, no task of it writes any more.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::admit::Promises;
use super::bench::{Bench, blocking_threads, tell_loss};
use super::bounds::{connections_max, syncs};
use super::jobs::Jobs;
use super::limiting::{self, LimitPolicy, Limits};
use super::pulse::{Pulse, Turns};
use super::refusal::JobRefusal;
use super::reporter::Reporter;
use super::scrubbing::{self, ScrubPolicy};
use super::supervisor::{DataPlane, Supervisor};
use super::{recover, scheduler, update};
use crate::blocking::Blocking;
use crate::clock;
use crate::core::code::Code;
use crate::core::model_name::ModelName;
use crate::core::oms::key::PrivateKey;
use crate::core::readback::Readback;
use crate::core::status::DaemonStatus;
use crate::fetch::{OwnershipLost, Pages};
use crate::hub::{HubClient, HubConfig, HubError};
use crate::limits;
use crate::store::{Found, Store};
use crate::volume::owner::{HEARTBEAT, Introduction, Lapsed, Lost, Now, OwnerError, Ownership, ProcessFacts};
use crate::volume::{Volume, VolumeError};

/// What an owner is started with.
#[derive(Debug, Clone)]
pub struct Options {
    /// The volume's root; made when it is not there.
    pub volume: PathBuf,
    /// Where the store goes, if not on the volume.
    pub state_dir: Option<PathBuf>,
    /// Jobs worked on at a time.
    pub jobs: usize,
    /// Whether this owner works on what is submitted to it and on nothing else.
    pub foreground: bool,
    /// Whether finished files are read back.
    pub readback: Readback,
    /// Bytes kept free; none is the default of the volume's size.
    pub reserve: Option<u64>,
    /// How long an origin may be in trouble; none is without end.
    pub retry_for: Option<Duration>,
    /// How long retired files are kept.
    pub retire_after: Duration,
    /// The Hub, its token, and the bounds on silence.
    pub hub: HubConfig,
    /// Whether no request may be made.
    pub offline: bool,
    /// How fast bytes may come.
    pub limits: LimitPolicy,
    /// Whether others on this machine come first: their pages, their time, their disk.
    pub low_impact: bool,
    /// What becomes of the pages of what is fetched.
    pub pages: Pages,
    /// Where the owner answers, if anywhere.
    pub socket: Option<String>,
    /// What signs every model that becomes complete, if anything does.
    pub signer: Option<Arc<PrivateKey>>,
    /// When models are read again by themselves.
    pub scrub: ScrubPolicy,
}

/// Why a volume could not be taken.
#[derive(Debug, Error)]
pub enum StartError {
    /// The volume cannot be used.
    #[error("the volume cannot be used")]
    Volume(#[from] VolumeError),
    /// Somebody has it.
    #[error("the volume cannot be taken")]
    Owner(#[from] OwnerError),
    /// No HTTP client.
    #[error("no client for the Hub")]
    Hub(#[from] HubError),
    /// No threads.
    #[error("no threads for the data plane")]
    Threads(#[source] std::io::Error),
}

impl StartError {
    /// The outcome.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Volume(error) => error.code(),
            Self::Owner(OwnerError::Held(_) | OwnerError::Contended) => Code::Held,
            Self::Owner(OwnerError::Volume(error)) => error.code(),
            Self::Owner(OwnerError::Exhausted) | Self::Threads(_) => Code::CouldNotCheck,
            Self::Hub(error) => error.code(),
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Volume(error) | Self::Owner(OwnerError::Volume(error)) => error.hint().map(str::to_owned),
            Self::Hub(error) => error.hint(),
            Self::Owner(OwnerError::Exhausted) => Some(
                "when nothing works on the volume, move its folder .muster/owners away; everything else stays"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// The owner of a volume, at work.
pub struct Daemon {
    jobs: Jobs,
    supervisor: Supervisor,
    ownership: Arc<Ownership>,
    lost: CancellationToken,
    pulse: Pulse,
    me: DaemonStatus,
    retire_after: Duration,
    _data: DataPlane,
}

impl Daemon {
    /// Takes the volume and goes to work.
    ///
    /// # Errors
    /// [`StartError`]; nothing was changed but the records of owners.
    pub async fn start(options: Options, lapsed: Option<Lapsed>) -> Result<Self, StartError> {
        let data = DataPlane::start(options.low_impact).map_err(StartError::Threads)?;
        // What computes and waits for the disk is no more urgent than what fetches.
        let threads = if options.low_impact { data.handle() } else { Handle::current() };
        let blocking = Blocking::new(threads, blocking_threads());
        let facts = ProcessFacts::read();
        let mut me = DaemonStatus {
            running: Some(true),
            host: Some(facts.host.clone()),
            pid: Some(facts.pid),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            age_s: None,
            notices: Vec::new(),
        };
        let hub = HubClient::new(options.hub.clone())?;
        let taken = {
            let options = options.clone();
            Blocking::new(Handle::current(), 1).run(move || take(&options, &facts, lapsed.as_ref())).await?
        };
        let (volume, ownership, Found { store, notices }, host) = taken;
        me.notices = notices.iter().map(ToString::to_string).collect();
        let ownership = Arc::new(ownership);
        let bench = bench(volume, store, &ownership, host, blocking, &data, hub, &options);
        let jobs = Jobs::new(Arc::new(bench), !options.foreground);
        let mut daemon = Self {
            jobs: jobs.clone(),
            supervisor: Supervisor::default(),
            ownership,
            lost: CancellationToken::new(),
            pulse: Pulse::default(),
            me,
            retire_after: options.retire_after,
            _data: data,
        };
        let recovered = {
            let (jobs, admitted) = (jobs.clone(), !options.foreground);
            daemon.jobs.bench().blocking.clone().run(move || recover::recover(&jobs, admitted)).await
        };
        if let Err(error) = recovered {
            daemon.release().await;
            return Err(error.into());
        }
        daemon.spawn_tasks(options.jobs, options.scrub);
        Ok(daemon)
    }

    /// The table of jobs.
    #[must_use]
    pub fn jobs(&self) -> Jobs {
        self.jobs.clone()
    }

    /// Who owns the volume, as reports say it.
    #[must_use]
    pub fn status(&self) -> DaemonStatus {
        self.me.clone()
    }

    /// For the tasks of those who serve this owner; they stop with it.
    pub fn supervisor(&mut self) -> &mut Supervisor {
        &mut self.supervisor
    }

    /// Cancelled when another process has taken the volume.
    #[must_use]
    pub fn lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Its loops, for whoever watches that they turn.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Stops: nothing new is begun, what came is synced and claimed, the volume is given back. On a
    /// volume that does not answer it ends without.
    pub async fn stop(mut self) {
        std::mem::take(&mut self.supervisor).stop(limits::STOP_WITHIN).await;
        let ended = DaemonStatus { running: Some(false), ..self.me.clone() };
        let end = async {
            Reporter { jobs: self.jobs.clone(), ownership: Arc::clone(&self.ownership), me: ended }.write().await;
            self.release().await;
        };
        if timeout(limits::GIVE_BACK_WITHIN, end).await.is_err() {
            warn!("the volume does not answer and is not given back; the next owner finds out by itself");
        }
    }

    async fn release(&self) {
        let (ownership, jobs) = (Arc::clone(&self.ownership), self.jobs.clone());
        let released = self.jobs.bench().blocking.run(move || {
            let bench = jobs.bench();
            tell_loss(bench.store.flush(), "the store could not be flushed");
            ownership.release(now())
        });
        if let Err(error) = released.await {
            info!(%error, "the volume was not ours to give back");
        }
    }

    fn spawn_tasks(&mut self, most: usize, scrub: ScrubPolicy) {
        let (stop, pulse) = (self.supervisor.token(), || self.pulse.clone());
        self.supervisor.spawn(scrubbing::keep(self.jobs.clone(), scrub, pulse(), stop.clone()));
        let turns = self.pulse.begin("heartbeat", HEARTBEAT);
        self.supervisor.spawn(scheduler::run(self.jobs.clone(), most, pulse(), stop.clone()));
        self.supervisor.spawn(limiting::keep(self.jobs.clone(), pulse(), stop.clone()));
        let (jobs, ownership, lost) = (self.jobs.clone(), Arc::clone(&self.ownership), self.lost.clone());
        self.supervisor.spawn(beat(jobs, ownership, turns, lost, stop.clone()));
        let (jobs, ownership, me) = (self.jobs.clone(), Arc::clone(&self.ownership), self.me.clone());
        self.supervisor.spawn(Reporter { jobs, ownership, me }.keep_writing(pulse(), stop.clone()));
        self.supervisor.spawn(update::keep_retired_short(self.jobs.clone(), self.retire_after, stop));
    }
}

impl Jobs {
    /// Takes a model off the volume. Its directory is moved aside and emptied later, or `now`.
    ///
    /// # Errors
    /// [`JobRefusal`]: unknown, being pulled, in use, or the volume fails.
    pub async fn remove(&self, name: &ModelName, now: bool) -> Result<(), JobRefusal> {
        self.reserve(name)?;
        let (jobs, name) = (self.clone(), name.clone());
        // Seen through even when the caller goes away.
        let removal = self.bench().blocking.start(move || {
            let is_there = || matches!(jobs.bench().volume.model(&name), Ok(Some(_)));
            let was_there = is_there();
            let removed = update::remove(jobs.bench(), &name, now);
            jobs.end_removal(&name, removed.is_ok() || (was_there && !is_there()));
            removed
        });
        Ok(removal.wait().await?)
    }
}

type Taken = (Volume, Ownership, Found, String);

fn take(options: &Options, facts: &ProcessFacts, lapsed: Option<&Lapsed>) -> Result<Taken, StartError> {
    let volume = Volume::create(&options.volume)?;
    let introduction = Introduction {
        socket: options.socket.clone(),
        program: program(),
        foreground: options.foreground,
        random: fastrand::u32(..),
    };
    let ownership = Ownership::acquire(volume.owners()?, facts, &introduction, lapsed, now())?;
    let place = state_place(&volume, options.state_dir.as_deref()).inspect_err(|_| {
        // Whatever comes first, the volume is given back.
        let _ = ownership.release(now());
    })?;
    let found = Store::find(&place, &program(), clock::now());
    found.notices.iter().for_each(|notice| warn!("{notice}"));
    Ok((volume, ownership, found, facts.host.clone()))
}

/// Where the state goes: one elsewhere is for this volume alone, whoever else has theirs there.
fn state_place(volume: &Volume, elsewhere: Option<&Path>) -> Result<PathBuf, VolumeError> {
    match elsewhere {
        Some(dir) => Ok(dir.join(volume.id(fastrand::u64(..))?)),
        None => volume.state_dir(),
    }
}

#[expect(clippy::too_many_arguments, reason = "one call, and each is a different thing")]
fn bench(
    volume: Volume,
    store: Store,
    ownership: &Arc<Ownership>,
    host: String,
    blocking: Blocking,
    data: &DataPlane,
    hub: HubClient,
    options: &Options,
) -> Bench {
    let limits = Limits::new(options.limits.clone(), store.limit().ok().flatten());
    let (permit, takes, lost) = (Arc::clone(ownership), Arc::clone(ownership), Arc::clone(ownership));
    Bench {
        volume,
        store: Arc::new(store),
        unflushed: Arc::default(),
        writer: ownership.writer(),
        blocking,
        data: data.handle(),
        hub,
        offline: options.offline,
        readback: options.readback,
        reserve: options.reserve,
        retry_for: options.retry_for,
        witness: (program(), host),
        signer: options.signer.clone(),
        may_write: Arc::new(move || {
            permit.permit_anew(now()).map_err(|lost| {
                warn!(%lost, "not writing");
                OwnershipLost
            })
        }),
        is_lost: Box::new(move || matches!(lost.permit(clock::since_boot()), Err(Lost::Superseded { .. }))),
        take_over: Box::new(move |writer| takes.take_over(writer)),
        connections_max: connections_max(options.jobs),
        syncs: syncs(options.jobs),
        syncing: Blocking::new(Handle::current(), syncs(1)),
        limits,
        pages: options.pages,
        promises: Promises::default(),
    }
}

/// Shows that this owner lives.
async fn beat(jobs: Jobs, ownership: Arc<Ownership>, turns: Turns, lost: CancellationToken, stop: CancellationToken) {
    let mut beats = interval(HEARTBEAT);
    // Whoever else comes first, this has to be seen in time.
    let blocking = Blocking::new(Handle::current(), 1);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            () = stop.cancelled() => return,
        }
        let ownership = Arc::clone(&ownership);
        match turns.at_volume(blocking.run(move || ownership.beat(now()))).await {
            Ok(()) => {}
            Err(Lost::Superseded { by }) => {
                error!(by, "another process has taken the volume; everything stops");
                jobs.stop_all();
                lost.cancel();
                return;
            }
            Err(error) => warn!(%error, "a heartbeat failed"),
        }
    }
}

fn now() -> Now {
    Now { wall: clock::now(), boot: clock::since_boot() }
}

fn program() -> String {
    concat!("muster ", env!("CARGO_PKG_VERSION")).to_owned()
}
