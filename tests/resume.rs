//! Stopping costs almost nothing (P4), and nothing that is found on disk is believed unproved (P1).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use muster::core::model_name::ModelName;
use muster::store::Store;
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Of the bytes that a held hub lets go, so many at most are of its API.
const SLACK: u64 = 128 << 10;

/// Eight shards and a few small files.
fn shards(count: usize, bytes: u64) -> RepoSpec {
    RepoSpec::kimi(count, bytes, 4).named("org/model")
}

fn pull(world: &Muster) -> Invocation {
    world.args(["pull", "org/model"])
}

/// Starts a pull, lets it have about half of the bytes, and kills it.
fn kill_at_half(hub: &Hub, world: &Muster, repo: &RepoSpec) {
    hub.hold_after(repo.total_bytes() / 2);
    let mut child = pull(world).spawn();
    hub.wait_for_bytes(repo.total_bytes() / 2 - SLACK, SOON);
    child.kill();
    drop(child);
    hub.cut(Origin::Cdn);
    hub.release();
}

/// Names of the repository's files that are in place.
fn in_place(directory: &Path, repo: &RepoSpec) -> Vec<String> {
    let there = repo.files().filter(|file| directory.join(&file.path).exists());
    there.map(|file| file.path.clone()).collect()
}

// class: progress-lost
#[test]
fn a_pull_that_was_killed_at_half_goes_on_and_finished_shards_are_not_fetched_again() {
    let repo = shards(12, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    kill_at_half(&hub, &world, &repo);
    let directory = world.model("org/model");
    let done = in_place(&directory, &repo);
    assert!(!directory.join(".muster/receipt.json").exists());
    world.args(["gate", "org/model"]).run().expect_code(10);
    let connections = hub.peak_connections(Origin::Cdn) as u64;
    let before: Vec<_> = done.iter().map(|file| hub.bytes_sent_for(file)).collect();
    pull(&world).run().expect_code(0);
    assert_complete(&directory, &repo);
    let after: Vec<_> = done.iter().map(|file| hub.bytes_sent_for(file)).collect();
    assert_eq!(before, after, "what was in place was not asked for again");
    let most = repo.total_bytes() * 11 / 10 + 8 * MIB * connections;
    assert!(hub.total_body_bytes() <= most, "{} bytes sent", hub.total_body_bytes());
    world.args(["gate", "org/model"]).run().expect_code(0);
}

/// How many files of the model a store has records of, by a copy of it: of what a kill would leave.
fn recorded(state: &Path) -> usize {
    let copy = tempfile::tempdir().unwrap();
    let mut folders = vec![state.to_owned()];
    while let Some(folder) = folders.pop() {
        for from in std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            let to = copy.path().join(from.strip_prefix(state).unwrap());
            if from.is_dir() {
                std::fs::create_dir_all(to).unwrap();
                folders.push(from);
                continue;
            }
            // The engine may have dropped it meanwhile; a copy of a moment in between is none, and set aside.
            let _ = std::fs::copy(from, to);
        }
    }
    let store = Store::open(copy.path(), "a test", jiff::Timestamp::UNIX_EPOCH).unwrap().store;
    store.files(&ModelName::parse("org/model").unwrap()).unwrap().len()
}

