//! Repair: what is wrong is replaced, what is right of it is kept, and at no instant anything wrong gets a final
//! name (P1 to P4).
//!
//! `MUSTER_REPAIR_MIB` is the size of the shard of one flipped byte (256; 4096 is the reference),
//! `MUSTER_REPAIR_SHARDS` (12), `MUSTER_REPAIR_DAMAGES` (24) and `MUSTER_REPAIR_SEED` say how much is damaged at
//! random (119 and 200 are the reference).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures, and the seed that repeats them")]
#![allow(clippy::cast_possible_truncation, reason = "sizes of buffers on 64-bit Linux")]
#![allow(unreachable_pub, reason = "`pub` says what the test uses")]

#[path = "repair/damage.rs"]
mod damage;
#[path = "repair/sight.rs"]
mod sight;
mod support;

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use damage::*;
use serde_json::Value;
use sight::Sight;
use support::*;

const MODEL: &str = "org/model";
const SOON: Duration = Duration::from_secs(60);
/// What may travel twice of a file, where two connections share what is left of it.
const TWICE: u64 = 4 * MIB;
const LONG: Duration = Duration::from_secs(600);
const SHARD: &str = "model-00001-of-000002.safetensors";
const SCHEMA: &str = include_str!("../src/api/schema/repair.v1.json");
const STATUS: &str = include_str!("../src/api/schema/status.v1.json");

/// A model of two shards of three blocks each, pulled.
struct Site {
    world: Muster,
    hub: Hub,
    repo: RepoSpec,
}

impl Site {
    fn new() -> Self {
        Self::of(2, 33 * MIB)
    }

    fn of(shards: usize, bytes: u64) -> Self {
        let repo = RepoSpec::kimi(shards, bytes, 2).named(MODEL);
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub);
        world.args(["pull", MODEL]).time_limit(LONG).run().expect_code(0);
        hub.forget();
        Self { world, hub, repo }
    }

    fn directory(&self) -> PathBuf {
        self.world.model(MODEL)
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory().join(file)
    }

    /// One wrong byte in the second block of a shard, which no identity shows.
    fn rot(&self) {
        flip_byte(&self.path(SHARD), BLOCK + 5);
        hide(&self.directory(), SHARD);
    }

    fn repair(&self, args: &[&str]) -> Invocation {
        self.world.args(["repair", MODEL].iter().chain(args)).time_limit(LONG)
    }

    fn gate(&self) -> Output {
        self.world.args(["gate", MODEL, "--no-remember"]).run()
    }

    #[track_caller]
    fn assert_repaired(&self) {
        assert_complete(&self.directory(), &self.repo);
        assert!(!self.path(".muster/wrong.json").exists(), "nobody is condemned any more");
        self.gate().expect_code(0);
        self.world.args(["gate", MODEL, "--no-remember", "--full"]).time_limit(LONG).run().expect_code(0);
    }

    fn fetched(&self) -> u64 {
        self.hub.total_body_bytes()
    }
}

/// The only file that was repaired, in the JSON that tells of it.
#[track_caller]
fn only(out: &Output) -> Value {
    let json = out.json();
    assert_valid(SCHEMA, &json);
    let files = json["repaired"]["files"].as_array().unwrap();
    assert_eq!(files.len(), 1, "{json:#}");
    files[0].clone()
}

fn set_aside(world: &Muster) -> Vec<String> {
    let folder = world.volume().join(".muster/quarantine");
    listing(&folder).into_iter().filter(|name| !name.ends_with('/')).collect()
}

// class: wrong-bytes, progress-lost
#[test]
fn one_flipped_byte_costs_one_block_and_at_no_instant_a_wrong_file_gets_the_name() {
    let mib = number("MUSTER_REPAIR_MIB").unwrap_or(256);
    let site = Site::of(2, mib * MIB);
    let path = site.path(SHARD);
    flip_byte(&path, mib * MIB / 2 + 12345);
    hide(&site.directory(), SHARD);
    let damaged = std::fs::metadata(&path).unwrap();
    site.gate().expect_code(0);
    let sight = Sight::of(path, site.repo.get(SHARD));
    let start = Instant::now();
    let (out, seen) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| sight.watch());
        let out = {
            let _flag = sight.flag();
            site.repair(&["--json", "--full"]).run().expect_code(0)
        };
        (out, watch.join().unwrap())
    });
    println!("{mib} MiB: {} bytes fetched in {:.1?}; {seen:?}", site.fetched(), start.elapsed());
    assert!(seen.wrong > 0 && seen.right > 0, "{seen:?}");
    assert!(site.fetched() <= BLOCK, "{} bytes fetched", site.fetched());
    let file = only(&out);
    assert_eq!((&file["blocks"], &file["bad_blocks"]), (&(mib / 16).into(), &1.into()));
    assert_eq!(file["bytes_kept"], (mib * MIB - BLOCK));
    // The wrong file lies where it is said to, as it was.
    let aside = Path::new(file["set_aside"].as_str().unwrap()).metadata().unwrap();
    assert_eq!((aside.ino(), aside.mtime_nsec()), (damaged.ino(), damaged.mtime_nsec()));
    site.assert_repaired();
}

