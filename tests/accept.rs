//! `muster accept`: files that somebody changed on purpose, through the real binary.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod faultfs;
mod support;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use faultfs::{Act, At, FaultFs};
use serde_json::Value;
use support::*;

const SOON: Duration = Duration::from_secs(60);
const CONFIG: &str = "config.json";
const SHARD: &str = "model-00002-of-000003.safetensors";
const EDITED: &str = "{\"edited\": \"by hand\", \"kv_cache_dtype\": \"auto\"}\n";
const REASON: &str = "no FP8 KV cache on these GPUs";

const ACCEPT_SCHEMA: &str = include_str!("../src/api/schema/accept.v1.json");
const GATE_SCHEMA: &str = include_str!("../src/api/schema/gate.v1.json");
const VERIFY_SCHEMA: &str = include_str!("../src/api/schema/verify.v1.json");
const STATUS_SCHEMA: &str = include_str!("../src/api/schema/status.v1.json");
const HISTORY_SCHEMA: &str = include_str!("../src/api/schema/history.v1.json");

fn repo() -> RepoSpec {
    RepoSpec::kimi(3, 65536, 8).named("org/model")
}

/// A complete model.
struct Site {
    hub: Hub,
    world: Muster,
}

impl Site {
    fn new() -> Self {
        let hub = Hub::start(repo());
        let world = Muster::on(&hub).env("USER", "alice");
        world.args(["pull", "org/model"]).run().expect_code(0);
        hub.forget();
        Self { hub, world }
    }

    /// With `config.json` edited and accepted.
    fn accepted() -> Self {
        let site = Self::new();
        site.write(CONFIG, EDITED);
        site.accept(&[CONFIG]).expect_code(0);
        site
    }

    fn path(&self, file: &str) -> PathBuf {
        self.world.model("org/model").join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
    }

    fn read(&self, file: &str) -> Vec<u8> {
        fs::read(self.path(file)).unwrap()
    }

    fn run(&self, args: &[&str]) -> Output {
        self.world.args(args).run()
    }

    fn accept(&self, files: &[&str]) -> Output {
        self.world.args(["accept", "org/model"].iter().chain(files)).args(["--reason", REASON]).run()
    }

    fn undo(&self, files: &[&str]) -> Output {
        self.world.args(["accept", "org/model", "--undo"].iter().chain(files)).run()
    }

    /// The verdict, with a launcher that leaves a mark. It ran exactly when the gate was open.
    #[track_caller]
    fn gate(&self, flags: &[&str]) -> Output {
        let mark = self.world.home().join("mark");
        let out = self.world.args(["gate", "org/model"].iter().chain(flags)).args(["--", "touch"]).arg(&mark).run();
        assert_eq!(mark.exists(), out.code == Some(0), "{out}");
        let _absent = fs::remove_file(&mark);
        out
    }

    fn gate_json(&self) -> Value {
        let json = self.run(&["gate", "org/model", "--no-remember", "--json"]).json();
        assert_valid(GATE_SCHEMA, &json);
        json
    }

    fn record(&self) -> Value {
        serde_json::from_slice(&self.read(".muster/local.json")).unwrap()
    }

    fn quarantined(&self) -> Vec<String> {
        listing(&self.world.volume().join(".muster/quarantine"))
    }
}

