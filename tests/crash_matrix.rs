//! The crash matrix (P1 to P4): at each step that a pull or an update asks of the disk, the process is killed,
//! the power is lost, or the step fails. After each: no wrong byte under a final name, no open gate unless
//! everything is right, nothing claimed that was not durable, and the next pull completes.
//!
//! A run takes a sample with every kind of step in it. `MUSTER_MATRIX=all` takes every step with every fault;
//! `MUSTER_MATRIX_SEED` repeats a sample, `MUSTER_MATRIX_THREADS` (6) says how many cases run at a time.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::print_stdout, reason = "figures, and the seed that repeats them")]

mod faultfs;
mod support;

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use faultfs::{Act, At, FaultFs, Kept, Op, Step};
use rustix::io::Errno;
use support::*;

/// The owner's own area: what is written there is written beside the work, and at its end.
const OWNERS: &str = ".muster/";
const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(90);
/// Bytes of an answer before it ends: a file is claimed that often.
const PIECE: u64 = MIB;
const CONNECTIONS: u64 = 2;
/// What may be fetched again for each connection, beside what was not claimed: what was in its socket.
const IN_FLIGHT: u64 = MIB / 2;
const LARGE: &str = "weights-1.bin";
const BLOCK: u64 = 16 * MIB;
/// Bytes of the block that a repair has to bring.
const BAD_BLOCK: u64 = 2 * MIB + 777;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// A large file, claimed several times and in several ranges, and smaller ones; one in a folder.
fn old_repo() -> RepoSpec {
    RepoSpec::new("org/model")
        .lfs(LARGE, Content::generated(1, 5 * MIB + 777))
        .lfs("weights-2.bin", Content::generated(2, MIB / 2))
        .plain("config.json", "{\"of\": \"the old commit\"}")
        .plain("sub/words.txt", "one two three")
        .plain("stays.txt", "the same in both")
}

/// Files that change, go and come.
fn new_repo(repo: RepoSpec) -> RepoSpec {
    repo.lfs(LARGE, Content::generated(3, 4 * MIB + 99))
        .plain("config.json", "{\"of\": \"the new commit\"}")
        .without("weights-2.bin")
        .lfs("sub/weights-3.bin", Content::generated(4, MIB / 2))
}

/// Small files in several folders, which are synced and named in batches.
fn batch_repo() -> RepoSpec {
    (0..18).fold(RepoSpec::new("org/model").plain("config.json", "{}"), |repo, n| {
        let folder = ["", "sub/", "sub/deeper/"][n % 3];
        repo.plain(&format!("{folder}{n}.txt"), &*format!("{n} ").repeat(1000))
    })
}

/// Two blocks, the second of which gets damaged, and smaller files.
fn block_repo() -> RepoSpec {
    RepoSpec::new("org/model")
        .lfs(LARGE, Content::generated(5, BLOCK + BAD_BLOCK))
        .lfs("weights-2.bin", Content::generated(2, MIB / 2))
        .plain("config.json", "{}")
}

/// What the disk is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Pull,
    /// Of small files alone.
    Batch,
    Update,
    Repair,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process is killed.
    Kill,
    /// The power is lost, and with it everything unsynced; or some of it, by this seed.
    Power(Kept),
    /// The step fails, once.
    Fail(Errno),
}

#[derive(Clone, Debug)]
struct Case {
    work: Work,
    at: Where,
    fault: Fault,
    /// Whether the step is done first.
    after: bool,
    /// Whether finished files are read back; else the hash of what came decides, as on a local disk.
    readback: bool,
}

#[derive(Clone, Debug)]
enum Where {
    /// The step with this number.
    Number(u64),
    /// The n-th step of a kind.
    Kind(String, u64),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { work, at, fault, after, readback } = self;
        let (when, how) = (if *after { "after" } else { "at" }, if *readback { ", read back" } else { "" });
        write!(f, "{work:?}{how}, {fault:?} {when} {at:?}")
    }
}

/// One hub, one volume that breaks, one model on it.
struct Stage {
    /// Mounted; none once the power went. It goes before the folder it is mounted on.
    fs: Option<FaultFs>,
    hub: Hub,
    world: Muster,
    old: RepoSpec,
    new: RepoSpec,
    work: Work,
    /// The damaged file that is to be repaired: its inode and what it hashes to.
    damaged: Option<(u64, String)>,
}