// class: wrong-bytes, progress-lost
#[test]
fn whatever_is_damaged_at_random_is_right_again_and_no_good_block_is_fetched() {
    let shards = number("MUSTER_REPAIR_SHARDS").unwrap_or(12) as usize;
    let damages = number("MUSTER_REPAIR_DAMAGES").unwrap_or(24);
    let seed = seed("MUSTER_REPAIR_SEED");
    println!("MUSTER_REPAIR_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let site = Site::of(shards, 2 * BLOCK + MIB);
    let weights: Vec<&FileSpec> = site.repo.files().filter(|file| file.path.ends_with(".safetensors")).collect();
    for n in 0..damages {
        let file = weights[chance.usize(0..weights.len())];
        let damage = Damage::ALL[(n % 7) as usize];
        damage.to(&site.path(&file.path), &mut chance);
    }
    let mut hidden = 0;
    for file in &weights {
        // Half of what a size does not show shows in nothing.
        let same_size = site.path(&file.path).metadata().is_ok_and(|meta| meta.len() == file.content.len());
        if same_size && chance.bool() {
            hide(&site.directory(), &file.path);
            hidden += 1;
        }
    }
    let bad = |file: &&&FileSpec| bad_blocks(&site.path(&file.path), file);
    let each: Vec<_> = weights.iter().map(|file| (file.path.clone(), bad(&file))).collect();
    let (blocks, bytes) = each.iter().fold((0, 0), |sum, (_, (blocks, bytes))| (sum.0 + blocks, sum.1 + bytes));
    let start = Instant::now();
    let out = site.repair(&["--full", "--json"]).run().expect_code(0);
    let fetched: u64 = weights.iter().map(|file| site.hub.bytes_sent_for(&file.path)).sum();
    println!(
        "{damages} damages over {shards} shards, {hidden} unseen: {blocks} bad blocks of {bytes} bytes, {fetched} fetched, {:.1?}",
        start.elapsed()
    );
    for (path, (_, bytes)) in &each {
        let sent = site.hub.bytes_sent_for(path);
        assert!(sent <= bytes + TWICE, "seed {seed}: {path}: {sent} of {bytes} bytes: {out}");
    }
    assert!(fetched <= blocks * BLOCK, "seed {seed}: {fetched}");
    assert_valid(SCHEMA, &out.json());
    site.assert_repaired();
}

// class: looks-complete
#[test]
fn a_model_in_use_is_closed_over_its_wrong_file_and_repaired_when_it_is_left() {
    let site = Site::new();
    site.rot();
    let mut gate = site.world.args(["gate", MODEL, "--hold"]).spawn();
    gate.wait_for_text("open: ", SOON);
    let out = site.repair(&["--full"]).run().expect_code(15);
    assert!(out.stderr.contains("1 of its files is wrong") && out.stderr.contains(SHARD), "{out}");
    assert!(site.path(SHARD).exists(), "what is open keeps its bytes and its name");
    site.gate().expect_code(10);
    // The proof that was set aside does not speak for the wrong file again.
    site.world.args(["pull", MODEL]).run().expect_code(15);
    site.gate().expect_code(10);
    site.repair(&[]).run().expect_code(15);
    gate.terminate();
    gate.wait(SOON);
    site.repair(&[]).run().expect_code(0);
    assert_eq!(site.fetched(), BLOCK);
    site.assert_repaired();
}

// class: looks-complete
#[test]
fn what_verify_found_wrong_is_not_believed_by_a_pull_and_costs_its_block() {
    let site = Site::new();
    site.rot();
    site.world.args(["verify", MODEL]).run().expect_code(11);
    site.gate().expect_code(10);
    site.world.args(["pull", MODEL]).run().expect_code(0);
    assert_eq!(site.fetched(), BLOCK);
    site.assert_repaired();
}

// class: verify-cost
#[test]
fn a_file_that_was_found_wrong_and_is_right_is_hashed_again_and_believed() {
    let site = Site::new();
    let record = receipt(&site.directory()).remove(SHARD).unwrap();
    let list = serde_json::json!({"schema": 1, "files": [{"path": SHARD, "identity": record["identity"]}]});
    std::fs::write(site.path(".muster/wrong.json"), list.to_string()).unwrap();
    std::fs::rename(site.path(".muster/receipt.json"), site.path(".muster/receipt.previous.json")).unwrap();
    let out = site.world.args(["pull", MODEL]).env("MUSTER_LOG", "info").run().expect_code(0);
    assert!(out.stderr.contains(&format!("bytes={}", 33 * MIB)), "that file alone is hashed: {out}");
    assert_eq!(site.hub.total_body_bytes(), 0);
    site.assert_repaired();
}

// class: progress-lost, verify-cost
#[test]
fn a_file_that_was_moved_aside_before_a_crash_still_gives_its_good_blocks() {
    for verb in ["pull", "repair"] {
        let site = Site::new();
        site.rot();
        // As a repair leaves it that is killed between the move and the copy.
        site.world.args(["verify", MODEL, "--quarantine"]).run().expect_code(11);
        assert!(!site.path(SHARD).exists());
        site.world.args([verb, MODEL]).run().expect_code(0);
        assert_eq!(site.fetched(), BLOCK, "{verb}");
        site.assert_repaired();
    }
}

#[test]
fn a_model_with_nothing_wrong_is_read_and_nothing_is_fetched_or_moved() {
    let site = Site::new();
    let inode = |file: &str| std::os::unix::fs::MetadataExt::ino(&site.path(file).metadata().unwrap());
    let before = inode(SHARD);
    let out = site.repair(&[]).run().expect_code(0);
    assert!(out.stdout.contains("nothing to repair"), "{out}");
    let out = site.repair(&["--json"]).run().expect_code(0);
    assert_eq!(out.json()["repaired"]["files"], Value::Array(vec![]));
    assert_eq!((inode(SHARD), site.hub.requests().len()), (before, 0));
    site.assert_repaired();
}

// class: wrong-bytes
#[test]
fn without_digests_of_blocks_the_file_is_fetched_again() {
    let site = Site::new();
    site.rot();
    std::fs::remove_file(site.path(".muster/blocks")).unwrap();
    let file = only(&site.repair(&["--json"]).run().expect_code(0));
    assert_eq!((&file["bad_blocks"], &file["bytes_kept"]), (&Value::Null, &0.into()));
    assert!((33 * MIB..=33 * MIB + TWICE).contains(&site.fetched()), "{}", site.fetched());
    assert!(site.path(".muster/blocks").exists(), "and they are known from now on");
    site.assert_repaired();
}

// class: wrong-bytes
#[test]
fn a_wrong_list_of_digests_costs_a_fetch_and_no_truth() {
    let site = Site::new();
    site.rot();
    let list = site.path(".muster/blocks");
    let before = std::fs::read(&list).unwrap();
    flip_byte(&list, before.len() as u64 - 10);
    site.repair(&["--full"]).run().expect_code(0);
    site.assert_repaired();
}

// class: revision
#[test]
fn a_branch_that_moved_on_is_neither_asked_for_nor_followed() {
    let site = Site::new();
    site.rot();
    site.hub.push(MODEL, "main", |repo| repo.plain("config.json", "{\"of\": \"tomorrow\"}"));
    site.repair(&["--full"]).run().expect_code(0);
    assert_eq!(site.hub.count(Match::info()) + site.hub.count(Match::tree()), 0);
    site.assert_repaired();
}

#[test]
fn only_the_named_files_are_read_and_another_name_is_refused() {
    let site = Site::new();
    site.rot();
    let other = "model-00002-of-000002.safetensors";
    flip_byte(&site.path(other), 7);
    hide(&site.directory(), other);
    only(&site.repair(&[SHARD, "--json"]).run().expect_code(0));
    assert_eq!(site.fetched(), BLOCK);
    site.repair(&["none.bin"]).run().expect_code(2);
    site.repair(&[SHARD, "--full"]).run().expect_code(2);
    site.world.args(["repair", "org/none"]).run().expect_code(13);
    site.repair(&["--from", "/no/such/folder"]).run().expect_code(2);
    site.repair(&["--from", site.directory().to_str().unwrap()]).run().expect_code(2);
    site.repair(&["--full"]).run().expect_code(0);
    site.assert_repaired();
}

// class: progress-lost, bounds
#[test]
fn a_repair_that_cannot_end_says_why_and_keeps_what_came_for_the_next_one() {
    let site = Site::of(2, 129 * MIB);
    flip_byte(&site.path(SHARD), BLOCK + 5);
    flip_byte(&site.path(SHARD), 5 * BLOCK + 5);
    hide(&site.directory(), SHARD);
    // Replacing a file takes no more room than it had; a file that is not there does.
    let away = site.world.home().join("away");
    std::fs::copy(site.path(SHARD), &away).unwrap();
    std::fs::remove_file(site.path(SHARD)).unwrap();
    let short = site.repair(&["--full", "--reserve", "900TB"]).run().expect_code(16);
    assert!(short.stderr.contains("not enough space") && short.stderr.contains("hint: "), "{short}");
    assert_eq!(site.fetched(), 0);
    std::fs::copy(&away, site.path(SHARD)).unwrap();
    site.hub.always(Match::resolve(SHARD), Behaviour::status(403));
    let refused = site.repair(&["--full"]).run().expect_code(17);
    assert!(refused.stderr.contains("403"), "{refused}");
    site.hub.behave();
    site.hub.unreachable(Origin::Hub);
    let away = site.repair(&["--retry-for", "1s"]).run().expect_code(18);
    assert!(away.stderr.contains("127.0.0.1"), "{away}");
    site.hub.reachable(Origin::Hub);
    site.gate().expect_code(10);
    site.hub.forget();
    for (bytes, code) in [(BLOCK / 2, 130), (BLOCK, 143)] {
        site.hub.hold_after(BLOCK / 2);
        let mut stopped = site.repair(&[]).spawn();
        wait_until("bytes come", SOON, || site.fetched() >= bytes - MIB);
        if code == 130 {
            stopped.interrupt();
        } else {
            stopped.terminate();
        }
        stopped.wait(SOON).expect_code(code);
        site.hub.release();
        site.gate().expect_code(10);
    }
    site.repair(&[]).run().expect_code(0);
    assert!(site.fetched() <= 2 * BLOCK + 2 * TWICE, "{} bytes fetched", site.fetched());
    site.assert_repaired();
}

/// A plain copy of the model's files, without what muster knows of them.
fn copy_of(site: &Site) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in site.repo.files() {
        let to = copy.path().join(&file.path);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::write(to, file.content.to_vec()).unwrap();
    }
    copy
}

