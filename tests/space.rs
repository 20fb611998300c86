//! A disk without room, for real: small file systems of a test's own that run out of blocks, of inodes or
//! of a quota, or turn read-only, in the middle of a pull (P1, P4, P8).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Of the bytes that a held hub lets go, so many at most are of its API.
const SLACK: u64 = 128 << 10;
const MODEL: &str = "org/model";

/// A volume on a small disk. The disk goes last.
struct Small {
    world: Muster,
    disk: Disk,
    place: tempfile::TempDir,
}

impl Small {
    fn new(hub: &Hub, disk: impl FnOnce(&Path, &Path) -> Disk) -> Self {
        let place = tempfile::tempdir().unwrap();
        let disk = disk(&place.path().join("image"), &place.path().join("volume"));
        let world = Muster::new(disk.at()).endpoint(hub);
        Self { world, disk, place }
    }

    fn ext4(hub: &Hub, flags: &[&str]) -> Self {
        Self::new(hub, |image, at| Disk::make(image, 96 * MIB, Kind::Ext4, flags, at))
    }

    fn tmpfs(hub: &Hub, options: &str) -> Self {
        Self::new(hub, |_, at| Disk::tmpfs(options, at))
    }

    fn status(&self) -> Value {
        let bytes = std::fs::read(self.disk.at().join(".muster/status.json")).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    fn counter(&self) -> u64 {
        let owners = self.disk.at().join(".muster/owners");
        let epoch = listing(&owners).iter().filter_map(|name| name.strip_suffix(".json")?.parse::<u64>().ok()).max();
        let bytes = std::fs::read(owners.join(format!("{}.json", epoch.unwrap()))).unwrap();
        serde_json::from_slice::<Value>(&bytes).unwrap()["counter"].as_u64().unwrap()
    }
}

/// Takes what room there is, to the last block, until it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn of(folder: &Path) -> Self {
        let path = folder.join("filler");
        let mut file = std::fs::File::create_new(&path).unwrap();
        for step in [1 << 20, 4096, 512] {
            // What the file system writes back gives room again, now and then.
            for _ in 0..3 {
                while file.write_all(&vec![1; step]).is_ok() {}
                let _ = file.sync_all();
            }
        }
        assert!(path.metadata().unwrap().len() > MIB);
        Self(path)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn shards(count: usize, bytes: u64) -> RepoSpec {
    RepoSpec::kimi(count, bytes, 4).named(MODEL)
}

fn need(kinds: &[Kind]) -> bool {
    let why = cannot_mount(kinds);
    if let Some(why) = &why {
        skip(why);
    }
    why.is_none()
}

type Make = fn(&Hub) -> Small;

/// A disk of each sort: one whose blocks are reserved before a file is begun, one where a write in the
/// middle of a file finds out (its format cannot reserve), and one without a device.
fn disks() -> [(&'static str, Make); 3] {
    [
        ("ext4", |hub| Small::ext4(hub, &[])),
        ("ext4 that cannot reserve", |hub| Small::ext4(hub, &["-O", "^extent,^64bit"])),
        ("tmpfs", |hub| Small::tmpfs(hub, "size=96m")),
    ]
}

// class: bounds, progress-lost
#[test]
fn a_disk_that_fills_up_ends_a_pull_with_16_and_the_next_one_goes_on() {
    if !need(&[Kind::Ext4]) {
        return;
    }
    for (name, disk) in disks() {
        let repo = shards(5, 8 * MIB);
        let hub = Hub::start(repo.clone());
        let small = disk(&hub);
        hub.hold_after(repo.total_bytes() / 2);
        let child = small.world.args(["pull", MODEL, "--connections", "2"]).spawn();
        hub.wait_for_bytes(repo.total_bytes() / 2 - SLACK, SOON);
        let filler = Filler::of(small.disk.at());
        hub.release();
        let out = child.wait(SOON).expect_code(16);
        assert!(out.stderr.contains("no space to ") && out.stderr.contains("hint: free some space"), "{name}: {out}");
        small.world.args(["gate", MODEL]).run().expect_code(10);
        small.world.args(["status"]).run().expect_code(0);
        let out = small.world.args(["pull", MODEL]).run().expect_code(16);
        assert!(out.stderr.contains("hint"), "{name}: {out}");
        let in_place = |path: &str| small.world.model(MODEL).join(path).exists();
        let sent_of_these = || {
            let files = repo.files().filter(|file| in_place(&file.path));
            files.map(|file| (file.path.clone(), hub.bytes_sent_for(&file.path))).collect::<Vec<_>>()
        };
        let before = sent_of_these();
        drop(filler);
        small.world.args(["pull", MODEL]).run().expect_code(0);
        let after: std::collections::HashMap<_, _> = sent_of_these().into_iter().collect();
        assert!(!before.is_empty() && before.iter().all(|(path, sent)| after[path] == *sent), "{name}: fetched again");
        assert_complete(&small.world.model(MODEL), &repo);
        small.world.args(["gate", MODEL]).run().expect_code(0);
        let sent = hub.total_body_bytes();
        println!("{name}: {sent} of {} bytes", repo.total_bytes());
        // No claim had room: what was under way may come again, a shard of each connection.
        assert!(sent <= repo.total_bytes() + 2 * 8 * MIB, "{name}: {sent} of {} bytes", repo.total_bytes());
    }
}

// class: bounds, words, writers
#[test]
fn a_daemon_on_a_full_disk_pauses_the_job_shows_that_it_lives_and_goes_on_when_there_is_room() {
    if !need(&[Kind::Ext4]) {
        return;
    }
    let repo = shards(20, 2 * MIB);
    let done = RepoSpec::new("org/done").lfs("x.bin", Content::generated(1, MIB));
    let late = RepoSpec::new("org/late").lfs("y.bin", Content::generated(2, 2 * MIB));
    let hub = Hub::with([repo.clone(), done.clone(), late.clone()]);
    let small = Small::ext4(&hub, &["-O", "^extent,^64bit"]);
    let world = &small.world;
    world.args(["pull", "org/done"]).run().expect_code(0);
    let sent_before = hub.total_body_bytes();
    let mut owner = Owner::start(world);
    hub.hold_after(repo.total_bytes() / 2);
    assert_eq!(owner.api.submit(&hub, MODEL, MODEL, None).0, 202);
    hub.wait_for_bytes(sent_before + repo.total_bytes() / 2 - SLACK, SOON);
    let filler = Filler::of(small.disk.at());
    hub.release();

    let paused = |status: &Value, name: &str| {
        let model = status["models"].as_array().into_iter().flatten().find(|model| model["id"] == name);
        model.is_some_and(|model| model["state"] == "paused" && model["error"]["code"] == "no_space")
    };
    wait_until("the job is paused for want of room", SOON, || owner.api.model(MODEL)["state"] == "paused");
    assert_eq!(owner.api.model(MODEL)["error"]["code"], "no_space", "{}", owner.api.model(MODEL));
    let said = world.args(["status"]).run().expect_code(0);
    assert!(said.stdout.contains("no space"), "{said}");
    assert_eq!(owner.api.submit(&hub, "org/late", "org/late", None).0, 202);
    wait_until("the other is paused, too", SOON, || owner.api.model("org/late")["state"] == "paused");
    assert_eq!(owner.api.state("org/done"), "ready", "what is there is not concerned");
    world.args(["gate", "org/done"]).run().expect_code(0);

    // Its signs of life move, for those who cannot ask it, too.
    wait_until("the status file tells", SOON, || paused(&small.status(), MODEL));
    let (counter, written) = (small.counter(), small.status()["written_at"].clone());
    wait_until("the heart beats on a full disk", SOON, || small.counter() > counter);
    wait_until("the status is kept on a full disk", SOON, || {
        small.status()["written_at"].is_string() && small.status()["written_at"] != written
    });
    std::fs::remove_file(&owner.api.socket).unwrap();
    let facts = world.args(["status", "--json"]).run().expect_code(0).json();
    assert_eq!(facts["daemon"]["running"], true, "{facts}");
    assert!(owner.process.is_running());

    let in_place: Vec<_> = repo.files().filter(|file| world.model(MODEL).join(&file.path).exists()).collect();
    let sent = || in_place.iter().map(|file| hub.bytes_sent_for(&file.path)).collect::<Vec<_>>();
    let sent_of_these = sent();
    drop(filler);
    for (name, repo) in [(MODEL, &repo), ("org/late", &late)] {
        let receipt = world.model(name).join(".muster/receipt.json");
        wait_until("it goes on by itself", Duration::from_secs(90), || receipt.exists());
        assert_complete(&world.model(name), repo);
    }
    assert!(!in_place.is_empty() && sent() == sent_of_these, "what had its name is not fetched again");
    let (sent, all) = (hub.total_body_bytes() - sent_before, repo.total_bytes() + late.total_bytes());
    println!("{sent} of {all} bytes");
    // No claim had room: what was under way comes again, which is less than a checkpoint of each file.
    assert!(sent <= all + repo.total_bytes() / 2, "{sent} of {all} bytes");
    owner.process.terminate();
    let out = owner.process.wait(SOON).expect_code(0);
    let warned = out.stderr.lines().filter(|line| line.contains("status file")).count();
    assert!(warned <= 3, "it does not repeat itself: {out}");
}

// class: bounds
#[test]
fn a_disk_that_is_full_from_the_start_is_told_and_still_answers_and_gates() {
    if !need(&[]) {
        return;
    }
    let done = RepoSpec::new("org/done").lfs("x.bin", Content::generated(1, MIB));
    let hub = Hub::with([shards(2, MIB), done]);
    let small = Small::tmpfs(&hub, "size=16m");
    let world = &small.world;
    world.args(["pull", "org/done"]).run().expect_code(0);
    let _filler = Filler::of(small.disk.at());
    for args in [&["pull", MODEL][..], &["daemon"]] {
        let out = world.args(args.iter()).run().expect_code(16);
        assert!(out.stderr.contains("space") && out.stderr.contains("hint"), "{out}");
    }
    let sent = hub.total_body_bytes();
    world.args(["pull", "org/done"]).run().expect_code(0);
    world.args(["gate", "org/done"]).run().expect_code(0);
    world.args(["status"]).run().expect_code(0);
    assert_eq!(hub.total_body_bytes(), sent);
}

// class: bounds
#[test]
fn a_disk_without_inodes_is_full_too_and_the_hint_says_inodes() {
    if !need(&[]) {
        return;
    }
    let repo = (0..60)
        .fold(RepoSpec::new(MODEL), |repo, at| repo.lfs(&format!("data/{at:03}.bin"), Content::generated(at, 20_000)));
    let hub = Hub::start(repo.clone());
    let small = Small::tmpfs(&hub, "size=64m,nr_inodes=50");
    let out = small.world.args(["pull", MODEL]).run().expect_code(16);
    assert!(out.stderr.contains("inodes"), "{out}");
    small.world.args(["gate", MODEL]).run().expect_code(10);
    small.disk.remount("nr_inodes=500");
    let sent = hub.total_body_bytes();
    assert!(sent > 0);
    small.world.args(["pull", MODEL]).run().expect_code(0);
    assert_complete(&small.world.model(MODEL), &repo);
    assert!(hub.total_body_bytes() <= repo.total_bytes() + MIB / 2, "{}", hub.total_body_bytes());
}

// class: store, bounds
#[test]
fn a_store_whose_disk_is_full_stops_no_pull() {
    if !need(&[]) {
        return;
    }
    let repo = shards(40, MIB / 4);
    let hub = Hub::start(repo.clone());
    let small = Small::tmpfs(&hub, "size=4m");
    let world = Muster::on(&hub).env("MUSTER_STATE_DIR", small.disk.at().join("state"));
    hub.hold_after(repo.total_bytes() / 2);
    let child = world.args(["pull", MODEL]).spawn();
    hub.wait_for_bytes(repo.total_bytes() / 2 - SLACK, SOON);
    let _filler = Filler::of(small.disk.at());
    hub.release();
    child.wait(SOON).expect_code(0);
    assert_complete(&world.model(MODEL), &repo);
    world.args(["gate", MODEL]).run().expect_code(0);
    assert_eq!(hub.total_body_bytes(), repo.total_bytes());

    // A start finds no place for a store, and says where to put one.
    std::fs::remove_dir_all(world.model(MODEL)).unwrap();
    let out = world.args(["pull", MODEL]).run();
    assert!(matches!(out.code, Some(0 | 16 | 18)), "{out}");
    assert!(out.code == Some(0) || out.stderr.contains("--state-dir"), "{out}");
}

// class: permissions
#[test]
fn a_disk_that_turns_read_only_ends_a_pull_with_its_name_and_the_next_one_goes_on() {
    if !need(&[Kind::Ext4]) {
        return;
    }
    let repo = shards(5, 8 * MIB);
    let hub = Hub::start(repo.clone());
    let small = Small::ext4(&hub, &["-e", "remount-ro"]);
    hub.hold_after(repo.total_bytes() / 2);
    let child = small.world.args(["pull", MODEL]).spawn();
    hub.wait_for_bytes(repo.total_bytes() / 2 - SLACK, SOON);
    // As an error of the device does it: the kernel takes the file system out of service.
    let device = small.disk.device().file_name().unwrap().to_str().unwrap().to_owned();
    std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "a drill").unwrap();
    hub.release();
    let out = child.wait(SOON).expect_code(18);
    // Whichever step met it first: a write is refused, and a sync fails.
    let named = ["read-only file system", "Input/output error"].iter().any(|words| out.stderr.contains(words));
    assert!(named && out.stderr.contains("hint"), "{out}");
    small.world.args(["gate", MODEL]).run().expect_code(10);
    small.world.args(["status"]).run().expect_code(0);

    let Small { world, disk, place } = small;
    let (image, at) = (place.path().join("image"), disk.at().to_owned());
    disk.unmount();
    let checked = Command::new("e2fsck").args(["-f", "-y"]).arg(&image).output().unwrap();
    assert!(checked.status.code().is_some_and(|code| code < 4), "{checked:?}");
    let disk = Disk::mount(&image, Kind::Ext4, "", &at);
    world.args(["pull", MODEL]).run().expect_code(0);
    assert_complete(&world.model(MODEL), &repo);
    world.args(["gate", MODEL]).run().expect_code(0);
    println!("{} of {} bytes", hub.total_body_bytes(), repo.total_bytes());
    drop((world, disk, place));
}

// class: bounds
#[test]
fn a_quota_that_is_used_up_is_named_and_the_next_pull_goes_on() {
    if !need(&[Kind::Btrfs]) {
        return;
    }
    let repo = shards(5, 8 * MIB);
    let hub = Hub::start(repo.clone());
    let small = Small::new(&hub, |image, at| Disk::make(image, 256 * MIB, Kind::Btrfs, &[], at));
    let btrfs = |args: &[&str]| {
        let out = Command::new("btrfs").args(args).arg(small.disk.at()).output().unwrap();
        assert!(out.status.success(), "{out:?}");
    };
    btrfs(&["quota", "enable"]);
    btrfs(&["qgroup", "limit", "24M"]);
    let out = small.world.args(["pull", MODEL, "--connections", "1"]).run().expect_code(16);
    assert!(out.stderr.contains("no space to ") && out.stderr.contains("the quota of this user or group"), "{out}");
    small.world.args(["gate", MODEL]).run().expect_code(10);
    btrfs(&["qgroup", "limit", "none"]);
    small.world.args(["pull", MODEL]).run().expect_code(0);
    assert_complete(&small.world.model(MODEL), &repo);
    let sent = hub.total_body_bytes();
    println!("{sent} of {} bytes", repo.total_bytes());
    // What of the file at work had not been synced is lost with the write that was refused.
    assert!(sent <= repo.total_bytes() + 8 * MIB, "{sent} of {} bytes", repo.total_bytes());
}
