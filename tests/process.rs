//! The process and what surrounds it: signals, limits, closed outputs, modes, users (P4, P8).

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Of the bytes that a held hub lets go, so many at most are of its API.
const SLACK: u64 = 128 << 10;
const BINARY: &str = env!("CARGO_BIN_EXE_muster");

fn shards(count: usize, bytes: u64) -> RepoSpec {
    RepoSpec::kimi(count, bytes, 4).named("org/model")
}

fn pull(world: &Muster) -> Invocation {
    world.args(["pull", "org/model"])
}

/// `muster` with these arguments at the end of a shell's line, as `"$@"`.
fn in_shell(world: &Muster, line: &str, args: &[&str]) -> Invocation {
    let all = ["-c", line, "sh", BINARY].into_iter().chain(args.iter().copied());
    world.program("sh", all.map(str::to_owned).collect::<Vec<_>>())
}

/// Starts a pull and waits until it has what the hub lets go: half of the bytes.
fn held_at_half(hub: &Hub, world: &Muster, repo: &RepoSpec, start: impl FnOnce() -> Child) -> Child {
    hub.hold_after(repo.total_bytes() / 2);
    let child = start();
    world.wait_for_received("org/model", repo.total_bytes() / 2 - SLACK, SOON);
    child
}

/// The next pull fetches only what the last one had not.
#[track_caller]
fn assert_goes_on(hub: &Hub, world: &Muster, repo: &RepoSpec) {
    hub.cut(Origin::Cdn);
    hub.release();
    pull(world).run().expect_code(0);
    assert_complete(&world.model("org/model"), repo);
    let sent = hub.total_body_bytes();
    assert!(sent <= repo.total_bytes() + MIB, "{sent} of {} bytes", repo.total_bytes());
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap_or_else(|e| panic!("{}: {e}", path.display())).mode() & 0o7777
}

// ---- signals -----------------------------------------------------------------------------------

// class: progress-lost
#[test]
fn the_end_of_the_terminal_ends_a_pull_like_a_signal_with_everything_received_claimed() {
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let mut child = held_at_half(&hub, &world, &repo, || pull(&world).spawn());
    child.signal(Signal::HUP);
    let out = child.wait(Duration::from_secs(20)).expect_code(129);
    assert!(out.stdout.is_empty(), "{out}");
    assert_goes_on(&hub, &world, &repo);
}

