//! One job, from request to receipt.
//!
//! Owns the order of steps. What each step promises is below it: the Hub is asked in `resolve`,
//! the disk is compared in `survey`, bytes come through `fetch`, a complete directory moves to
//! another commit in `update`. Invariant: the receipt is written last, from proofs alone, after
//! another look at every final name.

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::error::WorkError;
use super::live::Live;
use super::resolve::{Resolved, resolve};
use super::survey::{Displace, Known, Survey, survey};
use super::update;
use crate::blocking::Blocking;
use crate::clock;
use crate::core::code::Code;
use crate::core::identity::Observed;
use crate::core::job::{JobSpec, JobState};
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::model_name::ModelName;
use crate::core::pace::Pace;
use crate::core::range_set::RangeSet;
use crate::core::readback::Readback;
use crate::core::receipt::{FileRecord, Receipt, Witness};
use crate::core::repo_path::RepoPath;
use crate::fetch::error::PublishError;
use crate::fetch::{self, FetchError, Wanted};
use crate::hub::{HubClient, Token};
use crate::limits;
use crate::sources::HubSource;
use crate::store::{AuditEntry, OriginMemory, Phase, Store};
use crate::volume::adopt::{self, Leftover, TakeOver};
use crate::volume::partial::{Partial, Resumed};
use crate::volume::publish::{Staged, Verified};
use crate::volume::writer::{PathHash, WriterId};
use crate::volume::{ModelDir, Volume, VolumeError};

/// What every job of one owner shares.
pub(super) struct Bench {
    pub(super) volume: Volume,
    pub(super) store: Store,
    pub(super) writer: WriterId,
    pub(super) blocking: Blocking,
    pub(super) data: Handle,
    pub(super) hub: HubClient,
    pub(super) offline: bool,
    pub(super) readback: Readback,
    pub(super) reserve: Option<u64>,
    pub(super) retry_for: Option<Duration>,
    pub(super) witness: (String, String),
    pub(super) may_write: fetch::MayWrite,
    /// How partials of an earlier writer may be taken over.
    pub(super) take_over: Box<dyn Fn(WriterId) -> TakeOver + Send + Sync>,
    /// Bytes promised to jobs that run, by name.
    pub(super) promised: Mutex<HashMap<String, u64>>,
}

/// One job being worked on.
pub(super) struct Work {
    pub(super) bench: Arc<Bench>,
    pub(super) spec: JobSpec,
    pub(super) token: Option<Token>,
    pub(super) resolved: Option<Resolved>,
    pub(super) live: Arc<Live>,
    pub(super) stop: CancellationToken,
}

impl Work {
    /// Does the job. On return the directory is complete and has a receipt.
    pub(super) async fn run(mut self) -> Result<Manifest, WorkError> {
        let hub = self.hub();
        self.live.enter(JobState::Resolving, None);
        let held = self.held_manifests().await?;
        let resolved = match self.resolved.take() {
            Some(resolved) => resolved,
            None => {
                let hub = (!self.bench.offline).then_some(&hub);
                tokio::select! {
                    resolved = resolve(&self.spec, &held, hub) => resolved?,
                    () = self.stop.cancelled() => return Err(WorkError::Stopped),
                }
            }
        };
        let manifest = resolved.manifest;
        self.audit(Phase::Resolved, &format!("commit {}, {} files", manifest.source().commit, manifest.files().len()));
        self.live.measure(&manifest);
        let name = self.spec.name.clone();
        let model = Arc::new(self.on_disk(move |bench| bench.volume.create_model(&name)).await?);
        let result = self.bring_about(&model, &manifest, &hub).await;
        self.bench.promised.lock().unwrap_or_else(PoisonError::into_inner).remove(self.spec.name.as_str());
        result.map(|()| manifest)
    }

