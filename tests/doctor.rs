//! `muster doctor`: each finding provoked for real, the volume left as it was, and one rule for the
//! exit code: that of the first problem, which is what a pull would end with.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod faultfs;
mod support;

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use faultfs::{Act, At, FaultFs, Op};
use rustix::process::Signal;
use serde_json::Value;
use support::*;

const SCHEMA: &str = include_str!("../src/api/schema/doctor.v1.json");
const BINARY: &str = env!("CARGO_BIN_EXE_muster");
const SOON: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;
const TOKEN: &str = "hf_neverToBeSeenAnywhere";

/// A report that is what the schema says, and consistent in itself.
#[derive(Debug)]
struct Seen {
    report: Value,
    out: Output,
}

impl Seen {
    #[track_caller]
    fn of(out: Output) -> Self {
        let report = out.json();
        assert_valid(SCHEMA, &report);
        assert_eq!(report["exit_code"].as_i64(), out.code.map(i64::from), "{out}");
        let checks = report["checks"].as_array().unwrap();
        let first = checks.iter().find(|check| check["status"] == "problem");
        assert_eq!(first.map_or(&Value::Null, |check| &check["code"]), &report["code"], "the first problem decides");
        let mut names: Vec<_> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
        let all =
            serde_json::from_str::<Value>(SCHEMA).unwrap()["$defs"]["check"]["properties"]["check"]["enum"].clone();
        assert_eq!(names, all.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect::<Vec<_>>());
        names.dedup();
        let summary: u64 = report["summary"].as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
        assert_eq!(summary, names.len() as u64);
        Self { report, out }
    }

    #[track_caller]
    fn check(&self, name: &str) -> &Value {
        let checks = self.report["checks"].as_array().unwrap();
        checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("no {name}"))
    }

    /// The check has this status, and its words have these in them.
    #[track_caller]
    fn says(&self, name: &str, status: &str, words: &[&str]) -> &Self {
        let check = self.check(name);
        assert_eq!(check["status"], status, "{check:#}");
        let text = check.to_string();
        for word in words {
            assert!(text.contains(word), "no {word:?} in {check:#}");
        }
        self
    }

    #[track_caller]
    fn ends(&self, code: i32) -> &Self {
        assert_eq!(self.out.code, Some(code), "{:#}", self.report);
        self
    }
}

/// Looks with these flags beside `--json`; the names on the volume stay what they were.
#[track_caller]
fn look_with(world: &Muster, flags: &[&str]) -> Seen {
    let before = listing(world.volume());
    let out = world.args(["doctor", "--json"].iter().chain(flags)).run();
    assert_eq!(listing(world.volume()), before, "{out}");
    let left = std::fs::read_dir(world.home().join("tmp")).unwrap().count();
    assert_eq!(left, 0, "nothing of a look stays among the temporary files");
    Seen::of(out)
}

#[track_caller]
fn look(world: &Muster) -> Seen {
    look_with(world, &[])
}

fn repo() -> RepoSpec {
    RepoSpec::kimi(6, 4 * MIB, 4).named("org/model")
}

/// A hub and a volume with the whole model on it.
fn pulled() -> (Hub, Muster) {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    world.args(["pull", "org/model"]).run().expect_code(0);
    (hub, world)
}

/// A pull that was killed with half of the bytes.
fn killed_at_half() -> (Hub, Muster) {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    hub.hold_after(repo().total_bytes() / 2);
    // With more of them every file has its blocks reserved.
    let mut child = world.args(["pull", "org/model", "--connections", "2"]).spawn();
    hub.wait_for_bytes(repo().total_bytes() / 2 - (128 << 10), SOON);
    wait_until("partials", SOON, || !partials(&world.model("org/model")).is_empty());
    child.kill();
    child.wait(SOON);
    (hub, world)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The binary at the end of a shell's line, as `"$@"`.
fn in_shell(world: &Muster, line: &str, args: &[&str]) -> Invocation {
    let all = ["-c", line, "sh", BINARY].into_iter().chain(args.iter().copied());
    world.program("sh", all.map(str::to_owned).collect::<Vec<_>>())
}

/// The same in a mount namespace of its own; nothing when that is not allowed here.
fn among_mounts(world: &Muster, line: &str, args: &[&str]) -> Option<Output> {
    let run = |line: &str, args: &[&str]| {
        let all = ["-m", "sh", "-c", line, "sh", BINARY].into_iter().chain(args.iter().copied());
        world.program("unshare", all.map(str::to_owned).collect::<Vec<_>>()).run()
    };
    if !is_root() || run("mount -t tmpfs none \"$MUSTER_VOLUME\"", &[]).code != Some(0) {
        skip("no mount without the right to mount");
        return None;
    }
    Some(run(line, args))
}

/// The owner record of the last owner, changed.
fn change_record(volume: &Path, change: impl FnOnce(&mut Value)) {
    let owners = volume.join(".muster/owners");
    let names = listing(&owners);
    let last = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse::<u64>().ok()).max().unwrap();
    let path = owners.join(format!("{last}.json"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut record);
    std::fs::write(path, record.to_string()).unwrap();
}

fn long_ago() -> &'static str {
    "2026-01-02T03:04:05Z"
}

