//! The store as a whole: what it remembers, and what it does when its files are damaged.

mod drills;
mod kills;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use url::Url;

use super::*;
use crate::core::digest::{Digest, Sha256};
use crate::core::endpoint::Endpoint;
use crate::core::identity::Identity;
use crate::core::job::JobSpec;
use crate::core::receipt::Proved;
use crate::core::repo::{Repo, RepoId, RepoKind, Revision};
use crate::core::selection::Selection;

pub(super) const PROGRAM: &str = "muster 0.1.0";
pub(super) const GOLDEN: &str = include_str!("../../migrations/0001_initial.golden.json");

/// A child of a neighbouring test holds copies of our descriptors, and so of our lock, between
/// its fork and its exec: that passes.
pub(super) fn open(dir: &Path) -> Opened {
    let try_open = || Store::open(dir, PROGRAM, Timestamp::UNIX_EPOCH);
    let mut opened = try_open();
    for _ in 0..200 {
        if !matches!(opened, Err(StoreError::Locked { .. })) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
        opened = try_open();
    }
    opened.unwrap()
}

pub(super) fn name(text: &str) -> ModelName {
    ModelName::parse(text).unwrap()
}

pub(super) fn job(text: &str) -> Job {
    Job::queued(JobSpec {
        name: name(text),
        repo: Repo { kind: RepoKind::Model, id: RepoId::parse("org/name").unwrap() },
        revision: Revision::default(),
        selection: Selection::default(),
        endpoint: Endpoint::parse("https://hub.example").unwrap(),
        connections: Some(8),
        limit: None,
        reselect: false,
        update: true,
        repair: None,
    })
}

pub(super) fn file(path: &str) -> FileRecord {
    let sha256 = Sha256::from_bytes([7; 32]);
    FileRecord {
        path: RepoPath::parse(path).unwrap(),
        size: 5,
        digest: Digest::Sha256(sha256),
        sha256,
        identity: Identity { inode: 1, size: 5, mtime_ns: 2, ctime_ns: 3 },
        proved: Proved::Stream,
    }
}

pub(super) fn entry(detail: &(impl ToString + ?Sized)) -> AuditEntry {
    AuditEntry { at: Timestamp::UNIX_EPOCH, phase: Phase::Published, detail: detail.to_string() }
}

fn origin() -> Origin {
    Origin::of(&Url::parse("https://hub.example/x").unwrap())
}

/// One record of every kind.
pub(super) fn fill(store: &Store) {
    let model = name("org/name");
    store.put_job(&job("org/name")).unwrap();
    store.put_files(&model, &[file("config.json")]).unwrap();
    store.put_files(&model, &[file("sub/model.safetensors")]).unwrap();
    store.audit(&model, &entry("config.json")).unwrap();
    let updated_at = Timestamp::UNIX_EPOCH;
    store.put_origin(&origin(), &OriginMemory { safe_connections: 16, best_rate: 361_000_000, updated_at }).unwrap();
    store.put_progress(&model, &ProgressSnapshot { received: 30, durable: 20, verified: 10 }).unwrap();
    store.flush().unwrap();
}

#[test]
fn what_was_remembered_is_there_after_opening_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    let opened = open(&dir);
    assert!(opened.fresh && opened.notice.is_none());
    fill(&opened.store);
    drop(opened);
    let Opened { store, fresh, notice } = open(&dir);
    assert!(!fresh && notice.is_none());
    let model = name("org/name");
    assert_eq!(store.job(&model).unwrap(), Some(job("org/name")));
    assert_eq!(store.jobs().unwrap(), [job("org/name")]);
    assert_eq!(store.files(&model).unwrap(), [file("config.json"), file("sub/model.safetensors")]);
    assert_eq!(store.history(&model).unwrap(), [entry("config.json")]);
    assert_eq!(store.origin(&origin()).unwrap().map(|memory| memory.safe_connections), Some(16));
    assert_eq!(store.progress(&model).unwrap().map(|progress| progress.durable), Some(20));
    assert_eq!(store.undecodable(), 0);
}

#[test]
fn forgetting_one_model_leaves_the_others_and_its_own_history() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    fill(&store);
    let (model, other) = (name("org/name"), name("org/name-2"));
    store.put_files(&other, &[file("config.json")]).unwrap();
    store.forget_file(&model, &RepoPath::parse("config.json").unwrap()).unwrap();
    assert_eq!(store.files(&model).unwrap(), [file("sub/model.safetensors")]);
    store.forget_model(&model).unwrap();
    assert!(store.files(&model).unwrap().is_empty() && store.progress(&model).unwrap().is_none());
    assert_eq!((store.files(&other).unwrap().len(), store.history(&model).unwrap().len()), (1, 1));
    assert!(store.job(&model).unwrap().is_some());
    store.remove_job(&model).unwrap();
    assert!(store.jobs().unwrap().is_empty());
}