// class: wrong-bytes, verify-cost
#[test]
fn another_copy_repairs_without_a_network_and_only_what_is_right_of_it_counts() {
    let site = Site::new();
    site.rot();
    std::fs::remove_file(site.path("config.json")).unwrap();
    let copy = copy_of(&site);
    let from = copy.path().to_str().unwrap();
    // One that lies in the very block that is wanted.
    flip_byte(&copy.path().join(SHARD), BLOCK + 999);
    let offline = |arg: &str| site.repair(&["--from", from, arg]).env("HF_HUB_OFFLINE", "1");
    let out = offline("--full").run().expect_code(10);
    assert!(out.stderr.contains(SHARD) && out.stderr.contains("offline") && out.stderr.contains(from), "{out}");
    site.gate().expect_code(10);
    // Elsewhere it may be as wrong as it likes.
    flip_byte(&copy.path().join(SHARD), BLOCK + 999);
    flip_byte(&copy.path().join(SHARD), 3);
    let out = offline("--json").run().expect_code(0);
    let json = out.json();
    assert_valid(SCHEMA, &json);
    assert_eq!((&json["repaired"]["refused"], &json["repaired"]["bytes_fetched"]), (&Value::Array(vec![]), &0.into()));
    let files = json["repaired"]["files"].as_array().unwrap();
    let copied: u64 = files.iter().map(|file| file["bytes_copied"].as_u64().unwrap()).sum();
    assert_eq!(copied, BLOCK, "the other file was copied by the first try: {json:#}");
    assert_eq!(site.hub.requests().len(), 0);
    site.assert_repaired();
}

