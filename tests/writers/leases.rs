//! Drills that wait for a lease, which is 30 s long, and others that take long: all of them run beside
//! each other, and each test tells how its own one ended.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use super::ground::*;
use super::host::*;
use super::support::*;

/// A watcher looks every second or two: what it takes was silent for a lease when it last looked.
const NOT_BEFORE: Duration = Duration::from_secs(20);

type Drill = (&'static str, fn());
/// Makes two hosts, or says why not.
type Make = fn(&Hub) -> Option<Pair>;

const DRILLS: &[Drill] = &[
    ("stopped_here", stopped_here),
    ("live_in_a_container", || live_there(Pair::containers)),
    ("live_on_a_machine", || live_there(Pair::machines)),
    ("dead_in_a_container", || dead_there(Pair::containers)),
    ("dead_on_a_machine", || dead_there(Pair::machines)),
    ("sleeps_in_a_container", || sleeps_through_an_update(Pair::containers)),
    ("sleeps_on_a_machine", || sleeps_through_an_update(Pair::machines)),
    ("daemon_after_daemon", daemon_after_daemon),
    ("odd_records", odd_records),
    ("renames_under_way", super::late::renames_under_way),
    ("readers", super::readers::readers),
    ("swapped_links", super::links::swapped_links),
];

/// How each drill ended; the words of its panic if it failed.
static ENDED: LazyLock<BTreeMap<&'static str, Result<(), String>>> = LazyLock::new(|| {
    let run = |(name, drill): &Drill| {
        let ended = catch_unwind(AssertUnwindSafe(drill)).map_err(|panic| words_of(&*panic));
        (*name, ended)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = DRILLS
            .iter()
            .map(|drill| {
                let named = std::thread::Builder::new().name(drill.0.to_owned());
                named.spawn_scoped(scope, move || run(drill)).unwrap()
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
});

/// What a panic said.
pub fn words_of(panic: &(dyn Any + Send)) -> String {
    let words = panic.downcast_ref::<String>().cloned();
    words.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
}

#[track_caller]
pub fn ended_well(name: &str) {
    if let Err(words) = &ENDED[name] {
        panic!("{words}");
    }
}

// class: writers
#[test]
fn a_writer_that_stands_still_here_loses_the_volume_after_a_lease_and_touches_nothing_later() {
    ended_well("stopped_here");
}

fn stopped_here() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    let held = hold(&hub, &repo);
    let first = world.args(["pull", "org/model"]).spawn();
    wait_for_hold(&directory, &repo, &held);
    freeze(first.id());
    let began = Instant::now();
    let out = world.args(["pull", "org/model", "--no-wait"]).run().expect_code(15);
    assert!(out.stderr.contains(&format!("process {}", first.id())) && out.stderr.contains("heartbeat"), "{out}");
    let mut second = world.args(["pull", "org/model"]).spawn();
    second.wait_for_text("waiting for it", SOON);
    let_go(&hub);
    second.wait(AFTER_A_LEASE).expect_code(0);
    assert!(began.elapsed() > NOT_BEFORE, "it was robbed after {:?}", began.elapsed());
    assert_complete(&directory, &repo);
    wakes_up_late(&world, &repo, first.id(), first);
}

/// A writer that lost the volume is continued: it says so, and changes nothing that is published.
fn wakes_up_late(world: &Muster, repo: &RepoSpec, id: u32, writer: Child) {
    let directory = world.model("org/model");
    let before = published(&directory);
    let status = status_of(world);
    thaw(id);
    let out = writer.wait(SOON).expect_code(15);
    assert!(out.stderr.contains("another process has taken the volume"), "{out}");
    assert_eq!(published(&directory), before, "a late writer changed what is published");
    assert_eq!(status_of(world), status, "a late writer told the story of the volume");
    assert_complete(&directory, repo);
    world.args(["gate", "org/model", "--full"]).run().expect_code(0);
}

fn status_of(world: &Muster) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(world.volume().join(".muster/status.json")).unwrap()).unwrap()
}

// class: writers
#[test]
fn a_live_owner_on_another_host_is_named_followed_and_never_robbed() {
    ended_well("live_in_a_container");
    ended_well("live_on_a_machine");
}

