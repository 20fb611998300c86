//! The store broken at random, many times over: what the tests beside it show once, under chance and load.
//!
//! `MUSTER_STORE_SEED` repeats a run of random damage or kills; `MUSTER_STORE_ROUNDS` (100 damages, 200 kills) and
//! `MUSTER_STORE_UPDATES` (200 000) make one longer.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::{GOLDEN, PROGRAM, entry, files_below, fill, job, make_pristine, name, open};
use crate::core::job::JobState;
use crate::store::*;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// Damages one file as chance wants it; what was done, in words.
fn damage(path: &Path, chance: &mut fastrand::Rng) -> String {
    let length = fs::metadata(path).unwrap().len();
    let at = chance.u64(0..=length);
    let many = 1 << chance.u32(0..17);
    let write =
        |at: u64, bytes: &[u8]| File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
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

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = files_below(dir).into_iter();
    files.map(|path| (path.strip_prefix(dir).unwrap().to_owned(), fs::read(&path).unwrap())).collect()
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
        let damaged = contents(&dir);
        let Opened { store, fresh, notice } = Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH).unwrap();
        let (jobs, files) = (store.jobs().unwrap(), store.files(&name("org/name")).unwrap());
        match &notice {
            Some(notice) => {
                assert!(fresh && jobs.is_empty() && files.is_empty());
                assert!(contents(&notice.path) == damaged, "what is set aside was touched");
            }
            None => assert_eq!((fresh, jobs.len(), files.len(), store.undecodable()), (false, 2, 2002, 0)),
        }
        let count = if notice.is_some() { &mut aside } else { &mut whole };
        *count += 1;
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
    let (seed, rounds) = (number("MUSTER_STORE_SEED").unwrap_or(1), number("MUSTER_STORE_ROUNDS").unwrap_or(100));
    let (seed_text, rounds_text) = (seed.to_string(), rounds.to_string());
    let variables = [("MUSTER_STORE_SEED", &*seed_text), ("MUSTER_STORE_ROUNDS", &rounds_text)];
    let mut child = child_of("damage_child", DAMAGED, root.path(), &variables);
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

fn child_of(test: &str, variable: &str, place: &Path, variables: &[(&str, &str)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("store::tests::drills::{test}"), "--nocapture"])
        .env(variable, place)
        .envs(variables.iter().copied())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

const LOADED: &str = "MUSTER_TEST_LOADED";

/// Not a test by itself: the child of the next one, which writes as fast as it can until it is killed, and says what
/// it found and what it has handed over.
#[test]
fn load_child() {
    let Some(dir) = std::env::var_os(LOADED) else { return };
    let models: Vec<_> = (0..20).map(|number| name(&format!("org/{number}"))).collect();
    let Opened { store, fresh, notice } = Store::open(Path::new(&dir), PROGRAM, Timestamp::UNIX_EPOCH).unwrap();
    let found = models.iter().map(|model| store.progress(model).unwrap().unwrap_or_default().received);
    let found = found.min().unwrap();
    println!("found {found} {fresh} {} {}", notice.is_some(), store.undecodable());
    for count in found + 1.. {
        for model in &models {
            store.put_progress(model, &ProgressSnapshot { received: count, ..Default::default() }).unwrap();
        }
        let model = &models[usize::try_from(count).unwrap() % models.len()];
        store.audit(model, &entry(&count)).unwrap();
        store.put_job(&Job { state: JobState::Fetching, ..job(model.as_str()) }).unwrap();
        if count % 4 == 0 {
            store.flush().unwrap();
            println!("flushed {count}");
        }
    }
}