impl Stage {
    fn new(work: Work, readback: bool) -> Result<Self, String> {
        let old = match work {
            Work::Batch => batch_repo(),
            Work::Repair => block_repo(),
            Work::Pull | Work::Update => old_repo(),
        };
        let hub = Hub::start(old.clone());
        let world = Muster::on(&hub).env("MUSTER_READBACK", if readback { "always" } else { "never" });
        if work == Work::Update {
            world.args(["pull", "org/model"]).time_limit(SOON).run().expect_code(0);
            hub.push("org/model", "main", new_repo);
            hub.forget();
        }
        let mut damaged = None;
        if work == Work::Repair {
            world.args(["pull", "org/model"]).time_limit(SOON).run().expect_code(0);
            hub.forget();
            let path = world.model("org/model").join(LARGE);
            flip_byte(&path, BLOCK + 9);
            let inode = std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
            damaged = Some((inode, sha256_hex(std::fs::read(&path).unwrap())));
        }
        let new = hub.repo("org/model");
        hub.on(Match::cdn("weights-").get()).then(Behaviour::ShortBody(PIECE)).times(4);
        let fs = FaultFs::over(world.volume())?;
        fs.be_quick();
        Ok(Self { hub, world, fs: Some(fs), old, new, work, damaged })
    }

    fn pull(&self) -> Invocation {
        self.world.args(self.command()).time_limit(SOON)
    }

    /// What asks for the work, and for the rest of it.
    fn command(&self) -> [String; 4] {
        let verb = if self.work == Work::Repair { "repair" } else { "pull" };
        [verb, "org/model", "--connections", &CONNECTIONS.to_string()].map(str::to_owned)
    }

    fn fs(&self) -> &FaultFs {
        self.fs.as_ref().expect("mounted")
    }

    fn missing(&self) -> u64 {
        let is_there = |file: &&FileSpec| is_right(&self.world.model("org/model"), file);
        let there: u64 = self.new.files().filter(is_there).map(FileSpec::size).sum();
        if self.work == Work::Repair {
            return BAD_BLOCK;
        }
        self.new.total_bytes() - there
    }
}

fn is_right(directory: &Path, file: &FileSpec) -> bool {
    std::fs::read(directory.join(&file.path)).is_ok_and(|bytes| sha256_hex(bytes) == file.content.sha256())
}

/// Under a final name are the bytes of one of the two commits, whole.
#[track_caller]
fn assert_names_are_right(stage: &Stage) {
    let directory = stage.world.model("org/model");
    let names = listing(&directory).into_iter().filter(|name| !name.ends_with('/') && !name.starts_with(".muster/"));
    for name in names {
        let path = directory.join(&name);
        let inode = std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
        let sha256 = sha256_hex(std::fs::read(path).unwrap());
        if stage.damaged == Some((inode, sha256.clone())) {
            // The one that was there before, and nobody has written to it.
            continue;
        }
        let mut known = stage.old.files().chain(stage.new.files()).filter(|file| file.path == name);
        assert!(known.any(|file| file.content.sha256() == sha256), "wrong bytes under the final name {name}");
    }
}