    async fn bring_about(&self, model: &Arc<ModelDir>, manifest: &Manifest, hub: &HubClient) -> Result<(), WorkError> {
        self.live.enter(JobState::Verifying, None);
        let current = self.on_model(model, |_, model| model.manifest()).await?;
        let same = current.as_ref().is_some_and(|current| current.id() == manifest.id());
        let receipt = match current.clone() {
            // A receipt that cannot be read proves nothing.
            Some(current) => {
                self.on_model(model, move |_, model| Ok::<_, WorkError>(model.receipt(&current).ok().flatten())).await?
            }
            None => None,
        };
        let survey = self.survey(model, manifest).await?;
        for record in &survey.proved {
            if let Some(entry) = manifest.file(&record.path) {
                self.live.found(entry);
            }
        }
        let moving = receipt.is_some() && !same;
        if receipt.is_some() && same && survey.wanted.is_empty() && survey.displaced.is_empty() {
            return if survey.rehashed { self.write_receipt(model, manifest, survey.proved).await } else { Ok(()) };
        }
        let wanted = self.take_up(model, manifest, &survey).await?;
        self.admit(&wanted).await?;
        if let (true, Some(current)) = (moving, current) {
            return self.update(model, &current, manifest, survey, wanted, hub).await;
        }
        let displaced = survey.displaced;
        if receipt.is_some() || !displaced.is_empty() {
            self.clear(model, manifest, displaced).await?;
        }
        if !same {
            let sealed = manifest.clone();
            self.on_model(model, move |_, model| model.store_manifest(&sealed)).await?;
            self.on_model(model, |_, model| model.drop_pending().map(drop)).await?;
        }
        self.live.enter(JobState::Fetching, None);
        let records = Arc::new(Mutex::new(survey.proved));
        let publish = self.publisher(model, Arc::clone(&records));
        self.fetch(model, manifest, wanted, hub, publish).await?;
        self.live.enter(JobState::Verifying, None);
        let records = std::mem::take(&mut *records.lock().unwrap_or_else(PoisonError::into_inner));
        self.write_receipt(model, manifest, records).await
    }

    /// Moves a complete directory to another commit: everything new is fetched and verified
    /// before anything old is touched.
    async fn update(
        &self,
        model: &Arc<ModelDir>,
        current: &Manifest,
        manifest: &Manifest,
        survey: Survey,
        wanted: Vec<Wanted>,
        hub: &HubClient,
    ) -> Result<(), WorkError> {
        self.live.enter(JobState::Updating, Some("fetching"));
        let pending = manifest.clone();
        self.on_model(model, move |_, model| model.store_pending_manifest(&pending)).await?;
        let staged: Arc<Mutex<Vec<Staged>>> = Arc::default();
        let publish = {
            let (staged, live) = (Arc::clone(&staged), Arc::clone(&self.live));
            move |verified: Verified| {
                let entry = verified.entry().clone();
                let kept = verified
                    .stage()
                    .map_err(|error| refused("a verified file could not be kept", error.code(), error))?;
                staged.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                live.verified(&entry);
                Ok(())
            }
        };
        self.fetch(model, manifest, wanted, hub, Arc::new(publish)).await?;
        self.live.enter(JobState::Updating, Some("swapping"));
        let staged = std::mem::take(&mut *staged.lock().unwrap_or_else(PoisonError::into_inner));
        let swap = update::Swap {
            name: self.spec.name.clone(),
            old: current.source().commit,
            displaced: survey.displaced,
            staged,
        };
        let mut records = survey.proved;
        records.extend(self.on_model(model, move |bench, model| swap.run(bench, model)).await?);
        self.write_receipt(model, manifest, records).await
    }

    fn hub(&self) -> HubClient {
        if self.token.is_none() && self.spec.endpoint == *self.bench.hub.endpoint() {
            return self.bench.hub.clone();
        }
        self.bench.hub.at(self.spec.endpoint.clone(), self.token.clone())
    }

    async fn held_manifests(&self) -> Result<Vec<Manifest>, WorkError> {
        let name = self.spec.name.clone();
        self.on_disk(move |bench| held_manifests(&bench.volume, &name)).await
    }

    async fn survey(&self, model: &Arc<ModelDir>, manifest: &Manifest) -> Result<Survey, WorkError> {
        let (name, manifest, live) = (self.spec.name.clone(), manifest.clone(), Arc::clone(&self.live));
        self.on_model(model, move |bench, model| {
            let stored = bench.store.files(&name).unwrap_or_else(|error| {
                warn!(%error, "the store does not answer; files without a receipt are hashed");
                Vec::new()
            });
            let known = Known::load(model, stored)?;
            survey(model, &manifest, &known, &|_| live.enter(JobState::Verifying, Some("hashing")))
        })
        .await
    }

    /// Takes over what earlier writers left of the wanted files, and drops what nobody wants.
    async fn take_up(
        &self,
        model: &Arc<ModelDir>,
        manifest: &Manifest,
        survey: &Survey,
    ) -> Result<Vec<Wanted>, WorkError> {
        let (manifest, wanted, stop) = (manifest.clone(), survey.wanted.clone(), self.stop.clone());
        self.on_model(model, move |bench, model| -> Result<_, WorkError> {
            let writer = bench.writer;
            let mut left: Vec<Leftover> = adopt::fence(model, writer)?;
            let mut taken = Vec::new();
            for id in wanted {
                let entry = manifest.files()[id.0].clone();
                let hash = PathHash::of(&entry.path);
                let (mine, rest) = left.into_iter().partition(|leftover| *leftover.path() == hash);
                left = rest;
                let adopted = take_over(bench, model, &entry, mine, &stop)?;
                taken.push(Wanted { id, entry, adopted });
            }
            for leftover in left {
                leftover.discard(model)?;
            }
            Ok(taken)
        })
        .await
    }