trait More {
    fn args(self, args: impl IntoIterator<Item = &'static str>) -> Self;
}

impl More for Invocation {
    fn args(self, args: impl IntoIterator<Item = &'static str>) -> Self {
        args.into_iter().fold(self, Invocation::arg)
    }
}

// class: gate, wrong-bytes
#[test]
fn an_edited_file_is_refused_until_it_is_accepted_and_again_when_it_changes_again() {
    let site = Site::new();
    site.write(CONFIG, EDITED);
    let out = site.gate(&[]).expect_code(11);
    let hint = format!("muster accept org/model {CONFIG} --reason TEXT");
    assert!(out.all().contains(CONFIG) && out.all().contains(&hint), "{out}");
    site.accept(&[CONFIG]).expect_code(0);
    let out = site.gate(&[]).expect_code(0);
    assert!(out.stderr.contains("1 file changed here on purpose: config.json"), "{out}");
    let json = site.gate_json();
    assert_eq!(
        (&json["files"]["hashed"], &json["files"]["trusted"]),
        (&0.into(), &11.into()),
        "a quick gate trusts it"
    );
    flip_byte(&site.path(CONFIG), 3);
    let flipped = site.read(CONFIG);
    let out = site.gate(&[]).expect_code(11);
    assert!(out.all().contains("accept org/model --undo config.json"), "{out}");
    let out = site.run(&["pull", "org/model"]).expect_code(11);
    assert!(out.stderr.contains(CONFIG) && out.stderr.contains(REASON) && out.stderr.contains("--undo"), "{out}");
    assert_eq!(site.read(CONFIG), flipped, "pull leaves it");
    assert!(site.quarantined().is_empty() && site.hub.bytes_sent_for(CONFIG) == 0);
}

// class: gate
#[test]
fn every_output_names_what_was_changed_on_purpose() {
    let site = Site::new();
    let published = sha256_hex(site.read(CONFIG));
    site.write(CONFIG, EDITED);
    site.write("generation_config.json", "{}");
    let out = site.accept(&[CONFIG, "generation_config.json"]).expect_code(0);
    let named = "2 files changed here on purpose: config.json, generation_config.json";
    assert!(out.stdout.contains(named), "{out}");
    for verb in [&["gate"][..], &["gate", "--full"], &["verify"], &["pull"], &["pull", "--dry-run"], &["status"]] {
        let out = site.world.args([verb[0], "org/model"].iter().chain(&verb[1..])).run().expect_code(0);
        assert!(out.all().contains(named), "{verb:?}: {out}");
    }
    let out = site.run(&["list"]).expect_code(0);
    assert!(out.stdout.contains("2 files changed here on purpose"), "{out}");
    let edits = site.gate_json()["local_edits"].clone();
    let edit = &edits[0];
    assert_eq!(edit["path"], CONFIG);
    assert_eq!(edit["sha256"], sha256_hex(EDITED));
    assert_ne!(edit["sha256"], published);
    assert_eq!(edit["size"], EDITED.len());
    assert_eq!((&edit["reason"], &edit["user"]), (&REASON.into(), &"alice".into()));
    assert!(edit["uid"].is_u64() && edit["host"].is_string() && edit["at"].is_string());
    let verify = site.run(&["verify", "org/model", "--json"]).expect_code(0).json();
    assert_valid(VERIFY_SCHEMA, &verify);
    let status = site.run(&["status", "--json"]).expect_code(0).json();
    assert_valid(STATUS_SCHEMA, &status);
    let pull = site.run(&["pull", "org/model", "--json"]).expect_code(0).json();
    for found in [&verify["local_edits"], &status["models"][0]["local_edits"], &pull["local_edits"]] {
        assert_eq!(found, &edits);
    }
    assert_eq!(site.record()["files"], edits);
    let history = site.run(&["history", "org/model", "--json"]).expect_code(0).json();
    assert_valid(HISTORY_SCHEMA, &history);
    let lines = history["entries"].as_array().unwrap().iter().filter(|entry| entry["phase"] == "accepted");
    let details: Vec<_> = lines.map(|entry| entry["detail"].as_str().unwrap()).collect();
    assert_eq!(details.len(), 2);
    assert!(details[0].contains(CONFIG) && details[0].contains("alice") && details[0].contains(REASON), "{details:?}");
}

#[test]
fn a_pinned_manifest_stays_the_published_one_and_the_edit_is_named() {
    let site = Site::new();
    let id = site.gate_json()["manifest_id"].as_str().unwrap().to_owned();
    site.write(CONFIG, EDITED);
    site.accept(&[CONFIG]).expect_code(0);
    let out = site.gate(&["--manifest-id", &id]).expect_code(0);
    assert!(out.stderr.contains("1 file changed here on purpose: config.json"), "{out}");
}

// class: wrong-bytes
#[test]
fn weights_are_accepted_only_when_that_is_insisted_on() {
    let site = Site::new();
    flip_byte(&site.path(SHARD), 20_000);
    let gate = site.gate(&[]).expect_code(11);
    assert!(!gate.all().contains("muster accept"), "nobody is led to accept damage: {gate}");
    let out = site.accept(&[CONFIG, SHARD]).expect_code(12);
    assert!(out.stderr.contains(SHARD) && out.stderr.contains("--force"), "{out}");
    assert!(!site.path(".muster/local.json").exists(), "all or nothing");
    site.gate(&[]).expect_code(11);
    site.accept(&[SHARD, "--force"]).expect_code(0);
    let out = site.gate(&["--full"]).expect_code(0);
    assert!(out.stderr.contains(&format!("on purpose: {SHARD}")), "{out}");
}

// class: gate, words
#[test]
fn accepted_weights_that_make_no_model_close_the_gate_and_the_hint_takes_them_back() {
    let site = Site::new();
    flip_byte(&site.path(SHARD), 7);
    site.accept(&[SHARD, "--force"]).expect_code(0);
    let out = site.gate(&[]).expect_code(12);
    assert!(out.stderr.contains(&format!("--undo {SHARD} brings the published file")), "{out}");
    assert!(!out.stderr.contains("every byte is as published"), "it is not: {out}");
    let out = site.gate(&["--structure", "warn"]).expect_code(0);
    assert!(out.stderr.contains(&format!("as accepted, {SHARD}: ")), "{out}");
}

#[test]
fn what_cannot_be_accepted_is_refused_with_a_way_out_and_nothing_changes() {
    let site = Site::new();
    fs::remove_file(site.path("generation_config.json")).unwrap();
    site.write("extra.py", "print()");
    let before = trace(&site.world.model("org/model"));
    for (files, code, word) in [
        (&["extra.py"][..], 2, "no file of the model's manifest"),
        (&["no/such.json"], 2, "no file of the model's manifest"),
        (&["../config.json"], 2, "../config.json"),
        (&[".muster/receipt.json"], 2, ".muster"),
        (&["generation_config.json"], 10, "missing file cannot be accepted"),
        (&["--undo", CONFIG], 2, "nothing to undo"),
    ] {
        let out = site.accept(files).expect_code(code);
        assert!(out.stderr.contains(word) && out.stderr.contains(files[files.len() - 1]), "{files:?}: {out}");
    }
    for reason in ["", " ", "two\nlines"] {
        site.world.args(["accept", "org/model", CONFIG, "--reason", reason]).run().expect_code(2);
    }
    let out = site.run(&["accept", "org/model", CONFIG]).expect_code(2);
    assert!(out.stderr.contains("--reason"), "{out}");
    site.run(&["accept", "none", CONFIG, "--reason", REASON]).expect_code(13);
    let after = trace(&site.world.model("org/model"));
    let ours = |(path, ..): &&(PathBuf, u64, i64, i64, u32)| path.is_file();
    assert!(before.iter().filter(ours).eq(after.iter().filter(ours)));
}

#[test]
fn a_file_with_the_published_bytes_needs_no_word_and_an_old_record_of_it_goes() {
    let site = Site::new();
    let published = site.read(CONFIG);
    let out = site.accept(&[CONFIG]).expect_code(0);
    assert!(out.stdout.contains("nothing to accept"), "{out}");
    let json = site.accept(&[CONFIG, "--json"]).expect_code(0).json();
    assert_valid(ACCEPT_SCHEMA, &json);
    assert_eq!((&json["unchanged"][0], &json["receipt"]), (&CONFIG.into(), &true.into()));
    assert!(!site.path(".muster/local.json").exists());
    site.write(CONFIG, EDITED);
    site.accept(&[CONFIG]).expect_code(0);
    fs::write(site.path(CONFIG), &published).unwrap();
    site.gate(&[]).expect_code(11);
    site.run(&["pull", "org/model"]).expect_code(11);
    site.accept(&[CONFIG]).expect_code(0);
    assert!(!site.path(".muster/local.json").exists());
    let out = site.gate(&[]).expect_code(0);
    assert!(!out.all().contains("on purpose"), "{out}");
    assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
}

// class: verify-cost
#[test]
fn harmless_changes_of_an_accepted_file_cost_one_hash_of_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let site = Site::accepted();
    fs::set_permissions(site.path(CONFIG), fs::Permissions::from_mode(0o600)).unwrap();
    let hashed = || {
        let json = site.run(&["gate", "org/model", "--json"]).expect_code(0).json();
        json["files"]["hashed"].as_u64().unwrap()
    };
    assert_eq!(hashed(), 1);
    std::thread::sleep(Duration::from_millis(30));
    hashed();
    assert_eq!(hashed(), 0, "it was remembered");
}

