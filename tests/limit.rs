//! Limits on bytes a second, and the mode of low impact, through the real binary.
//!
//! Time decides in one direction only: bytes cannot have come sooner than they may. A slow machine
//! takes longer and breaks nothing.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    unreachable_pub,
    dead_code,
    reason = "a test arranges its own world"
)]

mod support;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::*;

const MIB: u64 = 1 << 20;
const LONG: Duration = Duration::from_secs(120);

fn repo(shards: usize, shard_bytes: u64) -> RepoSpec {
    RepoSpec::kimi(shards, shard_bytes, 3).named("org/model")
}

fn limits(world: &Muster) -> Value {
    let limits = world.args(["limit", "--json"]).run().expect_code(0).json();
    assert_valid(include_str!("../src/api/schema/limit.v1.json"), &limits);
    limits
}

/// Asserts that the bytes did not come sooner than `rate` a second allows. What the bucket holds is
/// a tenth of a second's.
fn assert_not_sooner(took: Duration, bytes: u64, rate: f64) {
    let ratio = bytes as f64 / ((took.as_secs_f64() + 0.1) * rate);
    assert!(ratio <= 1.0, "{bytes} bytes in {took:?} are {ratio:.2} times what was allowed");
}

#[test]
fn a_pull_ends_no_sooner_than_its_limit_allows_and_says_why_it_is_slow() {
    let repo = repo(3, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let began = Instant::now();
    let mut pull = world.args(["pull", &repo.id, "--limit", "1MB"]).spawn();
    pull.wait_for_text("limited to 1.0 MB/s", LONG);
    pull.wait(LONG).expect_code(0);
    assert_not_sooner(began.elapsed(), 3 * MIB, 1e6);
    assert_complete(&world.model(&repo.id), &repo);
    let requests = hub.requests().len();
    assert!(requests <= 3 + 2 * 6 + 4, "nothing was asked for twice: {requests}");
}

#[test]
fn the_environment_and_the_configuration_limit_a_pull_too() {
    let repo = repo(2, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let began = Instant::now();
    world.args(["pull", &repo.id, "--to", "one"]).env("MUSTER_LIMIT", "2MB").run().expect_code(0);
    assert_not_sooner(began.elapsed(), 2 * MIB, 2e6);
    let config = world.home().join("muster.toml");
    let all_day = |rate| {
        let hours = format!("[[limits.hours]]\nfrom = \"00:00\"\nto = \"24:00\"\nrate = \"{rate}\"\n");
        std::fs::write(&config, hours).unwrap();
    };
    let pull = |to| world.args(["pull", &repo.id, "--to", to, "--limit", "none", "--config"]).arg(&config);
    all_day("2MB");
    let began = Instant::now();
    pull("two").run().expect_code(0);
    assert_not_sooner(began.elapsed(), 2 * MIB, 2e6);
    // Slow enough to be seen at it.
    all_day("64kB");
    let mut slow = pull("three").spawn();
    slow.wait_for_text("with all others", LONG);
    slow.interrupt();
    slow.wait(LONG).expect_code(130);
}

#[test]
fn a_limit_is_changed_while_bytes_come_and_shows_in_status() {
    let repo = repo(4, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    let began = Instant::now();
    let mut pull = world.args(["pull", &repo.id, "--to", "m", "--limit", "64kB"]).spawn();
    wait_until("bytes come", LONG, || owner.api.model("m")["bytes"]["received"].as_u64().unwrap_or(0) > 0);
    let status = world.args(["status", "--json"]).run().expect_code(0).json();
    assert_valid(include_str!("../src/api/schema/status.v1.json"), &status);
    assert_eq!(status["models"][0]["limit"]["bytes_per_s"], 64_000, "{status}");
    assert_eq!(status["models"][0]["limit"]["of"], "job");
    let shown = world.args(["status"]).run().expect_code(0).stdout;
    assert!(shown.contains("limited to 64 kB/s") && !shown.contains("no bytes"), "{shown}");
    // One limit at a time; the lower of the two counts.
    let out = world.args(["limit", "--all", "32kB"]).run().expect_code(0);
    assert!(out.stdout.contains("all together  32 kB/s  (muster limit)"), "{out}");
    assert!(out.stdout.contains("m  64 kB/s"), "{out}");
    assert_eq!(owner.api.model("m")["limit"]["of"], "volume");
    let received = owner.api.model("m")["bytes"]["received"].as_u64().unwrap();
    assert_not_sooner(began.elapsed(), received, 64e3);
    assert!(pull.is_running(), "16 MiB at 32 kB/s take eight minutes");
    world.args(["limit", "--all", "none"]).run().expect_code(0);
    let out = world.args(["limit", "m", "none"]).run().expect_code(0);
    assert!(out.stdout.contains("m  no limit  (asked for)"), "{out}");
    assert!(owner.api.model("m").get("limit").is_none());
    // At the old limit it would take four minutes and more.
    pull.wait(LONG).expect_code(0);
    assert_complete(&world.model("m"), &repo);
}

#[test]
fn limits_outlive_the_daemon() {
    let repo = repo(4, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let mut owner = Owner::start(&world);
    owner.api.submit(&hub, &repo.id, "m", None);
    world.args(["limit", "m", "64KiB"]).run().expect_code(0);
    world.args(["limit", "--all", "1MiB/s"]).run().expect_code(0);
    let before = limits(&world);
    assert_eq!(before["volume"]["bytes_per_s"], MIB);
    assert_eq!(before["models"][0]["bytes_per_s"], 65536);
    owner.process.terminate();
    owner.process.wait(LONG).expect_code(0);
    let owner = Owner::start(&world);
    assert_eq!(limits(&world), before);
    // Asked for again without a word about it, it keeps its limit.
    world.args(["pause", "m"]).run().expect_code(0);
    owner.api.submit(&hub, &repo.id, "m", None);
    assert_eq!(limits(&world), before);
    world.args(["limit", "--all", "auto"]).run().expect_code(0);
    assert!(limits(&world)["volume"]["bytes_per_s"].is_null());
}

#[test]
fn a_hangup_takes_the_limits_that_the_configuration_says_now() {
    let repo = repo(2, MIB);
    let hub = Hub::start(repo);
    let world = Muster::on(&hub);
    let config = world.home().join("muster.toml");
    let say = |text: &str| std::fs::write(&config, text).unwrap();
    say("[limits]\nvolume = \"3MB\"\n");
    let mut owner = Owner::start_with(&world, &["--config", config.to_str().unwrap()]);
    let volume = || limits(&world)["volume"].clone();
    assert_eq!(volume()["bytes_per_s"], 3_000_000);
    assert!(volume()["why"].as_str().unwrap().ends_with("muster.toml line 2"), "{}", volume());
    say("limits.volume = \"5MB\"\n[[limits.hours]]\nfrom = \"00:00\"\nto = \"24:00\"\nrate = \"4MB\"\n");
    owner.process.signal(Signal::HUP);
    wait_until("the timetable holds", LONG, || volume()["bytes_per_s"] == 4_000_000);
    assert!(volume()["why"].as_str().unwrap().ends_with("00:00 to 24:00"), "{}", volume());
    // What cannot be read changes nothing.
    say("[limits]\nvolume = \"5M\"\n");
    owner.process.signal(Signal::HUP);
    wait_until("it is told", LONG, || owner.process.stderr_so_far().contains("is not usable"));
    assert_eq!(volume()["bytes_per_s"], 4_000_000);
    say("");
    owner.process.signal(Signal::HUP);
    wait_until("nothing holds", LONG, || volume()["bytes_per_s"].is_null());
    assert!(!owner.process.stderr_so_far().contains("with a restart"), "{}", owner.process.stderr_so_far());
}

#[test]
fn what_is_no_limit_is_refused_and_without_an_owner_nobody_can_be_asked() {
    let world = Muster::new(tempfile::tempdir().unwrap().keep());
    let out = world.args(["pull", "a/b", "--limit", "10M"]).run().expect_code(2);
    assert!(out.stderr.contains("10MB (10000000 bytes)") && out.stderr.contains("10MiB"), "{out}");
    for (words, part) in [
        (&["limit", "--all"][..], "RATE"),
        (&["limit", "--all", "m", "1MB"], "MODEL"),
        (&["limit", "m", "10M"], "10MiB"),
        (&["limit", "m", "5B"], "pause"),
    ] {
        let out = world.args(words).run().expect_code(2);
        assert!(out.stderr.contains(part), "{words:?}: {out}");
    }
    for words in [&["limit"][..], &["limit", "--all", "1MB"], &["limit", "m", "1MB"]] {
        world.args(words).run().expect_code(14);
    }
    std::fs::remove_dir_all(world.volume()).unwrap();
}

/// Pages of a file in the cache; `None` where that cannot be told.
fn resident(path: &Path) -> Option<u64> {
    let out = Command::new("fincore").args(["--bytes", "--noheadings", "--output", "pages"]).arg(path).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().parse().ok()).flatten()
}

fn pages(world: &Muster, repo: &RepoSpec, name: &str) -> Option<u64> {
    repo.files().map(|file| resident(&world.model(name).join(&file.path))).sum()
}

#[test]
fn a_pull_of_low_impact_leaves_nothing_in_the_page_cache() {
    // Larger ones go past the page cache anyway, where the file system is good at that.
    let repo = repo(3, 3 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    world.args(["pull", &repo.id, "--to", "usual"]).run().expect_code(0);
    world.args(["pull", &repo.id, "--to", "quiet", "--low-impact"]).run().expect_code(0);
    let (Some(usual), Some(quiet)) = (pages(&world, &repo, "usual"), pages(&world, &repo, "quiet")) else {
        return skip("fincore (util-linux) is not there");
    };
    if quiet > 0 && on_memory(world.volume()) {
        return skip("the volume is in memory, which has no other place for its pages");
    }
    assert!(usual >= 3 * 768 * 9 / 10, "{usual} pages without it");
    assert_eq!(quiet, 0, "pages left");
    world.args(["verify", "quiet", "--low-impact"]).run().expect_code(0);
    assert_eq!(pages(&world, &repo, "quiet"), Some(0), "after hashing it again");
}

#[test]
fn what_is_to_stay_cached_is_in_memory_after_the_pull() {
    let repo = repo(2, 8 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    world.args(["pull", &repo.id, "--to", "warm", "--keep-cached"]).run().expect_code(0);
    world.clone().env("MUSTER_KEEP_CACHED", "true").args(["pull", &repo.id, "--to", "too"]).run().expect_code(0);
    let (Some(warm), Some(too)) = (pages(&world, &repo, "warm"), pages(&world, &repo, "too")) else {
        return skip("fincore (util-linux) is not there");
    };
    // The kernel may take some back when it wants memory; without the flag it has none of them.
    let most = 4096 * 9 / 10;
    assert!(warm >= most && too >= most, "{warm} and {too} of 4096 pages of shards");
    let out = world.args(["pull", &repo.id, "--keep-cached", "--low-impact"]).run().expect_code(2);
    assert!(out.stderr.contains("--keep-cached") && out.stderr.contains("--low-impact"), "{out}");
}

fn on_memory(path: &Path) -> bool {
    let kind = Command::new("stat").args(["-f", "-c", "%T"]).arg(path).output().unwrap().stdout;
    matches!(String::from_utf8_lossy(&kind).trim(), "tmpfs" | "ramfs")
}

/// The name and the nice value of each thread.
fn threads(pid: u32) -> Vec<(String, i32)> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let stat = |entry: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(entry.unwrap().path().join("stat"));
    let parse = |stat: String| {
        let (name, rest) = stat.split_once('(').unwrap().1.rsplit_once(')').unwrap();
        // `nice` is field 19; what is left begins with field 3.
        (name.to_owned(), rest.split_whitespace().nth(16).unwrap().parse().unwrap())
    };
    tasks.filter_map(|entry| stat(entry).ok().map(parse)).collect()
}

#[test]
fn in_low_impact_what_fetches_yields_to_everybody_and_what_answers_does_not() {
    let repo = repo(2, 4 * MIB);
    let hub = Hub::start(repo.clone());
    for (flags, least) in [(&["--low-impact"][..], true), (&[], false)] {
        let world = Muster::on(&hub);
        let owner = Owner::start_with(&world, flags);
        owner.api.submit(&hub, &repo.id, "m", None);
        wait_until("it is there", LONG, || owner.api.state("m") == "ready");
        let threads = threads(owner.process.id());
        let usual = self::threads(std::process::id())[0].1;
        let data: Vec<_> = threads.iter().filter(|(name, _)| name.starts_with("muster-data")).collect();
        assert!(data.len() >= 2, "{threads:?}");
        assert!(data.iter().all(|(_, nice)| *nice == if least { 19 } else { usual }), "{threads:?}");
        let answers = |name: &str| name.starts_with("tokio-rt") || name == "muster";
        let others: Vec<_> = threads.iter().filter(|(name, _)| answers(name)).collect();
        assert!(others.len() > 2 && others.iter().all(|(_, nice)| *nice == usual), "{threads:?}");
    }
}
