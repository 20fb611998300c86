//! The checks that wait for a disk, one after the other on a thread of their own.
//!
//! Owns their order and their bound: a step that shows no sign of life for [`STEP_LIMIT`] is given
//! up, and so are those behind it, since the thread is stuck in the kernel and nobody can free it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::finding::{Check, Finding, Section};
use super::models::Model;
use super::{models, owner, place, room, state, tries};
use crate::blocking::Blocking;
use crate::core::code::Code;
use crate::core::readback::Readback;
use crate::volume::owner::Glance;
use crate::volume::probe::Probe;
use crate::volume::surface::Surface;
use crate::volume::{Volume, VolumeError};

/// How long a step may show no sign of life.
pub const STEP_LIMIT: Duration = Duration::from_secs(10);

/// What is asked about a volume and this machine.
#[derive(Debug, Clone)]
pub struct Questions {
    /// The root directory, absolute.
    pub volume: PathBuf,
    /// Where the state database is, when not on the volume.
    pub state_dir: Option<PathBuf>,
    /// Space that is to stay free, when the user said so.
    pub reserve: Option<u64>,
    /// Whether finished files are read back.
    pub readback: Readback,
    /// How long files of an older commit are kept.
    pub retire_after: Duration,
    /// Where the socket was wished to be.
    pub socket: Option<PathBuf>,
    /// Bytes of the longest socket path on the volume.
    pub socket_path: usize,
    /// Connections of one job at most.
    pub connections: u16,
    /// Jobs at a time.
    pub jobs: u16,
    /// A folder for temporary files.
    pub scratch: PathBuf,
    /// Program and version.
    pub program: String,
}

/// What the steps know from each other.
pub(super) struct Patient {
    pub(super) asked: Questions,
    /// The volume, once it was opened.
    pub(super) volume: Option<Volume>,
    /// The directory where things are tried: the root, or the nearest one above it.
    pub(super) at: Option<PathBuf>,
    /// What that directory says of itself.
    pub(super) surface: Option<Surface>,
    /// The owner records, the owner's last.
    pub(super) owners: Result<Vec<Glance>, String>,
    /// Whether the owner on this host answers this user.
    pub(super) answers: bool,
    /// The folder of the tries, or why there is none.
    pub(super) probe: Result<Probe, String>,
    /// The models, once somebody asked.
    models: Option<Result<Vec<Model>, VolumeError>>,
    pulse: Pulse,
}

/// A sign of life of a step that takes long.
#[derive(Debug, Clone, Default)]
pub(super) struct Pulse(Arc<AtomicU64>);