// class: wrong-bytes
#[test]
fn a_pull_brings_what_is_missing_and_keeps_what_was_accepted() {
    let site = Site::accepted();
    fs::remove_file(site.path(SHARD)).unwrap();
    let out = site.run(&["pull", "org/model"]).expect_code(0);
    assert!(out.stderr.contains("1 file changed here on purpose"), "{out}");
    assert_eq!(site.read(CONFIG), EDITED.as_bytes());
    assert!(site.hub.bytes_sent_for(SHARD) > 0 && site.hub.bytes_sent_for(CONFIG) == 0);
    assert!(site.quarantined().is_empty());
    site.gate(&["--full"]).expect_code(0);
    // Without a receipt too.
    fs::remove_file(site.path(".muster/receipt.json")).unwrap();
    site.gate(&[]).expect_code(10);
    site.run(&["pull", "org/model"]).expect_code(0);
    site.gate(&[]).expect_code(0);
    assert_eq!(site.read(CONFIG), EDITED.as_bytes());
}

// class: verify-cost
#[test]
fn a_verify_before_the_acceptance_costs_another_and_no_more() {
    let site = Site::new();
    site.write(CONFIG, EDITED);
    site.run(&["verify", "org/model"]).expect_code(11);
    let out = site.accept(&[CONFIG]).expect_code(0);
    assert!(out.stderr.contains("hint:") && out.stderr.contains("muster verify org/model"), "{out}");
    site.gate(&[]).expect_code(10);
    site.run(&["verify", "org/model"]).expect_code(0);
    let out = site.gate(&[]).expect_code(0);
    assert!(out.stderr.contains("1 file changed here on purpose"), "{out}");
}

