//! Where the next file lies, asked before it is needed.
//!
//! Owns the questions of one connection. Without them it waits for two answers between two files: where the
//! next one lies, and its first byte. Invariant: each file is asked about once, whoever asks; what
//! goes wrong here is told by whoever reads the file.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::shared::Shared;
use crate::core::plan::{Assignment, AssignmentId};

/// Bytes of an assignment that are worth it: shorter ones end before an answer comes.
const WORTH: u64 = 4 << 20;

/// The questions of one connection.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    asked_during: Option<AssignmentId>,
    questions: JoinSet<()>,
}

impl Ahead {
    /// Asks for one more file once half of an assignment has come: a location is good for an hour or
    /// so, and a file may take longer.
    pub(super) fn tick(&mut self, shared: &Arc<Shared>, assignment: &Assignment, reached: u64) {
        let (range, id) = (&assignment.range, Some(assignment.id));
        let len = range.end - range.start;
        if len < WORTH || reached - range.start < len / 2 || self.asked_during == id {
            return;
        }
        self.asked_during = id;
        while self.questions.try_join_next().is_some() {}
        let Some(next) = shared.plan().look_ahead() else { return };
        let asking = Arc::clone(shared);
        let question = async move { asking.context.source.locate_ahead(asking.entry(next)).await };
        self.questions.spawn_on(question, &shared.context.runtime);
    }
}