// ---- the volume --------------------------------------------------------------------------------

#[test]
fn a_volume_in_order_has_nothing_that_asks_for_anything() {
    let (_hub, world) = pulled();
    let seen = look(&world);
    seen.ends(0);
    assert_eq!(seen.report["summary"]["problem"], 0);
    seen.says("writable", "ok", &["4 KiB"]).says("names", "ok", &[]).says("sync", "ok", &["file_ms"]);
    seen.says("positioned_writes", "ok", &[]).says("times", "ok", &["ahead_ms"]).says("locks", "ok", &["real"]);
    seen.says("space", "ok", &["free_bytes"]).says("owner", "ok", &["ended in order"]);
    seen.says("models", "ok", &["1 complete"]).says("partials", "ok", &[]).says("store", "ok", &["every record"]);
    seen.says("endpoint", "ok", &["answer_ms"]).says("token", "ok", &["none"]).says("clock", "not_checked", &[]);
    seen.says("earlier_owners", "ok", &[]).says("foreign_files", "ok", &[]).says("quarantine", "ok", &[]);
}

#[test]
fn a_volume_that_is_not_there_is_a_note_and_is_not_made() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let missing = world.volume().join("a/b");
    let seen = look_with(&world, &["--volume", missing.to_str().unwrap()]);
    seen.ends(0).says("place", "note", &["does not exist", world.volume().to_str().unwrap()]);
    // What can be tried above it is tried there.
    seen.says("writable", "ok", &[]).says("locks", "ok", &[]).says("space", "ok", &[]);
    seen.says("models", "not_checked", &["does not exist"]).says("store", "not_checked", &[]);

    let file = world.home().join("file");
    std::fs::write(&file, "").unwrap();
    let seen = look_with(&world, &["--volume", file.to_str().unwrap()]);
    seen.ends(18).says("place", "problem", &["no directory", "--volume"]).says("writable", "not_checked", &[]);
    let seen = look_with(&world, &["--volume", file.join("below").to_str().unwrap()]);
    seen.ends(18).says("place", "problem", &["a file stands on the way to it"]);
}

#[test]
fn a_read_only_volume_is_named_and_nothing_is_tried_on_it() {
    let (_hub, world) = pulled();
    let line = "mount --bind \"$MUSTER_VOLUME\" \"$MUSTER_VOLUME\" && \
                mount -o remount,bind,ro \"$MUSTER_VOLUME\" && exec \"$@\"";
    let Some(out) = among_mounts(&world, line, &["doctor", "--json"]) else { return };
    let seen = Seen::of(out);
    seen.ends(18).says("writable", "problem", &["mounted read-only", "gate, verify and status work"]);
    for name in ["names", "sync", "positioned_writes", "times", "locks", "sockets", "similar_names", "copies"] {
        seen.says(name, "not_checked", &["mounted read-only"]);
    }
    seen.says("models", "ok", &["1 complete"]).says("store", "ok", &["every record"]);
    world.args(["pull", "org/model"]).run().expect_code(0);
}