// class: wrong-bytes
#[test]
fn a_verify_that_sets_bad_files_aside_leaves_one_that_only_this_directory_has() {
    let site = Site::accepted();
    flip_byte(&site.path(CONFIG), 3);
    let out = site.run(&["verify", "org/model", "--quarantine"]).expect_code(11);
    assert!(out.stderr.contains(CONFIG) && site.quarantined().is_empty(), "{out}");
    assert!(site.path(CONFIG).exists());
}

#[test]
fn what_was_accepted_keeps_the_date_of_what_was_verified_before() {
    let site = Site::new();
    let date = |site: &Site| {
        let receipt: Value = serde_json::from_slice(&site.read(".muster/receipt.json")).unwrap();
        receipt["verified_at"].clone()
    };
    let before = date(&site);
    let records = receipt(&site.world.model("org/model"));
    site.write(CONFIG, EDITED);
    site.accept(&[CONFIG]).expect_code(0);
    assert_eq!(date(&site), before);
    let after = receipt(&site.world.model("org/model"));
    assert!(records.iter().filter(|(path, _)| *path != CONFIG).all(|(path, record)| after[path] == *record));
}

// class: wrong-bytes
#[test]
fn an_undo_sets_the_edit_aside_and_fetches_the_published_file_alone() {
    let site = Site::accepted();
    let out = site.undo(&[CONFIG, "--json"]).expect_code(0);
    assert_valid(ACCEPT_SCHEMA, &out.json());
    assert!(out.stderr.contains("set aside") && out.json()["set_aside"][0]["file"] == CONFIG, "{out}");
    assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
    assert!(!site.path(".muster/local.json").exists());
    let kept = site.quarantined();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let kept = site.world.volume().join(".muster/quarantine").join(&kept[0]);
    assert_eq!(fs::read_to_string(kept).unwrap(), EDITED);
    let published = site.hub.repo("org/model").get(CONFIG).size();
    assert_eq!(site.hub.total_body_bytes(), published);
    let out = site.gate(&[]).expect_code(0);
    assert!(!out.all().contains("on purpose"), "{out}");
    let history = site.run(&["history", "org/model"]).expect_code(0);
    assert!(history.stdout.contains("undone") && history.stdout.contains(CONFIG), "{history}");
}

