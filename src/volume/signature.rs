//! The signature of a model, beside its receipt, and whose the receipt is.
//!
//! Invariant: the signature is written as the receipt is, whole or not at all; what it replaces is kept
//! under another name, and nobody takes that one for the model's.

use std::io::Read as _;
use std::path::PathBuf;

use super::dir::stat_of;
use super::error::{Result, Step, VolumeError};
use super::model_dir::{ModelDir, RECEIPT};
use super::small_file;
use crate::core::oms::CLIENT_NOTES;
use crate::core::oms::bundle::BUNDLE_MAX_BYTES;
use crate::core::repo_path::OWN_DIR;

const SIGNATURE: &str = "model.sig";
const PREVIOUS: &str = "model.previous.sig";
/// Most bytes of a receipt, as the manifest's.
const RECEIPT_MAX_BYTES: u64 = 1 << 30;
/// Who but its owner may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The receipt as it is stored, and whose it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnedReceipt {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The user whose file it is; none when others may write to it, too.
    pub writer: Option<u32>,
}

impl ModelDir {
    /// The receipt and its owner, of one and the same file; `None` when there is none.
    pub fn owned_receipt(&self) -> Result<Option<OwnedReceipt>> {
        let Some(own) = self.own()? else { return Ok(None) };
        let file = match own.open_file(RECEIPT) {
            Err(error) if error.is_missing() => return Ok(None),
            other => other?,
        };
        let path = own.shown(RECEIPT);
        let stat = stat_of(&file).map_err(|e| VolumeError::new(Step::Look, &path, e))?;
        let mut bytes = Vec::new();
        let read = file.take(RECEIPT_MAX_BYTES + 1).read_to_end(&mut bytes);
        read.map_err(|e| VolumeError::new(Step::Read, &path, e))?;
        if bytes.len() as u64 > RECEIPT_MAX_BYTES {
            return Err(VolumeError::TooLarge { path, limit: RECEIPT_MAX_BYTES });
        }
        let writer = (stat.st_mode & WRITABLE_BY_OTHERS == 0).then_some(stat.st_uid);
        Ok(Some(OwnedReceipt { bytes, writer }))
    }

    /// Where the signature is or will be.
    pub fn signature_path(&self) -> PathBuf {
        self.path().join(OWN_DIR).join(SIGNATURE)
    }

    /// The signature as it is stored; `None` when there is none.
    pub fn signature_bytes(&self) -> Result<Option<Vec<u8>>> {
        let Some(own) = self.own()? else { return Ok(None) };
        small_file::read(&own, SIGNATURE, BUNDLE_MAX_BYTES)
    }

    /// Whether there is a signature, good or bad.
    pub fn has_signature(&self) -> Result<bool> {
        let Some(own) = self.own()? else { return Ok(false) };
        Ok(own.look(SIGNATURE)?.is_some())
    }

    /// Writes the signature, unless it is there already; another one that was there is kept. `true` when
    /// it wrote.
    pub fn store_signature(&self, bytes: &[u8]) -> Result<bool> {
        let own = self.make_own()?;
        match small_file::read(&own, SIGNATURE, BUNDLE_MAX_BYTES) {
            Ok(Some(before)) if before == bytes => return Ok(false),
            Ok(Some(before)) => small_file::store(&own, PREVIOUS, &before)?,
            // Too large to be one.
            Err(VolumeError::TooLarge { .. }) => drop(self.set_signature_aside()?),
            other => drop(other?),
        }
        small_file::store(&own, SIGNATURE, bytes)?;
        Ok(true)
    }

    /// Keeps a signature that is of something else out of the way; `false` when there is none.
    pub fn set_signature_aside(&self) -> Result<bool> {
        self.move_own(SIGNATURE, PREVIOUS)
    }

    /// Whether the official client left its notes here.
    pub fn has_client_notes(&self) -> Result<bool> {
        Ok(self.root().look(CLIENT_NOTES)?.is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_signature_replaces_another_one_which_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(place.path()).unwrap();
        assert_eq!((model.signature_bytes().unwrap(), model.has_signature().unwrap()), (None, false));
        assert!(!model.set_signature_aside().unwrap());
        assert!(model.store_signature(b"one").unwrap());
        assert!(!model.store_signature(b"one").unwrap());
        assert!(model.store_signature(b"two").unwrap());
        assert_eq!(model.signature_bytes().unwrap().as_deref(), Some(&b"two"[..]));
        let previous = model.signature_path().with_file_name(PREVIOUS);
        assert_eq!(std::fs::read(&previous).unwrap(), b"one");
        assert!(model.set_signature_aside().unwrap());
        assert_eq!(std::fs::read(&previous).unwrap(), b"two");
        assert!(!model.has_signature().unwrap());
    }

    #[test]
    fn a_receipt_that_others_may_write_to_is_nobodys() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(place.path()).unwrap();
        assert_eq!(model.owned_receipt().unwrap(), None);
        let file = place.path().join(OWN_DIR).join(RECEIPT);
        std::fs::write(&file, b"{}").unwrap();
        let us = rustix::process::getuid().as_raw();
        for (mode, writer) in [(0o644, Some(us)), (0o600, Some(us)), (0o664, None), (0o646, None)] {
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            let found = model.owned_receipt().unwrap().unwrap();
            assert_eq!((found.bytes.as_slice(), found.writer), (&b"{}"[..], writer), "{mode:o}");
        }
    }
}