// class: bounds
#[test]
fn a_full_volume_and_one_without_names_are_no_space() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let full = "mount -t tmpfs -o size=512k none \"$MUSTER_VOLUME\" && \
                head -c 1000000 /dev/zero >\"$MUSTER_VOLUME\"/big 2>/dev/null; exec \"$@\"";
    let Some(out) = among_mounts(&world, full, &["doctor", "--json"]) else { return };
    let seen = Seen::of(out);
    seen.ends(16).says("writable", "problem", &["no space"]).says("space", "problem", &["no room", "muster remove"]);
    seen.says("locks", "not_checked", &["nothing can be written"]);

    let nameless =
        "mount -t tmpfs -o nr_inodes=2 none \"$MUSTER_VOLUME\" && touch \"$MUSTER_VOLUME\"/last; exec \"$@\"";
    let seen = Seen::of(among_mounts(&world, nameless, &["doctor", "--json"]).unwrap());
    seen.ends(16).says("inodes", "problem", &["0 of 2"]).says("space", "ok", &[]);
}

// class: bounds
#[test]
fn unfinished_models_count_against_the_room_that_is_left() {
    let (_hub, world) = killed_at_half();
    let needed = look(&world).check("space")["values"]["needed_bytes"].as_u64().unwrap();
    assert!(needed > 4 * MIB && needed < repo().total_bytes(), "what partials have is not needed again: {needed}");
    look(&world).ends(0).says("space", "ok", &["org/model still needs"]);
    let held = Muster::clone(&world).env("MUSTER_RESERVE", "900TB");
    look(&held).ends(16).says("space", "problem", &["no room for a file"]);

    // The same model where half of its rest fits.
    let line = "cp -a \"$MUSTER_VOLUME\" \"$HOME/copy\" && mount -t tmpfs -o size=18m none \"$MUSTER_VOLUME\" && \
                cp -a \"$HOME/copy/.\" \"$MUSTER_VOLUME\" && exec \"$@\"";
    let small = world.clone().env("MUSTER_RESERVE", "1B");
    let Some(out) = among_mounts(&small, line, &["doctor", "--json"]) else { return };
    let seen = Seen::of(out);
    seen.ends(16).says("space", "problem", &["unfinished models still need", "more are needed"]);
    seen.says("writable", "ok", &[]);
}

#[test]
fn a_volume_that_hangs_is_given_up_and_the_rest_is_still_told() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let Some(mut disk) = Frozen::make(&world) else {
        return skip("no file system of our own to freeze");
    };
    world.args(["pull", "org/model"]).run().expect_code(0);
    disk.freeze();
    let mut child = world.args(["doctor"]).time_limit(SOON).spawn();
    child.wait_for_text("a pull from its work", SOON);
    let said = child.stdout_so_far();
    disk.thaw();
    let out = child.wait(SOON).expect_code(18);
    assert!(said.contains("no answer within 10 s") && said.contains("the file system hangs"), "{out}");
    assert!(said.contains("the volume does not answer"), "{out}");
    assert!(said.contains("answers after") && said.contains("files may be open"), "the rest is told: {out}");
    // The thread that hung may have made its folder after all, with nobody left to remove it.
    let left = || {
        std::fs::read_dir(world.volume())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with(".muster-doctor-"))
    };
    if let Some(folder) = left() {
        let out = world.args(["doctor", "--json"]).run();
        Seen::of(out).ends(0).says("foreign_files", "note", &[folder.file_name().unwrap().to_str().unwrap()]);
        std::fs::File::open(&folder).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        world.args(["doctor"]).run().expect_code(0);
    }
    assert_eq!(left(), None, "an hour later it goes");
}

/// A small file system of our own on the world's volume, that can be frozen.
struct Frozen {
    at: PathBuf,
    frozen: bool,
}

impl Frozen {
    fn make(world: &Muster) -> Option<Self> {
        let image = world.home().join("image");
        std::fs::File::create(&image).unwrap().set_len(96 * MIB).unwrap();
        let run = |program: &str, args: &[&str]| {
            let done = Command::new(program).args(args).output();
            done.is_ok_and(|done| done.status.success())
        };
        let (image, at) = (image.to_str().unwrap(), world.volume());
        let made = is_root()
            && run("mkfs.ext4", &["-q", "-F", image])
            && run("mount", &["-o", "loop", image, at.to_str().unwrap()]);
        made.then(|| Self { at: at.to_owned(), frozen: false })
    }

    fn freeze(&mut self) {
        self.frozen = Command::new("fsfreeze").arg("-f").arg(&self.at).status().unwrap().success();
        assert!(self.frozen);
    }

    fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            let _ = Command::new("fsfreeze").arg("-u").arg(&self.at).status();
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        let _ = Command::new("umount").arg("-l").arg(&self.at).status();
    }
}

