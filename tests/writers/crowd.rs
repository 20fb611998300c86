//! Many at once: pulls of one model and of several, daemons that race for a volume, starters, and
//! removals, checks and gates beside each other.

use super::ground::*;
use super::host::owner;
use super::support::*;
use rustix::process::Signal;

fn pull(world: &Muster) -> Invocation {
    world.args(["pull", "org/model"])
}

// class: writers
#[test]
fn many_pulls_of_one_model_fetch_it_once_and_all_succeed() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let children: Vec<_> = (0..8).map(|_| pull(&world).spawn()).collect();
    for child in children {
        let out = child.wait(SOON).expect_code(0);
        assert_eq!(out.stdout.trim(), world.model("org/model").display().to_string());
    }
    assert_complete(&world.model("org/model"), &repo);
    let sent = hub.total_body_bytes();
    assert!(sent <= repo.total_bytes() * 105 / 100, "{sent} of {} bytes", repo.total_bytes());
}

// class: writers, progress-lost
#[test]
fn many_pulls_of_one_model_go_on_when_the_one_that_works_is_interrupted_or_killed() {
    for signal in [Signal::INT, Signal::KILL] {
        let repo = shards();
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub);
        let directory = world.model("org/model");
        let held = hold(&hub, &repo);
        let mut children: Vec<_> = (0..8).map(|_| pull(&world).spawn()).collect();
        wait_for_hold(&directory, &repo, &held);
        let id = owner(world.volume()).1.unwrap()["pid"].as_u64().unwrap();
        let at = children.iter().position(|child| u64::from(child.id()) == id).expect("one of them works");
        let mut working = children.remove(at);
        let_go(&hub);
        working.signal(signal);
        let out = working.wait(SOON);
        assert_eq!(
            (out.code, out.signal),
            if signal == Signal::INT { (Some(130), None) } else { (None, Some(9)) },
            "{out}"
        );
        hub.cut(Origin::Cdn);
        for child in children {
            child.wait(SOON).expect_code(0);
        }
        assert_complete(&directory, &repo);
        let sent = hub.total_body_bytes();
        assert!(sent <= repo.total_bytes() * 105 / 100, "{signal:?}: {sent} of {} bytes", repo.total_bytes());
    }
}

// class: writers
#[test]
fn pulls_of_two_models_share_a_volume_and_both_arrive() {
    let small = RepoSpec::kimi(2, MIB / 2, 2).named("org/other");
    let hub = Hub::with([shards(), small.clone()]);
    let world = Muster::on(&hub);
    let children: Vec<_> =
        ["org/model", "org/other", "org/model", "org/other"].map(|name| world.args(["pull", name]).spawn()).into();
    for child in children {
        child.wait(SOON).expect_code(0);
    }
    assert_complete(&world.model("org/model"), &shards());
    assert_complete(&world.model("org/other"), &small);
    let most = (shards().total_bytes() + small.total_bytes()) * 105 / 100;
    assert!(hub.total_body_bytes() <= most, "{} bytes", hub.total_body_bytes());
}

// class: writers
#[test]
fn pulls_of_one_model_with_other_selections_end_in_one_of_them_and_say_so() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let selections = [["--exclude", "*-00001-*"], ["--exclude", "*-00006-*"]];
    let children: Vec<_> = selections.iter().map(|some| pull(&world).arg(some[0]).arg(some[1]).spawn()).collect();
    let outs: Vec<_> = children.into_iter().map(|child| child.wait(SOON)).collect();
    let won: Vec<_> = (0..2).filter(|at| outs[*at].code == Some(0)).collect();
    assert_eq!(won.len(), 1, "{} {}", outs[0], outs[1]);
    let lost = &outs[1 - won[0]];
    assert!(matches!(lost.code, Some(2 | 15)) && lost.stderr.contains("00"), "{lost}");
    let gate = world.args(["gate", "org/model"]).run().expect_code(0);
    assert!(gate.all().contains(selections[won[0]][1]), "{gate}");
    let missing = ["model-00001-of-000006.safetensors", "model-00006-of-000006.safetensors"][won[0]];
    for file in repo.files() {
        assert_eq!(world.model("org/model").join(&file.path).exists(), file.path != missing, "{}", file.path);
    }
}

