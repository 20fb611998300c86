//! Weight files that do not fit together, met by `muster gate` and `muster verify`: the real binary, files whose bytes are
//! exactly the manifest's, and a launcher that must not run.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

#[path = "support/model.rs"]
mod model;
mod support;

use std::fs;
use std::path::Path;
use std::time::Duration;

use model::{Model, kimi_shaped, weights};
use muster::core::digest::Sha256;
use muster::core::manifest::Manifest;
use muster::core::receipt::{FileRecord, Proved, Receipt, Witness};
use muster::core::selection::{Pattern, Selection};
use muster::volume::ModelDir;
use serde_json::{Value, json};
use support::{Muster, Output, assert_valid, trace};

const GATE_SCHEMA: &str = include_str!("../src/api/schema/gate.v1.json");
const VERIFY_SCHEMA: &str = include_str!("../src/api/schema/verify.v1.json");
const INDEX: &str = "model.safetensors.index.json";
const HINT: &str = "hint: every byte is as published, so pulling again changes nothing";

/// Reading the bytes would take longer by far.
const SOON: Duration = Duration::from_secs(60);

type Files = Vec<(String, Vec<u8>)>;

/// Asks the gate for a model, with a command that leaves a mark.
struct Asked {
    model: Model,
    muster: Muster,
}

impl Asked {
    fn of(files: &Files) -> Self {
        Self::with(Model::verified(files))
    }

    fn with(model: Model) -> Self {
        // A gate asks nobody; an endpoint other than the manifest's would be named in hints.
        let muster = Muster::new(model.volume()).without_env("HF_ENDPOINT");
        Self { model, muster }
    }

    fn run(&self, args: &[&str]) -> Output {
        self.muster.args(args).run()
    }

    fn json(&self, args: &[&str]) -> Value {
        let ended = self.muster.args(args).arg("--json").run();
        let told = ended.json();
        assert_valid(if args[0] == "gate" { GATE_SCHEMA } else { VERIFY_SCHEMA }, &told);
        told
    }

    /// The gate's answer, and whether the command ran.
    fn launch(&self, args: &[&str]) -> (Output, bool) {
        let mark = self.muster.home().join("mark");
        let mut all = vec!["gate", "kimi"];
        all.extend(args);
        all.extend(["--", "touch", mark.to_str().unwrap()]);
        let ended = self.run(&all);
        let ran = mark.exists();
        let _absent = fs::remove_file(&mark);
        (ended, ran)
    }

    /// Closed with 12 before and behind a full check, naming the file and what helps; verify says the same and renews
    /// its receipt all the same; and the override opens.
    #[track_caller]
    fn is_refused(&self, file: &str, words: &str) {
        let before = trace(&self.model.dir());
        for args in [&[][..], &["--full", "--no-remember"], &["--wait=60s"]] {
            let (ended, ran) = self.launch(args);
            assert_eq!((ended.code, ran), (Some(12), false), "{ended}");
            assert!(ended.stdout.starts_with(&format!("closed (12): {file}: ")), "{ended}");
            assert!(ended.stdout.contains(words), "{words}: {ended}");
            assert!(ended.stderr.contains(HINT) && ended.stderr.contains("--structure=warn"), "{ended}");
        }
        let told = self.json(&["gate", "kimi"]);
        assert_eq!((&told["reasons"][0]["file"], &told["reasons"][0]["code"]), (&file.into(), &"refused".into()));
        assert_eq!(trace(&self.model.dir()), before, "nothing is written");
        let (ended, ran) = self.launch(&["--structure=warn"]);
        assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
        assert!(ended.stderr.contains(&format!("as published, {file}: ")) && ended.stderr.contains(words), "{ended}");
        let (ended, ran) = self.launch(&["--structure=off"]);
        assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
        assert!(!ended.stderr.contains(words), "{ended}");
        let told = self.json(&["verify", "kimi"]);
        assert_eq!((&told["exit_code"], &told["receipt"]), (&12.into(), &"renewed".into()), "{told}");
        assert_eq!(told["reasons"][0]["file"], file);
        assert_eq!(self.run(&["verify", "kimi", "--structure=warn"]).code, Some(0));
    }

