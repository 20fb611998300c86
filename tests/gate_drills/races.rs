//! A gate that races with an update launches on one commit or the other, never on a mixture.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::support::*;

const SOON: Duration = Duration::from_secs(60);
const REPO: &str = "org/model";
/// Gates beside one update, at most.
const GATES_MAX: usize = 40;
/// Pulls until one is not kept out by a launcher, at most.
const PULLS_MAX: usize = 40;

/// What a launcher does: it compares every file, and that there is no other, with what the commit that it was
/// told has.
const LAUNCHER: &str = r#"cd "$1" && sha256sum --quiet --strict -c "$2/$MUSTER_COMMIT.sums" &&
find . -type f -not -path './.muster/*' | LC_ALL=C sort | cmp - "$2/$MUSTER_COMMIT.names" &&
echo "launched $MUSTER_COMMIT""#;

/// A repository of two commits: files that stay, change, come and go, none by its size.
fn two_commits() -> RepoSpec {
    let file = |n: u64, seed| Content::generated(seed + n, 3000 + n);
    let common = (0..4).fold(RepoSpec::new(REPO), |repo, n| repo.lfs(&format!("same-{n}.bin"), file(n, 100)));
    let first = (0..8).fold(common, |repo, n| repo.lfs(&format!("folder/changes-{n}.bin"), file(n, 200)));
    let first = first.lfs("only-first.bin", file(0, 300)).plain("config.json", b"{\"commit\": 1}".to_vec());
    let second =
        (0..8).fold(first.branch("first"), |repo, n| repo.lfs(&format!("folder/changes-{n}.bin"), file(n, 400)));
    let second = second.without("only-first.bin").lfs("only-second.bin", file(0, 500));
    second.plain("config.json", b"{\"commit\": 2}".to_vec()).branch("second")
}

/// Writes down what each commit has.
fn facts(hub: &Hub, world: &Muster) -> (PathBuf, [String; 2]) {
    let folder = world.home().join("facts");
    fs::create_dir(&folder).unwrap();
    let commits = ["first", "second"].map(|branch| {
        let repo = hub.repo(REPO);
        let commit = hub.commit(REPO, branch);
        let tree = repo.tree_at(&commit).unwrap();
        let sums: Vec<_> = tree.values().map(|file| format!("{}  {}\n", file.content.sha256(), file.path)).collect();
        let mut names: Vec<_> = tree.keys().map(|path| format!("./{path}\n")).collect();
        names.sort();
        fs::write(folder.join(format!("{commit}.sums")), sums.concat()).unwrap();
        fs::write(folder.join(format!("{commit}.names")), names.concat()).unwrap();
        commit
    });
    (folder, commits)
}

// class: gate, revision
#[test]
fn a_gate_that_races_with_an_update_launches_on_one_commit_or_the_other() {
    let (races, seed) = (number("MUSTER_DRILL_RACES").unwrap_or(20), seed("MUSTER_DRILL_SEED"));
    println!("MUSTER_DRILL_RACES={races} MUSTER_DRILL_SEED={seed}");
    let hub = Hub::start(two_commits());
    let world = Muster::on(&hub);
    let (folder, commits) = facts(&hub, &world);
    let mut chance = fastrand::Rng::with_seed(seed);
    world.args(["pull", REPO, "--revision", "first"]).run().expect_code(0);
    let gate = || world.args(["gate", REPO, "--no-remember", "--", "sh", "-c", LAUNCHER, "sh", "{}"]).arg(&folder);
    let mut ended: BTreeMap<String, u64> = BTreeMap::new();
    let mut tell = |out: &Output| {
        let launched = commits.iter().position(|commit| out.stdout.contains(&format!("launched {commit}")));
        let end = match (out.code, launched) {
            (Some(0), Some(at)) => format!("launched on commit {}", at + 1),
            (Some(code @ (10 | 15 | 18)), None) => format!("closed with {code}"),
            _ => panic!("{out}"),
        };
        *ended.entry(end).or_default() += 1;
    };
    for race in 0..races {
        let target = if race % 2 == 0 { "second" } else { "first" };
        let pull = || world.args(["pull", REPO, "--revision", target]);
        let mut update = pull().spawn();
        let mut is_over = false;
        for _ in 0..GATES_MAX {
            if is_over {
                break;
            }
            // Somewhere in the update, which takes about so long.
            std::thread::sleep(Duration::from_micros(chance.u64(..40_000)));
            is_over = !update.is_running();
            tell(&gate().run());
        }
        let out = update.wait(SOON);
        assert!(matches!(out.code, Some(0 | 15)), "{out}");
        let mut done = out.code == Some(0);
        for _ in 0..PULLS_MAX {
            if done {
                break;
            }
            done = pull().run().code == Some(0);
        }
        assert!(done, "with no launcher in its way the update gets there");
        let out = gate().run().expect_code(0);
        assert!(out.stdout.contains(&commits[usize::from(target == "second")]), "{out}");
    }
    println!("{races} races: {ended:?}");
    assert!(commits.iter().enumerate().all(|(at, _)| ended.contains_key(&format!("launched on commit {}", at + 1))));
}