#[test]
fn an_undo_of_one_edit_leaves_the_other() {
    let site = Site::new();
    site.write(CONFIG, EDITED);
    site.write("generation_config.json", "{}");
    site.accept(&[CONFIG, "generation_config.json"]).expect_code(0);
    site.undo(&[CONFIG]).expect_code(0);
    let out = site.gate(&[]).expect_code(0);
    assert!(out.stderr.contains("1 file changed here on purpose: generation_config.json"), "{out}");
    // A deleted one comes back like a changed one.
    fs::remove_file(site.path("generation_config.json")).unwrap();
    let out = site.gate(&[]).expect_code(10);
    assert!(out.all().contains("accept org/model --undo generation_config.json"), "{out}");
    site.run(&["pull", "org/model"]).expect_code(10);
    site.undo(&["generation_config.json"]).expect_code(0);
    assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
}

#[test]
fn an_undo_of_what_has_the_published_bytes_again_needs_no_network() {
    let site = Site::new();
    let published = site.read(CONFIG);
    site.write(CONFIG, EDITED);
    site.accept(&[CONFIG]).expect_code(0);
    fs::write(site.path(CONFIG), published).unwrap();
    site.undo(&[CONFIG]).expect_code(0);
    assert!(site.hub.requests().is_empty() && site.quarantined().is_empty());
    site.gate(&[]).expect_code(0);
}

// class: network
#[test]
fn an_undo_without_a_network_closes_the_gate_and_says_what_brings_the_file() {
    let site = Site::accepted();
    let out = site.world.args(["accept", "org/model", "--undo", CONFIG]).env("HF_HUB_OFFLINE", "1").run();
    assert_ne!(out.code, Some(0), "{out}");
    assert!(out.stderr.contains("muster pull org/model") && out.stderr.contains("hint:"), "{out}");
    assert_eq!(site.quarantined().len(), 1);
    site.gate(&[]).expect_code(10);
    site.run(&["pull", "org/model"]).expect_code(0);
    assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
    site.gate(&[]).expect_code(0);
}

// class: writers
#[test]
fn a_model_in_use_keeps_its_edit_unless_that_is_insisted_on() {
    let site = Site::accepted();
    let mut gate = site.world.args(["gate", "org/model", "--hold"]).spawn();
    gate.wait_for_text("open: ", SOON);
    let out = site.undo(&[CONFIG]).expect_code(15);
    assert!(out.stderr.contains("in use"), "{out}");
    assert_eq!(site.read(CONFIG), EDITED.as_bytes());
    // What a launcher reads may be accepted: nothing in the directory moves.
    site.write("generation_config.json", "{}");
    site.accept(&["generation_config.json"]).expect_code(0);
    site.undo(&[CONFIG, "--force"]).expect_code(0);
    assert_eq!(sha256_hex(site.read(CONFIG)), site.hub.repo("org/model").get(CONFIG).sha256());
    gate.terminate();
    gate.wait(SOON);
    site.gate(&[]).expect_code(0);
}

