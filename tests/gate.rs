//! `muster gate` and `muster verify` as a pipeline meets them: the real binary, real exit codes.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

#[path = "support/model.rs"]
mod model;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use model::{Model, kimi_shaped, manifest, weights};
use muster::core::selection::{Pattern, Selection};
use muster::gate::check::{Gate, Listener, Notice, Question};
use muster::volume::in_use::Attempt;
use muster::volume::{ModelDir, Volume};
use serde_json::Value;
use support::{Child, Muster, Output, assert_valid, flip_byte, trace};

const SOON: Duration = Duration::from_secs(30);
const SHARD: &str = "model-00002-of-00004.safetensors";

/// Calls `muster` on a volume.
struct Caller(Muster);

impl Caller {
    fn on(volume: &Path) -> Self {
        // A gate asks nobody; an endpoint other than the manifest's would be named in hints.
        Self(Muster::new(volume).without_env("HF_ENDPOINT"))
    }

    fn home(&self) -> &Path {
        self.0.home()
    }

    fn start(&self, args: &[&str]) -> Child {
        self.0.args(args).spawn()
    }

    fn run(&self, args: &[&str]) -> Output {
        self.0.args(args).run()
    }

    /// Runs with a command that leaves a mark, and says whether it ran.
    fn launches(&self, args: &[&str]) -> (Output, bool) {
        let mark = self.home().join("mark");
        let mut all = args.to_vec();
        all.extend(["--", "touch", mark.to_str().unwrap()]);
        let ended = self.run(&all);
        let ran = mark.exists();
        let _absent = fs::remove_file(&mark);
        (ended, ran)
    }

    fn json(&self, args: &[&str]) -> (i32, Value) {
        let ended = self.0.args(args).arg("--json").run();
        (ended.code.unwrap(), ended.json())
    }
}

fn kimi() -> Model {
    Model::verified(&kimi_shaped())
}

const GATE_SCHEMA: &str = include_str!("../src/api/schema/gate.v1.json");
const VERIFY_SCHEMA: &str = include_str!("../src/api/schema/verify.v1.json");

#[test]
fn a_complete_model_starts_the_command_and_its_exit_code_comes_back() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let script = "test \"$1\" = \"$MUSTER_MODEL_DIR\" && test -f \"$1/config.json\" && echo $MUSTER_COMMIT && exit 7";
    let ended = muster.run(&["gate", "kimi", "--", "sh", "-c", script, "sh", "{}"]);
    assert_eq!((ended.code, ended.stdout.trim()), (Some(7), "5c".repeat(20).as_str()), "{}", ended.stderr);
    assert!(
        ended.stderr.starts_with("open: 4.0 kB, 7 files, all 4 shards present and verified, commit 5c5c5c"),
        "{}",
        ended.stderr
    );
}

#[test]
fn without_a_command_the_line_is_the_result() {
    let model = kimi();
    let ended = Caller::on(model.volume()).run(&["gate", "kimi"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert!(ended.stdout.starts_with("open: ") && ended.stdout.contains(" ms)"), "{}", ended.stdout);
}

#[test]
fn a_command_that_is_not_there_or_cannot_run_ends_as_in_a_shell() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    assert_eq!(muster.run(&["gate", "kimi", "--", "/nonexistent/launcher"]).code, Some(127));
    assert_eq!(muster.run(&["gate", "kimi", "--", model.path("config.json").to_str().unwrap()]).code, Some(126));
}

// class: gate
#[test]
fn a_missing_shard_is_incomplete_and_the_command_never_runs() {
    let model = kimi();
    fs::remove_file(model.path(SHARD)).unwrap();
    let (ended, ran) = Caller::on(model.volume()).launches(&["gate", "kimi"]);
    assert_eq!((ended.code, ran), (Some(10), false));
    assert!(ended.stdout.starts_with(&format!("closed (10): {SHARD}: missing (1.0 kB)")), "{}", ended.stdout);
    assert!(
        ended.stderr.contains("hint: muster pull org/Kimi --to kimi fetches this file again (1.0 kB)"),
        "{}",
        ended.stderr
    );
}

// class: gate, wrong-bytes
#[test]
fn a_flipped_byte_is_corrupt_and_the_command_never_runs() {
    for file in [SHARD, "config.json", "tokenizer/vocab.txt"] {
        let model = kimi();
        flip_byte(&model.path(file), 0);
        let (ended, ran) = Caller::on(model.volume()).launches(&["gate", "kimi"]);
        assert_eq!((ended.code, ran), (Some(11), false), "{}", ended.stderr);
        assert!(ended.stdout.starts_with(&format!("closed (11): {file}: sha256 expected ")), "{}", ended.stdout);
    }
}

// class: gate, wrong-bytes
#[test]
fn a_flipped_byte_behind_restored_times_is_found_by_a_full_check() {
    let files = kimi_shaped();
    let model = kimi();
    let mut other = files.clone();
    other[1].1[500] ^= 1;
    // A receipt whose identities are those of the damaged files, as if the times had been restored.
    for (path, bytes) in &other {
        fs::write(model.path(path), bytes).unwrap();
    }
    trust_what_is_there(&model);
    let muster = Caller::on(model.volume());
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(0));
    let (ended, ran) = muster.launches(&["gate", "kimi", "--full"]);
    assert_eq!((ended.code, ran), (Some(11), false));
    assert!(ended.stderr.contains("muster verify kimi --quarantine sets this file aside"), "{}", ended.stderr);
}

