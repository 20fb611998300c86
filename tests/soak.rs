//! A long life in a bad world: the reference job of 119 shards from a hub that drops, lies and stalls, by a daemon that
//! is killed, stopped and robbed of its store; and one daemon that lives through many jobs.
//!
//! `tests/soak --kills N --seed S` runs it for as long as one likes; as a test it is short.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures for whoever runs it at length")]

mod support;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// A pull from such a hub, with all its retries.
const LONG: Duration = Duration::from_secs(300);
/// Of a thousand answers.
const ODDS: Odds = Odds { drops: 40, lies: 15, stalls: 8 };
/// What one process may have in memory, whatever happens to it.
const MEMORY_MAX_KIB: u64 = 200 << 10;
const MODEL: &str = "org/model";

fn world(hub: &Hub) -> Muster {
    let short = ["MUSTER_CONNECT_TIMEOUT", "MUSTER_HEADER_TIMEOUT", "MUSTER_IDLE_TIMEOUT"];
    short.into_iter().fold(Muster::on(hub), |world, name| world.env(name, "1s"))
}

/// Figures of a process: descriptors, threads, memory now and at most.
#[derive(Clone, Copy, Debug)]
struct Figures {
    descriptors: usize,
    threads: u64,
    memory_kib: u64,
    peak_kib: u64,
}

impl Figures {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let figure = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse().unwrap()
        };
        Self {
            descriptors: std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count(),
            threads: figure("Threads:"),
            memory_kib: figure("VmRSS:"),
            peak_kib: figure("VmHWM:"),
        }
    }
}

/// What happened, for whoever reads the output.
#[derive(Debug, Default)]
struct Story {
    kills: u64,
    stops: u64,
    garbled: u64,
    pulls: u64,
    resumed: u64,
    peak_kib: u64,
    aside: u64,
}

struct Soak<'a> {
    hub: &'a Hub,
    world: &'a Muster,
    repo: &'a RepoSpec,
    chance: fastrand::Rng,
    story: Story,
}

impl Soak<'_> {
    /// One daemon, until chance ends it.
    fn live(&mut self) {
        if self.chance.u8(0..6) == 0 {
            // Before it owns anything, or while it recovers.
            let mut process = self.world.args(["daemon"]).spawn();
            std::thread::sleep(Duration::from_millis(self.chance.u64(0..150)));
            process.kill();
            self.story.kills += 1;
            return;
        }
        let mut owner = self.start();
        let until = Instant::now() + Duration::from_millis(self.chance.u64(50..4000));
        while Instant::now() < until {
            self.tend(&owner);
            std::thread::sleep(Duration::from_millis(20));
        }
        self.story.peak_kib = self.story.peak_kib.max(Figures::of(owner.process.id()).peak_kib);
        if self.chance.u8(0..6) == 0 {
            owner.process.terminate();
            owner.process.wait(SOON).expect_code(0);
            self.story.stops += 1;
        } else {
            owner.process.kill();
            self.story.kills += 1;
        }
    }

    fn start(&mut self) -> Owner {
        let owner = Owner::start(self.world);
        self.story.aside += owner.process.stderr_so_far().matches("set aside").count() as u64;
        owner
    }

    /// Sees to it that there is work: asks for the model, asks again, and starts over when all is there.
    fn tend(&mut self, owner: &Owner) {
        match owner.api.state(MODEL).as_str() {
            "" => assert_eq!(owner.api.submit(self.hub, MODEL, MODEL, None).0, 202),
            "failed" => {
                self.story.resumed += 1;
                println!("failed: {}", owner.api.model(MODEL)["error"]["message"]);
                assert_eq!(owner.api.post("/v1/models/org%2Fmodel/resume", "").0, 202);
            }
            "ready" => {
                self.story.pulls += 1;
                assert!(assert_gate_is_right(self.world, MODEL, self.repo));
                self.world.args(["remove", MODEL, "--now"]).run().expect_code(0);
            }
            _ => {}
        }
    }

    /// Between two lives: the store loses bytes, or nothing happens.
    fn rest(&mut self) {
        if self.chance.u8(0..6) == 0 {
            let state = self.world.volume().join(".muster/state");
            let files: Vec<_> = listing(&state).into_iter().filter(|name| !name.ends_with('/')).collect();
            if !files.is_empty() {
                let path = state.join(&files[self.chance.usize(0..files.len())]);
                let noise: Vec<u8> = std::iter::repeat_with(|| self.chance.u8(..)).take(4096).collect();
                std::fs::write(path, noise).unwrap();
                self.story.garbled += 1;
            }
        }
        if self.chance.u8(0..4) == 0 {
            assert_gate_is_right(self.world, MODEL, self.repo);
        }
    }

    /// The last life: from whatever is there to a complete model and a quiet end.
    fn end(&mut self) {
        let owner = self.start();
        let until = Instant::now() + LONG;
        while owner.api.state(MODEL) != "ready" {
            assert!(Instant::now() < until, "{}\n{}", owner.api.model(MODEL), owner.process.stderr_so_far());
            self.tend(&owner);
            std::thread::sleep(Duration::from_millis(20));
        }
        let mut process = owner.process;
        process.terminate();
        process.wait(SOON).expect_code(0);
    }
}

