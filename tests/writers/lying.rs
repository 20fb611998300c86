//! Locks that say yes to everybody. First that they do; then that gate, update and removal need none:
//! the gate opens on right sets alone, and what a launched process reads stays on the disk.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::faultfs::{Act, At, FaultFs, Op};
use super::ground::*;
use super::support::*;

const CHANGED: &str = "model-00002-of-000003.safetensors";

fn repo() -> RepoSpec {
    RepoSpec::kimi(3, MIB / 4, 2).named("org/model")
}

fn edited(seed: u64) -> impl FnOnce(RepoSpec) -> RepoSpec {
    move |repo| {
        repo.lfs(CHANGED, Content::generated(seed, MIB / 4)).plain("config.json", format!("{{\"a\": {seed}}}\n"))
    }
}

/// Two hosts' mounts of one volume, on which locks lie. Renames that are held on one hold up nobody on
/// the other, as on a shared file system.
struct Shared {
    gating: Muster,
    pulling: Muster,
    here: FaultFs,
    there: FaultFs,
    disk: PathBuf,
    _folder: tempfile::TempDir,
}

impl Shared {
    fn of(hub: &Hub) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let [disk, here, there] = ["disk", "here", "there"].map(|name| folder.path().join(name));
        for path in [&disk, &here, &there] {
            std::fs::create_dir(path).unwrap();
        }
        let (here, there) = match (FaultFs::mount(&disk, &here), FaultFs::mount(&disk, &there)) {
            (Ok(here), Ok(there)) => (here, there),
            (Err(why), _) | (_, Err(why)) => {
                skip(&why);
                return None;
            }
        };
        for fs in [&here, &there] {
            fs.be_quick();
            fs.lie_about_locks(true);
        }
        let (gating, pulling) = (Muster::new(here.path()).endpoint(hub), Muster::new(there.path()).endpoint(hub));
        Some(Self { gating, pulling, here, there, disk, _folder: folder })
    }
}

/// A process that holds the lock of a file, alone as it thinks.
fn holder(world: &Muster, file: &Path) -> Child {
    let file = file.to_str().unwrap();
    let mut child =
        world.program("flock", ["--exclusive", "--nonblock", file, "sh", "-c", "echo held; exec sleep 60"]).spawn();
    child.wait_for_text("held", SOON);
    child
}

// class: writers
#[test]
fn where_locks_lie_two_processes_hold_one_lock_and_a_model_in_use_is_not_known_to_be() {
    let hub = Hub::start(repo());
    let Some(Shared { pulling: world, there: fs, .. }) = &Shared::of(&hub) else { return };
    world.args(["pull", "org/model"]).run().expect_code(0);
    let file = world.model("org/model").join(".muster/in-use");
    fs.lie_about_locks(false);
    let first = holder(world, &file);
    let refused = world.program("flock", ["-xn", file.to_str().unwrap(), "true"]).run();
    assert_eq!(refused.code, Some(1), "where locks tell the truth the second gets none: {refused}");
    hub.push("org/model", "main", edited(1));
    let told = world.args(["pull", "org/model"]).run().expect_code(15);
    assert!(told.stderr.contains("in use"), "{told}");
    drop(first);
    fs.lie_about_locks(true);
    let (mut first, mut second) = (holder(world, &file), holder(world, &file));
    assert!(first.is_running() && second.is_running(), "both hold it");
    let gate = world.args(["gate", "org/model"]).run().expect_code(0);
    assert!(gate.stderr.contains("lock"), "a gate says that nobody can know of it: {gate}");
    let out = world.args(["pull", "org/model"]).run().expect_code(0);
    assert!(out.stderr.contains("whether a launcher reads the model is not known"), "{out}");
    assert_complete(&world.model("org/model"), &hub.repo("org/model"));
}

/// The gate may be open now only if every byte is right for the commit it names. Says whether it is.
#[track_caller]
fn judge(shared: &Shared, hub: &Hub, when: &str) -> bool {
    let gate = shared.gating.args(["gate", "org/model", "--json"]).run();
    if gate.code != Some(0) {
        assert!(matches!(gate.code, Some(10 | 13 | 15 | 18)), "{when}: {gate}");
        return false;
    }
    let commit = gate.json()["commit"].as_str().unwrap().to_owned();
    let repo = hub.repo("org/model");
    let tree = repo.tree_at(&commit).unwrap_or_else(|| panic!("{when}: no commit {commit}"));
    for file in tree.values() {
        let bytes = std::fs::read(shared.disk.join("org/model").join(&file.path)).unwrap_or_default();
        assert_eq!(sha256_hex(&bytes), file.content.sha256(), "{when}: open on a wrong {}", file.path);
    }
    true
}

