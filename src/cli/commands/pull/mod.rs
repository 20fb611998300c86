//! `muster pull`: brings a repository onto the volume.
//!
//! Asks and looks first, so that what cannot succeed changes nothing; then becomes the owner of
//! the volume for its one job, or hands the job to the owner there is. The directory is the
//! result; everything else goes to stderr.

mod background;
mod follow;
pub(super) mod foreground;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::super::signals::Signals;
use super::sign::sign_model;
use crate::cli::args::PullArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::model_ref::Model;
use crate::cli::resolve::PullRequest;
use crate::cli::{Context, owning, resolve, runtime, ui::Ui};
use crate::config::{Environment, Settings};
use crate::core::code::Code;
use crate::core::job::JobSpec;
use crate::core::local_edits::{LocalEdits, in_words};
use crate::core::manifest::Manifest;
use crate::core::oms::bundle;
use crate::core::receipt::FileRecord;
use crate::core::status::ModelStatus;
use crate::core::units;
use crate::daemon::WorkError;
use crate::daemon::preview::{Preview, preview};
use crate::hub::{HubClient, HubConfig, Timeouts, TokenError, auth};
use crate::volume::{ModelDir, Volume};

/// Brings a repository onto the volume.
///
/// # Errors
/// What the user is told.
pub fn run(args: PullArgs, context: Context) -> Result<Exit, Failure> {
    let detached = args.detached;
    let Context { settings, ui, here, environment, .. } = context;
    let (request, settings) = resolve::pull(args, settings, &here)?;
    if detached {
        background::leave_session();
    }
    let signals = move || Signals::listen()?.and_hangup(detached);
    runtime::run_to_a_bounded_end(signals, Pull { request, settings, ui, environment, detached, proved: vec![] }.run())
}

/// Brings what a directory lacks, and tells nothing of it at the end. Returns how it was stopped, if
/// it was.
///
/// # Errors
/// What the user is told.
pub(super) fn complete(spec: JobSpec, context: &Context) -> Result<Option<Exit>, Failure> {
    let request = PullRequest { spec, dry_run: false, detach: false, wait_for_owner: false, prune: false };
    let (settings, ui, environment) = (context.settings.clone(), context.ui.clone(), context.environment.clone());
    let pull = Pull { request, settings, ui, environment, detached: false, proved: vec![] };
    runtime::run(async {
        let mut signals = Signals::listen()?;
        let config = hub_config(&pull.settings)?;
        // Its manifest is there: nobody has to be asked.
        let reserve = pull.settings.reserve.value.fixed().map(crate::config::Size::bytes);
        let seen = preview(&pull.settings.volume.value, &pull.request.spec, None, reserve).await;
        let seen = seen.map_err(|error| CliError::from(&error))?;
        Ok(if seen.complete { None } else { foreground::pull(&pull, config, seen, &mut signals).await?.stopped() })
    })
}

/// A pull, whatever verb it is asked for by.
pub(super) struct Pull {
    pub(super) request: PullRequest,
    pub(super) settings: Settings,
    pub(super) ui: Ui,
    pub(super) environment: Environment,
    /// Whether it goes on after the command that started it.
    pub(super) detached: bool,
    /// What was hashed before the pull.
    pub(super) proved: Vec<FileRecord>,
}

impl Pull {
    async fn run(self) -> Result<Exit, Failure> {
        // Before anything is fetched: a key that cannot be used will not become better.
        owning::signer(&self.settings)?;
        let mut signals = Signals::listen()?.and_hangup(self.detached)?;
        let config = hub_config(&self.settings)?;
        let seen = match self.look(&config, &mut signals).await? {
            Looked::Seen(seen) => *seen,
            Looked::Stopped(exit) => return Ok(exit),
        };
        if self.request.dry_run {
            return self.tell_preview(&seen);
        }
        let (manifest, edits) = (seen.resolved.manifest.clone(), seen.expected.edits().clone());
        if !seen.complete {
            seen.check_space().map_err(|error| CliError::from(&error))?;
            if self.request.detach {
                return background::start(&self);
            }
            if let Some(exit) = foreground::pull(&self, config, seen, &mut signals).await?.stopped() {
                return Ok(exit);
            }
        }
        self.sign(&edits)?;
        self.prune()?;
        self.tell_done(&manifest, &edits)
    }

