//! `muster adopt`: directories that other tools filled, against a scripted hub.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Bytes that are compared at a time before a partial is believed.
const SAMPLE: u64 = 64 << 10;
const SHARD: &str = "model-00002-of-000004.safetensors";
const OTHER: &str = "model-00003-of-000004.safetensors";
/// What the log says then.
const HASHED_BY_THE_JOB: &str = "hashing files that no record speaks for";
const VERIFY_SCHEMA: &str = include_str!("../src/api/schema/verify.v1.json");

/// A hub, and a directory on the world's volume that another tool has filled from it.
struct Scene {
    repo: RepoSpec,
    hub: Hub,
    world: Muster,
    directory: PathBuf,
}

fn scene() -> Scene {
    let repo = RepoSpec::kimi(4, MIB, 6).named("org/model");
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("kimi");
    for file in repo.files() {
        let path = directory.join(&file.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, file.content.to_vec()).unwrap();
    }
    Scene { repo, hub, world, directory }
}

impl Scene {
    fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    fn adopt(&self, flags: &[&str]) -> Output {
        self.adopting(&self.directory, flags).run()
    }

    fn adopting(&self, directory: &Path, flags: &[&str]) -> Invocation {
        self.world.args(["adopt", directory.to_str().unwrap(), "--repo", "org/model"].iter().chain(flags))
    }

    /// Bytes of files that the hub sent, which are all of these files and no others.
    #[track_caller]
    fn assert_fetched(&self, files: &[&str]) {
        let expected: u64 = files.iter().map(|file| self.repo.get(file).size()).sum();
        for file in files {
            assert_eq!(self.hub.bytes_sent_for(file), self.repo.get(file).size(), "{file}");
        }
        assert_eq!(self.hub.total_body_bytes(), expected);
    }

    fn set_aside(&self) -> Vec<String> {
        listing(&self.world.volume().join(".muster/quarantine"))
    }
}