/// An open gate is the truth.
#[track_caller]
fn assert_gate_is_right(stage: &Stage) -> bool {
    let ask = || stage.world.args(["gate", "org/model", "--no-remember"]).run();
    let mut out = ask();
    // The kernel tells us of closed files, and of the locks that go with them, a moment after a process ended.
    for _ in 0..100 {
        if out.code != Some(15) {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        out = ask();
    }
    let directory = stage.world.model("org/model");
    let whole = |repo: &RepoSpec| repo.files().all(|file| is_right(&directory, file));
    match out.code {
        Some(0) => assert!(whole(&stage.old) || whole(&stage.new), "the gate opened on a mixture: {out}"),
        Some(10 | 13) => {}
        Some(11) if stage.damaged.is_some() => {}
        _ => panic!("the gate: {out}"),
    }
    out.code == Some(0)
}

/// The model is complete, and nothing of the work is left. Claims whose partial was published may be: a power
/// cut brings them back when their removal was not on the disk yet, and they speak of nothing.
#[track_caller]
fn assert_is_complete(stage: &Stage, said: &Output) {
    let directory = stage.world.model("org/model");
    for file in stage.new.files() {
        assert!(is_right(&directory, file), "{}: {said}", file.path);
    }
    assert!(directory.join(".muster/receipt.json").exists(), "a receipt: {said}");
    assert!(!directory.join(".muster/manifest.pending.json").exists(), "nothing is pending: {said}");
    let left = partials(&directory).into_iter().filter(|path| path.extension().is_none_or(|end| end != "claims"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<PathBuf>::new(), "no partial stays: {said}");
}

/// Bytes that were believed once and are wrong: files set aside, but for those that are right in the old commit.
fn quarantined(stage: &Stage) -> Vec<String> {
    let folder = stage.world.volume().join(".muster/quarantine");
    let is_old = |name: &String| {
        let sha256 = sha256_hex(std::fs::read(folder.join(name)).unwrap());
        let is_damaged = stage.damaged.as_ref().is_some_and(|(_, damaged)| *damaged == sha256);
        is_damaged || stage.old.files().any(|file| file.content.sha256() == sha256)
    };
    listing(&folder).into_iter().filter(|name| !name.ends_with('/') && !is_old(name)).collect()
}

/// As [`Stage::pull`], on the same host after it booted again.
fn pull_on_another_boot(stage: &Stage) -> Invocation {
    let id = stage.world.home().join("boot_id");
    std::fs::write(&id, "00000000-0000-4000-8000-000000000000\n").unwrap();
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let muster = env!("CARGO_BIN_EXE_muster");
    let pull = stage.command();
    let args = ["-m", "sh", "-c", script, id.to_str().unwrap(), muster].map(str::to_owned);
    stage.world.program("unshare", args.into_iter().chain(pull)).time_limit(SOON)
}

/// What a case came to.
struct Outcome {
    /// The step that was met; none when the run took another course and had no such step.
    met: Option<Step>,
    /// How the pull with the fault in it ended.
    code: Option<i32>,
    said: String,
    /// Bytes fetched more than once.
    again: u64,
}

fn play(case: &Case) -> Result<Outcome, String> {
    let stage = Stage::new(case.work, case.readback)?;
    let fs = stage.fs();
    if let Fault::Power(_) = case.fault {
        fs.track_power();
    }
    let act = match (case.fault, case.after) {
        (Fault::Kill, false) => Act::Kill,
        (Fault::Kill, true) => Act::KillAfter,
        (Fault::Power(_), false) => Act::Cut,
        (Fault::Power(_), true) => Act::CutAfter,
        (Fault::Fail(errno), false) => Act::Fail(errno),
        (Fault::Fail(errno), true) => Act::FailAfter(errno),
    };
    let rule = match &case.at {
        Where::Number(number) => fs.when(At::number(*number).nth(1), act),
        Where::Kind(kind, n) => fs.when(At::kind(kind_of, kind).nth(*n), act),
    };
    let before = stage.missing();
    let mut child = stage.pull().spawn();
    if let Fault::Power(_) = case.fault {
        let start = Instant::now();
        while child.is_running() && !fs.is_cut() && start.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(2));
        }
        child.kill();
    }
    let out = child.wait(SOON);
    let met = fs.met(rule);
    stage.hub.cut(Origin::Cdn);
    Ok(judge(case, stage, met, &out, before))
}

/// What has to hold after any fault, and then: that the next pull ends it.
fn judge(case: &Case, mut stage: Stage, met: Option<Step>, out: &Output, before: u64) -> Outcome {
    match case.fault {
        Fault::Fail(errno) => {
            let expected = if [Errno::NOSPC, Errno::DQUOT].contains(&errno) { 16 } else { 18 };
            assert!(out.code == Some(0) || out.code == Some(expected), "the pull: {out}");
        }
        // The last of them comes when the work is over: the pull may end before it is ended, and has to be
        // right then.
        _ if met.as_ref().is_some_and(|step| !step.path.starts_with(OWNERS)) => {
            assert!(out.code != Some(0), "it was to be ended: {out}");
        }
        _ if met.is_some() => {}
        _ => assert!(out.code == Some(0), "nothing was wrong: {out}"),
    }
    match case.fault {
        Fault::Power(kept) => drop(stage.fs.take().map(|fs| fs.after_the_cut(kept))),
        _ => stage.fs().lift_all(),
    }
    assert_names_are_right(&stage);
    assert_gate_is_right(&stage);
    let next = if let Fault::Power(_) = case.fault { pull_on_another_boot(&stage) } else { stage.pull() };
    let next = next.run();
    assert!(next.code == Some(0), "the next pull: {next}");
    assert_is_complete(&stage, &next);
    assert!(assert_gate_is_right(&stage), "the gate is open at the end");
    assert_eq!(quarantined(&stage), Vec::<String>::new(), "something that was believed was wrong: {next}");
    let again = stage.hub.total_body_bytes().saturating_sub(before);
    let most = (PIECE + IN_FLIGHT) * CONNECTIONS;
    assert!(again <= most, "{again} bytes were fetched again: {next}");
    Outcome { met, code: out.code, said: out.stderr.clone(), again }
}

