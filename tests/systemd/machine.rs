//! A machine made of namespaces whose first process is a real systemd. It goes with its value: the first process is
//! killed by its id, all others with it, and its control groups are removed.

#![allow(unreachable_pub, reason = "`pub` says what the test may use; no test binary exports anything")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::support::*;

const SYSTEMD: &str = "/usr/lib/systemd/systemd";
const SOON: Duration = Duration::from_secs(60);
/// In a control group of its own, so that the machine's are below it; then in namespaces of its own.
const ENTER: &str = r#"
echo $$ >"$1/cgroup.procs"
shift
exec unshare --mount --uts --ipc --pid --cgroup --fork --kill-child sh "$@"
"#;

pub struct Machine {
    unshare: Child,
    first: u32,
    groups: PathBuf,
    _root: tempfile::TempDir,
}

/// What a command in the machine left.
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Done {
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }
}

impl Machine {
    /// Boots it, with the units of this repository; says why not where that is not possible.
    pub fn boot() -> Option<Self> {
        let groups = match place() {
            Ok(groups) => groups.join(format!("muster-test-{}", std::process::id())),
            Err(why) => {
                skip(&why);
                return None;
            }
        };
        let root = tempfile::tempdir().unwrap();
        if let Err(error) = std::fs::create_dir(&groups) {
            skip(&format!("no control group can be made: {error}"));
            return None;
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut command = Command::new("sh");
        command.args(["-c", ENTER, "enter"]).arg(&groups).arg(here.join("tests/systemd/boot.sh"));
        command.arg(root.path()).arg(env!("CARGO_BIN_EXE_muster")).arg(here.join("config/systemd"));
        let said = tempfile::NamedTempFile::new().unwrap();
        let pipe = || Stdio::from(said.reopen().unwrap());
        let unshare = command.stdin(Stdio::null()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
        let mut machine = Self { unshare, first: 0, groups, _root: root };
        let said = || std::fs::read_to_string(said.path()).unwrap();
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = machine.unshare.try_wait().unwrap() {
                skip(&format!("no systemd can be booted here ({status}): {}", said().trim()));
                return None;
            }
            machine.first = machine.child().unwrap_or(0);
            let listens = format!("/proc/{}/root/run/systemd/private", machine.first);
            if machine.first != 0 && Path::new(&listens).exists() {
                break;
            }
            assert!(start.elapsed() < SOON, "systemd did not come up: {}", said());
            std::thread::sleep(Duration::from_millis(20));
        }
        let is_up = || ["running", "degraded"].contains(&machine.systemctl(&["is-system-running"]).stdout.trim());
        wait_until("the machine is up", SOON, is_up);
        Some(machine)
    }

    /// Runs a command in it, as root.
    #[track_caller]
    pub fn run(&self, command: &[&str]) -> Done {
        let target = self.first.to_string();
        let mut enter = Command::new("timeout");
        enter.args(["--signal=KILL", "90", "nsenter", "--target", &target]);
        enter.args(["--mount", "--uts", "--ipc", "--pid", "--cgroup", "env", "-i", "HOME=/root"]);
        enter.args(["PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"]).args(command).stdin(Stdio::null());
        let out = enter.output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Done { code: out.status.code(), stdout: text(out.stdout), stderr: text(out.stderr) }
    }

    #[track_caller]
    pub fn systemctl(&self, args: &[&str]) -> Done {
        self.run(&[&["systemctl", "--no-pager"], args].concat())
    }

    /// One property of a unit.
    #[track_caller]
    pub fn show(&self, unit: &str, key: &str) -> String {
        let out = self.systemctl(&["show", unit, "--value", "--property", key]).expect_code(0);
        out.stdout.trim_end().to_owned()
    }

    /// The text of a file in it, empty where there is none.
    pub fn read(&self, path: &str) -> String {
        std::fs::read_to_string(self.outside(path)).unwrap_or_default()
    }

    pub fn write(&self, path: &str, text: &str) {
        std::fs::write(self.outside(path), text).unwrap();
    }

    pub fn flip_byte(&self, path: &str) {
        flip_byte(&self.outside(path), 100_000);
    }

    /// Where a file of it is from outside.
    pub fn outside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.first))
    }

    /// The process that `unshare` started: the first of the machine.
    fn child(&self) -> Option<u32> {
        let parent = self.unshare.id();
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
        children.split_ascii_whitespace().next()?.parse().ok()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Its child is the machine's first process and is killed with it.
        let _ = self.unshare.kill();
        let _ = self.unshare.wait();
        let groups = &self.groups;
        // The last process leaves its group a moment after it was killed.
        for _ in 0..500 {
            remove_groups(groups);
            if !groups.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn remove_groups(group: &Path) {
    let below = std::fs::read_dir(group).into_iter().flatten().flatten();
    for folder in below.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        remove_groups(&folder);
    }
    let _ = std::fs::remove_dir(group);
}

/// Where control groups of the kind that systemd wants can be made.
fn place() -> Result<PathBuf, String> {
    if !rustix::process::geteuid().is_root() {
        return Err("only root can boot a machine of namespaces".to_owned());
    }
    if !Path::new(SYSTEMD).exists() {
        return Err(format!("there is no {SYSTEMD}"));
    }
    if !Path::new("/bin").is_symlink() {
        return Err("/bin is no link into /usr".to_owned());
    }
    let mounts = std::fs::read_to_string("/proc/self/mounts").map_err(|error| error.to_string())?;
    let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let groups = mounts.find(|words| words.get(2) == Some(&"cgroup2")).ok_or("no control groups of version 2")?;
    Ok(PathBuf::from(groups[1]))
}