// class: revision
#[test]
fn an_update_that_leaves_the_published_file_alone_keeps_the_edit() {
    let site = Site::accepted();
    let new = site.hub.push("org/model", "main", |repo| repo.lfs(SHARD, Content::generated(77, 65536)));
    let out = site.run(&["pull", "org/model"]).expect_code(0);
    assert!(out.stderr.contains("1 file changed here on purpose: config.json"), "{out}");
    assert_eq!(site.read(CONFIG), EDITED.as_bytes());
    assert_eq!(site.hub.bytes_sent_for(CONFIG), 0);
    let out = site.gate(&["--revision", &new]).expect_code(0);
    assert!(out.stderr.contains("on purpose: config.json"), "{out}");
    site.gate(&["--full"]).expect_code(0);
}

// class: revision
#[test]
fn an_update_that_changes_the_same_file_stops_with_12_and_shows_both() {
    for goes in [false, true] {
        let site = Site::accepted();
        let old = site.hub.commit("org/model", "main");
        let was = site.record()["files"][0]["published"]["digest"].as_str().unwrap().to_owned();
        site.hub.push("org/model", "main", |repo| {
            let repo = repo.lfs(SHARD, Content::generated(77, 65536));
            if goes { repo.without(CONFIG) } else { repo.plain(CONFIG, "{\"new\": 1}") }
        });
        let now = if goes { "gone".to_owned() } else { site.hub.repo("org/model").get(CONFIG).oid() };
        let before = trace(&site.world.model("org/model"));
        let out = site.run(&["pull", "org/model"]).expect_code(12);
        for part in [
            CONFIG,
            REASON,
            &was,
            &now,
            &sha256_hex(EDITED),
            "muster accept org/model --undo config.json",
            "--no-update",
        ] {
            assert!(out.stderr.contains(part), "{part}: {out}");
        }
        assert_eq!(trace(&site.world.model("org/model")), before, "nothing was touched");
        assert_eq!(site.hub.bytes_sent_for(SHARD), 0, "and nothing fetched");
        site.gate(&["--revision", &old]).expect_code(0);
        site.run(&["pull", "org/model", "--no-update"]).expect_code(0);
        if goes {
            continue;
        }
        site.undo(&[CONFIG]).expect_code(0);
        site.gate(&["--revision", &old]).expect_code(0);
        site.run(&["pull", "org/model"]).expect_code(0);
        assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
        site.write(CONFIG, EDITED);
        site.accept(&[CONFIG]).expect_code(0);
        site.gate(&[]).expect_code(0);
    }
}

#[test]
fn a_daemon_accepts_undoes_and_refuses_for_its_callers() {
    let site = Site::new();
    let owner = Owner::start(&site.world);
    site.write(CONFIG, EDITED);
    site.accept(&[CONFIG]).expect_code(0);
    site.gate(&[]).expect_code(0);
    let edits = owner.api.model("org/model")["local_edits"].clone();
    assert_eq!((&edits[0]["path"], &edits[0]["user"]), (&CONFIG.into(), &"alice".into()));
    assert_eq!(edits[0]["uid"], rustix::process::getuid().as_raw(), "by the kernel's word");
    let out = site.run(&["status"]).expect_code(0);
    assert!(out.stdout.contains("1 file changed here on purpose: config.json"), "{out}");
    site.hub.push("org/model", "main", |repo| repo.plain(CONFIG, "{\"new\": 1}"));
    let out = site.run(&["pull", "org/model"]).expect_code(12);
    assert!(out.stderr.contains(REASON), "{out}");
    site.accept(&["no/such.json"]).expect_code(2);
    site.accept(&[SHARD]).expect_code(12);
    site.undo(&[CONFIG]).expect_code(0);
    assert!(owner.api.model("org/model")["local_edits"].is_null());
    let out = site.gate(&[]).expect_code(0);
    assert!(!out.all().contains("on purpose"), "{out}");
    for (body, status) in [("{}", 400), ("{\"paths\": [\"../x\"], \"reason\": \"x\"}", 400)] {
        assert_eq!(owner.api.post("/v1/models/org%2Fmodel/accept", body).0, status, "{body}");
    }
    let history = site.run(&["history", "org/model"]).expect_code(0);
    assert!(history.stdout.contains("accepted") && history.stdout.contains("undone"), "{history}");
}

