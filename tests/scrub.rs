//! Reading models again: what is wrong is found to the block, and what is right is never condemned.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

#[path = "scrub/daemon.rs"]
mod daemon;
mod faultfs;
#[path = "scrub/once.rs"]
mod once;
mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster::core::blocks::BLOCK_SIZE;
use serde_json::Value;
use support::*;

const SCRUB_SCHEMA: &str = include_str!("../src/api/schema/scrub.v1.json");
const STATUS_SCHEMA: &str = include_str!("../src/api/schema/status.v1.json");
const SOON: Duration = Duration::from_secs(120);
/// Three blocks, the last one short.
const SHARD: u64 = 2 * BLOCK_SIZE + 4321;

fn repo() -> RepoSpec {
    RepoSpec::kimi(2, SHARD, 2).named("org/model")
}

/// A world with the model, and its directory.
fn pulled() -> (Hub, Muster, PathBuf) {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["pull", "org/model", "--to", "m"]).run().expect_code(0);
    let directory = world.model("m");
    (hub, world, directory)
}

/// A shard of the model, and its size.
fn shard(number: usize) -> (String, u64) {
    let repo = repo();
    let mut shards: Vec<_> = repo.files().filter(|file| file.path.ends_with(".safetensors")).collect();
    shards.sort_by(|a, b| a.path.cmp(&b.path));
    (shards[number].path.clone(), shards[number].size())
}

fn scrub(world: &Muster, code: i32, more: &[&str]) -> Value {
    let report = world.args(["scrub", "--json"].iter().chain(more)).run().expect_code(code).json();
    assert_valid(SCRUB_SCHEMA, &report);
    assert_eq!(report["exit_code"], code);
    report["models"][0].clone()
}

/// File and block of each finding.
fn found(model: &Value) -> Vec<(String, Option<u64>)> {
    let each = |finding: &Value| (finding["file"].as_str().unwrap().to_owned(), finding["block"].as_u64());
    model["findings"].as_array().unwrap().iter().map(each).collect()
}

/// The same bytes changed behind the file's times.
fn rot(path: &Path, at: u64) {
    let before = fs::metadata(path).unwrap();
    flip_byte(path, at);
    let times = fs::FileTimes::new().set_modified(before.modified().unwrap());
    fs::File::options().write(true).open(path).unwrap().set_times(times).unwrap();
}

// class: wrong-bytes
#[test]
fn a_flipped_byte_is_found_in_its_block_the_gate_is_closed_and_status_says_so() {
    let (_hub, world, directory) = pulled();
    let (file, _) = shard(1);
    let clean = scrub(&world, 0, &["m"]);
    assert!(found(&clean).is_empty() && clean["has_receipt"] == true, "{clean}");
    assert_eq!(clean["asked_bytes"], clean["read_bytes"]);
    rot(&directory.join(&file), BLOCK_SIZE + 7);
    let model = scrub(&world, 11, &["m"]);
    assert_eq!(found(&model), [(file.clone(), Some(1))]);
    let finding = &model["findings"][0];
    assert_eq!((&finding["start"], &finding["end"]), (&Value::from(BLOCK_SIZE), &Value::from(2 * BLOCK_SIZE)));
    assert_eq!((&model["receipt"], &model["has_receipt"]), (&Value::from("set_aside"), &Value::from(false)));
    world.args(["gate", "m", "--", "true"]).run().expect_code(10);
    let out = world.args(["status"]).run().expect_code(0);
    assert!(out.stdout.contains(&format!("{file}: block 1 is wrong (bytes 16777216 to 33554432)")), "{out}");
    assert!(out.stdout.contains("muster repair m") && out.stdout.contains("damaged"), "{out}");
    let status = world.args(["status", "--json"]).run().json();
    assert_valid(STATUS_SCHEMA, &status);
    let scrub_status = &status["models"][0]["scrub"];
    assert_eq!(
        (&scrub_status["bad_blocks"], &status["models"][0]["state"]),
        (&Value::from(1), &Value::from("damaged"))
    );
    // It stands until it is settled, whatever else is read.
    let other = scrub(&world, 11, &["m", "--subset", "1/100"]);
    assert_eq!(found(&other), [(file.clone(), Some(1))]);
    rot(&directory.join(&file), BLOCK_SIZE + 7);
    assert!(found(&scrub(&world, 0, &["m"])).is_empty());
}

// class: wrong-bytes
#[test]
fn truncated_extended_and_missing_files_are_named_each_in_its_way() {
    let (_hub, world, directory) = pulled();
    let (file, size) = shard(0);
    let path = directory.join(&file);
    let handle = fs::File::options().write(true).open(&path).unwrap();
    handle.set_len(size - 1).unwrap();
    let last = (size - 1) / BLOCK_SIZE;
    assert_eq!(found(&scrub(&world, 11, &["m"])), [(file.clone(), None), (file.clone(), Some(last))]);
    handle.set_len(size + 1).unwrap();
    let longer = found(&scrub(&world, 11, &["m"]));
    assert!(longer.contains(&(file.clone(), None)), "{longer:?}");
    fs::remove_file(&path).unwrap();
    let model = scrub(&world, 10, &["m"]);
    assert!(found(&model).is_empty(), "{model}");
    assert_eq!(
        (&model["reasons"][0]["file"], &model["reasons"][0]["code"]),
        (&file.as_str().into(), &"incomplete".into())
    );
}

