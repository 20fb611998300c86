//! Scheduler and pace in virtual time: the reference job over links, edges, quotas and disks that
//! nobody has at home, thousands of them in seconds.
//!
//! The plan, the pace and the delays are the daemon's own (`core`); the world around them is
//! `simulation/world.rs`, its parameters are drawn from the one table in `simulation/scenario.rs`.
//!
//! `MUSTER_SIMULATIONS` is how many scenarios (100), `MUSTER_SIMULATION_SEED` the first seed: seed
//! `n` is the same scenario in every run. The ten worst are printed:
//! `MUSTER_SIMULATIONS=5000 cargo test --release --test simulation -- --nocapture`.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bytes and seconds of a model of the world, far from the edges of their types"
)]
#![allow(unreachable_pub, reason = "`pub` says what the modules of this test offer each other")]

#[path = "simulation/hub.rs"]
mod hub;
#[path = "simulation/judge.rs"]
mod judge;
#[path = "simulation/scenario.rs"]
mod scenario;
#[path = "simulation/world.rs"]
mod world;

use judge::{at, judge, judged, number};
use muster::core::pace::Pace;
use scenario::{ANONYMOUS_QUOTA, CONNECTIONS, Scenario, reference_job};
use world::{Broken, Ended, run};

#[test]
fn the_reference_job_ends_near_the_bound_whatever_the_link() {
    let (count, first) = (number("MUSTER_SIMULATIONS", 100), number("MUSTER_SIMULATION_SEED", 1));
    let all = judged(count, first, Broken::Nothing);
    let (median, late) = (at(&all, 0.5), at(&all, 0.99));
    assert!(all.iter().all(|one| one.ended.memory <= 64 << 20), "the promise at the defaults");
    println!("{count} scenarios from seed {first}: makespan / bound: median {median:.3}, 99th percentile {late:.3}");
    for one in all.iter().rev().take(10) {
        println!("seed {}: {:.3} × bound, {}; {}", one.seed, one.ratio, one.ended, one.scenario);
    }
    for one in &all {
        assert!(one.ended.complete, "seed {}: {}", one.seed, one.ended);
        assert!(one.ratio >= 0.999, "seed {} was faster than possible: {}", one.seed, one.ratio);
    }
    assert!(median <= 1.03 && late <= 1.15, "median {median:.3}, 99th percentile {late:.3}");
}

#[test]
fn the_reference_job_never_uses_up_the_anonymous_quota_of_the_hub() {
    for seed in 1..=10 {
        // A day of 100 Mbit/s takes every location anew each hour.
        let slow = Scenario { link: 12.5e6, ..calm() };
        let scenario = if seed % 2 == 0 {
            Scenario { quota: ANONYMOUS_QUOTA, quota_used: 0.0, ..Scenario::drawn(seed) }
        } else {
            slow
        };
        let ended = judge(seed, scenario, Broken::Nothing).ended;
        println!("{ended}");
        assert!(ended.complete && ended.refused == 0, "{ended}");
        assert!(ended.resolver_in_a_window <= ANONYMOUS_QUOTA / 10, "{ended}");
    }
}

#[test]
fn all_connections_of_one_large_file_are_busy_until_the_last_fiftieth() {
    // The second size is no multiple of anything.
    for (connections, size) in [8, 16, 32, 64].into_iter().flat_map(|n| [(n, 8 << 30), (n, 9_876_543_211)]) {
        let scenario = Scenario { round_trip_s: 0.001, jitter_s: 0.005, ..Scenario::calm(20e6, connections) };
        let ended = run(&scenario, &[size], Pace::pinned(connections), Broken::Nothing, 1);
        let ratio = ended.makespan_s / scenario.bound_s(&[size], connections);
        println!("{connections}: busy {:.4} until {:.4}, {ratio:.3} × bound, {ended}", ended.busy, ended.busy_until);
        assert!(ended.busy > 0.99, "{connections} connections: busy for {:.4} of the time", ended.busy);
        assert!(ended.busy_until > 0.98, "{connections} connections: all busy until {:.4}", ended.busy_until);
    }
}

#[test]
fn where_an_answer_takes_its_time_fewer_are_asked_for_at_the_end() {
    let calm = Scenario { round_trip_s: 0.002, jitter_s: 0.0, ..Scenario::calm(20e6, 64) };
    let far = Scenario { round_trip_s: 0.2, jitter_s: 0.2, ..calm };
    let run = |scenario| run(&scenario, &[8 << 30], Pace::pinned(64), Broken::Nothing, 1);
    let (near, far) = (run(calm), run(far));
    println!("near: {near}; far: {far}");
    assert!(far.requests * 3 < near.requests * 2);
}