// class: writers
#[test]
fn nobody_accepts_on_a_volume_that_another_host_owns() {
    let site = Site::accepted();
    own_elsewhere(site.world.volume(), 4242, "node-17");
    for args in [&["accept", "org/model", CONFIG, "--reason", REASON][..], &["accept", "org/model", "--undo", CONFIG]] {
        let out = site.run(args).expect_code(15);
        assert!(out.stderr.contains("4242 on node-17"), "{out}");
    }
    site.gate(&[]).expect_code(0);
}

// class: gate
#[test]
fn a_record_that_cannot_be_understood_keeps_the_gate_closed_and_nothing_is_touched() {
    let newer = r#"{"schema": 2, "files": []}"#;
    for garbled in ["", "{", newer, r#"{"schema": 1, "files": [{"path": "config.json"}]}"#] {
        let site = Site::accepted();
        site.write(".muster/local.json", garbled);
        let out = site.gate(&[]).expect_code(18);
        assert!(out.all().contains("on purpose"), "{out}");
        site.run(&["verify", "org/model"]).expect_code(18);
        site.run(&["pull", "org/model"]).expect_code(18);
        site.accept(&[CONFIG]).expect_code(18);
        assert_eq!(site.read(CONFIG), EDITED.as_bytes());
        assert!(site.quarantined().is_empty());
        site.run(&["status"]).expect_code(0);
    }
}

// class: gate
#[test]
fn a_receipt_of_an_edited_directory_proves_nothing_without_the_record() {
    let site = Site::accepted();
    // As a program that knows of no edits sees it.
    fs::remove_file(site.path(".muster/local.json")).unwrap();
    site.gate(&[]).expect_code(10);
    site.run(&["pull", "org/model"]).expect_code(0);
    assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
    let retired = listing(&site.path(".muster/retired"));
    assert!(retired.iter().any(|name| name.ends_with(CONFIG)), "the edit is kept: {retired:?}");
}

// class: gate
#[test]
fn a_record_that_was_changed_by_hand_opens_nothing() {
    let site = Site::accepted();
    flip_byte(&site.path(CONFIG), 3);
    let mut record = site.record();
    record["files"][0]["sha256"] = sha256_hex(site.read(CONFIG)).into();
    site.write(".muster/local.json", &record.to_string());
    site.gate(&[]).expect_code(10);
}

// class: gate
#[test]
fn an_edit_over_another_published_file_than_the_manifests_is_told() {
    let site = Site::accepted();
    let mut record = site.record();
    record["files"][0]["published"]["digest"] = format!("git-sha1:{}", "ab".repeat(20)).into();
    site.write(".muster/local.json", &record.to_string());
    let out = site.gate(&[]).expect_code(12);
    assert!(out.all().contains("accept org/model --undo config.json"), "{out}");
    site.run(&["pull", "org/model"]).expect_code(12);
    assert_eq!(site.read(CONFIG), EDITED.as_bytes());
    site.accept(&[CONFIG]).expect_code(0);
    site.gate(&[]).expect_code(0);
    site.write(".muster/local.json", &record.to_string());
    site.gate(&[]).expect_code(12);
    site.undo(&[CONFIG]).expect_code(0);
    assert_complete(&site.world.model("org/model"), &site.hub.repo("org/model"));
    site.gate(&[]).expect_code(0);
}

