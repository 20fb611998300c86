//! What a pull promises whoever starts it: figures before, a process that ends, secrets kept,
//! and no write once the volume is another's.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::time::Duration;

use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Of the bytes that a held hub lets go, so many at most are of its API.
const SLACK: u64 = 128 << 10;
const TOKEN: &str = "hf_aSecretThatNobodyMaySee";

fn repo() -> RepoSpec {
    RepoSpec::kimi(4, MIB, 6).named("org/model")
}

// class: bounds, words
#[test]
fn a_dry_run_tells_the_figures_and_writes_nothing() {
    let repo = RepoSpec::kimi(119, 8192, 21);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let args = ["pull", "nvidia/Kimi-K2.5-NVFP4", "--to", "kimi-k2.5-nvfp4", "--dry-run"];
    let out = world.args(args).run().expect_code(0);
    let line = out.stdout.trim();
    let commit = hub.commit(&repo.id, "main");
    assert!(line.starts_with("140 files, 119 shards, 1.4 MB to fetch, 0 B present; free "), "{line}");
    assert!(line.contains(" after reserve; about 300 Hub requests; "), "{line}");
    assert!(line.ends_with(&format!("; commit {commit}; main")), "{line}");
    assert!(listing(world.volume()).is_empty(), "{:?}", listing(world.volume()));
    assert_eq!(hub.total_body_bytes(), 0);

    let json = world.args(args).arg("--json").run().expect_code(0).json();
    assert_eq!((&json["files"], &json["shards"]), (&140.into(), &119.into()));
    assert_eq!(json["bytes"]["to_fetch"], repo.total_bytes());
    assert_eq!(json["commit"], commit);
    assert!(json["space"]["free"].is_u64() && json["requests"].is_u64());
    assert!(listing(world.volume()).is_empty());
}

// class: words
#[test]
fn a_dry_run_counts_what_is_there() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    hub.hold_after(repo.total_bytes() / 2);
    let mut child = world.args(["pull", "org/model"]).spawn();
    world.wait_for_received("org/model", repo.total_bytes() / 2 - SLACK, SOON);
    child.interrupt();
    child.wait(SOON).expect_code(130);
    hub.cut(Origin::Cdn);
    hub.release();
    let before = listing(world.volume());
    let json = world.args(["pull", "org/model", "--dry-run", "--json"]).run().expect_code(0).json();
    let present = json["bytes"]["present"].as_u64().unwrap();
    assert!(present > repo.total_bytes() / 4 && present < repo.total_bytes() * 3 / 4, "{json}");
    assert_eq!(listing(world.volume()), before);
    world.args(["pull", "org/model"]).run().expect_code(0);
    let out = world.args(["pull", "org/model", "--dry-run"]).run().expect_code(0);
    assert!(out.stdout.contains("0 B to fetch"), "{out}");
}

// class: words
#[test]
fn a_detached_pull_says_where_it_is_and_ends_by_itself() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    hub.pace(4 * MIB);
    let world = Muster::on(&hub);
    let out = world.args(["pull", "org/model", "--detach"]).run().expect_code(0);
    let line = out.stdout.trim();
    assert!(line.starts_with("started in the background (pid "), "{line}");
    let follow = format!("); follow: muster status --watch --volume {}", world.volume().display());
    assert!(line.ends_with(&follow), "{line}");
    let log = line.split_once(", log ").unwrap().1.split_once(')').unwrap().0;
    wait_until("the background pull ends", SOON, || world.processes().is_empty());
    assert_complete(&world.model("org/model"), &repo);
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("complete:"), "{said}");
}

#[test]
fn a_detached_pull_that_cannot_start_says_why() {
    let hub = Hub::with([repo(), RepoSpec::new("org/other").plain("config.json", "{}")]);
    let world = Muster::on(&hub);
    world.args(["pull", "org/other"]).run().expect_code(0);
    own_elsewhere(world.volume(), 4242, "node-17");
    let out = world.args(["pull", "org/model", "--detach", "--no-wait"]).run().expect_code(15);
    assert!(out.stderr.contains("process 4242 on node-17"), "{out}");
    wait_until("nothing runs", SOON, || world.processes().is_empty());
}

// class: credentials
#[test]
fn a_token_goes_to_its_endpoint_and_into_no_word_and_no_file() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    hub.require_token(TOKEN);
    let world = Muster::on(&hub).env("HF_TOKEN", TOKEN);
    let out = world.args(["pull", "org/model", "--log", "trace"]).run().expect_code(0);
    assert!(!out.all().contains(TOKEN), "{out}");
    assert!(!out.all().contains("Signature="), "signed URLs are secrets too: {out}");
    assert!(hub.authorization_seen_by_cdn().is_empty());
    assert_complete(&world.model("org/model"), &repo);
    for name in listing(world.home()).iter().filter(|name| !name.ends_with('/')) {
        let bytes = std::fs::read(world.home().join(name)).unwrap();
        assert!(!bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()), "{name} has the token");
    }
}

