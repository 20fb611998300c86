//! The database is disposable (P5): whatever becomes of it, verdicts stay, no byte is fetched again, and what could
//! not be used is set aside as it was and named.
//!
//! `MUSTER_STORE_SEED` repeats a run of random damage, `MUSTER_STORE_ROUNDS` lengthens it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
const BINARY: &str = env!("CARGO_BIN_EXE_muster");

/// A volume with a whole model, half of another, and the store of whoever brought them.
struct Place {
    hub: Hub,
    world: Muster,
    whole: RepoSpec,
    half: RepoSpec,
    /// Bytes of files that the hub had sent by then.
    sent: u64,
}

impl Place {
    fn new() -> Self {
        Self::with(|world| world)
    }

    fn with(change: impl FnOnce(Muster) -> Muster) -> Self {
        let whole = RepoSpec::kimi(4, MIB / 2, 4).named("org/whole");
        let half = RepoSpec::kimi(8, MIB, 4).named("org/half");
        let hub = Hub::with([whole.clone(), half.clone()]);
        let world = change(Muster::on(&hub));
        world.args(["pull", "org/whole"]).run().expect_code(0);
        hub.hold_after(half.total_bytes() / 2);
        let mut child = world.args(["pull", "org/half"]).spawn();
        hub.wait_for_bytes(whole.total_bytes() + half.total_bytes() / 2 - (128 << 10), SOON);
        child.kill();
        drop(child);
        // What was held is not to be sent, and counted, after this.
        hub.cut(Origin::Cdn);
        hub.cut(Origin::Hub);
        hub.release();
        let sent = hub.total_body_bytes();
        Self { hub, world, whole, half, sent }
    }

    fn state(&self) -> PathBuf {
        self.world.volume().join(".muster/state")
    }

    /// The verdicts of the gate, as they are without any store.
    #[track_caller]
    fn assert_verdicts(&self, case: &str) {
        for (model, code) in [("org/whole", 0), ("org/half", 10)] {
            let out = self.world.args(["gate", model, "--no-remember"]).run();
            assert_eq!(out.code, Some(code), "{case}: gate {model}: {out}");
        }
    }

    /// An owner opens the store, has the whole model, and asks for no byte of it.
    #[track_caller]
    fn own(&self, case: &str) -> Output {
        self.own_by(self.world.args(["history", "org/whole"]), case)
    }

    #[track_caller]
    fn own_by(&self, pull: Invocation, case: &str) -> Output {
        let out = pull.run();
        assert_eq!(out.code, Some(0), "{case}: {out}");
        assert_eq!(self.hub.total_body_bytes(), self.sent, "{case}: bytes were fetched again");
        assert!(!out.stderr.contains("internal error"), "{case}: {out}");
        out
    }

    /// The other half comes, and nothing of what was there.
    #[track_caller]
    fn finish(&self) {
        self.world.args(["pull", "org/half"]).run().expect_code(0);
        assert_complete(&self.world.model("org/half"), &self.half);
        assert_complete(&self.world.model("org/whole"), &self.whole);
        let sent = self.hub.total_body_bytes();
        assert!(sent <= self.whole.total_bytes() + self.half.total_bytes() + 4 * MIB, "{sent} bytes");
        self.world.args(["gate", "org/half"]).run().expect_code(0);
    }
}

/// Every file below a folder, with its bytes.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = listing(folder).into_iter().filter(|name| !name.ends_with('/'));
    names.map(|name| (name.clone(), fs::read(folder.join(name)).unwrap())).collect()
}