// class: writers
#[test]
fn of_daemons_that_race_for_a_volume_one_owns_it_and_the_others_name_it() {
    let hub = Hub::start(shards());
    let world = Muster::on(&hub);
    for round in 1..=12 {
        let mut daemons: Vec<_> = (0..4).map(|_| world.args(["daemon"]).spawn()).collect();
        wait_until("all but one have ended", SOON, || {
            daemons.iter_mut().map(|daemon| usize::from(daemon.is_running())).sum::<usize>() <= 1
        });
        let (mut running, mut ended) = (Vec::new(), Vec::new());
        for mut daemon in daemons {
            if daemon.is_running() { running.push(daemon) } else { ended.push(daemon) }
        }
        let [mut owns] = <[Child; 1]>::try_from(running).map_err(|all| all.len()).expect("one owns it");
        owns.wait_for_text("muster daemon owns", SOON);
        let (epoch, record) = owner(world.volume());
        assert_eq!((epoch, record.unwrap()["pid"].as_u64()), (round, Some(owns.id().into())));
        for loser in ended {
            let out = loser.wait(SOON).expect_code(15);
            assert!(out.stderr.contains(&format!("process {} on ", owns.id())), "{out}");
        }
        // Without a word, so that the next ones find it dead.
        owns.kill();
    }
}

// class: writers, gate
#[test]
fn a_removal_and_checks_during_a_pull_are_refused_and_change_nothing() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    let held = hold(&hub, &repo);
    let child = pull(&world).spawn();
    wait_for_hold(&directory, &repo, &held);
    let removal = world.args(["remove", "org/model"]).run().expect_code(15);
    assert!(removal.stderr.contains("being worked on"), "{removal}");
    let gate = world.args(["gate", "org/model"]).run().expect_code(10);
    assert!(gate.all().contains(&held[0]), "what is missing is named: {gate}");
    world.args(["verify", "org/model", "--quarantine"]).run().expect_code(10);
    let_go(&hub);
    hub.cut(Origin::Cdn);
    child.wait(SOON).expect_code(0);
    assert_complete(&directory, &repo);
    let sent = hub.total_body_bytes();
    assert!(sent <= repo.total_bytes() * 105 / 100, "{sent} of {} bytes", repo.total_bytes());
}

// class: writers, gate
#[test]
fn gates_beside_a_verify_and_a_repair_open_on_right_bytes_alone() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    pull(&world).run().expect_code(0);
    let shard = repo.files().find(|file| file.path.ends_with(".safetensors")).unwrap().path.clone();
    for round in 0..3 {
        flip_byte(&directory.join(&shard), 1000 + round);
        let repair = world.args(["verify", "org/model", "--quarantine"]).spawn();
        let gates: Vec<_> = (0..4).map(|_| world.args(["gate", "org/model"]).spawn()).collect();
        for gate in gates {
            let out = gate.wait(SOON);
            assert!(matches!(out.code, Some(10 | 11 | 15 | 18)), "open on a flipped byte: {out}");
        }
        repair.wait(SOON).expect_code(11);
        let again = pull(&world).spawn();
        let gates: Vec<_> = (0..4).map(|_| world.args(["gate", "org/model", "--json"]).spawn()).collect();
        for gate in gates {
            let out = gate.wait(SOON);
            if out.code == Some(0) {
                // A gate opens on the repaired set, which stays as it is from then on.
                let bytes = std::fs::read(directory.join(&shard)).unwrap();
                assert_eq!(sha256_hex(bytes), repo.get(&shard).content.sha256());
            }
        }
        again.wait(SOON).expect_code(0);
        let (verify, gate) = (world.args(["verify", "org/model"]).spawn(), world.args(["gate", "org/model"]).spawn());
        gate.wait(SOON).expect_code(0);
        verify.wait(SOON).expect_code(0);
    }
    assert_complete(&directory, &repo);
}

// class: writers, gate
#[test]
fn fifteen_starters_at_once_each_find_and_read_the_whole_set() {
    let repo = shards();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    pull(&world).run().expect_code(0);
    // Identities drift: every starter hashes, and they write their memories beside each other.
    for file in repo.files() {
        let file = std::fs::File::options().write(true).open(world.model("org/model").join(&file.path)).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    }
    let read = "cd \"$1\" && find . -name .muster -prune -o -type f -print0 | xargs -0 sha256sum";
    let start = || world.args(["gate", "org/model", "--", "sh", "-c", read, "sh", "{}"]).spawn();
    let starters: Vec<_> = (0..15).map(|_| start()).collect();
    for starter in starters {
        let out = starter.wait(SOON).expect_code(0);
        assert!(!out.all().contains("EEXIST") && !out.all().contains("File exists"), "{out}");
        for file in repo.files() {
            let line = format!("{}  ./{}", file.content.sha256(), file.path);
            assert!(out.stdout.lines().any(|said| said == line), "no {line}: {out}");
        }
    }
}
