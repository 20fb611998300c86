//! The digests of a file's blocks come with every proof of the file, whichever way it was proved.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster::core::blocks::{BLOCK_SIZE, Blocks};
use muster::core::digest::Sha256;
use muster::volume::ModelDir;
use support::*;

const SOON: Duration = Duration::from_secs(60);

/// Two shards of three blocks, the last of them short.
fn repo() -> RepoSpec {
    RepoSpec::kimi(2, 2 * BLOCK_SIZE + 4321, 2).named("org/model")
}

fn blocks_file(directory: &Path) -> PathBuf {
    directory.join(".muster/blocks")
}

/// What the directory knows of a file.
fn known(directory: &Path, path: &str) -> Option<Blocks> {
    let file = fs::read(directory.join(path)).unwrap();
    let sha256 = Sha256::parse(&sha256_hex(&file)).unwrap();
    ModelDir::open(directory).unwrap().blocks().unwrap().of(file.len() as u64, &sha256)
}

/// The numbers of the blocks that are right in these bytes.
fn right(blocks: &Blocks, bytes: &[u8]) -> Vec<u64> {
    let is_right = |index: &u64| {
        let (range, mut hasher) = (blocks.range(*index), blocks.hasher(*index));
        hasher.update(&bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]);
        hasher.is_right()
    };
    (0..blocks.count()).filter(is_right).collect()
}

fn assert_known(directory: &Path) {
    for path in repo().files().filter(|file| file.path.ends_with(".safetensors")).map(|file| &file.path) {
        let blocks = known(directory, path).unwrap_or_else(|| panic!("the blocks of {path} are not known"));
        let mut bytes = fs::read(directory.join(path)).unwrap();
        assert_eq!(right(&blocks, &bytes), [0, 1, 2], "{path}");
        let middle = usize::try_from(BLOCK_SIZE).unwrap() + 7;
        bytes[middle] ^= 1;
        assert_eq!(right(&blocks, &bytes), [0, 2], "{path}: a flipped bit has its place");
    }
}

#[test]
fn a_pull_knows_the_blocks_of_its_files_in_whatever_order_the_bytes_came() {
    for connections in ["1", "8"] {
        let hub = Hub::start(repo());
        let world = Muster::on(&hub);
        world.args(["pull", "org/model", "--connections", connections]).run().expect_code(0);
        assert_known(&world.model("org/model"));
    }
}

#[test]
fn a_pull_that_goes_on_after_a_kill_knows_the_blocks_of_what_was_there() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let half = repo().total_bytes() / 2;
    hub.hold_after(half);
    let mut child = world.args(["pull", "org/model"]).spawn();
    hub.wait_for_bytes(half - (1 << 20), SOON);
    child.kill();
    drop(child);
    hub.cut(Origin::Cdn);
    hub.release();
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_known(&world.model("org/model"));
}

#[test]
fn verify_and_adopt_make_the_blocks_that_are_not_known() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    let directory = world.model("org/model");
    fs::remove_file(blocks_file(&directory)).unwrap();
    world.args(["verify", "org/model"]).run().expect_code(0);
    assert_known(&directory);
    // Damaged ones are as good as none.
    flip_byte(&blocks_file(&directory), 100);
    world.args(["verify", "org/model"]).run().expect_code(0);
    assert_known(&directory);
    // Where nobody remembers having proved them.
    let place = tempfile::tempdir().unwrap();
    let elsewhere = place.path().join("model");
    fs::remove_dir_all(directory.join(".muster")).unwrap();
    fs::rename(&directory, &elsewhere).unwrap();
    world.args(["adopt", elsewhere.to_str().unwrap(), "--repo", "org/model"]).run().expect_code(0);
    assert_known(&elsewhere);
}