/// Puts the identities of the files on disk on the receipt, whatever their bytes.
fn trust_what_is_there(model: &Model) {
    let dir = ModelDir::open(&model.dir()).unwrap();
    let mut receipt: Value = serde_json::from_slice(&dir.receipt_bytes().unwrap().unwrap()).unwrap();
    for (at, entry) in model.manifest.files().iter().enumerate() {
        let identity = dir.open_published(&entry.path).unwrap().identity();
        receipt["files"][at]["identity"] = serde_json::to_value(identity).unwrap();
    }
    fs::write(model.path(".muster/receipt.json"), receipt.to_string()).unwrap();
}

// class: gate
#[test]
fn a_model_never_pulled_is_unknown_and_the_message_says_where_was_looked() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    for name in ["other", "org/other", "./nowhere", "/nowhere"] {
        let (ended, ran) = muster.launches(&["gate", name]);
        assert_eq!((ended.code, ran), (Some(13), false), "{name}");
    }
    let ended = muster.run(&["gate", "other"]);
    let looked =
        format!("closed (13): no model `other` on the volume {} (from MUSTER_VOLUME)", model.volume().display());
    assert!(ended.stdout.starts_with(&looked), "{}", ended.stdout);
}

// class: gate
#[test]
fn a_cut_shard_names_the_missing_bytes_every_time() {
    for cut in [1, 500] {
        let model = kimi();
        let path = model.path(SHARD);
        let size = fs::metadata(&path).unwrap().len();
        fs::File::options().write(true).open(&path).unwrap().set_len(size - cut).unwrap();
        let muster = Caller::on(model.volume());
        for _ in 0..3 {
            let ended = muster.run(&["gate", "kimi"]);
            assert_eq!(ended.code, Some(11));
            let missing = if cut == 1 { "1 byte missing".to_owned() } else { format!("{cut} bytes missing") };
            assert!(ended.stdout.contains(&missing), "{}", ended.stdout);
        }
    }
}