fn live_there(make: Make) {
    let repo = shards();
    let hub = Hub::with([repo.clone(), RepoSpec::new("org/other").plain("config.json", "{}")]);
    let Some(pair) = make(&hub) else { return };
    let Pair { here, there, world, .. } = &pair;
    let directory = pair.directory();
    let held = hold(&hub, &repo);
    let first = there.start(["pull", "org/model"]);
    wait_for_hold(&directory, &repo, &held);
    let out = here.start(["pull", "org/model", "--no-wait"]).child.wait(SOON).expect_code(15);
    assert!(out.stderr.contains("process 1 on node") && out.stderr.contains("heartbeat"), "{out}");
    let mut same = here.start(["pull", "org/model"]);
    same.child.wait_for_text("waiting for it", SOON);
    let mut other = here.start(["pull", "org/other"]);
    other.child.wait_for_text("waiting for it", SOON);
    let began = Instant::now();
    let record = || owner(world.volume()).1.unwrap();
    let counter = |record: &serde_json::Value| record["counter"].as_u64().unwrap();
    let before = record();
    // Three heartbeats and more: a lease has gone by.
    wait_until("a lease goes by", AFTER_A_LEASE, || began.elapsed() > LEASE + Duration::from_secs(5));
    let now = record();
    assert_eq!(now["writer"], before["writer"], "a live owner was robbed: {now}");
    assert!(counter(&now) >= counter(&before) + 3, "it beats: {now}");
    assert!(same.child.is_running() && other.child.is_running());
    let_go(&hub);
    hub.cut(Origin::Cdn);
    first.child.wait(SOON).expect_code(0);
    let out = same.child.wait(SOON).expect_code(0);
    assert!(out.stdout.trim_end().ends_with("/org/model"), "{out}");
    other.child.wait(SOON).expect_code(0);
    assert_complete(&directory, &repo);
    let sent: u64 = repo.files().map(|file| hub.bytes_sent_for(&file.path)).sum();
    assert!(sent <= repo.total_bytes() * 105 / 100 + 64 * 1024, "{sent} of {} bytes", repo.total_bytes());
}

// class: writers
#[test]
fn an_owner_on_another_host_that_lost_its_power_is_succeeded_after_its_lease_and_not_before() {
    ended_well("dead_in_a_container");
    ended_well("dead_on_a_machine");
}

fn dead_there(make: Make) {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let Some(pair) = make(&hub) else { return };
    let Pair { here, there, world, .. } = &pair;
    let directory = pair.directory();
    let held = hold(&hub, &repo);
    let first = there.start(["pull", "org/model"]);
    wait_for_hold(&directory, &repo, &held);
    first.kill();
    drop(first);
    hub.cut(Origin::Cdn);
    let_go(&hub);
    let last_beat = std::fs::metadata(world.volume().join(".muster/owners/1.json")).unwrap().modified().unwrap();
    let mut second = here.start(["pull", "org/model"]);
    second.child.wait_for_text("waiting for it", SOON);
    wait_until("the volume is taken over", AFTER_A_LEASE, || owner(world.volume()).0 == 2);
    let waited = last_beat.elapsed().unwrap();
    assert!(waited >= LEASE, "taken after {waited:?}");
    second.child.wait(SOON).expect_code(0);
    assert_complete(&directory, &repo);
    let sent = hub.total_body_bytes();
    // What was claimed is copied; what was only received is fetched again.
    let most = repo.total_bytes() + held.len() as u64 * MIB;
    assert!(sent <= most, "{sent} of {} bytes", repo.total_bytes());
    assert!(!listing(&directory).iter().any(|name| name.contains("fenced")), "{:?}", listing(&directory));
    world.args(["gate", "org/model", "--full"]).run().expect_code(0);
}

// class: writers
#[test]
fn a_writer_on_another_host_that_sleeps_through_an_update_wakes_up_to_a_taken_volume() {
    ended_well("sleeps_in_a_container");
    ended_well("sleeps_on_a_machine");
}

fn sleeps_through_an_update(make: Make) {
    let old = shards();
    let hub = Hub::start(old.clone());
    let Some(pair) = make(&hub) else { return };
    let Pair { here, there, world, .. } = &pair;
    let directory = pair.directory();
    here.start(["pull", "org/model"]).child.wait(SOON).expect_code(0);
    let names: Vec<_> =
        old.files().filter(|file| file.path.ends_with(".safetensors")).map(|f| f.path.clone()).collect();
    let edit = |seed: u64| {
        let names = names.clone();
        move |repo: RepoSpec| {
            repo.lfs(&names[0], Content::generated(seed, 2 * MIB)).lfs(&names[1], Content::generated(seed + 1, 2 * MIB))
        }
    };
    hub.push("org/model", "main", edit(70));
    hub.always(Match::cdn(&names[1]), Behaviour::StallAt(MIB));
    let first = there.start(["pull", "org/model"]);
    let half = |file: &str| partial_of(&directory, file).and_then(|path| Some(std::fs::metadata(path).ok()?.len()));
    wait_until("half of the update is there", SOON, || {
        half(&names[0]) == Some(2 * MIB) && half(&names[1]) == Some(MIB)
    });
    let frozen = first.outer_id();
    freeze(frozen);
    world.args(["gate", "org/model"]).run().expect_code(0);
    let_go(&hub);
    let newest = hub.push("org/model", "main", edit(80));
    let mut second = here.start(["pull", "org/model"]);
    second.child.wait_for_text("waiting for it", SOON);
    second.child.wait(AFTER_A_LEASE).expect_code(0);
    let repo = hub.repo("org/model");
    wakes_up_late(world, &repo, frozen, first.child);
    world.args(["gate", "org/model", "--revision", &newest]).run().expect_code(0);
}

