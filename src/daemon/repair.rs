//! What a repair does beyond a pull: it doubts, and it keeps what is right.
//!
//! Owns which files are read again, the way of wrong files off their names, and what is told of it. A
//! pull that meets wrong files goes the same way, so whoever comes after a crash goes on from it.
//! Invariants: a file is condemned before the receipt is set aside, and that before anything moves; a
//! published file is never written; with room the wrong file is kept, and what is right of it is taken
//! before the next one moves.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::bench::Bench;
use super::error::WorkError;
use super::jobs::Jobs;
use super::live::Live;
use super::refusal::JobRefusal;
use super::salvage::{Digests, Salvaged, Sources};
use super::survey::{Displace, Doubt, Survey};
use super::update;
use super::worker::{Site, Work};
use crate::core::identity::Observed;
use crate::core::job::{JobSpec, JobState};
use crate::core::manifest::FileEntry;
use crate::core::model_name::ModelName;
use crate::core::repair::{Look, Repair};
use crate::core::repo_path::RepoPath;
use crate::core::units;
use crate::fetch::Wanted;
use crate::volume::ModelDir;
use crate::volume::aside::Aside;
use crate::volume::condemned::Condemned;
use crate::volume::in_use::InUse;

/// What becomes of wrong files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thrift {
    /// They are kept.
    Keep,
    /// There is no room for them beside the right ones: each goes once what is right of it was taken.
    Drop,
}

impl Work {
    /// Compares the directory with the manifest, as doubtful as was asked for.
    pub(super) async fn examine(&self, site: &Site) -> Result<Survey, WorkError> {
        let Some(repair) = &self.spec.repair else { return self.survey(site, Doubt::None).await };
        self.live.repairs(|_told_even_when_nothing_is_wrong| ());
        self.check_in_use(site).await?;
        let doubt = match &repair.look {
            Look::Known => Doubt::Of(Vec::new()),
            Look::Everything => Doubt::All,
            Look::Files(paths) => Doubt::Of(paths.clone()),
        };
        let survey = match self.survey(site, doubt).await {
            // Nothing is known against it, so everything is looked at.
            Ok(survey) if repair.look == Look::Known && site.receipted && survey.is_well() => {
                self.survey(site, Doubt::All).await
            }
            other => other,
        };
        if let Err(WorkError::EditSpoiled { path, .. }) = &survey {
            self.close_over(site, vec![path.clone()]).await?;
        }
        survey
    }

    /// Reads nothing while a launcher still reads what was found wrong before, and the gate is closed over.
    async fn check_in_use(&self, site: &Site) -> Result<(), WorkError> {
        if site.receipted {
            return Ok(());
        }
        let name = self.spec.name.clone();
        self.on_model(site, move |_, model| {
            let Condemned::Files(mut files) = model.condemned()? else { return Ok(()) };
            files.retain(|file| model.observe(&file.path) == Observed::Present(file.identity));
            match (files.first(), update::lock_alone(model, &name)) {
                (Some(first), Err(WorkError::InUse { name })) => {
                    Err(WorkError::WrongInUse { name, count: files.len(), first: first.path.clone() })
                }
                _ => Ok(()),
            }
        })
        .await
    }

    /// Sees that what is to come fits, and what has to go for that.
    pub(super) async fn make_room(&self, site: &Site, survey: &Survey, wanted: &[Wanted]) -> Result<Thrift, WorkError> {
        let entries: Vec<FileEntry> = wanted.iter().map(|wanted| wanted.entry.clone()).collect();
        let wrong = survey.displaced.iter().filter(|(_, how)| *how == Displace::Quarantine);
        let wrong: Vec<RepoPath> = wrong.map(|(path, _)| path.clone()).collect();
        let name = self.spec.name.clone();
        self.on_model(site, move |bench, model| {
            let (mut aside, mut spared) = (Vec::new(), 0u64);
            let short = match bench.admit(&name, entries.clone(), 0) {
                Err(WorkError::NoSpace { needed, free, .. }) => needed.saturating_sub(free),
                other => return other.map(|()| Thrift::Keep),
            };
            for entry in &entries {
                let found = bench.volume.set_aside_of(&name, &entry.path)?;
                for (found, _) in found.into_iter().filter(|(_, stays)| !stays) {
                    spared += found.size()?;
                    aside.push(found.path());
                }
            }
            let quarantine = bench.volume.quarantine()?;
            let others = quarantine.used_bytes()?.saturating_sub(spared);
            let frees = spared + wrong.iter().map(|path| size_of(model, path)).sum::<u64>();
            if short > others.saturating_add(frees) {
                // Nothing that could go would be enough.
                return bench.admit(&name, entries, 0).map(|()| Thrift::Keep);
            }
            (bench.may_write)()?;
            while quarantine.drop_oldest(&aside)? {
                info!("the oldest wrong file that was set aside is removed, for want of room");
                match bench.admit(&name, entries.clone(), 0) {
                    Err(WorkError::NoSpace { .. }) => {}
                    other => return other.map(|()| Thrift::Keep),
                }
            }
            bench.admit(&name, entries, frees).map(|()| Thrift::Drop)
        })
        .await
    }