// class: gate, wrong-bytes, revision
#[test]
fn every_other_way_to_be_wrong_names_file_and_remedy_and_the_command_never_runs() {
    const OTHER: &[&str] = &["--manifest-id", "0000000000000000000000000000000000000000000000000000000000000000"];
    type Wrong = fn(&Model);
    type Case = (&'static str, Wrong, &'static [&'static str], i32, &'static str, &'static str);
    let longer: Wrong = |model| {
        use std::io::Write as _;
        fs::File::options().append(true).open(model.path(SHARD)).unwrap().write_all(b"more").unwrap();
    };
    // Another's bytes of the same size, so that the length tells nothing.
    let swapped: Wrong = |model| fs::write(model.path(SHARD), weights(1002, 77)).unwrap();
    let folder: Wrong = |model| {
        fs::remove_file(model.path(SHARD)).unwrap();
        fs::create_dir(model.path(SHARD)).unwrap();
    };
    let untouched: Wrong = |_| ();
    let cases: [Case; 5] = [
        ("longer", longer, &[], 11, SHARD, "muster pull"),
        ("swapped", swapped, &[], 11, SHARD, "muster pull"),
        ("a folder", folder, &[], 11, SHARD, "muster pull"),
        ("another commit", untouched, &["--revision", "v2"], 10, "v2", "--revision REVISION brings"),
        ("another manifest", untouched, OTHER, 12, "manifest", "correct --manifest-id"),
    ];
    for (what, wrong, arguments, code, names, remedy) in cases {
        let model = kimi();
        wrong(&model);
        let all: Vec<_> = ["gate", "kimi"].iter().chain(arguments).copied().collect();
        let (ended, ran) = Caller::on(model.volume()).launches(&all);
        assert_eq!((ended.code, ran), (Some(code), false), "{what}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.contains(names), "{what}: {}", ended.stdout);
        assert!(ended.stderr.contains("hint: ") && ended.stderr.contains(remedy), "{what}: {}", ended.stderr);
    }
}

// class: gate
#[test]
fn a_link_in_the_place_of_a_file_keeps_the_gate_closed() {
    let model = kimi();
    let aside = model.volume().join("aside");
    fs::rename(model.path(SHARD), &aside).unwrap();
    std::os::unix::fs::symlink(&aside, model.path(SHARD)).unwrap();
    let ended = Caller::on(model.volume()).run(&["gate", "kimi"]);
    assert_eq!(ended.code, Some(11));
    assert!(ended.stdout.contains("a regular file expected"), "{}", ended.stdout);
}

// class: gate, permissions
#[test]
fn a_directory_that_cannot_be_written_to_is_gated_and_left_untouched() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let set_folders = |mode| {
        for folder in [model.dir(), model.path(".muster"), model.path("tokenizer")] {
            fs::set_permissions(folder, fs::Permissions::from_mode(mode)).unwrap();
        }
    };
    // A change of mode drifts the identity, so that something has to be hashed.
    fs::set_permissions(model.path(SHARD), fs::Permissions::from_mode(0o444)).unwrap();
    set_folders(0o555);
    let before = trace(&model.dir());
    for args in [&["gate", "kimi"][..], &["gate", "kimi", "--full"], &["gate", "kimi", "--no-remember"]] {
        let ended = muster.run(args);
        assert_eq!(ended.code, Some(0), "{} {}", ended.stdout, ended.stderr);
    }
    flip_nothing_but_ask(&muster);
    assert_eq!(trace(&model.dir()), before, "the gate wrote in the model directory");
    set_folders(0o755);
}

fn flip_nothing_but_ask(muster: &Caller) {
    assert_eq!(muster.run(&["gate", "kimi", "--revision", "v2"]).code, Some(10));
    assert_eq!(muster.run(&["gate", "kimi", "--manifest-id", &"0".repeat(64)]).code, Some(12));
}

// class: gate
#[test]
fn no_receipt_is_incomplete_even_when_every_byte_is_right() {
    let model = kimi();
    let receipt = model.path(".muster/receipt.json");
    fs::remove_file(&receipt).unwrap();
    fs::remove_file(model.path("config.json")).unwrap();
    let ended = Caller::on(model.volume()).run(&["gate", "kimi", "--full"]);
    assert_eq!(ended.code, Some(10));
    assert!(
        ended.stdout.contains("there is no receipt") && ended.stdout.contains("config.json: missing"),
        "{}",
        ended.stdout
    );
    fs::write(&receipt, b"{ garbled").unwrap();
    let ended = Caller::on(model.volume()).run(&["gate", "kimi"]);
    assert_eq!(ended.code, Some(10));
    assert!(ended.stdout.contains("the receipt is damaged"), "{}", ended.stdout);
}

// class: gate, revision
#[test]
fn a_receipt_of_another_manifest_keeps_the_gate_closed() {
    let model = kimi();
    let mut files = kimi_shaped();
    files.pop();
    let dir = ModelDir::open(&model.dir()).unwrap();
    dir.store_manifest(&manifest(&files, Selection::default())).unwrap();
    let ended = Caller::on(model.volume()).run(&["gate", "kimi"]);
    assert_eq!(ended.code, Some(10));
    assert!(ended.stdout.contains("the receipt is for another manifest"), "{}", ended.stdout);
}

// class: gate
#[test]
fn a_manifest_that_cannot_be_read_is_not_called_complete() {
    let model = kimi();
    fs::write(model.path(".muster/manifest.json"), b"{").unwrap();
    assert_eq!(Caller::on(model.volume()).run(&["gate", "kimi"]).code, Some(18));
}

// class: verify-cost
#[test]
fn a_drift_of_identities_is_hashed_once_and_remembered() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    for entry in model.manifest.files() {
        fs::set_permissions(model.path(entry.path.as_str()), fs::Permissions::from_mode(0o640)).unwrap();
    }
    // The identity has to be older than a tick before it can be remembered.
    std::thread::sleep(Duration::from_millis(50));
    let hashed = |args: &[&str]| muster.json(args).1["files"]["hashed"].as_u64().unwrap();
    assert_eq!(hashed(&["gate", "kimi", "--no-remember"]), 7);
    assert_eq!(hashed(&["gate", "kimi"]), 7);
    assert_eq!(hashed(&["gate", "kimi"]), 0);
    assert_eq!(hashed(&["gate", "kimi", "--no-remember"]), 7, "nobody asked to use the memory");
    fs::set_permissions(model.path(SHARD), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(hashed(&["gate", "kimi"]), 1, "only what changed");
    assert_eq!(hashed(&["gate", "kimi", "--full"]), 7);
    flip_byte(&model.path(SHARD), 0);
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(11));
}

#[test]
fn the_json_form_is_valid_in_every_situation() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let check = |args: &[&str], exit: i32| {
        let (code, value) = muster.json(args);
        assert_valid(GATE_SCHEMA, &value);
        assert_eq!((code, value["exit_code"].as_i64().unwrap()), (exit, i64::from(exit)));
        value
    };
    let open = check(&["gate", "kimi"], 0);
    assert_eq!((&open["verdict"], &open["shards"]["verified"]), (&"open".into(), &4.into()));
    check(&["gate", "other"], 13);
    check(&["gate", "kimi", "--revision", "v2"], 10);
    check(&["gate", "kimi", "--manifest-id", &"0".repeat(64)], 12);
    let id = model.manifest.id().to_string();
    check(&["gate", "kimi", "--manifest-id", &id, "--revision", &"5c".repeat(20)], 0);
    flip_byte(&model.path(SHARD), 0);
    fs::remove_file(model.path("config.json")).unwrap();
    let closed = check(&["gate", "kimi"], 11);
    let reasons = closed["reasons"].as_array().unwrap();
    assert_eq!(reasons.len(), 2, "all are listed");
    assert_eq!((&reasons[0]["file"], &reasons[0]["code"]), (&SHARD.into(), &"corrupt".into()));
    assert!(reasons[0]["expected"].as_str().unwrap().starts_with("sha256:"));
    assert_eq!(closed["files"]["bad"], 2);
}

