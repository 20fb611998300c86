//! The manifests that a directory has.
//!
//! Invariant: one that cannot be read hides nothing else. The gate stays closed over it, and a
//! pull goes on without it and writes a new one; only what a newer program wrote is left alone.

use tracing::warn;

use crate::core::manifest::{Manifest, ManifestError};
use crate::volume::{ModelDir, VolumeError};

/// The manifest of a directory, and the one it is moving to.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// What the directory is, or is becoming.
    pub current: Option<Manifest>,
    /// Where an update that has not ended is going.
    pub pending: Option<Manifest>,
}

impl Held {
    /// Reads them. Creates nothing.
    ///
    /// # Errors
    /// When the directory cannot be read, or a newer program wrote there.
    pub fn of(model: &ModelDir) -> Result<Self, VolumeError> {
        Ok(Self { current: usable(model.manifest())?, pending: usable(model.pending_manifest())? })
    }

    /// Both, the current one first.
    pub fn iter(&self) -> impl Iterator<Item = &Manifest> {
        self.current.iter().chain(&self.pending)
    }
}

fn usable(read: Result<Option<Manifest>, VolumeError>) -> Result<Option<Manifest>, VolumeError> {
    match read {
        Err(VolumeError::Manifest { path, source }) if !matches!(source, ManifestError::Schema { .. }) => {
            warn!(path = %path.display(), %source, "a manifest cannot be read; it counts as none");
            Ok(None)
        }
        other => other,
    }
}
