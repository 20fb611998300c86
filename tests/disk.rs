//! A disk that fails: full, over quota, broken, read-only, stale, silent, lying; and files that somebody changed.
//! The right exit code, words that name file and step, nothing lost, nothing wrong accepted.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod faultfs;
mod support;

use std::fs::{self, File, FileTimes, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use faultfs::{Act, At, FaultFs, Op};
use rustix::io::Errno;
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(90);
const SHARD: &str = "weights-1.bin";

fn repo() -> RepoSpec {
    RepoSpec::new("org/model")
        .lfs(SHARD, Content::generated(1, 3 * MIB + 5))
        .lfs("weights-2.bin", Content::generated(2, MIB))
        .plain("config.json", "{}")
        .plain("sub/words.txt", "one two three")
}

/// A hub, a volume that breaks, and what is pulled onto it. The mount goes before its folder.
struct Stage {
    fs: FaultFs,
    hub: Hub,
    world: Muster,
}

impl Stage {
    /// Says so and is none where nothing can be mounted.
    fn empty() -> Option<Self> {
        let hub = Hub::start(repo());
        let world = Muster::on(&hub);
        Self::mount(hub, world)
    }

    /// With the model already there.
    fn complete() -> Option<Self> {
        let hub = Hub::start(repo());
        let world = Muster::on(&hub);
        world.args(["pull", "org/model"]).run().expect_code(0);
        hub.forget();
        Self::mount(hub, world)
    }

    fn mount(hub: Hub, world: Muster) -> Option<Self> {
        match FaultFs::over(world.volume()) {
            Ok(fs) => {
                fs.be_quick();
                Some(Self { fs, hub, world })
            }
            Err(why) => {
                skip(&why);
                None
            }
        }
    }

    fn run(&self, verb: &str) -> Output {
        let out = self.world.args([verb, "org/model"]).time_limit(SOON).run();
        if out.code != Some(15) || verb != "gate" {
            return out;
        }
        // The kernel tells of a closed file, and its lock, a moment after its process ended.
        std::thread::sleep(Duration::from_millis(500));
        self.world.args([verb, "org/model"]).time_limit(SOON).run()
    }

    fn directory(&self) -> std::path::PathBuf {
        self.world.model("org/model")
    }
}

fn is_right(directory: &Path, file: &FileSpec) -> bool {
    fs::read(directory.join(&file.path)).is_ok_and(|bytes| sha256_hex(bytes) == file.content.sha256())
}

/// What has a final name is right, the gate is closed, and without the fault the next pull ends it.
#[track_caller]
fn assert_nothing_is_lost(stage: &Stage, case: &str) {
    stage.fs.lift_all();
    let directory = stage.directory();
    let whole = repo().files().all(|file| is_right(&directory, file));
    for file in repo().files().filter(|file| directory.join(&file.path).exists()) {
        assert!(is_right(&directory, file), "{case}: {} under its final name", file.path);
    }
    let gate = stage.run("gate");
    assert!(gate.code == Some(0) && whole || [Some(10), Some(13)].contains(&gate.code), "{case}: {gate}");
    let there: u64 = repo().files().filter(|file| is_right(&directory, file)).map(FileSpec::size).sum();
    stage.hub.forget();
    stage.run("pull").expect_code(0);
    assert_complete(&directory, &repo());
    assert!(stage.hub.total_body_bytes() <= repo().total_bytes() - there, "{case}: what is in place came again");
    stage.run("gate").expect_code(0);
}

// class: bounds, words, progress-lost
#[test]
fn each_failure_of_the_disk_has_its_code_and_names_file_and_step_and_loses_nothing() {
    const FULL: &str = "no space to";
    const BAD: &str = "could not";
    let partial = |op| At::op(op).path(".incomplete");
    let published = At::op(Op::Rename).path(".incomplete -> org/model/weights-1.bin");
    let cases = [
        ("a full disk", partial(Op::Write).starting(6), Errno::NOSPC, 16, [FULL, "write"], ".incomplete"),
        ("a used-up quota", partial(Op::Write).starting(6), Errno::DQUOT, 16, ["quota", "write"], ".incomplete"),
        ("a bad disk", partial(Op::Write).starting(6), Errno::IO, 18, [BAD, "write"], ".incomplete"),
        (
            "a disk gone read-only",
            partial(Op::Write).starting(6),
            Errno::ROFS,
            18,
            ["read-only", "write"],
            ".incomplete",
        ),
        ("a forgotten handle", partial(Op::Write).starting(6), Errno::STALE, 18, [BAD, "write"], ".incomplete"),
        ("a sync without room", partial(Op::Fsync), Errno::NOSPC, 16, [FULL, "sync"], ".incomplete"),
        ("a sync beyond quota", partial(Op::Fsync), Errno::DQUOT, 16, ["quota", "sync"], ".incomplete"),
        ("a sync that fails", partial(Op::Fsync), Errno::IO, 18, [BAD, "sync"], ".incomplete"),
        ("a read that fails", partial(Op::Read), Errno::IO, 18, [BAD, "read"], ".incomplete"),
        ("a rename without room", published.clone(), Errno::NOSPC, 16, [FULL, "rename"], SHARD),
        ("a rename that fails", published.clone(), Errno::IO, 18, [BAD, "rename"], SHARD),
        ("a rename on a read-only disk", published, Errno::ROFS, 18, ["read-only", "rename"], SHARD),
        (
            "names that cannot be synced",
            At::op(Op::FsyncDir).path("org/model/sub"),
            Errno::IO,
            18,
            [BAD, "sync"],
            "sub",
        ),
        (
            "a receipt without room",
            At::op(Op::Write).path(".receipt.json"),
            Errno::NOSPC,
            16,
            [FULL, "write"],
            "receipt.json",
        ),
        (
            "a receipt that is not synced",
            At::op(Op::Fsync).path(".receipt.json"),
            Errno::IO,
            18,
            [BAD, "sync"],
            "receipt.json",
        ),
        (
            "no room for a partial",
            At::op(Op::Create).path(".incomplete"),
            Errno::NOSPC,
            16,
            [FULL, "create"],
            ".incomplete",
        ),
        ("no blocks for a partial", partial(Op::Fallocate), Errno::NOSPC, 16, [FULL, "reserve"], ".incomplete"),
        (
            "no room for the socket",
            At::op(Op::Rename).path("api.sock"),
            Errno::DQUOT,
            16,
            ["socket", "quota"],
            "api.sock",
        ),
    ];
    for (case, at, errno, code, words, file) in cases {
        let Some(stage) = Stage::empty() else { return };
        let rule = stage.fs.when(at, Act::Fail(errno));
        let out = stage.run("pull");
        assert!(stage.fs.played(rule) > 0, "{case}: {out}");
        assert_eq!(out.code, Some(code), "{case}: {out}");
        for word in words.into_iter().chain([file]) {
            assert!(out.stderr.contains(word), "{case}: no {word:?}: {out}");
        }
        assert_nothing_is_lost(&stage, case);
    }
}

// class: wrong-bytes, looks-complete
#[test]
fn a_failed_sync_that_succeeds_the_second_time_is_still_a_failure() {
    // The bytes of a failed sync are gone; a second one says yes to nothing.
    for (readback, nth) in [("never", 1), ("always", 1), ("always", 2)] {
        let Some(stage) = Stage::empty() else { return };
        stage.fs.track_power();
        // Claimed once in the middle; then the first or the last sync fails.
        stage.hub.on(Match::cdn(SHARD).get()).then(Behaviour::ShortBody(2 * MIB));
        let hash = &sha256_hex(SHARD)[..32];
        let rule = stage.fs.when(At::op(Op::Fsync).path(hash).nth(nth), Act::Fail(Errno::IO));
        let world = stage.world.clone().env("MUSTER_READBACK", readback);
        let pull = || world.args(["pull", "org/model", "--connections", "1"]).time_limit(SOON).run();
        let out = pull();
        assert_eq!(stage.fs.played(rule), 1, "{out}");
        assert!([Some(0), Some(18)].contains(&out.code), "{out}");
        pull().expect_code(0);
        assert_complete(&stage.directory(), &repo());
        assert!(stage.hub.bytes_sent_for(SHARD) > repo().get(SHARD).size(), "what the sync lost came again");
        let left = stage.fs.after_the_cut(faultfs::Kept::Nothing);
        assert!(is_right(&left.join("org/model"), repo().get(SHARD)), "durable under its final name");
    }
}

// class: bounds
#[test]
fn a_reservation_that_is_not_supported_or_only_pretended_changes_nothing() {
    for act in [Act::Fail(Errno::OPNOTSUPP), Act::Fail(Errno::NOSYS), Act::Pretend] {
        let Some(stage) = Stage::empty() else { return };
        let rule = stage.fs.when(At::op(Op::Fallocate), act);
        let out = stage.run("pull").expect_code(0);
        assert!(!out.stderr.contains("reserve"), "{out}");
        assert!(stage.fs.played(rule) > 0);
        assert_complete(&stage.directory(), &repo());
    }
    // Pretended, and then there is no room after all.
    let Some(stage) = Stage::empty() else { return };
    stage.fs.when(At::op(Op::Fallocate), Act::Pretend);
    stage.fs.when(At::op(Op::Write).path(".incomplete").starting(8), Act::Fail(Errno::NOSPC));
    stage.run("pull").expect_code(16);
    assert_nothing_is_lost(&stage, "a pretended reservation");
}

// class: wrong-bytes
#[test]
fn a_write_that_is_cut_short_is_continued() {
    let Some(stage) = Stage::empty() else { return };
    let rule = stage.fs.when(At::op(Op::Write).path(".incomplete"), Act::Short(4097));
    stage.run("pull").expect_code(0);
    assert!(stage.fs.played(rule) > 100);
    assert_complete(&stage.directory(), &repo());
}

// class: gate, permissions
#[test]
fn a_file_that_cannot_be_read_is_never_called_corrupt_and_a_stale_handle_is_opened_again() {
    let cases = [
        ("stale once", At::op(Op::Read).path(SHARD).nth(1), Errno::STALE, 0),
        ("stale again and again", At::op(Op::Read).path(SHARD), Errno::STALE, 18),
        ("stale when opened", At::op(Op::Open).path(SHARD).nth(1), Errno::STALE, 0),
        ("a bad block", At::op(Op::Read).path(SHARD), Errno::IO, 18),
        ("not to be opened", At::op(Op::Open).path(SHARD), Errno::ACCESS, 18),
        ("a folder that cannot be looked into", At::op(Op::Lookup).path("org/model/sub"), Errno::IO, 18),
    ];
    for verb in ["gate", "verify", "pull"] {
        for (case, at, errno, code) in cases.clone() {
            let Some(stage) = Stage::complete() else { return };
            // Other times: whoever trusts the record has to read the bytes.
            File::options()
                .write(true)
                .open(stage.fs.backing().join("org/model").join(SHARD))
                .unwrap()
                .set_modified(std::time::UNIX_EPOCH)
                .unwrap();
            let rule = stage.fs.when(at, Act::Fail(errno));
            let out = stage.run(verb);
            assert!(stage.fs.played(rule) > 0, "{verb}, {case}: {out}");
            assert_eq!(out.code, Some(code), "{verb}, {case}: {out}");
            stage.fs.lift_all();
            assert!(listing(&stage.world.volume().join(".muster/quarantine")).is_empty(), "{verb}, {case}: {out}");
            assert!(is_right(&stage.directory(), repo().get(SHARD)), "{verb}, {case}: nothing was moved away");
            stage.run("pull").expect_code(0);
            assert_eq!(stage.hub.total_body_bytes(), 0, "{verb}, {case}: nothing was fetched for it");
        }
    }
}

// class: stalls
#[test]
fn a_volume_that_hangs_stops_neither_the_api_nor_a_stop() {
    let Some(stage) = Stage::empty() else { return };
    let socket = stage.world.home().join("run/api.sock");
    let mut owner = Owner::start_with(&stage.world, &["--socket", socket.to_str().unwrap()]);
    let written = stage.fs.when(At::op(Op::Write).path(".incomplete").starting(4), Act::Hold);
    owner.api.submit(&stage.hub, "org/model", "org/model", None);
    stage.fs.wait_for(written, SOON);
    // A file whose disk hangs stops nobody who asks.
    assert_eq!(owner.api.state("org/model"), "fetching");
    let status = stage.run("status").expect_code(0);
    assert!(status.stdout.contains("org/model"), "{status}");
    // Then the whole volume hangs: the owner still answers whoever reaches it.
    let all = stage.fs.when(At::any(), Act::Hold);
    stage.fs.wait_for(all, SOON);
    for _ in 0..5 {
        let asked = Instant::now();
        assert_eq!(owner.api.get("/healthz").0, 200);
        assert_eq!(owner.api.get("/v1/models").0, 200);
        assert_eq!(owner.api.state("org/model"), "fetching");
        assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Nor does one who asks for something, or a job whose state changes.
    let (code, answer) = owner.api.submit(&stage.hub, "org/model", "other", None);
    assert!((200..300).contains(&code), "{answer}");
    owner.api.post("/v1/models/org%2Fmodel/pause", "");
    wait_until("the job is paused", SOON, || owner.api.state("org/model") == "paused");
    owner.process.terminate();
    let out = owner.process.wait(SOON);
    assert_eq!(out.code, Some(0), "{out}");
    stage.fs.lift_all();
    stage.hub.cut(Origin::Cdn);
    stage.run("pull").expect_code(0);
    assert_complete(&stage.directory(), &repo());
}

// class: bounds
#[test]
fn a_daemon_on_a_full_disk_waits_for_room_and_goes_on_by_itself() {
    let Some(stage) = Stage::empty() else { return };
    let owner = Owner::start(&stage.world);
    let full = stage.fs.when(At::op(Op::Write).path(".incomplete").starting(4), Act::Fail(Errno::NOSPC));
    owner.api.submit(&stage.hub, "org/model", "org/model", None);
    wait_until("the job waits", SOON, || owner.api.state("org/model") == "paused");
    assert_eq!(owner.api.model("org/model")["error"]["code"], "no_space");
    stage.fs.lift(full);
    wait_until("the job goes on", SOON, || owner.api.state("org/model") == "ready");
    drop(owner);
    assert_complete(&stage.directory(), &repo());
}

/// Writes other bytes over some of a file and gives it back its times.
fn overwrite(path: &Path, restore: bool) {
    let before = path.metadata().unwrap();
    flip_byte(path, 1000);
    if restore {
        let times = FileTimes::new().set_modified(before.modified().unwrap()).set_accessed(before.accessed().unwrap());
        File::options().write(true).open(path).unwrap().set_times(times).unwrap();
    }
}

// class: gate, wrong-bytes, looks-complete
#[test]
fn each_damage_to_a_file_closes_the_gate_and_is_mended_by_the_next_pull() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("truncated", |path| OpenOptions::new().write(true).open(path).unwrap().set_len(1000).unwrap()),
        ("extended", |path| {
            OpenOptions::new().write(true).open(path).unwrap().write_all_at(b"x", 3 * MIB + 5).unwrap();
        }),
        ("overwritten", |path| overwrite(path, false)),
        ("overwritten, its times restored", |path| overwrite(path, true)),
        ("written to under another name", |path| {
            let other = path.with_file_name("other");
            fs::hard_link(path, &other).unwrap();
            overwrite(&other, true);
            fs::remove_file(other).unwrap();
        }),
        ("replaced by another of its size and times", |path| {
            let times = path.metadata().unwrap().modified().unwrap();
            let bytes = vec![7; usize::try_from(path.metadata().unwrap().len()).unwrap()];
            fs::remove_file(path).unwrap();
            fs::write(path, bytes).unwrap();
            File::options().write(true).open(path).unwrap().set_modified(times).unwrap();
        }),
        ("full of zeros, as after a power cut", |path| {
            let size = path.metadata().unwrap().len();
            let file = File::create(path).unwrap();
            file.set_len(size).unwrap();
        }),
    ];
    for (case, damage) in damages {
        let hub = Hub::start(repo());
        let world = Muster::on(&hub);
        world.args(["pull", "org/model"]).run().expect_code(0);
        let directory = world.model("org/model");
        damage(&directory.join(SHARD));
        hub.forget();
        for verb in ["gate", "verify"] {
            let out = world.args([verb, "org/model"]).run();
            assert_eq!(out.code, Some(11), "{verb} of a file {case}: {out}");
            assert!(out.all().contains(SHARD), "{verb} of a file {case}: {out}");
        }
        world.args(["pull", "org/model"]).run().expect_code(0);
        assert_complete(&directory, &repo());
        // What was only added goes again with the file; the rest of it was right.
        let again = if case == "extended" { 0 } else { repo().get(SHARD).size() };
        assert_eq!(hub.total_body_bytes(), again, "{case}: one file came again");
        world.args(["gate", "org/model"]).run().expect_code(0);
    }
}

