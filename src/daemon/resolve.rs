//! From a request to a sealed manifest.
//!
//! Owns the rule of when the Hub is asked: a branch is resolved once, a commit never, and a
//! listing is fetched only when the directory does not hold the manifest already. Nothing is
//! written here, so a request that fails leaves nothing behind.

use tracing::info;

use super::error::WorkError;
use crate::core::job::JobSpec;
use crate::core::manifest::{Manifest, Source};
use crate::core::repo::CommitId;
use crate::hub::HubClient;

/// The manifest a job is to bring about.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The manifest.
    pub manifest: Manifest,
    /// The commit in the directory, when the branch has moved on from it.
    pub moved_from: Option<CommitId>,
    /// Requests made.
    pub requests: u32,
}

/// Finds the manifest that `spec` asks for. `held` are the manifests that the directory has.
/// Without a `hub` no request is made.
///
/// # Errors
/// [`WorkError`] when the Hub refuses, or the directory belongs to something else.
pub async fn resolve(spec: &JobSpec, held: &[Manifest], hub: Option<&HubClient>) -> Result<Resolved, WorkError> {
    check_place(spec, held)?;
    let here = held.iter().find(|manifest| manifest.source().selection == spec.selection);
    let stays = here.filter(|manifest| !spec.update && manifest.source().revision == spec.revision);
    let mut requests = 0;
    let commit = match (spec.revision.as_commit(), stays, hub) {
        (Some(commit), _, _) => commit,
        (None, Some(manifest), _) => manifest.source().commit,
        (None, None, Some(hub)) => {
            requests += 1;
            let asked = hub.resolve_revision(&spec.repo, &spec.revision).await;
            asked.map_err(|source| WorkError::Hub { repo: spec.repo.clone(), source })?
        }
        (None, None, None) => {
            let same = here.filter(|manifest| manifest.source().revision == spec.revision);
            same.ok_or_else(|| offline(spec))?.source().commit
        }
    };
    let moved_from = here.map(|manifest| manifest.source().commit).filter(|old| *old != commit);
    if let Some(old) = moved_from {
        info!(from = %old, to = %commit, revision = %spec.revision, "the revision moved");
    }
    let known = held.iter().find(|m| m.source().commit == commit && m.source().selection == spec.selection);
    if let Some(manifest) = known {
        return Ok(Resolved { manifest: manifest.clone(), moved_from, requests });
    }
    let hub = hub.ok_or_else(|| offline(spec))?;
    requests += 1;
    let listing = hub.listing(&spec.repo, commit).await;
    let listing = listing.map_err(|source| WorkError::Hub { repo: spec.repo.clone(), source })?;
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

fn offline(spec: &JobSpec) -> WorkError {
    WorkError::Offline { repo: spec.repo.clone(), revision: spec.revision.clone() }
}

/// A directory belongs to one repository and one selection.
fn check_place(spec: &JobSpec, held: &[Manifest]) -> Result<(), WorkError> {
    let Some(source) = held.first().map(Manifest::source) else { return Ok(()) };
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