#[test]
fn without_block_digests_a_file_is_hashed_whole_and_they_are_noted() {
    let (_hub, world, directory) = pulled();
    let (file, _) = shard(0);
    let blocks = directory.join(".muster/blocks");
    let good = fs::read(&blocks).unwrap();
    fs::remove_file(&blocks).unwrap();
    assert_eq!(scrub(&world, 0, &["m"])["noted_files"], 2);
    assert_eq!(fs::metadata(&blocks).unwrap().len(), good.len() as u64);
    assert_eq!(scrub(&world, 0, &["m"])["noted_files"], 0);
    fs::remove_file(&blocks).unwrap();
    rot(&directory.join(&file), BLOCK_SIZE + 7);
    assert_eq!(found(&scrub(&world, 11, &["m"])), [(file.clone(), None)]);
}

#[test]
fn damaged_block_digests_never_condemn_a_good_file() {
    let (_hub, world, directory) = pulled();
    let blocks = directory.join(".muster/blocks");
    let good = fs::read(&blocks).unwrap();
    let record = good.len() / 2;
    assert_eq!(record, 4 + 8 + 32 + 2 * 32 + 4, "one record a shard, of two states");
    for at in [50, 100, record + 50] {
        // Garbled, and then garbled so that the checksum says nothing.
        let mut garbled = good.clone();
        garbled[at] ^= 0x40;
        fs::write(&blocks, &garbled).unwrap();
        assert_eq!(scrub(&world, 0, &["m"])["noted_files"], 1, "{at}");
        let (start, end) = (at / record * record, at / record * record + record - 4);
        let crc = crc32fast::hash(&garbled[start..end]).to_le_bytes();
        garbled[end..end + 4].copy_from_slice(&crc);
        fs::write(&blocks, &garbled).unwrap();
        let model = scrub(&world, 0, &["m"]);
        assert!(found(&model).is_empty() && model["noted_files"] == 1, "{at}: {model}");
        assert_eq!(scrub(&world, 0, &["m"])["noted_files"], 0, "the list is right again");
    }
    world.args(["gate", "m"]).run().expect_code(0);
}

#[test]
fn parts_reach_everything_and_shares_go_on_where_the_last_ended() {
    let (_hub, world, _directory) = pulled();
    let total: u64 = repo().files().map(FileSpec::size).sum();
    let parts: u64 =
        (1..=3).map(|n| scrub(&world, 0, &["m", "--subset", &format!("{n}/3")])["asked_bytes"].as_u64().unwrap()).sum();
    assert_eq!(parts, total);
    let record = || fs::read_to_string(world.model("m").join(".muster/scrubbed.json")).unwrap();
    assert!(!record().contains("passing"), "every file was read whole: {}", record());
    let oldest = |model: &Value| model["oldest_at"].as_str().unwrap().to_owned();
    let before = oldest(&scrub(&world, 0, &["m", "--subset", "1/1000"]));
    for round in 1..=5 {
        let model = scrub(&world, 0, &["m", "--subset", "20%"]);
        assert!(model["asked_bytes"].as_u64().unwrap() <= total / 5 + 2 * BLOCK_SIZE, "{model}");
        assert!(round < 5 || oldest(&model) > before, "everything was read again: {model}");
    }
    for wrong in ["0/3", "4/3", "0%", "120%", "10M", "x"] {
        world.args(["scrub", "m", "--subset", wrong]).run().expect_code(2);
    }
    world.args(["scrub"]).run().expect_code(2);
    world.args(["scrub", "none"]).run().expect_code(13);
}

#[test]
fn all_models_of_the_volume_are_read_and_the_gravest_outcome_counts() {
    let (_hub, world, directory) = pulled();
    world.args(["pull", "org/model", "--to", "other"]).run().expect_code(0);
    rot(&directory.join(shard(0).0), 3);
    let report = world.args(["scrub", "--all", "--json"]).run().expect_code(11).json();
    let models = report["models"].as_array().unwrap();
    assert_eq!(models.iter().map(|model| model["id"].as_str().unwrap()).collect::<Vec<_>>(), ["m", "other"]);
    assert_eq!(models.iter().map(|model| model["code"].as_str()).collect::<Vec<_>>(), [Some("corrupt"), None]);
    let text = world.args(["scrub", "--all"]).run().expect_code(11);
    assert!(text.stdout.contains("other: ") && text.stdout.contains("nothing is wrong"), "{text}");
    assert!(text.stderr.contains("muster repair m"), "{text}");
}

