//! The store broken at random, many times over: what the tests beside it show once, under chance and load.
//!
//! `MUSTER_STORE_SEED` repeats a run and `MUSTER_STORE_ROUNDS` lengthens it.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::tests::{PROGRAM, files_below, fill, make_pristine, name};
use super::*;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Damages one file as chance wants it; what was done, in words.
fn damage(path: &Path, chance: &mut fastrand::Rng) -> String {
    let length = fs::metadata(path).unwrap().len();
    let at = chance.u64(0..=length);
    let many = 1 << chance.u32(0..17);
    let write = |at: u64, bytes: &[u8]| File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
    match chance.u8(0..7) {
        0 => {
            File::options().write(true).open(path).unwrap().set_len(at).unwrap();
            format!("cut at {at}")
        }
        1 => {
            write(at, &vec![0; many]);
            format!("{many} zeros at {at}")
        }
        2 => {
            write(at, &vec![0xff; many]);
            format!("{many} ones at {at}")
        }
        3 => {
            let noise: Vec<u8> = std::iter::repeat_with(|| chance.u8(..)).take(many).collect();
            write(at, &noise);
            format!("{many} random bytes at {at}")
        }
        4 => {
            let bytes = fs::read(path).unwrap();
            if !bytes.is_empty() {
                let at = at.min(length - 1);
                write(at, &[bytes[usize::try_from(at).unwrap()] ^ (1 << chance.u8(0..8))]);
            }
            format!("one bit at {at}")
        }
        5 => {
            // A piece of the file over another place of it: every byte looks right.
            let bytes = fs::read(path).unwrap();
            let from = chance.usize(0..=bytes.len());
            write(at, &bytes[from..bytes.len().min(from + many)]);
            format!("{many} bytes of {from} at {at}")
        }
        _ => {
            fs::remove_file(path).unwrap();
            "deleted".to_owned()
        }
    }
}

const DAMAGED: &str = "MUSTER_TEST_DAMAGED";

/// Not a test by itself: the child of the next one, so that not even an abort of the engine stays unseen.
#[test]
fn damage_child() {
    let Some(place) = std::env::var_os(DAMAGED) else { return };
    let place = Path::new(&place);
    let pristine = place.join("pristine");
    let mut names: Vec<_> =
        files_below(&pristine).iter().map(|path| path.strip_prefix(&pristine).unwrap().to_owned()).collect();
    names.sort();
    let (seed, rounds) = (number("MUSTER_STORE_SEED").unwrap(), number("MUSTER_STORE_ROUNDS").unwrap());
    let (mut aside, mut whole) = (0, 0);
    for seed in seed..seed + rounds {
        let mut chance = fastrand::Rng::with_seed(seed);
        let dir = place.join("case").join("state");
        for name in &names {
            let copy = dir.join(name);
            fs::create_dir_all(copy.parent().unwrap()).unwrap();
            fs::copy(pristine.join(name), copy).unwrap();
        }
        let victim = &names[usize::try_from(seed).unwrap() % names.len()];
        let what = damage(&dir.join(victim), &mut chance);
        println!("seed {seed}: {} {what}", victim.display());
        let Opened { store, fresh, notice } = Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH).unwrap();
        let (jobs, files) = (store.jobs().unwrap(), store.files(&name("org/name")).unwrap());
        match &notice {
            Some(notice) => assert!(fresh && jobs.is_empty() && files.is_empty() && notice.path.is_dir()),
            None => assert_eq!((fresh, jobs.len(), files.len(), store.undecodable()), (false, 2, 2002, 0)),
        }
        if notice.is_some() { aside += 1 } else { whole += 1 }
        fill(&store);
        drop(store);
        let again = Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH).unwrap();
        assert!(again.notice.is_none() && !again.store.jobs().unwrap().is_empty());
        drop(again);
        fs::remove_dir_all(place.join("case")).unwrap();
    }
    println!("{aside} set aside, {whole} whole");
}

#[test]
fn damage_at_random_places_ends_in_a_store_that_works_and_never_in_half_of_one() {
    let root = tempfile::tempdir().unwrap();
    make_pristine(&root.path().join("pristine"));
    let (seed, rounds) =
        (number("MUSTER_STORE_SEED").unwrap_or(1), number("MUSTER_STORE_ROUNDS").unwrap_or(100));
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::drills::damage_child", "--nocapture"])
        .env(DAMAGED, root.path())
        .env("MUSTER_STORE_SEED", seed.to_string())
        .env("MUSTER_STORE_ROUNDS", rounds.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut last = String::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if line.starts_with("seed ") || line.contains("set aside") {
            last = line;
        }
    }
    let status = child.wait().unwrap();
    println!("MUSTER_STORE_SEED={seed} MUSTER_STORE_ROUNDS={rounds}: {last}");
    assert!(status.success(), "{status} after {last}");
}