/// Runs a verb and asks the gate before each of its renames in the model; how often it was open and closed.
fn at_each_step(shared: &Shared, hub: &Hub, verb: &[&str], at: &dyn Fn() -> At) -> (usize, usize) {
    let fs = &shared.there;
    let (mut open, mut closed) = (0, 0);
    let mut held = fs.when(at().nth(1), Act::Hold);
    let mut child = shared.pulling.args(verb).spawn();
    for step in 1..200 {
        wait_until("the next step comes, or the end", SOON, || fs.played(held) > 0 || !child.is_running());
        if fs.played(held) == 0 {
            fs.lift(held);
            child.wait(SOON).expect_code(0);
            return (open, closed);
        }
        let is_open = judge(shared, hub, &format!("{verb:?}, before step {step}"));
        if is_open {
            open += 1;
        } else {
            closed += 1;
        }
        let next = fs.when(at().nth(1), Act::Hold);
        fs.release(held);
        held = next;
    }
    panic!("{verb:?} has no end");
}

/// Every inode that has a name below a folder.
fn inodes(folder: &Path) -> Vec<u64> {
    listing(folder).iter().map(|name| folder.join(name).symlink_metadata().unwrap().ino()).collect()
}

/// What a process has open below a folder: descriptor and inode.
fn open_files(id: u32, part: &str) -> Vec<(PathBuf, u64)> {
    let fds = std::fs::read_dir(format!("/proc/{id}/fd")).into_iter().flatten().flatten();
    let ours = fds.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().contains(part)));
    ours.filter_map(|fd| Some((fd.path(), fd.path().metadata().ok()?.ino()))).collect()
}

// class: writers, gate
#[test]
fn with_lying_locks_the_gate_opens_on_right_sets_alone_and_a_launched_process_keeps_its_files() {
    let hub = Hub::start(repo());
    let Some(shared) = Shared::of(&hub) else { return };
    let world = &shared.pulling;
    let step = || At::op(Op::Rename).path("org/model/");
    let (open, closed) = at_each_step(&shared, &hub, &["pull", "org/model"], &step);
    assert!(open == 0 && closed >= 5, "a first pull: open {open}, closed {closed}");
    // The launcher opens all files and reads on.
    let old = repo();
    let shards: Vec<_> = old.files().filter(|file| file.lfs).map(|file| format!("{{}}/{}", file.path)).collect();
    let launch = ["gate", "org/model", "--", "tail", "-q", "-f", "-c", "1"];
    let launched = shared.gating.args(launch.into_iter().map(str::to_owned).chain(shards.clone())).spawn();
    wait_until("the launcher has them open", SOON, || open_files(launched.id(), ".safetensors").len() == shards.len());
    let read = open_files(launched.id(), ".safetensors");
    hub.push("org/model", "main", edited(1));
    let (open, closed) = at_each_step(&shared, &hub, &["pull", "org/model"], &step);
    assert!(open >= 2 && closed >= 4, "an update: open {open}, closed {closed}");
    assert!(judge(&shared, &hub, "after the update"));
    let (open, closed) = at_each_step(&shared, &hub, &["remove", "org/model"], &|| At::op(Op::Rename).path("org"));
    assert!(open >= 1 && closed >= 1, "a removal: open {open}, closed {closed}");
    assert!(!world.model("org/model").exists());
    world.args(["pull", "org/model"]).run().expect_code(0);
    world.args(["remove", "org/model", "--now"]).run().expect_code(0);
    let there = inodes(&shared.disk);
    for (fd, inode) in &read {
        assert!(there.contains(inode), "what the launcher reads was removed: {}", fd.display());
    }
    let bytes = read.iter().map(|(fd, _)| sha256_hex(std::fs::read(fd).unwrap()));
    let mut bytes: Vec<_> = bytes.collect();
    let mut right: Vec<_> = old.files().filter(|file| file.lfs).map(|file| file.content.sha256().to_owned()).collect();
    bytes.sort();
    right.sort();
    assert_eq!(bytes, right, "the launcher reads what it was let to");
}

// class: writers, gate
#[test]
fn with_lying_locks_an_update_on_another_host_while_the_gate_looks_never_opens_it_on_the_old_set() {
    let hub = Hub::start(repo());
    let Some(Shared { gating, pulling, here, .. }) = &Shared::of(&hub) else { return };
    let pull = || pulling.args(["pull", "org/model"]).run().expect_code(0);
    pull();
    let mut verdicts = Vec::new();
    // Where the gate looks a name up, what it sees is decided.
    for (part, nth) in
        [".muster/", "config.json", "model-00002"].iter().flat_map(|part| (1..10).map(move |nth| (part, nth)))
    {
        let held = here.when(At::op(Op::Lookup).path(&format!("org/model/{part}")).nth(nth), Act::Hold);
        let mut gate = gating.args(["gate", "org/model", "--json"]).spawn();
        wait_until("the gate looks a file up, or ends", SOON, || here.played(held) > 0 || !gate.is_running());
        if here.played(held) == 0 {
            here.lift(held);
            gate.wait(SOON).expect_code(0);
            continue;
        }
        let newest = hub.push("org/model", "main", edited(verdicts.len() as u64));
        pull();
        here.release(held);
        let out = gate.wait(SOON);
        if out.code == Some(0) {
            assert_eq!(
                out.json()["commit"],
                newest,
                "it opened on what is no longer there, held at {part} {nth}: {out}"
            );
        }
        verdicts.push(out.code.unwrap());
    }
    assert!(verdicts.len() >= 6, "{verdicts:?}");
    assert!(verdicts.iter().all(|code| [0, 10, 15, 18].contains(code)), "{verdicts:?}");
}
