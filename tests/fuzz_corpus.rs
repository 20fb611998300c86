//! Every seed of the fuzz targets, and every input that once broke one, goes through the same
//! functions that `cargo fuzz` runs (see `tests/fuzz/README.md`).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

#[path = "fuzz/targets/mod.rs"]
#[allow(unreachable_pub, reason = "the same files are a library of the fuzz crate")]
mod targets;

/// For one input, built without optimisation on a busy machine. The inputs that were once slow took
/// minutes.
const TIME_MAX: Duration = Duration::from_secs(20);

#[test]
fn every_input_that_was_ever_kept_passes_its_target() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds");
    for (name, _) in targets::ALL {
        let mut count = 0;
        for file in fs::read_dir(seeds.join(name)).unwrap() {
            let path = file.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            println!("{}", path.display());
            let begun = Instant::now();
            targets::run(name, &bytes);
            assert!(begun.elapsed() < TIME_MAX, "{} took {:?}", path.display(), begun.elapsed());
            count += 1;
        }
        assert!(count >= 2, "{name} has {count} seeds");
    }
}

#[test]
fn every_target_has_a_folder_of_seeds_and_every_folder_a_target() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/seeds");
    let folders: BTreeSet<String> =
        fs::read_dir(seeds).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(folders, targets::ALL.iter().map(|(name, _)| (*name).to_owned()).collect());
}
