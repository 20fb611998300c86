//! The volume that breaks, tried by itself: what it lets through, what it fails, what a power cut leaves.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod faultfs;
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use faultfs::{Act, At, FaultFs, Kept, Op};
use rustix::fs::{CWD, FallocateFlags, FlockOperation, RenameFlags};
use rustix::io::Errno;
use support::skip;

const SOON: Duration = Duration::from_secs(20);

/// A mounted folder in a temporary one.
fn mounted() -> Option<(tempfile::TempDir, FaultFs)> {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("v")).unwrap();
    match FaultFs::over(&place.path().join("v")) {
        Ok(fs) => Some((place, fs)),
        Err(why) => {
            skip(&why);
            None
        }
    }
}

fn sync_names(folder: &Path) {
    File::open(folder).unwrap().sync_all().unwrap();
}

#[test]
fn everything_goes_through_to_the_folder_below() {
    let Some((_place, fs)) = mounted() else { return };
    let (top, below) = (fs.path().to_owned(), fs.backing().to_owned());
    fs::create_dir_all(top.join("a/b")).unwrap();
    let path = top.join("a/b/file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    sync_names(&top.join("a/b"));
    assert_eq!(fs::read(below.join("a/b/file")).unwrap(), bytes);
    let mut read = vec![0; 1000];
    file.read_exact_at(&mut read, 2_000_000).unwrap();
    assert_eq!(read, bytes[2_000_000..2_001_000]);
    assert_eq!(path.metadata().unwrap().ino(), below.join("a/b/file").metadata().unwrap().ino());

    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(below.join("a/b/file").metadata().unwrap().mode() & 0o7777, 0o640);
    file.set_len(10).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 10);
    file.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(below.join("a/b/file").metadata().unwrap().mtime(), 0);

    fs::hard_link(&path, top.join("a/second")).unwrap();
    assert_eq!(path.metadata().unwrap().nlink(), 2);
    std::os::unix::fs::symlink("b/file", top.join("a/link")).unwrap();
    assert_eq!(fs::read_link(top.join("a/link")).unwrap(), Path::new("b/file"));
    assert_eq!(fs::read(top.join("a/link")).unwrap().len(), 10);
    let exists = rustix::fs::renameat_with(CWD, top.join("a/second"), CWD, &path, RenameFlags::NOREPLACE);
    assert_eq!(exists, Err(Errno::EXIST));
    rustix::fs::renameat_with(CWD, top.join("a/link"), CWD, &path, RenameFlags::EXCHANGE).unwrap();
    assert!(path.symlink_metadata().unwrap().is_symlink());
    fs::remove_file(top.join("a/second")).unwrap();
    assert_eq!(fs::remove_dir(top.join("a")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
    let mut names: Vec<_> = fs::read_dir(top.join("a")).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["b", "link"]);

    let listener = UnixListener::bind(top.join("socket")).unwrap();
    let mut client = UnixStream::connect(top.join("socket")).unwrap();
    client.write_all(b"hello").unwrap();
    let mut told = [0; 5];
    listener.accept().unwrap().0.read_exact(&mut told).unwrap();
    assert_eq!(&told, b"hello");
    let (free, below) = (rustix::fs::statvfs(&top).unwrap(), rustix::fs::statvfs(&below).unwrap());
    assert_eq!((free.f_blocks, free.f_frsize), (below.f_blocks, below.f_frsize));
    let ended = fs.end();
    assert_eq!(fs::read(ended.join("a/link")).unwrap().len(), 10);
}

#[test]
fn locks_are_true_until_they_lie() {
    let Some((_place, fs)) = mounted() else { return };
    let path = fs.path().join("lock");
    let open = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    let (one, two) = (open(), open());
    rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert_eq!(rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    fs.lie_about_locks(true);
    rustix::fs::flock(&two, FlockOperation::NonBlockingLockExclusive).unwrap();
    fs.lie_about_locks(false);
    assert_eq!(rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK));
    drop(one);
    support::wait_until("the lock goes with its file", SOON, || {
        rustix::fs::flock(&two, FlockOperation::NonBlockingLockShared).is_ok()
    });
}

#[test]
fn a_rule_fails_the_steps_it_names_and_no_others() {
    let Some((_place, fs)) = mounted() else { return };
    fs.when(At::op(Op::Write).path("a").nth(2), Act::Fail(Errno::NOSPC));
    let synced = fs.when(At::op(Op::Fsync), Act::Fail(Errno::IO));
    let mut file = File::create(fs.path().join("a")).unwrap();
    let mut other = File::create(fs.path().join("b")).unwrap();
    file.write_all(b"1").unwrap();
    other.write_all(b"1").unwrap();
    assert_eq!(file.write_all(b"2").unwrap_err().raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    file.write_all(b"3").unwrap();
    assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert!(other.sync_all().is_err());
    fs.lift(synced);
    file.sync_data().unwrap();
    assert_eq!(fs.played(synced), 2);
    let after = fs.when(At::op(Op::Rename).nth(1), Act::FailAfter(Errno::IO));
    assert!(fs::rename(fs.path().join("a"), fs.path().join("c")).is_err());
    assert!(fs.path().join("c").exists(), "done, and told otherwise");
    assert_eq!(fs.played(after), 1);
    fs.when(At::op(Op::Fallocate), Act::Pretend);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 2);
    let log = fs.log();
    let renamed = log.iter().find(|step| step.op == Op::Rename).unwrap();
    assert_eq!(
        (renamed.path.as_str(), renamed.number as usize),
        ("a -> c", 1 + log.iter().position(|s| s == renamed).unwrap())
    );
    fs.when(At::op(Op::Write).nth(1), Act::Short(3));
    assert_eq!(file.write(b"12345").unwrap(), 3);
}

#[test]
fn a_held_step_waits_for_its_release_and_a_killed_caller_waits_no_longer() {
    let Some((_place, fs)) = mounted() else { return };
    let held = fs.when(At::op(Op::Mkdir), Act::Hold);
    let path = fs.path().join("d");
    std::thread::scope(|scope| {
        let making = scope.spawn(|| fs::create_dir(&path).unwrap());
        fs.wait_for(held, SOON);
        assert!(!fs.backing().join("d").exists() && !making.is_finished());
        fs.release(held);
        making.join().unwrap();
    });
    assert!(fs.backing().join("d").exists());
    let held = fs.when(At::op(Op::Mkdir), Act::Hold);
    let mut child = std::process::Command::new("mkdir").arg(fs.path().join("e")).spawn().unwrap();
    fs.wait_for(held, SOON);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    assert!(!fs.backing().join("e").exists());
}

#[test]
fn a_process_is_killed_before_or_after_its_step() {
    for (act, there) in [(Act::Kill, false), (Act::KillAfter, true)] {
        let Some((_place, fs)) = mounted() else { return };
        fs.when(At::op(Op::Mkdir), act);
        let ended = std::process::Command::new("mkdir").arg(fs.path().join("d")).status().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9));
        assert_eq!(fs.backing().join("d").exists(), there);
    }
}