// class: gate
#[test]
fn a_copy_of_the_directory_brings_its_edits_along() {
    let site = Site::accepted();
    let copy = site.world.home().join("elsewhere/kimi");
    fs::create_dir_all(copy.parent().unwrap()).unwrap();
    let done = site.world.program("cp", ["-a"]).arg(site.world.model("org/model")).arg(&copy).run();
    done.expect_code(0);
    let ask = || site.world.args(["gate"]).arg(&copy).run();
    let out = ask().expect_code(0);
    assert!(out.stdout.contains("1 file changed here on purpose: config.json"), "{out}");
    // Nobody owns it there, and nobody has to.
    fs::write(copy.join("generation_config.json"), "{}").unwrap();
    ask().expect_code(11);
    let out = site.world.args(["accept"]).arg(&copy).args(["generation_config.json", "--reason", REASON]).run();
    out.expect_code(0);
    let out = ask().expect_code(0);
    assert!(out.stdout.contains("2 files changed here on purpose"), "{out}");
    assert!(!copy.parent().unwrap().join(".muster").exists());
    // The way back needs a pull, for which the folder above is the volume.
    let world = site.world.clone().without_env("MUSTER_VOLUME");
    let out = world.args(["accept"]).arg(&copy).args(["--undo", CONFIG, "generation_config.json"]).run();
    out.expect_code(0);
    assert_complete(&copy, &site.hub.repo("org/model"));
    ask().expect_code(0);
}

// class: wrong-bytes
#[test]
fn a_mirror_serves_what_was_published_and_nothing_else() {
    let site = Site::accepted();
    let mut mirror = site.world.args(["mirror", "--listen", "127.0.0.1:0"]).env("MUSTER_LOG", "info").spawn();
    mirror.wait_for_text("http://127.0.0.1:", SOON);
    let said = format!("{}{}", mirror.stdout_so_far(), mirror.stderr_so_far());
    let address = said.split("http://").nth(1).unwrap().split(|c: char| c.is_whitespace() || c == '/').next().unwrap();
    let other = Muster::new(site.world.home().join("other")).env("HF_ENDPOINT", format!("http://{address}"));
    fs::create_dir(other.volume()).unwrap();
    let out = other.args(["pull", "org/model"]).run().expect_code(17);
    assert!(!other.volume().join("org/model/config.json").exists(), "{out}");
    mirror.wait_for_text("changed here on purpose", SOON);
    mirror.terminate();
    mirror.wait(SOON);
}

// class: progress-lost, gate
#[test]
fn a_kill_at_any_step_leaves_a_closed_gate_or_one_of_the_two_states() {
    // At most so many steps are tried; both verbs have fewer.
    const STEPS_MAX: u64 = 80;
    for undo in [false, true] {
        let site = if undo { Site::accepted() } else { Site::new() };
        site.write(CONFIG, EDITED);
        let fs = match FaultFs::over(site.world.volume()) {
            Ok(fs) => fs,
            Err(why) => return skip(&why),
        };
        fs.be_quick();
        let mut ended = false;
        for step in (1..=STEPS_MAX).step_by(if undo { 2 } else { 1 }) {
            let rule = fs.when(At::change().path("org/model").nth(step), Act::Kill);
            let out = if undo { site.undo(&[CONFIG]) } else { site.accept(&[CONFIG]) };
            let met = fs.met(rule).is_some();
            fs.lift_all();
            assert!(met || out.code == Some(0), "{out}");
            let closed = site.gate(&["--no-remember"]);
            let (bytes, published) = (fs::read(site.path(CONFIG)), site.hub.repo("org/model"));
            match closed.code {
                Some(0) => {
                    let sha256 = sha256_hex(bytes.unwrap());
                    let is_edit = sha256 == sha256_hex(EDITED);
                    assert!(is_edit || sha256 == published.get(CONFIG).sha256());
                    assert_eq!(is_edit, closed.stderr.contains("on purpose"), "{closed}");
                }
                Some(10 | 11) => {}
                _ => panic!("step {step}: {closed}"),
            }
            if !met {
                ended = true;
                break;
            }
            // Whatever was left, a pull completes it, and either state can be brought about again.
            site.run(&["pull", "org/model"]).expect_code(0);
            site.gate(&["--no-remember"]).expect_code(0);
            if site.path(".muster/local.json").exists() && !undo {
                site.undo(&[CONFIG]).expect_code(0);
            }
            site.write(CONFIG, EDITED);
            if undo {
                site.accept(&[CONFIG]).expect_code(0);
                site.gate(&["--no-remember"]).expect_code(0);
            }
        }
        assert!(ended, "more steps than were tried");
    }
}
