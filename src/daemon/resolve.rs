//! From a request to a sealed manifest.
//!
//! Owns the rule of when the Hub is asked: a branch is resolved once, a commit never, and a
//! listing is fetched only when the directory does not hold the manifest already. Nothing is
//! written here, so a request that fails leaves nothing behind.

use tracing::{info, warn};

use super::error::WorkError;
use super::held::Held;
use crate::core::job::JobSpec;
use crate::core::manifest::{Manifest, Source};
use crate::core::repo::CommitId;
use crate::core::retry::FailureClass;
use crate::core::shards;
use crate::hub::{HubClient, HubError};

/// The manifest a job is to bring about.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The manifest.
    pub manifest: Manifest,
    /// The commit in the directory, when another one is asked for now.
    pub moved_from: Option<CommitId>,
    /// Requests made.
    pub requests: u32,
}

/// Finds the manifest that `spec` asks for. `held` are the manifests that the directory has.
/// Without a `hub` no request is made.
///
/// # Errors
/// [`WorkError`] when the Hub refuses, or the directory belongs to something else.
pub async fn resolve(spec: &JobSpec, held: &Held, hub: Option<&HubClient>) -> Result<Resolved, WorkError> {
    check_place(spec, held)?;
    let here = held.iter().find(|manifest| manifest.source().selection == spec.selection);
    let mut requests = 0;
    let commit = match (commit_without_asking(spec, here, hub.is_none()), hub) {
        (Some(commit), _) => commit,
        (None, None) => return Err(offline(spec)),
        (None, Some(hub)) => {
            requests += 1;
            let asked = hub.resolve_revision(&spec.repo, &spec.revision).await;
            asked.map_err(|source| unanswered(spec, here, source))?
        }
    };
    let moved_from = here.map(|manifest| manifest.source().commit).filter(|old| *old != commit);
    if let Some(old) = moved_from {
        info!(from = %old, to = %commit, revision = %spec.revision, "another commit than the directory has");
    }
    let known = held.iter().find(|m| m.source().commit == commit && m.source().selection == spec.selection);
    if let Some(manifest) = known {
        return Ok(Resolved { manifest: manifest.clone(), moved_from, requests });
    }
    let hub = hub.ok_or_else(|| offline(spec))?;
    requests += 1;
    let listing = hub.listing(&spec.repo, commit).await;
    let listing = listing.map_err(|source| WorkError::Hub { repo: spec.repo.clone(), source })?;
    for torn in shards::torn(listing.iter().map(|entry| &entry.path), |path| spec.selection.selects(path)) {
        warn!("the selection takes {torn}: no loader can use a part of a set");
    }
    let source = Source {
        repo: spec.repo.clone(),
        endpoint: spec.endpoint.clone(),
        revision: spec.revision.clone(),
        commit,
        selection: spec.selection.clone(),
    };
    let sealed = Manifest::seal(source, listing);
    let manifest = sealed.map_err(|source| WorkError::Manifest { repo: spec.repo.clone(), source })?;
    Ok(Resolved { manifest, moved_from, requests })
}

/// A directory belongs to one repository and one selection.
pub(super) fn check_place(spec: &JobSpec, held: &Held) -> Result<(), WorkError> {
    let Some(source) = held.iter().next().map(Manifest::source) else { return Ok(()) };
    if source.repo != spec.repo {
        let (name, held, asked) = (spec.name.clone(), source.repo.clone(), spec.repo.clone());
        return Err(WorkError::OtherRepo { name, held, asked });
    }
    if source.selection != spec.selection && !spec.reselect {
        let (name, held, asked) = (spec.name.clone(), source.selection.clone(), spec.selection.clone());
        return Err(WorkError::OtherSelection { name, held, asked });
    }
    Ok(())
}

/// The commit, when no request is needed to know it: it was asked for, or the directory is to
/// stay where it is.
fn commit_without_asking(spec: &JobSpec, here: Option<&Manifest>, offline: bool) -> Option<CommitId> {
    let stays = |manifest: &&Manifest| (offline || !spec.update) && manifest.source().revision == spec.revision;
    spec.revision.as_commit().or_else(|| Some(here.filter(stays)?.source().commit))
}

fn offline(spec: &JobSpec) -> WorkError {
    WorkError::Offline { repo: spec.repo.clone(), revision: spec.revision.clone() }
}

/// The Hub did not say where the branch is. A commit that the directory has is a way on.
fn unanswered(spec: &JobSpec, here: Option<&Manifest>, source: HubError) -> WorkError {
    let repo = spec.repo.clone();
    match here {
        Some(here) if matches!(source.class(), FailureClass::Transient { .. }) => {
            let (revision, held) = (spec.revision.clone(), here.source().commit);
            WorkError::Unanswered { repo, revision, held, source }
        }
        _ => WorkError::Hub { repo, source },
    }
}