    /// Asks the Hub and looks at the directory.
    pub(super) async fn look(&self, config: &HubConfig, signals: &mut Signals) -> Result<Looked, CliError> {
        let hub = HubClient::new(config.clone())
            .map_err(|error| CliError::from(&WorkError::Hub { repo: self.request.spec.repo.clone(), source: error }))?;
        let asked = (!self.settings.offline.value).then_some(&hub);
        let reserve = self.settings.reserve.value.fixed().map(crate::config::Size::bytes);
        let seen = tokio::select! {
            seen = preview(&self.settings.volume.value, &self.request.spec, asked, reserve) => seen,
            exit = signals.next() => return Ok(Looked::Stopped(exit)),
        };
        let seen = seen.map_err(|error| CliError::from(&error))?;
        self.tell_of_move(&seen);
        Ok(Looked::Seen(Box::new(seen)))
    }

    /// Signs what is complete, where that was asked for and whoever made it complete has not: the key of a
    /// daemon is another, or none. What was changed on purpose is signed by `muster sign` alone.
    pub(super) fn sign(&self, edits: &LocalEdits) -> Result<(), CliError> {
        let Some(key) = owning::signer(&self.settings)?.filter(|_| edits.files().is_empty()) else { return Ok(()) };
        let directory = self.directory();
        let signature = ModelDir::open(&directory).and_then(|dir| dir.signature_bytes());
        let signature = signature.map_err(|error| CliError::from(&error))?;
        if signature.is_some_and(|bytes| bundle::open(&bytes, &key.public()).is_ok()) {
            return Ok(());
        }
        let model = Model { id: Some(self.request.spec.name.clone()), directory, revision: None };
        let (signed, _answer) = sign_model(&model, &key, &self.settings, &self.ui)?;
        self.ui.note(&format!("signed: {}", signed.path.display()));
        Ok(())
    }

    fn directory(&self) -> PathBuf {
        self.settings.volume.value.join(self.request.spec.name.as_str())
    }

    /// Removes what is set aside of the model, where that was asked for.
    pub(super) fn prune(&self) -> Result<(), CliError> {
        if !self.request.prune {
            return Ok(());
        }
        let volume = Volume::open(&self.settings.volume.value).map_err(|error| CliError::from(&error))?;
        let gone = volume.prune(&self.request.spec.name).map_err(|error| CliError::from(&error))?;
        if gone.files > 0 {
            let (files, bytes) = (units::count(gone.files, "file"), units::bytes(gone.bytes));
            self.ui.note(&format!("pruned: {files} that had been set aside, {bytes}"));
        }
        Ok(())
    }

    /// The directory, alone.
    pub(super) fn tell_done(&self, manifest: &Manifest, edits: &LocalEdits) -> Result<Exit, Failure> {
        let directory = self.directory();
        self.ui.note(&done_line(manifest, edits));
        if self.ui.is_json() {
            self.ui.result_json(&json!({
                "id": self.request.spec.name,
                "directory": directory,
                "commit": manifest.source().commit,
                "files": manifest.files().len(),
                "shards": manifest.shard_count(),
                "bytes": manifest.total_bytes(),
                "local_edits": edits.files(),
            }))?;
        } else {
            // A name to go on with, whatever is in it.
            self.ui.result_bytes(format!("{}\n", directory.display()).as_bytes())?;
        }
        Ok(Exit::Success)
    }

    fn tell_of_move(&self, seen: &Preview) {
        if let Some(old) = seen.resolved.moved_from {
            let (revision, new) = (&self.request.spec.revision, seen.resolved.manifest.source().commit);
            self.ui.note(&format!("{revision} moved from {old} to {new}"));
        }
    }

