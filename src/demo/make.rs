//! Puts the demo's repository onto a volume as a verified model.
//!
//! It goes through the steps of a pull (partial, proof, publish, receipt), so what the mirror
//! finds is what a pull leaves behind. Blocking; works on as many threads as it is told.

use std::sync::atomic::{AtomicBool, Ordering};

use sha1::Digest as _;
use thiserror::Error;

use super::shape::DemoFile;
use crate::clock;
use crate::core::digest::{Digest, GitSha1, Sha256};
use crate::core::manifest::{FileEntry, Manifest, ManifestError, Source};
use crate::core::model_name::ModelName;
use crate::core::receipt::{FileRecord, Proved, Receipt, ReceiptError, Witness};
use crate::core::verify::{FileHasher, Mismatch};
use crate::parallel::in_parallel;
use crate::volume::partial::Partial;
use crate::volume::publish::PublishError;
use crate::volume::writer::WriterId;
use crate::volume::{ModelDir, Volume, VolumeError};

/// Why the repository could not be made.
#[derive(Debug, Error)]
pub enum MakeError {
    /// The files are no repository.
    #[error("the files are no repository")]
    Manifest(#[from] ManifestError),
    /// A file could not be written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A file could not be given its name.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// Content that differs between two readings.
    #[error("the content of a file is not the same twice")]
    Unsteady(#[from] Mismatch),
    /// A file without proof.
    #[error("the receipt cannot be written")]
    Receipt(#[from] ReceiptError),
    /// The caller asked for it.
    #[error("stopped while the repository was being made")]
    Stopped,
}

/// Makes the model of `source` from `files`; returns its manifest. Ends early once `stop` is set.
///
/// # Errors
/// [`MakeError`]; what was made stays.
pub fn make(
    volume: &Volume,
    source: Source,
    files: &[DemoFile],
    threads: usize,
    stop: &AtomicBool,
) -> Result<Manifest, MakeError> {
    let entries = on_threads(threads, files, stop, |file| Ok(describe(file)))?;
    let model = volume.create_model(&ModelName::of(&source.repo))?;
    let manifest = Manifest::seal(source, entries.clone())?;
    model.store_manifest(&manifest)?;
    let writer = WriterId::new(0, fastrand::u32(..));
    let pairs: Vec<_> = files.iter().zip(&entries).collect();
    let records = on_threads(threads, &pairs, stop, |(file, entry)| publish(&model, file, entry, writer))?;
    let program = concat!("muster ", env!("CARGO_PKG_VERSION")).to_owned();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let receipt = Receipt::seal(&manifest, records, Witness { at: clock::now(), program, host })?;
    model.store_receipt(&receipt)?;
    Ok(manifest)
}

/// What a Hub would list.
fn describe(file: &DemoFile) -> FileEntry {
    let size = file.content.size();
    let digest = if file.lfs {
        let mut hash = sha2::Sha256::new();
        each_block(file, |block| hash.update(block));
        Digest::Sha256(Sha256::from_bytes(hash.finalize().into()))
    } else {
        let mut hash = sha1::Sha1::new().chain_update(format!("blob {size}\0"));
        each_block(file, |block| hash.update(block));
        Digest::GitBlob(GitSha1::from_bytes(hash.finalize().into()))
    };
    FileEntry { path: file.path.clone(), size, digest, xet_hash: None }
}

fn each_block(file: &DemoFile, mut take: impl FnMut(&[u8])) {
    let Ok(()) = file.content.read(|block| {
        take(block);
        Ok::<(), std::convert::Infallible>(())
    });
}

fn publish(model: &ModelDir, file: &DemoFile, entry: &FileEntry, writer: WriterId) -> Result<FileRecord, MakeError> {
    let partial = Partial::create(model, entry, writer)?;
    let mut hasher = FileHasher::new(entry);
    file.content.read(|block| {
        partial.write_at(hasher.position(), block)?;
        hasher.update(block);
        Ok::<(), VolumeError>(())
    })?;
    let sealed = partial.seal()?;
    Ok(sealed.verified(hasher.finish()?, Proved::Stream)?.publish(model)?)
}

/// Does `work` for every item; what is left is skipped once one fails or `stop` is set.
fn on_threads<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    stop: &AtomicBool,
    work: impl Fn(&T) -> Result<R, MakeError> + Sync,
) -> Result<Vec<R>, MakeError> {
    let failed = AtomicBool::new(false);
    let results = in_parallel(threads, items, |item| {
        if failed.load(Ordering::Relaxed) {
            return None;
        }
        let result = if stop.load(Ordering::Relaxed) { Err(MakeError::Stopped) } else { work(item) };
        failed.fetch_or(result.is_err(), Ordering::Relaxed);
        Some(result)
    });
    // Only beside a failure is something missing.
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::endpoint::Endpoint;
    use crate::core::identity::Observed;
    use crate::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
    use crate::core::selection::Selection;
    use crate::demo::{SHARD_MIN, shape};

    fn source() -> Source {
        Source {
            repo: Repo { kind: RepoKind::default(), id: RepoId::parse("org/demo").unwrap() },
            endpoint: Endpoint::parse("http://localhost:1").unwrap(),
            revision: Revision::default(),
            commit: CommitId::from_bytes([3; 20]),
            selection: Selection::default(),
        }
    }

    #[test]
    fn what_is_made_is_a_verified_model() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let files = shape::files(3, SHARD_MIN).unwrap();
        let manifest = make(&volume, source(), &files, 2, &AtomicBool::new(false)).unwrap();
        assert_eq!((manifest.files().len(), manifest.shard_count()), (24, 3));
        let model = volume.model(&ModelName::parse("org/demo").unwrap()).unwrap().unwrap();
        let receipt = model.receipt(&manifest).unwrap().unwrap();
        for record in receipt.files() {
            assert_eq!(model.observe(&record.path), Observed::Present(record.identity), "{}", record.path);
        }
        assert_eq!(model.walk().unwrap().files.len(), 24);
    }

    #[test]
    fn making_stops_when_told_and_leaves_no_receipt() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let files = shape::files(1, SHARD_MIN).unwrap();
        let made = make(&volume, source(), &files, 2, &AtomicBool::new(true));
        assert!(matches!(made, Err(MakeError::Stopped)));
        assert!(volume.models().unwrap().is_empty());
    }
}
