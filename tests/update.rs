//! One directory, one commit: how a directory moves to another commit, and what it refuses.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Of the bytes that a held hub lets go, so many at most are of its API.
const SLACK: u64 = 128 << 10;
const CHANGED: &str = "model-00002-of-000005.safetensors";
const GONE: &str = "model-00004-of-000005.safetensors";
const NEW: &str = "new folder/extra.bin";

/// Without its index, which would change with the shards.
fn old_repo() -> RepoSpec {
    RepoSpec::kimi(5, MIB, 6).named("org/model").without("model.safetensors.index.json")
}

/// One shard changes, one goes, one file in a folder comes, and a small one changes.
fn edited(repo: RepoSpec) -> RepoSpec {
    repo.lfs(CHANGED, Content::generated(77, MIB))
        .without(GONE)
        .lfs(NEW, Content::generated(78, 2 * MIB))
        .plain("config.json", "{\"changed\": true}\n")
}

const COMING: [&str; 3] = [CHANGED, NEW, "config.json"];

/// A complete model at the old commit, and a hub whose branch has moved on.
struct Moved {
    hub: Hub,
    world: Muster,
    old: String,
    new: String,
    repo: RepoSpec,
}

impl Moved {
    fn start() -> Self {
        let hub = Hub::start(old_repo());
        let world = Muster::on(&hub);
        world.args(["pull", "org/model"]).run().expect_code(0);
        let old = hub.commit("org/model", "main");
        let new = hub.push("org/model", "main", edited);
        hub.forget();
        let repo = hub.repo("org/model");
        Self { hub, world, old, new, repo }
    }

    fn pull(&self) -> Invocation {
        self.world.args(["pull", "org/model"])
    }

    fn directory(&self) -> PathBuf {
        self.world.model("org/model")
    }

    fn own(&self, name: &str) -> PathBuf {
        self.directory().join(".muster").join(name)
    }

    /// The gate is closed; how does not matter here.
    #[track_caller]
    fn assert_closed(&self) {
        let out = self.world.args(["gate", "org/model"]).run();
        assert!(out.code.is_some_and(|code| code != 0), "{out}");
    }