#[test]
fn the_verdict_file_holds_the_same_json_even_when_a_command_follows() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let file = muster.home().join("verdict.json");
    let path = file.to_str().unwrap();
    assert_eq!(muster.run(&["gate", "kimi", "--verdict", path, "--", "sh", "-c", "exit 3"]).code, Some(3));
    let value: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_valid(GATE_SCHEMA, &value);
    assert_eq!(value["verdict"], "open");
    fs::remove_file(model.path(SHARD)).unwrap();
    assert_eq!(muster.run(&["gate", "kimi", "--verdict", path]).code, Some(10));
    assert_eq!(serde_json::from_slice::<Value>(&fs::read(&file).unwrap()).unwrap()["exit_code"], 10);
    let (ended, ran) = muster.launches(&["gate", "kimi", "--verdict", "/nonexistent/verdict.json"]);
    assert!(ended.code.is_some_and(|code| code != 0) && !ran);
}

#[test]
fn people_see_ten_files_and_how_many_more() {
    let files: Vec<_> = (0..30).map(|n| (format!("f{n:02}"), vec![1])).collect();
    let model = Model::verified(&files);
    for (path, _) in &files {
        fs::remove_file(model.path(path)).unwrap();
    }
    let ended = Caller::on(model.volume()).run(&["gate", "kimi"]);
    assert_eq!(ended.stdout.lines().count(), 11);
    assert!(ended.stdout.ends_with("  and 20 more\n"), "{}", ended.stdout);
    assert!(ended.stderr.contains("fetches these files again (30 B)"), "{}", ended.stderr);
}

