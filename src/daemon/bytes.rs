//! The bytes of one job: from which Hub they come, at what pace, and where verified files go.

use std::sync::{Arc, Mutex, PoisonError};

use tracing::warn;

use super::error::WorkError;
use super::settling::Settling;
use super::worker::{Site, Work};
use crate::clock;
use crate::core::code::Code;
use crate::core::pace::Pace;
use crate::core::units;
use crate::fetch::error::PublishError;
use crate::fetch::{self, FetchError, Wanted};
use crate::hub::HubClient;
use crate::limits;
use crate::sources::HubSource;
use crate::store::{OriginMemory, Phase};
use crate::volume::ModelDir;
use crate::volume::publish::{Staged, Verified};

impl Work {
    /// The Hub of this job, with the job's own token or none.
    pub(super) fn hub(&self) -> HubClient {
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
        if self.bench.offline {
            return Err(WorkError::Offline { repo: self.spec.repo.clone(), revision: self.spec.revision.clone() });
        }
        let bench = &self.bench;
        let context = fetch::Context {
            source: HubSource::of(Arc::new(hub.clone()), &site.manifest),
            model: Arc::clone(&site.model),
            writer: bench.writer,
            quarantine: Arc::new(self.on_disk(|bench| bench.volume.quarantine()).await?),
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
        self.bench.remembers(kept, "the number of connections is not remembered");
    }

    /// Gives verified files their names and remembers them.
    pub(super) fn publisher(&self, model: &Arc<ModelDir>, settling: Arc<Settling>) -> fetch::Publish {
        let (bench, model, live) = (Arc::clone(&self.bench), Arc::clone(model), Arc::clone(&self.live));
        let name = self.spec.name.clone();
        Arc::new(move |verified: Verified| {
            (bench.may_write)().map_err(|error| refused("the file was not published", Code::Held, error))?;
            let entry = verified.entry().clone();
            let placed = verified.place(&model).map_err(WorkError::from);
            let kept = placed.and_then(|record| Ok(settling.placed(&bench, &model, record)?));
            kept.map_err(|error| refused("the file could not be put in place", error.code(), error))?;
            bench.audit(&name, Phase::Published, entry.path.as_str());
            live.verified(&entry);
            Ok(())
        })
    }

    /// Keeps verified files until the swap.
    pub(super) fn stager(&self, staged: Arc<Mutex<Vec<Staged>>>) -> fetch::Publish {
        let (bench, live) = (Arc::clone(&self.bench), Arc::clone(&self.live));
        Arc::new(move |verified: Verified| {
            (bench.may_write)().map_err(|error| refused("the file was not kept", Code::Held, error))?;
            let entry = verified.entry().clone();
            let kept = verified.stage();
            let kept = kept.map_err(|error| refused("a verified file could not be kept", error.code(), error))?;
            staged.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
            live.verified(&entry);
            Ok(())
        })
    }
}

fn refused(message: &str, code: Code, source: impl std::error::Error + Send + Sync + 'static) -> PublishError {
    PublishError { message: message.to_owned(), source: Box::new(source), code }
}
