//! The receipt: the stored proof that every file of a manifest was verified.
//!
//! Invariant: a [`Receipt`] speaks of exactly the files of one manifest, each with the digest
//! the manifest asks for. It is made from [`FileRecord`]s, and those from [`Proof`]s.

use std::collections::HashMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::digest::{Digest, Sha256};
use super::identity::Identity;
use super::manifest::{FileEntry, Manifest, ManifestId};
use super::repo::CommitId;
use super::repo_path::RepoPath;
use super::verify::Proof;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Why a receipt cannot be made or read.
#[derive(Debug, Error)]
pub enum ReceiptError {
    /// Not JSON of the expected shape.
    #[error("the receipt is not readable")]
    Json(#[source] serde_json::Error),
    /// Written by another program version.
    #[error("the receipt has schema {found}, this program reads {SCHEMA}")]
    Schema {
        /// Its schema.
        found: u32,
    },
    /// No proof for a file.
    #[error("{path} has not been verified")]
    Unproved {
        /// The file.
        path: RepoPath,
    },
    /// It is a receipt of something else.
    #[error("the receipt is for manifest {found}, the directory has manifest {expected}")]
    OtherManifest {
        /// Id of the manifest at hand.
        expected: ManifestId,
        /// Id on the receipt.
        found: ManifestId,
    },
}

/// How the bytes were seen that a proof speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Proved {
    /// As they were written.
    Stream,
    /// Read from disk.
    Readback,
}

/// One verified file, as it was when its identity was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its path.
    pub path: RepoPath,
    /// Its size in bytes.
    pub size: u64,
    /// The manifest's digest that its bytes matched.
    pub digest: Digest,
    /// SHA-256 of its bytes.
    pub sha256: Sha256,
    /// What it looked like on disk, last thing.
    pub identity: Identity,
    /// How it was proved.
    pub proved: Proved,
}

impl FileRecord {
    /// Records a proof together with the identity of the published file.
    #[must_use]
    pub fn new(path: RepoPath, proof: &Proof, identity: Identity, proved: Proved) -> Self {
        Self { path, size: proof.size(), digest: proof.digest(), sha256: proof.sha256(), identity, proved }
    }

    /// Whether this record is the proof that `entry` asks for.
    #[must_use]
    pub fn proves(&self, entry: &FileEntry) -> bool {
        self.path == entry.path && self.size == entry.size && self.digest == entry.digest
    }
}

/// The proof for a whole manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    schema: u32,
    manifest: ManifestId,
    commit: CommitId,
    verified_at: Timestamp,
    program: String,
    host: String,
    files: Vec<FileRecord>,
}

/// Who verified, and when.
#[derive(Debug, Clone)]
pub struct Witness {
    /// When the last file was proved.
    pub at: Timestamp,
    /// Program and version.
    pub program: String,
    /// Name of the host.
    pub host: String,
}

impl Receipt {
    /// Makes the receipt of a manifest.
    ///
    /// # Errors
    /// [`ReceiptError::Unproved`] names the first file without a matching record.
    pub fn seal(manifest: &Manifest, records: Vec<FileRecord>, witness: Witness) -> Result<Self, ReceiptError> {
        let mut by_path: HashMap<_, _> = records.into_iter().map(|record| (record.path.clone(), record)).collect();
        let files = manifest.files().iter().map(|entry| {
            let record = by_path.remove(&entry.path).filter(|record| record.proves(entry));
            record.ok_or_else(|| ReceiptError::Unproved { path: entry.path.clone() })
        });
        Ok(Self {
            schema: SCHEMA,
            manifest: manifest.id(),
            commit: manifest.source().commit,
            verified_at: witness.at,
            program: witness.program,
            host: witness.host,
            files: files.collect::<Result<_, _>>()?,
        })
    }

    /// Reads the JSON form and checks that it speaks of `manifest`, file by file.
    ///
    /// # Errors
    /// [`ReceiptError`].
    pub fn from_json(bytes: &[u8], manifest: &Manifest) -> Result<Self, ReceiptError> {
        #[derive(Deserialize)]
        struct Probe {
            schema: u32,
        }
        let probe: Probe = serde_json::from_slice(bytes).map_err(ReceiptError::Json)?;
        if probe.schema != SCHEMA {
            return Err(ReceiptError::Schema { found: probe.schema });
        }
        let receipt: Self = serde_json::from_slice(bytes).map_err(ReceiptError::Json)?;
        if receipt.manifest != manifest.id() {
            return Err(ReceiptError::OtherManifest { expected: manifest.id(), found: receipt.manifest });
        }
        let Self { verified_at: at, program, host, files, .. } = receipt;
        Self::seal(manifest, files, Witness { at, program, host })
    }

    /// The stored receipt with newer records of some files, for `manifest` as it is now; who vouched
    /// for the others, and when, stays.
    ///
    /// # Errors
    /// As [`Self::from_json`].
    pub fn amended(bytes: &[u8], manifest: &Manifest, newer: Vec<FileRecord>) -> Result<Self, ReceiptError> {
        let mut receipt: Self = serde_json::from_slice(bytes).map_err(ReceiptError::Json)?;
        receipt.files.extend(newer);
        Self::from_json(&receipt.to_json(), manifest)
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a receipt has string keys only");
        bytes.push(b'\n');
        bytes
    }

