//! The bytes of one job: from which Hub they come, at what pace, and where verified files go.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use super::bench::{Bench, tell_loss};
use super::error::WorkError;
use super::settling::Settling;
use super::worker::{Site, Work};
use crate::clock;
use crate::core::pace::Pace;
use crate::core::receipt::FileRecord;
use crate::core::repair::Repair;
use crate::core::units;
use crate::fetch::error::PublishError;
use crate::fetch::{self, FetchError, Wanted};
use crate::hub::HubClient;
use crate::limits;
use crate::parallel::each_in_parallel;
use crate::sources::HubSource;
use crate::store::{OriginMemory, Phase};
use crate::volume::ModelDir;
use crate::volume::publish::{Folders, Staged, Verified, records};

impl Work {
    /// The Hub of this job, with the job's own token or none.
    pub(super) fn hub(&self) -> HubClient {
        if let Some(mirror) = self.spec.repair.as_ref().and_then(Repair::endpoint) {
            return self.bench.hub.at(mirror.clone(), None);
        }
        if self.token.is_none() && self.spec.endpoint == *self.bench.hub.endpoint() {
            return self.bench.hub.clone();
        }
        self.bench.hub.at(self.spec.endpoint.clone(), self.token.clone())
    }

    /// Fetches the wanted files; each verified one is given to `publish`.
    pub(super) async fn fetch(
        &self,
        site: &Site,
        wanted: Vec<Wanted>,
        hub: &HubClient,
        publish: fetch::Publish,
    ) -> Result<(), WorkError> {
        if wanted.is_empty() {
            return Ok(());
        }
        if self.bench.offline && wanted.iter().any(Wanted::lacks_bytes) {
            return Err(WorkError::Offline { repo: self.spec.repo.clone(), revision: self.spec.revision.clone() });
        }
        let bench = &self.bench;
        let context = fetch::Context {
            source: HubSource::of(Arc::new(hub.clone()), &site.manifest),
            model: Arc::clone(&site.model),
            writer: bench.writer,
            quarantine: Arc::new(self.on_disk(|bench| bench.volume.quarantine()).await?.of_model(&self.spec.name)),
            blocking: bench.blocking.clone(),
            runtime: bench.data.clone(),
            progress: Arc::clone(&self.live.progress),
            readback: bench.reads_back(),
            retry_for: bench.retry_for,
            throttle: self.throttle.clone(),
            pages: bench.pages,
            may_write: Arc::clone(&bench.may_write),
            publish,
            syncing: bench.syncing.clone(),
            syncs: bench.syncs,
            offline: bench.offline,
        };
        let count = wanted.len();
        let outcome = fetch::fetch(context, wanted, self.pace(), self.stop.clone()).await;
        let outcome = outcome.map_err(|error| match error {
            FetchError::Stopped => WorkError::Stopped,
            error => error.into(),
        })?;
        self.remember_pace(outcome.safe_level);
        let (files, came) = (units::count(count as u64, "file"), units::bytes(self.live.progress.wire()));
        self.bench.audit(&self.spec.name, Phase::Fetched, &format!("{files}, {came} came over the wire"));
        if outcome.failed.is_empty() { Ok(()) } else { Err(WorkError::unfinished(outcome.failed, count)) }
    }

    fn pace(&self) -> Pace {
        let most = self.bench.connections_max;
        if let Some(connections) = self.spec.connections.map(usize::from) {
            if connections > most {
                warn!(
                    asked = connections,
                    used = most,
                    "fewer connections: memory or the limit on open files (ulimit -n) allows no more"
                );
            }
            return Pace::pinned(connections.min(most));
        }
        let remembered = self.bench.store.origin(&self.spec.endpoint.origin()).ok().flatten();
        let remembered = remembered.map(|memory| usize::from(memory.safe_connections));
        Pace::adaptive(most.min(limits::CONNECTIONS_ADAPTIVE_MAX.into()), remembered)
    }

    fn remember_pace(&self, level: usize) {
        let memory = OriginMemory {
            safe_connections: u16::try_from(level).unwrap_or(u16::MAX),
            best_rate: 0,
            updated_at: clock::now(),
        };
        let kept = self.bench.store.put_origin(&self.spec.endpoint.origin(), &memory);
        tell_loss(kept, "the number of connections is not remembered");
    }

    /// Gives verified files their names and remembers them.
    pub(super) fn publisher(&self, model: &Arc<ModelDir>, settling: Arc<Settling>) -> fetch::Publish {
        let (bench, model, live) = (Arc::clone(&self.bench), Arc::clone(model), Arc::clone(&self.live));
        let name = self.spec.name.clone();
        Arc::new(move |files: Vec<Verified>| {
            let entries: Vec<_> = files.iter().map(|file| file.entry().clone()).collect();
            let placed = place(&bench, &model, files);
            let there = placed.iter().flatten().cloned().collect();
            if let Err(error) = settling.placed(&bench, &model, there) {
                return vec![Err(unplaced(error))];
            }
            let done: Vec<_> = entries.iter().zip(&placed).filter(|(_, placed)| placed.is_ok()).collect();
            bench.audit_all(&name, Phase::Published, done.iter().map(|(entry, _)| entry.path.as_str()));
            for (entry, _) in &done {
                live.verified(entry);
            }
            placed.into_iter().map(|placed| placed.map(drop)).collect()
        })
    }

    /// Keeps verified files until the swap.
    pub(super) fn stager(&self, staged: Arc<Mutex<Vec<Staged>>>) -> fetch::Publish {
        let (bench, live) = (Arc::clone(&self.bench), Arc::clone(&self.live));
        let keep = move |verified: Verified| {
            (bench.may_write)().map_err(|error| refused("the file was not kept", error))?;
            let entry = verified.entry().clone();
            let kept = verified.stage();
            let kept = kept.map_err(|error| refused("a verified file could not be kept", error))?;
            staged.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
            live.verified(&entry);
            Ok(())
        };
        let threads = self.bench.syncs;
        Arc::new(move |files: Vec<Verified>| each_in_parallel(threads, files, &keep))
    }
}

/// Names all files of a batch, then makes the names durable together.
fn place(bench: &Bench, model: &ModelDir, files: Vec<Verified>) -> Vec<Result<FileRecord, PublishError>> {
    let mut folders = Folders::default();
    let mut named = Vec::new();
    let refused: Vec<Option<PublishError>> = files
        .into_iter()
        .map(|file| {
            let may = (bench.may_write)().map_err(|error| refused("the file was not published", error));
            let name = || file.name(model, &mut folders).map_err(unplaced);
            may.and_then(|()| name()).map(|file| named.push(file)).err()
        })
        .collect();
    let mut records = records(named, model, bench.syncs).into_iter();
    let record = |refused| match refused {
        Some(error) => Some(Err(error)),
        None => records.next().map(|record| record.map_err(unplaced)),
    };
    refused.into_iter().filter_map(record).collect()
}

fn unplaced(error: impl Into<WorkError>) -> PublishError {
    refused("the file could not be put in place", error)
}

fn refused(message: &str, error: impl Into<WorkError>) -> PublishError {
    let error = error.into();
    let (code, hint) = (error.code(), error.hint());
    PublishError { message: message.to_owned(), source: Box::new(error), code, hint }
}