    #[track_caller]
    fn is_open(&self) {
        let (ended, ran) = self.launch(&[]);
        assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
        assert_eq!(self.run(&["verify", "kimi"]).code, Some(0));
    }
}

/// A file with this header and so many bytes of data.
fn headed(header: &Value, data: usize) -> Vec<u8> {
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.into_bytes());
    file.resize(file.len() + data, 9);
    file
}

fn tensor(start: u64, end: u64) -> Value {
    json!({ "dtype": "U8", "shape": [end - start], "data_offsets": [start, end] })
}

fn shard(number: u32, of: u32) -> String {
    format!("model-{number:05}-of-{of:05}.safetensors")
}

/// A model of single files.
fn model_of(files: Vec<(&str, Vec<u8>)>) -> Files {
    let config = ("config.json".to_owned(), b"{}".to_vec());
    files.into_iter().map(|(name, bytes)| (name.to_owned(), bytes)).chain([config]).collect()
}

/// Two shards with the tensors a, b and c, d, and this index.
fn indexed(weight_map: &Value) -> Files {
    let pair = |x: &str, y: &str| headed(&json!({ x: tensor(0, 8), y: tensor(8, 12) }), 12);
    let index = json!({ "metadata": { "total_size": 1 }, "weight_map": weight_map }).to_string();
    let (one, two) = (shard(1, 2), shard(2, 2));
    model_of(vec![(&one, pair("a", "b")), (&two, pair("c", "d")), (INDEX, index.into_bytes())])
}

// class: gate
#[test]
fn a_broken_header_keeps_the_gate_closed_although_every_byte_is_the_manifests() {
    let good = headed(&json!({ "a": tensor(0, 8) }), 8);
    let cases: [(Vec<u8>, &str); 9] = [
        (b"PK\x03\x04 a zip and no weights".to_vec(), "are the most there may be"),
        (good[..30].to_vec(), "the file ends after 30"),
        (b"1234".to_vec(), "too short for a safetensors header"),
        (headed(&json!(["a"]), 0), "is not readable"),
        (headed(&json!({ "a": tensor(0, 8), "b": tensor(12, 16) }), 16), "4 bytes of data before the tensor b"),
        (headed(&json!({ "a": tensor(0, 8), "b": tensor(4, 12) }), 12), "the tensors a and b overlap"),
        ([&good[..], b"tail"].concat(), "4 bytes behind the last tensor"),
        (good[..good.len() - 1].to_vec(), "the tensors need 8 bytes of data, and the file has 7"),
        (
            headed(&json!({ "a": { "dtype": "F32", "shape": [8], "data_offsets": [0, 8] } }), 8),
            "has 8 bytes, and its shape and type need 32",
        ),
    ];
    for (bytes, words) in cases {
        Asked::of(&model_of(vec![("model.safetensors", bytes)])).is_refused("model.safetensors", words);
    }
}

// class: gate
#[test]
fn a_git_lfs_pointer_in_place_of_weights_is_called_one() {
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n", "ab".repeat(32));
    for name in ["model.safetensors", "model-Q4.gguf", INDEX] {
        let files = model_of(vec![(name, pointer.clone().into_bytes())]);
        Asked::of(&files).is_refused(name, "it is a git-lfs pointer and not the file it points to");
    }
}

// class: gate
#[test]
fn an_index_that_contradicts_the_shards_is_a_verdict_of_its_own() {
    let (one, two, three) = (shard(1, 2), shard(2, 2), shard(3, 3));
    for (map, words) in [
        (json!({ "a": one, "b": one, "c": two, "d": two, "e": three }), format!("the index names {three}, which")),
        (json!({ "a": one, "b": one }), format!("the index does not name {two}, which")),
        (json!({ "a": one, "b": two, "c": two, "d": two }), format!("the tensor b is in {two}, and it is in {one}")),
        (
            json!({ "a": one, "b": one, "c": two, "d": two, "e": two }),
            format!("the tensor e is in {two}, and it is not"),
        ),
        (json!({ "a": one, "b": one, "c": two }), format!("does not know the tensor d of {two}")),
        (json!({ "a": one, "b": one, "c": two, "d": "../up.safetensors" }), "the index names ../up.safetensors".into()),
        (json!("no map"), "the index is not readable".into()),
    ] {
        Asked::of(&indexed(&map)).is_refused(INDEX, &words);
    }
}