// class: writers
#[test]
fn locks_that_lie_are_a_warning_and_nothing_that_is_right_depends_on_them() {
    let (_hub, world) = pulled();
    let disk = match FaultFs::over(world.volume()) {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    look(&world).ends(0).says("locks", "ok", &["other hosts cannot be tried"]);
    disk.lie_about_locks(true);
    let seen = look(&world);
    seen.ends(0).says("locks", "warning", &["two holders at once", "nothing that is right depends on locks", "lies"]);
    seen.says("file_system", "ok", &["FUSE", "read back"]).says("writable", "ok", &[]);
}

// class: wrong-bytes
#[test]
fn a_disk_that_loses_or_refuses_what_it_is_asked_is_a_problem() {
    let (_hub, world) = pulled();
    let disk = match FaultFs::over(world.volume()) {
        Ok(disk) => disk,
        Err(why) => return skip(&why),
    };
    let lost = disk.when(At::op(Op::Write).path("/blocks").nth(3), Act::Pretend);
    look(&world).ends(11).says("positioned_writes", "problem", &["read back wrong", "do not use this volume"]);
    disk.lift(lost);
    let refused = disk.when(At::op(Op::Fsync), Act::Fail(rustix::io::Errno::IO));
    look(&world).ends(18).says("writable", "problem", &["could not sync"]);
    disk.lift(refused);
    let refused = disk.when(At::op(Op::Mkdir), Act::Fail(rustix::io::Errno::DQUOT));
    look(&world).ends(16).says("writable", "problem", &["quota"]);
    disk.lift(refused);
    look(&world).ends(0);
}

// class: permissions
#[test]
fn a_user_who_may_not_write_is_told_unless_the_owner_answers_it() {
    if !is_root() {
        return skip("only root may become another user");
    }
    let (hub, world) = pulled();
    // `target` may be closed to others.
    let binary = world.home().join("muster");
    std::fs::copy(BINARY, &binary).unwrap();
    for path in [world.home(), &binary] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    chown(world.home().join("tmp"), Some(54_321), None).unwrap();
    std::fs::set_permissions(world.volume(), PermissionsExt::from_mode(0o755)).unwrap();
    let as_user = |group: &str| {
        let args = ["--reuid", "54321", "--regid", group, "--clear-groups", binary.to_str().unwrap()];
        let out = world.program("setpriv", args.iter().chain(&["doctor", "--json"])).current_dir("/").run();
        Seen::of(out)
    };
    let seen = as_user("54321");
    seen.ends(18).says("writable", "problem", &["not allowed to create", "run as a user"]);
    seen.says("store", "not_checked", &[]).says("models", "ok", &["1 complete"]);

    let owner = Owner::start_with(&world, &["--api-group", "54322"]);
    let seen = as_user("54321");
    seen.ends(18).says("owner_socket", "note", &["may not use", "api_group"]).says("writable", "problem", &[]);
    let seen = as_user("54322");
    seen.ends(0).says("owner_socket", "ok", &[]).says("writable", "note", &["need not: the owner answers"]);
    drop(owner);
    drop(hub);
}

// class: permissions
#[test]
fn modes_that_hide_files_from_others_are_named() {
    let (_hub, world) = pulled();
    std::fs::set_permissions(world.volume(), PermissionsExt::from_mode(0o2775)).unwrap();
    let with_umask =
        |umask: &str| Seen::of(in_shell(&world, &format!("umask {umask}; \"$@\""), &["doctor", "--json"]).run());
    with_umask("0002").ends(0).says("permissions", "ok", &["0002"]);
    with_umask("0077").ends(0).says("permissions", "warning", &["0077", "hides new files from the group"]);
    with_umask("0022").ends(0).says("permissions", "warning", &["may not in new folders", "umask 0002"]);
    std::fs::set_permissions(world.volume().join(".muster"), PermissionsExt::from_mode(0o700)).unwrap();
    with_umask("0002").says("permissions", "warning", &["not .muster", "chmod 0755"]);
}

// ---- the owner ---------------------------------------------------------------------------------

// class: writers
#[test]
fn beside_a_living_daemon_nothing_is_disturbed() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let mut owner = Owner::start(&world);
    hub.hold_after(repo().total_bytes() / 2);
    owner.api.submit(&hub, "org/model", "org/model", None);
    hub.wait_for_bytes(repo().total_bytes() / 2 - (128 << 10), SOON);
    wait_until("partials", SOON, || !partials(&world.model("org/model")).is_empty());
    let out = world.args(["doctor", "--json"]).run();
    let seen = Seen::of(out);
    let pid = owner.process.id().to_string();
    seen.ends(0).says("owner", "ok", &["owns it", &pid, "\"state\":\"alive\""]).says("owner_socket", "ok", &[]);
    seen.says("store", "not_checked", &["in use by", &pid]).says("partials", "ok", &["being written by", &pid]);
    assert!(owner.process.is_running());
    hub.release();
    wait_until("the end of the job", SOON, || owner.api.state("org/model") == "ready");
    assert_complete(&world.model("org/model"), &repo());
    let records = listing(&world.volume().join(".muster/owners"));
    assert_eq!(records, ["1.json"], "nobody took the volume");
}