#[test]
fn times_jump_when_the_clock_is_set() {
    let Some((_place, fs)) = mounted() else { return };
    let write = |name: &str| {
        fs::write(fs.path().join(name), b"x").unwrap();
        fs.path().join(name).metadata().unwrap().mtime()
    };
    let before = write("a");
    fs.jump(-3600);
    let after = write("b");
    assert!((before - after - 3600).abs() <= 5, "{before} {after}");
    assert_eq!(fs.path().join("a").metadata().unwrap().mtime(), before);
}

/// Steps on a volume, then a power cut, and what is there afterwards.
fn cut(kept: Kept, steps: impl FnOnce(&FaultFs)) -> Option<(tempfile::TempDir, PathBuf)> {
    let (place, fs) = mounted()?;
    fs::write(fs.path().join("old"), b"old bytes").unwrap();
    fs::create_dir(fs.path().join("folder")).unwrap();
    fs.track_power();
    steps(&fs);
    fs.cut();
    assert!(fs::metadata(fs.path().join("old")).is_err());
    let left = fs.after_the_cut(kept);
    assert!(!place.path().join("v.backing").exists() && !place.path().join("v.backing.graveyard").exists());
    Some((place, left))
}

fn names(folder: &Path) -> Vec<String> {
    support::listing(folder)
}

