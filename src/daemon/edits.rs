//! Deliberate edits of a model, made by the owner of its volume.
//!
//! Owns who may change the record of them while jobs go on, and the way back to the published
//! file. Invariants: nobody works on the model meanwhile; undoing closes the gate first, then
//! forgets the edit, then sets the file aside, so that a crash after any step leaves a closed gate
//! and a directory that the next pull completes, with the edit or without it; no file is removed.

use std::path::PathBuf;

use tracing::warn;

use super::bench::Bench;
use super::error::WorkError;
use super::jobs::Jobs;
use super::refusal::JobRefusal;
use super::report::of_directory;
use super::update::{close_the_gate, lock_alone, unless_lost};
use crate::core::identity::Observed;
use crate::core::job::JobState;
use crate::core::local_edits::{LocalEdit, LocalEdits};
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::core::repo_path::RepoPath;
use crate::gate::accept::{AcceptError, Acceptance, Accepted, accept, prove, record};
use crate::store::Phase;
use crate::volume::ModelDir;

/// What came of undoing edits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// Edited files that were set aside, and where they are now.
    pub set_aside: Vec<(RepoPath, PathBuf)>,
    /// What is still changed here on purpose.
    pub left: LocalEdits,
    /// Whether the directory is complete and has its receipt; else a pull has to bring what is
    /// missing.
    pub complete: bool,
}

impl Jobs {
    /// Takes files of a model for right as they are.
    ///
    /// # Errors
    /// [`JobRefusal`]: unknown, being pulled, or not to be accepted.
    pub async fn accept(&self, name: &ModelName, what: Acceptance) -> Result<Accepted, JobRefusal> {
        self.alone(name, move |bench, model, name| {
            let accepted = accept(model, &what, &|| (bench.may_write)().is_ok())?;
            let lines: Vec<_> = accepted.edits.iter().map(line).collect();
            bench.audit_all(name, Phase::Accepted, lines.iter().map(String::as_str));
            let all = accepted.all.clone();
            Ok((accepted, all))
        })
        .await
    }

    /// Forgets edits and sets the edited files aside. With `force` even while a launcher reads the
    /// model: what it has open keeps its bytes.
    ///
    /// # Errors
    /// [`JobRefusal`]: unknown, being pulled, in use, or the volume fails.
    pub async fn undo(&self, name: &ModelName, mut paths: Vec<RepoPath>, force: bool) -> Result<Undone, JobRefusal> {
        paths.sort();
        paths.dedup();
        self.alone(name, move |bench, model, name| {
            let undone = undo(bench, model, name, &paths, force)?;
            bench.audit_all(name, Phase::Undone, paths.iter().map(RepoPath::as_str));
            let left = undone.left.clone();
            Ok((undone, left))
        })
        .await
    }

    /// Does something about a directory that nobody else works on. The work says which edits there
    /// are afterwards.
    async fn alone<T: Send + 'static>(
        &self,
        name: &ModelName,
        work: impl FnOnce(&Bench, &ModelDir, &ModelName) -> Result<(T, LocalEdits), JobRefusal> + Send + 'static,
    ) -> Result<T, JobRefusal> {
        self.reserve(name)?;
        let (jobs, name) = (self.clone(), name.clone());
        // Seen through even when the caller goes away.
        let working = self.bench().blocking.start(move || {
            let bench = jobs.bench();
            let opened = match bench.volume.model(&name) {
                Ok(Some(model)) => Ok(model),
                Ok(None) => Err(JobRefusal::Unknown { name: name.clone() }),
                Err(error) => Err(WorkError::from(error).into()),
            };
            let done = opened.and_then(|model| work(bench, &model, &name));
            let is_ready =
                matches!(of_directory(&bench.volume, &name), Ok(Some(found)) if found.state == JobState::Ready);
            let now = if is_ready { JobState::Ready } else { JobState::Damaged };
            jobs.release(&name, |entry, jobs| {
                if let Ok((_, edits)) = &done {
                    entry.live.keep_edits(edits);
                }
                if matches!(entry.job.state, JobState::Ready | JobState::Damaged) && entry.job.state != now {
                    jobs.enter(entry, now, None);
                }
            });
            done.map(|(answer, _)| answer)
        });
        working.wait().await
    }
}

/// The line in the model's history.
fn line(edit: &LocalEdit) -> String {
    let LocalEdit { path, sha256, reason, uid, user, host, .. } = edit;
    let who = match (user, uid) {
        (Some(user), _) => user.clone(),
        (None, Some(uid)) => format!("uid {uid}"),
        (None, None) => "somebody".to_owned(),
    };
    format!("{path}, sha256 {}…, by {who} on {host}: {reason}", sha256.short())
}

/// The files of edits that are to be undone.
#[derive(Default)]
struct Sorted {
    /// To be moved away.
    edited: Vec<RepoPath>,
    /// Published bytes again, with their proofs.
    published: Vec<FileRecord>,
    /// How many are not there.
    missing: usize,
}

fn undo(
    bench: &Bench,
    model: &ModelDir,
    name: &ModelName,
    paths: &[RepoPath],
    force: bool,
) -> Result<Undone, JobRefusal> {
    let work = |error: WorkError| JobRefusal::from(error);
    (bench.may_write)().map_err(|lost| work(lost.into()))?;
    let _alone = match lock_alone(model, name) {
        Err(WorkError::InUse { .. }) if force => {
            warn!(model = %name, "undone while it is in use: what is open keeps its bytes");
            None
        }
        other => other?,
    };
    let no_manifest = || AcceptError::NoManifest { directory: model.path().display().to_string() };
    let published = model.manifest().map_err(AcceptError::from)?.ok_or_else(no_manifest)?;
    let edits = model.local_edits().map_err(AcceptError::from)?;
    if let Some(path) = paths.iter().find(|path| edits.of(path).is_none()) {
        return Err(AcceptError::NotAccepted { path: path.clone() }.into());
    }
    let Sorted { edited, published: proved, missing } = sort(model, &published, paths)?;
    let left = edits.without(paths);
    if edited.is_empty() && missing == 0 {
        let complete = record(model, published, &left, proved, &|| (bench.may_write)().is_ok())?;
        return Ok(Undone { set_aside: Vec::new(), left, complete });
    }
    close_the_gate(bench, model)?;
    (bench.may_write)().map_err(|lost| work(lost.into()))?;
    model.store_local_edits(&left).map_err(AcceptError::from)?;
    let quarantine = bench.volume.quarantine().map_err(AcceptError::from)?;
    let mut set_aside = Vec::new();
    for path in edited {
        let step = || model.quarantine(&path, &quarantine).map(Some);
        let aside = unless_lost(bench, step, |aside| model.put_back(&path, aside))?;
        set_aside.extend(aside.map(|aside| (path, aside.path())));
    }
    Ok(Undone { set_aside, left, complete: false })
}

fn sort(model: &ModelDir, published: &Manifest, paths: &[RepoPath]) -> Result<Sorted, AcceptError> {
    let mut sorted = Sorted::default();
    for path in paths {
        match (model.observe(path), published.file(path)) {
            (Observed::Missing, _) => sorted.missing += 1,
            (Observed::Present(found), Some(entry)) if found.size == entry.size => match prove(model, entry)? {
                (record, true) => sorted.published.push(record),
                (_, false) => sorted.edited.push(path.clone()),
            },
            _ => sorted.edited.push(path.clone()),
        }
    }
    Ok(sorted)
}
