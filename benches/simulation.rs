//! Scheduler and pace in simulated time: thousands of scenarios, and how far from the bound they end.
//!
//! `MUSTER_SIMULATIONS` is how many (2 000), `MUSTER_SIMULATION_SEED` the first seed:
//! `MUSTER_SIMULATIONS=5000 cargo bench --bench simulation`. For each hazard the scenarios in its
//! worst fifth are shown apart.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a bench arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a model of the world")]
#![allow(unreachable_pub, dead_code, reason = "the modules are those of the test")]

#[path = "../tests/simulation/hub.rs"]
mod hub;
#[path = "../tests/simulation/judge.rs"]
mod judge;
#[path = "../tests/simulation/scenario.rs"]
mod scenario;
#[path = "../tests/simulation/world.rs"]
mod world;

use judge::{Judged, at, judged, number};
use scenario::Scenario;
use world::Broken;

/// A hazard's name, and how bad it is.
type Hazard = (&'static str, fn(&Scenario) -> f64);

const HAZARDS: [Hazard; 11] = [
    ("slow link", |one| -one.link),
    ("fast link", |one| one.link),
    ("slow connections", |one| -one.connection),
    ("slow disk", |one| -one.disk),
    ("latency", |one| one.round_trip_s),
    ("jitter", |one| one.jitter_s),
    ("losses", |one| -one.loss_every_s),
    ("slow edge", |one| one.slow_share),
    ("early collapse", |one| -(one.collapse_above as f64)),
    ("deep collapse", |one| -one.collapse_to),
    ("little quota left", |one| -f64::from(one.answers_left())),
];

fn main() {
    let (count, first) = (number("MUSTER_SIMULATIONS", 2000), number("MUSTER_SIMULATION_SEED", 1));
    let mut all = judged(count, first, Broken::Nothing);
    println!("{count} scenarios, seeds {first} to {}; makespan / bound\n", first + count - 1);
    println!("| worst fifth by | median | p90 | p99 | most | requests | refused | memory, MiB |");
    println!("|---|---|---|---|---|---|---|---|");
    row("all scenarios", &all);
    for one in all.iter().rev().take(10) {
        eprint_worst(one);
    }
    for (name, badness) in HAZARDS {
        all.sort_by(|a, b| badness(&b.scenario).total_cmp(&badness(&a.scenario)));
        let worst = &mut all[..(count as usize).div_ceil(5)];
        worst.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
        row(name, worst);
    }
}

fn row(name: &str, sorted: &[Judged]) {
    let mut requests: Vec<_> = sorted.iter().map(|one| one.ended.requests).collect();
    requests.sort_unstable();
    let refused: u64 = sorted.iter().map(|one| one.ended.refused).sum();
    let memory = sorted.iter().map(|one| one.ended.memory).max().unwrap_or(0) >> 20;
    println!(
        "| {name} | {:.3} | {:.3} | {:.3} | {:.3} | {} | {refused} | {memory} |",
        at(sorted, 0.5),
        at(sorted, 0.9),
        at(sorted, 0.99),
        at(sorted, 1.0),
        requests[requests.len() / 2],
    );
}

#[allow(clippy::print_stderr, reason = "beside the table")]
fn eprint_worst(one: &Judged) {
    eprintln!("seed {}: {:.3} × bound, {}; {}", one.seed, one.ratio, one.ended, one.scenario);
}
