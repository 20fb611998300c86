//! Many scenarios, each compared with its bound.

use muster::core::pace::Pace;

use super::scenario::{CONNECTIONS, Scenario, reference_job};
use super::world::{Broken, Ended, run};

/// One scenario's outcome: how much longer it took than it had to.
pub struct Judged {
    pub seed: u64,
    pub scenario: Scenario,
    pub ended: Ended,
    pub ratio: f64,
}

/// Plays the reference job through a scenario.
pub fn judge(seed: u64, scenario: Scenario, broken: Broken) -> Judged {
    let files = reference_job();
    let ended = run(&scenario, &files, Pace::adaptive(CONNECTIONS, None), broken, seed);
    let ratio = ended.makespan_s / scenario.bound_s(&files, CONNECTIONS);
    Judged { seed, scenario, ended, ratio }
}

/// `count` scenarios from seed `first` on, by ratio.
pub fn judged(count: u64, first: u64, broken: Broken) -> Vec<Judged> {
    let threads = std::thread::available_parallelism().map_or(2, std::num::NonZero::get) as u64;
    let share = |thread| {
        let seeds = (first..first + count).skip(thread as usize).step_by(threads as usize);
        seeds.map(|seed| judge(seed, Scenario::drawn(seed), broken)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
        running.into_iter().flat_map(|running| running.join().unwrap()).collect()
    });
    all.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    all
}

/// The ratio below which this share of them lies.
pub fn at(sorted: &[Judged], share: f64) -> f64 {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize].ratio
}

/// A figure from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Err(_) => default,
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")),
    }
}
