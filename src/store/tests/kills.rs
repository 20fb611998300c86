//! What the engine has written in part when it is killed while it opens, made by hand: the kills beside it by chance
//! seldom find it.

use std::fs::{self, File};

use super::{PROGRAM, files_below, fill, make_pristine, name, open};
use crate::store::*;

#[test]
fn a_kill_while_the_engine_writes_a_snapshot_loses_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (pristine, dir) = (root.path().join("pristine"), root.path().join("state"));
    make_pristine(&pristine);
    let snapshot = files_below(&pristine).into_iter().find(|path| path.to_str().unwrap().contains("/snap.")).unwrap();
    let bytes = fs::read(&snapshot).unwrap();
    // The engine writes contents, length and checksum one by one.
    for length in [0, 12, bytes.len() / 2, bytes.len() - 12, bytes.len() - 4, bytes.len()] {
        fs::create_dir_all(dir.join("blobs")).unwrap();
        for path in files_below(&pristine) {
            fs::copy(&path, dir.join(path.strip_prefix(&pristine).unwrap())).unwrap();
        }
        let half = dir.join("snap.00000000FFFFFFFF.generating");
        fs::write(&half, &bytes[..length]).unwrap();
        let Opened { store, fresh, notice } = open(&dir);
        assert!(!fresh && notice.is_none(), "{length} bytes: {notice:?}");
        assert_eq!((store.jobs().unwrap().len(), store.files(&name("org/name")).unwrap().len()), (2, 2002));
        assert!(!half.exists());
        drop(store);
        fs::remove_dir_all(&dir).unwrap();
    }
}

#[test]
fn a_kill_while_the_engine_begins_a_database_sets_none_aside() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    drop(open(&dir));
    let conf = fs::read(dir.join("conf")).unwrap();
    for length in 0..=conf.len() {
        let dir = root.path().join(format!("{length}"));
        fs::create_dir_all(dir.join("blobs")).unwrap();
        fs::write(dir.join("conf"), &conf[..length]).unwrap();
        let Opened { fresh, notice, .. } = open(&dir);
        assert!(fresh && notice.is_none(), "{length} bytes: {notice:?}");
        assert_eq!(fs::read(dir.join("conf")).unwrap(), conf);
    }
}

#[test]
fn what_is_half_written_stays_while_somebody_holds_the_database() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("state");
    fill(&open(&dir).store);
    let half = dir.join("snap.00000000FFFFFFFF.generating");
    fs::write(&half, "").unwrap();
    let db = File::open(dir.join("db")).unwrap();
    // The engine's threads let go of its lock a moment after it was closed.
    db.lock().unwrap();
    assert!(matches!(Store::open(&dir, PROGRAM, Timestamp::UNIX_EPOCH), Err(StoreError::Locked { .. })));
    assert!(half.exists(), "the holder may be writing it");
    drop(db);
    assert!(open(&dir).notice.is_none() && !half.exists());
}
