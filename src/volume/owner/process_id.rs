//! Which process is which: enough facts to prove that one is gone.
//!
//! Owns what is read from `/proc`. A pid alone proves nothing: it means something in one pid
//! namespace of one boot only, is given out again, and `/proc` may belong to another namespace or
//! hide it from us. Whatever cannot be read is unknown, and unknown is never "gone".

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::Pid;

/// What identifies this process to others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessFacts {
    /// Name of the host, for people. Proves nothing.
    pub host: String,
    /// The kernel's random id of this boot; empty when unknown.
    pub boot_id: String,
    /// Inode of the pid namespace; unknown where `/proc` is not that of this namespace.
    pub pid_namespace: Option<u64>,
    /// Inode of the time namespace: start times compare only inside one.
    pub time_namespace: Option<u64>,
    /// Process id.
    pub pid: u32,
    /// Start time in clock ticks since boot: field 22 of `/proc/<pid>/stat`.
    pub start_time: u64,
}

/// What can be seen of a pid in this pid namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// No such process, or only what is left for its parent to collect.
    Gone,
    /// A process with that start time.
    Running {
        /// In clock ticks since boot.
        start_time: u64,
    },
    /// There is one, and it does not show itself.
    Hidden,
}

impl ProcessFacts {
    /// Reads the facts about this process.
    pub fn read() -> Self {
        let pid = std::process::id();
        // A `/proc` of another namespace knows us under another number.
        let proc_is_ours = fs::read_link("/proc/self").is_ok_and(|link| link.to_str() == Some(&pid.to_string()));
        let namespace = |name| fs::metadata(format!("/proc/self/ns/{name}")).ok().map(|metadata| metadata.ino());
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            boot_id: boot_id.trim().to_owned(),
            pid_namespace: namespace("pid").filter(|_| proc_is_ours),
            time_namespace: namespace("time").filter(|_| proc_is_ours),
            pid,
            start_time: stat_of(pid).map_or(0, |stat| stat.start_time),
        }
    }
}

/// Looks at a pid of this process's own namespace.
pub fn look(pid: u32) -> Sight {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Sight::Hidden };
    // Signal 0 tells the truth where `/proc` hides the processes of others.
    if rustix::process::test_kill_process(pid) == Err(Errno::SRCH) {
        return Sight::Gone;
    }
    match stat_of(pid.as_raw_nonzero().get().unsigned_abs()) {
        Some(stat) if stat.dead => Sight::Gone,
        Some(stat) => Sight::Running { start_time: stat.start_time },
        None => Sight::Hidden,
    }
}

/// Whether this process was started with a signal ignored, as `nohup` does. Ask before a handler
/// is set. What cannot be read is not ignored.
pub fn ignored_from_the_start(signal: u8) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> signal.saturating_sub(1) & 1 == 1
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    dead: bool,
    start_time: u64,
}

fn stat_of(pid: u32) -> Option<Stat> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads `proc_pid_stat(5)`: the name, field 2, is in parentheses and may contain any character.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: u64 = fields.nth(16)?.parse().ok()?;
    let start_time = fields.nth(1)?.parse().ok()?;
    // A leader that is through may still have threads that write.
    Some(Stat { dead: matches!(state, "Z" | "X") && threads <= 1, start_time })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_itself_running() {
        let facts = ProcessFacts::read();
        assert!(!facts.boot_id.is_empty() && facts.pid_namespace.is_some() && facts.start_time > 0, "{facts:?}");
        assert_eq!(look(facts.pid), Sight::Running { start_time: facts.start_time });
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a process that ends")]
    fn a_process_that_ended_is_gone_collected_or_not() {
        let mut child = std::process::Command::new("true").stdout(std::process::Stdio::piped()).spawn().unwrap();
        // Its end of the pipe closes as it ends; until `wait` it is a zombie.
        std::io::copy(&mut child.stdout.take().unwrap(), &mut std::io::sink()).unwrap();
        let zombie = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            look(child.id()) == Sight::Gone
        });
        child.wait().unwrap();
        assert!(zombie);
        assert_eq!(look(child.id()), Sight::Gone);
    }

    #[test]
    fn a_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let rest = "1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 12345 999 8";
        let stat = parse_stat(&format!("7 (a) R (b) S {rest}")).unwrap();
        assert_eq!(stat, Stat { dead: false, start_time: 12345 });
        let zombie = rest.replace(" 20 0 9 0 ", " 20 0 1 0 ");
        assert!(parse_stat(&format!("7 (x) Z {zombie}")).unwrap().dead);
        assert!(!parse_stat(&format!("7 (x) Z {rest}")).unwrap().dead, "other threads are left");
        for text in ["", "7 (x", "7 (x) S 1 2", "7 (x) S a b c"] {
            assert_eq!(parse_stat(text), None, "{text}");
        }
    }
}