// class: gate
#[test]
fn what_is_whole_passes_with_an_index_without_one_and_as_a_single_file() {
    let (one, two) = (shard(1, 2), shard(2, 2));
    let right = json!({ "a": one, "b": one, "c": two, "d": two });
    let whole = indexed(&right);
    let asked = Asked::of(&whole);
    asked.is_open();
    assert_eq!(asked.json(&["gate", "kimi"])["structure"]["looked_at"], 3);
    let without: Files = whole.iter().filter(|(name, _)| name != INDEX).cloned().collect();
    Asked::of(&without).is_open();
    Asked::of(&model_of(vec![("model.safetensors", weights(5000, 1))])).is_open();
    // One index a folder and a variant, each for its own shards.
    let mut several = whole.clone();
    several.extend(whole.iter().map(|(name, bytes)| (format!("text_encoder/{name}"), bytes.clone())));
    let variant = |name: &str| name.replace("model-", "model.fp16-");
    let map =
        json!({ "weight_map": { "a": variant(&one), "b": variant(&one), "c": variant(&two), "d": variant(&two) } });
    several.push(("model.safetensors.index.fp16.json".to_owned(), map.to_string().into_bytes()));
    several.extend(
        without
            .iter()
            .filter(|(name, _)| name.starts_with("model-"))
            .map(|(name, bytes)| (variant(name), bytes.clone())),
    );
    several.push(("consolidated.safetensors".to_owned(), weights(200, 1)));
    Asked::of(&several).is_open();
    // A type that is newer than this program.
    let tomorrow = headed(&json!({ "a": { "dtype": "F3_E1M1", "shape": [9], "data_offsets": [0, 4] } }), 4);
    Asked::of(&model_of(vec![("model.safetensors", tomorrow)])).is_open();
}

#[test]
fn shards_that_the_selection_leaves_out_are_told_and_no_fault() {
    let (one, two) = (shard(1, 2), shard(2, 2));
    let files = indexed(&json!({ "a": one, "b": one, "c": two, "d": two }));
    let exclude = Selection::new(vec![], vec![Pattern::parse("*-00002-of-*").unwrap()]);
    let part: Files = files.into_iter().filter(|(name, _)| *name != two).collect();
    let asked = Asked::with(Model::with_selection(&part, exclude));
    asked.is_open();
    let ended = asked.run(&["gate", "kimi"]);
    assert!(ended.stderr.contains("the selection leaves out 1 shard that belongs to the model"), "{ended}");
    assert_eq!(asked.json(&["gate", "kimi"])["structure"]["left_out"], 1);
}

/// A GGUF file of one F32 tensor of eight elements: all of it, or one part of several.
fn gguf(tensor: &str, split: Option<(u16, u16, i32)>) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut file = [&b"GGUF"[..], &3u32.to_le_bytes(), &1u64.to_le_bytes()].concat();
    file.extend(if split.is_some() { 4u64 } else { 1 }.to_le_bytes());
    file.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat());
    if let Some((no, count, tensors)) = split {
        file.extend([text("split.no"), 2u32.to_le_bytes().to_vec(), no.to_le_bytes().to_vec()].concat());
        file.extend([text("split.count"), 2u32.to_le_bytes().to_vec(), count.to_le_bytes().to_vec()].concat());
        file.extend(
            [text("split.tensors.count"), 5u32.to_le_bytes().to_vec(), tensors.to_le_bytes().to_vec()].concat(),
        );
    }
    file.extend([&text(tensor)[..], &1u32.to_le_bytes(), &8u64.to_le_bytes(), &0u32.to_le_bytes(), &[0; 8]].concat());
    file.resize(file.len().next_multiple_of(32) + 32, 0);
    file
}

