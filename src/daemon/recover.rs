//! What a new owner makes of a volume: jobs from the store, and from the directories.
//!
//! Invariant (P5): the store only saves work. A directory that the store does not know becomes a
//! job from its own manifest, and rests if the last report says that somebody stopped it; a job
//! whose directory says otherwise believes the directory.

use std::collections::HashMap;

use tracing::warn;

use super::bench::tell_loss;
use super::held::Held;
use super::jobs::Jobs;
use super::live::Live;
use super::report::of_directory;
use crate::core::identity::Observed;
use crate::core::job::{Job, JobError, JobSpec, JobState};
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::status::Report;
use crate::volume::adopt::leftovers;
use crate::volume::writer::PathHash;
use crate::volume::{ModelDir, Volume, VolumeError};

/// Fills the table. Blocks. Jobs are `admitted` by a daemon and left alone by a foreground pull.
pub(super) fn recover(jobs: &Jobs, admitted: bool) -> Result<(), VolumeError> {
    let bench = jobs.bench();
    let volume = &bench.volume;
    let mut known = bench.store.jobs().unwrap_or_else(|error| {
        tell_loss(Err(error), "the store does not answer; jobs are found in the directories");
        Vec::new()
    });
    let mut resting = None;
    for name in volume.models()? {
        if known.iter().any(|job| job.spec.name == name) {
            continue;
        }
        match of_manifest(volume, &name) {
            Ok(job) => {
                let resting = resting.get_or_insert_with(|| resting_jobs(volume));
                known.extend(job.map(|job| match resting.remove(&name) {
                    Some((state, error)) => Job { state, error, ..job },
                    None => job,
                }));
            }
            Err(error) => warn!(model = %name, %error, "its manifest cannot be read; the directory is left alone"),
        }
    }
    for mut job in known {
        job.state = state_now(volume, &job);
        let live = Live::default();
        if let Ok(Some(dir)) = volume.model(&job.spec.name) {
            measure(jobs, &job.spec.name, &dir, &live);
        }
        jobs.found(job, live, admitted);
    }
    Ok(())
}

/// The job that a directory's manifest speaks of.
fn of_manifest(volume: &Volume, name: &ModelName) -> Result<Option<Job>, VolumeError> {
    let Some(dir) = volume.model(name)? else { return Ok(None) };
    let Held { current, pending } = Held::of(&dir)?;
    Ok(pending.or(current).map(|manifest| {
        let source = manifest.source().clone();
        let spec = JobSpec {
            name: name.clone(),
            repo: source.repo,
            revision: source.revision,
            selection: source.selection,
            endpoint: source.endpoint,
            connections: None,
            limit: None,
            reselect: false,
            update: false,
            repair: None,
        };
        Job { commit: Some(source.commit), ..Job::queued(spec) }
    }))
}

/// The jobs that somebody had stopped, as the last owner reported them.
fn resting_jobs(volume: &Volume) -> HashMap<ModelName, (JobState, Option<JobError>)> {
    let report: Option<Report> = volume.status().ok().flatten().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let models = report.map(|report| report.models).unwrap_or_default();
    let stopped = models.into_iter().filter(|model| matches!(model.state, JobState::Paused | JobState::Cancelled));
    stopped.map(|model| (model.id, (model.state, model.error))).collect()
}

/// What was going on goes on; what ended is looked at again.
fn state_now(volume: &Volume, job: &Job) -> JobState {
    let found = match of_directory(volume, &job.spec.name) {
        Ok(found) => found.map(|status| status.state),
        Err(error) => {
            warn!(model = %job.spec.name, %error, "its directory cannot be read");
            Some(JobState::Damaged)
        }
    };
    match (job.state, found) {
        // What was asked for was to look again.
        (JobState::Queued, _) if job.spec.repair.is_some() => JobState::Queued,
        (state, _) if state.is_active() && job.state != JobState::Queued => JobState::Queued,
        (JobState::Ready | JobState::Damaged, Some(found)) => found,
        (JobState::Ready | JobState::Damaged, None) => JobState::Queued,
        (JobState::Queued, Some(JobState::Ready)) => JobState::Ready,
        (state, _) => state,
    }
}

/// Counts what the receipt, or the store for want of one, still speaks for. What partials hold is
/// received; what of it is claimed, whoever works on them finds out.
fn measure(jobs: &Jobs, name: &ModelName, dir: &ModelDir, live: &Live) {
    let Ok(Held { current: Some(manifest), .. }) = Held::of(dir) else { return };
    live.measure(&manifest);
    live.keep_edits(&dir.local_edits().unwrap_or_default());
    let records = match dir.receipt(&manifest) {
        Ok(Some(receipt)) => receipt.files().to_vec(),
        _ => jobs.bench().store.files(name).unwrap_or_default(),
    };
    let mut lacking: HashMap<PathHash, u64> =
        manifest.files().iter().map(|entry| (PathHash::of(&entry.path), entry.size)).collect();
    for record in records.iter().filter(|record| dir.observe(&record.path) == Observed::Present(record.identity)) {
        if let Some(entry) = Manifest::file(&manifest, &record.path) {
            live.found(entry);
            lacking.remove(&PathHash::of(&record.path));
        }
    }
    let partials = leftovers(dir).unwrap_or_default();
    let held = partials.iter().filter_map(|partial| Some(partial.size().min(lacking.remove(partial.path())?)));
    live.progress.glimpsed(held.sum());
}
