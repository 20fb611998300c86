//! How exact a limit is: `cargo bench --bench limit [-- SECONDS [CONNECTIONS]]`.
//!
//! For rates from 64 kB/s to 10 GB/s, connections that always have more pass chunks under a limit.
//! Prints what passed as a share of what was allowed, and the worst tenth of a second as a multiple of
//! it. Ten seconds and eight connections unless told otherwise. The last line is what a pass costs
//! when there is no limit.

#![allow(clippy::print_stdout, clippy::unwrap_used, clippy::disallowed_methods, reason = "a measurement prints")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use muster::core::limit::Rate;
use muster::fetch::{Throttle, Valve};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const CHUNK: usize = 256 << 10;
const TENTH: Duration = Duration::from_millis(100);
const RATES: [u64; 7] = [64_000, 1_000_000, 10_000_000, 200_000_000, 1_000_000_000, 3_000_000_000, 10_000_000_000];

fn main() {
    // `cargo bench` adds a flag of its own.
    let mut numbers = std::env::args().skip(1).filter_map(|argument| argument.parse::<u64>().ok());
    let span = Duration::from_secs(numbers.next().unwrap_or(10));
    let connections = numbers.next().unwrap_or(8);
    let runtime = Runtime::new().unwrap();
    println!("{:>14}  {:>8}  {:>18}", "bytes a second", "of limit", "worst tenth of it");
    for bytes_per_s in RATES {
        let (share, worst) = runtime.block_on(measure(Rate::new(bytes_per_s).unwrap(), connections, span));
        println!("{bytes_per_s:>14}  {share:>8.4}  {worst:>18.2}");
    }
    println!("{:.1} ns a pass without a limit", runtime.block_on(unlimited()));
}

/// What passed in `span` and in the worst tenth of a second, of what was allowed.
async fn measure(rate: Rate, connections: u64, span: Duration) -> (f64, f64) {
    let throttle = Throttle::below(&Arc::new(Valve::default()));
    throttle.set(Some(rate));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for _ in 0..connections {
        let throttle = throttle.clone();
        tasks.spawn(async move {
            let (mut passed, mut left) = (Vec::new(), CHUNK);
            loop {
                let bytes = throttle.pass(left).await;
                let at = began.elapsed();
                if at >= span {
                    return passed;
                }
                passed.push((at, bytes as f64));
                left = if left == bytes { CHUNK } else { left - bytes };
            }
        });
    }
    let mut passed: Vec<_> = tasks.join_all().await.into_iter().flatten().collect();
    passed.sort_by_key(|(at, _)| *at);
    let (mut worst, mut inside, mut first) = (0.0f64, 0.0, 0);
    for (at, bytes) in &passed {
        inside += bytes;
        while passed[first].0 + TENTH <= *at {
            inside -= passed[first].1;
            first += 1;
        }
        worst = worst.max(inside);
    }
    let per_s = rate.bytes_per_s() as f64;
    let all: f64 = passed.iter().map(|(_, bytes)| bytes).sum();
    (all / (per_s * span.as_secs_f64()), worst / (per_s * TENTH.as_secs_f64()))
}

async fn unlimited() -> f64 {
    const PASSES: u32 = 10_000_000;
    let throttle = Throttle::default();
    let began = Instant::now();
    for _ in 0..PASSES {
        std::hint::black_box(throttle.pass(std::hint::black_box(CHUNK)).await);
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(PASSES)
}
