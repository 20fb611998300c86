//! Owning a volume from start to end.
//!
//! Owns the order: take the volume, open the store, recover, work, stop, give the volume back.
//! Invariant: when [`Daemon::stop`] returns, no task of it writes any more.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::admit::Promises;
use super::bench::{Bench, blocking_threads};
use super::descriptors::connections_max;
use super::jobs::Jobs;
use super::refusal::JobRefusal;
use super::report;
use super::supervisor::{DataPlane, Supervisor};
use super::{recover, scheduler, update};
use crate::blocking::Blocking;
use crate::clock;
use crate::core::code::Code;
use crate::core::model_name::ModelName;
use crate::core::readback::Readback;
use crate::core::status::DaemonStatus;
use crate::fetch::OwnershipLost;
use crate::hub::{HubClient, HubConfig, HubError};
use crate::limits;
use crate::store::{Opened, Store, StoreError};
use crate::volume::owner::{HEARTBEAT, Introduction, Lapsed, Lost, Now, OwnerError, Ownership, ProcessFacts};
use crate::volume::{Volume, VolumeError};

/// How often the report is written and rates are sampled.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// How often retired files are looked at.
const RETIRED_EVERY: Duration = Duration::from_secs(600);

/// States that are tried beside each other.
const STATES_MAX: u32 = 4;

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
    /// Where the owner answers, if anywhere.
    pub socket: Option<String>,
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
    /// The store cannot be opened, nor a fresh one.
    #[error("the state cannot be opened")]
    Store(#[from] StoreError),
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
            Self::Store(_) => Code::CouldNotCheck,
            Self::Hub(error) => error.code(),
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Volume(error) | Self::Owner(OwnerError::Volume(error)) => error.hint().map(str::to_owned),
            Self::Hub(error) => error.hint(),
            Self::Store(_) => Some("put the state elsewhere with --state-dir DIR; it can always be rebuilt".to_owned()),
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
        let data = DataPlane::start().map_err(StartError::Threads)?;
        let blocking = Blocking::new(Handle::current(), blocking_threads());
        let facts = ProcessFacts::read();
        let me = DaemonStatus {
            running: Some(true),
            host: Some(facts.host.clone()),
            pid: Some(facts.pid),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            age_s: None,
        };
        let hub = HubClient::new(options.hub.clone())?;
        let taken = {
            let options = options.clone();
            blocking.run(move || take(&options, &facts, lapsed.as_ref())).await?
        };
        let (volume, ownership, store, host) = taken;
        let ownership = Arc::new(ownership);
        let bench = bench(volume, store, &ownership, host, blocking, &data, hub, &options);
        let jobs = Jobs::new(Arc::new(bench), !options.foreground);
        let mut daemon = Self {
            jobs: jobs.clone(),
            supervisor: Supervisor::default(),
            ownership,
            lost: CancellationToken::new(),
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
        daemon.spawn_tasks(options.jobs);
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

    /// Stops: nothing new is begun, what came is synced and claimed, the volume is given back.
    pub async fn stop(mut self) {
        std::mem::take(&mut self.supervisor).stop(limits::STOP_WITHIN).await;
        write_report(&self.jobs, &DaemonStatus { running: Some(false), ..self.me.clone() }).await;
        self.release().await;
    }

    async fn release(&self) {
        let (ownership, jobs) = (Arc::clone(&self.ownership), self.jobs.clone());
        let released = self.jobs.bench().blocking.run(move || {
            if let Err(error) = jobs.bench().store.flush() {
                warn!(%error, "the store could not be flushed");
            }
            ownership.release(now())
        });
        if let Err(error) = released.await {
            info!(%error, "the volume was not ours to give back");
        }
    }

    fn spawn_tasks(&mut self, most: usize) {
        let stop = self.supervisor.token();
        self.supervisor.spawn(scheduler::run(self.jobs.clone(), most, stop.clone()));
        self.supervisor.spawn(beat(self.jobs.clone(), Arc::clone(&self.ownership), self.lost.clone(), stop.clone()));
        self.supervisor.spawn(keep_reporting(self.jobs.clone(), self.me.clone(), stop.clone()));
        self.supervisor.spawn(keep_retired_short(self.jobs.clone(), self.retire_after, stop));
    }
}

impl Jobs {
    /// Takes a model off the volume. Its directory is moved aside and emptied later, or `now`.
    ///
    /// # Errors
    /// [`JobRefusal`]: unknown, being pulled, in use, or the volume fails.
    pub async fn remove(&self, name: &ModelName, now: bool) -> Result<(), JobRefusal> {
        self.begin_removal(name)?;
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

type Taken = (Volume, Ownership, Store, String);

fn take(options: &Options, facts: &ProcessFacts, lapsed: Option<&Lapsed>) -> Result<Taken, StartError> {
    let volume = Volume::create(&options.volume)?;
    let introduction = Introduction {
        socket: options.socket.clone(),
        program: program(),
        foreground: options.foreground,
        random: fastrand::u32(..),
    };
    let ownership = Ownership::acquire(volume.owners()?, facts, &introduction, lapsed, now())?;
    let place = match &options.state_dir {
        Some(dir) => dir.clone(),
        None => volume.state_dir()?,
    };
    let opened = open_store(&place).inspect_err(|_| {
        // Whatever comes first, the volume is given back.
        let _ = ownership.release(now());
    })?;
    if let Some(notice) = opened.notice {
        warn!(path = %notice.path.display(), why = %notice.why, written_by = ?notice.written_by, "the state was set aside untouched; it is rebuilt from the volume");
    }
    Ok((volume, ownership, opened.store, facts.host.clone()))
}

/// Opens the state, or a fresh one beside it: one that somebody else holds, who no longer owns
/// the volume, and one that cannot be used even fresh, are left alone (P5).
fn open_store(place: &Path) -> Result<Opened, StoreError> {
    let mut number = 1;
    loop {
        let dir = match number {
            1 => place.to_owned(),
            _ => place.with_extension(number.to_string()),
        };
        match Store::open(&dir, &program(), clock::now()) {
            Err(error) if number < STATES_MAX => {
                warn!(%error, dir = %dir.display(), "this state cannot be used; another is taken, and rebuilt from the volume");
                number += 1;
            }
            other => return other,
        }
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
    let (permit, takes) = (Arc::clone(ownership), Arc::clone(ownership));
    Bench {
        volume,
        store,
        writer: ownership.writer(),
        blocking,
        data: data.handle(),
        hub,
        offline: options.offline,
        readback: options.readback,
        reserve: options.reserve,
        retry_for: options.retry_for,
        witness: (program(), host),
        may_write: Arc::new(move || {
            permit.permit(clock::since_boot()).map_err(|lost| {
                warn!(%lost, "not writing");
                OwnershipLost
            })
        }),
        take_over: Box::new(move |writer| takes.take_over(writer)),
        connections_max: connections_max(options.jobs),
        promises: Promises::default(),
    }
}

/// Shows that this owner lives.
async fn beat(jobs: Jobs, ownership: Arc<Ownership>, lost: CancellationToken, stop: CancellationToken) {
    let mut beats = interval(HEARTBEAT);
    beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = beats.tick() => {}
            () = stop.cancelled() => return,
        }
        let ownership = Arc::clone(&ownership);
        match jobs.bench().blocking.run(move || ownership.beat(now())).await {
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

async fn keep_reporting(jobs: Jobs, me: DaemonStatus, stop: CancellationToken) {
    let mut ticks = interval(REPORT_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        let now = clock::since_boot();
        jobs.all().iter().for_each(|seen| seen.live.sample(now));
        write_report(&jobs, &me).await;
    }
}

async fn write_report(jobs: &Jobs, me: &DaemonStatus) {
    let report = report::of_jobs(jobs, me.clone());
    let bytes = serde_json::to_vec(&report).expect("a report has string keys only");
    let bench = Arc::clone(jobs.bench());
    let written = jobs.bench().blocking.run(move || bench.volume.replace_status(bytes)).await;
    if let Err(error) = written {
        warn!(%error, "the status file could not be written");
    }
}

async fn keep_retired_short(jobs: Jobs, age: Duration, stop: CancellationToken) {
    let mut ticks = interval(RETIRED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        let bench = Arc::clone(jobs.bench());
        let emptied = jobs.bench().blocking.run(move || update::empty_retired(&bench, age)).await;
        if let Err(error) = emptied {
            warn!(%error, "retired files could not be removed");
        }
    }
}

fn now() -> Now {
    Now { wall: clock::now(), boot: clock::since_boot() }
}

fn program() -> String {
    concat!("muster ", env!("CARGO_PKG_VERSION")).to_owned()
}