/// What a tool of the user's would notice.
fn stamp(path: &Path) -> (u64, u64, i64, i64, i64, i64, u32) {
    let meta = path.symlink_metadata().unwrap();
    (meta.ino(), meta.nlink(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec(), meta.mode())
}

// class: verify-cost, progress-lost
#[test]
fn a_directory_that_is_right_is_proved_as_it_is_and_no_byte_is_fetched() {
    let scene = scene();
    let (linked, unwritable) = (scene.path(SHARD), scene.path("config.json"));
    fs::hard_link(&linked, scene.world.home().join("second-name")).unwrap();
    fs::set_permissions(&unwritable, fs::Permissions::from_mode(0o444)).unwrap();
    let stamps = || scene.repo.files().map(|file| stamp(&scene.path(&file.path))).collect::<Vec<_>>();
    let before = stamps();
    let out = scene.adopt(&["--log", "info"]).expect_code(0);
    assert_eq!(out.stdout.trim(), scene.directory.to_str().unwrap());
    assert!(out.stderr.contains(HASHED_BY_THE_JOB), "{out}");
    assert!(out.stderr.contains("10 of 10 files right as they were"), "{out}");
    assert_eq!(stamps(), before);
    assert_complete(&scene.directory, &scene.repo);
    scene.assert_fetched(&[]);
    scene.world.args(["gate", "kimi"]).run().expect_code(0);
    // Once adopted it is a model like any other.
    scene.hub.forget();
    scene.world.args(["pull", "org/model", "--to", "kimi"]).run().expect_code(0);
    assert_eq!(scene.hub.requests().len(), 1);
}

// class: verify-cost, wrong-bytes
#[test]
fn exactly_what_is_missing_or_wrong_is_fetched_and_the_wrong_one_stays_until_it_is_pruned() {
    let scene = scene();
    fs::remove_file(scene.path(SHARD)).unwrap();
    flip_byte(&scene.path(OTHER), 300_000);
    let damaged = fs::read(scene.path(OTHER)).unwrap();
    let out = scene.adopt(&[]).expect_code(0);
    assert!(out.stderr.contains("8 of 10 files right as they were; fetched: 1 missing, 1 wrong"), "{out}");
    assert!(out.stderr.contains("1 file of this model set aside, 1.0 MB") && out.stderr.contains("--prune"), "{out}");
    assert_complete(&scene.directory, &scene.repo);
    scene.assert_fetched(&[SHARD, OTHER]);
    let kept = scene.set_aside();
    assert!(kept.len() == 1 && kept[0].ends_with(OTHER), "{kept:?}");
    assert_eq!(fs::read(scene.world.volume().join(".muster/quarantine").join(&kept[0])).unwrap(), damaged);
    scene.adopt(&[]).expect_code(0);
    assert_eq!(scene.set_aside(), kept, "nobody asked for it to go");
    let out = scene.world.args(["pull", "org/model", "--to", "kimi", "--prune"]).run().expect_code(0);
    assert!(out.stderr.contains("pruned: 1 file that had been set aside, 1.0 MB"), "{out}");
    assert_eq!(scene.set_aside(), Vec::<String>::new());
    scene.assert_fetched(&[SHARD, OTHER]);
}

#[test]
fn pruning_one_model_leaves_what_is_set_aside_of_another() {
    let scene = scene();
    let other = scene.world.model("other");
    fs::create_dir(&other).unwrap();
    for directory in [&scene.directory, &other] {
        fs::write(directory.join("config.json"), b"{}").unwrap();
        scene.adopting(directory, &[]).run().expect_code(0);
    }
    assert_eq!(scene.set_aside().len(), 2);
    let json = scene.adopt(&["--prune", "--json"]).expect_code(0).json();
    assert_eq!(json["set_aside"]["files"], 0);
    assert_eq!(scene.set_aside().len(), 1);
    let json = scene.adopting(&other, &["--json"]).run().expect_code(0).json();
    assert_eq!((&json["set_aside"]["files"], &json["set_aside"]["bytes"]), (&1.into(), &2.into()));
    assert_eq!(json["adopted"], serde_json::json!({"kept": 10, "missing": 0, "wrong": 0}));
}

// class: verify-cost, words
#[test]
fn a_report_names_what_is_missing_and_what_is_wrong_and_changes_nothing() {
    let scene = scene();
    fs::remove_file(scene.path(SHARD)).unwrap();
    let untouched = trace(&scene.directory);
    let out = scene.adopt(&["--no-fetch"]).expect_code(10);
    assert!(out.stdout.contains(SHARD) && out.stdout.contains("not verified (10)"), "{out}");
    assert_eq!(trace(&scene.directory), untouched);
    flip_byte(&scene.path(OTHER), 10);
    let untouched = trace(&scene.directory);
    let out = scene.adopt(&["--no-fetch", "--json"]).expect_code(11);
    let json = out.json();
    assert_valid(VERIFY_SCHEMA, &json);
    let said = |at: usize, key: &str| json["reasons"][at][key].as_str().unwrap().to_owned();
    assert_eq!((said(0, "file"), said(0, "code")), (OTHER.to_owned(), "corrupt".to_owned()));
    assert_eq!((said(1, "file"), said(1, "code")), (SHARD.to_owned(), "incomplete".to_owned()));
    assert_eq!((&json["files"]["hashed"], &json["files"]["bad"]), (&8.into(), &2.into()));
    assert_eq!(trace(&scene.directory), untouched);
    assert_eq!(listing(scene.world.volume()).iter().filter(|name| name.starts_with(".muster")).count(), 0);
    scene.assert_fetched(&[]);
}

// class: verify-cost
#[test]
fn a_report_on_a_directory_that_is_right_gives_it_its_receipt() {
    let scene = scene();
    let out = scene.adopt(&["--no-fetch", "--log", "info"]).expect_code(0);
    assert_complete(&scene.directory, &scene.repo);
    assert!(out.stderr.contains("hashing 10 files") && !out.stderr.contains(HASHED_BY_THE_JOB), "hashed once: {out}");
    scene.assert_fetched(&[]);
    let out = scene.adopt(&["--no-fetch"]).expect_code(0);
    assert!(!out.stderr.contains("hashing"), "a receipt is enough: {out}");
}

// class: looks-complete
#[test]
fn pointers_of_git_lfs_and_unfinished_downloads_of_aria2_are_named_and_replaced() {
    let scene = scene();
    fs::write(scene.path(SHARD), scene.repo.get(SHARD).pointer()).unwrap();
    // All its room is there from the first byte on, and the end is missing.
    let mut unfinished = scene.repo.get(OTHER).content.to_vec();
    unfinished[600_000..].fill(0);
    fs::write(scene.path(OTHER), unfinished).unwrap();
    fs::write(scene.path(&format!("{OTHER}.aria2")), b"bits").unwrap();
    let out = scene.adopt(&["--no-fetch"]).expect_code(11);
    assert!(out.stderr.contains(&format!("{SHARD}: a git-lfs pointer, not the file itself")), "{out}");
    assert!(out.stderr.contains(&format!("{OTHER}: an unfinished download of aria2")), "{out}");
    let out = scene.adopt(&[]).expect_code(0);
    assert!(out.stderr.contains(&format!("1 git-lfs pointer in place of the files themselves: {SHARD}")), "{out}");
    assert!(out.stderr.contains(&format!("1 unfinished download of aria2, by the .aria2 beside it: {OTHER}")), "{out}");
    assert_complete(&scene.directory, &scene.repo);
    scene.assert_fetched(&[SHARD, OTHER]);
    assert!(scene.path(&format!("{OTHER}.aria2")).exists(), "not ours to remove");
}

// class: progress-lost, writers
#[test]
fn a_partial_of_the_official_client_is_copied_and_never_touched() {
    let scene = scene();
    let downloads = scene.path(".cache/huggingface/download");
    fs::create_dir_all(&downloads).unwrap();
    let bytes = scene.repo.get(SHARD).content.to_vec();
    let partial =
        downloads.join(format!("xGOKKLRSlIhH692hSVvI1-gpoa8=.{}.00c0ffee.incomplete", scene.repo.get(SHARD).sha256()));
    fs::write(&partial, &bytes[..700_000]).unwrap();
    // Of another content, and one that lies about its bytes.
    let stale = downloads.join(format!("xGOKKLRSlIhH692hSVvI1-gpoa8=.{}.incomplete", "0".repeat(64)));
    fs::write(&stale, &bytes[..900_000]).unwrap();
    let wrong = downloads.join(format!("a7eHxRFT3OeMBIFg52k2nfj5m7w=.{}.incomplete", scene.repo.get(OTHER).sha256()));
    fs::write(&wrong, vec![7; 500_000]).unwrap();
    for file in [SHARD, OTHER] {
        fs::remove_file(scene.path(file)).unwrap();
    }
    let untouched = trace(&scene.path(".cache"));
    // The client is at work still.
    let held = fs::OpenOptions::new().append(true).open(&partial).unwrap();
    let out = scene.adopt(&[]).expect_code(0);
    drop(held);
    assert!(out.stderr.contains(".cache/huggingface is the official client's"), "{out}");
    assert_complete(&scene.directory, &scene.repo);
    assert_eq!(scene.hub.bytes_sent_for(SHARD), MIB - 700_000 + 3 * SAMPLE, "only what was missing");
    assert_eq!(scene.hub.bytes_sent_for(OTHER), MIB + SAMPLE, "the first sample says that it is of something else");
    assert!(out.stderr.contains("is not what the Hub serves") && scene.set_aside().is_empty(), "{out}");
    assert_eq!(trace(&scene.path(".cache")), untouched);
}

// class: names, words
#[test]
fn links_and_the_clients_cache_are_refused_with_advice_before_anything_is_written() {
    let scene = scene();
    let cache = scene.world.volume().join("hub/models--org--model");
    let snapshot = cache.join("snapshots").join("a".repeat(40));
    fs::create_dir_all(cache.join("blobs")).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for file in scene.repo.files().filter(|file| !file.path.contains('/')) {
        fs::rename(scene.path(&file.path), cache.join("blobs").join(file.etag())).unwrap();
        symlink(format!("../../blobs/{}", file.etag()), snapshot.join(&file.path)).unwrap();
    }
    let untouched = trace(&cache);
    for inside in [&snapshot, &cache, &cache.join("blobs")] {
        let out = scene.adopting(inside, &[]).run().expect_code(12);
        assert!(out.stderr.contains("the official client's cache") && out.stderr.contains("cp -rL"), "{out}");
    }
    assert_eq!(trace(&cache), untouched);
    // Links elsewhere: in a folder of the user's own, or in its place.
    let links = scene.world.model("links");
    fs::create_dir(&links).unwrap();
    symlink(cache.join("blobs").join(scene.repo.get(SHARD).etag()), links.join(SHARD)).unwrap();
    for flags in [&[][..], &["--no-fetch"]] {
        let out = scene.adopting(&links, flags).run().expect_code(12);
        assert!(out.stderr.contains(SHARD) && out.stderr.contains("cp -rL"), "{out}");
    }
    assert_eq!(listing(&links), [SHARD]);
    let link = scene.world.model("link");
    symlink(&links, &link).unwrap();
    let out = scene.adopting(&link, &[]).run().expect_code(12);
    assert!(out.stderr.contains(links.to_str().unwrap()), "{out}");
    let out = scene.adopting(&scene.world.model("none"), &[]).run().expect_code(13);
    assert!(out.stderr.contains("none is no directory"), "{out}");
    assert!(!scene.world.model("none").exists());
    assert!(!listing(scene.world.volume()).iter().any(|name| name.starts_with(".muster")));
}

// class: revision
#[test]
fn a_directory_of_another_commit_loses_nothing() {
    let scene = scene();
    let files = scene.repo.files().count();
    scene.hub.push("org/model", "main", |repo| {
        let all: Vec<_> = repo.files().map(|file| file.path.clone()).collect();
        all.iter().fold(repo, |repo, path| repo.lfs(path, format!("new {path}").into_bytes()))
    });
    let out = scene.adopt(&[]).expect_code(0);
    assert!(out.stderr.contains(&format!("fetched: 0 missing, {files} wrong")), "{out}");
    let folder = scene.world.volume().join(".muster/quarantine");
    let mut kept: Vec<_> =
        scene.set_aside().iter().map(|name| sha256_hex(fs::read(folder.join(name)).unwrap())).collect();
    let mut old: Vec<_> = scene.repo.files().map(|file| file.content.sha256().to_owned()).collect();
    kept.sort();
    old.sort();
    assert_eq!(kept, old);
}

// class: writers
#[test]
fn the_owner_of_the_volume_does_the_work() {
    let scene = scene();
    let owner = Owner::start(&scene.world);
    fs::remove_file(scene.path(SHARD)).unwrap();
    flip_byte(&scene.path(OTHER), 10);
    let out = scene.adopt(&[]).expect_code(0);
    assert!(out.stderr.contains("does the work; this follows it"), "{out}");
    assert!(out.stderr.contains("8 of 10 files right as they were; fetched: 1 missing, 1 wrong"), "{out}");
    assert_complete(&scene.directory, &scene.repo);
    scene.assert_fetched(&[SHARD, OTHER]);
    drop(owner);
}

#[test]
fn what_makes_no_sense_or_cannot_be_asked_ends_with_its_code() {
    let scene = scene();
    fs::remove_file(scene.path(SHARD)).unwrap();
    for (flags, code, said) in [
        (&["--prune", "--no-fetch"][..], 2, "--no-fetch"),
        (&["--reserve", "900TB"], 16, "not enough space"),
        (&["--include", "nothing/*"], 2, "nothing/*"),
        (&["--volume", "/elsewhere"], 2, "DIR"),
        (&["--revision", "v9"], 17, "v9"),
        (&["--endpoint", "http://127.0.0.1:1", "--retry-for", "1s"], 18, "127.0.0.1"),
    ] {
        let out = scene.adopt(flags).expect_code(code);
        assert!(out.stderr.contains(said), "{flags:?}: {out}");
    }
    let out = scene.world.args(["adopt", scene.directory.to_str().unwrap()]).run().expect_code(2);
    assert!(out.stderr.contains("--repo"), "{out}");
    assert_eq!(trace(&scene.directory).len(), listing(&scene.directory).len() + 1);
    assert!(!scene.path(".muster").exists());
}

// class: progress-lost, writers
#[test]
fn an_adoption_that_is_stopped_goes_on_and_somebody_elses_volume_is_told() {
    let scene = scene();
    fs::remove_file(scene.path(SHARD)).unwrap();
    scene.hub.hold_after(400_000);
    let mut child = scene.adopting(&scene.directory, &[]).spawn();
    scene.hub.wait_for_bytes(300_000, SOON);
    child.interrupt();
    child.wait(SOON).expect_code(130);
    scene.hub.release();
    own_elsewhere(scene.world.volume(), 4242, "node-17");
    let out = scene.adopt(&["--no-wait"]).expect_code(15);
    assert!(out.stderr.contains("4242 on node-17"), "{out}");
    fs::remove_dir_all(scene.world.volume().join(".muster/owners")).unwrap();
    scene.adopt(&[]).expect_code(0);
    assert_complete(&scene.directory, &scene.repo);
    assert!(scene.hub.bytes_sent_for(SHARD) < 2 * MIB);
}

#[test]
fn a_report_needs_nothing_but_to_read() {
    if let Some(why) = cannot_mount(&[]) {
        return skip(&why);
    }
    let scene = scene();
    let disk = Disk::tmpfs("size=64m", &scene.world.home().join("disk"));
    let directory = disk.at().join("kimi");
    let copied = std::process::Command::new("cp").arg("-a").args([&scene.directory, &directory]).status().unwrap();
    assert!(copied.success());
    disk.remount("ro");
    let report = || scene.adopting(&directory, &["--no-fetch"]).run();
    let out = report().expect_code(0);
    assert!(out.stdout.starts_with("verified: ") && out.stderr.contains("no receipt is written"), "{out}");
    disk.remount("rw");
    flip_byte(&directory.join(SHARD), 10);
    disk.remount("ro");
    let out = report().expect_code(11);
    assert!(out.stdout.contains(SHARD), "{out}");
    disk.unmount();
}
