//! Killed at any instant (P1, P2, P4): no wrong byte under a final name at any time, no gate that
//! opens early, little fetched again, and an open gate at the end.
//!
//! `MUSTER_CRASH_ROUNDS` is how many kills of each kind (25 and 12), `MUSTER_CRASH_SEED` repeats a run.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures for whoever runs it at length")]

mod support;

use std::ops::Range;
use std::time::{Duration, Instant};

use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(180);

/// What is pulled, how fast, and when it is killed.
struct Profile {
    repo: RepoSpec,
    /// Bytes a second of each connection.
    pace: u64,
    connections: &'static str,
    /// How long a pull lives, in milliseconds.
    life: Range<u64>,
    /// What may be fetched again after a kill, for each connection that was open.
    again_max: u64,
}

/// Many small shards: each is in order, and most kills leave several finished ones.
fn small_shards() -> Profile {
    let repo = RepoSpec::kimi(24, 3 * MIB, 8).named("org/model");
    // The promise is 8 MiB, which is more than a whole shard here and would show nothing.
    Profile { repo, pace: 3 * MIB, connections: "6", life: 20..2500, again_max: MIB / 2 }
}

/// Few large files with several connections in each, so that their bytes lie in several ranges.
fn large_files() -> Profile {
    let repo = RepoSpec::kimi(8, 48 * MIB, 4).named("org/model");
    Profile { repo, pace: 12_000_000, connections: "16", life: 20..2500, again_max: 2 * MIB }
}

#[derive(Default)]
struct Tally {
    kills: u64,
    /// Connections that were open at the kills.
    open: u64,
    pulls: u64,
}

impl Profile {
    fn pull(&self, world: &Muster) -> Invocation {
        world.args(["pull", "org/model", "--connections", self.connections]).time_limit(SOON)
    }

    /// One pull that is killed after `life`; whether it ended before.
    fn pull_and_kill(&self, hub: &Hub, world: &Muster, life: Duration, tally: &mut Tally) -> bool {
        let mut child = self.pull(world).spawn();
        let started = Instant::now();
        if tally.kills.is_multiple_of(4) {
            assert_gate_is_right(world, "org/model", &self.repo);
        }
        while started.elapsed() < life && child.is_running() {
            std::thread::sleep(Duration::from_millis(1));
        }
        if !child.is_running() {
            child.wait(SOON).expect_code(0);
            return true;
        }
        tally.open += hub.open_connections(Origin::Cdn) as u64;
        child.kill();
        tally.kills += 1;
        drop(child);
        hub.cut(Origin::Cdn);
        false
    }

    /// Pulls that are killed, and again after each that came to its end; the last one comes to its end.
    fn show(&self, rounds: u64) {
        let seed = seed("MUSTER_CRASH_SEED");
        println!("MUSTER_CRASH_ROUNDS={rounds} MUSTER_CRASH_SEED={seed}");
        let mut chance = fastrand::Rng::with_seed(seed);
        let hub = Hub::start(self.repo.clone());
        hub.pace(self.pace);
        let world = Muster::on(&hub);
        let directory = world.model("org/model");
        let watch = Watch::of(&directory, &self.repo);
        let mut tally = Tally::default();
        std::thread::scope(|scope| {
            let over = watch.flag();
            let watcher = scope.spawn(|| watch.run());
            while tally.kills < rounds && !watcher.is_finished() {
                let life = Duration::from_millis(chance.u64(self.life.clone()));
                if self.pull_and_kill(&hub, &world, life, &mut tally) {
                    tally.pulls += 1;
                    assert!(assert_gate_is_right(&world, "org/model", &self.repo));
                    world.args(["remove", "org/model", "--now"]).run().expect_code(0);
                } else if tally.kills.is_multiple_of(3) {
                    assert_gate_is_right(&world, "org/model", &self.repo);
                }
            }
            if !watcher.is_finished() {
                self.pull(&world).run().expect_code(0);
                tally.pulls += 1;
            }
            drop(over);
            watcher.join().unwrap();
        });
        assert_complete(&directory, &self.repo);
        assert!(assert_gate_is_right(&world, "org/model", &self.repo));
        self.assert_little_came_again(&hub, &tally, watch.looks());
    }

    fn assert_little_came_again(&self, hub: &Hub, tally: &Tally, looks: Looks) {
        let Tally { kills, open, pulls } = tally;
        let again = hub.total_body_bytes().saturating_sub(pulls * self.repo.total_bytes());
        println!("{kills} kills, {open} connections open then, {pulls} pulls to the end; {looks:?}");
        println!(
            "{again} bytes again, {} a kill, {} a kill and connection",
            again / (*kills).max(1),
            again / (*open).max(1)
        );
        assert!(again <= self.again_max * open, "{again} bytes fetched again in {kills} kills with {open} connections");
    }
}

// class: looks-complete, wrong-bytes, progress-lost, gate
#[test]
fn a_pull_killed_at_random_instants_never_shows_a_wrong_byte_nor_an_open_gate_and_ends() {
    small_shards().show(number("MUSTER_CRASH_ROUNDS").unwrap_or(25));
}

// class: progress-lost, wrong-bytes
#[test]
fn a_pull_of_large_files_killed_at_random_instants_keeps_what_lies_in_several_ranges_of_a_file() {
    large_files().show(number("MUSTER_CRASH_ROUNDS").unwrap_or(12));
}

// class: progress-lost
#[test]
fn a_pull_killed_every_second_and_a_half_still_ends() {
    let profile = large_files();
    let hub = Hub::start(profile.repo.clone());
    hub.pace(profile.pace);
    let world = Muster::on(&hub);
    let mut tally = Tally::default();
    let ended = (0..200).any(|_| profile.pull_and_kill(&hub, &world, Duration::from_millis(1500), &mut tally));
    assert!(ended, "no end after {} kills, {} bytes", tally.kills, hub.total_body_bytes());
    assert!(tally.kills >= 2, "{} kills are no test", tally.kills);
    tally.pulls = 1;
    assert_complete(&world.model("org/model"), &profile.repo);
    profile.assert_little_came_again(&hub, &tally, Looks::default());
}