    fn tell_preview(&self, seen: &Preview) -> Result<Exit, Failure> {
        let manifest = &seen.resolved.manifest;
        if self.ui.is_json() {
            let source = manifest.source();
            self.ui.result_json(&json!({
                "id": self.request.spec.name,
                "commit": source.commit,
                "revision": source.revision,
                "files": manifest.files().len(),
                "shards": manifest.shard_count(),
                "bytes": {"total": manifest.total_bytes(), "present": seen.present.bytes, "to_fetch": seen.to_fetch()},
                "space": {"free": seen.free(), "reserve": seen.reserve},
                "requests": seen.requests(),
                "complete": seen.complete,
                "local_edits": seen.expected.edits().files(),
            }))?;
        } else {
            self.ui.result(&preview_line(seen))?;
        }
        if seen.complete {
            return Ok(Exit::Success);
        }
        seen.check_space().map_err(|error| CliError::from(&error))?;
        Ok(Exit::Success)
    }
}

/// How a job ended for whoever asked for it.
pub(super) enum Ended {
    /// The model is complete; how it stood then, unless somebody unseen did it.
    Done(Option<Box<ModelStatus>>),
    /// With a signal.
    Stopped(Exit),
}

impl Ended {
    pub(super) fn stopped(self) -> Option<Exit> {
        match self {
            Self::Done(_) => None,
            Self::Stopped(exit) => Some(exit),
        }
    }
}

/// How a look ended.
pub(super) enum Looked {
    /// With this.
    Seen(Box<Preview>),
    /// With a signal.
    Stopped(Exit),
}

/// Who is asked, with which token and which patience.
pub(super) fn hub_config(settings: &Settings) -> Result<HubConfig, CliError> {
    let token = auth::discover(settings.token_file.value.as_deref()).map_err(|error| {
        let told = CliError::from_error(Code::Usage, &error);
        match error {
            TokenError::Unreadable { .. } => {
                told.hint("make it readable for this user, or name another with --token-file")
            }
            TokenError::Empty { .. } | TokenError::Illegal { .. } => {
                told.hint("put the token alone on the file's first line")
            }
        }
    })?;
    let timeouts = Timeouts {
        connect: settings.connect_timeout.value,
        header: settings.header_timeout.value,
        idle: settings.idle_timeout.value,
    };
    Ok(HubConfig { token, timeouts, ..HubConfig::new(settings.endpoint.value.clone()) })
}

/// Ticks for a look at the job: at once, then this often; a late one moves those after it.
fn looks(every: Duration) -> Interval {
    let mut looks = interval(every);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    looks
}

fn done_line(manifest: &Manifest, edits: &LocalEdits) -> String {
    let files = units::count(manifest.files().len() as u64, "file");
    let shards = match manifest.shard_count() {
        0 => String::new(),
        count => format!(", all {}", units::count(count as u64, "shard")),
    };
    let size = units::bytes(manifest.total_bytes());
    let edits = in_words(edits.files()).map(|words| format!(", {words}")).unwrap_or_default();
    format!("complete: {size}, {files}{shards} verified, commit {}{edits}", manifest.source().commit)
}

/// A count that does not pretend to be exact: half a step of its first digit, upwards.
fn roughly(count: u64) -> u64 {
    let digit = 10u64.pow(count.max(1).ilog10());
    count.next_multiple_of((digit / 2).max(1))
}

fn preview_line(seen: &Preview) -> String {
    let manifest = &seen.resolved.manifest;
    let shards = match manifest.shard_count() {
        0 => String::new(),
        count => format!("{}, ", units::count(count as u64, "shard")),
    };
    let edits = in_words(seen.expected.edits().files()).map(|words| format!("; {words}")).unwrap_or_default();
    format!(
        "{}, {shards}{} to fetch, {} present; free {} after reserve; about {} Hub requests; commit {}; {}{edits}",
        units::count(manifest.files().len() as u64, "file"),
        units::bytes(seen.to_fetch()),
        units::bytes(seen.present.bytes),
        units::bytes(seen.free()),
        roughly(seen.requests()),
        manifest.source().commit,
        manifest.source().revision,
    )
}