#[test]
fn a_history_keeps_the_last_thousand_lines_in_order() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    for number in 0..1005 {
        store.audit(&name("a"), &entry(&number)).unwrap();
    }
    store.audit(&name("b"), &entry("other")).unwrap();
    let details: Vec<_> = store.history(&name("a")).unwrap().into_iter().map(|entry| entry.detail).collect();
    assert_eq!(details, (5..1005).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn histories_of_models_that_are_gone_are_kept_within_a_bound_and_the_oldest_go() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    let line = |number: usize| AuditEntry {
        at: Timestamp::from_second(i64::try_from(number).unwrap()).unwrap(),
        ..entry(&number)
    };
    let all = HISTORIES_MAX + 20;
    for number in 0..all {
        // By no order of names.
        let model = name(&format!("m{}", number * 7 % all));
        store.audit(&model, &line(number)).unwrap();
        store.audit(&model, &line(number)).unwrap();
    }
    store.put_job(&job("m0")).unwrap();
    store.audit(&name("m0-and-more"), &line(5000)).unwrap();
    store.forget_old_histories().unwrap();
    let lines_of = |number: usize| store.history(&name(&format!("m{}", number * 7 % all))).unwrap().len();
    let kept: Vec<_> = (0..all).filter(|number| lines_of(*number) == 2).collect();
    // The first has a job, and one more is kept under a name of its own.
    let expected: Vec<_> = std::iter::once(0).chain(all - HISTORIES_MAX + 1..all).collect();
    assert_eq!(kept, expected);
    assert_eq!((0..all).filter(|number| lines_of(*number) == 1).count(), 0);
    assert_eq!(store.history(&name("m0-and-more")).unwrap().len(), 1);
}

#[test]
fn lines_added_at_the_same_time_are_all_kept() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..50).for_each(|line| store.audit(&name("a"), &entry(&line)).unwrap()));
        }
    });
    assert_eq!(store.history(&name("a")).unwrap().len(), 200);
}

#[test]
fn a_record_that_cannot_be_read_is_skipped_and_counted() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    fill(&store);
    store.put("test", &keys::job(&name("z")), b"{\"v\":1,\"is\":{}}".to_vec()).unwrap();
    assert_eq!(store.jobs().unwrap().len(), 1);
    assert_eq!(store.job(&name("z")).unwrap(), None);
    assert_eq!(store.undecodable(), 2);
}

#[test]
fn the_form_on_disk_is_the_golden_one() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    fill(&store);
    let export = store.export().unwrap();
    assert_eq!(export, GOLDEN, "what schema 1 looks like is frozen: another form needs a new migration");
}

#[test]
fn the_golden_records_are_read_by_this_program() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    let golden: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    for (key, value) in golden["records"].as_object().unwrap() {
        store.put("test", key, serde_json::to_vec(value).unwrap()).unwrap();
    }
    let model = name("org/name");
    assert_eq!(store.jobs().unwrap(), [job("org/name")]);
    assert_eq!((store.files(&model).unwrap().len(), store.history(&model).unwrap().len()), (2, 1));
    assert!(store.origin(&origin()).unwrap().is_some() && store.progress(&model).unwrap().is_some());
    assert_eq!(store.undecodable(), 0);
}

#[test]
fn a_newer_schema_is_set_aside_untouched() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    fill(&open(&dir).store);
    // As a later version would leave it: told by the note alone, before the engine looks.
    let note = Note { schema: 99, program: "muster 9.0".into(), opened_at: Timestamp::UNIX_EPOCH };
    Directory::claim(&dir).unwrap().sign(&note).unwrap();
    let before = fs::read(dir.join("db")).unwrap();
    let Opened { store, fresh, notice } = open(&dir);
    let notice = notice.unwrap();
    assert!(fresh && store.jobs().unwrap().is_empty());
    assert!(matches!(notice.why, Unusable::Newer { found: 99, known: migrate::SCHEMA }), "{notice:?}");
    assert_eq!(notice.written_by.as_deref(), Some("muster 9.0"));
    assert_eq!(fs::read(notice.path.join("db")).unwrap(), before);
}

#[test]
fn a_newer_schema_is_found_in_the_database_too() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    fill(&open(&dir).store);
    fs::remove_file(dir.join("written-by.json")).unwrap();
    let config = sled::Config::new().path(&dir).flush_every_ms(None);
    // The engine's threads let go of its lock a moment after it was closed.
    let reopened =
        (0..500).find_map(|_| config.open().map_err(|_| std::thread::sleep(std::time::Duration::from_millis(10))).ok());
    let db = reopened.unwrap();
    db.open_tree("meta").unwrap().insert("schema", "2").unwrap();
    db.open_tree("meta").unwrap().insert("program", "muster 2").unwrap();
    drop(db);
    let notice = open(&dir).notice.unwrap();
    assert!(matches!(notice.why, Unusable::Newer { found: 2, .. }), "{notice:?}");
    assert_eq!(notice.written_by.as_deref(), Some("muster 2"));
}