// class: writers
#[test]
fn a_pull_whose_volume_was_taken_writes_no_more_and_says_so() {
    let repo = (1..5)
        .fold(RepoSpec::new("org/model"), |repo, at| repo.lfs(&format!("{at}.bin"), Content::generated(at, 2 * MIB)));
    let hub = Hub::start(repo);
    let world = Muster::on(&hub);
    // Too little for any of them, so that no name is under way when the volume is taken.
    hub.hold_after(MIB);
    let child = world.args(["pull", "org/model"]).spawn();
    hub.wait_for_bytes(MIB - SLACK, SOON);
    let owners = world.volume().join(".muster/owners");
    let epoch: u64 = listing(&owners).iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).max().unwrap();
    std::fs::write(owners.join(format!("{}.json", epoch + 1)), b"{}").unwrap();
    hub.release();
    let out = child.wait(SOON).expect_code(15);
    let named: Vec<_> =
        listing(&world.model("org/model")).into_iter().filter(|name| !name.starts_with(".muster")).collect();
    assert!(named.is_empty(), "no file gets its name any more: {named:?}");
    assert!(out.stderr.contains("another process"), "{out}");
    assert!(!world.model("org/model").join(".muster/receipt.json").exists());
}

// class: words
#[test]
fn the_directory_alone_is_the_result() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let out = world.args(["pull", "org/model", "--quiet"]).run().expect_code(0);
    assert_eq!(out.stdout, format!("{}\n", world.model("org/model").display()));
    assert_eq!(out.stderr, "");
    let json = world.args(["pull", "org/model", "--json"]).run().expect_code(0).json();
    assert_eq!(json["directory"], world.model("org/model").display().to_string());
    assert_eq!(json["bytes"], repo.total_bytes());
    assert_eq!(json["commit"], hub.commit("org/model", "main"));
}

// class: gate, wrong-bytes
#[test]
fn a_file_that_changed_before_the_receipt_is_written_is_on_no_receipt() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    hub.hold_after(repo.total_bytes() / 2);
    let child = world.args(["pull", "org/model", "--connections", "1"]).spawn();
    let shards: Vec<_> = repo.files().filter(|file| file.path.ends_with(".safetensors")).collect();
    // One that the owner counts as verified: its identity has been read.
    let verified = || {
        let status = std::fs::read(world.volume().join(".muster/status.json")).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        status["models"][0]["shards"]["verified"].as_u64().unwrap_or_default()
    };
    let in_place =
        || shards.iter().map(|file| directory.join(&file.path)).filter(|path| path.exists()).collect::<Vec<_>>();
    wait_until("what has its name is counted", SOON, || verified() > 0 && verified() == in_place().len() as u64);
    let changed = in_place().remove(0);
    flip_byte(&changed, 1000);
    hub.release();
    let out = child.wait(SOON).expect_code(18);
    let name = changed.file_name().unwrap().to_str().unwrap();
    assert!(out.stderr.contains(&format!("{name} changed after it was verified")), "{out}");
    assert!(!directory.join(".muster/receipt.json").exists());
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&directory, &repo);
}

/// Makes the last owner one of an earlier boot.
fn boot_again(world: &Muster) {
    let owners = world.volume().join(".muster/owners");
    let epoch: u64 = listing(&owners).iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).max().unwrap();
    let path = owners.join(format!("{epoch}.json"));
    let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["boot_id"] = "00000000-0000-4000-8000-000000000000".into();
    std::fs::write(&path, record.to_string()).unwrap();
}

// class: progress-lost
#[test]
fn what_a_stopped_pull_received_counts_even_after_another_boot() {
    let repo = RepoSpec::kimi(3, 4 * MIB, 7).named("org/model");
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    hub.hold_after(repo.total_bytes() / 2);
    let mut child = world.args(["pull", "org/model"]).spawn();
    world.wait_for_received("org/model", repo.total_bytes() / 2 - SLACK, SOON);
    child.interrupt();
    child.wait(SOON).expect_code(130);
    hub.cut(Origin::Cdn);
    hub.release();
    boot_again(&world);
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    let sent = hub.total_body_bytes();
    assert!(sent <= repo.total_bytes() + MIB, "{sent} of {} bytes", repo.total_bytes());
}

// class: store
#[test]
fn a_daemon_that_lost_its_store_knows_every_model_from_its_directory() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["pull", "org/model", "--to", "kimi"]).run().expect_code(0);
    std::fs::remove_dir_all(world.volume().join(".muster/state")).unwrap();
    let sent = hub.total_body_bytes();
    let owner = Owner::start(&world);
    assert_eq!(owner.api.state("kimi"), "ready");
    let report = world.args(["status", "--json"]).run().expect_code(0).json();
    assert_eq!(report["models"][0]["repo"], "org/model");
    world.args(["gate", "kimi"]).run().expect_code(0);
    assert_eq!(hub.total_body_bytes(), sent);
}

// class: words
#[test]
fn a_failure_names_the_file_the_range_the_host_and_what_to_do() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    let file = &*repo.files().find(|file| file.path.ends_with(".safetensors")).unwrap().path;
    hub.always(Match::cdn(file), Behaviour::status(404));
    let world = Muster::on(&hub);
    let out = world.args(["pull", "org/model"]).run().expect_code(17);
    let host = hub.address(Origin::Cdn).to_string();
    for told in [file, "bytes 0..", &host, "status 404", "hint:"] {
        assert!(out.stderr.contains(told), "no {told:?}: {out}");
    }
}