    /// Makes room under final names, and takes what is right of what was there, and of the other copy. The
    /// receipt goes first, and nobody may be reading.
    pub(super) async fn clear(
        &self,
        site: &Site,
        displaced: Vec<(RepoPath, Displace)>,
        wanted: Vec<Wanted>,
        thrift: Thrift,
    ) -> Result<Vec<Wanted>, WorkError> {
        let clears = site.receipted || !displaced.is_empty();
        if clears {
            let spoiled = displaced.iter().filter(|(_, how)| !matches!(how, Displace::Retire(_)));
            let spoiled: Vec<RepoPath> = spoiled.map(|(path, _)| path.clone()).collect();
            if self.spec.repair.is_some() && !spoiled.is_empty() {
                self.close_over(site, spoiled).await?;
            } else {
                self.condemn(site, spoiled).await?;
            }
        }
        if clears || self.spec.repair.is_some() {
            self.live.enter(JobState::Verifying, Some("taking what is right"));
        }
        let clearing = Clearing {
            name: self.spec.name.clone(),
            repairs: self.spec.repair.clone(),
            live: Arc::clone(&self.live),
            stop: self.stop.clone(),
            clears,
            displaced,
            thrift,
        };
        self.on_model(site, move |bench, model| clearing.run(bench, model, wanted)).await
    }

    /// Sees to it that nobody believes files by what was proved of them once, then sets the receipt aside.
    async fn close_over(&self, site: &Site, files: Vec<RepoPath>) -> Result<(), WorkError> {
        self.condemn(site, files).await?;
        self.on_model(site, update::close_the_gate).await
    }

    async fn condemn(&self, site: &Site, files: Vec<RepoPath>) -> Result<(), WorkError> {
        self.on_model(site, move |bench, model| -> Result<(), WorkError> {
            (bench.may_write)()?;
            let seen = |path: RepoPath| match model.observe(&path) {
                Observed::Present(identity) => Some((path, identity)),
                _ => None,
            };
            Ok(model.condemn(files.into_iter().filter_map(seen))?)
        })
        .await
    }
}

impl Jobs {
    /// Has files of a model read again, and replaced where they are wrong. For who found something; a job
    /// that is being worked on goes first.
    ///
    /// # Errors
    /// [`JobRefusal`]: unknown, or something else is going on with it.
    pub fn repair(&self, name: &ModelName, look: Look) -> Result<(), JobRefusal> {
        let known = self.entries().get(name).map(|entry| (entry.job.spec.clone(), entry.token.clone()));
        let (spec, token) = known.ok_or_else(|| JobRefusal::Unknown { name: name.clone() })?;
        let repair = Some(Repair { look, from: None });
        self.submit(JobSpec { update: false, repair, ..spec }, token, None)
    }
}

/// Everything that making room under final names needs.
struct Clearing {
    name: ModelName,
    repairs: Option<Repair>,
    live: Arc<Live>,
    stop: CancellationToken,
    /// Whether a name or the receipt is in the way.
    clears: bool,
    displaced: Vec<(RepoPath, Displace)>,
    thrift: Thrift,
}