#[test]
fn a_pull_under_nohup_outlives_its_terminal() {
    let repo = shards(4, 2 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let mut child = held_at_half(&hub, &world, &repo, || world.program("nohup", [BINARY, "pull", "org/model"]).spawn());
    child.signal(Signal::HUP);
    std::thread::sleep(Duration::from_millis(300));
    assert!(child.is_running());
    hub.release();
    child.wait(SOON).expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
}

#[test]
fn a_detached_pull_outlives_its_terminal() {
    let repo = shards(4, 2 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    hub.hold_after(repo.total_bytes() / 2);
    let out = world.args(["pull", "org/model", "--detach", "--json"]).run().expect_code(0);
    let pid = i32::try_from(out.json()["pid"].as_i64().unwrap()).unwrap();
    let pid = Pid::from_raw(pid).unwrap();
    hub.wait_for_bytes(repo.total_bytes() / 2 - SLACK, SOON);
    let session = |pid| rustix::process::getsid(Some(pid)).unwrap();
    assert_eq!(session(pid), pid, "a session of its own");
    kill_process(pid, Signal::HUP).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    hub.release();
    let receipt = world.model("org/model").join(".muster/receipt.json");
    wait_until("the receipt", SOON, || receipt.exists());
    wait_until("the end of the process", SOON, || world.processes().is_empty());
    assert_complete(&world.model("org/model"), &repo);
}

// class: words, progress-lost
#[test]
fn a_second_interrupt_ends_a_pull_at_once_and_the_next_one_goes_on() {
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let mut child = held_at_half(&hub, &world, &repo, || pull(&world).spawn());
    child.interrupt();
    child.interrupt();
    let asked = Instant::now();
    child.wait(SOON).expect_code(130);
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    hub.cut(Origin::Cdn);
    hub.release();
    pull(&world).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
}

// class: words, stalls
#[test]
fn signals_end_a_pull_that_waits_for_an_answer() {
    let hub = Hub::start(shards(2, MIB));
    hub.mute(Origin::Hub, true);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let world = Muster::on(&hub);
        let mut child = pull(&world).spawn();
        wait_until("it connects", SOON, || hub.open_connections(Origin::Hub) > 0);
        let asked = Instant::now();
        child.signal(signal);
        child.wait(SOON).expect_code(code);
        assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
        assert_eq!(listing(world.volume()), Vec::<String>::new());
        hub.cut(Origin::Hub);
        wait_until("it is gone", SOON, || hub.open_connections(Origin::Hub) == 0);
    }
}

// class: looks-complete, progress-lost
#[test]
fn a_stopped_pull_goes_on_when_it_is_continued() {
    let repo = shards(8, 4 * MIB);
    let hub = Hub::start(repo.clone());
    hub.pace(8 * MIB);
    let world = Muster::on(&hub);
    let mut child = pull(&world).spawn();
    hub.wait_for_bytes(4 * MIB, SOON);
    child.signal(Signal::STOP);
    std::thread::sleep(Duration::from_secs(4));
    assert!(!world.model("org/model").join(".muster/receipt.json").exists(), "it stood still");
    child.signal(Signal::CONT);
    child.wait(SOON).expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    assert!(hub.total_body_bytes() <= repo.total_bytes() + MIB, "{} bytes", hub.total_body_bytes());
}

// class: progress-lost, writers
#[test]
fn a_pull_stopped_for_longer_than_its_lease_goes_on_when_nobody_took_the_volume() {
    let repo = shards(8, 6 * MIB);
    let hub = Hub::start(repo.clone());
    hub.pace(3 * MIB);
    let world = Muster::on(&hub);
    let mut child = pull(&world).spawn();
    hub.wait_for_bytes(8 * MIB, SOON);
    child.signal(Signal::STOP);
    // A lease is 30 s by the clock of whoever watches.
    std::thread::sleep(Duration::from_secs(33));
    let sent = hub.total_body_bytes();
    child.signal(Signal::CONT);
    child.wait(SOON).expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    assert!(sent < repo.total_bytes(), "it stood still");
    assert!(hub.total_body_bytes() <= repo.total_bytes() + MIB, "{} bytes", hub.total_body_bytes());
}

// class: words
#[test]
fn a_daemon_reloads_at_a_hangup_and_ends_at_once_at_a_second_signal() {
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    for (second, code) in [(None, 0), (Some(Signal::INT), 130), (Some(Signal::TERM), 143)] {
        let world = Muster::on(&hub);
        let mut owner = Owner::start(&world);
        hub.hold_after(repo.total_bytes() / 2);
        assert_eq!(owner.api.submit(&hub, "org/model", "org/model", None).0, 202);
        let sent = hub.total_body_bytes();
        hub.wait_for_bytes(sent + repo.total_bytes() / 2 - SLACK, SOON);
        for _ in 0..3 {
            owner.process.signal(Signal::HUP);
        }
        assert_eq!(owner.api.get("/healthz").0, 200, "it goes on");
        owner.process.terminate();
        if let Some(signal) = second {
            owner.process.signal(signal);
        }
        let out = owner.process.wait(SOON);
        // Two signals of one kind that come at once are one, and the first may end it before the second.
        let codes = [Some(0), Some(143), Some(code)];
        assert!(if second.is_some() { codes.contains(&out.code) } else { out.code == Some(0) }, "{out}");
        hub.cut(Origin::Cdn);
        hub.release();
        pull(&world).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
    }
}

// class: progress-lost
#[test]
fn a_pull_outlives_its_parent() {
    let repo = shards(4, 2 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    hub.hold_after(repo.total_bytes() / 2);
    in_shell(&world, "\"$@\" >out 2>err & echo $!", &["pull", "org/model"]).run().expect_code(0);
    hub.wait_for_bytes(repo.total_bytes() / 2 - SLACK, SOON);
    hub.release();
    wait_until("the end of the process", SOON, || world.processes().is_empty());
    assert_complete(&world.model("org/model"), &repo);
    let said = std::fs::read_to_string(world.home().join("out")).unwrap();
    assert_eq!(said.trim(), world.model("org/model").display().to_string());
}

// ---- limits ------------------------------------------------------------------------------------

// class: bounds
#[test]
fn few_descriptors_mean_fewer_connections_not_failures() {
    let repo = (0..200)
        .fold(RepoSpec::new("org/model"), |repo, at| repo.lfs(&format!("{at:03}.bin"), Content::generated(at, 20_000)));
    let hub = Hub::start(repo.clone());
    for args in [&["pull", "org/model", "--connections", "64"][..], &["pull", "org/model"]] {
        let world = Muster::on(&hub);
        let out = in_shell(&world, "ulimit -n 64; exec \"$@\"", args).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        assert_eq!(out.stderr.contains("ulimit -n"), args.len() > 2, "it says so where more was asked for: {out}");
        assert!(!out.stderr.contains("os error"), "{out}");
    }
    assert!(hub.peak_connections(Origin::Cdn) <= 12, "{}", hub.peak_connections(Origin::Cdn));
}

// class: bounds
#[test]
fn no_descriptors_at_all_are_named_as_such() {
    let repo = shards(2, MIB);
    let hub = Hub::start(repo);
    let world = Muster::on(&hub);
    let out = in_shell(&world, "ulimit -n 16; exec \"$@\"", &["pull", "org/model"]).run();
    assert_ne!(out.code, Some(0), "{out}");
    assert!(out.stderr.contains("open files"), "{out}");
}

// class: bounds
#[test]
fn memory_stays_small_whatever_the_size_of_the_model() {
    let repo = shards(24, 8 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let mut child = pull(&world).spawn();
    let (pid, mut peak, mut own) = (child.id(), 0, 0);
    while child.is_running() {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let figure = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0)
        };
        (peak, own) = (peak.max(figure("VmHWM:")), own.max(figure("RssAnon:")));
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait(SOON).expect_code(0);
    println!("peak {} MiB, {} MiB of it not backed by files", peak / 1024, own / 1024);
    // What is backed by files is this unoptimised program, for the most part; `benches/compare` holds the whole of
    // the real one to 64 MiB.
    assert!(own > 0 && own <= 48 << 10, "{own} KiB of {peak}");
}

// class: bounds
#[test]
fn a_pull_works_with_little_address_space_and_little_memory() {
    let repo = shards(12, 6 * MIB);
    let hub = Hub::start(repo.clone());
    // Of addresses, stacks of threads included; and of memory that may be written to.
    for limit in ["ulimit -v 1500000", "ulimit -d 400000"] {
        let world = Muster::on(&hub);
        in_shell(&world, &format!("{limit}; exec \"$@\""), &["pull", "org/model"]).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
    }
}

/// A control group that gives its processes so many bytes of memory, page cache included.
struct Group(PathBuf);

impl Group {
    /// None where groups cannot be made.
    fn new(bytes: u64) -> Option<Self> {
        let name = format!("muster-test-{:08x}", fastrand::u32(..));
        let limits = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        limits.into_iter().find_map(|(root, limit)| {
            let group = Self(Path::new(root).join(&name));
            std::fs::create_dir(&group.0).ok()?;
            let limited =
                group.0.join(limit).exists() && std::fs::write(group.0.join(limit), bytes.to_string()).is_ok();
            limited.then_some(group)
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

// class: bounds
#[test]
fn a_pull_in_a_small_container_needs_no_more_than_it_has() {
    let Some(group) = Group::new(80 * MIB) else {
        return skip("no memory group can be made here");
    };
    let repo = shards(24, 10 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let line = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", group.0.display());
    in_shell(&world, &line, &["pull", "org/model", "--connections", "16"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    wait_until("the group is empty", SOON, || {
        std::fs::read_to_string(group.0.join("cgroup.procs")).unwrap().is_empty()
    });
}

// class: bounds
#[test]
fn sixty_four_connections_and_twenty_thousand_files_stay_within_their_bounds() {
    const FILES: u64 = 20_000;
    const OPEN: usize = 64;
    let small = (0..FILES - OPEN as u64).fold(RepoSpec::new("org/many"), |repo, at| {
        repo.plain(&format!("data/{:03}/{at:05}.json", at / 100), format!("{{\"at\": {at}}}"))
    });
    let repo = (0..OPEN as u64).fold(small, |repo, at| {
        repo.lfs(&format!("model-{:05}-of-00064.safetensors", at + 1), Content::generated(at, 3 * MIB))
    });
    let hub = Hub::start(repo.clone());
    // The Hub's own quota of 3,000 files in five minutes would be all that is measured.
    hub.quota("resolvers", 1_000_000, Duration::from_secs(300));
    hub.page_size(5000);
    hub.pace(MIB / 2);
    let world = Muster::on(&hub);
    let mut child = world.args(["pull", "org/many", "--connections", "64"]).spawn();
    let (pid, started, mut peak, mut files, mut open) = (child.id(), Instant::now(), 0, 0, 0);
    while child.is_running() && started.elapsed() < Duration::from_secs(600) {
        // Less the program itself: a debug build's text and tables are larger than what it needs.
        peak = figure(pid, "VmHWM").saturating_sub(figure(pid, "RssFile")).max(peak);
        files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count).max(files);
        open = hub.open_connections(Origin::Cdn).max(open);
        if open >= OPEN {
            hub.unpaced();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = child.wait(SOON).expect_code(0);
    println!("{open} connections at once, peak {} MiB, {files} descriptors, {:?}", peak / 1024, out.took);
    assert_complete(&world.model("org/many"), &repo);
    assert!(open >= OPEN, "{open} connections");
    assert!(peak > 0 && peak <= 200 << 10, "{peak} KiB");
    assert!(files <= 400, "{files} descriptors");
}

/// A figure of a running process, in KiB.
fn figure(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

// ---- clocks ------------------------------------------------------------------------------------

/// `muster` in a time namespace of its own, whose clocks since boot are ahead by so many seconds.
fn ahead(world: &Muster, seconds: u64, args: &[&str]) -> Invocation {
    let offset = seconds.to_string();
    let clocks = ["--time", "--monotonic", &offset, "--boottime", &offset, BINARY];
    world.program("unshare", clocks.into_iter().chain(args.iter().copied()).map(str::to_owned).collect::<Vec<_>>())
}

// class: progress-lost, writers
#[test]
fn clocks_that_jump_between_two_pulls_cost_nothing() {
    const YEAR: u64 = 365 * 24 * 3600;
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    if !is_root() || ahead(&Muster::on(&hub), 1, &["--version"]).run().code != Some(0) {
        return skip("no time namespace without the right to make one");
    }
    for (first, second) in [(YEAR, 0), (0, YEAR), (YEAR, 1)] {
        let world = Muster::on(&hub);
        let before = hub.total_body_bytes();
        let args = ["pull", "org/model"];
        let mut child = held_at_half(&hub, &world, &repo, || ahead(&world, first, &args).spawn());
        child.kill();
        drop(child);
        hub.cut(Origin::Cdn);
        hub.release();
        // Not waited for: its process is gone, whatever the clocks say.
        ahead(&world, second, &["pull", "org/model", "--no-wait"]).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        let sent = hub.total_body_bytes() - before;
        assert!(sent <= repo.total_bytes() + 2 * MIB, "{sent} of {} bytes", repo.total_bytes());
        ahead(&world, first, &["gate", "org/model"]).run().expect_code(0);
    }
}

// class: writers
#[test]
fn an_owner_with_other_clocks_is_alive_and_is_handed_the_job() {
    let repo = shards(6, 4 * MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    if !is_root() || ahead(&world, 1, &["--version"]).run().code != Some(0) {
        return skip("no time namespace without the right to make one");
    }
    let first = held_at_half(&hub, &world, &repo, || ahead(&world, 1_000_000, &["pull", "org/model"]).spawn());
    let status = world.args(["status", "--json"]).run().expect_code(0).json();
    assert_eq!(status["daemon"]["running"], true, "{status}");
    let second = pull(&world).spawn();
    hub.release();
    for child in [first, second] {
        child.wait(SOON).expect_code(0);
    }
    assert_complete(&world.model("org/model"), &repo);
    assert!(hub.total_body_bytes() <= repo.total_bytes() + MIB, "{} bytes", hub.total_body_bytes());
}

// class: looks-complete, writers
#[test]
fn times_of_another_century_are_hashed_and_waited_for_by_nobody() {
    let repo = shards(4, 2 * MIB);
    let hub = Hub::start(repo.clone());
    for (time, year) in [("2099-01-01T00:00:00Z", 2099), ("1975-01-01T00:00:00Z", 1975)] {
        let world = Muster::on(&hub);
        let before = hub.total_body_bytes();
        let mut child = held_at_half(&hub, &world, &repo, || pull(&world).spawn());
        child.kill();
        drop(child);
        hub.cut(Origin::Cdn);
        hub.release();
        // What a clock that was wrong then leaves behind: a heartbeat, and the times of every file.
        let owners = world.volume().join(".muster/owners/1.json");
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&owners).unwrap()).unwrap();
        (record["beat_at"], record["started_at"]) = (time.into(), time.into());
        std::fs::write(&owners, record.to_string()).unwrap();
        let all = "find . -exec touch --no-dereference --date \"$0\" {} +";
        let touch = || world.program("sh", ["-c", all, time]).current_dir(world.volume()).run().expect_code(0);
        touch();
        world.args(["status"]).run().expect_code(0);
        world.args(["pull", "org/model", "--no-wait"]).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        let sent = hub.total_body_bytes() - before;
        assert!(sent <= repo.total_bytes() + 2 * MIB, "{year}: {sent} of {} bytes", repo.total_bytes());
        touch();
        let out = world.args(["gate", "org/model", "--no-remember"]).run().expect_code(0);
        assert!(out.all().contains("hash"), "{year}: {out}");
        hub.forget();
        pull(&world).run().expect_code(0);
        assert_eq!(hub.total_body_bytes(), 0);
    }
}

// ---- outputs -----------------------------------------------------------------------------------

// class: words
#[test]
fn an_output_that_nobody_reads_is_no_failure_and_one_that_cannot_be_written_is_told() {
    let repo = shards(2, MIB);
    let hub = Hub::start(repo.clone());
    let code = |world: &Muster| std::fs::read_to_string(world.home().join("code")).unwrap().trim().to_owned();
    for (line, wanted) in [
        ("\"$@\" >&-; echo $? >code", None),
        ("{ \"$@\"; echo $? >code; } | head -c0", Some("0")),
        ("{ \"$@\" 2>&1; echo $? >code; } | head -c0", Some("0")),
        ("\"$@\" 2>&-; echo $? >code", Some("0")),
        ("\"$@\" 2>/dev/full; echo $? >code", Some("0")),
        ("\"$@\" <&- >&- 2>&-; echo $? >code", None),
        ("\"$@\" >/dev/full; echo $? >code", Some("1")),
    ] {
        let world = Muster::on(&hub);
        let out = in_shell(&world, line, &["pull", "org/model"]).run();
        assert!(!out.all().contains("panic") && !out.all().contains("defect"), "{line}: {out}");
        assert_complete(&world.model("org/model"), &repo);
        match wanted {
            Some(wanted) => assert_eq!(code(&world), wanted, "{line}: {out}"),
            None => assert!(["0", "1"].contains(&code(&world).as_str()), "{line}: {out}"),
        }
        if wanted == Some("1") {
            assert!(out.stderr.contains("cannot write the result to stdout"), "{out}");
        }
        world.args(["gate", "org/model"]).run().expect_code(0);
    }
}

// class: words
#[test]
fn a_full_pipe_holds_up_the_words_and_not_the_work() {
    let repo = shards(2, MIB);
    let hub = Hub::start(repo.clone());
    // A reader that does not read, and a pipe without room.
    let full = "mkfifo pipe; sleep 100 <pipe >/dev/null 2>&1 & exec 3>pipe; head -c 65536 /dev/zero >&3; ";
    for (line, verbose) in [("exec \"$@\" 1>&3 3>&-", false), ("exec \"$@\" 2>&3 3>&-", true)] {
        let world = Muster::on(&hub);
        let args: &[_] = if verbose { &["pull", "org/model", "--quiet"] } else { &["pull", "org/model"] };
        let mut child = in_shell(&world, &format!("{full}{line}"), args).spawn();
        let receipt = world.model("org/model").join(".muster/receipt.json");
        wait_until("the receipt", SOON, || receipt.exists());
        assert_complete(&world.model("org/model"), &repo);
        if verbose {
            child.wait(SOON).expect_code(0);
        } else {
            // It waits for its reader, as every program does, and can be ended.
            std::thread::sleep(Duration::from_millis(500));
            assert!(child.is_running());
            child.terminate();
            std::thread::sleep(Duration::from_millis(100));
            child.terminate();
            child.wait(Duration::from_secs(10)).expect_code(143);
        }
        world.args(["gate", "org/model"]).run().expect_code(0);
    }
}

// class: words
#[test]
fn a_watcher_whose_reader_is_gone_ends_and_a_daemon_whose_log_is_full_works() {
    let repo = shards(2, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    for line in ["exec \"$@\" 2>/dev/full", "exec \"$@\" 2>&-"] {
        let mut daemon = in_shell(&world, line, &["daemon"]).spawn();
        let owner = world.volume().join(".muster/owners");
        wait_until("it owns the volume", SOON, || {
            let said = world.args(["status", "--json"]).run();
            said.code == Some(0) && said.json()["daemon"]["running"] == true
        });
        pull(&world).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        let out = in_shell(&world, "\"$@\" | head -n1; echo ended", &["status", "--watch", "--json"]).spawn();
        // A line comes with each change: one that nobody reads ends it.
        std::thread::sleep(Duration::from_millis(500));
        world.args(["remove", "org/model", "--now"]).run().expect_code(0);
        let out = out.wait(SOON).expect_code(0);
        assert!(out.stdout.contains("ended") && !out.all().contains("panic"), "{out}");
        assert!(daemon.is_running() && owner.exists());
        daemon.terminate();
        daemon.wait(SOON).expect_code(0);
    }
}

// class: words
#[test]
fn a_watcher_that_cannot_write_says_so_and_ends() {
    let repo = shards(2, MIB);
    let hub = Hub::start(repo);
    let world = Muster::on(&hub);
    pull(&world).run().expect_code(0);
    let out = in_shell(&world, "exec \"$@\" >/dev/full", &["status", "--watch"]).run().expect_code(1);
    assert!(out.stderr.contains("stdout"), "{out}");
}

// ---- modes and users ---------------------------------------------------------------------------

// class: permissions
#[test]
fn modes_follow_the_umask_where_they_should_and_nowhere_else() {
    let repo = shards(2, MIB).plain("sub/x.json", "{}");
    let hub = Hub::start(repo.clone());
    for (umask, file, folder) in [("077", 0o600, 0o700), ("002", 0o664, 0o775), ("022", 0o644, 0o755)] {
        let world = Muster::on(&hub);
        in_shell(&world, &format!("umask {umask}; exec \"$@\""), &["pull", "org/model"]).run().expect_code(0);
        let directory = world.model("org/model");
        for entry in repo.files() {
            assert_eq!(mode(&directory.join(&entry.path)), file, "umask {umask}: {}", entry.path);
        }
        assert_eq!(mode(&directory), folder);
        assert_eq!(mode(&directory.join("sub")), folder);
        let area = world.volume().join(".muster");
        let owner = listing(&area.join("owners")).into_iter().find(|name| name.ends_with(".json")).unwrap();
        for ours in [
            area.join("status.json"),
            area.join("owners").join(owner),
            directory.join(".muster/manifest.json"),
            directory.join(".muster/receipt.json"),
        ] {
            assert_eq!(mode(&ours), 0o644, "umask {umask}: {}", ours.display());
        }
        assert_eq!(mode(&area.join("state")), 0o700);
    }
}

// class: permissions
#[test]
fn a_setgid_folder_gives_its_group_to_everything() {
    const GROUP: u32 = 54_321;
    if !is_root() {
        return skip("only root may give a folder to another group");
    }
    let repo = shards(2, MIB).plain("sub/x.json", "{}");
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    chown(world.volume(), None, Some(GROUP)).unwrap();
    std::fs::set_permissions(world.volume(), PermissionsExt::from_mode(0o2775)).unwrap();
    in_shell(&world, "umask 002; exec \"$@\"", &["pull", "org/model"]).run().expect_code(0);
    let directory = world.model("org/model");
    for name in listing(&directory) {
        let path = directory.join(name.trim_end_matches('/'));
        assert_eq!(std::fs::metadata(&path).unwrap().gid(), GROUP, "{name}");
        if name.ends_with('/') {
            assert_eq!(mode(&path), 0o2775, "{name}");
        }
    }
    for entry in repo.files() {
        assert_eq!(mode(&directory.join(&entry.path)), 0o664, "{}", entry.path);
    }
}

/// The binary where every user may run it.
fn binary_for_all(world: &Muster) -> PathBuf {
    std::fs::set_permissions(world.home(), PermissionsExt::from_mode(0o755)).unwrap();
    let binary = world.home().join("muster");
    std::fs::copy(BINARY, &binary).unwrap();
    std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    binary
}

// class: permissions
#[test]
fn a_user_without_home_or_name_needs_the_volume_alone() {
    const USER: u32 = 54_322;
    if !is_root() {
        return skip("only root may become another user");
    }
    let repo = shards(2, MIB);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let binary = binary_for_all(&world);
    chown(world.volume(), Some(USER), Some(USER)).unwrap();
    let home = world.home().to_owned();
    let mut bare = world.clone();
    for name in ["HOME", "HF_HOME", "TMPDIR", "XDG_RUNTIME_DIR"] {
        bare = bare.without_env(name);
    }
    let as_user = |args: &[&str]| {
        let user = ["--reuid", "54322", "--regid", "54322", "--clear-groups", "--no-new-privs"];
        let all = user.iter().map(|arg| (*arg).to_owned()).chain([binary.display().to_string()]);
        bare.program("setpriv", all.chain(args.iter().map(|arg| (*arg).to_owned())).collect::<Vec<_>>())
            .current_dir("/")
    };
    let before = listing(&home).into_iter().filter(|name| !name.starts_with("volume")).collect::<Vec<_>>();
    as_user(&["pull", "org/model"]).run().expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    as_user(&["gate", "org/model"]).run().expect_code(0);
    as_user(&["status"]).run().expect_code(0);
    let after = listing(&home).into_iter().filter(|name| !name.starts_with("volume")).collect::<Vec<_>>();
    assert_eq!(before, after, "nothing is written beside the volume");

    // A volume of somebody else says so before the first byte.
    chown(world.volume(), Some(0), Some(0)).unwrap();
    std::fs::set_permissions(world.volume(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::remove_dir_all(world.volume().join(".muster")).unwrap();
    std::fs::remove_dir_all(world.volume().join("org")).unwrap();
    let sent = hub.total_body_bytes();
    let out = as_user(&["pull", "org/model"]).run().expect_code(18);
    assert!(out.stderr.contains("not allowed to create") && out.stderr.contains("hint"), "{out}");
    assert_eq!(hub.total_body_bytes(), sent);
}

// class: permissions
#[test]
fn a_read_only_volume_says_so_at_the_start_and_still_gates() {
    let repo = shards(2, MIB);
    let other = RepoSpec::new("org/other").lfs("x.bin", Content::generated(1, MIB));
    let hub = Hub::with([repo, other]);
    let world = Muster::on(&hub);
    let read_only = |args: &[&str]| {
        let mount = "mount --bind \"$MUSTER_VOLUME\" \"$MUSTER_VOLUME\" && \
                     mount -o remount,bind,ro \"$MUSTER_VOLUME\" && exec \"$@\"";
        let all = ["-m", "sh", "-c", mount, "sh"].into_iter().chain(args.iter().copied());
        world.program("unshare", all.map(str::to_owned).collect::<Vec<_>>())
    };
    if !is_root() || read_only(&["true"]).run().code != Some(0) {
        return skip("no read-only mount without the right to mount");
    }
    pull(&world).run().expect_code(0);
    let (sent, before) = (hub.total_body_bytes(), listing(world.volume()));
    let out = read_only(&[BINARY, "pull", "org/other"]).run().expect_code(18);
    assert!(out.stderr.contains("read-only file system") && out.stderr.contains("hint"), "{out}");
    assert_eq!((hub.total_body_bytes(), listing(world.volume())), (sent, before));
    read_only(&[BINARY, "gate", "org/model"]).run().expect_code(0);
    read_only(&[BINARY, "pull", "org/model"]).run().expect_code(0);
    read_only(&[BINARY, "status"]).run().expect_code(0);
}