/// Nothing but the model and its proof is in its directory; what a volume keeps of the past is within bounds.
fn assert_nothing_is_left(world: &Muster, repo: &RepoSpec) {
    let directory = world.model(MODEL);
    let own = [".muster/", ".muster/in-use", ".muster/manifest.json", ".muster/partial/", ".muster/receipt.json"];
    let mut expected: Vec<String> = own.into_iter().map(str::to_owned).collect();
    for file in repo.files() {
        let folders = file.path.match_indices('/').map(|(at, _)| file.path[..=at].to_owned());
        expected.extend(folders.chain([file.path.clone()]));
    }
    expected.sort();
    expected.dedup();
    assert_eq!(listing(&directory), expected);
    let area = world.volume().join(".muster");
    let count = |folder: &str| std::fs::read_dir(area.join(folder)).into_iter().flatten().count();
    let (owners, quarantine, retired) = (count("owners"), count("quarantine"), count("retired"));
    let asides = listing_names(&area).iter().filter(|name| name.contains(".set-aside-")).count();
    println!("{owners} owners, {quarantine} in quarantine, {retired} retired, {asides} stores set aside");
    assert!(owners <= 40 && quarantine <= 64 && retired == 0 && asides <= 16);
    let known = |name: &String| {
        ["owners", "state", "quarantine", "retired", "log", "status.json"].contains(&name.as_str())
            || name.starts_with("state.set-aside-")
    };
    let strange: Vec<_> = listing_names(&area).into_iter().filter(|name| !known(name)).collect();
    assert!(strange.len() <= 2, "in the owner's area: {strange:?}");
    for folder in ["tmp", "run"] {
        let there = listing(&world.home().join(folder));
        assert!(there.len() <= 2, "{folder}: {there:?}");
    }
}

fn listing_names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

// class: progress-lost, stalls, wrong-bytes
#[test]
fn a_daemon_that_is_killed_and_robbed_of_its_store_brings_119_shards_from_a_hub_that_drops_lies_and_stalls() {
    let (kills, seed) = (number("MUSTER_SOAK_KILLS").unwrap_or(10), seed("MUSTER_SOAK_SEED"));
    println!("tests/soak --kills {kills} --seed {seed}");
    let repo = RepoSpec::kimi(119, MIB / 4, 21).named(MODEL);
    let hub = Hub::start(repo.clone());
    hub.pace(MIB / 2);
    hub.chaos(seed, ODDS);
    let world = world(&hub);
    let directory = world.model(MODEL);
    let watch = Watch::of(&directory, &repo);
    let chance = fastrand::Rng::with_seed(seed);
    let mut soak = Soak { hub: &hub, world: &world, repo: &repo, chance, story: Story::default() };
    std::thread::scope(|scope| {
        let over = watch.flag();
        let watcher = scope.spawn(|| watch.run());
        while soak.story.kills < kills && !watcher.is_finished() {
            soak.live();
            soak.rest();
        }
        if !watcher.is_finished() {
            soak.end();
        }
        drop(over);
        watcher.join().unwrap();
    });
    println!("{:?}\n{:?}, {:?}", soak.story, hub.spoilt(), watch.looks());
    assert_complete(&directory, &repo);
    assert!(is_whole(&directory, &repo));
    assert!(assert_gate_is_right(&world, MODEL, &repo));
    assert_nothing_is_left(&world, &repo);
    assert!(soak.story.peak_kib <= MEMORY_MAX_KIB, "{:?}", soak.story);
}

