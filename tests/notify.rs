//! A daemon and the manager of services that started it, by the manager's own protocol: ready only when it works,
//! signs of life only while there is life, reload, stop and restart as they happen.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(clippy::cast_possible_wrap, reason = "ids of processes, on 64-bit Linux")]

mod faultfs;
mod support;

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::{Duration, Instant};

use faultfs::{Act, At, FaultFs, Op};
use rustix::process::Signal;
use support::*;

const SOON: Duration = Duration::from_secs(60);
/// How long the manager bears silence in these tests.
const WATCHDOG: Duration = Duration::from_secs(2);

/// The other end of `NOTIFY_SOCKET`, and what came there so far.
struct Manager {
    socket: UnixDatagram,
    place: String,
    heard: Vec<String>,
}

impl Manager {
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        Self::with(socket, path.to_str().unwrap().to_owned())
    }

    /// At a name without a file.
    fn unnamed() -> Self {
        let name = format!("muster-test-{}-{}", std::process::id(), tempfile::tempdir().unwrap().path().display());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        Self::with(socket, format!("@{name}"))
    }

    fn with(socket: UnixDatagram, place: String) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self { socket, place, heard: Vec::new() }
    }

    /// A world whose processes it has started.
    fn manage(&self, world: Muster) -> Muster {
        let usec = WATCHDOG.as_micros().to_string();
        world.env("NOTIFY_SOCKET", &self.place).env("WATCHDOG_USEC", usec)
    }

    /// Takes what is there, and gives all that came.
    fn listen(&mut self) -> &[String] {
        let mut bytes = [0; 8192];
        while let Ok(length) = self.socket.recv(&mut bytes) {
            self.heard.push(String::from_utf8(bytes[..length].to_vec()).unwrap());
        }
        &self.heard
    }

    /// How many messages have a line like this.
    fn count(&mut self, line: &str) -> usize {
        let starts = |message: &&String| message.lines().any(|one| one.starts_with(line));
        self.listen().iter().filter(starts).count()
    }

    /// Waits for one more message with such a line than there was, and returns it.
    #[track_caller]
    fn wait_for(&mut self, line: &str, limit: Duration) -> String {
        let (before, start) = (self.heard.len(), Instant::now());
        loop {
            let starts = |message: &&String| message.lines().any(|one| one.starts_with(line));
            if let Some(message) = self.listen()[before..].iter().find(starts) {
                return message.clone();
            }
            assert!(start.elapsed() < limit, "no {line:?} in {:?}", &self.heard[before..]);
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Forgets what came.
    fn forget(&mut self) {
        self.listen();
        self.heard.clear();
    }
}

fn repo() -> RepoSpec {
    RepoSpec::kimi(4, 1 << 20, 2).named("org/model")
}

// class: stalls, words
#[test]
fn it_is_ready_once_the_volume_is_owned_and_the_api_answers_and_tells_how_it_stands() {
    let hub = Hub::start(repo());
    let mut manager = Manager::unnamed();
    let world = manager.manage(Muster::on(&hub));
    let fs = match FaultFs::over(world.volume()) {
        Ok(fs) => fs,
        Err(why) => return skip(&why),
    };
    fs.be_quick();
    // The volume is owned by the link of a record: as long as that does not come about, nothing is ready.
    let link = fs.when(At::op(Op::Link).path("owners"), Act::Hold);
    let mut daemon = world.args(["daemon"]).spawn();
    fs.wait_for(link, SOON);
    assert_eq!(manager.count("READY="), 0, "{:?}", manager.heard);
    fs.release(link);
    let ready = manager.wait_for("READY=1", SOON);
    let volume = world.volume().display();
    assert!(ready.contains(&format!("STATUS=owns {volume}; no models")), "{ready}");
    let status = world.args(["status", "--json"]).run().expect_code(0).json();
    assert_eq!(status["daemon"]["running"], true, "{status}");
    daemon.wait_for_text("muster daemon owns", SOON);
    let said = daemon.stderr_so_far();
    let socket = said.split("socket ").nth(1).unwrap().split([')', ',']).next().unwrap().to_owned();
    assert_eq!(Api::at(&socket).get("/readyz").0, 200);
    // Whoever asks the manager sees how far the jobs are.
    Api::at(&socket).submit(&hub, "org/model", "org/model", None);
    manager.wait_for(&format!("STATUS=owns {volume}; 1 model: 1 ready"), SOON);
    daemon.terminate();
    daemon.wait(SOON).expect_code(0);
    drop(fs);
}

// class: stalls
#[test]
fn signs_of_life_come_while_it_lives_and_end_when_it_stands_still() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let mut manager = Manager::at(&world.home().join("notify.sock"));
    let world = manager.manage(world);
    let mut owner = Owner::start(&world);
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1", SOON);
    }
    owner.process.signal(Signal::STOP);
    let id = owner.process.id();
    let stands_still = || {
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten();
        let states = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
        states.into_iter().all(|stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    };
    wait_until("it stands still", SOON, stands_still);
    manager.forget();
    std::thread::sleep(WATCHDOG);
    assert_eq!(manager.listen(), [""; 0], "a manager would start it anew now");
    owner.process.signal(Signal::CONT);
    manager.wait_for("WATCHDOG=1", SOON);
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
}