// class: progress-lost, verify-cost
#[test]
fn a_pull_that_is_killed_without_a_word_hashes_no_finished_shard_again() {
    let repo = shards(6, 16 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let (state, directory) = (world.volume().join(".muster/state"), world.model("org/model"));
    hub.hold_after(repo.total_bytes() / 2);
    let mut child = world.args(["pull", "org/model", "--connections", "1"]).spawn();
    let shards_there = || in_place(&directory, &repo).iter().filter(|path| path.ends_with(".safetensors")).count();
    wait_until("shards in place", SOON, || shards_there() >= 2);
    wait_until("their records on disk", SOON, || recorded(&state) >= shards_there());
    child.kill();
    drop(child);
    hub.cut(Origin::Cdn);
    hub.release();
    let out = pull(&world).env("MUSTER_LOG", "info").run().expect_code(0);
    assert!(!out.stderr.contains("hashing files that no record speaks for"), "{out}");
    assert_complete(&directory, &repo);
}

// class: progress-lost
#[test]
fn a_pull_that_is_killed_again_and_again_moves_on_each_time() {
    let repo = shards(8, 12 * MIB);
    let hub = Hub::start(repo.clone());
    hub.pace(6 * MIB);
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    let mut kills = 0;
    for _ in 0..30 {
        let mut child = world.args(["pull", "org/model", "--connections", "4"]).spawn();
        let sent = hub.total_body_bytes();
        let limit = std::time::Instant::now() + Duration::from_secs(30);
        while child.is_running() && hub.total_body_bytes() < sent + 16 * MIB && std::time::Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        if !child.is_running() {
            child.wait(SOON).expect_code(0);
            break;
        }
        child.kill();
        kills += 1;
        drop(child);
        hub.cut(Origin::Cdn);
    }
    pull(&world).run().expect_code(0);
    assert_complete(&directory, &repo);
    assert!(kills >= 3, "{kills} kills are no test");
    let most = repo.total_bytes() * 11 / 10 + 8 * MIB * 4 * kills;
    assert!(hub.total_body_bytes() <= most, "{} bytes in {kills} kills", hub.total_body_bytes());
}

// class: progress-lost
#[test]
fn a_signal_stops_a_pull_with_everything_received_claimed() {
    for (signal, code) in [("interrupt", 130), ("terminate", 143)] {
        let repo = shards(6, 4 * MIB);
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub);
        hub.hold_after(repo.total_bytes() / 2);
        let mut child = pull(&world).spawn();
        world.wait_for_received("org/model", repo.total_bytes() / 2 - SLACK, SOON);
        if signal == "interrupt" {
            child.interrupt();
        } else {
            child.terminate();
        }
        let out = child.wait(SOON).expect_code(code);
        assert!(out.stdout.is_empty(), "{out}");
        let first = hub.total_body_bytes();
        hub.cut(Origin::Cdn);
        hub.release();
        pull(&world).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        let sent = hub.total_body_bytes();
        assert!(sent <= repo.total_bytes() + MIB, "{sent} of {} bytes, {first} before", repo.total_bytes());
    }
}

// class: store, progress-lost
#[test]
fn a_store_that_is_lost_or_garbled_costs_no_byte() {
    for garbled in [false, true] {
        let repo = shards(8, 2 * MIB);
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub);
        kill_at_half(&hub, &world, &repo);
        let state = world.volume().join(".muster/state");
        if garbled {
            for file in listing(&state).iter().filter(|name| !name.ends_with('/')) {
                std::fs::write(state.join(file), b"no database of anybody").unwrap();
            }
        } else {
            std::fs::remove_dir_all(&state).unwrap();
        }
        let done = in_place(&world.model("org/model"), &repo);
        let before: Vec<_> = done.iter().map(|file| hub.bytes_sent_for(file)).collect();
        pull(&world).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        let after: Vec<_> = done.iter().map(|file| hub.bytes_sent_for(file)).collect();
        assert_eq!(before, after);
    }
}

