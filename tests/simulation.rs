//! Scheduler and pace in virtual time: the reference job over links, edges, quotas and disks that
//! nobody has at home, thousands of them in seconds.
//!
//! The plan, the pace and the delays are the daemon's own (`core`); the world around them is
//! `simulation/world.rs`, its parameters are drawn from the one table in `simulation/scenario.rs`.
//!
//! `MUSTER_SIMULATIONS` is how many scenarios (150), `MUSTER_SIMULATION_SEED` the first seed: seed
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

use judge::{at, judged, number};
use world::Broken;

#[test]
fn the_reference_job_ends_near_the_bound_whatever_the_link() {
    let (count, first) = (number("MUSTER_SIMULATIONS", 150), number("MUSTER_SIMULATION_SEED", 1));
    let all = judged(count, first, Broken::Nothing);
    let (median, late) = (at(&all, 0.5), at(&all, 0.99));
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
