//! Cells of the table verb × exit code in ARCHITECTURE.md that no other test is about.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::time::Duration;

use support::*;

const SOON: Duration = Duration::from_secs(60);

fn repo() -> RepoSpec {
    RepoSpec::kimi(2, 8192, 5).named("org/model")
}

/// A world whose volume has the model under each of these names.
fn with(names: &[&str]) -> (Hub, Muster) {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    for name in names {
        world.args(["pull", "org/model", "--to", name]).run().expect_code(0);
    }
    (hub, world)
}

#[test]
fn a_flag_that_no_verb_has_ends_every_verb_with_2() {
    let world = Muster::new("/no/such/volume");
    let help = world.args(["--help"]).run().expect_code(0).stdout;
    let verbs: Vec<_> =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|l| !l.is_empty()).collect();
    assert!(verbs.len() >= 16, "{help}");
    for line in verbs {
        let verb = line.split_whitespace().next().unwrap();
        let out = world.args([verb, "--no-such-flag"]).run().expect_code(2);
        assert!(out.stderr.contains("--no-such-flag"), "{verb}: {out}");
    }
}

#[test]
fn a_repository_in_two_directories_is_no_model_and_both_are_named() {
    let (_hub, world) = with(&["one", "two"]);
    for verb in ["status", "verify", "history", "remove"] {
        let out = world.args([verb, "org/model"]).run().expect_code(2);
        assert!(out.stderr.contains("one, two"), "{verb}: {out}");
    }
    assert!(world.model("one").exists() && world.model("two").exists());
}

#[test]
fn a_name_that_nothing_has_ends_with_13_whether_or_not_somebody_owns_the_volume() {
    let (_hub, world) = with(&["one"]);
    for verb in ["status", "gate", "verify", "history", "remove"] {
        world.args([verb, "none"]).run().expect_code(13);
    }
    let _owner = Owner::start(&world);
    for verb in ["status", "gate", "verify", "history", "remove", "pause", "resume", "cancel", "limit"] {
        let out = world.args([verb, "none"]).run().expect_code(13);
        assert!(out.all().contains("none"), "{verb}: {out}");
    }
}

// class: writers, store
#[test]
fn what_needs_an_owner_of_its_own_ends_with_15_while_another_host_owns_the_volume() {
    let (_hub, world) = with(&["one"]);
    own_elsewhere(world.volume(), 4242, "node-17");
    for verb in ["history", "remove"] {
        let out = world.args([verb, "one"]).run().expect_code(15);
        assert!(out.stderr.contains("4242 on node-17"), "{verb}: {out}");
    }
    for verb in ["pause", "resume", "cancel", "limit"] {
        let out = world.args([verb, "one"]).run().expect_code(14);
        assert!(out.stderr.contains("4242 on node-17"), "{verb}: {out}");
    }
    world.args(["status", "one"]).run().expect_code(0);
    world.args(["gate", "one"]).run().expect_code(0);
    assert!(world.model("one").exists());
}

// class: writers
#[test]
fn a_model_in_use_is_not_removed() {
    let (_hub, world) = with(&["one"]);
    let mut gate = world.args(["gate", "one", "--hold"]).spawn();
    gate.wait_for_text("open: ", SOON);
    let out = world.args(["remove", "one"]).run().expect_code(15);
    assert!(out.stderr.contains("in use"), "{out}");
    gate.terminate();
    gate.wait(SOON);
    world.args(["gate", "one"]).run().expect_code(0);
    world.args(["remove", "one"]).run().expect_code(0);
}

#[test]
fn a_mirror_of_no_volume_says_where_was_looked() {
    let out = Muster::new("/no/such/volume").args(["mirror"]).run().expect_code(13);
    assert!(out.stderr.contains("/no/such/volume (from MUSTER_VOLUME)"), "{out}");
}

#[test]
fn an_address_in_use_is_told() {
    let (_hub, world) = with(&["one"]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let out = world.args(["mirror", "--listen", &address]).run().expect_code(2);
    assert!(out.stderr.contains(&address) && out.stderr.contains("hint:"), "{out}");
    let secret = world.home().join("api-token");
    std::fs::write(&secret, "a-token").unwrap();
    let out = world.args(["daemon", "--listen", &address, "--listen-token-file"]).arg(&secret).run().expect_code(18);
    assert!(out.stderr.contains(&address), "{out}");
}

#[test]
fn a_wait_for_somebody_elses_volume_ends_with_the_signal() {
    let (_hub, world) = with(&["one"]);
    own_elsewhere(world.volume(), 4242, "node-17");
    let mut daemon = world.args(["daemon"]).spawn();
    daemon.wait_for_text("sign of life", SOON);
    daemon.terminate();
    daemon.wait(SOON).expect_code(143);
}

#[test]
fn a_volume_that_is_no_folder_cannot_be_read_and_is_named() {
    let world = Muster::new("/no/such/volume");
    let file = world.home().join("volume");
    std::fs::write(&file, "a file").unwrap();
    for verb in ["status", "list"] {
        let out = world.args([verb, "--volume"]).arg(&file).run().expect_code(18);
        assert!(out.stderr.contains(file.to_str().unwrap()) && out.stderr.contains("hint: "), "{verb}: {out}");
    }
}

// class: writers
#[test]
fn a_verify_of_a_directory_that_is_being_changed_waits_for_nobody() {
    let (_hub, world) = with(&["one"]);
    let lock = world.model("one").join(".muster/in-use");
    let lock = std::fs::File::options().read(true).write(true).open(lock).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    world.args(["verify", "one"]).run().expect_code(15);
    drop(lock);
    world.args(["verify", "one"]).run().expect_code(0);
}

#[test]
fn a_scrub_of_no_such_part_rate_or_model_reads_nothing() {
    let (_hub, world) = with(&["one"]);
    for (args, said) in [
        (&["one", "--subset", "9/4"][..], "9/4"),
        (&["one", "--limit", "fast"], "fast"),
        (&["one", "--all"], "--all"),
        (&[], "MODEL"),
    ] {
        let out = world.args([&["scrub"], args].concat()).run().expect_code(2);
        assert!(out.stderr.contains(said), "{args:?}: {out}");
    }
    let out = world.args(["scrub", "none"]).run().expect_code(13);
    assert!(out.stderr.contains("`none`"), "{out}");
    assert!(!world.model("one").join(".muster/scrubbed.json").exists());
}