// class: gate, revision
#[test]
fn a_partial_selection_is_named() {
    let selection = Selection::new(vec![Pattern::parse("*.json").unwrap()], vec![]);
    let files = vec![("config.json".to_owned(), b"{}".to_vec())];
    let model = Model::with_selection(&files, selection);
    let ended = Caller::on(model.volume()).run(&["gate", "kimi"]);
    assert!(
        ended.stdout.starts_with("open: 2 B, 1 file present and verified, selection --include *.json, commit"),
        "{}",
        ended.stdout
    );
}

// class: writers
#[test]
fn the_launched_command_keeps_the_directory_in_use() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let mut child = muster.start(&["gate", "kimi", "--", "sh", "-c", "echo started; exec sleep 60"]);
    child.wait_for_text("started\n", SOON);
    let dir = ModelDir::open(&model.dir()).unwrap();
    assert!(matches!(dir.lock_exclusive(), Attempt::Held));
    drop(child);
    assert!(matches!(dir.lock_exclusive(), Attempt::Taken(_)));
}

#[test]
fn a_held_gate_keeps_the_lock_until_it_is_told_to_stop() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let mut child = muster.start(&["gate", "kimi", "--hold"]);
    child.wait_for_text("open: ", SOON);
    let dir = ModelDir::open(&model.dir()).unwrap();
    assert!(matches!(dir.lock_exclusive(), Attempt::Held));
    // Before its handler is in place the signal ends it as well, only with another status.
    child.terminate();
    child.wait(SOON);
    assert!(matches!(dir.lock_exclusive(), Attempt::Taken(_)));
}

// class: gate, writers
#[test]
fn a_directory_under_change_is_held() {
    let model = kimi();
    let dir = ModelDir::open(&model.dir()).unwrap();
    let Attempt::Taken(_alone) = dir.lock_exclusive() else { panic!("free") };
    assert_eq!(Caller::on(model.volume()).run(&["gate", "kimi"]).code, Some(15));
}

// class: gate
#[test]
fn a_waiting_gate_opens_when_the_model_arrives() {
    let model = kimi();
    let elsewhere = model.volume().join("not-yet");
    fs::rename(model.dir(), &elsewhere).unwrap();
    let muster = Caller::on(model.volume());
    let mark = muster.home().join("mark");
    let mut child = muster.start(&["gate", "kimi", "--wait=60s", "--", "touch", mark.to_str().unwrap()]);
    child.wait_for_text("waiting for kimi: no model `kimi`", SOON);
    assert!(!mark.exists());
    fs::rename(&elsewhere, model.dir()).unwrap();
    child.wait(SOON).expect_code(0);
    assert!(mark.exists());
}

// class: gate, stalls
#[test]
fn a_wait_ends_at_its_limit_at_a_stall_or_at_once() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    fs::remove_file(model.path(SHARD)).unwrap();
    let (ended, ran) = muster.launches(&["gate", "kimi", "--wait=300ms"]);
    assert_eq!((ended.code, ran), (Some(124), false));
    assert!(ended.stdout.starts_with(&format!("closed (124): out of time; {SHARD}: missing")), "{}", ended.stdout);
    let (ended, ran) = muster.launches(&["gate", "kimi", "--wait", "--stall", "300ms"]);
    assert_eq!((ended.code, ran), (Some(19), false));
    fs::write(model.path(SHARD), b"short").unwrap();
    let started = Instant::now();
    assert_eq!(muster.run(&["gate", "kimi", "--wait=60s"]).code, Some(11));
    assert!(started.elapsed() < Duration::from_secs(30));
}