// class: wrong-bytes, verify-cost
#[test]
fn a_copy_of_a_file_without_digests_is_taken_whole_or_not_at_all() {
    let site = Site::new();
    site.rot();
    std::fs::remove_file(site.path(".muster/blocks")).unwrap();
    let copy = copy_of(&site);
    let from = copy.path().to_str().unwrap();
    flip_byte(&copy.path().join(SHARD), 1);
    let lying = site.repair(&["--full", "--from", from]).env("HF_HUB_OFFLINE", "1").run().expect_code(10);
    assert!(lying.stderr.contains(SHARD), "{lying}");
    flip_byte(&copy.path().join(SHARD), 1);
    let out = site.repair(&["--json", "--from", from]).env("HF_HUB_OFFLINE", "1").run().expect_code(0);
    assert_eq!(only(&out)["bytes_copied"], 33 * MIB);
    site.assert_repaired();
}

// class: wrong-bytes
#[test]
fn what_the_other_copy_has_wrong_comes_from_the_hub_and_is_named() {
    let site = Site::new();
    site.rot();
    let copy = copy_of(&site);
    flip_byte(&copy.path().join(SHARD), BLOCK + 999);
    let out = site.repair(&["--full", "--from", copy.path().to_str().unwrap()]).run().expect_code(0);
    assert!(out.stderr.contains(&format!("{SHARD} has 1 of the wanted blocks wrong")), "{out}");
    assert_eq!(site.fetched(), BLOCK);
    site.assert_repaired();
}

