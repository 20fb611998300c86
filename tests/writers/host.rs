//! Hosts made of namespaces: own processes, own mounts, own name. They share the volume, the clock and
//! the loopback of this machine, and nothing else that muster looks at.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::support::*;

const SOON: Duration = Duration::from_secs(60);

/// Makes a host out of its new namespaces and becomes the program: name, folder of sockets, boot.
const SET_UP: &str = r#"
set -e
hostname "$1"
mount -t tmpfs none "$2"
if [ -n "$3" ]; then mount --bind "$3" /proc/sys/kernel/random/boot_id; fi
shift 3
exec "$@"
"#;

/// A host. Its first process has the id 1, as on any other of these hosts.
pub struct Host {
    world: Muster,
    name: String,
    boot: Option<PathBuf>,
    volume: PathBuf,
}

impl Host {
    /// A host in a world, if this process may make one; otherwise the caller is skipped.
    pub fn in_world(world: &Muster, name: &str) -> Self {
        Self { world: world.clone(), name: name.to_owned(), boot: None, volume: world.volume().to_owned() }
    }

    /// Where this host has the volume.
    pub fn with_volume(mut self, volume: &Path) -> Self {
        volume.clone_into(&mut self.volume);
        self
    }

    /// Another boot than that of this machine.
    pub fn booted_as(mut self, id: &str) -> Self {
        let path = self.world.home().join(format!("boot-{id}"));
        std::fs::write(&path, format!("{id}\n")).unwrap();
        self.boot = Some(path);
        self
    }

    /// Starts `muster` as the first process of the host.
    #[track_caller]
    pub fn start<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Guest {
        let runtime = self.world.home().join("run");
        let mut words: Vec<String> = ["--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
            .into_iter()
            .chain(["sh", "-c", SET_UP, "host", &self.name])
            .map(str::to_owned)
            .collect();
        words.push(runtime.display().to_string());
        words.push(self.boot.as_ref().map(|path| path.display().to_string()).unwrap_or_default());
        words.push(env!("CARGO_BIN_EXE_muster").to_owned());
        words.extend(args.into_iter().map(str::to_owned));
        let call = self.world.program("unshare", words).env("MUSTER_VOLUME", &self.volume);
        Guest { child: call.spawn(), world: self.world.clone() }
    }
}

/// Whether this process may make hosts; says why not and that the test is skipped otherwise.
pub fn can_make_hosts() -> bool {
    let flags = ["--mount", "--uts", "--pid", "--fork", "--mount-proc"];
    let tried =
        std::process::Command::new("unshare").args(flags).args(["mount", "-t", "tmpfs", "none", "/mnt"]).output();
    match tried {
        Ok(out) if out.status.success() => true,
        Ok(out) => {
            skip(&format!("no namespaces: {}", String::from_utf8_lossy(&out.stderr).trim()));
            false
        }
        Err(error) => {
            skip(&format!("no unshare: {error}"));
            false
        }
    }
}

/// A running `muster` on a host.
pub struct Guest {
    pub child: Child,
    world: Muster,
}

impl Guest {
    /// Its process id outside of its namespace.
    #[track_caller]
    pub fn outer_id(&self) -> u32 {
        let parent = self.child.id();
        let list = format!("/proc/{parent}/task/{parent}/children");
        let first = || std::fs::read_to_string(&list).ok()?.split_ascii_whitespace().next()?.parse().ok();
        wait_until("the host has a process", SOON, || first().is_some());
        first().unwrap()
    }

    /// Starts another `muster` on the same host.
    #[track_caller]
    pub fn inside(&self, args: &[&str]) -> Child {
        let target = self.outer_id().to_string();
        let words = ["--mount", "--uts", "--pid", "--target", &target, env!("CARGO_BIN_EXE_muster")];
        let words = words.into_iter().chain(args.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
        self.world.program("nsenter", words).spawn()
    }

    #[track_caller]
    pub fn signal(&self, signal: Signal) {
        send(self.outer_id(), signal);
    }

    /// The host loses its power.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }
}

#[track_caller]
pub fn send(id: u32, signal: Signal) {
    kill_process(Pid::from_raw(id as i32).unwrap(), signal).expect("it runs");
}

/// Stops a process, and returns when it stands still: each thread is stopped, or waits in the kernel and
/// stops on its way back.
#[track_caller]
pub fn freeze(id: u32) {
    send(id, Signal::STOP);
    let moves = |path: PathBuf| {
        let stat = std::fs::read_to_string(path.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['T', 'D']))
    };
    wait_until("it stands still", SOON, || {
        let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap().flatten();
        !tasks.map(|task| task.path()).any(moves)
    });
}

#[track_caller]
pub fn thaw(id: u32) {
    send(id, Signal::CONT);
}

/// The highest epoch of a volume and its record, if that can be read.
pub fn owner(volume: &Path) -> (u64, Option<serde_json::Value>) {
    let owners = volume.join(".muster/owners");
    let names = listing(&owners);
    let Some(epoch) = names.iter().filter_map(|name| name.strip_suffix(".json")?.parse().ok()).max() else {
        return (0, None);
    };
    let bytes = std::fs::read(owners.join(format!("{epoch}.json"))).unwrap_or_default();
    (epoch, serde_json::from_slice(&bytes).ok())
}
