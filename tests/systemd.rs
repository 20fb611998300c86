//! The units in `config/systemd`: what they say, what `systemd-analyze` says of them, and how they work under a
//! systemd of their own.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

#[path = "systemd/machine.rs"]
mod machine;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use machine::Machine;
use support::*;

const SOON: Duration = Duration::from_secs(90);
const UNITS: [&str; 3] = ["muster", "vllm", "vllm-pre"];
const MODEL: &str = "kimi-k2.5-nvfp4";

fn path(unit: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("config/systemd/{unit}.service"))
}

/// What a unit says: all values of each key, by its section, with continued lines joined.
struct Unit(Vec<(String, String, String)>);

impl Unit {
    fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(path(name)).unwrap().replace("\\\n", " ");
        let (mut section, mut said) = (String::new(), Vec::new());
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                name.clone_into(&mut section);
            } else {
                let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{name}: {line:?}"));
                said.push((section.clone(), key.to_owned(), value.split_whitespace().collect::<Vec<_>>().join(" ")));
            }
        }
        Self(said)
    }

    fn all(&self, section: &str, key: &str) -> Vec<&str> {
        let of = self.0.iter().filter(|(in_section, name, _)| in_section == section && name == key);
        of.map(|(_, _, value)| value.as_str()).collect()
    }

    #[track_caller]
    fn says(&self, key: &str, value: &str) {
        assert!(self.all("Service", key).contains(&value), "{key}: {:?}", self.all("Service", key));
    }
}

// class: words
#[test]
fn the_daemons_unit_says_what_a_daemon_needs() {
    let unit = Unit::read("muster");
    for (key, value) in [
        ("Type", "notify"),
        ("NotifyAccess", "main"),
        ("ExecStart", "/usr/local/bin/muster daemon"),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("UMask", "0022"),
        ("LoadCredential", "hf_token:/etc/muster/hf_token"),
        ("StateDirectory", "muster"),
        ("RuntimeDirectory", "muster"),
        ("ReadWritePaths", "/shared"),
        ("KillMode", "mixed"),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2"),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("CapabilityBoundingSet", ""),
        ("MemoryDenyWriteExecute", "yes"),
        ("LimitCORE", "0"),
    ] {
        unit.says(key, value);
    }
    let seconds = |key| unit.all("Service", key)[0].parse::<u64>().unwrap();
    // A stop may take 20 s, and the volume is given back after it.
    assert!(seconds("TimeoutStopSec") > 20 + 3);
    assert!(seconds("WatchdogSec") >= 30, "a busy machine is no dead one");
    for volume in [unit.all("Unit", "RequiresMountsFor"), unit.all("Service", "ReadWritePaths")] {
        assert!(unit.all("Service", "Environment").contains(&format!("MUSTER_VOLUME={}", volume[0]).as_str()));
    }
}

// class: words
#[test]
fn both_units_of_the_launcher_wait_behind_the_gate_and_stay_down_when_somebody_has_to_look() {
    for name in ["vllm", "vllm-pre"] {
        let unit = Unit::read(name);
        unit.says("TimeoutStartSec", "infinity");
        unit.says("RestartPreventExitStatus", "11 12 13 17");
        unit.says("Restart", "on-failure");
        unit.says("ReadOnlyPaths", "/shared");
    }
    let (becomes, first) = (Unit::read("vllm"), Unit::read("vllm-pre"));
    let command = becomes.all("Service", "ExecStart")[0].to_owned();
    assert!(
        command.starts_with("/usr/local/bin/muster gate ${MODEL} --wait -- /opt/vllm/bin/vllm serve {}"),
        "{command}"
    );
    becomes.says("Type", "exec");
    first.says("ExecStartPre", "/usr/local/bin/muster gate ${MODEL} --wait");
    assert!(first.all("Service", "ExecStart")[0].starts_with("/opt/vllm/bin/vllm serve /shared/${MODEL}"));
    assert_ne!(first.all("Unit", "StartLimitIntervalSec"), ["0"], "only a limit ends the asking there");
}