// class: credentials
#[test]
fn a_mirror_brings_what_is_wrong_and_hears_no_token() {
    let site = Site::new();
    site.rot();
    let mirror = Hub::start(site.repo.clone());
    let repair = site.repair(&["--full", "--from", &mirror.url(), "--json"]).env("HF_TOKEN", "hf_secret");
    only(&repair.run().expect_code(0));
    assert_eq!((site.hub.requests().len(), mirror.total_body_bytes()), (0, BLOCK));
    let tokens: Vec<_> =
        mirror.requests().iter().filter_map(|one| one.header("authorization").map(str::to_owned)).collect();
    assert_eq!(tokens, Vec::<String>::new());
    site.assert_repaired();
    // A mirror that lies brings nothing to a final name.
    site.rot();
    let lying = Hub::start(site.repo.clone());
    lying.always(Match::cdn("").get(), Behaviour::FlipByte(BLOCK + 77));
    let out = site.repair(&["--full", "--from", &lying.url()]).run();
    assert!(matches!(out.code, Some(11 | 17)), "{out}");
    assert!(!site.path(SHARD).exists());
    site.gate().expect_code(10);
}

// class: looks-complete
#[test]
fn an_accepted_file_that_is_damaged_cannot_be_fetched_and_closes_the_gate() {
    let site = Site::new();
    std::fs::write(site.path("config.json"), b"{\"mine\": true}").unwrap();
    site.world.args(["accept", MODEL, "config.json", "--reason", "ours"]).run().expect_code(0);
    site.gate().expect_code(0);
    std::fs::write(site.path("config.json"), b"{\"mine\": fals}").unwrap();
    hide(&site.directory(), "config.json");
    site.gate().expect_code(0);
    let out = site.repair(&[]).run().expect_code(11);
    assert!(out.stderr.contains("config.json was accepted here as it was") && out.stderr.contains("hint:"), "{out}");
    site.gate().expect_code(10);
    assert_eq!(site.hub.requests().len(), 0);
    site.world.args(["accept", MODEL, "config.json", "--undo"]).run().expect_code(0);
    site.assert_repaired();
}

// class: writers
#[test]
fn the_owner_of_the_volume_repairs_and_whoever_asked_is_told() {
    let site = Site::new();
    site.rot();
    let mut daemon = site.world.args(["daemon"]).spawn();
    wait_until("a daemon", SOON, || site.world.args(["daemon", "--check"]).run().code == Some(0));
    let out = site.repair(&["--full", "--json"]).run().expect_code(0);
    assert!(out.stderr.contains("does the work"), "{out}");
    assert_eq!(only(&out)["bad_blocks"], 1);
    let status = site.world.args(["status", "--json"]).run().expect_code(0).json();
    assert_valid(STATUS, &status);
    assert_eq!(status["models"][0]["repaired"]["bytes_fetched"], BLOCK);
    assert_eq!(status["models"][0]["state"], "ready");
    daemon.terminate();
    daemon.wait(SOON);
    site.assert_repaired();
}

