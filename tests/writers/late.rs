//! A writer loses the volume while one of its renames is under way: the kernel has it, the file system
//! holds it, the process stands still. It is let go when the new owner has long finished.

use std::path::Path;

use super::faultfs::{Act, At, Op};
use super::ground::*;
use super::host::*;
use super::leases::words_of;
use super::support::*;

/// What is held, by a part of `OLD -> NEW`, and what was being done.
struct Case {
    what: &'static str,
    rename: &'static str,
    doing: Doing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Doing {
    FirstPull,
    Update,
    Repair,
    Removal,
    TakingOver,
}

const CHANGED: &str = "model-00001-of-000003.safetensors";

const CASES: &[Case] = &[
    Case {
        what: "the manifest of a first pull",
        rename: "-> org/model/.muster/manifest.json",
        doing: Doing::FirstPull,
    },
    Case { what: "a file", rename: "-> org/model/model-00002", doing: Doing::FirstPull },
    Case { what: "the receipt", rename: "-> org/model/.muster/receipt.json", doing: Doing::FirstPull },
    Case { what: "the manifest to come", rename: "-> org/model/.muster/manifest.pending.json", doing: Doing::Update },
    Case { what: "the receipt set aside", rename: "-> org/model/.muster/receipt.previous.json", doing: Doing::Update },
    Case { what: "the manifest that came", rename: "manifest.pending.json -> ", doing: Doing::Update },
    Case { what: "an old file that goes", rename: "-> org/model/.muster/retired/", doing: Doing::Update },
    Case { what: "a new file that comes", rename: "-> org/model/model-00001", doing: Doing::Update },
    Case { what: "wrong bytes that go", rename: "-> .muster/quarantine/", doing: Doing::Repair },
    Case { what: "a model that goes", rename: "-> .muster/retired/", doing: Doing::Removal },
    Case { what: "a partial taken over", rename: ".fenced", doing: Doing::TakingOver },
];

fn repo() -> RepoSpec {
    RepoSpec::kimi(3, MIB / 4, 3).named("org/model")
}

fn edited(seed: u64) -> impl FnOnce(RepoSpec) -> RepoSpec {
    move |repo| repo.lfs(CHANGED, Content::generated(seed, MIB / 4))
}

/// All cases beside each other: each waits for a lease.
pub fn renames_under_way() {
    std::thread::scope(|scope| {
        let threads: Vec<_> = CASES.iter().map(|case| (case.what, scope.spawn(|| case.play()))).collect();
        let failed: Vec<_> = threads
            .into_iter()
            .filter_map(|(what, thread)| thread.join().err().map(|panic| (what, words_of(&*panic))))
            .collect();
        assert!(failed.is_empty(), "late: {failed:?}");
    });
}

impl Case {
    fn play(&self) {
        let hub = Hub::start(repo());
        let Some(pair) = Pair::machines(&hub) else { return };
        let [_, mount] = pair.mounts.as_ref().unwrap();
        self.arrange(&hub, &pair);
        let held = mount.when(At::op(Op::Rename).path(self.rename).nth(1), Act::Hold);
        let verb = if self.doing == Doing::Removal { "remove" } else { "pull" };
        let late = pair.there.start([verb, "org/model"]);
        mount.wait_for(held, SOON);
        let id = late.outer_id();
        freeze(id);
        // Meanwhile the branch moves on: what the late one has is of no use to anybody.
        if matches!(self.doing, Doing::Update | Doing::Repair) {
            hub.push("org/model", "main", edited(99));
        }
        pair.here.start(["pull", "org/model"]).child.wait(AFTER_A_LEASE).expect_code(0);
        let (directory, repo) = (pair.directory(), hub.repo("org/model"));
        assert_complete(&directory, &repo);
        let before = published(&directory);
        mount.release(held);
        thaw(id);
        let out = late.child.wait(SOON);
        assert_eq!(published(&directory), before, "{}: a late rename changed what is published: {out}", self.what);
        assert_eq!(out.code, Some(15), "{}: {out}", self.what);
        assert_complete(&directory, &repo);
        self.assert_right(&pair, &hub, &directory);
    }

    /// What is there before.
    fn arrange(&self, hub: &Hub, pair: &Pair) {
        let pull = || pair.there.start(["pull", "org/model"]);
        match self.doing {
            Doing::FirstPull => {}
            Doing::Update => {
                pull().child.wait(SOON).expect_code(0);
                hub.push("org/model", "main", edited(98));
            }
            Doing::Removal => drop(pull().child.wait(SOON).expect_code(0)),
            Doing::Repair => {
                pull().child.wait(SOON).expect_code(0);
                flip_byte(&pair.directory().join(CHANGED), 1000);
            }
            Doing::TakingOver => {
                hub.always(Match::cdn(CHANGED), Behaviour::StallAt(MIB / 8));
                let first = pull();
                wait_until("a partial is there", SOON, || {
                    let partial = partial_of(&pair.directory(), CHANGED);
                    partial.is_some_and(|path| path.metadata().is_ok_and(|meta| meta.len() == MIB / 8))
                });
                first.signal(rustix::process::Signal::INT);
                first.child.wait(SOON).expect_code(130);
                let_go(hub);
            }
        }
    }

    fn assert_right(&self, pair: &Pair, hub: &Hub, directory: &Path) {
        let commit = hub.commit("org/model", "main");
        pair.world.args(["gate", "org/model", "--full", "--revision", &commit]).run().expect_code(0);
        assert!(
            !listing(directory).iter().any(|name| name.ends_with(".tmp")),
            "{}: {:?}",
            self.what,
            listing(directory)
        );
    }
}
