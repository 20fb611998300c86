//! The status report: from live jobs, and from what is on disk when nobody lives.
//!
//! Owns the translation of jobs and directories into [`Report`]s. Reads only. What it does not
//! know it leaves unknown.

use std::path::Path;
use std::time::Duration;

use tracing::warn;

use super::held::Held;
use super::jobs::{Jobs, Seen};
use crate::clock;
use crate::core::code::Code;
use crate::core::identity::Observed;
use crate::core::job::{JobError, JobState};
use crate::core::local_edits::Expected;
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::selection::Selection;
use crate::core::shards::is_shard;
use crate::core::status::{Bytes, Count, DaemonStatus, LimitOf, LimitStatus, ModelStatus, Report, SCHEMA, ScrubStatus};
use crate::core::units;
use crate::fetch::Throttle;
use crate::gate::scrub::look;
use crate::volume::{ModelDir, Volume, VolumeError};

/// The report of a living owner.
pub fn of_jobs(jobs: &Jobs, daemon: DaemonStatus) -> Report {
    let volume = &jobs.bench().volume;
    let now = clock::since_boot();
    let models = jobs.all().iter().map(|seen| of_job(seen, volume.path(), now)).collect();
    Report {
        schema: SCHEMA,
        volume: volume.path().display().to_string(),
        written_at: clock::now(),
        daemon: DaemonStatus { age_s: Some(0.0), ..daemon },
        models,
    }
}

/// One model of a living owner.
pub fn of_one(jobs: &Jobs, name: &ModelName) -> Option<ModelStatus> {
    let seen = jobs.one(name)?;
    Some(of_job(&seen, jobs.bench().volume.path(), clock::since_boot()))
}

/// The report of a volume that nobody owns now: `last` is what the last owner wrote. Speeds are
/// not repeated, and what was going on waits.
///
/// # Errors
/// When the volume cannot be read.
pub fn of_disk(volume: &Volume, last: Option<Report>, daemon: DaemonStatus) -> Result<Report, VolumeError> {
    let (written_at, mut remembered) = match last {
        Some(report) => (report.written_at, report.models),
        None => (clock::now(), Vec::new()),
    };
    for model in &mut remembered {
        settle(model);
    }
    for name in volume.models()? {
        let found = match of_directory(volume, &name) {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(error) => {
                warn!(model = %name, %error, "its directory cannot be read");
                continue;
            }
        };
        match remembered.iter_mut().find(|model| model.id == name) {
            // Without a receipt the directory knows less than its last owner did.
            Some(model) if found.state != JobState::Queued => *model = found,
            Some(_) => {}
            None => remembered.push(found),
        }
    }
    remembered.sort_by(|a, b| a.id.cmp(&b.id));
    let volume = volume.path().display().to_string();
    Ok(Report { schema: SCHEMA, volume, written_at, daemon, models: remembered })
}

/// What one directory says of itself: complete, damaged, or not complete.
///
/// # Errors
/// When it cannot be read.
pub fn of_directory(volume: &Volume, name: &ModelName) -> Result<Option<ModelStatus>, VolumeError> {
    let Some(dir) = volume.model(name)? else { return Ok(None) };
    let Held { current: Some(manifest), pending } = Held::of(&dir)? else { return Ok(None) };
    let receipt = dir.receipt(&manifest).ok().flatten();
    let mut status = blank(name, &manifest, dir.path());
    // One whose edits cannot be told, or do not fit, is judged by what was published.
    let expected = dir.expected(manifest.clone()).unwrap_or_else(|_| Expected::plain(manifest));
    let manifest = expected.manifest();
    status.local_edits = expected.edits().files().to_vec();
    let findings = match look(&dir, &expected) {
        Ok((scrub, findings)) => {
            status.scrub = Some(scrub);
            findings
        }
        // One that cannot be read is no reason to know nothing else.
        Err(_) => Vec::new(),
    };
    if let Some(receipt) = &receipt {
        let (mut files, mut shards, mut bytes) = (0, 0, 0);
        for record in receipt.files() {
            if dir.observe(&record.path) == Observed::Present(record.identity) {
                files += 1;
                shards += u64::from(is_shard(&record.path));
                bytes += record.size;
            }
        }
        let total = manifest.total_bytes();
        status.files = Some(Count { total: manifest.files().len() as u64, verified: files });
        status.shards = Some(Count { total: manifest.shard_count() as u64, verified: shards });
        status.bytes = Some(Bytes { total, received: bytes, durable: bytes, verified: bytes });
        status.state = if missing(&dir, manifest) { JobState::Damaged } else { JobState::Ready };
        if pending.is_some() && status.state == JobState::Ready {
            status.phase = Some("an update is pending".to_owned());
        }
    }
    if findings.iter().any(|finding| finding.fault.code() == Code::Corrupt) {
        status.state = JobState::Damaged;
    }
    Ok(Some(status))
}