// class: writers
#[test]
fn the_owner_repairs_by_itself_what_was_in_use_once_it_is_left() {
    let site = Site::new();
    site.rot();
    let mut daemon = site.world.args(["daemon"]).spawn();
    wait_until("a daemon", SOON, || site.world.args(["daemon", "--check"]).run().code == Some(0));
    let mut gate = site.world.args(["gate", MODEL, "--hold"]).spawn();
    gate.wait_for_text("open: ", SOON);
    site.repair(&["--full"]).run().expect_code(15);
    site.gate().expect_code(10);
    gate.terminate();
    gate.wait(SOON);
    wait_until("it is repaired", SOON, || site.path(".muster/receipt.json").exists());
    daemon.terminate();
    daemon.wait(SOON);
    assert_eq!(site.fetched(), BLOCK);
    site.assert_repaired();
}

/// A volume of so many MiB in memory, with two shards of 33 MiB.
fn small(hub: &Hub, mib: u64) -> Result<(Disk, Muster, tempfile::TempDir), String> {
    if let Some(why) = cannot_mount(&[]) {
        return Err(why);
    }
    let place = tempfile::tempdir().unwrap();
    let disk = Disk::tmpfs(&format!("size={mib}m"), &place.path().join("volume"));
    let world = Muster::new(disk.at()).endpoint(hub).env("MUSTER_RESERVE", "0B");
    world.args(["pull", MODEL]).run().expect_code(0);
    hub.forget();
    Ok((disk, world, place))
}

// class: bounds
#[test]
fn with_little_room_no_wrong_file_is_kept_and_with_less_one_gives_no_blocks() {
    let repo = RepoSpec::kimi(2, 33 * MIB, 2).named(MODEL);
    // Room for one more shard: the blocks of each are taken in turn. Then for none before the first has gone.
    for (mib, fetched) in [(110, 2 * BLOCK), (84, 33 * MIB + BLOCK)] {
        let hub = Hub::start(repo.clone());
        let (disk, world, _place) = match small(&hub, mib) {
            Ok(small) => small,
            Err(why) => return skip(&why),
        };
        for n in 1..=2 {
            flip_byte(&world.model(MODEL).join(format!("model-0000{n}-of-000002.safetensors")), 17 * MIB);
        }
        world.args(["repair", MODEL]).run().expect_code(0);
        let sent = hub.total_body_bytes();
        assert!((fetched..=fetched + TWICE).contains(&sent), "{mib} MiB: {sent}");
        assert_eq!(set_aside(&world), Vec::<String>::new());
        assert_complete(&world.model(MODEL), &repo);
        world.args(["gate", MODEL, "--no-remember"]).run().expect_code(0);
        drop(world);
        drop(disk);
    }
}

// class: bounds
#[test]
fn where_the_file_system_can_what_is_kept_shares_its_blocks() {
    if let Some(why) = cannot_mount(&[Kind::Xfs]) {
        return skip(&why);
    }
    let repo = RepoSpec::kimi(2, 65 * MIB, 2).named(MODEL);
    let hub = Hub::start(repo.clone());
    let place = tempfile::tempdir().unwrap();
    let disk = Disk::make(&place.path().join("image"), 640 * MIB, Kind::Xfs, &[], &place.path().join("volume"));
    let world = Muster::new(disk.at()).endpoint(&hub);
    world.args(["pull", MODEL]).run().expect_code(0);
    let free = || {
        rustix::fs::syncfs(std::fs::File::open(disk.at()).unwrap()).unwrap();
        let stat = rustix::fs::statvfs(disk.at()).unwrap();
        stat.f_bavail * stat.f_frsize
    };
    let before = free();
    flip_byte(&world.model(MODEL).join(SHARD), 17 * MIB);
    let out = world.args(["repair", MODEL, "--json"]).run().expect_code(0);
    let file = only(&out);
    assert_eq!((&file["shared"], &file["bytes_kept"]), (&true.into(), &(49 * MIB).into()));
    let took = before.saturating_sub(free());
    assert!(took < 2 * BLOCK, "{took} bytes more are in use");
    assert_complete(&world.model(MODEL), &repo);
}