#[test]
fn hundreds_of_kills_under_load_leave_a_store_that_opens_with_everything_that_was_flushed() {
    let (seed, rounds) = (number("MUSTER_STORE_SEED").unwrap_or(1), number("MUSTER_STORE_ROUNDS").unwrap_or(200));
    let mut chance = fastrand::Rng::with_seed(seed);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    let (mut flushed, mut reopened, mut while_opening, mut asides) = (0, 0, 0, 0);
    for round in 0..rounds {
        let mut child = child_of("load_child", LOADED, &dir, &[]);
        let (tell, told) = mpsc::channel();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let reader = std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| drop(tell.send(line))));
        let life = chance.u64(0..60);
        // A few die while they open; the others live for so long once they have.
        let mut first = None;
        if chance.u8(0..5) > 0 {
            let limit = std::time::Instant::now() + Duration::from_secs(60);
            while first.is_none() && std::time::Instant::now() < limit {
                let said = told.recv_timeout(Duration::from_secs(60)).unwrap();
                first = Some(said).filter(|one| one.starts_with("found ") || one.contains("flushed"));
            }
        }
        std::thread::sleep(Duration::from_millis(life));
        child.kill().unwrap();
        let status = child.wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "round {round}: {status}");
        reader.join().unwrap();
        let lines: Vec<String> = first.into_iter().chain(told.try_iter()).collect();
        match lines.iter().find_map(|line| line.split_once("found ").map(|(_, rest)| rest)) {
            None => while_opening += 1,
            Some(found) => {
                let words: Vec<_> = found.split(' ').collect();
                let count: u64 = words[0].parse().unwrap();
                let (fresh, aside) = (words[1] == "true", words[2] == "true");
                assert_eq!(words[3], "0", "round {round}: {found}");
                if aside {
                    asides += 1;
                    flushed = 0;
                }
                assert!(count >= flushed, "round {round}: {flushed} was flushed, {found}");
                assert!(!fresh || aside || reopened == 0, "round {round}: emptied without a word: {found}");
                reopened += 1;
            }
        }
        let last = lines.iter().filter_map(|line| line.strip_prefix("flushed ")?.parse().ok()).max();
        flushed = last.unwrap_or(flushed);
    }
    println!(
        "MUSTER_STORE_SEED={seed} MUSTER_STORE_ROUNDS={rounds}: {reopened} opened, {while_opening} killed before that, {asides} set aside, {flushed} flushed"
    );
    assert_eq!(asides, 0, "a kill is no reason to lose a store");
    let Opened { store, fresh, notice } = open(&dir);
    assert!(!fresh && notice.is_none() && !store.history(&name("org/0")).unwrap().is_empty());
    assert_eq!(store.job(&name("org/0")).unwrap().map(|job| job.state), Some(JobState::Fetching));
}

#[test]
fn rewriting_a_few_records_does_not_grow_the_directory() {
    const MODELS: u64 = 100;
    let updates = number("MUSTER_STORE_UPDATES").unwrap_or(200_000);
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    let store = open(&dir).store;
    let models: Vec<_> = (0..MODELS).map(|number| name(&format!("org/{number}"))).collect();
    let mut most = 0;
    for (round, slow) in (0..updates / MODELS).zip(models.iter().cycle()) {
        for model in &models {
            store.put_progress(model, &ProgressSnapshot { received: round, durable: round, verified: 0 }).unwrap();
        }
        // Slow records among the quick ones would pin the log if nothing moved them.
        store.audit(slow, &entry(&round)).unwrap();
        if round % 10 == 0 {
            store.flush().unwrap();
        }
        if round % 200 == 0 {
            most = most.max(size_on_disk(&dir));
        }
    }
    store.flush().unwrap();
    most = most.max(size_on_disk(&dir));
    println!("{updates} updates of {MODELS} records: at most {most} bytes, {} at the end", size_on_disk(&dir));
    // Histories, which are bounded too, grow to 100 000 lines in a long run.
    let bound = if updates > 1_000_000 { 64 << 20 } else { 16 << 20 };
    assert!(most < bound, "{most} bytes");
    assert_eq!(store.progress(&models[99]).unwrap().unwrap().received, updates / MODELS - 1);
}