#[test]
fn what_was_not_synced_is_gone_after_a_power_cut() {
    let Some((_place, left)) = cut(Kept::Nothing, |fs| {
        let at = |name: &str| fs.path().join(name);
        // Synced bytes without a synced name; a synced name without synced bytes; both.
        for (name, bytes, named) in [("folder/a", true, false), ("b", false, true), ("c", true, true)] {
            let mut file = File::create(at(name)).unwrap();
            file.write_all(b"12345").unwrap();
            if bytes {
                file.sync_data().unwrap();
            }
            file.write_all(b"678").unwrap();
            if named {
                sync_names(at(name).parent().unwrap());
            }
        }
        let old = OpenOptions::new().write(true).open(at("old")).unwrap();
        old.write_all_at(b"NEW", 0).unwrap();
        old.set_len(4).unwrap();
        fs::rename(at("old"), at("folder/moved")).unwrap();
        fs::create_dir(at("lost")).unwrap();
        let mut inside = File::create(at("lost/file")).unwrap();
        inside.write_all(b"x").unwrap();
        inside.sync_all().unwrap();
        sync_names(&at("lost"));
    }) else {
        return;
    };
    assert_eq!(names(&left), ["b", "c", "folder/", "old"]);
    assert_eq!(fs::read(left.join("b")).unwrap(), b"");
    assert_eq!(fs::read(left.join("c")).unwrap(), b"12345");
    assert_eq!(fs::read(left.join("old")).unwrap(), b"old bytes");
}

#[test]
fn what_was_synced_stays_the_very_file_it_was() {
    let mut before = None;
    let Some((_place, left)) = cut(Kept::Nothing, |fs| {
        let at = |name: &str| fs.path().join(name);
        fs::write(at("temp"), b"whole").unwrap();
        File::open(at("temp")).unwrap().sync_all().unwrap();
        fs::rename(at("temp"), at("folder/final")).unwrap();
        // One of the two folders of a rename is enough: it is one change.
        sync_names(&at("folder"));
        fs::write(at("replacing"), b"new").unwrap();
        File::open(at("replacing")).unwrap().sync_all().unwrap();
        fs::rename(at("replacing"), at("old")).unwrap();
        sync_names(fs.path());
        fs::remove_file(at("old")).unwrap();
        before = Some(at("folder/final").metadata().unwrap());
    }) else {
        return;
    };
    assert_eq!(names(&left), ["folder/", "folder/final", "old"]);
    let (before, after) = (before.unwrap(), left.join("folder/final").metadata().unwrap());
    let identity = |m: &fs::Metadata| (m.ino(), m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    assert_eq!(identity(&before), identity(&after));
    assert_eq!(fs::read(left.join("old")).unwrap(), b"new", "the removal was not synced");
}

#[test]
fn bytes_of_a_failed_sync_are_lost_whatever_a_later_one_says() {
    let Some((_place, left)) = cut(Kept::Everything, |fs| {
        let file = OpenOptions::new().write(true).open(fs.path().join("old")).unwrap();
        file.write_all_at(b"12345", 9).unwrap();
        let failing = fs.when(At::op(Op::Fsync).nth(1), Act::Fail(Errno::IO));
        assert!(file.sync_data().is_err());
        assert_eq!(fs.played(failing), 1);
        assert_eq!(fs::read(fs.path().join("old")).unwrap(), b"old bytes\0\0\0\0\0");
        file.write_all_at(b"67", 14).unwrap();
        file.write_all_at(b"2", 10).unwrap();
        file.sync_data().unwrap();
    }) else {
        return;
    };
    assert_eq!(fs::read(left.join("old")).unwrap(), b"old bytes\x002\0\0\x0067");
}

#[test]
fn some_of_what_was_not_synced_may_be_there_in_any_order() {
    let mut seen = std::collections::HashSet::new();
    for seed in 0..24 {
        let Some((_place, left)) = cut(Kept::Some(seed), |fs| {
            let at = |name: &str| fs.path().join(name);
            let mut file = File::create(at("a")).unwrap();
            file.write_all(&[1; 8192]).unwrap();
            file.write_all(&[2; 4096]).unwrap();
            fs::rename(at("a"), at("b")).unwrap();
            fs::write(at("c"), b"c").unwrap();
        }) else {
            return;
        };
        let bytes = fs::read(left.join("b")).or_else(|_| fs::read(left.join("a"))).unwrap_or_default();
        for (at, byte) in bytes.iter().enumerate() {
            assert!([0, if at < 8192 { 1 } else { 2 }].contains(byte), "{byte} at {at}");
        }
        assert!(!(left.join("a").exists() && left.join("b").exists()), "a rename is one change");
        let blocks: Vec<_> = bytes.chunks(4096).map(|block| block[0]).collect();
        seen.insert((names(&left), bytes.len(), blocks));
    }
    assert!(seen.len() > 8, "{seen:?}");
}
