//! The owner's API, spoken by hand: jobs, events, who is let in, and how it ends.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(30);
/// To call as somebody else, and with programs that everybody may run.
const SETPRIV: &str = "/usr/bin/setpriv";
const PYTHON: &str = "/usr/bin/python3";

fn kimi() -> RepoSpec {
    RepoSpec::kimi(6, MIB, 4).named("org/kimi")
}

/// A hub that stands still after two of its six shards' worth of bytes, so that a job stays.
fn held() -> Hub {
    let hub = Hub::start(kimi());
    hub.hold_after(2 * MIB);
    hub
}

fn fetching(hub: &Hub, owner: &Owner, name: &str) {
    assert_eq!(owner.api.submit(hub, "org/kimi", name, None).0, 202);
    wait_until("it fetches", SOON, || owner.api.state(name) == "fetching");
}

#[test]
fn a_job_goes_from_queued_to_ready_and_its_history_says_how() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    assert_eq!(owner.api.get("/healthz").0, 200);
    assert_eq!(owner.api.get("/readyz").0, 200);
    let (code, model) = owner.api.submit(&hub, "org/kimi", "deep/kimi", None);
    assert_eq!((code, &model["id"]), (202, &Value::from("deep/kimi")), "{model}");
    wait_until("it is ready", SOON, || owner.api.state("deep/kimi") == "ready");
    assert!(world.model("deep/kimi").join(".muster/receipt.json").exists());
    let (_, report) = owner.api.get("/v1/models");
    assert_eq!(report["daemon"]["pid"], owner.process.id());
    assert_eq!(report["models"][0]["shards"]["verified"], 6);
    let (code, history) = owner.api.get("/v1/models/deep%2Fkimi/history");
    assert_eq!(code, 200);
    let phases: Vec<_> = history["entries"].as_array().unwrap().iter().map(|e| e["phase"].as_str().unwrap()).collect();
    assert_eq!(phases.first(), Some(&"queued"), "{phases:?}");
    let steps = ["queued", "resolved", "fetched", "verified", "receipted"];
    let of_job: Vec<_> = phases.iter().filter(|phase| steps.contains(phase)).copied().collect();
    assert_eq!(of_job, steps, "{phases:?}");
    assert_eq!(phases.iter().filter(|phase| **phase == "published").count(), hub.repo("org/kimi").files().count());
}

#[test]
fn a_gate_lets_the_owner_know_and_opens_without_one_just_as_well() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    world.args(["gate", "kimi"]).run().expect_code(0);
    std::fs::remove_file(world.model("kimi").join("config.json")).unwrap();
    world.args(["gate", "kimi"]).run().expect_code(10);
    let (_, history) = owner.api.get("/v1/models/kimi/history");
    let last: Vec<_> = history["entries"].as_array().unwrap().iter().rev().take(2).collect();
    assert_eq!((&last[1]["phase"], &last[0]["phase"]), (&"gate_open".into(), &"gate_closed".into()), "{history}");
    assert!(last[0]["detail"].as_str().unwrap().contains("config.json"), "{history}");
    drop(owner);
    world.args(["gate", "kimi"]).run().expect_code(10);
}

#[test]
fn a_refusal_has_a_code_a_message_and_the_status_that_belongs_to_it() {
    let hub = held();
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    fetching(&hub, &owner, "kimi");
    let mut other = submission(&hub, "org/kimi", "kimi", None);
    other["job"]["revision"] = "v2".into();
    let big = format!("{{\"job\": \"{}\"}}", "x".repeat(2 << 20));
    for (what, (status, body), expected, code) in [
        ("busy", owner.api.post("/v1/models", &other.to_string()), 409, "held"),
        ("running", owner.api.post("/v1/models/kimi/remove", ""), 409, "held"),
        ("unknown", owner.api.get("/v1/models/none"), 404, "unknown_model"),
        ("no name", owner.api.get("/v1/models/..%2Fx"), 400, "usage"),
        ("no path", owner.api.get("/v2"), 400, "usage"),
        ("no method", owner.api.post("/v1/events", ""), 400, "usage"),
        ("no JSON", owner.api.post("/v1/models", "{"), 400, "usage"),
        ("no job", owner.api.post("/v1/models", "{\"jobs\": 1}"), 400, "usage"),
        ("too big", owner.api.post("/v1/models", &big), 400, "usage"),
        ("bad query", owner.api.post("/v1/models/kimi/remove?now=2", ""), 400, "usage"),
    ] {
        assert_eq!((status, body["error"]["code"].as_str()), (expected, Some(code)), "{what}: {body}");
        assert!(!body["error"]["message"].as_str().unwrap().is_empty(), "{what}");
    }
    assert_eq!(owner.api.submit(&hub, "org/kimi", "kimi", None).0, 202, "the same again is welcome");
}

