//! Files that must leave their names, and the swap of a complete directory to another commit.
//!
//! Invariants: nothing is unlinked, only moved aside; the receipt is set aside before the first
//! name changes, so a crash anywhere leaves a closed gate; whatever a launcher has open keeps
//! its bytes.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::bench::Bench;
use super::error::WorkError;
use super::jobs::Jobs;
use super::settling::Settling;
use super::survey::Displace;
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::core::repo_path::RepoPath;
use crate::volume::ModelDir;
use crate::volume::in_use::{Attempt, InUse};
use crate::volume::publish::Staged;

/// How often retired files are looked at.
const RETIRED_EVERY: Duration = Duration::from_secs(600);

/// Everything an update needs, fetched and verified.
pub(super) struct Swap {
    pub(super) name: ModelName,
    /// Files that go or make place.
    pub(super) displaced: Vec<(RepoPath, Displace)>,
    /// Files that come.
    pub(super) staged: Vec<Staged>,
}

impl Swap {
    /// Swaps, and returns the records of all files. Blocks. The receipt is the
    /// caller's to write.
    pub(super) fn run(
        self,
        bench: &Bench,
        model: &ModelDir,
        settling: &Settling,
    ) -> Result<Vec<FileRecord>, WorkError> {
        (bench.may_write)()?;
        let _alone = lock_alone(model, &self.name)?;
        model.set_receipt_aside()?;
        model.promote_pending()?;
        displace(bench, model, &self.displaced)?;
        for staged in self.staged {
            (bench.may_write)()?;
            settling.placed(bench, model, staged.place(model)?)?;
        }
        Ok(settling.finish(bench, model)?)
    }
}

/// Makes sure that no launcher reads the model, as far as locks can tell.
pub(super) fn lock_alone(model: &ModelDir, name: &ModelName) -> Result<Option<InUse>, WorkError> {
    match model.lock_exclusive() {
        Attempt::Taken(lock) => Ok(Some(lock)),
        Attempt::Held => Err(WorkError::InUse { name: name.clone() }),
        Attempt::Unknown | Attempt::Unavailable => {
            warn!(model = %name, "locks do not work here: whether a launcher reads the model is not known");
            Ok(None)
        }
    }
}

/// Moves files off their final names, and removes folders that are empty then: one may have a name
/// that a file is to get.
pub(super) fn displace(bench: &Bench, model: &ModelDir, displaced: &[(RepoPath, Displace)]) -> Result<(), WorkError> {
    let quarantine = bench.volume.quarantine()?;
    for (path, how) in displaced {
        (bench.may_write)()?;
        match how {
            Displace::Retire(commit) => {
                model.retire(path, commit)?;
            }
            Displace::Quarantine => {
                let kept = model.quarantine(path, &quarantine)?;
                warn!(file = %path, kept = %kept.display(), "a file with wrong bytes is set aside");
            }
        }
    }
    if !displaced.is_empty() {
        model.remove_empty_folders()?;
    }
    Ok(())
}

/// Takes a model's directory off the volume: moved aside whole, removed later or `now`. Blocks.
pub(super) fn remove(bench: &Bench, name: &ModelName, now: bool) -> Result<(), WorkError> {
    (bench.may_write)()?;
    let Some(model) = bench.volume.model(name)? else { return Ok(()) };
    let alone = lock_alone(&model, name)?;
    model.set_receipt_aside()?;
    bench.volume.retire_model(name)?;
    drop(alone);
    if now {
        bench.volume.empty_retired_models(Duration::ZERO)?;
    }
    Ok(())
}

/// Looks at retired files now and then, until `stop`.
pub(super) async fn keep_retired_short(jobs: Jobs, age: Duration, stop: CancellationToken) {
    let mut ticks = interval(RETIRED_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        let bench = Arc::clone(jobs.bench());
        let emptied = jobs.bench().blocking.run(move || empty_retired(&bench, age)).await;
        if let Err(error) = emptied {
            warn!(%error, "retired files could not be removed");
        }
    }
}

/// Removes what was retired longer ago than `age`. Blocks.
pub(super) fn empty_retired(bench: &Bench, age: Duration) -> Result<(), WorkError> {
    for name in bench.volume.models()? {
        if let Some(model) = bench.volume.model(&name)? {
            (bench.may_write)()?;
            model.empty_retired(age)?;
        }
    }
    (bench.may_write)()?;
    bench.volume.empty_retired_models(age)?;
    Ok(())
}
