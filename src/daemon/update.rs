//! Files that must leave their names, and the swap of a complete directory to another commit.
//!
//! Invariants: nothing is unlinked, only moved aside; the receipt is set aside before the first
//! name changes, so a crash anywhere leaves a closed gate; whatever a launcher has open keeps
//! its bytes; and what one who had lost the volume moved goes back.

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
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::core::repo_path::RepoPath;
use crate::volume::aside::Aside;
use crate::volume::in_use::{Attempt, InUse};
use crate::volume::publish::{Folders, Staged, records};
use crate::volume::{ModelDir, VolumeError};

/// Files that get their names between two syncs of their folders.
const AT_A_TIME: usize = 128;
/// How often retired files are looked at.
const RETIRED_EVERY: Duration = Duration::from_secs(600);

/// Everything an update needs, fetched and verified.
pub(super) struct Swap {
    pub(super) name: ModelName,
    /// What the directory becomes.
    pub(super) manifest: Arc<Manifest>,
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
        close_the_gate(bench, model)?;
        (bench.may_write)()?;
        if !model.promote_pending()? {
            // Somebody who woke up late took the pending one away.
            (bench.may_write)()?;
            model.store_manifest(&self.manifest)?;
        }
        displace(bench, model, &self.name, &self.displaced)?;
        let mut staged = self.staged.into_iter();
        loop {
            let (mut folders, mut named) = (Folders::default(), Vec::new());
            for staged in staged.by_ref().take(AT_A_TIME) {
                (bench.may_write)()?;
                named.push(staged.name(model, &mut folders)?);
            }
            if named.is_empty() {
                break;
            }
            let records = records(named, model, bench.syncs).into_iter().collect::<Result<_, _>>()?;
            settling.placed(bench, model, records)?;
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
pub(super) fn displace(
    bench: &Bench,
    model: &ModelDir,
    name: &ModelName,
    displaced: &[(RepoPath, Displace)],
) -> Result<(), WorkError> {
    for (path, how) in displaced {
        move_aside(bench, model, name, path, *how)?;
    }
    if !displaced.is_empty() {
        model.remove_empty_folders()?;
    }
    Ok(())
}

/// Moves one file off its final name, and says where to.
pub(super) fn move_aside(
    bench: &Bench,
    model: &ModelDir,
    name: &ModelName,
    path: &RepoPath,
    how: Displace,
) -> Result<Option<Aside>, WorkError> {
    let quarantine = bench.volume.quarantine()?.of_model(name);
    let step = || match how {
        Displace::Retire(commit) => model.retire(path, &commit),
        Displace::Quarantine => model.quarantine(path, &quarantine).map(Some),
        Displace::Keep => model.keep_aside(path, &quarantine).map(Some),
    };
    let aside = unless_lost(bench, step, |aside: &Aside| model.put_back(path, aside))?;
    if let (Some(aside), Displace::Quarantine | Displace::Keep) = (&aside, how) {
        warn!(file = %path, kept = %aside.path().display(), "a file with wrong bytes is set aside");
    }
    Ok(aside)
}

/// Takes a model's directory off the volume: moved aside whole, removed later or `now`. Blocks.
pub(super) fn remove(bench: &Bench, name: &ModelName, now: bool) -> Result<(), WorkError> {
    (bench.may_write)()?;
    let Some(model) = bench.volume.model(name)? else { return Ok(()) };
    let alone = lock_alone(&model, name)?;
    close_the_gate(bench, &model)?;
    let volume = &bench.volume;
    let aside = unless_lost(bench, || volume.retire_model(name), |aside| volume.put_model_back(name, aside))?;
    drop(alone);
    if let Some(aside) = aside.filter(|_| now) {
        volume.empty_retired_model(&aside)?;
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

/// Sets the receipt aside, before anything changes.
pub(super) fn close_the_gate(bench: &Bench, model: &ModelDir) -> Result<(), WorkError> {
    let step = || model.set_receipt_aside().map(|moved| moved.then_some(()));
    unless_lost(bench, step, |()| model.put_receipt_back()).map(drop)
}

/// Makes a move that only the owner may make. One who finds out only afterwards that the volume
/// was taken has moved what is the new owner's, and puts it back.
pub(super) fn unless_lost<T>(
    bench: &Bench,
    step: impl FnOnce() -> Result<Option<T>, VolumeError>,
    back: impl FnOnce(&T) -> Result<(), VolumeError>,
) -> Result<Option<T>, WorkError> {
    (bench.may_write)()?;
    let moved = step()?;
    if let (Some(moved), Err(lost)) = (&moved, (bench.may_write)()) {
        if let Err(error) = back(moved) {
            warn!(%error, "what was moved too late could not be put back");
        }
        return Err(lost.into());
    }
    Ok(moved)
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