/// Four seconds' worth of a fast link, over connections that carry a twentieth of it.
fn calm() -> Scenario {
    Scenario { link: 4e9, disk: 4e9, round_trip_s: 0.02, jitter_s: 0.05, ..Scenario::calm(200e6, CONNECTIONS) }
}

/// The same scenario with and without one thing that the core does, a few seeds together.
fn with_and_without(scenario: &Scenario, broken: Broken) -> (Ended, Ended) {
    let files = reference_job();
    let together = |broken| {
        let mut sum = Ended::default();
        for seed in 1..=3 {
            let one = run(scenario, &files, Pace::adaptive(CONNECTIONS, None), broken, seed);
            sum.makespan_s += one.makespan_s;
            sum.refused += one.refused;
            sum.requests += one.requests;
            sum.memory = sum.memory.max(one.memory);
        }
        sum
    };
    let both = (together(Broken::Nothing), together(broken));
    println!("{broken:?}: {:.0} s with it, {:.0} s without", both.0.makespan_s, both.1.makespan_s);
    both
}

/// How many times as long it takes without.
fn costs(scenario: &Scenario, broken: Broken) -> f64 {
    let (with, without) = with_and_without(scenario, broken);
    without.makespan_s / with.makespan_s
}

#[test]
fn without_growth_a_fast_link_of_slow_connections_stays_empty() {
    assert!(costs(&calm(), Broken::Growth) > 1.8);
}

#[test]
fn without_a_step_back_a_collapse_lasts() {
    let scenario = Scenario { collapse_above: 12, collapse_to: 0.3, ..calm() };
    assert!(costs(&scenario, Broken::StepsBack) > 1.3);
}

#[test]
fn without_looks_a_slow_edge_holds_the_job_up() {
    let scenario = Scenario { slow_share: 0.1, slow_speed: 0.001, ..calm() };
    assert!(costs(&scenario, Broken::Looks) > 1.1);
}

#[test]
fn without_splits_the_tail_is_long() {
    // One file more than the connections can fetch in two turns, and none large enough for steps.
    let (scenario, files) = (Scenario { jitter_s: 0.1, ..Scenario::calm(20e6, 16) }, [64 << 20; 33]);
    let makespan = |broken| run(&scenario, &files, Pace::pinned(16), broken, 1).makespan_s;
    let (with, without) = (makespan(Broken::Nothing), makespan(Broken::Splits));
    println!("Splits: {with:.1} s with it, {without:.1} s without");
    assert!(without > 1.1 * with);
}

#[test]
fn without_looking_ahead_each_file_begins_with_two_answers() {
    // As many connections as the link needs: nobody else fills a pause.
    let scenario = Scenario { round_trip_s: 0.2, jitter_s: 0.4, ..Scenario::calm(1e9, 4) };
    let makespan = |broken| run(&scenario, &reference_job(), Pace::pinned(4), broken, 1).makespan_s;
    let (with, without) = (makespan(Broken::Nothing), makespan(Broken::Ahead));
    println!("Ahead: {with:.1} s with it, {without:.1} s without");
    assert!(without > 1.03 * with);
}

#[test]
fn with_small_requests_latency_and_jitter_cost_the_link() {
    let scenario = Scenario { round_trip_s: 0.15, jitter_s: 0.3, ..calm() };
    assert!(costs(&scenario, Broken::LargeRequests) > 1.5);
}

#[test]
fn without_resume_each_loss_costs_what_came() {
    let scenario = Scenario { loss_every_s: 60.0, ..calm() };
    assert!(costs(&scenario, Broken::Resume) > 1.08);
}

#[test]
fn with_a_minutes_pause_after_each_loss_the_tail_is_long() {
    let scenario = Scenario { loss_every_s: 60.0, ..calm() };
    assert!(costs(&scenario, Broken::Retries) > 1.05);
}

#[test]
fn deaf_to_the_quota_most_requests_are_refused() {
    let scenario = Scenario { quota: 1000, quota_used: 0.95, quota_resets_s: 250.0, ..calm() };
    let (with, without) = with_and_without(&scenario, Broken::Quota);
    assert!(with.refused <= 3 * CONNECTIONS as u64, "{}", with.refused);
    assert!(without.refused > 20 * with.refused.max(10), "{} against {}", without.refused, with.refused);
}

#[test]
fn on_a_slow_disk_more_connections_cost_memory_and_bring_nothing() {
    let scenario = Scenario { disk: 500e6, ..calm() };
    let (with, without) = with_and_without(&scenario, Broken::Restraint);
    assert!(without.makespan_s > with.makespan_s * 0.98 && with.memory < without.memory * 8 / 10);
}