fn part(number: u32, of: u32) -> String {
    format!("Q4/model-Q4-{number:05}-of-{of:05}.gguf")
}

// class: gate
#[test]
fn a_gguf_file_that_is_cut_or_a_split_that_is_torn_keeps_the_gate_closed() {
    let whole = gguf("a", None);
    Asked::of(&model_of(vec![("m.gguf", whole[..whole.len() - 1].to_vec())]))
        .is_refused("m.gguf", "the tensors need a file of");
    Asked::of(&model_of(vec![("m.gguf", whole[..60].to_vec())]))
        .is_refused("m.gguf", "ends inside its GGUF head, after 60 bytes");
    Asked::of(&model_of(vec![("m.gguf", [&whole[..], b"x"].concat())]))
        .is_refused("m.gguf", "1 bytes behind the last tensor");
    let (one, two) = (part(1, 2), part(2, 2));
    let split = |first: (u16, u16, i32), second| {
        model_of(vec![(&*one, gguf("a", Some(first))), (&*two, gguf("b", Some(second)))])
    };
    let right = split((0, 2, 2), (1, 2, 2));
    Asked::of(&right).is_open();
    Asked::of(&split((1, 2, 2), (1, 2, 2))).is_refused(&one, "its name says part 1 of 2, and its metadata part 2 of 2");
    Asked::of(&split((0, 2, 2), (1, 3, 2))).is_refused(&two, "and its metadata part 2 of 3");
    Asked::of(&split((0, 2, 5), (1, 2, 5)))
        .is_refused(&one, "the parts have 2 tensors together, and the metadata says 5");
    let alone: Files = right.iter().filter(|(name, _)| *name != two).cloned().collect();
    Asked::of(&alone).is_refused(&one, "part 2 of 2 is not in the repository");
    let exclude = Selection::new(vec![], vec![Pattern::parse("*-00002-of-*").unwrap()]);
    Asked::with(Model::with_selection(&alone, exclude)).is_open();
}

// class: gate
#[test]
fn wrong_bytes_and_missing_files_are_told_before_any_structure() {
    let (one, two) = (shard(1, 2), shard(2, 2));
    let asked = Asked::of(&indexed(&json!({ "a": one, "b": one, "c": two })));
    support::flip_byte(&asked.model.path(&one), 20);
    assert_eq!(asked.launch(&[]).0.code, Some(11));
    assert_eq!(asked.json(&["gate", "kimi"])["structure"]["looked_at"], 0);
    fs::remove_file(asked.model.path(&one)).unwrap();
    assert_eq!(asked.launch(&["--structure=off"]).0.code, Some(10));
    let told = asked.json(&["verify", "kimi", "--structure=off"]);
    assert_eq!((&told["exit_code"], &told["structure"]["mode"]), (&10.into(), &"off".into()));
}

#[test]
fn the_way_past_it_is_a_flag_a_variable_and_a_key_of_the_configuration() {
    let asked = Asked::of(&model_of(vec![("model.safetensors", b"no weights".to_vec())]));
    let code = |muster: &Muster, args: &[&str]| muster.args(args).run().code;
    let gate = ["gate", "kimi"];
    assert_eq!(code(&asked.muster, &gate), Some(12));
    let by_variable = asked.muster.clone().env("MUSTER_STRUCTURE", "warn");
    assert_eq!(code(&by_variable, &gate), Some(0));
    assert_eq!(code(&by_variable, &["gate", "kimi", "--structure=check"]), Some(12));
    let file = asked.muster.home().join("muster.toml");
    fs::write(&file, "[gate]\nstructure = \"off\"\n").unwrap();
    let config = file.to_str().unwrap();
    assert_eq!(code(&asked.muster, &["gate", "kimi", "--config", config]), Some(0));
    assert_eq!(code(&asked.muster, &["verify", "kimi", "--config", config]), Some(0));
    assert_eq!(code(&asked.muster, &["gate", "kimi", "--config", config, "--structure", "check"]), Some(12));
    let bad = asked.run(&["gate", "kimi", "--structure", "maybe"]);
    assert_eq!(bad.code, Some(2));
    assert!(bad.stderr.contains("`maybe` is none of check, warn, off"), "{bad}");
}

