//! A verified model directory from files in memory, made by the library's own parts. Not part of
//! the scripted hub beside it, which may not use the library: tests include this file by its path.

#![allow(dead_code, unreachable_pub, reason = "each test that includes this uses a part of it")]

use std::path::{Path, PathBuf};

use muster::core::digest::{Digest, Sha256};
use muster::core::endpoint::Endpoint;
use muster::core::manifest::{FileEntry, Manifest, Source};
use muster::core::model_name::ModelName;
use muster::core::receipt::{FileRecord, Proved, Receipt, Witness};
use muster::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
use muster::core::repo_path::RepoPath;
use muster::core::selection::Selection;
use muster::core::verify::FileHasher;
use muster::volume::{ModelDir, Volume};
use sha2::Digest as _;

/// A model on a volume of its own, removed with it.
pub struct Model {
    volume: tempfile::TempDir,
    name: &'static str,
    pub manifest: Manifest,
}

/// A safetensors file of exactly `len` bytes (at least 72): one tensor, named after its filling.
pub fn weights(len: usize, filling: u8) -> Vec<u8> {
    for data in (0..len).rev() {
        let json = format!(r#"{{"t{filling}":{{"dtype":"U8","shape":[{data}],"data_offsets":[0,{data}]}}}}"#);
        let Some(blanks) = len.checked_sub(8 + json.len() + data) else { continue };
        let mut file = ((json.len() + blanks) as u64).to_le_bytes().to_vec();
        file.extend(json.into_bytes());
        file.resize(file.len() + blanks, b' ');
        file.resize(len, filling);
        return file;
    }
    panic!("no safetensors file has {len} bytes");
}

/// Files of a small sharded model, each with other bytes.
pub fn kimi_shaped() -> Vec<(String, Vec<u8>)> {
    let shard = |n: usize| (format!("model-{n:05}-of-00004.safetensors"), weights(1000 + n, u8::try_from(n).unwrap()));
    let mut files: Vec<_> = (1..=4).map(shard).collect();
    files.push(("config.json".into(), b"{\"architectures\": []}".to_vec()));
    files.push(("tokenizer/vocab.txt".into(), b"a b c".to_vec()));
    files.push(("empty".into(), Vec::new()));
    files
}

impl Model {
    /// A complete and verified model `kimi` with these files.
    pub fn verified(files: &[(String, Vec<u8>)]) -> Self {
        Self::with_selection(files, Selection::default())
    }

    /// The same, of a part of the repository.
    pub fn with_selection(files: &[(String, Vec<u8>)], selection: Selection) -> Self {
        let volume = tempfile::tempdir().unwrap();
        let name = "kimi";
        let manifest = manifest(files, selection);
        let model = Self { volume, name, manifest };
        let dir = Volume::create(model.volume()).unwrap().create_model(&ModelName::parse(name).unwrap()).unwrap();
        dir.store_manifest(&model.manifest).unwrap();
        for (path, bytes) in files {
            let path = model.path(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        model.write_receipt(&dir);
        model
    }

    /// The volume's root.
    pub fn volume(&self) -> &Path {
        self.volume.path()
    }

    /// The model directory.
    pub fn dir(&self) -> PathBuf {
        self.volume().join(self.name)
    }

    /// A file of the model.
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir().join(file)
    }

    /// Proves what is on disk now, as a pull does at its end.
    fn write_receipt(&self, dir: &ModelDir) {
        let records = self.manifest.files().iter().map(|entry| {
            let mut hasher = FileHasher::new(entry);
            hasher.update(&std::fs::read(self.path(entry.path.as_str())).unwrap());
            let identity = dir.open_published(&entry.path).unwrap().identity();
            assert!(dir.settle(&identity).unwrap());
            FileRecord::new(entry.path.clone(), &hasher.finish().unwrap(), identity, Proved::Readback)
        });
        let witness = Witness { at: muster::clock::now(), program: "test".into(), host: "here".into() };
        dir.store_receipt(&Receipt::seal(&self.manifest, records.collect(), witness).unwrap()).unwrap();
    }
}

/// The manifest of these files.
pub fn manifest(files: &[(String, Vec<u8>)], selection: Selection) -> Manifest {
    let entries = files.iter().map(|(path, bytes)| FileEntry {
        path: RepoPath::parse(path).unwrap(),
        size: bytes.len() as u64,
        digest: Digest::Sha256(Sha256::from_bytes(sha2::Sha256::digest(bytes).into())),
        xet_hash: None,
    });
    let source = Source {
        repo: Repo { kind: RepoKind::Model, id: RepoId::parse("org/Kimi").unwrap() },
        endpoint: Endpoint::parse("https://huggingface.co").unwrap(),
        revision: Revision::default(),
        commit: CommitId::from_bytes([0x5c; 20]),
        selection,
    };
    Manifest::seal(source, entries.collect()).unwrap()
}
