//! How much memory this process can have: what the kernel says, of the machine and of its group.
//!
//! Reads `/proc` and `/sys` alone.

#![allow(clippy::disallowed_methods, reason = "what the kernel tells under /proc and /sys is on no volume")]

use std::fs;

/// Memory, in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// What the machine has left.
    pub available: u64,
    /// What this process can have of it.
    pub usable: u64,
    /// Limit and use of the control group, where there is a limit.
    pub group: Option<(u64, u64)>,
}

impl Memory {
    /// As it is now; unknown where the kernel does not say.
    pub fn now() -> Option<Self> {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let available = kilobytes(&meminfo, "MemAvailable:")?.saturating_mul(1024);
        let group = group_limit();
        let usable = group.map_or(available, |(limit, used)| available.min(limit.saturating_sub(used)));
        Some(Self { available, usable, group })
    }
}

fn kilobytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Limit and use of the control group, where there is a limit. What the page cache holds is given
/// back when it is needed, and does not count.
fn group_limit() -> Option<(u64, u64)> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let read = |name: &str| {
        let at = |group: &str| fs::read_to_string(format!("/sys/fs/cgroup{group}/{name}")).ok();
        at(own.trim_end_matches('/')).or_else(|| at(""))
    };
    let limit = read("memory.max")?.trim().parse().ok()?;
    let used: u64 = read("memory.current")?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix("file ")?.trim().parse::<u64>().ok()).unwrap_or(0);
    Some((limit, used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        assert_eq!(kilobytes("MemTotal:  10 kB\nMemAvailable:   77 kB\n", "MemAvailable:"), Some(77));
        assert_eq!(kilobytes("MemTotal: x kB", "MemTotal:"), None);
        assert!(Memory::now().is_some_and(|memory| memory.usable > 0));
    }
}
