//! Every example in `config/policy` parses, and does what it says to a model of the shape it is for.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use muster::core::policy::{Demand, Policy};
use muster::demo::shape::{self, Content};

use super::{COMMIT, World, sha256_hex, weights};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/policy").join(name)
}

fn text(name: &str) -> String {
    fs::read_to_string(example(name)).unwrap()
}

/// The documents of the demo's model, which has the shape of Kimi-K2.5-NVFP4, and one weight file.
fn kimi() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = shape::files(1, 1 << 16)
        .unwrap()
        .into_iter()
        .filter_map(|file| match file.content {
            Content::Bytes(bytes) => Some((file.path.as_str().to_owned(), bytes)),
            Content::Noise { .. } => None,
        })
        // It tells of tensors that the shard below has not.
        .filter(|(path, _)| path != "model.safetensors.index.json")
        .collect();
    files.push(("model-00001-of-000001.safetensors".into(), weights(100, 1)));
    files
}

/// The same with the text of one file changed.
fn edited(files: &[(String, Vec<u8>)], name: &str, from: &str, to: &str) -> Vec<(String, Vec<u8>)> {
    let edit = |(path, bytes): &(String, Vec<u8>)| {
        let mut text = String::from_utf8(bytes.clone()).unwrap_or_default();
        if path == name {
            assert!(text.contains(from), "{name}: {text}");
            text = text.replace(from, to);
            return (path.clone(), text.into_bytes());
        }
        (path.clone(), bytes.clone())
    };
    files.iter().map(edit).collect()
}

fn refused(files: &[(String, Vec<u8>)], policy: &str, words: &str) {
    let (ended, ran) = World::of(files).under(policy);
    assert_eq!((ended.code, ran), (Some(12), false), "{ended}");
    assert!(ended.stdout.contains(words) && ended.stderr.contains("hint: "), "{words}\n{ended}");
}

fn launched(files: &[(String, Vec<u8>)], policy: &str) {
    let (ended, ran) = World::of(files).under(policy);
    assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
}

#[test]
fn every_shipped_policy_parses_and_the_readme_names_it() {
    let readme = text("README.md");
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(example("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name == "README.md" {
            continue;
        }
        Policy::parse(&text(&name), &name).unwrap();
        assert!(readme.contains(&format!("]({name})")), "{name}");
        names.insert(name);
    }
    assert!(names.len() >= 5, "{names:?}");
}

// class: gate
#[test]
fn the_shipped_policy_refuses_an_fp8_kv_cache_until_both_files_say_otherwise() {
    let policy = text("fp8-kv-cache.toml");
    let files = kimi();
    refused(&files, &policy, "hf_quant_config.json /quantization/kv_cache_quant_algo: anything but \"FP8\" expected");
    let one = edited(&files, "hf_quant_config.json", "\"FP8\"", "null");
    refused(
        &one,
        &policy,
        "config.json /quantization_config/kv_cache_scheme/num_bits: anything but 8 expected, 8 found",
    );
    let both = edited(&one, "config.json", "kv_cache_scheme", "kv_cache_scheme_was");
    launched(&both, &policy);
    let older = edited(&both, "config.json", "\"quant_method\"", "\"kv_cache_quant_algo\": \"fp8\", \"quant_method\"");
    refused(&older, &policy, "config.json /quantization_config/kv_cache_quant_algo");
}

// class: gate
#[test]
fn the_shipped_policy_refuses_code_until_each_file_was_read() {
    let policy = text("no-remote-code.toml");
    let files = kimi();
    refused(&files, &policy, "files *.py, *.pyc, *.pyd, *.so: none expected, configuration_kimi.py (sha256 ");
    let code = files.iter().filter(|(path, _)| path.ends_with(".py"));
    let digests: Vec<_> = code.map(|(_, bytes)| format!("\"{}\"", sha256_hex(bytes))).collect();
    let read = policy.replace("except_sha256 = []", &format!("except_sha256 = [{}]", digests.join(", ")));
    assert_ne!(read, policy);
    launched(&files, &read);
    let other = edited(&files, "modeling_kimi.py", "raise", "import os; raise");
    refused(&other, &read, "modeling_kimi.py (sha256 ");
    for name in ["config.json", "tokenizer_config.json", "preprocessor_config.json"] {
        let mapped = edited(&files, name, "{", "{\"auto_map\": {}, ").into_iter();
        // Only the first brace is the document's.
        let mapped: Vec<_> = mapped
            .map(|(path, bytes)| {
                let text = String::from_utf8(bytes).unwrap_or_default();
                let first = "{\"auto_map\": {}, ";
                let (head, rest) = text.split_at(text.find(first).map_or(0, |at| at + first.len()));
                let whole = format!("{head}{}", rest.replace(first, "{"));
                (path, whole.into_bytes())
            })
            .collect();
        refused(&mapped, &read, &format!("{name} /auto_map: nothing expected"));
    }
}

// class: gate
#[test]
fn the_shipped_policy_refuses_what_runs_code_when_it_is_loaded() {
    let policy = text("no-pickle.toml");
    launched(&kimi(), &policy);
    for name in
        ["pytorch_model.bin", "sub/Model.PT", "adapter.pth", "last.ckpt", "x.pkl", "x.pickle", "x.npz", "x.joblib"]
    {
        let mut files = kimi();
        files.push((name.into(), b"pickle".to_vec()));
        refused(&files, &policy, &format!("none expected, {name} found"));
    }
}

// class: gate, revision
#[test]
fn the_shipped_policy_holds_a_repository_to_its_commit() {
    let policy = text("pinned-commit.toml");
    launched(&kimi(), &policy);
    let ours = policy.replace("nvidia/Kimi-K2.5-NVFP4\"]", "org/Kimi\"]");
    refused(&kimi(), &ours, "the commit: 0123456789abcdef0123456789abcdef01234567 expected");
    launched(&kimi(), &ours.replace("0123456789abcdef0123456789abcdef01234567", COMMIT));
}

// class: gate, permissions
#[test]
fn the_shipped_careful_policy_refuses_what_others_could_have_changed() {
    let policy = text("careful.toml");
    let parsed = Policy::parse(&policy, "careful.toml").unwrap();
    assert!(parsed.rules().iter().any(|rule| rule.demand == Demand::NoLocalEdits));
    let world = World::of(&kimi());
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    // Whatever the umask of the tests is.
    for entry in walk(&world.model.dir()) {
        mode(&entry, if entry.is_dir() { 0o755 } else { 0o644 });
    }
    let (ended, ran) = world.under(&policy);
    assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
    for (path, odd, right, words) in [
        (world.model.dir(), 0o775, 0o755, "none of 0022 expected, . (0775) found"),
        (world.model.path("config.json"), 0o646, 0o644, "config.json (0646) found"),
        (world.model.path("config.json"), 0o640, 0o644, "all of 0444 expected, config.json (0640) found"),
    ] {
        mode(&path, odd);
        let (ended, ran) = world.under(&policy);
        assert_eq!((ended.code, ran), (Some(12), false), "{ended}");
        assert!(ended.stdout.contains(words), "{words}\n{ended}");
        mode(&path, right);
    }
    fs::write(world.model.path("sitecustomize.py"), b"").unwrap();
    mode(&world.model.path("sitecustomize.py"), 0o644);
    let (ended, _) = world.under(&policy);
    assert!(ended.stdout.contains("none expected, sitecustomize.py found"), "{ended}");
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = vec![folder.to_owned()];
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(walk(&path)) } else { found.push(path) }
    }
    found
}
