//! What a gate costs: `cargo bench --bench gate [-- FILES [MIB [ROUNDS]]]`.
//!
//! First the quick gate, as a launcher's line meets it: the whole process, on 140 sparse shards of 4 GiB with
//! their index, under a receipt. Then `--full` on FILES (8) sparse shards of MIB (1024) each, by turns with
//! `openssl dgst` on the same files, one process a core. Medians of ROUNDS (5). Sparse files cost no disk; what
//! is measured is everything else. `MUSTER_BENCH_DIR` names another place than the target folder,
//! `MUSTER_BENCH_PROGRAM` another muster.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods, reason = "a measurement prints")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use muster::core::digest::{Digest, Sha256};
use muster::core::endpoint::Endpoint;
use muster::core::manifest::{FileEntry, Manifest, Source};
use muster::core::model_name::ModelName;
use muster::core::receipt::{FileRecord, Proved, Receipt, Witness};
use muster::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
use muster::core::repo_path::RepoPath;
use muster::core::selection::Selection;
use muster::volume::{ModelDir, Volume};
use sha2::Digest as _;

const QUICK_FILES: u32 = 140;
const QUICK_BYTES: u64 = 4 << 30;
const INDEX: &str = "model.safetensors.index.json";

fn main() {
    // `cargo bench` adds a flag of its own.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let files = u32::try_from(numbers.next().unwrap_or(8)).unwrap();
    let bytes = numbers.next().unwrap_or(1024) << 20;
    let rounds = numbers.next().unwrap_or(5);
    let place = std::env::var_os("MUSTER_BENCH_DIR").unwrap_or_else(|| env!("CARGO_TARGET_TMPDIR").into());
    let volume = tempfile::tempdir_in(place).unwrap();
    let cores = thread::available_parallelism().unwrap().get();
    println!("{cores} cores, medians of {rounds}");

    let quick = Model::make(volume.path(), "quick", QUICK_FILES, QUICK_BYTES);
    quick.receive(|name| Sha256::from_bytes(sha2::Sha256::digest(name).into()));
    quick.gate(&[]);
    let took = median((0..rounds * 4).map(|_| quick.gate(&[])));
    println!("quick gate, {QUICK_FILES} shards of 4 GiB: {:.1} ms", took.as_secs_f64() * 1e3);

    let full = Model::make(volume.path(), "full", files, bytes);
    let digests = full.openssl(cores).1;
    full.receive(|name| digests[name]);
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        ours.push(full.gate(&["--full"]));
        theirs.push(full.openssl(cores).0);
    }
    let (ours, theirs) = (median(ours.into_iter()), median(theirs.into_iter()));
    let rate = |took: Duration| (u64::from(files) * bytes) as f64 / took.as_secs_f64() / 1e9;
    println!("gate --full, {files} shards of {} MiB: {:.2} s, {:.2} GB/s", bytes >> 20, ours.as_secs_f64(), rate(ours));
    println!("openssl dgst, {cores} at a time: {:.2} s, {:.2} GB/s", theirs.as_secs_f64(), rate(theirs));
    println!("gate takes {:.3} of openssl's time", ours.as_secs_f64() / theirs.as_secs_f64());
}

/// A model of sparse shards.
struct Model {
    volume: PathBuf,
    name: ModelName,
    dir: ModelDir,
    shards: Vec<String>,
}