// class: gate, revision
#[test]
fn an_update_during_the_check_never_opens_on_a_mixture() {
    let model = kimi();
    fs::set_permissions(model.path(SHARD), fs::Permissions::from_mode(0o600)).unwrap();
    let dir = ModelDir::open(&model.dir()).unwrap();
    let receipt = dir.receipt_bytes().unwrap().unwrap();
    let rounds = std::sync::atomic::AtomicUsize::new(0);
    // Locks may lie, so a writer comes in between: each time something is hashed, the receipt changes.
    let notice = |notice| {
        if matches!(notice, Notice::Hashing { .. }) {
            let round = rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let changed = [&receipt[..], &vec![b' '; round + 1]].concat();
            fs::write(model.path(".muster/receipt.json"), changed).unwrap();
            fs::set_permissions(model.path(SHARD), fs::Permissions::from_mode(0o600)).unwrap();
        }
    };
    let listener = Listener { notice: &notice, bytes: &|_| {} };
    let mut gate = Gate::new(&model.dir(), Question { full: true, ..Question::default() });
    let answer = gate.check(&listener);
    let asked = rounds.load(std::sync::atomic::Ordering::Relaxed);
    assert!(asked > 1, "it looked again");
    assert!(answer.decision.is_open() || answer.decision.exit() == 18, "{:?}", answer.decision);

    // Left alone, the same gate comes to a verdict.
    let quiet = Listener { notice: &|_| {}, bytes: &|_| {} };
    fs::write(model.path(".muster/receipt.json"), &receipt).unwrap();
    assert!(gate.check(&quiet).decision.is_open());
}

// class: gate
#[test]
fn a_file_changed_while_others_are_hashed_is_looked_at_again() {
    let model = kimi();
    fs::set_permissions(model.path(SHARD), fs::Permissions::from_mode(0o600)).unwrap();
    let once = std::sync::Once::new();
    // The config was trusted by then; afterwards it is another one.
    let notice = |_| once.call_once(|| flip_byte(&model.path("config.json"), 0));
    let listener = Listener { notice: &notice, bytes: &|_| {} };
    let answer = Gate::new(&model.dir(), Question::default()).check(&listener);
    assert_eq!(answer.decision.exit(), 11, "{:?}", answer.decision);
}

// class: verify-cost
#[test]
fn a_memory_that_others_could_write_is_not_used_and_that_is_said() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    let shared = muster.home().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(model.path(SHARD), fs::Permissions::from_mode(0o600)).unwrap();
    let ended = muster.run(&["gate", "kimi", "--remember", shared.to_str().unwrap()]);
    assert_eq!(ended.code, Some(0));
    assert!(ended.stderr.contains("not a directory of this user alone"), "{}", ended.stderr);
    assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
}

// class: gate, looks-complete
#[test]
fn a_first_pull_under_way_is_incomplete_and_names_what_is_missing() {
    let model = kimi();
    fs::rename(model.path(".muster/manifest.json"), model.path(".muster/manifest.pending.json")).unwrap();
    fs::remove_file(model.path(".muster/receipt.json")).unwrap();
    fs::remove_file(model.path(SHARD)).unwrap();
    let muster = Caller::on(model.volume());
    for verb in ["gate", "verify"] {
        let ended = muster.run(&[verb, "kimi"]);
        assert_eq!(ended.code, Some(10));
        assert!(ended.stdout.contains(&format!("{SHARD}: missing")), "{}", ended.stdout);
    }
    assert!(!model.path(".muster/receipt.json").exists());
}

// class: gate
#[test]
fn a_wait_ends_at_once_when_the_pull_has_given_up() {
    let model = kimi();
    fs::remove_file(model.path(SHARD)).unwrap();
    let now = muster::clock::now();
    let status = serde_json::json!({
        "schema": 1, "volume": "/v", "written_at": now.to_string(),
        "daemon": {"running": true, "host": null, "pid": null, "version": null, "age_s": null},
        "models": [{
            "id": "kimi", "repo": "org/Kimi", "repo_type": "model", "revision": "main", "commit": null,
            "selection": null, "directory": "/v/kimi", "state": "failed", "phase": null, "files": null,
            "shards": null, "bytes": null, "rate_bytes_per_s": null, "eta_s": null, "last_byte_age_s": null,
            "connections": 0, "error": {"code": "no_space", "message": "not enough space", "hint": null}
        }]
    });
    fs::write(model.volume().join(".muster/status.json"), status.to_string()).unwrap();
    let muster = Caller::on(model.volume());
    let (code, value) = muster.json(&["gate", "kimi", "--wait=60s"]);
    assert_valid(GATE_SCHEMA, &value);
    assert_eq!(code, 16);
    assert!(muster.run(&["gate", "kimi", "--wait=60s"]).stdout.contains("the pull failed: not enough space"));
}

