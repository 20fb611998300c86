//! Read from anywhere: `status` and `gate` on a host that only mounts the volume, read-only and as another user, while
//! the daemon of another host lives, when it is dead, and when nobody ever tells.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(unreachable_pub, dead_code, reason = "parts of the drills about writers are used here, too")]
#![allow(clippy::cast_possible_wrap, reason = "ids of processes, on 64-bit Linux")]

mod faultfs;
mod support;

#[path = "writers/ground.rs"]
mod ground;
#[path = "writers/host.rs"]
mod host;

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use faultfs::FaultFs;
use ground::*;
use support::*;

/// Nobody that this machine knows.
const READER: u32 = 54_323;
/// Another host, with another boot, that has the volume read-only; then another user, who may write nowhere else.
const SET_UP: &str = r#"
set -e
hostname reader
mount -t tmpfs none "$1"
mount --bind "$2" /proc/sys/kernel/random/boot_id
mount --bind "$3" "$3"
mount -o remount,bind,ro "$3"
user=$4
shift 4
exec setpriv "--reuid=$user" "--regid=$user" --clear-groups --no-new-privs "$@"
"#;

/// A host that reads.
struct Reader<'a> {
    pair: &'a Pair,
    mount: &'a FaultFs,
    binary: PathBuf,
    boot: PathBuf,
    memory: PathBuf,
}

impl<'a> Reader<'a> {
    fn of(pair: &'a Pair) -> Self {
        let [_, mount] = pair.mounts.as_ref().unwrap();
        let home = pair.world.home();
        // What another user may not even look into would say nothing about the volume.
        let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
        let binary = home.join("muster");
        std::fs::copy(env!("CARGO_BIN_EXE_muster"), &binary).unwrap();
        mount.path().ancestors().take(3).for_each(open);
        [home, &binary].into_iter().for_each(open);
        let boot = home.join("boot-of-the-reader");
        std::fs::write(&boot, "33333333-3333-4333-8333-333333333333\n").unwrap();
        let memory = home.join("memory");
        std::fs::create_dir(&memory).unwrap();
        chown(&memory, Some(READER), Some(READER)).unwrap();
        Self { pair, mount, binary, boot, memory }
    }

    /// Starts `muster` there.
    fn start(&self, args: &[&str]) -> Child {
        let run = self.pair.world.home().join("run");
        let flags = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", SET_UP, "host"];
        let places = [&run, &self.boot, self.mount.path()].map(|path| path.to_str().unwrap().to_owned());
        let words = flags.map(str::to_owned).into_iter().chain(places);
        let words = words.chain([READER.to_string(), self.binary.to_str().unwrap().to_owned()]);
        let words: Vec<_> = words.chain(args.iter().map(|&word| word.to_owned())).collect();
        let call = self.pair.world.program("unshare", words).current_dir("/");
        call.env("MUSTER_VOLUME", self.mount.path()).env("XDG_STATE_HOME", &self.memory).spawn()
    }

    #[track_caller]
    fn run(&self, args: &[&str]) -> Output {
        self.start(args).wait(AFTER_A_LEASE)
    }

    fn status(&self) -> serde_json::Value {
        self.run(&["status", "--json"]).expect_code(0).json()
    }

    /// Not even as root, and with nothing to stop it, does a reader try to change anything.
    fn writes_nothing(&self, verbs: &[&[&str]]) {
        self.mount.forget();
        for verb in verbs {
            self.pair.there.start(verb.iter().copied()).child.wait(AFTER_A_LEASE).expect_code(0);
        }
        let changes: Vec<_> = self.mount.log().into_iter().filter(|step| step.op.changes()).collect();
        assert!(changes.is_empty(), "{changes:?}");
    }
}