#[test]
fn a_job_is_paused_resumed_cancelled_and_removed() {
    let hub = held();
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    fetching(&hub, &owner, "kimi");
    let out = world.args(["pause", "kimi"]).run().expect_code(0);
    assert_eq!(out.stdout.trim(), "kimi  paused");
    assert_eq!(owner.api.state("kimi"), "paused");
    // What the hub says about the repository counts too.
    hub.hold_after(2 * MIB);
    let out = world.args(["resume", "org/kimi", "--json"]).run().expect_code(0);
    assert_eq!(out.json()["id"], "kimi", "a job is found by its repository too");
    wait_until("it fetches again", SOON, || owner.api.state("kimi") == "fetching");
    world.args(["remove", "kimi"]).run().expect_code(15);
    world.args(["cancel", "kimi"]).run().expect_code(0);
    assert_eq!(owner.api.state("kimi"), "cancelled");
    hub.release();
    world.args(["resume", "kimi"]).run().expect_code(0);
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    world.args(["pause", "kimi"]).run().expect_code(2);
    world.args(["remove", "kimi", "--now"]).run().expect_code(0);
    assert!(!world.model("kimi").exists());
    assert_eq!(owner.api.get("/v1/models/kimi").0, 404);
    world.args(["resume", "kimi"]).run().expect_code(13);
}

#[test]
fn without_an_owner_nobody_can_be_asked_and_remove_does_it_itself() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    world.args(["pull", "org/kimi", "--to", "kimi"]).run().expect_code(0);
    for verb in ["pause", "resume", "cancel"] {
        let out = world.args([verb, "kimi", "--json"]).run().expect_code(14);
        assert_eq!(out.json()["error"]["code"], "daemon_unreachable");
        assert!(out.json()["error"]["hint"].as_str().unwrap().contains("muster daemon"));
    }
    let out = world.args(["history", "kimi", "--json"]).run().expect_code(0);
    assert_eq!(out.json()["entries"][0]["phase"], "queued");
    world.args(["remove", "none"]).run().expect_code(13);
    world.args(["remove", "kimi"]).run().expect_code(0);
    assert!(!world.model("kimi").exists());
    world.args(["gate", "kimi"]).run().expect_code(13);
}

#[test]
fn followers_see_a_snapshot_first_and_then_every_state_in_order() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    let mut events = owner.api.events();
    let (name, snapshot) = events.next().unwrap();
    assert_eq!((name.as_str(), &snapshot["schema"]), ("snapshot", &Value::from(1)));
    owner.api.submit(&hub, "org/kimi", "kimi", None);
    let mut states = Vec::new();
    while states.last().map(String::as_str) != Some("ready") {
        let (name, event) = events.next().expect("the stream goes on");
        assert_eq!((name.as_str(), &event["id"]), ("job", &Value::from("kimi")));
        states.push(event["state"].as_str().unwrap().to_owned());
    }
    assert_eq!(states.first().map(String::as_str), Some("queued"), "{states:?}");
    owner.api.post("/v1/models/kimi/remove", "");
    assert_eq!(events.next().unwrap().1["state"], Value::Null, "removed");
    let mut owner = owner;
    owner.process.terminate();
    assert_eq!(events.next(), None, "the stream ends with its daemon");
}

