//! What a pull would do, before anything is done.
//!
//! Looks, asks the Hub, and writes nothing: a request that cannot succeed fails here and leaves
//! no trace. Its figures are estimates as far as the disk is concerned; the worker looks again.

use std::collections::HashMap;
use std::path::Path;

use super::error::WorkError;
use super::resolve::{Resolved, resolve};
use crate::core::identity::Observed;
use crate::core::job::JobSpec;
use crate::core::manifest::Manifest;
use crate::hub::HubClient;
use crate::volume::adopt::leftovers;
use crate::volume::space::Space;
use crate::volume::writer::PathHash;
use crate::volume::{ModelDir, Volume, VolumeError};

/// Requests of the Hub for each file that is fetched: one to locate it, one for its bytes.
const REQUESTS_A_FILE: u64 = 2;

/// What a pull would do.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Manifest, and what was asked for it.
    pub resolved: Resolved,
    /// Whether the directory is complete: every file as the receipt knows it.
    pub complete: bool,
    /// Bytes that are there, of the manifest's.
    pub present: u64,
    /// Files with bytes still to fetch.
    pub files_to_fetch: u64,
    /// Room of the volume's file system.
    pub space: Space,
    /// Bytes of it that stay free.
    pub reserve: u64,
}

impl Preview {
    /// Bytes to fetch.
    #[must_use]
    pub fn to_fetch(&self) -> u64 {
        self.resolved.manifest.total_bytes() - self.present
    }

    /// Bytes that may be used.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.space.free.saturating_sub(self.reserve)
    }

    /// Requests of the Hub that the pull will need.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.resolved.requests as u64 + self.files_to_fetch * REQUESTS_A_FILE
    }

    /// Refuses what cannot fit.
    ///
    /// # Errors
    /// [`WorkError::NoSpace`].
    pub fn check_space(&self) -> Result<(), WorkError> {
        let (needed, free) = (self.to_fetch(), self.free());
        if needed > free {
            return Err(WorkError::NoSpace { needed, free, reserve: self.reserve });
        }
        Ok(())
    }
}

/// Looks at the volume and asks the Hub what is needed; without a `hub` nothing is asked.
///
/// # Errors
/// [`WorkError`].
pub async fn preview(
    root: &Path,
    spec: &JobSpec,
    hub: Option<&HubClient>,
    reserve: Option<u64>,
) -> Result<Preview, WorkError> {
    let model = open_model(root, spec)?;
    let held = match &model {
        Some(model) => [model.manifest()?, model.pending_manifest()?].into_iter().flatten().collect(),
        None => Vec::new(),
    };
    let resolved = resolve(spec, &held, hub).await?;
    let manifest = &resolved.manifest;
    let complete = match &model {
        Some(model) => is_complete(model, manifest)?,
        None => false,
    };
    let (present, files_to_fetch) = match &model {
        Some(model) => present(model, manifest)?,
        None => (0, manifest.files().len() as u64),
    };
    let space = room(root)?;
    let reserve = reserve.unwrap_or_else(|| space.default_reserve());
    Ok(Preview { resolved, complete, present, files_to_fetch, space, reserve })
}

/// Whether every file is as the receipt for this very manifest knows it.
///
/// # Errors
/// When the directory cannot be read.
pub fn is_complete(model: &ModelDir, manifest: &Manifest) -> Result<bool, VolumeError> {
    if model.manifest()?.is_none_or(|held| held.id() != manifest.id()) {
        return Ok(false);
    }
    let receipt = model.receipt(manifest).ok().flatten();
    Ok(receipt.is_some_and(|receipt| {
        receipt.files().iter().all(|record| model.observe(&record.path) == Observed::Present(record.identity))
    }))
}

fn open_model(root: &Path, spec: &JobSpec) -> Result<Option<ModelDir>, WorkError> {
    match Volume::open(root) {
        Ok(volume) => Ok(volume.model(&spec.name)?),
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Bytes that look as if they were there, and how many files lack some.
fn present(model: &ModelDir, manifest: &Manifest) -> Result<(u64, u64), VolumeError> {
    let mut partials: HashMap<PathHash, u64> = HashMap::new();
    for leftover in leftovers(model)? {
        let size = partials.entry(leftover.path().clone()).or_default();
        *size = leftover.size().max(*size);
    }
    let (mut bytes, mut lacking) = (0, 0);
    for entry in manifest.files() {
        let published = matches!(model.observe(&entry.path), Observed::Present(found) if found.size == entry.size);
        let here = if published { entry.size } else { partials.get(&PathHash::of(&entry.path)).copied().unwrap_or(0) };
        bytes += here.min(entry.size);
        lacking += u64::from(!published);
    }
    Ok((bytes, lacking))
}

/// Room where the volume is, or where it would be made.
fn room(root: &Path) -> Result<Space, VolumeError> {
    let mut place = root;
    loop {
        match Volume::open(place) {
            Ok(volume) => return volume.space(),
            Err(error) if error.is_missing() => match place.parent() {
                Some(parent) => place = parent,
                None => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
}