fn size_on_disk(dir: &Path) -> u64 {
    files_below(dir).iter().map(|path| path.metadata().map_or(0, |meta| meta.len())).sum()
}

#[test]
fn a_store_that_another_process_wrote_into_ends_in_one_that_works() {
    // As where locks lie: two have it open, and each writes as if alone.
    let root = tempfile::tempdir().unwrap();
    let (dir, other) = (root.path().join("state"), root.path().join("other"));
    make_pristine(&dir);
    for round in 0..4 {
        let mine = open(&dir).store;
        fs::create_dir(&other).unwrap();
        for (name, bytes) in contents(&dir) {
            fs::create_dir_all(other.join(&name).parent().unwrap()).unwrap();
            fs::write(other.join(name), bytes).unwrap();
        }
        let theirs = open(&other).store;
        for count in 0..300 * (round + 1) {
            let progress = ProgressSnapshot { received: count, ..Default::default() };
            mine.put_progress(&name("mine"), &progress).unwrap();
            theirs.put_progress(&name("theirs"), &progress).unwrap();
            theirs.audit(&name("theirs"), &entry(&count)).unwrap();
        }
        theirs.flush().unwrap();
        drop(theirs);
        let bytes = fs::read(other.join("db")).unwrap();
        File::options().write(true).open(dir.join("db")).unwrap().write_all_at(&bytes, 0).unwrap();
        // It may fail from now on, and must not do worse.
        for count in 0..200 {
            let _ = mine.audit(&name("mine"), &entry(&count));
        }
        let _ = mine.flush();
        drop(mine);
        fs::remove_dir_all(&other).unwrap();
        let Opened { store, fresh, notice } = open(&dir);
        assert_eq!(fresh, notice.is_some(), "round {round}");
        fill(&store);
        drop(store);
        assert!(open(&dir).notice.is_none());
    }
}

/// The files of a store of that schema, as the engine of its time wrote them.
fn golden_files(schema: u32) -> PathBuf {
    let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let prefix = format!("{schema:04}_");
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(&prefix) && path.is_dir()
    };
    let found = fs::read_dir(&migrations).unwrap().map(|entry| entry.unwrap().path()).find(is_it);
    found.unwrap_or_else(|| migrations.join(format!("{prefix}initial.golden")))
}

/// `MUSTER_STORE_GOLDEN=1` makes the files for the schema of now, once, when a migration is added.
#[test]
fn a_golden_database_of_every_schema_opens_with_all_its_records() {
    /// The engine's file has whole segments; zeros at its end are left out of the golden one.
    const SEGMENT: u64 = 512 << 10;
    if std::env::var_os("MUSTER_STORE_GOLDEN").is_some() {
        let root = tempfile::tempdir().unwrap();
        fill(&open(&root.path().join("state")).store);
        for (name, mut bytes) in contents(&root.path().join("state")) {
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            if name == Path::new("db") {
                bytes.truncate(end);
            }
            let path = golden_files(migrate::SCHEMA).join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
    }
    for schema in 1..=migrate::SCHEMA {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("state");
        let golden = contents(&golden_files(schema));
        assert!(golden.contains_key(Path::new("db")), "schema {schema} has no golden database");
        for (name, bytes) in golden {
            fs::create_dir_all(dir.join(&name).parent().unwrap()).unwrap();
            fs::write(dir.join(name), bytes).unwrap();
        }
        let db = File::options().write(true).open(dir.join("db")).unwrap();
        db.set_len(db.metadata().unwrap().len().next_multiple_of(SEGMENT)).unwrap();
        let Opened { store, fresh, notice } = open(&dir);
        assert!(!fresh && notice.is_none(), "schema {schema}: {notice:?}");
        assert_eq!(store.export().unwrap(), GOLDEN, "schema {schema}");
        assert_eq!(store.undecodable(), 0);
    }
}