// class: writers
#[test]
fn a_dead_owner_and_what_it_left_are_named_with_what_becomes_of_it() {
    let (hub, world) = killed_at_half();
    let seen = look(&world);
    seen.ends(0).says("owner", "note", &["died without a word", "\"state\":\"dead\""]);
    seen.says("partials", "note", &["org/model", "gone on with in place, from their length"]);
    seen.says("models", "ok", &["1 unfinished"]).says("store", "ok", &[]);

    // The same writer in another container, and an owner after it that ended: nobody can tell.
    change_record(world.volume(), |record| record["pid_namespace"] = 1.into());
    own_elsewhere(world.volume(), 77, "host-b");
    change_record(world.volume(), |record| record["ended"] = true.into());
    look(&world).says("partials", "note", &["may live", "copied"]).says("owner", "ok", &["host-b", "ended in order"]);
    std::fs::remove_file(world.volume().join(".muster/owners/1.json")).unwrap();
    look(&world).ends(0).says("partials", "note", &["left no record", "copied"]);
    hub.cut(Origin::Cdn);
    hub.release();
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo());
}

// class: writers
#[test]
fn an_owner_that_is_silent_is_no_living_one() {
    let (_hub, world) = pulled();
    own_elsewhere(world.volume(), 77, "host-b");
    change_record(world.volume(), |record| record["beat_at"] = long_ago().into());
    let seen = look(&world);
    seen.ends(0).says("owner", "warning", &["host-b", "may be dead", "waits 30 s", "\"state\":\"suspect\""]);
    seen.says("store", "not_checked", &["in use by"]);

    // One of this host, stopped in its tracks.
    std::fs::remove_dir_all(world.volume().join(".muster/owners")).unwrap();
    let mut owner = Owner::start(&world);
    let status = world.volume().join(".muster/status.json");
    owner.process.signal(Signal::STOP);
    let mut report: Value = serde_json::from_slice(&std::fs::read(&status).unwrap()).unwrap();
    report["written_at"] = long_ago().into();
    std::fs::write(&status, report.to_string()).unwrap();
    change_record(world.volume(), |record| record["beat_at"] = long_ago().into());
    look(&world).ends(0).says("owner", "warning", &["runs and does nothing", "SIGSTOP", "\"state\":\"silent\""]);
    std::fs::write(world.volume().join(".muster/owners/9.json"), "{").unwrap();
    look(&world).says("owner", "warning", &["owner 9 cannot be read"]);
}

#[test]
fn an_owner_record_with_the_last_number_there_is_keeps_everybody_out() {
    let (_hub, world) = pulled();
    std::fs::write(world.volume().join(format!(".muster/owners/{}.json", u64::MAX)), "{}").unwrap();
    look(&world).ends(15).says("earlier_owners", "problem", &["remove that file"]);
}

// ---- what lies about ---------------------------------------------------------------------------