#[test]
fn a_store_in_use_is_not_touched() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    let store = open(&dir).store;
    assert!(matches!(Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH), Err(StoreError::Locked { .. })));
    fill(&store);
    drop(store);
    // A holder of the engine's own lock alone counts too.
    let db = File::open(dir.join("db")).unwrap();
    db.lock().unwrap();
    assert!(matches!(Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH), Err(StoreError::Locked { .. })));
    drop(db);
    assert_eq!(open(&dir).store.jobs().unwrap().len(), 1);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing was set aside");
}

#[test]
fn a_place_where_no_database_can_be_made_is_an_error_and_nothing_moves() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    fs::write(&dir, "a file").unwrap();
    assert!(matches!(Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH), Err(StoreError::Directory { .. })));
    assert_eq!(fs::read(&dir).unwrap(), b"a file");
}

#[test]
fn after_a_failure_nothing_more_is_asked_of_the_engine() {
    let root = tempfile::tempdir().unwrap();
    let store = open(&root.path().join("state")).store;
    let failed = store.engine.run::<()>("test", |_| panic!("corrupt"));
    assert!(
        matches!(failed, Err(StoreError::Failed { fault: Fault::Panicked { message }, .. }) if message == "corrupt")
    );
    assert!(matches!(store.jobs(), Err(StoreError::Failed { fault: Fault::Earlier, .. })));
    drop(store);
    assert!(open(&root.path().join("state")).notice.is_none());
}

type Damage = (&'static str, fn(&Path));

const DAMAGES: &[Damage] = &[
    ("deleted", |path| fs::remove_file(path).unwrap()),
    ("emptied", |path| File::options().write(true).open(path).unwrap().set_len(0).unwrap()),
    ("cut in half", |path| {
        let file = File::options().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    }),
    ("zeroed", |path| fs::write(path, vec![0; fs::read(path).unwrap().len()]).unwrap()),
    ("all ones", |path| fs::write(path, vec![0xff; fs::read(path).unwrap().len()]).unwrap()),
    ("garbled at the start", |path| garble(path, 0)),
    ("garbled in the middle", |path| garble(path, fs::metadata(path).unwrap().len() / 2)),
    ("garbled near the start", |path| garble(path, fs::metadata(path).unwrap().len().min(300))),
    ("replaced by a folder", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    }),
];

fn garble(path: &Path, at: u64) {
    File::options().write(true).open(path).unwrap().write_all_at(&[0xa5; 64], at).unwrap();
}

pub(super) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// A store with several segments of log, one record so large that it is a file of its own, and one record of every
/// kind; closed, opened and closed again.
pub(super) fn make_pristine(dir: &Path) {
    let store = open(dir).store;
    for index in 0..2000 {
        store.put_files(&name("org/name"), &[file(&format!("{index:04}"))]).unwrap();
    }
    let mut large = job("large");
    large.error = Some(crate::core::job::JobError {
        code: crate::core::code::Code::Internal,
        message: "x".repeat(400_000),
        hint: None,
    });
    store.put_job(&large).unwrap();
    fill(&store);
    drop(store);
    drop(open(dir));
}

#[test]
fn damage_of_any_file_ends_in_a_store_that_works_and_loses_nothing_silently() {
    let root = tempfile::tempdir().unwrap();
    let pristine = root.path().join("pristine");
    make_pristine(&pristine);
    let names: Vec<_> =
        files_below(&pristine).iter().map(|path| path.strip_prefix(&pristine).unwrap().to_owned()).collect();
    assert!(names.iter().any(|name| name.starts_with("blobs")) && names.len() >= 5, "{names:?}");

    for (round, (file_name, (what, damage))) in
        names.iter().flat_map(|name| DAMAGES.iter().map(move |damage| (name, damage))).enumerate()
    {
        let dir = root.path().join(format!("{round}")).join("state");
        fs::create_dir_all(dir.join("blobs")).unwrap();
        for name in &names {
            fs::copy(pristine.join(name), dir.join(name)).unwrap();
        }
        damage(&dir.join(file_name));
        let case = format!("{} {what}", file_name.display());
        let Opened { store, fresh, notice } = match Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH) {
            Ok(opened) => opened,
            // The note and the lock are ours: no database is lost with them.
            Err(StoreError::Directory { .. }) if *what == "replaced by a folder" => continue,
            Err(error) => panic!("{case}: {error:?}"),
        };
        let (jobs, files) = (store.jobs().unwrap(), store.files(&name("org/name")).unwrap());
        match &notice {
            Some(notice) => assert!(fresh && jobs.is_empty() && files.is_empty() && notice.path.is_dir(), "{case}"),
            None => assert_eq!((fresh, jobs.len(), files.len()), (false, 2, 2002), "{case}"),
        }
        assert_eq!(store.undecodable(), 0, "{case}");
        fill(&store);
        drop(store);
        assert!(!open(&dir).store.jobs().unwrap().is_empty(), "{case}");
    }
}