/// Runs `systemd-analyze`; none where there is none.
fn analyze(args: &[&str]) -> Option<(bool, String)> {
    match Command::new("systemd-analyze").args(args).env("SYSTEMD_COLORS", "0").output() {
        Ok(out) => {
            let said = [out.stdout, out.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
            Some((out.status.success(), said))
        }
        Err(error) => {
            skip(&format!("no systemd-analyze: {error}"));
            None
        }
    }
}

// class: words
#[test]
fn systemd_analyze_has_nothing_to_say_against_the_units() {
    // The programs are not installed here, and their places would be all that it finds.
    let folder = tempfile::tempdir().unwrap();
    for name in UNITS {
        let text = std::fs::read_to_string(path(name)).unwrap();
        let text = text.replace("/usr/local/bin/muster", "/bin/true").replace("/opt/vllm/bin/vllm", "/bin/true");
        let file = folder.path().join(format!("{name}.service"));
        std::fs::write(&file, text).unwrap();
        let Some((passed, said)) = analyze(&["verify", file.to_str().unwrap()]) else { return };
        assert!(passed && !said.contains(name), "{said}");
    }
}

// class: words
#[test]
fn the_daemons_unit_leaves_little_exposed() {
    let Some((_, said)) = analyze(&["security", "--offline=true", path("muster").to_str().unwrap()]) else { return };
    let Some(score) = said.split("Overall exposure level for muster.service: ").nth(1) else {
        return skip(&format!("systemd-analyze is too old: {}", said.lines().next().unwrap_or_default()));
    };
    let score: f64 = score.split_whitespace().next().unwrap().parse().unwrap();
    assert!(score <= 2.0, "{said}");
}

// class: stalls, words, wrong-bytes
#[test]
fn under_a_real_systemd_the_units_work_as_they_are_shipped() {
    let repo = RepoSpec::kimi(4, 1 << 20, 2).named("org/model");
    let hub = Hub::start(repo.clone());
    // Whoever has no token sees nothing: the daemon has it from its credential alone.
    hub.require_token("hf_inthecredential");
    let Some(machine) = Machine::boot() else { return };
    machine.write("/etc/muster/muster.toml", &format!("endpoint = \"{}\"\n", hub.url()));
    let shows = |unit: &str, key: &str| machine.show(unit, key);
    let is = |unit: &str, state: &str| shows(unit, "ActiveState") == state;

    // Ready: `start` returns once it is.
    machine.systemctl(&["start", "muster"]).expect_code(0);
    assert!(is("muster", "active"));
    assert_eq!(shows("muster", "StatusText"), "owns /shared; no models");
    machine.systemctl(&["start", "--no-block", "vllm"]).expect_code(0);
    wait_until("the launcher waits behind the gate", SOON, || machine.read("/run/vllm.log").contains("waiting for"));
    let api = Api::at(machine.outside("/shared/.muster/api.sock"));
    api.submit(&hub, "org/model", MODEL, None);
    wait_until("the launcher runs", SOON, || machine.read("/run/vllm/launched").contains("serve /shared/"));
    let launched = machine.read("/run/vllm/launched");
    assert!(launched.starts_with(&format!("vllm serve /shared/{MODEL} --served-model-name {MODEL} ")), "{launched}");
    let told = || shows("muster", "StatusText") == "owns /shared; 1 model: 1 ready";
    wait_until("the manager knows how it stands", SOON, told);

    // A reload is over when systemctl says so.
    machine.write("/etc/muster/muster.toml", &format!("endpoint = \"{}\"\nlimits.volume = \"9MB\"\n", hub.url()));
    machine.systemctl(&["reload", "muster"]).expect_code(0);
    wait_until("it is active again", SOON, || is("muster", "active"));
    wait_until("the limit is in force", SOON, || {
        machine.run(&["muster", "limit", "--volume", "/shared"]).stdout.contains("9.0 MB/s")
    });

    // One that stands still is started anew, and ready again.
    let id = shows("muster", "MainPID");
    machine.run(&["kill", "-STOP", &id]).expect_code(0);
    wait_until("it is started anew", SOON, || shows("muster", "NRestarts") == "1" && is("muster", "active"));
    assert_ne!(shows("muster", "MainPID"), id);
    wait_until("it knows its models", SOON, told);

    // A stop is one, and takes no kill.
    machine.systemctl(&["stop", "muster"]).expect_code(0);
    assert_eq!((shows("muster", "Result"), shows("muster", "ExecMainStatus")), ("success".into(), "0".into()));
    let last = machine.read("/shared/.muster/status.json");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&last).unwrap()["daemon"]["running"], false);

    // A wrong byte: the launcher stays down, and nobody asks again and again.
    machine.systemctl(&["stop", "vllm"]).expect_code(0);
    machine.flip_byte(&format!("/shared/{MODEL}/model-00001-of-000004.safetensors"));
    machine.write("/run/vllm/launched", "");
    machine.systemctl(&["start", "vllm"]);
    wait_until("the gate has closed", SOON, || is("vllm", "failed"));
    let end = ["Result", "ExecMainStatus", "NRestarts"].map(|key| shows("vllm", key));
    assert_eq!(end, ["exit-code", "11", "0"]);
    // As a step of its own the gate is asked until the limit, and still nothing is launched.
    machine.write("/etc/systemd/system/vllm-pre.service.d/limit.conf", "[Unit]\nStartLimitBurst=3\n");
    machine.systemctl(&["daemon-reload"]).expect_code(0);
    machine.systemctl(&["start", "vllm-pre"]);
    wait_until("the limit is reached", SOON, || is("vllm-pre", "failed"));
    assert_eq!(machine.read("/run/vllm/launched"), "");
    assert!(machine.read("/run/vllm-pre.log").contains("closed (11)"));
}