#[test]
fn a_weight_file_nobody_may_read_could_not_be_checked_whatever_faults_mean() {
    if rustix::process::geteuid().is_root() {
        return support::skip("root reads everything");
    }
    let asked = Asked::of(&kimi_shaped());
    let file = asked.model.path("model-00001-of-00004.safetensors");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o0)).unwrap();
    for mode in ["--structure=check", "--structure=warn"] {
        assert_eq!(asked.launch(&[mode]).0.code, Some(18));
    }
}

// class: verify-cost
#[test]
fn of_a_hundred_and_forty_files_of_four_gib_the_headers_alone_are_read() {
    const FILES: u32 = 140;
    let files: Files = (1..=FILES).map(|n| (shard(n, FILES), weights(100, 1))).collect();
    let map: serde_json::Map<String, Value> =
        files.iter().map(|(name, _)| (format!("{name}/t"), json!(name))).collect();
    let index = json!({ "weight_map": map }).to_string().into_bytes();
    let model = Model::verified(&files.iter().cloned().chain([(INDEX.to_owned(), index)]).collect::<Vec<_>>());
    let asked = Asked::with(grown(model));
    let ended = asked.muster.args(["gate", "kimi", "--json"]).time_limit(SOON).run().expect_code(0);
    let told = ended.json();
    assert_eq!((&told["structure"]["looked_at"], &told["files"]["hashed"]), (&json!(FILES + 1), &json!(0)));
    println!("{} ms for {} bytes", told["elapsed_ms"], told["bytes"]["total"]);
}

/// The same model with every shard grown to 4 GiB of which nearly all is a hole, under a receipt that nobody earned.
fn grown(model: Model) -> Model {
    const SIZE: u64 = 4 << 30;
    let dir = ModelDir::open(&model.dir()).unwrap();
    let mut entries = model.manifest.files().to_vec();
    for entry in entries.iter_mut().filter(|entry| entry.path.as_str().ends_with(".safetensors")) {
        let header = |len: u64| json!({ format!("{}/t", entry.path): tensor(0, len) }).to_string();
        let len = (0..SIZE).rev().find(|len| 8 + header(*len).len() as u64 + len == SIZE).unwrap();
        let head = [&(header(len).len() as u64).to_le_bytes()[..], header(len).as_bytes()].concat();
        let path = model.path(entry.path.as_str());
        fs::write(&path, head).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(SIZE).unwrap();
        entry.size = SIZE;
    }
    let manifest = Manifest::seal(model.manifest.source().clone(), entries).unwrap();
    dir.store_manifest(&manifest).unwrap();
    let records = manifest.files().iter().map(|entry| {
        let identity = dir.open_published(&entry.path).unwrap().identity();
        assert!(dir.settle(&identity).unwrap());
        let sha256 = Sha256::from_bytes([7; 32]);
        let (path, size, digest) = (entry.path.clone(), entry.size, entry.digest);
        FileRecord { path, size, digest, sha256, identity, proved: Proved::Stream }
    });
    let witness = Witness { at: muster::clock::now(), program: "test".into(), host: "here".into() };
    let receipt = Receipt::seal(&manifest, records.collect(), witness).unwrap();
    dir.set_receipt_aside().unwrap();
    dir.store_receipt(&receipt).unwrap();
    model
}

#[test]
fn the_help_and_the_example_tell_of_the_way_past_it() {
    let muster = Muster::new(Path::new("/nonexistent"));
    for verb in ["gate", "verify"] {
        let help = muster.args([verb, "--help"]).run().stdout;
        assert!(help.contains("--structure <MODE>") && help.contains("[env: MUSTER_STRUCTURE]"), "{help}");
    }
}