    /// The records, in the order of the manifest's files.
    #[must_use]
    pub fn files(&self) -> &[FileRecord] {
        &self.files
    }

    /// When the verification ended.
    #[must_use]
    pub const fn verified_at(&self) -> Timestamp {
        self.verified_at
    }
}

/// The commit and the records on a receipt of whatever manifest; `None` when it cannot be read.
/// Each record speaks for its own file and for nothing more.
#[must_use]
pub fn recorded_files(bytes: &[u8]) -> Option<(CommitId, Vec<FileRecord>)> {
    let receipt: Receipt = serde_json::from_slice(bytes).ok()?;
    (receipt.schema == SCHEMA).then_some((receipt.commit, receipt.files))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::manifest::tests::source;
    use crate::core::verify::FileHasher;
    use crate::core::verify::tests::lfs_entry;

    fn record(entry: &FileEntry, bytes: &[u8]) -> FileRecord {
        let mut hasher = FileHasher::new(entry);
        hasher.update(bytes);
        let identity = Identity { inode: 1, size: entry.size, mtime_ns: 2, ctime_ns: 3 };
        FileRecord::new(entry.path.clone(), &hasher.finish().unwrap(), identity, Proved::Stream)
    }

    fn witness() -> Witness {
        Witness { at: Timestamp::UNIX_EPOCH, program: "muster 0".into(), host: "here".into() }
    }

    #[test]
    fn a_receipt_needs_a_proof_for_every_file() {
        let (a, b) = (lfs_entry("a", b"1"), lfs_entry("b", b"22"));
        let manifest = Manifest::seal(source(), vec![a.clone(), b.clone()]).unwrap();
        let records = vec![record(&b, b"22"), record(&a, b"1")];
        let receipt = Receipt::seal(&manifest, records.clone(), witness()).unwrap();
        assert_eq!(Receipt::from_json(&receipt.to_json(), &manifest).unwrap(), receipt);
        assert!(matches!(
            Receipt::seal(&manifest, records[1..].to_vec(), witness()),
            Err(ReceiptError::Unproved { path }) if path == b.path
        ));
    }

    proptest! {
        #[test]
        fn a_receipt_is_sealed_exactly_when_every_file_has_its_record(
            files in 1usize..6,
            records in prop::collection::vec((0usize..7, 0u8..4), 0..10),
        ) {
            let bytes = |file: usize, kind: u8| if kind == 0 { format!("other{file}") } else { file.to_string() };
            let own = |file: usize| lfs_entry(&format!("f{file}"), bytes(file, 1).as_bytes());
            let manifest = Manifest::seal(source(), (0..files).map(own).collect()).unwrap();
            let made = records.iter().map(|(file, kind)| {
                let text = bytes(*file, *kind);
                record(&lfs_entry(&format!("f{file}"), text.as_bytes()), text.as_bytes())
            });
            let sealed = Receipt::seal(&manifest, made.collect(), witness());
            // Of two records of one file the later counts.
            let proved = |file: usize| records.iter().rfind(|(of, _)| *of == file).is_some_and(|(_, kind)| *kind > 0);
            prop_assert_eq!(sealed.is_ok(), (0..files).all(proved));
            if let Ok(receipt) = sealed {
                prop_assert!(receipt.files().iter().zip(manifest.files()).all(|(record, entry)| record.proves(entry)));
                prop_assert_eq!(Receipt::from_json(&receipt.to_json(), &manifest).unwrap(), receipt);
            }
        }
    }

    #[test]
    fn a_receipt_of_another_version_records_nothing() {
        let a = lfs_entry("a", b"1");
        let manifest = Manifest::seal(source(), vec![a.clone()]).unwrap();
        let receipt = Receipt::seal(&manifest, vec![record(&a, b"1")], witness()).unwrap();
        let (commit, files) = recorded_files(&receipt.to_json()).unwrap();
        assert_eq!((commit, files.as_slice()), (manifest.source().commit, receipt.files()));
        let newer = String::from_utf8(receipt.to_json()).unwrap().replace("\"schema\": 1", "\"schema\": 2");
        assert_eq!(recorded_files(newer.as_bytes()), None);
        assert!(matches!(Receipt::from_json(newer.as_bytes(), &manifest), Err(ReceiptError::Schema { found: 2 })));
    }

    #[test]
    fn a_receipt_of_another_manifest_or_digest_is_refused() {
        let a = lfs_entry("a", b"1");
        let manifest = Manifest::seal(source(), vec![a.clone()]).unwrap();
        let other = Manifest::seal(source(), vec![lfs_entry("a", b"2")]).unwrap();
        let receipt = Receipt::seal(&manifest, vec![record(&a, b"1")], witness()).unwrap();
        assert!(matches!(Receipt::from_json(&receipt.to_json(), &other), Err(ReceiptError::OtherManifest { .. })));
        let forged =
            String::from_utf8(receipt.to_json()).unwrap().replace(&manifest.id().to_string(), &other.id().to_string());
        assert!(matches!(Receipt::from_json(forged.as_bytes(), &other), Err(ReceiptError::Unproved { .. })));
    }
}