// class: looks-complete
#[test]
fn what_is_wrong_or_left_in_the_directories_is_named() {
    let (_hub, world) = pulled();
    let model = world.model("org/model");
    let at = |path: &str| world.volume().join(path);
    std::fs::rename(model.join(".muster/receipt.json"), at("receipt")).unwrap();
    look(&world).ends(0).says("models", "note", &["org/model", "no receipt", "muster verify"]);
    std::fs::write(model.join(".muster/receipt.json"), "{").unwrap();
    look(&world).ends(0).says("models", "warning", &["org/model", "receipt.json is not usable"]);
    std::fs::rename(at("receipt"), model.join(".muster/receipt.json")).unwrap();
    std::fs::remove_file(model.join("config.json")).unwrap();
    look(&world).says("models", "warning", &["1 file is missing or of another size"]);
    std::fs::write(model.join(".muster/manifest.json"), "{").unwrap();
    look(&world).says("models", "warning", &["org/model", "manifest.json is not usable"]);

    std::fs::create_dir_all(at(".muster/quarantine")).unwrap();
    std::fs::write(at(".muster/quarantine/0000000001-x"), [0; 5000]).unwrap();
    std::fs::create_dir_all(model.join(".muster/retired/aaaa")).unwrap();
    std::fs::write(model.join(".muster/retired/aaaa/old"), [0; 700]).unwrap();
    std::fs::write(at(".muster/notes.txt"), "").unwrap();
    std::fs::write(model.join(".muster/partial/x.bin"), "").unwrap();
    let seen = look(&world);
    seen.says("quarantine", "note", &["1 file, 5.0 kB"]).says("retired", "ok", &["1 file, 700 B", "24 h 0 min"]);
    seen.says("foreign_files", "note", &[".muster/notes.txt", "org/model/.muster/partial/x.bin"]);
    assert_eq!(seen.check("quarantine")["values"]["bytes"], 5000);
    let hasty = world.clone().env("MUSTER_RETIRE_AFTER", "1ms");
    look(&hasty).says("retired", "note", &["nobody owns the volume"]);
}

// class: store
#[test]
fn a_damaged_store_is_named_and_left_as_it_is() {
    let (_hub, world) = pulled();
    let state = world.volume().join(".muster/state");
    let files = || {
        let names = listing(&state).into_iter().filter(|name| !name.ends_with('/'));
        names.map(|name| (name.clone(), std::fs::read(state.join(&name)).unwrap())).collect::<Vec<_>>()
    };
    for (name, bytes) in files().iter().filter(|(name, bytes)| name != "lock" && !bytes.is_empty()) {
        std::fs::write(state.join(name), vec![0xa5; bytes.len()]).unwrap();
    }
    let before = files();
    let seen = look(&world);
    seen.ends(0).says("store", "warning", &["unusable", "sets it aside", "no byte is fetched again"]);
    assert!(files() == before, "it is left as it is");
    assert!(!seen.out.stderr.contains("internal error"), "{}", seen.out);
    std::fs::create_dir(world.volume().join(".muster/state.set-aside-1")).unwrap();
    std::fs::write(world.volume().join(".muster/state.set-aside-1/db"), [0; 1234]).unwrap();
    look(&world).ends(0).says("set_aside", "note", &["1 unusable database", "state.set-aside-1", "1.2 kB"]);
    for number in 2..=16 {
        std::fs::create_dir(world.volume().join(format!(".muster/state.set-aside-{number}"))).unwrap();
    }
    look(&world).says("set_aside", "warning", &["16 unusable databases", "no further one"]);
}

