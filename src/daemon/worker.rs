//! One job, from request to receipt.
//!
//! Owns the order of steps. What each step promises is below it: the Hub is asked in `resolve`,
//! the disk is compared in `survey`, what others left is taken over in `take_up`, room is promised
//! in `admit`, bytes come in `bytes`, a complete directory moves to another commit in
//! `update`. Invariant: the receipt is written last, from proofs alone, after another look at
//! every final name.

use std::collections::HashMap;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::select;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::bench::Bench;
use super::error::WorkError;
use super::held::Held;
use super::live::Live;
use super::repair::Thrift;
use super::resolve::{Resolved, check_place, resolve};
use super::settling::Settling;
use super::signing::{sign_or_clear, sign_published};
use super::survey::{Doubt, Hearing, Known, Survey, survey};
use super::take_up::take_up;
use super::update::Swap;
use crate::clock;
use crate::core::fold::Folding;
use crate::core::identity::Observed;
use crate::core::job::{JobSpec, JobState};
use crate::core::local_edits::Expected;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::plan::FileId;
use crate::core::receipt::{FileRecord, Receipt, Witness};
use crate::core::units;
use crate::fetch::{OwnershipLost, Throttle, Wanted};
use crate::hub::{HubClient, Token};
use crate::store::Phase;
use crate::volume::condemned::Condemned;
use crate::volume::foreign::Beginning;
use crate::volume::publish::Staged;
use crate::volume::{ModelDir, VolumeError, adopt};

/// One job being worked on.
pub(super) struct Work {
    pub(super) bench: Arc<Bench>,
    pub(super) spec: JobSpec,
    pub(super) token: Option<Token>,
    pub(super) resolved: Option<Resolved>,
    pub(super) live: Arc<Live>,
    pub(super) throttle: Throttle,
    pub(super) stop: CancellationToken,
}

/// Where the work is done, what is to be there, and what is there.
pub(super) struct Site {
    pub(super) model: Arc<ModelDir>,
    /// What is to be fetched and stored.
    pub(super) manifest: Arc<Manifest>,
    /// What the directory should hold then: what was changed in it on purpose stays.
    expected: Arc<Expected>,
    held: Held,
    /// Whether the receipt of the current manifest is there and can be read.
    pub(super) receipted: bool,
}

impl Site {
    /// Whether the directory is of this manifest already, complete or not.
    fn is_same(&self) -> bool {
        self.held.current.as_ref().is_some_and(|current| current.id() == self.manifest.id())
    }
}

impl Work {
    /// Does the job. On return the directory is complete and has a receipt.
    pub(super) async fn run(mut self) -> Result<Manifest, WorkError> {
        let hub = self.hub();
        self.live.enter(JobState::Resolving, None);
        let held = self.held().await?;
        let manifest = if let Some(resolved) = self.resolved.take() {
            // It may have been asked for long ago.
            check_place(&self.spec, &held)?;
            resolved.manifest
        } else {
            select! {
                resolved = resolve(&self.spec, &held, (!self.bench.offline).then_some(&hub)) => resolved?.manifest,
                () = self.stop.cancelled() => return Err(WorkError::Stopped),
            }
        };
        self.audit(Phase::Resolved, &format!("commit {}, {} files", manifest.source().commit, manifest.files().len()));
        self.live.measure(&manifest);
        let result = self.bring_about(held, manifest.clone(), &hub).await;
        let result = match result {
            // Whatever failed, it failed because the new owner took it from under our hands.
            Err(error) if !matches!(error, WorkError::Stopped) && self.is_lost().await => {
                warn!(%error, "a step failed after the volume was taken");
                Err(OwnershipLost.into())
            }
            other => other,
        };
        self.bench.promises.drop(&self.spec.name);
        result.map(|()| manifest)
    }

    async fn is_lost(&self) -> bool {
        let bench = Arc::clone(&self.bench);
        self.bench.blocking.run(move || (bench.is_lost)()).await
    }

    async fn bring_about(&self, held: Held, manifest: Manifest, hub: &HubClient) -> Result<(), WorkError> {
        self.live.enter(JobState::Verifying, None);
        let site = self.enter(held, manifest).await?;
        let survey = self.examine(&site).await?;
        for record in &survey.proved {
            if let Some(entry) = site.manifest.file(&record.path) {
                self.live.found(entry);
            }
        }
        if site.receipted && site.is_same() && survey.wanted.is_empty() && survey.displaced.is_empty() {
            return if survey.rehashed {
                self.write_receipt(&site, survey.proved).await
            } else {
                self.sign(&site).await
            };
        }
        let beginnings = self.beginnings(&site, &survey.wanted, hub).await?;
        let wanted = self.take_up(&site, &survey, beginnings).await?;
        let thrift = self.make_room(&site, &survey, &wanted).await?;
        if site.receipted && !site.is_same() {
            self.update(&site, survey, wanted, hub).await
        } else {
            self.fill(&site, survey, wanted, thrift, hub).await
        }
    }