// class: bounds
#[test]
fn a_daemon_that_lives_through_many_jobs_keeps_its_descriptors_threads_and_memory() {
    let (jobs, seed) = (number("MUSTER_SOAK_JOBS").unwrap_or(24), seed("MUSTER_SOAK_SEED"));
    let quarter = usize::try_from(jobs / 4).unwrap().max(1);
    println!("MUSTER_SOAK_JOBS={jobs} MUSTER_SOAK_SEED={seed}");
    let repo = RepoSpec::kimi(12, MIB / 4, 8).named(MODEL);
    let hub = Hub::start(repo.clone());
    hub.chaos(seed, Odds { stalls: 0, ..ODDS });
    let world = world(&hub);
    let owner = Owner::start(&world);
    let pid = owner.process.id();
    let (mut samples, mut idle) = (Vec::new(), 0);
    for job in 0..jobs {
        // Some names come back, some are new.
        let name = format!("org/model-{}", job % 10 * (job % 3));
        pull_and_remove(&hub, &world, &owner, &name);
        // Connections that are kept for the next request are no leak.
        hub.cut(Origin::Hub);
        hub.cut(Origin::Cdn);
        samples.push(at_rest(pid));
        if samples.len().is_multiple_of(quarter) {
            println!("{} jobs: {:?}", samples.len(), samples.last().unwrap());
        }
        if samples.len() == quarter {
            idle = fewest_threads(pid);
        }
    }
    let (early, late) = (most(&samples[quarter..2 * quarter]), most(&samples[samples.len() - 5..]));
    let state: u64 = sizes(&world.volume().join(".muster/state"));
    println!("{early:?} early, {late:?} late, {state} bytes of state, {:?}", hub.spoilt());
    assert!(late.descriptors <= early.descriptors + 4, "{early:?} {late:?}");
    // How many a pool has at a time is chance, and those without work end after a while; one that each job leaves
    // behind never does.
    let left = idle + (jobs - quarter as u64) / 2;
    println!("{idle} threads without work after {quarter} jobs");
    wait_until("no thread is left by each second job", SOON, || Figures::of(pid).threads <= left);
    assert!(late.memory_kib <= early.memory_kib + (16 << 10), "{early:?} {late:?}");
    assert!(late.peak_kib <= MEMORY_MAX_KIB, "{late:?}");
    assert!(state < 64 * MIB, "{state} bytes of state");
    let mut process = owner.process;
    process.terminate();
    process.wait(SOON).expect_code(0);
}

fn pull_and_remove(hub: &Hub, world: &Muster, owner: &Owner, name: &str) {
    assert_eq!(owner.api.submit(hub, MODEL, name, None).0, 202);
    let url = format!("/v1/models/{}", name.replace('/', "%2F"));
    let until = Instant::now() + LONG;
    loop {
        match owner.api.state(name).as_str() {
            "ready" => break,
            "failed" => {
                println!("failed: {}", owner.api.model(name)["error"]["message"]);
                assert_eq!(owner.api.post(&format!("{url}/resume"), "").0, 202);
            }
            _ => {}
        }
        assert!(Instant::now() < until, "{}", owner.api.model(name));
        std::thread::sleep(Duration::from_millis(5));
    }
    world.args(["remove", name, "--now"]).run().expect_code(0);
}

/// The figures once what belongs to a job is gone: the fewest within a moment.
fn at_rest(pid: u32) -> Figures {
    let looks = (0..10).map(|_| {
        std::thread::sleep(Duration::from_millis(5));
        Figures::of(pid)
    });
    looks.min_by_key(|figures| figures.descriptors).unwrap()
}

/// The threads that are left when those of the pools have ended, which wait ten seconds for more work.
fn fewest_threads(pid: u32) -> u64 {
    let looks = (0..60).map(|_| {
        std::thread::sleep(Duration::from_millis(200));
        Figures::of(pid).threads
    });
    looks.min().unwrap()
}

fn most(samples: &[Figures]) -> Figures {
    let most = |figure: fn(&Figures) -> u64| samples.iter().map(figure).max().unwrap();
    Figures {
        descriptors: samples.iter().map(|figures| figures.descriptors).max().unwrap(),
        threads: most(|figures| figures.threads),
        memory_kib: most(|figures| figures.memory_kib),
        peak_kib: most(|figures| figures.peak_kib),
    }
}

fn sizes(folder: &Path) -> u64 {
    let files: Vec<PathBuf> = listing(folder).iter().map(|name| folder.join(name)).collect();
    files.iter().filter_map(|path| path.metadata().ok()).filter(std::fs::Metadata::is_file).map(|meta| meta.len()).sum()
}