impl Model {
    /// Shards that are valid and hold one tensor each, and their index.
    fn make(volume: &Path, name: &str, count: u32, bytes: u64) -> Self {
        let name = ModelName::parse(name).unwrap();
        let dir = Volume::create(volume).unwrap().create_model(&name).unwrap();
        let shards: Vec<_> = (1..=count).map(|n| format!("model-{n:05}-of-{count:06}.safetensors")).collect();
        let mut map = BTreeMap::new();
        for (n, shard) in shards.iter().enumerate() {
            let header =
                |len: u64| format!(r#"{{"layer.{n}":{{"dtype":"U8","shape":[{len}],"data_offsets":[0,{len}]}}}}"#);
            // As long as the header of the largest tensor that could be in it.
            let room = header(bytes).len().next_multiple_of(8);
            let text = format!("{:room$}", header(bytes - 8 - room as u64));
            let mut file = File::create(dir.path().join(shard)).unwrap();
            file.write_all(&(room as u64).to_le_bytes()).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.set_len(bytes).unwrap();
            map.insert(format!("layer.{n}"), shard.clone());
        }
        let index = serde_json::json!({"metadata": {"total_size": u64::from(count) * bytes}, "weight_map": map});
        fs::write(dir.path().join(INDEX), index.to_string()).unwrap();
        Self { volume: volume.to_owned(), name, dir, shards }
    }

    /// Gives it a manifest with these digests, and the receipt for that.
    fn receive(&self, digest_of: impl Fn(&str) -> Sha256) {
        let index = Sha256::from_bytes(sha2::Sha256::digest(fs::read(self.dir.path().join(INDEX)).unwrap()).into());
        let all = self.shards.iter().map(|shard| (shard.as_str(), digest_of(shard))).chain([(INDEX, index)]);
        let (mut entries, mut records) = (Vec::new(), Vec::new());
        for (name, sha256) in all {
            let path = RepoPath::parse(name).unwrap();
            let identity = self.dir.open_published(&path).unwrap().identity();
            assert!(self.dir.settle(&identity).unwrap());
            let (size, digest) = (identity.size, Digest::Sha256(sha256));
            entries.push(FileEntry { path: path.clone(), size, digest, xet_hash: None });
            records.push(FileRecord { path, size, digest, sha256, identity, proved: Proved::Readback });
        }
        let source = Source {
            repo: Repo { kind: RepoKind::Model, id: RepoId::parse("org/model").unwrap() },
            endpoint: Endpoint::parse("https://huggingface.co").unwrap(),
            revision: Revision::default(),
            commit: CommitId::from_bytes([0x5c; 20]),
            selection: Selection::default(),
        };
        let manifest = Manifest::seal(source, entries).unwrap();
        let witness = Witness { at: muster::clock::now(), program: "bench".into(), host: "here".into() };
        self.dir.store_manifest(&manifest).unwrap();
        self.dir.store_receipt(&Receipt::seal(&manifest, records, witness).unwrap()).unwrap();
    }

    /// How long a gate takes, from the start of its process to its end.
    fn gate(&self, flags: &[&str]) -> Duration {
        let program = std::env::var_os("MUSTER_BENCH_PROGRAM");
        let mut command = Command::new(program.unwrap_or_else(|| env!("CARGO_BIN_EXE_muster").into()));
        command.args(["gate", self.name.as_str(), "--no-remember", "--volume"]).arg(&self.volume).args(flags);
        let began = Instant::now();
        let out = command.env_clear().output().unwrap();
        let took = began.elapsed();
        assert!(
            out.status.success(),
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        took
    }

    /// How long openssl takes for the shards, so many at a time, and what it says.
    fn openssl(&self, cores: usize) -> (Duration, BTreeMap<String, Sha256>) {
        let mut command = Command::new("xargs");
        command.args(["-P", &cores.to_string(), "-n", "1", "openssl", "dgst", "-sha256", "-r"]);
        command.current_dir(self.dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let began = Instant::now();
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(self.shards.join("\n").as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        let took = began.elapsed();
        let said = String::from_utf8(out.stdout).unwrap();
        // `<digest> *<name>`
        let digest =
            |line: &str| line.split_once(" *").map(|(hex, name)| (name.to_owned(), Sha256::parse(hex).unwrap()));
        (took, said.lines().filter_map(digest).collect())
    }
}

fn median(all: impl Iterator<Item = Duration>) -> Duration {
    let mut all: Vec<_> = all.collect();
    all.sort();
    all[all.len() / 2]
}