    /// Opens the directory; one that is made is made only when everything fits.
    async fn enter(&self, held: Held, manifest: Manifest) -> Result<Site, WorkError> {
        let name = self.spec.name.clone();
        let opened = self.on_disk(move |bench| bench.volume.model(&name)).await?;
        self.check_names(&manifest).await?;
        if opened.is_none() {
            self.admit(manifest.files().to_vec()).await?;
        }
        let name = self.spec.name.clone();
        let may_write = Arc::clone(&self.bench.may_write);
        may_write()?;
        let model = self.on_disk(move |bench| bench.volume.create_model(&name)).await?;
        let expected = {
            let (model, manifest) = (model.clone(), manifest.clone());
            let expected = self.bench.blocking.run(move || model.expected(manifest)).await;
            expected.map_err(|error| WorkError::unexpected(&self.spec.name, error))?
        };
        self.live.keep_edits(expected.edits());
        let current = held.current.clone();
        let receipted = self.on_disk({
            let model = model.clone();
            // A receipt that cannot be read proves nothing.
            move |_| Ok(current.is_some_and(|current| matches!(model.receipt(&current), Ok(Some(_)))))
        });
        let (manifest, expected) = (Arc::new(manifest), Arc::new(expected));
        Ok(Site { receipted: receipted.await?, model: Arc::new(model), manifest, expected, held })
    }

    /// Refuses names that the directory would take for one, before anything is made.
    async fn check_names(&self, manifest: &Manifest) -> Result<(), WorkError> {
        if manifest.collision(Folding::ALL).is_none() {
            return Ok(());
        }
        let name = self.spec.name.clone();
        let folding = self.on_disk(move |bench| bench.volume.folding(&name)).await?;
        let Some((one, other)) = manifest.collision(folding) else { return Ok(()) };
        let (repo, one, other) = (self.spec.repo.clone(), one.to_owned(), other.to_owned());
        Err(WorkError::Collision { repo, one, other })
    }

    /// Fills a directory that is not complete: files get their names as they are verified.
    async fn fill(
        &self,
        site: &Site,
        survey: Survey,
        wanted: Vec<Wanted>,
        thrift: Thrift,
        hub: &HubClient,
    ) -> Result<(), WorkError> {
        let wanted = self.clear(site, survey.displaced, wanted, thrift).await?;
        let (same, sealed) = (site.is_same(), Arc::clone(&site.manifest));
        self.on_model(site, move |bench, model| {
            (bench.may_write)()?;
            if !same {
                model.store_manifest(&sealed)?;
            }
            model.drop_pending().map_err(WorkError::from)
        })
        .await?;
        self.live.enter(JobState::Fetching, None);
        let settling = Arc::new(Settling::new(self.spec.name.clone(), survey.proved));
        self.fetch(site, wanted, hub, self.publisher(&site.model, Arc::clone(&settling))).await?;
        self.live.enter(JobState::Verifying, None);
        self.audit(Phase::Verified, &units::count(site.manifest.files().len() as u64, "file"));
        let records = self.on_model(site, move |bench, model| settling.finish(bench, model)).await?;
        self.write_receipt(site, records).await
    }

    /// Moves a complete directory to another commit: everything new is fetched and verified
    /// before anything old is touched.
    async fn update(&self, site: &Site, survey: Survey, wanted: Vec<Wanted>, hub: &HubClient) -> Result<(), WorkError> {
        self.live.enter(JobState::Updating, Some("fetching"));
        let pending = Arc::clone(&site.manifest);
        self.on_model(site, move |bench, model| {
            (bench.may_write)()?;
            model.store_pending_manifest(&pending).map_err(WorkError::from)
        })
        .await?;
        let staged: Arc<Mutex<Vec<Staged>>> = Arc::default();
        self.fetch(site, wanted, hub, self.stager(Arc::clone(&staged))).await?;
        self.live.enter(JobState::Updating, Some("swapping"));
        self.audit(Phase::Verified, &units::count(site.manifest.files().len() as u64, "file"));
        let staged = std::mem::take(&mut *staged.lock().unwrap_or_else(PoisonError::into_inner));
        let (name, manifest) = (self.spec.name.clone(), Arc::clone(&site.manifest));
        let swap = Swap { name, manifest, displaced: survey.displaced, staged };
        let settling = Settling::new(self.spec.name.clone(), survey.proved);
        let records = self.on_model(site, move |bench, model| swap.run(bench, model, &settling)).await?;
        self.write_receipt(site, records).await
    }

    async fn held(&self) -> Result<Held, WorkError> {
        let name = self.spec.name.clone();
        self.on_disk(move |bench| match bench.volume.model(&name)? {
            Some(model) => Held::of(&model),
            None => Ok(Held::default()),
        })
        .await
    }