// class: store
#[test]
fn a_store_that_somebody_has_open_is_left_alone() {
    let (_hub, world) = pulled();
    let lock = std::fs::File::open(world.volume().join(".muster/state/lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    look(&world).ends(0).says("store", "not_checked", &["in use"]);
}

// ---- this machine and what was set -------------------------------------------------------------

// class: bounds
#[test]
fn limits_of_the_process_are_told() {
    let (_hub, world) = pulled();
    let shell = |line: &str| Seen::of(in_shell(&world, &format!("{line}; \"$@\""), &["doctor", "--json"]).run());
    let seen = shell("ulimit -n 64");
    seen.ends(0).says("descriptors", "warning", &["64 files", "1 of 32 connections of each of 2 jobs", "ulimit -n"]);
    shell("ulimit -f 100000").ends(0).says("file_size_limit", "warning", &["ulimit -f unlimited"]);
    look(&world).says("file_size_limit", "ok", &[]).says("memory", "ok", &["available_bytes"]);
}

// class: network
#[test]
fn settings_are_told_with_their_origin_and_unknown_variables_with_the_nearest() {
    let (_hub, world) = pulled();
    let file = world.home().join("muster.toml");
    std::fs::write(&file, "retire_after = \"2h\"\n").unwrap();
    let world = world
        .env("MUSTER_CONFIG", &file)
        .env("MUSTER_CONECTIONS", "8")
        .env("MUSTER_SERVICE_HOST", "10.0.0.1")
        .env("HF_HUB_ENABLE_HF_TRANSFER", "1")
        .env("https_proxy", "http://me:p4ssw0rd@proxy.example:3128")
        .env("NO_PROXY", "127.0.0.1")
        .env("SSL_CERT_FILE", "/nowhere/ca.pem");
    let seen = look(&world);
    seen.ends(0).says("configuration", "ok", &["muster.toml is used", "retire_after = 7200s", "line 1"]);
    seen.says("variables", "warning", &["MUSTER_CONECTIONS: did you mean MUSTER_CONNECTIONS?"]);
    assert!(!seen.check("variables")["items"].to_string().contains("SERVICE"), "Kubernetes sets those");
    seen.says("hub_variables", "note", &["HF_ENDPOINT", "does not read HF_HUB_ENABLE_HF_TRANSFER"]);
    seen.says("proxy", "note", &["http://proxy.example:3128 (with credentials, not shown)", "NO_PROXY"]);
    seen.says("certificates", "warning", &["/nowhere/ca.pem", "cannot be read"]);
    assert!(!seen.out.all().contains("p4ssw0rd"), "{}", seen.out);
    look(&world.env("https_proxy", "http://")).says("proxy", "warning", &["no address"]);
}

#[test]
fn a_configuration_that_no_verb_takes_is_not_taken_here_either() {
    let (_hub, world) = pulled();
    let out = world.clone().env("MUSTER_RETRY_FOR", "soon").args(["doctor", "--json"]).run().expect_code(2);
    assert!(out.stderr.contains("MUSTER_RETRY_FOR"), "{out}");
    look(&world.clone().env("MUSTER_TOKEN_FILE", "/nowhere/token")).ends(2).says(
        "token",
        "problem",
        &["/nowhere/token"],
    );
}

// ---- the network -------------------------------------------------------------------------------

fn whoami(hub: &Hub, behaviour: Behaviour) {
    hub.behave();
    hub.always(Match::hub("/api/whoami-v2"), behaviour);
}

// class: credentials
#[test]
fn a_token_is_checked_where_it_belongs_and_never_shown() {
    let (hub, world) = pulled();
    let with = world.clone().env("HF_TOKEN", TOKEN);
    let json = |status, body: &str| Behaviour::Answer(Reply::status(status).body("application/json", body));
    whoami(&hub, json(401, &format!("{{\"error\":\"no such token as {TOKEN}\"}}")));
    let refused = look(&with);
    refused.ends(17).says("token", "problem", &["HF_TOKEN", "HTTP 401", "no such token as …"]).says(
        "endpoint",
        "ok",
        &[],
    );
    whoami(&hub, json(200, "{\"type\":\"user\",\"name\":\"somebody\"}"));
    let known = look(&with);
    known.ends(0).says("token", "ok", &["somebody's", "HF_TOKEN", &hub.url()]);
    hub.behave();
    let mirror = look(&with);
    mirror.ends(0).says("token", "not_checked", &["does not tell whose"]).says("endpoint", "ok", &[]);
    let text = with.args(["doctor"]).run().expect_code(0);
    for out in [&refused.out, &known.out, &mirror.out, &text] {
        assert!(!out.all().contains(TOKEN), "{out}");
    }
    let asked = hub.matching(Match::hub("/api/whoami-v2"));
    assert_eq!(asked.len(), 4, "one request a look");
    assert_eq!(asked[0].header("authorization"), Some(&*format!("Bearer {TOKEN}")));
}

// class: credentials, network
#[test]
fn a_token_stays_at_home_where_plain_http_leads_to_another_machine() {
    let (hub, world) = pulled();
    let world = world.env("HF_ENDPOINT", "http://hub.example").env("HTTP_PROXY", hub.url()).env("HF_TOKEN", TOKEN);
    let seen = look(&world);
    seen.says("token", "warning", &["not sent", "use https"]).says(
        "endpoint",
        "ok",
        &["plain http to another machine"],
    );
    assert!(hub.requests().iter().all(|request| request.header("authorization").is_none()));
}

// class: network
#[test]
fn an_endpoint_is_judged_by_what_a_pull_would_make_of_it() {
    let (hub, world) = pulled();
    whoami(&hub, Behaviour::html_page());
    look(&world).ends(17).says("endpoint", "problem", &["a page for people", "login page"]);
    whoami(&hub, Behaviour::status(503));
    look(&world).ends(17).says("endpoint", "problem", &["HTTP 503"]);
    whoami(&hub, Behaviour::status(407));
    look(&world).ends(18).says("endpoint", "problem", &["proxy", "wants credentials"]);
    whoami(&hub, Behaviour::RedirectToOtherPort);
    look(&world).ends(17).says("endpoint", "problem", &["another server", &hub.cdn_url()]);
    whoami(&hub, Behaviour::too_many_requests(30));
    look(&world).ends(0).says("endpoint", "warning", &["too many requests"]);
    whoami(&hub, Behaviour::StallBeforeHeaders);
    let hasty = world.clone().env("MUSTER_HEADER_TIMEOUT", "500ms").env("MUSTER_CONNECT_TIMEOUT", "500ms");
    look(&hasty).ends(18).says("endpoint", "problem", &["no answer from", &hub.url()]);
    hub.unreachable(Origin::Hub);
    let seen = look(&world.clone().env("HF_TOKEN", TOKEN));
    seen.ends(18).says("endpoint", "problem", &["cannot connect to", &hub.url(), "HF_ENDPOINT"]);
    seen.says("clock", "not_checked", &[]).says("token", "not_checked", &["HF_TOKEN"]);
}

// class: network
#[test]
fn a_clock_that_is_wrong_is_seen_by_the_servers() {
    let (hub, world) = pulled();
    whoami(&hub, Behaviour::set_header("Date", "Thu, 01 Jan 2032 00:00:00 GMT"));
    look(&world).ends(0).says("clock", "warning", &["behind the endpoint's", "NTP"]);
    whoami(&hub, Behaviour::set_header("Date", &httpdate::fmt_http_date(std::time::SystemTime::now())));
    look(&world).says("clock", "ok", &["agrees"]);
}

#[test]
fn offline_nobody_is_asked_and_nothing_is_called_ok_for_it() {
    let (hub, world) = pulled();
    hub.forget();
    for (world, flags, origin) in
        [(world.clone(), &["--offline"][..], "--offline"), (world.env("HF_HUB_OFFLINE", "1"), &[], "HF_HUB_OFFLINE")]
    {
        let seen = look_with(&world, flags);
        for name in ["endpoint", "clock", "token"] {
            seen.ends(0).says(name, "not_checked", &[origin]);
        }
    }
    assert_eq!(hub.requests().len(), 0);
}

// ---- as people see it --------------------------------------------------------------------------

#[test]
fn people_get_a_line_a_check_and_the_quiet_only_what_asks_for_something() {
    let (_hub, world) = pulled();
    let out = world.args(["doctor"]).run().expect_code(0);
    assert_eq!(out.stderr, "", "{out}");
    for heading in ["Volume", "Owner", "Models", "State database", "This machine", "Settings", "Network"] {
        assert!(out.stdout.lines().any(|line| line == heading), "{heading}: {out}");
    }
    assert!(out.stdout.contains("  ok           positioned writes  blocks"), "{out}");
    assert!(out.stdout.contains("Nothing found that keeps a pull from its work: "), "{out}");
    assert!(!out.stdout.contains('\u{1b}'));
    let out = world.args(["doctor", "--quiet"]).run().expect_code(0);
    assert!(out.stdout.starts_with("Nothing found") && out.stdout.lines().count() == 1, "{out}");

    let world = world.env("MUSTER_VOLUM", "x").env("HF_ENDPOINT", "http://127.0.0.1:1");
    let out = world.args(["doctor", "--quiet"]).run().expect_code(18);
    let lines: Vec<_> = out.stdout.lines().collect();
    assert!(lines[0].starts_with("  warning      variables"), "{out}");
    assert!(out.stdout.contains("\n  problem      endpoint"), "{out}");
    assert!(
        lines.last().unwrap().starts_with("1 problem keeps a pull from its work (exit 18, from endpoint); "),
        "{out}"
    );
}

#[test]
fn a_signal_ends_it_with_nothing_left_behind() {
    let (hub, world) = pulled();
    whoami(&hub, Behaviour::StallBeforeHeaders);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let before = listing(world.volume());
        let mut child = world.args(["doctor"]).spawn();
        child.wait_for_text("This machine", SOON);
        child.signal(signal);
        let out = child.wait(Duration::from_secs(8)).expect_code(code);
        assert!(!out.stdout.contains("a pull from its work"), "{out}");
        assert_eq!(listing(world.volume()), before);
    }
}