fn of_job(seen: &Seen, root: &Path, now: Duration) -> ModelStatus {
    let Seen { job, live, throttle } = seen;
    let glimpse = live.glimpse(now);
    let working = job.state == JobState::Queued;
    let state = glimpse.state.filter(|_| working).unwrap_or(job.state);
    let active = state.is_active() && working;
    ModelStatus {
        id: job.spec.name.clone(),
        repo: job.spec.repo.id.clone(),
        repo_type: job.spec.repo.kind,
        revision: job.spec.revision.clone(),
        commit: glimpse.commit.or(job.commit),
        selection: shown(&job.spec.selection),
        directory: root.join(job.spec.name.as_str()).display().to_string(),
        state,
        phase: glimpse.phase.filter(|_| active).map(str::to_owned),
        files: glimpse.files,
        shards: glimpse.shards,
        bytes: glimpse.bytes,
        hashing: glimpse.hashing.filter(|_| active),
        rate_bytes_per_s: glimpse.rate.filter(|_| active).map(units::whole),
        eta_s: glimpse.eta.filter(|_| active).map(|eta| eta.as_secs()),
        last_byte_age_s: live.progress.last_byte().map(|at| now.saturating_sub(at).as_secs_f64()),
        limit: limit_of(throttle).filter(|_| active),
        connections: live.progress.connections(),
        error: job.error.clone(),
        local_edits: live.edits().to_vec(),
        repaired: live.repaired(),
        scrub: live.scrub().map(|scrub| ScrubStatus::clone(&scrub)),
    }
}

/// What is left of a live entry once its owner is gone.
fn settle(model: &mut ModelStatus) {
    if model.state.is_active() {
        model.state = JobState::Queued;
        model.phase = None;
    }
    model.hashing = None;
    model.rate_bytes_per_s = None;
    model.eta_s = None;
    model.limit = None;
    model.connections = 0;
    if let Some(bytes) = &mut model.bytes {
        bytes.received = bytes.durable;
    }
}

fn blank(name: &ModelName, manifest: &Manifest, directory: &Path) -> ModelStatus {
    let source = manifest.source();
    ModelStatus {
        id: name.clone(),
        repo: source.repo.id.clone(),
        repo_type: source.repo.kind,
        revision: source.revision.clone(),
        commit: Some(source.commit),
        selection: shown(&source.selection),
        directory: directory.display().to_string(),
        state: JobState::Queued,
        phase: None,
        files: None,
        shards: None,
        bytes: None,
        hashing: None,
        rate_bytes_per_s: None,
        eta_s: None,
        last_byte_age_s: None,
        limit: None,
        connections: 0,
        error: None::<JobError>,
        local_edits: Vec::new(),
        repaired: None,
        scrub: None,
    }
}

/// The lower of its two limits.
fn limit_of(throttle: &Throttle) -> Option<LimitStatus> {
    let (own, volume) = throttle.rates();
    let own = own.map(|rate| (rate, LimitOf::Job));
    let volume = volume.map(|rate| (rate, LimitOf::Volume));
    let (rate, of) = own.into_iter().chain(volume).min_by_key(|(rate, _)| *rate)?;
    Some(LimitStatus { bytes_per_s: rate.bytes_per_s(), of })
}

fn shown(selection: &Selection) -> Option<String> {
    (!selection.is_everything()).then(|| selection.to_string())
}

/// Whether a file is gone or has another size: an identity that drifted says nothing yet.
fn missing(dir: &ModelDir, manifest: &Manifest) -> bool {
    let there = |size: u64, observed: &Observed| matches!(observed, Observed::Present(found) if found.size == size);
    manifest.files().iter().any(|entry| !there(entry.size, &dir.observe(&entry.path)))
}