    /// Checks that everything admitted fits, before the first byte.
    async fn admit(&self, wanted: &[Wanted]) -> Result<(), WorkError> {
        let mut needed = 0u64;
        for Wanted { entry, adopted, .. } in wanted {
            needed += match adopted {
                Some((partial, _)) => partial.unallocated()?,
                None => entry.size,
            };
        }
        let space = self.on_disk(|bench| bench.volume.space()).await?;
        let reserve = self.bench.reserve.unwrap_or_else(|| space.default_reserve());
        let mut promised = self.bench.promised.lock().unwrap_or_else(PoisonError::into_inner);
        promised.remove(self.spec.name.as_str());
        let others: u64 = promised.values().sum();
        let free = space.free.saturating_sub(reserve);
        if needed > 0 && needed.saturating_add(others) > free {
            return Err(WorkError::NoSpace { needed: needed + others, free, reserve });
        }
        promised.insert(self.spec.name.to_string(), needed);
        Ok(())
    }

    /// Makes room under final names. The receipt goes first, and nobody may be reading.
    async fn clear(
        &self,
        model: &Arc<ModelDir>,
        manifest: &Manifest,
        displaced: Vec<(RepoPath, Displace)>,
    ) -> Result<(), WorkError> {
        let (name, commit) = (self.spec.name.clone(), manifest.source().commit);
        self.on_model(model, move |bench, model| {
            (bench.may_write)()?;
            let _alone = update::lock_alone(model, &name)?;
            model.set_receipt_aside()?;
            update::displace(bench, model, &displaced, &commit)
        })
        .await
    }

    /// Gives verified files their names and remembers them.
    fn publisher(&self, model: &Arc<ModelDir>, records: Arc<Mutex<Vec<FileRecord>>>) -> fetch::Publish {
        let (bench, model, live) = (Arc::clone(&self.bench), Arc::clone(model), Arc::clone(&self.live));
        let name = self.spec.name.clone();
        Arc::new(move |verified: Verified| {
            (bench.may_write)().map_err(|error| refused("the file was not published", Code::Held, error))?;
            let entry = verified.entry().clone();
            let record = verified.publish(&model).map_err(|error| {
                let error = WorkError::from(error);
                refused("the file could not be put in place", error.code(), error)
            })?;
            if let Err(error) = bench.store.put_file(&name, &record) {
                warn!(%error, file = %entry.path, "not remembered; after a restart this file is hashed again");
            }
            bench.audit(&name, Phase::Published, entry.path.as_str());
            live.verified(&entry);
            records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
            Ok(())
        })
    }

    async fn fetch(
        &self,
        model: &Arc<ModelDir>,
        manifest: &Manifest,
        wanted: Vec<Wanted>,
        hub: &HubClient,
        publish: fetch::Publish,
    ) -> Result<(), WorkError> {
        if wanted.is_empty() {
            return Ok(());
        }
        if self.bench.offline {
            return Err(WorkError::Offline { repo: self.spec.repo.clone(), revision: self.spec.revision.clone() });
        }
        let bench = &self.bench;
        let source = HubSource::new(Arc::new(hub.clone()), self.spec.repo.clone(), manifest.source().commit);
        let quarantine = Arc::new(self.on_disk(|bench| bench.volume.quarantine()).await?);
        let context = fetch::Context {
            source,
            model: Arc::clone(model),
            writer: bench.writer,
            quarantine,
            blocking: bench.blocking.clone(),
            runtime: bench.data.clone(),
            progress: Arc::clone(&self.live.progress),
            readback: bench.reads_back(),
            retry_for: bench.retry_for,
            may_write: Arc::clone(&bench.may_write),
            publish,
        };
        let count = wanted.len();
        let outcome = fetch::fetch(context, wanted, self.pace(), self.stop.clone()).await;
        let outcome = outcome.map_err(|error| match error {
            FetchError::Stopped => WorkError::Stopped,
            error => error.into(),
        })?;
        self.remember_pace(outcome.safe_level);
        if outcome.failed.is_empty() { Ok(()) } else { Err(WorkError::unfinished(outcome.failed, count)) }
    }

    fn pace(&self) -> Pace {
        if let Some(connections) = self.spec.connections {
            return Pace::pinned(connections.into());
        }
        let remembered = self.bench.store.origin(&self.spec.endpoint.origin()).ok().flatten();
        let remembered = remembered.map(|memory| usize::from(memory.safe_connections));
        Pace::adaptive(limits::CONNECTIONS_ADAPTIVE_MAX.into(), remembered)
    }