// class: writers
#[test]
fn a_daemon_takes_over_the_jobs_of_one_that_died_on_another_host() {
    ended_well("daemon_after_daemon");
}

fn daemon_after_daemon() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let Some(pair) = Pair::containers(&hub) else { return };
    let world = &pair.world;
    let directory = world.model("org/model");
    let held = hold(&hub, &repo);
    let mut first = Host::in_world(world, "node-a").start(["daemon"]);
    first.child.wait_for_text("muster daemon owns", SOON);
    // A second one by mistake, beside a live one on another host: it sees a sign of life and ends.
    let by_mistake = Host::in_world(world, "node-b").start(["daemon"]);
    let out = by_mistake.child.wait(SOON).expect_code(15);
    assert!(out.stderr.contains("process 1 on node-a") && out.stderr.contains("heartbeat"), "{out}");
    let view = first.inside(&["pull", "org/model"]);
    wait_for_hold(&directory, &repo, &held);
    first.kill();
    drop((first, view));
    hub.cut(Origin::Cdn);
    let_go(&hub);
    let began = Instant::now();
    let mut second = Host::in_world(world, "node-b").start(["daemon"]);
    second.child.wait_for_text("waiting whether it shows a sign of life", SOON);
    second.child.wait_for_text("muster daemon owns", AFTER_A_LEASE);
    assert!(began.elapsed() > NOT_BEFORE, "{:?}", began.elapsed());
    wait_until("the job goes on by itself", SOON, || directory.join(".muster/receipt.json").exists());
    assert_complete(&directory, &repo);
}

// class: writers
#[test]
fn a_rename_under_way_when_the_volume_is_lost_meets_nothing_or_goes_back() {
    ended_well("renames_under_way");
}

// class: writers
#[test]
fn a_record_that_says_nothing_or_lies_is_waited_for_one_lease_and_no_longer() {
    ended_well("odd_records");
}

type Change<'a> = &'a (dyn Fn(&mut serde_json::Value) + Sync);

/// What stands in the highest record, and how the pull that finds it ends.
fn odd_records() {
    let repo = RepoSpec::kimi(1, MIB, 2).named("org/model");
    let hub = Hub::with([repo.clone(), RepoSpec::new("org/other").plain("config.json", "{}")]);
    let hub = &hub;
    let repo = &repo;
    let later = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_hours(1000)).unwrap().to_string();
    let max = u64::MAX.to_string();
    let odd: &[(&str, &str, Change<'_>)] = &[
        ("of the future", "7", &|record| record["beat_at"] = later.as_str().into()),
        ("of another host, with a pid that exists here", "7", &|record| record["pid"] = std::process::id().into()),
        ("of the highest number but one", "18446744073709551613", &|_| {}),
        ("of the highest number", &max, &|_| {}),
        ("empty", "7", &|record| *record = serde_json::Value::Null),
        ("half", "7", &|record| *record = "half".into()),
        ("a folder", "7", &|record| *record = "folder".into()),
    ];
    std::thread::scope(|scope| {
        let check = |(what, epoch, change): &(&str, &str, Change<'_>)| {
            let world = Muster::on(hub);
            world.args(["pull", "org/other"]).run().expect_code(0);
            own_elsewhere(world.volume(), 4242, "node-17");
            let owners = world.volume().join(".muster/owners");
            let mut record: serde_json::Value =
                serde_json::from_slice(&std::fs::read(owners.join("2.json")).unwrap()).unwrap();
            record["epoch"] = epoch.parse::<u64>().unwrap().into();
            record["writer"] = format!("{epoch}-00000001").into();
            change(&mut record);
            let path = owners.join(format!("{epoch}.json"));
            match record.as_str() {
                Some("half") => std::fs::write(path, r#"{"schema": 1, "epo"#).unwrap(),
                Some(_) => std::fs::create_dir(path).unwrap(),
                None if record.is_null() => std::fs::write(path, "").unwrap(),
                None => std::fs::write(path, record.to_string()).unwrap(),
            }
            let out = world.args(["pull", "org/model", "--no-wait"]).run().expect_code(15);
            assert!(!out.stderr.contains("heartbeat -"), "{what}: {out}");
            let began = Instant::now();
            let out = world.args(["pull", "org/model"]).time_limit(AFTER_A_LEASE).run();
            assert!(began.elapsed() >= LEASE, "{what}: {out}");
            if *epoch == max {
                assert_eq!(out.code, Some(18), "{what}: {out}");
                assert!(out.stderr.contains(&max) && out.stderr.contains("hint:"), "{what}: {out}");
                assert!(!world.model("org/model").exists());
            } else {
                assert_eq!(out.code, Some(0), "{what}: {out}");
                assert_complete(&world.model("org/model"), repo);
            }
        };
        let threads: Vec<_> = odd.iter().map(|case| scope.spawn(move || check(case))).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}