// class: store
#[test]
fn a_complete_model_stays_complete_without_its_store() {
    let repo = shards(4, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    pull(&world).run().expect_code(0);
    std::fs::remove_dir_all(world.volume().join(".muster")).unwrap();
    hub.forget();
    pull(&world).run().expect_code(0);
    assert_eq!(hub.requests().len(), 1, "only where the branch is: {:?}", hub.requests());
}

// class: words, verify-cost
#[test]
fn a_directory_that_was_deleted_by_hand_starts_from_zero() {
    let repo = shards(4, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    pull(&world).run().expect_code(0);
    std::fs::remove_dir_all(world.model("org/model")).unwrap();
    let out = world.args(["pull", "org/model", "--dry-run"]).run().expect_code(0);
    assert!(out.stdout.contains(" 0 B present"), "{out}");
    hub.forget();
    pull(&world).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    assert_eq!(hub.total_body_bytes(), repo.total_bytes());
}

/// A killed pull of one shard, with some of it on disk.
fn one_partial(hub: &Hub, world: &Muster, repo: &RepoSpec) -> std::path::PathBuf {
    let shard = repo.files().find(|file| file.path.ends_with(".safetensors")).unwrap();
    hub.hold_after(repo.total_bytes() * 3 / 4);
    let mut child = world.args(["pull", "org/model", "--connections", "1"]).spawn();
    let directory = world.model("org/model");
    let grown = || {
        let path = partial_of(&directory, &shard.path)?;
        (std::fs::metadata(&path).ok()?.len() > shard.size() / 2).then_some(path)
    };
    wait_until("half of the shard is on disk", SOON, || grown().is_some());
    child.kill();
    drop(child);
    hub.cut(Origin::Cdn);
    hub.release();
    partial_of(&directory, &shard.path).unwrap()
}

// class: ranges, looks-complete
#[test]
fn a_partial_that_has_all_its_bytes_needs_no_more() {
    let repo = shards(1, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let partial = one_partial(&hub, &world, &repo);
    let shard = repo.files().find(|file| file.path.ends_with(".safetensors")).unwrap();
    std::fs::write(&partial, shard.content.to_vec()).unwrap();
    let before = hub.bytes_sent_for(&shard.path);
    pull(&world).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    assert_eq!(hub.bytes_sent_for(&shard.path), before);
}

// class: wrong-bytes, looks-complete
#[test]
fn a_garbled_partial_is_found_out_by_its_hash() {
    let repo = shards(1, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    flip_byte(&one_partial(&hub, &world, &repo), MIB);
    pull(&world).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    let kept = listing(&world.volume().join(".muster/quarantine"));
    assert!(kept.iter().any(|name| name.contains("safetensors")), "the wrong bytes are kept: {kept:?}");
}

// class: looks-complete
#[test]
fn a_tail_of_zeros_is_never_accepted() {
    let repo = shards(1, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let partial = one_partial(&hub, &world, &repo);
    let size = 4 * MIB;
    let file = std::fs::File::options().write(true).open(&partial).unwrap();
    let len = file.metadata().unwrap().len();
    file.write_all_at(&vec![0; usize::try_from(size - len).unwrap()], len).unwrap();
    assert_eq!(file.metadata().unwrap().len(), size, "complete by its length");
    world.args(["gate", "org/model"]).run().expect_code(10);
    pull(&world).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
}

// class: looks-complete
#[test]
fn final_names_never_exist_before_their_files_are_whole_and_right() {
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    hub.pace(16 * MIB);
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    let mut child = pull(&world).spawn();
    let mut seen = std::collections::BTreeSet::new();
    while child.is_running() {
        for file in repo.files().filter(|file| !seen.contains(&file.path)).cloned().collect::<Vec<_>>() {
            // The first sight of a name is the moment to look at its bytes.
            if let Ok(bytes) = std::fs::read(directory.join(&file.path)) {
                assert_eq!(sha256_hex(bytes), file.content.sha256(), "{}", file.path);
                seen.insert(file.path);
            }
        }
    }
    child.wait(SOON).expect_code(0);
    assert!(seen.len() > 2, "{seen:?}");
    assert_complete(&directory, &repo);
}

// class: progress-lost, verify-cost
#[test]
fn files_that_were_there_before_are_adopted_when_right_and_set_aside_when_wrong() {
    let repo = shards(3, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    std::fs::create_dir_all(&directory).unwrap();
    let paths: Vec<_> = repo.files().filter(|file| file.lfs).map(|file| file.path.clone()).collect();
    let [right, wrong, short] = [&paths[0], &paths[1], &paths[2]];
    std::fs::write(directory.join(right), repo.get(right).content.to_vec()).unwrap();
    std::fs::write(directory.join(wrong), vec![7; usize::try_from(MIB).unwrap()]).unwrap();
    std::fs::write(directory.join(short), b"short").unwrap();
    std::fs::write(directory.join("notes.txt"), b"mine").unwrap();
    pull(&world).run().expect_code(0);
    assert_complete(&directory, &repo);
    assert_eq!(hub.bytes_sent_for(right), 0, "a right file is not fetched");
    let quarantine = world.volume().join(".muster/quarantine");
    let kept = listing(&quarantine)
        .iter()
        .map(|name| std::fs::metadata(quarantine.join(name)).unwrap().len())
        .collect::<Vec<_>>();
    assert_eq!(kept, [MIB, 5], "both wrong files are kept aside");
    assert_eq!(std::fs::read(directory.join("notes.txt")).unwrap(), b"mine");
}

// class: writers
#[test]
fn two_pulls_of_one_model_fetch_it_once() {
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    hub.pace(8 * MIB);
    let world = Muster::on(&hub);
    let first = pull(&world).spawn();
    hub.wait_for_bytes(2 * MIB - SLACK, SOON);
    let second = pull(&world).spawn();
    for child in [first, second] {
        let out = child.wait(SOON).expect_code(0);
        assert_eq!(out.stdout.trim(), world.model("org/model").display().to_string());
    }
    assert_complete(&world.model("org/model"), &repo);
    assert!(hub.total_body_bytes() <= repo.total_bytes() * 105 / 100, "{} bytes", hub.total_body_bytes());
}

// class: writers
#[test]
fn a_volume_held_elsewhere_is_not_waited_for_when_that_was_asked_for() {
    let repo = shards(2, MIB);
    let hub = Hub::with([repo, RepoSpec::new("org/other").plain("config.json", "{}")]);
    let world = Muster::on(&hub);
    world.args(["pull", "org/other"]).run().expect_code(0);
    own_elsewhere(world.volume(), 4242, "node-17");
    let out = world.args(["pull", "org/model", "--no-wait"]).run().expect_code(15);
    assert!(out.stderr.contains("process 4242 on node-17") && out.stderr.contains("heartbeat"), "{out}");
    assert!(!world.model("org/model").exists());
    let mut child = pull(&world).spawn();
    child.wait_for_text("waiting for it", SOON);
    child.interrupt();
    child.wait(SOON).expect_code(130);
}

// class: writers
#[test]
fn an_owner_that_was_killed_is_not_waited_for() {
    let repo = shards(6, 2 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    kill_at_half(&hub, &world, &repo);
    world.args(["pull", "org/model", "--no-wait"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
}

// class: stalls, proxies
#[test]
fn an_origin_in_trouble_ends_the_pull_after_its_patience_and_the_next_one_goes_on() {
    let repo = shards(6, 2 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    hub.hold_after(repo.total_bytes() / 2);
    let child = world.args(["pull", "org/model", "--retry-for", "2s"]).env("MUSTER_IDLE_TIMEOUT", "5s").spawn();
    world.wait_for_received("org/model", repo.total_bytes() / 2 - SLACK, SOON);
    hub.unreachable(Origin::Cdn);
    hub.release();
    let out = child.wait(SOON);
    assert!(out.code.is_some_and(|code| code != 0), "{out}");
    assert!(out.stderr.contains(&hub.address(Origin::Cdn).to_string()), "it names the host: {out}");
    hub.reachable(Origin::Cdn);
    pull(&world).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    assert!(hub.total_body_bytes() <= repo.total_bytes() * 11 / 10 + MIB, "{}", hub.total_body_bytes());
}