// class: gate
#[test]
fn a_file_with_a_second_name_is_hashed_again_and_its_gate_stays_open() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    fs::hard_link(world.model("org/model").join(SHARD), world.home().join("elsewhere")).unwrap();
    hub.forget();
    let out = world.args(["gate", "org/model", "--no-remember"]).run().expect_code(0);
    assert!(out.all().contains("hash"), "{out}");
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_eq!(hub.total_body_bytes(), 0);
    assert_eq!(world.model("org/model").join(SHARD).metadata().unwrap().nlink(), 2);
}

/// Overwrites a shard while the pull is held at a step of it; whether the times were put back.
fn overwritten_meanwhile(at: At, act: Act, restore: bool) -> Option<(Stage, Output)> {
    let stage = Stage::empty()?;
    let held = stage.fs.when(at, act);
    let child = stage.world.args(["pull", "org/model", "--connections", "1"]).spawn();
    stage.fs.wait_for(held, SOON);
    let directory = stage.fs.backing().join("org/model");
    let path = || Some(directory.join(SHARD)).filter(|path| path.exists()).or_else(|| partial_of(&directory, SHARD));
    overwrite(&path().expect("a partial or a file"), restore);
    stage.fs.release(held);
    let out = child.wait(SOON);
    Some((stage, out))
}