/// A step without what is different in each run.
fn kind_of(op: Op, path: &str) -> String {
    if path.contains(".muster/state") {
        // A store that anything may happen to has its own drills.
        return format!("{op:?} store");
    }
    let paths: Vec<_> =
        path.split(" -> ").map(|path| path.split('/').map(word).collect::<Vec<_>>().join("/")).collect();
    format!("{op:?} {}", paths.join(" -> "))
}

fn word(name: &str) -> String {
    if let Some(stem) = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp")) {
        return format!("{}~", word(stem.rsplit_once('.').map_or(stem, |(stem, _)| stem)));
    }
    let is_hex = |text: &str, len: usize| text.len() == len && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    match name {
        _ if name.ends_with(".incomplete") => "PARTIAL".to_owned(),
        _ if name.ends_with(".fenced") => "FENCED".to_owned(),
        _ if name.ends_with(".claims") => "CLAIMS".to_owned(),
        _ if is_hex(name, 40) => "COMMIT".to_owned(),
        _ if name.strip_suffix(".json").is_some_and(|n| n.parse::<u64>().is_ok()) => "EPOCH.json".to_owned(),
        _ => name.to_owned(),
    }
}

/// The steps of a run in which nothing breaks.
fn steps_of(work: Work) -> Result<Vec<Step>, String> {
    let stage = Stage::new(work, true)?;
    stage.pull().run().expect_code(0);
    assert_complete(&stage.world.model("org/model"), &stage.new);
    Ok(stage.fs().log())
}

fn kinds(steps: &[Step]) -> BTreeMap<String, u64> {
    let mut kinds = BTreeMap::new();
    for step in steps {
        *kinds.entry(kind_of(step.op, &step.path)).or_default() += 1;
    }
    kinds
}

fn is_sync(op: Op) -> bool {
    matches!(op, Op::Fsync | Op::FsyncDir)
}

fn errno(chance: &mut fastrand::Rng, op: Op) -> Errno {
    let of = if is_sync(op) {
        &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::STALE][..]
    } else {
        &[Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::ROFS][..]
    };
    of[chance.usize(0..of.len())]
}

/// Every kind of step with a fault each, or every step with every fault.
fn cases(work: Work, steps: &[Step], all: bool, chance: &mut fastrand::Rng) -> Vec<Case> {
    let mut cases = Vec::new();
    if all {
        for step in steps {
            let some = Kept::Some(chance.u64(..));
            let faults =
                [Fault::Kill, Fault::Power(Kept::Nothing), Fault::Power(some), Fault::Fail(errno(chance, step.op))];
            let at = || Where::Number(step.number);
            let readback = chance.bool();
            cases.extend(faults.map(|fault| Case { work, at: at(), fault, after: false, readback }));
        }
        return cases;
    }
    for (kind, count) in kinds(steps) {
        let op = steps.iter().find(|step| kind_of(step.op, &step.path) == kind).unwrap().op;
        let fault = match chance.u8(0..4) {
            0 => Fault::Kill,
            1 => Fault::Power(Kept::Nothing),
            2 => Fault::Power(Kept::Some(chance.u64(..))),
            _ => Fault::Fail(errno(chance, op)),
        };
        let at = Where::Kind(kind, chance.u64(1..=count));
        cases.push(Case { work, at, fault, after: chance.bool(), readback: chance.bool() });
    }
    cases
}

/// Plays all cases, several at a time; what went wrong, in words.
fn play_all(cases: &[Case], threads: usize) -> (Vec<(Case, Outcome)>, Vec<String>) {
    let (next, wrong, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let so_far = done.lock().unwrap().len();
                    if so_far > 0 && so_far.is_multiple_of(100) {
                        println!("{so_far} of {} cases", cases.len());
                    }
                    let why = match catch_unwind(AssertUnwindSafe(|| play(case))) {
                        Ok(Ok(outcome)) => {
                            done.lock().unwrap().push((case.clone(), outcome));
                            continue;
                        }
                        Ok(Err(why)) => why,
                        Err(panic) => {
                            let said = panic.downcast_ref::<String>().cloned();
                            said.or_else(|| panic.downcast_ref::<&str>().map(|&said| said.to_owned()))
                                .unwrap_or_default()
                        }
                    };
                    // A run of all cases takes long, and may be ended before it ends.
                    println!("wrong: {case}: {why}");
                    wrong.lock().unwrap().push(format!("{case}: {why}"));
                }
            });
        }
    });
    (done.into_inner().unwrap(), wrong.into_inner().unwrap())
}