// class: verify-cost
#[test]
fn verify_renews_the_receipt_of_a_right_model() {
    let model = kimi();
    let muster = Caller::on(model.volume());
    for entry in model.manifest.files() {
        fs::set_permissions(model.path(entry.path.as_str()), fs::Permissions::from_mode(0o640)).unwrap();
    }
    let (code, value) = muster.json(&["verify", "kimi"]);
    assert_valid(VERIFY_SCHEMA, &value);
    assert_eq!((code, &value["receipt"], &value["verdict"]), (0, &"renewed".into(), &"verified".into()));
    let (_, gate) = muster.json(&["gate", "kimi", "--no-remember"]);
    assert_eq!(gate["files"]["trusted"], 7, "nothing is left to hash");
}

// class: verify-cost
#[test]
fn verify_makes_a_receipt_where_only_that_was_missing() {
    let model = kimi();
    fs::remove_file(model.path(".muster/receipt.json")).unwrap();
    let muster = Caller::on(model.volume());
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(10));
    assert_eq!(muster.run(&["verify", "kimi"]).code, Some(0));
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(0));
}

// class: verify-cost, gate
#[test]
fn verify_names_bad_files_and_keeps_the_gate_closed() {
    let model = kimi();
    flip_byte(&model.path(SHARD), 500);
    trust_what_is_there(&model);
    let muster = Caller::on(model.volume());
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(0), "identities alone cannot tell");
    let ended = muster.run(&["verify", "kimi"]);
    assert_eq!(ended.code, Some(11));
    assert!(ended.stdout.starts_with(&format!("not verified (11): {SHARD}: sha256 expected")), "{}", ended.stdout);
    assert!(model.path(SHARD).exists(), "nothing is moved without --quarantine");
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(10));
}

#[test]
fn verify_moves_bad_files_to_quarantine_only_when_asked() {
    let model = kimi();
    flip_byte(&model.path(SHARD), 0);
    let muster = Caller::on(model.volume());
    let (code, value) = muster.json(&["verify", "kimi", "--quarantine"]);
    assert_valid(VERIFY_SCHEMA, &value);
    assert_eq!((code, &value["quarantined"][0]["file"]), (11, &SHARD.into()));
    assert!(!model.path(SHARD).exists());
    assert!(Path::new(value["quarantined"][0]["place"].as_str().unwrap()).exists());
    assert!(model.path("config.json").exists());
    assert_eq!(muster.run(&["gate", "kimi"]).code, Some(10));
}

// class: verify-cost
#[test]
fn verify_of_a_missing_file_keeps_the_receipt_for_the_rest() {
    let model = kimi();
    fs::remove_file(model.path(SHARD)).unwrap();
    let (code, value) = Caller::on(model.volume()).json(&["verify", "kimi"]);
    assert_valid(VERIFY_SCHEMA, &value);
    assert_eq!((code, &value["receipt"]), (10, &"kept".into()));
    assert_eq!(Caller::on(model.volume()).json(&["verify", "other"]).0, 13);
}

#[test]
fn two_directories_of_one_repository_are_a_usage_error() {
    let model = kimi();
    let other = Volume::open(model.volume()).unwrap();
    let other = other.create_model(&muster::core::model_name::ModelName::parse("other").unwrap()).unwrap();
    other.store_manifest(&model.manifest).unwrap();
    let muster = Caller::on(model.volume());
    let ended = muster.run(&["gate", "org/Kimi"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("kimi, other"), "{}", ended.stderr);
}

// class: verify-cost
#[test]
fn an_unchanged_model_of_the_reference_shape_is_gated_without_hashing() {
    let files: Vec<_> =
        (0..140).map(|n| (format!("model-{:05}-of-000140.safetensors", n + 1), weights(100, 3))).collect();
    let model = Model::verified(&files);
    let (code, value) = Caller::on(model.volume()).json(&["gate", "kimi"]);
    assert_eq!((code, &value["files"]["trusted"]), (0, &140.into()));
    // The promise is 100 ms; a loaded machine gets more time before this is called broken.
    assert!(value["elapsed_ms"].as_u64().unwrap() < 2000, "{value}");
}