    /// The directory is at the new commit, complete, and what did not change was neither fetched
    /// nor hashed again.
    #[track_caller]
    fn assert_at_new(&self) {
        assert_complete(&self.directory(), &self.repo);
        assert!(!self.directory().join(GONE).exists());
        let retired = self.own("retired").join(&self.old);
        for file in [GONE, CHANGED, "config.json"] {
            let kept = fs::read(retired.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
            assert_eq!(sha256_hex(kept), old_repo().get(file).content.sha256(), "{file}");
        }
        let records = receipt(&self.directory());
        for file in self.repo.files().filter(|file| !COMING.contains(&file.path.as_str())) {
            assert_eq!(self.hub.bytes_sent_for(&file.path), 0, "{}", file.path);
            assert_eq!(records[&file.path]["proved"], "stream", "{} keeps its first proof", file.path);
        }
        self.world.args(["gate", "org/model", "--revision", &self.new]).run().expect_code(0);
    }

    /// Everything new is fetched, verified and waits beside the model; nothing has moved yet.
    fn staged() -> Self {
        let moved = Self::start();
        let lock = fs::File::open(moved.own("in-use")).unwrap();
        flock(&lock, FlockOperation::LockShared).unwrap();
        let out = moved.pull().run().expect_code(15);
        assert!(out.stderr.contains("in use"), "{out}");
        assert!(out.stderr.contains("hint:"), "{out}");
        moved.world.args(["gate", "org/model", "--revision", &moved.old]).run().expect_code(0);
        assert!(COMING.iter().all(|file| moved.hub.bytes_sent_for(file) > 0));
        moved.hub.forget();
        moved
    }

    /// What the swap does, by hand: closes the gate.
    fn set_receipt_aside(&self) {
        fs::rename(self.own("receipt.json"), self.own("receipt.previous.json")).unwrap();
    }

    fn promote(&self) {
        fs::rename(self.own("manifest.pending.json"), self.own("manifest.json")).unwrap();
    }

    fn retire(&self, file: &str) {
        let to = self.own("retired").join(&self.old).join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(self.directory().join(file), to).unwrap();
    }

    fn publish(&self, file: &str) {
        let to = self.directory().join(file);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::rename(partial_of(&self.directory(), file).unwrap(), to).unwrap();
    }
}

// class: revision
#[test]
fn a_branch_that_moved_brings_what_changed_and_retires_what_went() {
    let moved = Moved::start();
    let before = receipt(&moved.directory());
    let out = moved.pull().run().expect_code(0);
    assert!(out.stderr.contains(&moved.old) && out.stderr.contains(&moved.new), "{out}");
    moved.assert_at_new();
    let after = receipt(&moved.directory());
    let same = |file: &FileSpec| before[&file.path] == after[&file.path];
    assert!(moved.repo.files().filter(|file| !COMING.contains(&file.path.as_str())).all(same));
    let sent: u64 = COMING.iter().map(|file| moved.hub.bytes_sent_for(file)).sum();
    assert_eq!(moved.hub.total_body_bytes(), sent);
    moved.hub.forget();
    moved.pull().run().expect_code(0);
    assert_eq!(moved.hub.requests().len(), 1);
}

// class: revision
#[test]
fn no_update_stays_at_the_commit_on_the_volume() {
    let moved = Moved::start();
    moved.world.args(["pull", "org/model", "--no-update"]).run().expect_code(0);
    assert!(moved.hub.requests().is_empty());
    moved.world.args(["gate", "org/model", "--revision", &moved.old]).run().expect_code(0);
    assert!(moved.directory().join(GONE).exists());
}

// class: revision, progress-lost
#[test]
fn an_update_that_was_killed_while_fetching_goes_on_and_the_old_commit_serves_meanwhile() {
    let moved = Moved::start();
    moved.hub.hold_after(2 * MIB);
    let mut child = moved.pull().spawn();
    moved.hub.wait_for_bytes(2 * MIB - SLACK, SOON);
    child.kill();
    drop(child);
    moved.world.args(["gate", "org/model", "--revision", &moved.old]).run().expect_code(0);
    moved.hub.cut(Origin::Cdn);
    moved.hub.release();
    moved.pull().run().expect_code(0);
    moved.assert_at_new();
}

// class: revision
#[test]
fn a_branch_that_moves_again_makes_nothing_of_what_was_fetched_for_another_content() {
    let moved = Moved::staged();
    let newer = moved.hub.push("org/model", "main", |repo| repo.lfs(CHANGED, Content::generated(99, MIB)).without(NEW));
    moved.pull().run().expect_code(0);
    assert_complete(&moved.directory(), &moved.hub.repo("org/model"));
    moved.world.args(["gate", "org/model", "--revision", &newer]).run().expect_code(0);
    assert_eq!(moved.hub.total_body_bytes(), MIB, "only the shard that changed again");
    assert!(
        !moved.world.volume().join(".muster/quarantine").exists()
            || listing(&moved.world.volume().join(".muster/quarantine")).is_empty()
    );
}

// class: verify-cost
#[test]
fn files_whose_times_have_changed_are_hashed_again_and_leave_like_any_other() {
    let moved = Moved::start();
    for file in old_repo().files() {
        let file = fs::File::options().write(true).open(moved.directory().join(&file.path)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
    moved.pull().run().expect_code(0);
    assert_complete(&moved.directory(), &moved.repo);
    assert!(!moved.directory().join(GONE).exists());
    let retired = moved.own("retired").join(&moved.old).join(GONE);
    assert_eq!(sha256_hex(fs::read(retired).unwrap()), old_repo().get(GONE).content.sha256());
    let sent: u64 = COMING.iter().map(|file| moved.hub.bytes_sent_for(file)).sum();
    assert_eq!(moved.hub.total_body_bytes(), sent, "what did not change is not fetched");
}

// class: writers
#[test]
fn a_model_in_use_is_not_touched_and_is_swapped_later_without_fetching() {
    let moved = Moved::staged();
    assert!(moved.own("manifest.pending.json").exists());
    moved.pull().run().expect_code(0);
    assert_eq!(moved.hub.total_body_bytes(), 0);
    moved.assert_at_new();
}

// class: revision, gate
#[test]
fn a_swap_that_was_cut_at_any_step_is_completed_without_fetching_or_hashing_what_did_not_change() {
    for step in 1..=7 {
        let moved = Moved::staged();
        moved.set_receipt_aside();
        if step >= 2 {
            moved.promote();
        }
        for (at, file) in [(3, CHANGED), (4, "config.json"), (4, GONE)] {
            if step >= at {
                moved.retire(file);
            }
        }
        for (at, file) in [(5, CHANGED), (6, NEW), (7, "config.json")] {
            if step >= at {
                moved.publish(file);
            }
        }
        moved.assert_closed();
        moved.pull().run().expect_code(0);
        assert_eq!(moved.hub.total_body_bytes(), 0, "nothing is fetched again, step {step}");
        moved.assert_at_new();
    }
}

// class: revision, gate
#[test]
fn a_swap_that_is_killed_at_any_moment_never_opens_the_gate_on_a_mixture() {
    let moved = Moved::staged();
    for round in 0..40u64 {
        let mut child = moved.pull().spawn();
        std::thread::sleep(Duration::from_millis(20 + round * 12));
        let running = child.is_running();
        child.kill();
        drop(child);
        let gate = moved.world.args(["gate", "org/model", "--full", "--json"]).run();
        if gate.code == Some(0) {
            let commit = gate.json()["commit"].clone();
            let repo = if commit == moved.new.as_str() { moved.repo.clone() } else { old_repo() };
            for file in repo.files() {
                let bytes = fs::read(moved.directory().join(&file.path)).unwrap();
                assert_eq!(sha256_hex(bytes), file.content.sha256(), "{} in round {round}", file.path);
            }
        }
        if !running {
            break;
        }
    }
    moved.pull().run().expect_code(0);
    assert_eq!(moved.hub.total_body_bytes(), 0);
    moved.assert_at_new();
}

#[test]
fn an_interrupted_update_may_be_left_where_it_was() {
    let moved = Moved::staged();
    moved.set_receipt_aside();
    moved.assert_closed();
    moved.world.args(["pull", "org/model", "--no-update"]).run().expect_code(0);
    moved.world.args(["gate", "org/model", "--revision", &moved.old]).run().expect_code(0);
    assert_complete(&moved.directory(), &old_repo());
    assert_eq!(moved.hub.total_body_bytes(), 0);
}

#[test]
fn a_folder_may_become_a_file_and_a_file_a_folder() {
    let hub = Hub::start(RepoSpec::new("org/model").plain("a/deep/file", "1").plain("b", "2").plain("c", "3"));
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    hub.push("org/model", "main", |repo| repo.without("a/deep/file").plain("a", "4").without("b").plain("b/x/y", "5"));
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &hub.repo("org/model"));
}

// class: revision
#[test]
fn another_selection_or_repository_is_refused_without_a_trace() {
    let hub = Hub::with([old_repo(), RepoSpec::new("org/other").plain("config.json", "{}")]);
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    let before = listing(world.volume());
    let out = world.args(["pull", "org/model", "--include", "*.json"]).run().expect_code(2);
    assert!(out.stderr.contains("--reselect") && out.stderr.contains("--include *.json"), "{out}");
    let out = world.args(["pull", "org/other", "--to", "org/model"]).run().expect_code(2);
    assert!(out.stderr.contains("org/other") && out.stderr.contains("--to"), "{out}");
    assert_eq!(listing(world.volume()), before);

    let out = world.args(["pull", "org/model", "--include", "*.json", "--reselect"]).run().expect_code(0);
    assert!(!world.model("org/model").join(CHANGED).exists(), "{out}");
    assert!(world.model("org/model").join("config.json").exists());
    let gate = world.args(["gate", "org/model"]).run().expect_code(0);
    assert!(gate.all().contains("--include *.json"), "a part is called a part: {gate}");
}

// class: verify-cost
#[test]
fn a_pinned_complete_commit_needs_no_request() {
    let hub = Hub::start(old_repo());
    let world = Muster::on(&hub);
    let commit = hub.commit("org/model", "main");
    world.args(["pull", "org/model"]).run().expect_code(0);
    hub.push("org/model", "main", edited);
    hub.forget();
    world.args(["pull", "org/model", "--revision", &commit]).run().expect_code(0);
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
}

// class: gate
#[test]
fn a_hub_that_does_not_answer_is_no_proof_that_a_branch_stands_still() {
    let hub = Hub::start(old_repo());
    let world = Muster::on(&hub);
    let commit = hub.commit("org/model", "main");
    world.args(["pull", "org/model"]).run().expect_code(0);
    hub.unreachable(Origin::Hub);
    let out = world.args(["pull", "org/model"]).run();
    assert_eq!(out.code, Some(18), "{out}");
    assert!(out.stderr.contains(&format!("--revision {commit}")), "{out}");
    assert!(out.stderr.contains("HF_HUB_OFFLINE=1"), "{out}");
    world.args(["pull", "org/model", "--revision", &commit]).run().expect_code(0);
    world.args(["pull", "org/model"]).env("HF_HUB_OFFLINE", "1").run().expect_code(0);
}

// class: gate
#[test]
fn offline_is_complete_or_incomplete_and_asks_nobody() {
    let hub = Hub::start(old_repo());
    let world = Muster::on(&hub).env("HF_HUB_OFFLINE", "1");
    let out = world.args(["pull", "org/model"]).run().expect_code(10);
    assert!(out.stderr.contains("offline") && out.stderr.contains("HF_HUB_OFFLINE"), "{out}");
    assert_eq!(listing(world.volume()), Vec::<String>::new());
    world.args(["pull", "org/model"]).env("HF_HUB_OFFLINE", "0").run().expect_code(0);
    hub.forget();
    world.args(["pull", "org/model"]).run().expect_code(0);
    fs::remove_file(world.model("org/model").join(CHANGED)).unwrap();
    world.args(["pull", "org/model"]).run().expect_code(10);
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
}

// class: verify-cost
#[test]
fn one_flipped_byte_costs_one_file() {
    let hub = Hub::start(old_repo());
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    let directory = world.model("org/model");
    flip_byte(&directory.join(CHANGED), 5000);
    world.args(["gate", "org/model"]).run().expect_code(11);
    let before = receipt(&directory);
    hub.forget();
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&directory, &old_repo());
    assert_eq!(hub.total_body_bytes(), MIB);
    assert_eq!(hub.bytes_sent_for(CHANGED), MIB);
    let after = receipt(&directory);
    assert!(before.iter().all(|(path, record)| path == CHANGED || after[path] == *record));
    world.args(["gate", "org/model"]).run().expect_code(0);
}

// class: progress-lost
#[test]
fn a_manifest_or_receipt_that_cannot_be_read_is_replaced_without_fetching() {
    for name in ["manifest.json", "receipt.json"] {
        let hub = Hub::start(old_repo());
        let world = Muster::on(&hub);
        world.args(["pull", "org/model"]).run().expect_code(0);
        let directory = world.model("org/model");
        fs::write(own(&directory).join(name), b"{ half").unwrap();
        assert_ne!(world.args(["gate", "org/model"]).run().code, Some(0));
        hub.forget();
        world.args(["pull", "org/model"]).run().expect_code(0);
        assert_complete(&directory, &old_repo());
        assert_eq!(hub.total_body_bytes(), 0, "{name}");
        world.args(["gate", "org/model"]).run().expect_code(0);
    }
}

fn own(directory: &Path) -> PathBuf {
    directory.join(".muster")
}