// class: gate, wrong-bytes, looks-complete
#[test]
fn a_file_overwritten_after_it_was_proved_and_before_it_has_its_name_opens_no_gate() {
    let hash = &sha256_hex(SHARD)[..32];
    let last_read = At::op(Op::Read).path(hash).nth(4);
    let renamed = At::op(Op::Rename).path(SHARD);
    for (at, act, restore) in
        [(last_read.clone(), Act::Hold, false), (last_read, Act::Hold, true), (renamed, Act::HoldAfter, false)]
    {
        let Some((stage, out)) = overwritten_meanwhile(at, act, restore) else { return };
        let gate = stage.run("gate");
        assert_eq!(gate.code, Some(11), "{act:?}, restored {restore}: {gate}\n{out}");
        stage.run("pull").expect_code(0);
        assert_complete(&stage.directory(), &repo());
        stage.run("gate").expect_code(0);
    }
}

// class: verify-cost
#[test]
fn what_is_overwritten_with_its_times_put_back_in_the_moment_of_the_rename_is_found_by_a_full_check() {
    let renamed = At::op(Op::Rename).path(SHARD);
    let Some((stage, out)) = overwritten_meanwhile(renamed, Act::HoldAfter, true) else { return };
    let gate = stage.world.args(["gate", "org/model", "--full"]).time_limit(SOON).run();
    assert_eq!(gate.code, Some(11), "{gate}\n{out}");
    stage.run("verify").expect_code(11);
}

// class: gate
#[test]
fn a_clock_that_jumps_on_the_file_server_opens_no_gate_too_early_and_closes_none() {
    for seconds in [-7200, 7200] {
        let Some(stage) = Stage::empty() else { return };
        let jumped = stage.fs.when(At::op(Op::Rename).path(SHARD), Act::Hold);
        let child = stage.world.args(["pull", "org/model"]).spawn();
        stage.fs.wait_for(jumped, SOON);
        stage.fs.jump(seconds);
        stage.fs.release(jumped);
        child.wait(SOON).expect_code(0);
        assert_complete(&stage.directory(), &repo());
        stage.run("gate").expect_code(0);
        flip_byte(&stage.fs.backing().join("org/model").join(SHARD), 5);
        assert_eq!(stage.run("gate").code, Some(11));
    }
}