#[test]
fn followers_are_bounded() {
    let hub = Hub::start(kimi());
    let owner = Owner::start(&Muster::on(&hub));
    let mut all: Vec<_> = (0..64).map(|_| owner.api.events()).collect();
    for events in &mut all {
        events.next().expect("a snapshot");
    }
    assert_eq!(owner.api.get("/v1/events").0, 409);
    drop(all);
    wait_until("a place is free again", SOON, || {
        let mut stream = owner.api.connect();
        write!(stream, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut first = [0; 12];
        std::io::Read::read_exact(&mut stream, &mut first).unwrap();
        first == *b"HTTP/1.1 200"
    });
}

#[test]
fn a_stop_is_quick_and_the_next_daemon_goes_on_with_what_was_claimed() {
    let hub = held();
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    fetching(&hub, &owner, "kimi");
    wait_until("what was sent came", SOON, || {
        let received = owner.api.model("kimi")["bytes"]["received"].as_u64().unwrap_or(0);
        received > MIB && received + MIB / 8 >= hub.total_body_bytes()
    });
    let Owner { mut process, api } = owner;
    process.terminate();
    let out = process.wait(Duration::from_secs(5)).expect_code(0);
    assert!(!out.all().contains("panicked"), "{out}");
    assert!(!api.socket.exists(), "it takes its socket along");
    hub.release();
    let owner = Owner::start(&world);
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    let again = hub.total_body_bytes() - kimi().total_bytes();
    assert!(again < MIB / 2, "{again} bytes came twice");
}

#[test]
fn a_second_daemon_ends_at_once_and_names_the_first() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let mut owner = Owner::start(&world);
    let out = world.args(["daemon", "--json"]).run().expect_code(15);
    let message = out.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("process {}", owner.process.id())) && message.contains("heartbeat"), "{message}");
    assert_eq!(owner.api.get("/healthz").0, 200, "the first one's socket is untouched");
    // Killed, it leaves its socket behind; the next one takes the place over.
    owner.process.kill();
    assert!(owner.api.socket.exists());
    let next = Owner::start(&world);
    assert_eq!(next.api.socket, owner.api.socket);
    assert_eq!(next.api.get("/v1/models").1["daemon"]["pid"], next.process.id());
}

/// A daemon that waits for an owner which was killed and looks like one nobody here can see.
fn second_to_one_out_of_sight(world: &Muster) -> Child {
    Owner::start(world).process.kill();
    out_of_sight(world, 7);
    let mut second = world.args(["daemon"]).spawn();
    second.wait_for_text("sign of life", SOON);
    second
}

/// Makes a killed daemon's record look like that of a process nobody here can see.
fn out_of_sight(world: &Muster, counter: u64) {
    let path = world.volume().join(".muster/owners/1.json");
    let mut record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    record["pid_namespace"] = 1.into();
    record["counter"] = counter.into();
    let temporary = path.with_extension("new");
    std::fs::write(&temporary, record.to_string()).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

#[test]
fn an_owner_out_of_sight_is_waited_for_and_left_alone_when_it_moves() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let second = second_to_one_out_of_sight(&world);
    out_of_sight(&world, 8);
    let out = second.wait(SOON).expect_code(15);
    assert!(out.stderr.contains("held by process"), "{out}");
}

#[test]
fn an_owner_out_of_sight_loses_the_volume_after_a_silent_lease() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let mut second = second_to_one_out_of_sight(&world);
    assert!(!second.stderr_so_far().contains("owns"));
    second.wait_for_text("muster daemon owns ", Duration::from_secs(50));
    assert!(world.volume().join(".muster/owners/2.json").exists());
}

#[test]
fn a_socket_path_that_is_too_long_moves_to_the_runtime_directory() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let volume = world.home().join("long".repeat(30));
    let world = world.env("MUSTER_VOLUME", &volume);
    let owner = Owner::start(&world);
    assert!(owner.api.socket.starts_with(world.home().join("run/muster")), "{}", owner.api.socket.display());
    assert_eq!(owner.api.submit(&hub, "org/kimi", "kimi", None).0, 202);
    world.args(["cancel", "kimi"]).run();
    let out = world.args(["status", "--json"]).run().expect_code(0);
    assert_eq!(out.json()["models"][0]["id"], "kimi");
}

