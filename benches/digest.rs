//! What hashing costs: `FileHasher`, through which every byte goes, against OpenSSL on one core, and
//! what block digests add: the same against SHA-256 alone.
//!
//! `cargo bench --bench digest`. Rounds take turns, medians count, and only the ratio says
//! anything on a machine that does other things. OpenSSL is `openssl speed` (`-evp sha256`),
//! where it is found.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a bench arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures are what it is for")]

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use muster::core::digest::{Digest, GitSha1, Sha256};
use muster::core::manifest::FileEntry;
use muster::core::repo_path::RepoPath;
use muster::core::verify::FileHasher;
use sha2::Digest as _;

const ROUNDS: usize = 5;
/// Bytes hashed in a round.
const TOTAL: usize = 256 << 20;
/// Bytes handed over at a time, as the data path does.
const STEPS: [usize; 3] = [16 << 10, 256 << 10, 1 << 20];

fn main() {
    let buffer: Vec<u8> = (0..1 << 20).map(|_| fastrand::u8(..)).collect();
    let kinds = [
        ("SHA-256 of an LFS file", "sha256", Digest::Sha256(Sha256::from_bytes([0; 32]))),
        ("SHA-256 and SHA-1 of a git blob", "sha1", Digest::GitBlob(GitSha1::from_bytes([0; 20]))),
    ];
    for (what, yardstick, digest) in kinds {
        for step in STEPS {
            let (mut ours, mut openssl) = (Vec::new(), Vec::new());
            for _ in 0..ROUNDS {
                ours.push(hashed(digest, &buffer, step));
                openssl.extend(openssl_speed(yardstick, step));
            }
            let ours = median(ours);
            match (openssl.is_empty(), median(openssl)) {
                (true, _) => println!("{what}, {step} bytes at a time: {ours:.2} GB/s (no openssl here)"),
                (false, theirs) => println!(
                    "{what}, {step} bytes at a time: {ours:.2} GB/s; openssl {yardstick}: {theirs:.2} GB/s; {:.2} of it",
                    ours / theirs
                ),
            }
        }
    }
    let lfs = Digest::Sha256(Sha256::from_bytes([0; 32]));
    let ratios = (0..4 * ROUNDS).map(|_| hashed_alone(&buffer, STEPS[1]) / hashed(lfs, &buffer, STEPS[1]));
    println!("with block digests against SHA-256 alone: {:.3} times its CPU", median(ratios.collect()));
}

/// GB/s of the same bytes without digests of blocks.
fn hashed_alone(buffer: &[u8], step: usize) -> f64 {
    let mut hasher = sha2::Sha256::new();
    let began = Instant::now();
    for _ in 0..TOTAL / buffer.len() {
        buffer.chunks(step).for_each(|bytes| hasher.update(bytes));
    }
    let _digest = black_box(hasher.finalize());
    TOTAL as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// GB/s of one file that is made of `buffer` again and again.
fn hashed(digest: Digest, buffer: &[u8], step: usize) -> f64 {
    let entry =
        FileEntry { path: RepoPath::parse("model.safetensors").unwrap(), size: TOTAL as u64, digest, xet_hash: None };
    let mut hasher = FileHasher::new(&entry);
    let began = Instant::now();
    for _ in 0..TOTAL / buffer.len() {
        buffer.chunks(step).for_each(|bytes| hasher.update(bytes));
    }
    let _another_digest = black_box(hasher.finish());
    TOTAL as f64 / began.elapsed().as_secs_f64() / 1e9
}

/// The last word of the last line: thousands of bytes a second, with a `k` behind.
fn openssl_speed(digest: &str, step: usize) -> Option<f64> {
    let step = step.to_string();
    let arguments = ["speed", "-evp", digest, "-seconds", "1", "-bytes", &step];
    let output = Command::new("openssl").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let rate = text.split_whitespace().next_back()?.strip_suffix('k')?;
    rate.parse::<f64>().ok().map(|thousands| thousands / 1e6)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or_default()
}
