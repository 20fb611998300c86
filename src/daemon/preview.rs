//! What a pull would do, before anything is done.
//!
//! Looks, asks the Hub, and writes nothing: a request that cannot succeed fails here and leaves
//! no trace. Its figures are estimates as far as the disk is concerned; the worker looks again.

use std::collections::HashMap;
use std::path::Path;

use super::error::WorkError;
use super::held::Held;
use super::resolve::{Resolved, resolve};
use crate::core::identity::Observed;
use crate::core::job::JobSpec;
use crate::core::local_edits::Expected;
use crate::core::manifest::Manifest;
use crate::hub::HubClient;
use crate::volume::adopt::{self, Leftover, TakeOver};
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
    /// What the directory should hold.
    pub expected: Expected,
    /// What of the manifest seems to be there.
    pub present: Present,
    /// Room of the volume's file system.
    pub space: Space,
    /// Bytes of it that stay free.
    pub reserve: u64,
}

/// What of a manifest seems to be in a directory; nothing has been hashed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Present {
    /// Bytes that are there.
    pub bytes: u64,
    /// Bytes that have blocks, written or only reserved.
    pub allocated: u64,
    /// Files that lack bytes.
    pub files_to_fetch: u64,
}

impl Preview {
    /// Bytes to fetch.
    #[must_use]
    pub fn to_fetch(&self) -> u64 {
        self.resolved.manifest.total_bytes().saturating_sub(self.present.bytes)
    }

    /// Bytes that may be used.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.space.free.saturating_sub(self.reserve)
    }

    /// Requests of the Hub that the pull will need.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.resolved.requests as u64 + self.present.files_to_fetch * REQUESTS_A_FILE
    }

    /// Refuses what cannot fit.
    ///
    /// # Errors
    /// [`WorkError::NoSpace`].
    pub fn check_space(&self) -> Result<(), WorkError> {
        let needed = self.resolved.manifest.total_bytes().saturating_sub(self.present.allocated);
        let free = self.free();
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
    let held = model.as_ref().map_or_else(|| Ok(Held::default()), Held::of)?;
    let resolved = resolve(spec, &held, hub).await?;
    let manifest = &resolved.manifest;
    let complete = match &model {
        Some(model) => is_complete(model, manifest)?,
        None => false,
    };
    let (expected, present) = if let Some(model) = &model {
        let expected = model.expected(manifest.clone()).map_err(|error| WorkError::unexpected(&spec.name, error))?;
        let present = present(model, &held, &expected)?;
        (expected, present)
    } else {
        let files_to_fetch = manifest.files().len() as u64;
        (Expected::plain(manifest.clone()), Present { files_to_fetch, ..Present::default() })
    };
    let space = room(root)?;
    let reserve = reserve.unwrap_or_else(|| space.default_reserve());
    Ok(Preview { resolved, complete, expected, present, space, reserve })
}

/// Whether every file is as the receipt for this very manifest knows it.
///
/// # Errors
/// When the directory cannot be read.
pub fn is_complete(model: &ModelDir, manifest: &Manifest) -> Result<bool, VolumeError> {
    if Held::of(model)?.current.is_none_or(|current| current.id() != manifest.id()) {
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

/// What looks as if it were there: files of the right size that are not known to have other
/// bytes, and the partials.
fn present(model: &ModelDir, held: &Held, expected: &Expected) -> Result<Present, VolumeError> {
    let mut leftovers: HashMap<PathHash, Vec<Leftover>> = HashMap::new();
    for leftover in adopt::leftovers(model)? {
        leftovers.entry(leftover.path().clone()).or_default().push(leftover);
    }
    let beginnings = model.beginnings()?;
    let mut present = Present::default();
    for entry in expected.manifest().files() {
        let changes = held.current.as_ref().and_then(|current| current.file(&entry.path));
        let is_edit = expected.edits().of(&entry.path).is_some();
        let changes = !is_edit && changes.is_some_and(|current| current.digest != entry.digest);
        if !changes && matches!(model.observe(&entry.path), Observed::Present(found) if found.size == entry.size) {
            present.bytes += entry.size;
            present.allocated += entry.size;
            continue;
        }
        let (mut bytes, mut allocated) = (0, 0);
        for leftover in leftovers.get(&PathHash::of(&entry.path)).into_iter().flatten() {
            bytes = leftover.worth(model, entry, TakeOver::InPlace { same_boot: true })?.max(bytes);
            allocated = leftover.allocated().min(entry.size).max(allocated);
        }
        bytes = beginnings.of(entry).map_or(0, |found| found.len()).max(bytes);
        present.bytes += bytes;
        present.allocated += allocated;
        present.files_to_fetch += u64::from(bytes < entry.size || entry.size == 0);
    }
    Ok(present)
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