fn tell(done: &[(Case, Outcome)], took: Duration) {
    let met = done.iter().filter(|(_, outcome)| outcome.met.is_some()).count();
    println!("{} cases, {met} with the fault met, in {took:.0?}", done.len());
    for (name, is) in [
        ("killed", &(|fault| matches!(fault, Fault::Kill)) as &dyn Fn(Fault) -> bool),
        ("power lost, nothing kept", &|fault| fault == Fault::Power(Kept::Nothing)),
        ("power lost, some kept", &|fault| matches!(fault, Fault::Power(Kept::Some(_)))),
        ("failed", &|fault| matches!(fault, Fault::Fail(_))),
    ] {
        let these: Vec<_> = done.iter().filter(|(case, outcome)| is(case.fault) && outcome.met.is_some()).collect();
        let again: Vec<u64> = these.iter().map(|(_, outcome)| outcome.again).collect();
        let (most, sum) = (again.iter().max().copied().unwrap_or(0), again.iter().sum::<u64>());
        let survived = these.iter().filter(|(_, outcome)| outcome.code == Some(0)).count();
        let mean = sum / (again.len() as u64).max(1);
        println!(
            "{name}: {} cases, {survived} ended well at once; again at most {most} bytes, {mean} on average",
            these.len()
        );
    }
}

// class: looks-complete, wrong-bytes, progress-lost
#[test]
fn a_fault_at_any_step_costs_no_truth_and_the_next_pull_ends_it() {
    let all = std::env::var("MUSTER_MATRIX").is_ok_and(|which| which == "all");
    let clock = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    let seed = number("MUSTER_MATRIX_SEED").unwrap_or_else(clock);
    let threads = number("MUSTER_MATRIX_THREADS").map_or(6, |threads| usize::try_from(threads).unwrap());
    println!("MUSTER_MATRIX_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut every = Vec::new();
    for work in [Work::Pull, Work::Batch, Work::Update, Work::Repair] {
        let steps = match steps_of(work) {
            Ok(steps) => steps,
            Err(why) => return skip(&why),
        };
        let kinds = kinds(&steps);
        println!("{work:?}: {} steps of {} kinds", steps.len(), kinds.len());
        if std::env::var("MUSTER_MATRIX_KINDS").is_ok() {
            for (kind, count) in &kinds {
                println!("  {count:4} {kind}");
            }
        }
        every.extend(cases(work, &steps, all, &mut chance));
    }
    chance.shuffle(&mut every);
    let started = Instant::now();
    let (done, wrong) = play_all(&every, threads);
    tell(&done, started.elapsed());
    if std::env::var("MUSTER_MATRIX_KINDS").is_ok() {
        for (case, outcome) in &done {
            let last = outcome.said.lines().rfind(|line| line.contains("error")).unwrap_or_default();
            println!("{case}: code {:?}, again {}, {last}", outcome.code, outcome.again);
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases, seed {seed}:\n{}", wrong.len(), every.len(), wrong.join("\n\n"));
    let met = done.iter().filter(|(_, outcome)| outcome.met.is_some()).count();
    assert!(met * 10 >= done.len() * 8, "{met} of {} faults were met: the runs differ too much", done.len());
}

// class: looks-complete, progress-lost
#[test]
fn what_a_pull_called_complete_is_complete_after_a_power_cut() {
    for (work, readback) in
        [(Work::Batch, false), (Work::Batch, true), (Work::Pull, false), (Work::Update, false), (Work::Repair, false)]
    {
        let mut stage = match Stage::new(work, readback) {
            Ok(stage) => stage,
            Err(why) => return skip(&why),
        };
        stage.fs().track_power();
        stage.pull().run().expect_code(0);
        drop(stage.fs.take().map(|fs| fs.after_the_cut(Kept::Nothing)));
        let directory = stage.world.model("org/model");
        for file in stage.new.files() {
            assert!(is_right(&directory, file), "{work:?}: {} is gone", file.path);
        }
        assert!(assert_gate_is_right(&stage), "{work:?}");
    }
}
