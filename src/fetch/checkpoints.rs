//! The checkpoints of a file, as one connection sees to them.
//!
//! Owns those that it began: they go on while bytes come, past the end of its assignment too, and the
//! pool hears how they ended. Invariant: a connection waits for the disk only when too much of a file is
//! unclaimed, or when its assignment failed.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::connection::AttemptError;
use super::file::FileFetch;
use super::pool::unwound;
use super::shared::{Event, Shared};
use crate::clock;
use crate::core::plan::FileId;

/// Unclaimed bytes of a file, for each of its connections, at which they wait for the disk.
const UNCLAIMED_MAX: u64 = 128 << 20;

/// The checkpoints that one connection began.
#[derive(Debug, Default)]
pub(super) struct Checkpoints(JoinSet<()>);

impl Checkpoints {
    /// Begins the one that is due, if it is this connection's turn.
    pub(super) async fn tick(
        &mut self,
        shared: &Arc<Shared>,
        id: FileId,
        file: &Arc<FileFetch>,
    ) -> Result<(), AttemptError> {
        while let Some(ended) = self.0.try_join_next() {
            unwound(ended);
        }
        if let Some(turn) = file.checkpoint_turn(clock::since_boot()) {
            let shared = Arc::clone(shared);
            let runtime = shared.context.runtime.clone();
            let task = async move {
                let working = Arc::clone(&shared);
                let made = shared.context.blocking.run(move || working.checkpoint(turn.file())).await;
                let result = made.map(drop).map_err(Into::into);
                // If the pool is gone, nobody needs to know.
                let _ = shared.events.send(Event::Checkpointed { file: id, result }).await;
            };
            self.0.spawn_on(task, &runtime);
        }
        let unclaimed = file.unclaimed();
        if unclaimed > UNCLAIMED_MAX && unclaimed > UNCLAIMED_MAX * shared.plan().connections_of(id) as u64 {
            claim(shared, file).await?;
        }
        Ok(())
    }

    /// Waits until the pool has heard of all of them.
    pub(super) async fn settle(&mut self) {
        while let Some(ended) = self.0.join_next().await {
            unwound(ended);
        }
    }
}

/// Makes what came durable and claims it, behind the checkpoint that is being made, if one is.
pub(super) async fn claim(shared: &Arc<Shared>, file: &Arc<FileFetch>) -> Result<(), AttemptError> {
    let (working, file) = (Arc::clone(shared), Arc::clone(file));
    shared.context.blocking.run(move || working.checkpoint(&file)).await?;
    Ok(())
}
