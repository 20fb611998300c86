//! `muster status`, `list` and `daemon` on a volume, alive and dead.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::time::Duration;

use serde_json::Value;
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(30);

fn kimi() -> RepoSpec {
    RepoSpec::kimi(6, MIB, 4).named("org/kimi")
}

/// Checks a value against a schema as `muster schema` prints it.
#[track_caller]
fn assert_as_schema(world: &Muster, schema: &str, value: &Value) {
    assert_valid(&world.args(["schema", schema]).run().expect_code(0).stdout, value);
}

#[track_caller]
fn status(world: &Muster) -> Value {
    let report = world.args(["status", "--json"]).run().expect_code(0).json();
    assert_as_schema(world, "status", &report);
    report
}

// class: words, progress-lost
#[test]
fn status_is_valid_before_during_after_and_with_the_daemon_killed() {
    let hub = Hub::start(kimi());
    hub.hold_after(2 * MIB);
    let world = Muster::on(&hub);
    let before = status(&world);
    assert_eq!((&before["daemon"]["running"], &before["models"]), (&Value::from(false), &serde_json::json!([])));
    assert_eq!(std::fs::read_dir(world.volume()).unwrap().count(), 0, "looking makes nothing");

    let mut owner = Owner::start(&world);
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    wait_until("it fetches", SOON, || owner.api.model("kimi")["bytes"]["received"].as_u64() > Some(MIB));
    let during = status(&world);
    assert_eq!(during["daemon"]["running"], true);
    assert_eq!(during["daemon"]["pid"], owner.process.id());
    assert_eq!(during["models"][0]["state"], "fetching");
    assert!(during["models"][0]["connections"].as_u64() >= Some(1), "{during}");
    let out = world.args(["status", "kimi"]).run().expect_code(0);
    assert!(out.stdout.starts_with("kimi  fetching  "), "{out}");
    assert!(out.stdout.contains("/6 shards") && out.stdout.contains("last byte"), "{out}");

    let file = world.volume().join(".muster/status.json");
    wait_until("the file says so", SOON, || {
        let written: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        written["models"][0]["bytes"]["received"].as_u64() > Some(MIB)
    });
    owner.process.kill();
    wait_until("it is gone", SOON, || !owner.process.is_running());
    let stamp = trace(world.volume());
    let dead = status(&world);
    assert_eq!(dead["daemon"]["running"], false);
    let model = &dead["models"][0];
    assert_eq!((&model["rate_bytes_per_s"], &model["connections"]), (&Value::Null, &Value::from(0)), "{model}");
    assert_eq!(model["state"], "queued");
    assert!(model["bytes"]["total"].as_u64() > Some(6 * MIB), "{model}");
    let out = world.args(["status"]).run().expect_code(0);
    assert!(out.stdout.contains("no owner is running; last facts "), "{out}");
    assert_eq!(trace(world.volume()), stamp, "reading changed something");

    hub.release();
    let owner = Owner::start(&world);
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    let after = status(&world);
    assert_eq!(after["models"][0]["bytes"]["verified"], after["models"][0]["bytes"]["total"]);
    let out = world.args(["status"]).run().expect_code(0);
    let commit = &hub.commit("org/kimi", "main")[..12];
    assert!(
        out.stdout.contains("kimi  ready  6/6 shards") && out.stdout.contains(&format!("commit {commit}")),
        "{out}"
    );
    let out = world.args(["list"]).run().expect_code(0);
    assert!(out.stdout.starts_with("kimi  org/kimi@main  ready  "), "{out}");
}

// class: words, store
#[test]
fn without_the_socket_the_status_file_of_a_living_owner_tells() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    std::fs::remove_file(&owner.api.socket).unwrap();
    wait_until("the file says so", SOON, || {
        let report = status(&world);
        assert_eq!(report["daemon"]["running"], true, "{report}");
        report["models"][0]["state"] == "ready"
    });
    let out = world.args(["status"]).run().expect_code(0);
    assert!(out.stdout.contains(&format!("process {} on ", owner.process.id())), "{out}");
    let out = world.args(["pause", "kimi"]).run().expect_code(14);
    assert!(out.stderr.contains("cannot be reached"), "{out}");
}

// class: words
#[test]
fn a_stopped_owner_is_told_from_a_killed_one_by_nobody_and_both_are_dead() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let mut owner = Owner::start(&world);
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    let report = status(&world);
    assert_eq!(report["daemon"]["running"], false);
    assert_eq!(report["models"][0]["state"], "ready");
    // A directory alone is enough.
    std::fs::remove_dir_all(world.volume().join(".muster")).unwrap();
    let report = status(&world);
    assert_eq!(report["models"][0]["state"], "ready");
    assert_eq!(report["daemon"]["age_s"], Value::Null);
    let out = world.args(["status"]).run().expect_code(0);
    assert!(out.stdout.contains("no owner is running; facts from the directories"), "{out}");
    // A file that is gone is seen without a database.
    std::fs::remove_file(world.model("kimi").join("config.json")).unwrap();
    assert_eq!(status(&world)["models"][0]["state"], "damaged");
}