// class: stalls
#[test]
fn a_volume_that_hangs_is_told_and_is_no_reason_to_start_anew() {
    let hub = Hub::start(repo());
    let mut manager = Manager::unnamed();
    let world = manager.manage(Muster::on(&hub));
    let fs = match FaultFs::over(world.volume()) {
        Ok(fs) => fs,
        Err(why) => return skip(&why),
    };
    fs.be_quick();
    let socket = world.home().join("run/api.sock");
    let mut owner = Owner::start_with(&world, &["--socket", socket.to_str().unwrap()]);
    let all = fs.when(At::any(), Act::Hold);
    fs.wait_for(all, SOON);
    manager.wait_for("STATUS=the volume has not answered for ", SOON);
    manager.forget();
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1", SOON);
    }
    assert_eq!(manager.count("STATUS=stuck"), 0, "{:?}", manager.heard);
    assert_eq!(owner.api.get("/healthz").0, 200);
    fs.lift_all();
    manager.wait_for("STATUS=owns ", SOON);
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
}

// class: words
#[test]
fn a_reload_is_announced_and_over_when_the_configuration_is_in_force() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let mut manager = Manager::at(&world.home().join("notify.sock"));
    let config = world.home().join("muster.toml");
    std::fs::write(&config, "[limits]\nvolume = \"7MB\"\n").unwrap();
    let world = manager.manage(world).env("MUSTER_CONFIG", &config);
    let mut owner = Owner::start(&world);
    manager.wait_for("READY=1", SOON);
    let mut before = Duration::ZERO;
    for (text, rate) in [("9MB", 9_000_000), ("5MB", 5_000_000)] {
        std::fs::write(&config, format!("[limits]\nvolume = \"{text}\"\n")).unwrap();
        manager.forget();
        owner.process.signal(Signal::HUP);
        manager.wait_for("READY=1", SOON);
        assert_eq!(owner.api.get("/v1/limits").1["volume"]["bytes_per_s"], rate);
        let turns = |message: &&String| ["RELOADING=1", "READY=1"].iter().any(|word| message.starts_with(word));
        let told: Vec<_> = manager.heard.iter().filter(turns).cloned().collect();
        let [begun, over] = &told[..] else { panic!("{told:?}") };
        assert!(over.starts_with("READY=1"), "{told:?}");
        let usec = begun.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").unwrap_or_else(|| panic!("{told:?}"));
        let at = Duration::from_micros(usec.parse().unwrap());
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        assert!(
            before < at && at < Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap()),
            "{at:?}"
        );
        before = at;
    }
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
}

// class: progress-lost, words
#[test]
fn a_stop_is_announced_and_the_next_start_goes_on_with_what_is_there() {
    let repo = repo();
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let mut manager = Manager::at(&world.home().join("notify.sock"));
    let world = manager.manage(world);
    let mut owner = Owner::start(&world);
    hub.hold_after(repo.total_bytes() / 2);
    owner.api.submit(&hub, "org/model", "org/model", None);
    hub.wait_for_bytes(repo.total_bytes() / 2 - (1 << 20), SOON);
    owner.process.terminate();
    let out = owner.process.wait(SOON).expect_code(0);
    let stopping = manager.listen().iter().position(|message| message.starts_with("STOPPING=1\nSTATUS="));
    let after = &manager.heard[stopping.unwrap_or_else(|| panic!("{:?}\n{out}", manager.heard)) + 1..];
    assert!(!after.iter().any(|message| message.contains("READY=1")), "{after:?}");
    // A restart is ready again, and the job goes on by itself.
    hub.cut(Origin::Cdn);
    hub.release();
    manager.forget();
    let mut owner = Owner::start(&world);
    manager.wait_for("READY=1", SOON);
    wait_until("the job is done", SOON, || owner.api.state("org/model") == "ready");
    // One that cannot start is never ready.
    manager.forget();
    let second = Manager::unnamed();
    second.manage(world.clone()).args(["daemon"]).run().expect_code(15);
    let mut second = second;
    assert_eq!(second.count("READY="), 0);
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
}

// class: words
#[test]
fn a_manager_that_is_not_there_or_watches_another_process_changes_nothing() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let nowhere = world.home().join("nobody.sock");
    let mut owner = Owner::start(&world.clone().env("NOTIFY_SOCKET", &nowhere));
    assert_eq!(owner.api.get("/healthz").0, 200);
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    // A watchdog that was inherited from a parent is the parent's.
    let mut manager = Manager::unnamed();
    let world = manager.manage(world).env("WATCHDOG_PID", "1");
    let mut owner = Owner::start(&world);
    manager.wait_for("READY=1", SOON);
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    assert_eq!(manager.count("WATCHDOG="), 0, "{:?}", manager.heard);
}

// class: words
#[test]
fn a_check_of_the_daemon_says_whether_it_is_well() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let socket = world.home().join("run/api.sock");
    let socket = socket.to_str().unwrap();
    let checks = [vec!["daemon", "--check"], vec!["daemon", "--check", "--socket", socket]];
    for check in &checks {
        let out = world.args(check).run().expect_code(14);
        assert!(out.stderr.contains("hint:"), "{out}");
    }
    let mut owner = Owner::start_with(&world, &["--socket", socket]);
    for check in &checks {
        assert_eq!(world.args(check).run().expect_code(0).stdout, "ok\n");
        let json = world.args(check).arg("--json").run().expect_code(0).json();
        assert_eq!(json, serde_json::json!({ "status": "ok" }));
    }
    // One that stands still does not answer, and nobody waits for it.
    owner.process.signal(Signal::STOP);
    let out = world.args(&checks[1]).run().expect_code(14);
    assert!(out.took < AT_ONCE, "{out}");
    owner.process.signal(Signal::CONT);
    wait_until("it is well again", SOON, || world.args(&checks[1]).run().code == Some(0));
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    world.args(&checks[1]).run().expect_code(14);
}