// class: writers, words
#[test]
fn a_host_that_only_reads_follows_a_daemon_elsewhere_and_starts_its_launcher_on_proof() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let Some(pair) = Pair::machines(&hub) else { return };
    let mut daemon = pair.here.start(["daemon"]);
    daemon.child.wait_for_text("muster daemon owns", SOON);
    let reader = Reader::of(&pair);
    let held = hold(&hub, &repo);
    let mut pull = daemon.inside(&["pull", "org/model"]);
    wait_for_hold(&pair.directory(), &repo, &held);
    wait_until("half of it is told", SOON, || {
        let status = reader.status();
        let model = &status["models"][0];
        assert_eq!(status["daemon"]["running"], true, "{status}");
        assert_eq!(status["daemon"]["host"], "node", "{status}");
        model["state"] == "fetching" && model["bytes"]["received"].as_u64() > Some(0)
    });
    let shown = reader.run(&["status"]).expect_code(0).stdout;
    assert!(shown.contains("org/model") && shown.contains("fetching"), "{shown}");
    // Closed now; and one that waits opens when the other host is done.
    let out = reader.run(&["gate", "org/model"]).expect_code(10);
    assert!(held.iter().any(|file| out.all().contains(file)), "it names what is missing: {out}");
    let mut waiting =
        reader.start(&["gate", "org/model", "--wait", "--", "sh", "-c", "echo launched in $MUSTER_MODEL_DIR"]);
    waiting.wait_for_text("waiting for", SOON);
    let_go(&hub);
    hub.cut(Origin::Cdn);
    let out = waiting.wait(AFTER_A_LEASE).expect_code(0);
    let directory = reader.mount.path().join("org/model");
    assert_eq!(out.stdout.trim(), format!("launched in {}", directory.display()));
    assert!(pull.is_running() || pull.stdout_so_far().contains("org/model"));
    pull.wait(SOON).expect_code(0);
    assert_complete(&pair.directory(), &repo);
    wait_until("it is ready for whoever looks", SOON, || reader.status()["models"][0]["state"] == "ready");
    // Nothing was hashed for it: the identities hold on another host, too.
    let verdict = reader.run(&["gate", "org/model", "--json"]).expect_code(0).json();
    assert_eq!(verdict["files"]["hashed"], 0, "{verdict}");
    reader.writes_nothing(&[&["status"], &["status", "org/model", "--json"], &["gate", "org/model"]]);
    daemon.child.terminate();
}

// class: writers, words
#[test]
fn a_daemon_that_died_elsewhere_is_told_and_changes_no_verdict() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let Some(pair) = Pair::machines(&hub) else { return };
    let mut daemon = pair.here.start(["daemon"]);
    daemon.child.wait_for_text("muster daemon owns", SOON);
    daemon.inside(&["pull", "org/model"]).wait(SOON).expect_code(0);
    let reader = Reader::of(&pair);
    assert_eq!(reader.status()["daemon"]["running"], true);
    daemon.kill();
    daemon.child.wait(SOON);
    let before = trace(pair.world.volume());
    // Whether it lives shows in its heartbeats alone, from here.
    wait_until("its silence is told", AFTER_A_LEASE, || reader.status()["daemon"]["running"] != true);
    let status = reader.status();
    assert_eq!(status["daemon"]["running"], false, "{status}");
    assert_eq!(status["models"][0]["state"], "ready", "{status}");
    let shown = reader.run(&["status"]).expect_code(0);
    assert!(shown.all().contains("org/model"), "{shown}");
    // The gate asks nobody.
    reader.run(&["gate", "org/model", "--", "true"]).expect_code(0);
    flip_byte(&pair.directory().join("model-00002-of-000006.safetensors"), 1_000_000);
    let out = reader.run(&["gate", "org/model", "--", "true"]).expect_code(11);
    assert!(out.all().contains("closed (11): model-00002-of-000006.safetensors"), "{out}");
    flip_byte(&pair.directory().join("model-00002-of-000006.safetensors"), 1_000_000);
    // Right again, and hashed for it: what is remembered is remembered outside of the volume.
    let verdict = reader.run(&["gate", "org/model", "--json"]).expect_code(0).json();
    assert_eq!(verdict["files"]["hashed"], 1, "{verdict}");
    assert!(!listing(&reader.memory).is_empty());
    let changed = |path: &Path| path.ends_with("model-00002-of-000006.safetensors");
    let same = |trace: Vec<(PathBuf, u64, i64, i64, u32)>| {
        trace.into_iter().filter(|(path, ..)| !changed(path)).collect::<Vec<_>>()
    };
    assert_eq!(same(trace(pair.world.volume())), same(before), "nothing was written");
    // Half a model without an owner: who waits for it is told that nobody works on it.
    std::fs::remove_file(pair.directory().join("model-00003-of-000006.safetensors")).unwrap();
    let out = reader.run(&["gate", "org/model", "--wait", "--stall", "2s"]);
    assert!(matches!(out.code, Some(19)), "{out}");
}
