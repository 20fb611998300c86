//! Damage to published files: done to a model directory, and counted by comparing it with what it should be.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use serde_json::Value;

use super::support::{FileSpec, flip_byte};

pub const MIB: u64 = 1 << 20;
pub const BLOCK: u64 = 16 * MIB;

/// What may happen to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    Bit,
    Block,
    Hole,
    Truncated,
    Extended,
    Replaced,
    Gone,
}

impl Damage {
    pub const ALL: [Self; 7] =
        [Self::Bit, Self::Block, Self::Hole, Self::Truncated, Self::Extended, Self::Replaced, Self::Gone];

    /// Does it somewhere in the file; what is gone stays gone.
    pub fn to(self, path: &Path, chance: &mut fastrand::Rng) {
        let Ok(file) = File::options().write(true).open(path) else { return };
        let len = file.metadata().unwrap().len();
        if len < 2 {
            return;
        }
        match self {
            Self::Bit => flip_byte(path, chance.u64(0..len)),
            Self::Block => {
                let at = chance.u64(0..len.div_ceil(BLOCK)) * BLOCK;
                fill(&file, at..len.min(at + BLOCK), chance.u8(..));
            }
            Self::Hole => {
                let start = chance.u64(0..len - 1);
                let bytes = chance.u64(1..=(len - start).min(BLOCK + BLOCK / 2));
                let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&file, how, start, bytes).unwrap();
            }
            Self::Truncated => file.set_len(chance.u64(0..len)).unwrap(),
            Self::Extended => fill(&file, len..len + chance.u64(1..MIB), 7),
            Self::Replaced => fill(&file, 0..len, chance.u8(..)),
            Self::Gone => std::fs::remove_file(path).unwrap(),
        }
    }
}

fn fill(file: &File, range: std::ops::Range<u64>, with: u8) {
    let bytes = vec![with; MIB as usize];
    let mut at = range.start;
    while at < range.end {
        let n = (range.end - at).min(MIB) as usize;
        file.write_all_at(&bytes[..n], at).unwrap();
        at += n as u64;
    }
}

/// Blocks of the file that are not what they should be, and their bytes; one that is gone has all.
pub fn bad_blocks(path: &Path, file: &FileSpec) -> (u64, u64) {
    let size = file.content.len();
    let found = File::open(path).ok();
    let len = found.as_ref().map_or(0, |file| file.metadata().unwrap().len());
    let (mut blocks, mut bytes) = (0, 0);
    for start in (0..size).step_by(BLOCK as usize) {
        let end = size.min(start + BLOCK);
        let is_right = || {
            let mut there = vec![0; (end - start) as usize];
            found.as_ref().unwrap().read_exact_at(&mut there, start).unwrap();
            there == file.content.slice(start, end)
        };
        if len < end || !is_right() {
            blocks += 1;
            bytes += end - start;
        }
    }
    (blocks, bytes)
}

/// Makes the receipt know the file as it is now: damage that no identity shows, as a disk does it.
pub fn hide(directory: &Path, file: &str) {
    let receipt = directory.join(".muster/receipt.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&receipt).unwrap()).unwrap();
    let meta = directory.join(file).metadata().unwrap();
    let ns = |s: i64, ns: i64| s * 1_000_000_000 + ns;
    let records = json["files"].as_array_mut().unwrap();
    let record = records.iter_mut().find(|record| record["path"] == file).unwrap();
    let identity = &mut record["identity"];
    assert_eq!(identity["size"], meta.size(), "a size is always seen");
    identity["inode"] = meta.ino().into();
    identity["mtime_ns"] = ns(meta.mtime(), meta.mtime_nsec()).into();
    identity["ctime_ns"] = ns(meta.ctime(), meta.ctime_nsec()).into();
    std::fs::write(&receipt, serde_json::to_vec(&json).unwrap()).unwrap();
}