    fn remember_pace(&self, level: usize) {
        let memory = OriginMemory {
            safe_connections: u16::try_from(level).unwrap_or(u16::MAX),
            best_rate: 0,
            updated_at: clock::now(),
        };
        if let Err(error) = self.bench.store.put_origin(&self.spec.endpoint.origin(), &memory) {
            warn!(%error, "the number of connections is not remembered");
        }
    }

    /// Looks at every final name once more, then writes the receipt.
    async fn write_receipt(
        &self,
        model: &Arc<ModelDir>,
        manifest: &Manifest,
        records: Vec<FileRecord>,
    ) -> Result<(), WorkError> {
        let (manifest, name) = (manifest.clone(), self.spec.name.clone());
        self.on_model(model, move |bench, model| {
            (bench.may_write)()?;
            let moved = records.iter().find(|record| match model.observe(&record.path) {
                // One that could not be waited out is hashed again by whoever checks next.
                Observed::Present(found) => found != record.identity && found.distrusted() != record.identity,
                _ => true,
            });
            if let Some(record) = moved {
                let why = "it changed after it was verified".to_owned();
                return Err(WorkError::Unreadable { path: record.path.clone(), why });
            }
            let (program, host) = bench.witness.clone();
            let receipt = Receipt::seal(&manifest, records, Witness { at: clock::now(), program, host })?;
            model.store_receipt(&receipt)?;
            bench.audit(&name, Phase::Receipted, &format!("commit {}", manifest.source().commit));
            info!(model = %name, "complete: every file verified");
            Ok(())
        })
        .await
    }

    fn audit(&self, phase: Phase, detail: &str) {
        self.bench.audit(&self.spec.name, phase, detail);
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Bench) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, WorkError> {
        let bench = Arc::clone(&self.bench);
        Ok(self.bench.blocking.run(move || work(&bench)).await?)
    }

    async fn on_model<T: Send + 'static, E: Into<WorkError> + Send + 'static>(
        &self,
        model: &Arc<ModelDir>,
        work: impl FnOnce(&Bench, &ModelDir) -> Result<T, E> + Send + 'static,
    ) -> Result<T, WorkError> {
        let (bench, model) = (Arc::clone(&self.bench), Arc::clone(model));
        self.bench.blocking.run(move || work(&bench, &model)).await.map_err(Into::into)
    }
}

impl Bench {
    /// Adds a line to a model's history; the history is a courtesy.
    pub(super) fn audit(&self, name: &ModelName, phase: Phase, detail: &str) {
        let entry = AuditEntry { at: clock::now(), phase, detail: detail.to_owned() };
        if let Err(error) = self.store.audit(name, &entry) {
            warn!(%error, "the history has a gap");
        }
    }

    fn reads_back(&self) -> bool {
        match self.readback {
            Readback::Always => true,
            Readback::Never => false,
            Readback::Auto => !self.volume.fs_kind().trusts_positioned_writes(),
        }
    }
}

/// The manifests a directory has: its own, and the one it is moving to.
pub(super) fn held_manifests(volume: &Volume, name: &ModelName) -> Result<Vec<Manifest>, VolumeError> {
    let Some(model) = volume.model(name)? else { return Ok(Vec::new()) };
    let own = [model.manifest()?, model.pending_manifest()?];
    Ok(own.into_iter().flatten().collect())
}

/// Threads for blocking work: syncs wait, hashing computes.
pub(super) fn blocking_threads() -> usize {
    std::thread::available_parallelism().map_or(2, NonZero::get) + 4
}

/// Takes over the best of the partials of one file and drops the others.
fn take_over(
    bench: &Bench,
    model: &ModelDir,
    entry: &FileEntry,
    left: Vec<Leftover>,
    stop: &CancellationToken,
) -> Result<Option<(Partial, RangeSet)>, WorkError> {
    if let Some(Resumed { partial, durable }) = Partial::resume(model, entry, bench.writer)? {
        return Ok(Some((partial, durable)));
    }
    let (mut left, empty): (Vec<_>, Vec<_>) = left.into_iter().partition(|leftover| leftover.size() > 0);
    for leftover in empty {
        leftover.discard(model)?;
    }
    left.sort_by_key(|leftover| (leftover.has_claims(), leftover.size()));
    let Some(best) = left.pop() else { return Ok(None) };
    let how = (bench.take_over)(best.writer());
    let keep = how == TakeOver::Copy;
    let old = best.clone();
    let Resumed { partial, durable } =
        Partial::take_over(model, entry, bench.writer, best, how, &|| !stop.is_cancelled())?;
    if keep {
        old.discard(model)?;
    }
    for leftover in left {
        leftover.discard(model)?;
    }
    Ok(Some((partial, durable)))
}

fn refused(message: &str, code: Code, source: impl std::error::Error + Send + Sync + 'static) -> PublishError {
    PublishError { message: message.to_owned(), source: Box::new(source), code }
}