impl Clearing {
    fn run(self, bench: &Bench, model: &ModelDir, wanted: Vec<Wanted>) -> Result<Vec<Wanted>, WorkError> {
        (bench.may_write)()?;
        let _alone = if self.clears { self.lock_alone(model)? } else { None };
        if self.clears {
            update::close_the_gate(bench, model)?;
        }
        let copy = self.copy()?;
        if self.has_nothing_to_take(bench, copy.as_ref())? {
            update::displace(bench, model, &self.name, &self.displaced)?;
            return Ok(wanted);
        }
        let go_on = || !self.stop.is_cancelled();
        let tables = std::iter::once(model).chain(copy.as_ref()).filter_map(|dir| dir.blocks().ok());
        let sources = Sources {
            bench,
            model,
            name: &self.name,
            copy: copy.as_ref(),
            digests: Digests(tables.collect()),
            thrift: self.thrift,
            go_on: &go_on,
        };
        let (order, mut left): (Vec<_>, HashMap<_, _>) =
            wanted.into_iter().map(|wanted| (wanted.id, (wanted.entry.path.clone(), wanted))).unzip();
        let mut ready = HashMap::new();
        for (path, how) in &self.displaced {
            let moved = update::move_aside(bench, model, &self.name, path, *how)?;
            if let Some(wanted) = left.remove(path) {
                ready.insert(wanted.id, self.salvage(&sources, wanted, moved.as_ref())?);
            }
        }
        if !self.displaced.is_empty() {
            model.remove_empty_folders()?;
        }
        for wanted in left.into_values() {
            ready.insert(wanted.id, self.salvage(&sources, wanted, None)?);
        }
        let wanted: Vec<Wanted> = order.iter().filter_map(|id| ready.remove(id)).collect();
        self.check_copy(bench, &wanted)?;
        Ok(wanted)
    }

    fn salvage(&self, sources: &Sources<'_>, wanted: Wanted, moved: Option<&Aside>) -> Result<Wanted, WorkError> {
        if self.stop.is_cancelled() {
            return Err(WorkError::Stopped);
        }
        let Salvaged { wanted, done, refused } = sources.salvage(wanted, moved)?;
        if self.stop.is_cancelled() {
            return Err(WorkError::Stopped);
        }
        let (kept, copied, missing) = (done.bytes_kept, done.bytes_copied, done.bytes_to_fetch);
        if kept + copied > 0 {
            info!(file = %wanted.entry.path, kept, copied, missing, "what is right of it is taken over");
        }
        if self.repairs.is_some() {
            self.live.repairs(|repaired| {
                repaired.files.push(done);
                repaired.refused.extend(refused);
            });
        }
        Ok(wanted)
    }

    /// The other copy that was named.
    fn copy(&self) -> Result<Option<ModelDir>, WorkError> {
        let directory = self.repairs.as_ref().and_then(Repair::directory);
        directory.map(|directory| Ok(ModelDir::open(Path::new(directory))?)).transpose()
    }

    fn has_nothing_to_take(&self, bench: &Bench, copy: Option<&ModelDir>) -> Result<bool, WorkError> {
        let keeps = self.displaced.iter().any(|(_, how)| !matches!(how, Displace::Retire(_)));
        let is_told = self.repairs.is_some();
        Ok(copy.is_none() && !keeps && !is_told && bench.volume.kept_aside(&self.name)?.files == 0)
    }

    /// Offline, the other copy is all there is.
    fn check_copy(&self, bench: &Bench, wanted: &[Wanted]) -> Result<(), WorkError> {
        let Some(directory) = self.repairs.as_ref().and_then(Repair::directory).filter(|_| bench.offline) else {
            return Ok(());
        };
        let lacking: Vec<&FileEntry> =
            wanted.iter().filter(|wanted| wanted.lacks_bytes()).map(|wanted| &wanted.entry).collect();
        match lacking.first() {
            None => Ok(()),
            Some(first) => {
                let (directory, first) = (directory.to_owned(), first.path.clone());
                Err(WorkError::NotInCopy { directory, count: lacking.len(), first })
            }
        }
    }

    fn lock_alone(&self, model: &ModelDir) -> Result<Option<InUse>, WorkError> {
        let spoiled = || self.displaced.iter().filter(|(_, how)| !matches!(how, Displace::Retire(_)));
        match (update::lock_alone(model, &self.name), spoiled().next()) {
            (Err(WorkError::InUse { name }), Some((first, _))) if self.repairs.is_some() => {
                warn!(model = %name, files = units::count(spoiled().count() as u64, "file"), "in use, and wrong");
                Err(WorkError::WrongInUse { name, count: spoiled().count(), first: first.clone() })
            }
            (other, _) => other,
        }
    }
}

fn size_of(model: &ModelDir, path: &RepoPath) -> u64 {
    if let Observed::Present(identity) = model.observe(path) { identity.size } else { 0 }
}