fn put_back(folder: &Path, contents: &BTreeMap<String, Vec<u8>>) {
    let _ = fs::remove_dir_all(folder);
    for (name, bytes) in contents {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// The stores that were set aside beside this one.
fn set_aside(state: &Path) -> Vec<PathBuf> {
    let (parent, name) = (state.parent().unwrap(), state.file_name().unwrap().to_str().unwrap());
    let prefix = format!("{name}.set-aside-");
    let names = fs::read_dir(parent).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut paths: Vec<_> = names.filter(|name| name.starts_with(&prefix)).map(|name| parent.join(name)).collect();
    paths.sort();
    paths
}

/// Damages a file as chance wants it; what was done, in words.
fn damage(path: &Path, chance: &mut fastrand::Rng) -> String {
    let bytes = fs::read(path).unwrap();
    let at = chance.usize(0..=bytes.len());
    let many = chance.usize(1..5000);
    let write = |filler: &mut dyn FnMut() -> u8| {
        let noise: Vec<u8> = std::iter::repeat_with(filler).take(many).collect();
        File::options().write(true).open(path).unwrap().write_all_at(&noise, at as u64).unwrap();
    };
    match chance.u8(0..5) {
        0 => {
            fs::write(path, &bytes[..at]).unwrap();
            format!("cut at {at}")
        }
        1 => {
            write(&mut || 0);
            format!("{many} zeros at {at}")
        }
        2 => {
            write(&mut || chance.u8(..));
            format!("{many} random bytes at {at}")
        }
        3 => {
            fs::write(path, vec![0; bytes.len()]).unwrap();
            "zeroed".to_owned()
        }
        _ => {
            fs::remove_file(path).unwrap();
            "deleted".to_owned()
        }
    }
}

// class: store
#[test]
fn damage_of_any_file_of_the_store_changes_no_verdict_and_costs_no_byte() {
    let (rounds, seed) = (number("MUSTER_STORE_ROUNDS").unwrap_or(40), seed("MUSTER_STORE_SEED"));
    println!("MUSTER_STORE_ROUNDS={rounds} MUSTER_STORE_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let place = Place::new();
    place.own("the store as it was left");
    let (state, good) = (place.state(), contents(&place.state()));
    let names: Vec<_> = good.keys().cloned().collect();
    assert!(["conf", "db", "written-by.json"].iter().all(|name| good.contains_key(*name)), "{names:?}");
    let mut asides = 0;
    for name in names.iter().cycle().take(usize::try_from(rounds).unwrap()) {
        put_back(&state, &good);
        let case = format!("{name} {}", damage(&state.join(name), &mut chance));
        let damaged = contents(&state);
        place.assert_verdicts(&case);
        assert_eq!(contents(&state), damaged, "{case}: a gate leaves the store alone");
        let out = place.own(&case);
        for aside in set_aside(&state) {
            asides += 1;
            assert!(out.stderr.contains(aside.to_str().unwrap()), "{case}: not named: {out}");
            let kept = contents(&aside);
            assert!(kept == damaged, "{case}: what is set aside was touched");
            fs::remove_dir_all(aside).unwrap();
        }
        place.assert_verdicts(&case);
        let out = place.own(&case);
        assert!(set_aside(&state).is_empty(), "{case}: a fresh store is a good one: {out}");
    }
    println!("{asides} of {rounds} set aside");
    assert!(asides > 0);
    place.finish();
}

// class: store
#[test]
fn a_store_that_somebody_holds_is_left_alone_and_nobody_needs_it() {
    let place = Place::new();
    let state = place.state();
    let status = || {
        let mut json = place.world.args(["status", "--json"]).run().expect_code(0).json();
        json["daemon"]["age_s"] = Value::Null;
        json
    };
    let before = status();
    let held = File::options().write(true).open(state.join("lock")).unwrap();
    held.lock().unwrap();
    let good = contents(&state);
    place.assert_verdicts("held");
    assert_eq!(status(), before);
    let out = place.own("held");
    assert!(out.stderr.contains("in use by another process"), "{out}");
    assert_eq!(contents(&state), good, "what is held is not touched");
    drop(held);
    place.finish();
}

// class: store
#[test]
fn a_store_of_a_newer_program_is_set_aside_as_it_was() {
    let place = Place::new();
    let state = place.state();
    let note = state.join("written-by.json");
    let mut text: Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    text["schema"] = 99.into();
    text["program"] = "muster 9.0".into();
    fs::write(&note, text.to_string()).unwrap();
    let newer = contents(&state);
    place.assert_verdicts("newer");
    let out = place.own("newer");
    let asides = set_aside(&state);
    assert_eq!(asides.len(), 1);
    assert_eq!(contents(&asides[0]), newer);
    for told in [asides[0].to_str().unwrap(), "schema 99", "muster 9.0"] {
        assert!(out.stderr.contains(told), "no {told:?}: {out}");
    }
    place.finish();
}

/// A call in a namespace of mounts of its own, after `mounts` were made there; they go with it.
fn with_mounts(world: &Muster, mounts: &str, args: &[&str]) -> Option<Invocation> {
    let call = |args: &[&str]| {
        let line = format!("{mounts} && exec \"$@\"");
        let all = ["-m", "sh", "-c", &line, "sh"].into_iter().chain(args.iter().copied());
        world.program("unshare", all.map(str::to_owned).collect::<Vec<_>>())
    };
    if !rustix::process::geteuid().is_root() || call(&["true"]).run().code != Some(0) {
        skip("no mounts without the right to mount");
        return None;
    }
    Some(call(args))
}

// class: store
#[test]
fn a_store_that_cannot_be_written_is_done_without() {
    let place = Place::new();
    let state = place.state();
    let read_only = |path: &Path| {
        let path = path.display();
        format!("mount --bind '{path}' '{path}' && mount -o remount,bind,ro '{path}'")
    };
    let good = contents(&state);
    let Some(pull) = with_mounts(&place.world, &read_only(&state), &[BINARY, "history", "org/whole"]) else { return };
    let out = place.own_by(pull, "a read-only store");
    assert!(out.stderr.contains("Read-only file system"), "{out}");
    assert_eq!(contents(&state), good);
    place.assert_verdicts("after a read-only store");
    // Where not even a place beside it can be written, nothing is remembered.
    let elsewhere = place.world.home().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let there = place.world.clone().env("MUSTER_STATE_DIR", elsewhere.join("state"));
    let pull = with_mounts(&there, &read_only(&elsewhere), &[BINARY, "history", "org/whole"]).unwrap();
    let out = place.own_by(pull, "no place for a store");
    assert!(out.stderr.contains("Read-only file system") && out.stderr.contains("no state can be kept"), "{out}");
    assert!(listing(&elsewhere).is_empty());
    place.finish();
}

// class: store, bounds
#[test]
fn a_full_disk_under_the_store_stops_no_pull_and_is_told_once() {
    let repo = (0..300).fold(RepoSpec::new("org/model"), |repo, at| {
        repo.lfs(&format!("{at:03}-{}.bin", "x".repeat(150)), Content::generated(at, 1000))
    });
    let hub = Hub::start(repo.clone());
    // No room at all; none for a database; room that is used up in the middle.
    for size in ["4k", "64k", "200k"] {
        let world = Muster::on(&hub);
        let disk = world.home().join("disk");
        fs::create_dir(&disk).unwrap();
        let world = world.env("MUSTER_STATE_DIR", &disk);
        let mounts = format!("mount -t tmpfs -o size={size} none '{}'", disk.display());
        let Some(pull) = with_mounts(&world, &mounts, &[BINARY, "pull", "org/model"]) else { return };
        let out = pull.run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        assert!(out.stderr.contains("No space left on device"), "{size}: {out}");
        assert!(!out.stderr.contains("internal error"), "{size}: {out}");
        let warnings = out.stderr.lines().filter(|line| line.starts_with("warning")).count();
        assert!((1..=6).contains(&warnings), "{size}: {out}");
        world.args(["gate", "org/model"]).run().expect_code(0);
    }
}

// class: store
#[test]
fn enough_stores_set_aside_are_kept_and_work_goes_on_beside_them() {
    const KEPT: usize = 16;
    let place = Place::new();
    let state = place.state();
    for number in 1..=KEPT {
        fs::create_dir(state.with_file_name(format!("state.set-aside-{number}"))).unwrap();
    }
    for round in 0..6 {
        for dir in [state.clone(), state.with_file_name("state.2")] {
            if dir.join("conf").exists() {
                fs::write(dir.join("conf"), "no database of anybody").unwrap();
            }
        }
        place.assert_verdicts("crowded");
        let out = place.own("crowded");
        assert!(out.stderr.contains("state"), "{round}: {out}");
        assert_eq!(set_aside(&state).len(), KEPT, "none is deleted, and none is added");
    }
    assert!(set_aside(&state.with_file_name("state.2")).len() <= KEPT);
    place.finish();
}

// class: store
#[test]
fn status_names_the_store_that_was_set_aside_and_stays_valid() {
    let place = Place::new();
    let state = place.state();
    fs::write(state.join("conf"), "no database of anybody").unwrap();
    place.hub.hold_after(0);
    let owner = Owner::start(&place.world);
    let aside = set_aside(&state).remove(0).display().to_string();
    assert!(owner.process.stderr_so_far().contains(&aside), "in the log: {}", owner.process.stderr_so_far());
    let out = place.world.args(["status"]).run().expect_code(0);
    assert!(out.all().contains(&aside), "{out}");
    let report = place.world.args(["status", "--json"]).run().expect_code(0).json();
    assert_valid(include_str!("../src/api/schema/status.v1.json"), &report);
    assert!(report["daemon"]["notices"][0].as_str().unwrap().contains(&aside), "{report}");
    // As it was taken up, for the directories know it.
    let states: Vec<_> = ["org/whole", "org/half"].map(|name| owner.api.state(name)).to_vec();
    assert_eq!(states[0], "ready");
    assert!(["queued", "resolving", "verifying", "fetching"].contains(&states[1].as_str()), "{states:?}");
    drop(owner);
    place.hub.cut(Origin::Cdn);
    place.hub.release();
    place.finish();
}

// class: store, progress-lost
#[test]
fn a_job_that_was_paused_or_cancelled_stays_so_when_the_store_is_lost() {
    for (verb, state) in [("pause", "paused"), ("cancel", "cancelled")] {
        let place = Place::new();
        place.hub.hold_after(0);
        let mut owner = Owner::start(&place.world);
        place.world.args([verb, "org/half"]).run().expect_code(0);
        wait_until("it rests", SOON, || owner.api.state("org/half") == state);
        owner.process.terminate();
        owner.process.wait(SOON).expect_code(0);
        place.hub.cut(Origin::Cdn);
        place.hub.release();
        fs::remove_dir_all(place.state()).unwrap();
        let owner = Owner::start(&place.world);
        assert_eq!(owner.api.state("org/half"), state);
        assert_eq!(owner.api.state("org/whole"), "ready");
        assert_eq!(place.hub.total_body_bytes(), place.sent);
        drop(owner);
        place.finish();
    }
}

// class: store
#[test]
fn a_store_that_was_out_of_reach_for_a_while_does_not_bring_back_what_was_removed_since() {
    let place = Place::new();
    let held = File::options().write(true).open(place.state().join("lock")).unwrap();
    held.lock().unwrap();
    place.world.args(["remove", "org/whole", "--now"]).run().expect_code(0);
    place.world.args(["pull", "org/half"]).run().expect_code(0);
    let sent = place.hub.total_body_bytes();
    drop(held);
    let owner = Owner::start(&place.world);
    assert_eq!(owner.api.get("/v1/models/org%2Fwhole").0, 404);
    assert_eq!(owner.api.state("org/half"), "ready");
    drop(owner);
    assert_eq!(place.hub.total_body_bytes(), sent);
    place.world.args(["gate", "org/whole"]).run().expect_code(13);
}

// class: store, revision
#[test]
fn volumes_that_share_a_state_directory_do_not_take_each_others_jobs() {
    let repo = RepoSpec::kimi(3, MIB / 2, 4).named("org/model");
    let hub = Hub::start(repo.clone());
    let first = Muster::on(&hub);
    let shared = first.home().join("shared");
    let first = first.env("MUSTER_STATE_DIR", &shared);
    let second = Muster::on(&hub).env("MUSTER_STATE_DIR", &shared);
    first.args(["pull", "org/model"]).run().expect_code(0);
    let sent = hub.total_body_bytes();
    let owner = Owner::start(&second);
    let (_, report) = owner.api.get("/v1/models");
    assert_eq!(report["models"], Value::Array(Vec::new()), "{report}");
    drop(owner);
    assert_eq!(hub.total_body_bytes(), sent);
    let owner = Owner::start(&first);
    assert_eq!(owner.api.state("org/model"), "ready");
    let (_, history) = owner.api.get("/v1/models/org%2Fmodel/history");
    assert!(!history["entries"].as_array().unwrap().is_empty(), "its own store is found again: {history}");
}