#[test]
fn what_is_not_there_ends_with_13_and_says_where_was_looked() {
    let world = Muster::new("/no/such/volume");
    for line in [vec!["status"], vec!["list"], vec!["history", "x"], vec!["pause", "x"], vec!["remove", "x"]] {
        let out = world.args(&line).run().expect_code(13);
        assert!(out.stderr.contains("/no/such/volume (from MUSTER_VOLUME)"), "{line:?}: {out}");
    }
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let out = world.args(["status", "none"]).run().expect_code(13);
    assert!(out.stderr.contains("(from MUSTER_VOLUME)"), "{out}");
}

// class: words
#[test]
fn a_failed_job_shows_its_error_and_what_to_do() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    owner.api.submit(&hub, "org/nothing-there", "x", None);
    wait_until("it fails", SOON, || owner.api.state("x") == "failed");
    let report = status(&world);
    assert!(report["models"][0]["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
    let out = world.args(["status"]).run().expect_code(0);
    assert!(out.stdout.contains("x  failed") && out.stdout.contains("\n  error: "), "{out}");
}

// class: words
#[test]
fn a_watcher_sees_each_change_as_a_line_of_json() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    let mut json = world.args(["status", "--watch", "--json"]).spawn();
    let mut text = world.args(["status", "--watch"]).spawn();
    json.wait_for_text("\"models\":[]", SOON);
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    json.wait_for_text("\"state\":\"ready\"", SOON);
    text.wait_for_text("kimi  ready", SOON);
    json.interrupt();
    text.terminate();
    let out = json.wait(SOON).expect_code(130);
    for line in out.stdout.lines() {
        assert_as_schema(&world, "status", &serde_json::from_str(line).unwrap());
    }
    text.wait(SOON).expect_code(143);
}

#[test]
fn events_histories_and_errors_keep_their_schemas() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    let mut events = owner.api.events();
    assert_as_schema(&world, "status", &events.next().unwrap().1);
    let (_, refusal) = owner.api.get("/v1/models/none");
    assert_as_schema(&world, "error", &refusal);
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    owner.api.submit(&hub, "org/none", "none", None);
    let mut ended = 0;
    while ended < 2 {
        let (_, event) = events.next().unwrap();
        assert_as_schema(&world, "event", &event);
        ended += usize::from(event["state"] == "ready" || event["state"] == "failed");
    }
    let history = world.args(["history", "kimi", "--json"]).run().expect_code(0).json();
    assert_as_schema(&world, "history", &history);
    assert_as_schema(&world, "history", &owner.api.get("/v1/models/none/history").1);
    assert_as_schema(&world, "error", &world.args(["status", "nope", "--json"]).run().expect_code(13).json());
}

// class: store, gate
#[test]
fn a_garbled_manifest_hides_no_other_model_and_stops_no_daemon() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    for name in ["a", "b"] {
        world.args(["pull", "org/kimi", "--to", name]).run().expect_code(0);
    }
    std::fs::write(world.model("a").join(".muster/manifest.json"), "{").unwrap();
    std::fs::remove_dir_all(world.volume().join(".muster")).unwrap();
    assert_eq!(status(&world)["models"][0]["id"], "b");
    let owner = Owner::start(&world);
    assert_eq!(owner.api.state("b"), "ready");
}

#[test]
fn a_daemon_reads_its_configuration_again_and_names_what_needs_a_restart() {
    let hub = Hub::start(kimi());
    let config = |world: &Muster, text: &str| std::fs::write(world.home().join("m.toml"), text).unwrap();
    let world = Muster::on(&hub);
    config(&world, "");
    let world = world.clone().env("MUSTER_CONFIG", world.home().join("m.toml"));
    let mut owner = Owner::start(&world);
    config(&world, "retire_after = \"2h\"\n[log]\nlevel = \"debug\"\n");
    owner.process.signal(rustix::process::Signal::HUP);
    owner.process.wait_for_text("retire_after", SOON);
    owner.api.get("/healthz");
    owner.process.wait_for_text("connected", SOON);
    config(&world, "retire = 1\n");
    owner.process.signal(rustix::process::Signal::HUP);
    owner.process.wait_for_text("unknown key `retire`", SOON);
    assert!(owner.process.is_running());
}

// class: words
#[test]
fn a_planted_status_file_cannot_steer_the_terminal() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    world.args(["pull", "org/kimi", "--to", "kimi"]).run().expect_code(0);
    let file = world.volume().join(".muster/status.json");
    let mut planted: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let steering = "\u{1b}[2Jgone\u{9b}2J\r";
    planted["daemon"]["host"] = steering.into();
    planted["models"][0]["state"] = "failed".into();
    planted["models"][0]["selection"] = steering.into();
    planted["models"][0]["error"] = serde_json::json!({"code": "internal", "message": steering, "hint": steering});
    std::fs::write(&file, planted.to_string()).unwrap();
    // With a receipt the directory itself would be believed.
    std::fs::remove_file(world.volume().join("kimi/.muster/receipt.json")).unwrap();
    for verb in [&["status"][..], &["status", "kimi"], &["list"]] {
        let out = world.args(verb).run().expect_code(0);
        let steers = |c: char| c.is_control() && c != '\n';
        assert!(!out.stdout.contains(steers) && !out.stderr.contains(steers), "{out:?}");
        assert!(verb[0] == "list" || out.stdout.contains("\\u{1b}[2Jgone"), "it was shown: {out:?}");
    }
}