    /// Compares the directory with the manifest. A stop does not wait for the file being hashed.
    pub(super) async fn survey(&self, site: &Site, doubt: Doubt) -> Result<Survey, WorkError> {
        let (name, live, stop) = (self.spec.name.clone(), Arc::clone(&self.live), self.stop.clone());
        let (expected, held) = (Arc::clone(&site.expected), site.held.clone());
        let surveyed = self.on_model(site, move |bench, model| -> Result<Survey, WorkError> {
            (bench.may_write)()?;
            adopt::drop_second_names(model, expected.manifest().files())?;
            let stored = bench.store.files(&name).unwrap_or_else(|error| {
                warn!(%error, "the store does not answer; files without a receipt are hashed");
                Vec::new()
            });
            let known = Known::load(model, &held, expected.manifest(), stored)?.in_doubt(doubt);
            // Remembered one by one: who is stopped does not hash them again.
            let proved = |record: &FileRecord| bench.remember_files(&name, slice::from_ref(record));
            let begins = |bytes| {
                info!(model = %name, bytes, "hashing files that no record speaks for");
                live.hashes(bytes);
            };
            let hashed = |count| live.hashed(count);
            let hearing = Hearing { begins: &begins, bytes: &hashed, proved: &proved, stop: &stop };
            let survey = survey(model, &name, &expected, &known, &hearing)?;
            (bench.may_write)()?;
            model.acquit(&survey.acquitted)?;
            Ok(survey)
        });
        select! {
            surveyed = surveyed => surveyed,
            () = self.stop.cancelled() => Err(WorkError::Stopped),
        }
    }

    async fn take_up(
        &self,
        site: &Site,
        survey: &Survey,
        beginnings: HashMap<FileId, Beginning>,
    ) -> Result<Vec<Wanted>, WorkError> {
        let (manifest, wanted, stop) = (Arc::clone(&site.manifest), survey.wanted.clone(), self.stop.clone());
        self.on_model(site, move |bench, model| take_up(bench, model, &manifest, &wanted, beginnings, &stop)).await
    }

    async fn admit(&self, wanted: Vec<FileEntry>) -> Result<(), WorkError> {
        let (bench, name) = (Arc::clone(&self.bench), self.spec.name.clone());
        self.bench.blocking.run(move || bench.admit(&name, wanted, 0)).await
    }

    /// Looks at every final name once more, then writes the receipt.
    async fn write_receipt(&self, site: &Site, records: Vec<FileRecord>) -> Result<(), WorkError> {
        let (expected, name) = (Arc::clone(&site.expected), self.spec.name.clone());
        self.on_model(site, move |bench, model| {
            let manifest = expected.manifest();
            let moved = records.iter().find(|record| match model.observe(&record.path) {
                // One that could not be waited out is hashed again by whoever checks next.
                Observed::Present(found) => found != record.identity && found.distrusted() != record.identity,
                _ => true,
            });
            // Somebody may have read a file meanwhile that nobody hashed here, and found it wrong.
            let condemned = match model.condemned()? {
                Condemned::Files(files) => files,
                Condemned::Nothing | Condemned::Everything => Vec::new(),
            };
            let is_condemned = |record: &&FileRecord| {
                condemned.iter().any(|file| file.path == record.path && file.identity == record.identity)
            };
            let moved = moved.or_else(|| records.iter().find(is_condemned));
            if let Some(record) = moved {
                return Err(WorkError::Changed { path: record.path.clone() });
            }
            let (program, host) = bench.witness.clone();
            let receipt = Receipt::seal(manifest, records, Witness { at: clock::now(), program, host })?;
            // After the looks, which take their time where there are many files.
            (bench.may_write)()?;
            sign_or_clear(bench, model, &name, &expected, receipt.files())?;
            model.store_receipt(&receipt)?;
            model.pardon()?;
            bench.audit(&name, Phase::Receipted, &format!("commit {}", manifest.source().commit));
            info!(model = %name, "complete: every file verified");
            Ok(())
        })
        .await
    }

    /// Sees to it that a model that was complete before has a signature, where it should have one.
    async fn sign(&self, site: &Site) -> Result<(), WorkError> {
        let (expected, name) = (Arc::clone(&site.expected), self.spec.name.clone());
        self.on_model(site, move |bench, model| sign_published(bench, model, &name, &expected).map(drop)).await
    }

    fn audit(&self, phase: Phase, detail: &str) {
        self.bench.audit(&self.spec.name, phase, detail);
    }

    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Bench) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, WorkError> {
        let bench = Arc::clone(&self.bench);
        Ok(self.bench.blocking.run(move || work(&bench)).await?)
    }

    pub(super) async fn on_model<T: Send + 'static, E: Into<WorkError> + Send + 'static>(
        &self,
        site: &Site,
        work: impl FnOnce(&Bench, &ModelDir) -> Result<T, E> + Send + 'static,
    ) -> Result<T, WorkError> {
        let (bench, model) = (Arc::clone(&self.bench), Arc::clone(&site.model));
        self.bench.blocking.run(move || work(&bench, &model)).await.map_err(Into::into)
    }
}