#[test]
fn only_the_owner_root_and_the_group_may_use_the_socket() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    assert_eq!(std::fs::metadata(&owner.api.socket).unwrap().mode() & 0o777, 0o660);
    if !rustix::process::geteuid().is_root() {
        return; // Only root can become somebody else.
    }
    // Everybody may reach the socket now, and still the kernel's word about the peer decides.
    open_up(&owner.api.socket);
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n\
                  s.sendall(b'GET /v1/models HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n')\n\
                  print(b''.join(iter(lambda: s.recv(65536), b'')).decode())";
    let path = owner.api.socket.display().to_string();
    let drop_to = |groups: &str| {
        world.program(SETPRIV, ["--reuid=65534", "--regid=65534", groups, PYTHON, "-c", script, &path]).run()
    };
    if ![SETPRIV, PYTHON].iter().all(|program| Path::new(program).exists()) {
        return;
    }
    let out = drop_to("--clear-groups");
    assert!(out.stdout.contains("HTTP/1.1 403") && out.stdout.contains("refused"), "{out}");
    drop(owner);
    let owner = Owner::start_with(&world, &["--api-group", "4711"]);
    assert_eq!(std::fs::metadata(&owner.api.socket).unwrap().gid(), 4711);
    open_up(&owner.api.socket);
    let out = drop_to("--groups=4711");
    assert!(out.stdout.contains("HTTP/1.1 200"), "{out}");
    assert!(drop_to("--groups=4712").stdout.contains("HTTP/1.1 403"));
}

/// Lets everybody reach a socket: modes of the folders on the way to it, and its own.
fn open_up(socket: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    for path in socket.ancestors().take_while(|path| *path != Path::new("/tmp") && *path != Path::new("/")) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777)).unwrap();
    }
}

#[test]
fn a_submitted_token_is_used_and_written_nowhere() {
    const TOKEN: &str = "hf_kept_in_memory_only_0123456789";
    let hub = Hub::start(kimi());
    hub.require_token(TOKEN);
    let world = Muster::on(&hub).env("MUSTER_LOG", "trace");
    let mut owner = Owner::start(&world);
    assert_eq!(owner.api.submit(&hub, "org/kimi", "kimi", None).0, 202);
    wait_until("it fails without", SOON, || owner.api.state("kimi") == "failed");
    let (status, body) = owner.api.submit(&hub, "org/kimi", "kimi", Some(TOKEN));
    assert_eq!(status, 202, "{body}");
    wait_until("it is ready", SOON, || owner.api.state("kimi") == "ready");
    assert!(hub.authorization_seen_by_cdn().is_empty());
    let (_, report) = owner.api.get("/v1/models");
    owner.process.terminate();
    let said = owner.process.wait(SOON).expect_code(0).all();
    assert!(!report.to_string().contains(TOKEN) && !said.contains(TOKEN));
    let mut folders = vec![world.home().to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => {
                    let bytes = std::fs::read(entry.path()).unwrap();
                    let found = bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes());
                    assert!(!found, "{}", entry.path().display());
                    files += 1;
                }
                _ => {}
            }
        }
    }
    assert!(files > 10, "the search saw {files} files");
}

#[test]
fn tcp_is_there_only_when_asked_for_and_asks_for_the_token() {
    let hub = Hub::start(kimi());
    let world = Muster::on(&hub);
    world.args(["daemon", "--listen", "127.0.0.1:0"]).run().expect_code(2);
    let file = world.home().join("token");
    std::fs::write(&file, "let-me-in\n").unwrap();
    let file = file.display().to_string();
    let owner = Owner::start_with(&world, &["--listen", "127.0.0.1:0", "--listen-token-file", &file]);
    let said = owner.process.stderr_so_far();
    let address = said.split("http://").nth(1).unwrap().split(')').next().unwrap().to_owned();
    let ask = |path: &str, header: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}\r\n").unwrap();
        answer(stream)
    };
    assert_eq!(ask("/v1/models", "Authorization: Bearer let-me-in\r\n").0, 200);
    assert_eq!(ask("/healthz", "").0, 200);
    for wrong in ["", "Authorization: Bearer let-me-im\r\n", "Authorization: Basic let-me-in\r\n"] {
        let (status, body) = ask("/v1/models", wrong);
        assert_eq!((status, body["error"]["code"].as_str()), (403, Some("refused")), "{wrong}");
    }
}