// class: permissions
#[test]
fn where_nothing_can_be_written_it_reads_all_the_same_and_says_so() {
    let (_hub, world, directory) = pulled();
    let copy = world.home().join("copy");
    let copied = std::process::Command::new("cp").arg("-a").arg(&directory).arg(&copy).status().unwrap();
    assert!(copied.success());
    rot(&copy.join(shard(0).0), BLOCK_SIZE);
    let Some(mounted) = read_only(&copy) else { return };
    let before = listing(&copy);
    let path = mounted.0.to_str().unwrap();
    let model = scrub(&world, 11, &[path]);
    assert_eq!(found(&model), [(shard(0).0, Some(1))]);
    assert!(model["not_closed"].is_string() && model["not_recorded"].is_string(), "{model}");
    let text = world.args(["scrub", path]).run().expect_code(11);
    assert!(text.stderr.contains("could not be closed") && text.stderr.contains("not recorded"), "{text}");
    assert_eq!(listing(&copy), before);
}

/// A folder at a second place, which is there as long as this.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ended = std::process::Command::new("umount").arg(&self.0).status();
    }
}

/// The folder once more, below itself's name and read-only; nothing where that cannot be done.
fn read_only(folder: &Path) -> Option<Mounted> {
    let at = folder.with_extension("ro");
    fs::create_dir(&at).unwrap();
    let mount = |args: &[&str]| {
        std::process::Command::new("mount").args(args).arg(&at).output().is_ok_and(|out| out.status.success())
    };
    if !mount(&["--bind", folder.to_str().unwrap()]) {
        skip("nothing can be mounted here");
        return None;
    }
    let mounted = Mounted(at.clone());
    if !mount(&["-o", "remount,bind,ro"]) {
        skip("nothing can be mounted read-only here");
        return None;
    }
    Some(mounted)
}

#[test]
fn a_file_that_was_changed_on_purpose_is_compared_with_what_was_accepted() {
    let (_hub, world, directory) = pulled();
    let edited = directory.join("config.json");
    fs::write(&edited, b"{\"edited\": true}").unwrap();
    world.args(["accept", "m", "config.json", "--reason", "a test"]).run().expect_code(0);
    assert!(found(&scrub(&world, 0, &["m"])).is_empty());
    rot(&edited, 3);
    assert_eq!(found(&scrub(&world, 11, &["m"])), [("config.json".to_owned(), Some(0))]);
}

#[test]
fn a_directory_that_is_being_changed_ends_with_15_and_one_without_a_receipt_says_what_makes_one() {
    let (_hub, world, directory) = pulled();
    let lock = fs::File::options().read(true).write(true).open(directory.join(".muster/in-use")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    scrub(&world, 15, &["m"]);
    drop(lock);
    fs::remove_file(directory.join(".muster/receipt.json")).unwrap();
    let out = world.args(["scrub", "m"]).run().expect_code(0);
    assert!(out.stderr.contains("muster verify m"), "{out}");
}

// class: progress-lost
#[test]
fn a_scrub_that_is_stopped_remembers_what_it_read() {
    let (_hub, world, directory) = pulled();
    // Slow enough for the record to be written, as every ten seconds, while the second shard is read.
    let mut stopped = world.args(["scrub", "m", "--limit", "3MB"]).spawn();
    wait_until("the record is written", SOON, || directory.join(".muster/scrubbed.json").exists());
    assert!(stopped.is_running());
    stopped.terminate();
    let out = stopped.wait(SOON);
    assert_eq!((out.code, out.signal), (None, Some(15)), "143 in a shell: {out}");
    let read = || -> Vec<String> {
        let record: Value =
            serde_json::from_slice(&fs::read(directory.join(".muster/scrubbed.json")).unwrap()).unwrap();
        record["files"].as_object().unwrap().keys().cloned().collect()
    };
    let (first, second) = (shard(0).0, shard(1).0);
    let before = read();
    assert!(before.contains(&first) && !before.contains(&second), "{before:?}");
    // As much again is of what was not read yet.
    scrub(&world, 0, &["m", "--subset", &format!("{SHARD}B")]);
    let after = read();
    assert!(after.contains(&first) && after.contains(&second), "{after:?}");
}

#[test]
fn a_record_that_is_garbled_or_from_another_program_is_none() {
    let (_hub, world, directory) = pulled();
    let record = directory.join(".muster/scrubbed.json");
    for bad in ["", "{", "[]", r#"{"schema": 9, "files": {}, "findings": [], "totals": {}}"#] {
        fs::write(&record, bad).unwrap();
        world.args(["status"]).run().expect_code(0);
        assert!(found(&scrub(&world, 0, &["m", "--subset", "1/4"])).is_empty());
        assert!(fs::read_to_string(&record).unwrap().contains("\"schema\":1"));
    }
    assert_eq!(fs::metadata(&record).unwrap().permissions().mode() & 0o777, 0o644);
}
