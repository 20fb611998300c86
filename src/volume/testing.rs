//! Scaffolding for this module's tests.

use super::model_dir::ModelDir;
use super::partial::Partial;
use super::publish::{Sealed, Verified};
use super::writer::WriterId;
use crate::core::manifest::FileEntry;
use crate::core::range_set::RangeSet;
use crate::core::receipt::Proved;
use crate::core::verify::{FileHasher, Proof};

pub(super) use crate::core::verify::tests::lfs_entry;

pub(super) const OURS: WriterId = WriterId::new(2, 0xbb);
pub(super) const THEIRS: WriterId = WriterId::new(1, 0xaa);

/// A model directory in a fresh place.
pub(super) fn model() -> (tempfile::TempDir, ModelDir) {
    let place = tempfile::tempdir().unwrap();
    let model = ModelDir::create(&place.path().join("model")).unwrap();
    (place, model)
}

/// Bytes that differ at every offset.
pub(super) fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| u8::try_from((i * 31 + i / 251) % 256).unwrap()).collect()
}

pub(super) fn proof(entry: &FileEntry, bytes: &[u8]) -> Proof {
    let mut hasher = FileHasher::new(entry);
    hasher.update(bytes);
    hasher.finish().unwrap()
}

pub(super) fn sealed(model: &ModelDir, entry: &FileEntry, bytes: &[u8]) -> Sealed {
    let partial = Partial::create(model, entry, OURS).unwrap();
    partial.write_at(0, bytes).unwrap();
    partial.seal().unwrap()
}

pub(super) fn verified(model: &ModelDir, entry: &FileEntry, bytes: &[u8]) -> Verified {
    sealed(model, entry, bytes).verified(proof(entry, bytes), Proved::Stream).unwrap()
}

pub(super) fn set(ranges: &[(u64, u64)]) -> RangeSet {
    RangeSet::from(ranges.to_vec())
}

/// The names in a folder, sorted.
pub(super) fn names(folder: &std::path::Path) -> Vec<String> {
    let mut names: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