impl Pulse {
    pub(super) fn beat(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Patient {
    fn new(asked: Questions, pulse: Pulse) -> Self {
        Self {
            asked,
            volume: None,
            at: None,
            surface: None,
            owners: Ok(Vec::new()),
            answers: false,
            probe: Err("nothing was tried".to_owned()),
            models: None,
            pulse,
        }
    }

    /// The owner of the volume, dead or alive.
    pub(super) fn owner(&self) -> Option<&Glance> {
        self.owners.as_ref().ok()?.last()
    }

    /// Whether somebody may write there now.
    pub(super) fn is_owned(&self) -> bool {
        self.owners.is_err() || self.owner().is_some_and(|owner| !owner.is_dead())
    }

    /// Takes the models out, so that they and the rest can be looked at together.
    pub(super) fn take_models(&mut self) -> Result<Vec<Model>, VolumeError> {
        self.models.take().unwrap_or_else(|| Ok(Vec::new()))
    }

    /// Puts them back.
    pub(super) fn put_models(&mut self, models: Result<Vec<Model>, VolumeError>) {
        self.models = Some(models);
    }

    /// The models of the volume, looked at once.
    pub(super) fn models(&mut self) -> &Result<Vec<Model>, VolumeError> {
        let (volume, pulse) = (&self.volume, &self.pulse);
        self.models
            .get_or_insert_with(|| volume.as_ref().map_or_else(|| Ok(Vec::new()), |it| models::survey(it, pulse)))
    }
}

type Step = fn(&mut Patient) -> Finding;

/// Every step, in the order in which they are told.
const STEPS: &[(Section, &str, Step)] = &[
    (Section::Volume, "place", place::place),
    (Section::Volume, "file_system", place::file_system),
    (Section::Volume, "writable", tries::writable),
    (Section::Volume, "names", tries::names),
    (Section::Volume, "sync", tries::sync),
    (Section::Volume, "positioned_writes", tries::positioned_writes),
    (Section::Volume, "times", tries::times),
    (Section::Volume, "locks", tries::locks),
    (Section::Volume, "sockets", tries::sockets),
    (Section::Volume, "similar_names", tries::similar_names),
    (Section::Volume, "copies", tries::copies),
    (Section::Volume, "space", room::space),
    (Section::Volume, "inodes", room::inodes),
    (Section::Volume, "permissions", place::permissions),
    (Section::Owner, "owner", owner::owner),
    (Section::Owner, "owner_socket", owner::socket),
    (Section::Owner, "earlier_owners", owner::earlier),
    (Section::Models, "models", models::models),
    (Section::Models, "partials", models::partials),
    (Section::Models, "quarantine", models::quarantine),
    (Section::Models, "retired", models::retired),
    (Section::Models, "foreign_files", models::foreign_files),
    (Section::Store, "store", state::store),
    (Section::Store, "set_aside", state::set_aside),
];

/// Runs the steps and gives each check to `take`. Returns when the thread has ended, or does not
/// any more.
pub(super) async fn examine(
    asked: Questions,
    blocking: &Blocking,
    stop: &CancellationToken,
    take: &mut (dyn FnMut(Check) + Send),
) {
    let (send, mut receive) = mpsc::unbounded_channel();
    let pulse = Pulse::default();
    let mut patient = Patient::new(asked, pulse.clone());
    let stopped = stop.clone();
    let thread = blocking.start(move || {
        for (_, _, step) in STEPS {
            if stopped.is_cancelled() || send.send(step(&mut patient)).is_err() {
                break;
            }
        }
        // Before the channel closes: whoever waits for its end finds the volume tidied up.
        drop(patient);
        drop(send);
    });
    let mut steps = STEPS.iter();
    for (section, name, _) in steps.by_ref() {
        match next(&mut receive, &pulse).await {
            Some(Some(finding)) if !stop.is_cancelled() => take(finding.of(*section, name)),
            // Asked to stop, and done with tidying up.
            Some(_) if stop.is_cancelled() => {
                while let Some(Some(_)) = next(&mut receive, &pulse).await {}
                return;
            }
            Some(None) => take(Finding::not_checked("the checks ended before this one").of(*section, name)),
            Some(Some(_)) => {}
            None => {
                take(hung().of(*section, name));
                for (section, name, _) in steps {
                    take(Finding::not_checked("the volume does not answer").of(*section, name));
                }
                return;
            }
        }
    }
    // The thread tidies up; it may hang in that, too.
    while let Some(Some(_)) = next(&mut receive, &pulse).await {}
    if thread.is_done() {
        thread.wait().await;
    }
}

/// The next finding: `None` when no sign of life came for too long, `Some(None)` at the end.
async fn next(receive: &mut mpsc::UnboundedReceiver<Finding>, pulse: &Pulse) -> Option<Option<Finding>> {
    let mut last = pulse.0.load(Ordering::Relaxed);
    loop {
        if let Ok(finding) = timeout(STEP_LIMIT, receive.recv()).await {
            return Some(finding);
        }
        let now = pulse.0.load(Ordering::Relaxed);
        if now == last {
            return None;
        }
        last = now;
    }
}

fn hung() -> Finding {
    Finding::problem(Code::CouldNotCheck, format!("no answer within {} s", STEP_LIMIT.as_secs()))
        .advise("the file system hangs: look at its server, its mount (`dmesg`, `mount`) and the network to it")
}
