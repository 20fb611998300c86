//! This machine and this process: descriptors, memory, limits.

#![allow(clippy::disallowed_methods, reason = "what the kernel tells under /proc and /sys is on no volume")]

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::disk::Questions;
use super::finding::{Check, Finding, Section};
use crate::core::units;
use crate::daemon::bounds::by_descriptors;
use crate::daemon::memory::Memory;

/// Less than this is tight for many connections and thousands of files.
const MEMORY_LOW: u64 = 256 << 20;

/// All of these checks. None waits for a disk.
pub(super) fn examine(asked: &Questions) -> Vec<Check> {
    let checks = [
        ("descriptors", descriptors(asked.connections, asked.jobs)),
        ("memory", memory()),
        ("file_size_limit", file_size_limit()),
    ];
    checks.into_iter().map(|(name, finding)| finding.of(Section::Machine, name)).collect()
}

fn descriptors(connections: u16, jobs: u16) -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let shown = limit.current.map_or_else(|| "any number of".to_owned(), |limit| limit.to_string());
    let allowed = by_descriptors(jobs.into());
    let wanted = usize::from(connections);
    let each = if jobs == 1 { "a job".to_owned() } else { format!("each of {jobs} jobs") };
    let finding = if allowed >= wanted {
        Finding::ok(format!("{shown} files may be open: enough for {connections} connections of {each}"))
    } else {
        let found = format!("{shown} files may be open: {allowed} of {connections} connections of {each}");
        Finding::warning(found).advise("raise it: `ulimit -n 4096`, or LimitNOFILE= in the unit of the service")
    };
    finding
        .value("limit", limit.current)
        .value("hard_limit", limit.maximum)
        .value("connections_possible", u64::try_from(allowed).ok().filter(|_| limit.current.is_some()))
        .value("connections_asked", connections)
}

fn memory() -> Finding {
    let Some(Memory { available, usable, group: limit }) = Memory::now() else {
        return Finding::not_checked("the kernel does not say how much memory there is");
    };
    let of = limit.map(|(limit, _)| format!(", of at most {} for this group", units::bytes(limit))).unwrap_or_default();
    let found = format!("{} can be used{of}", units::bytes(usable));
    let finding = if usable < MEMORY_LOW {
        Finding::warning(found).advise("use fewer connections (--connections 4), or give the service more memory")
    } else {
        Finding::ok(found)
    };
    finding.value("available_bytes", available).value("group_limit_bytes", limit.map(|(limit, _)| limit))
}

fn file_size_limit() -> Finding {
    match getrlimit(Resource::Fsize).current {
        None => Finding::ok("a file may have any size").value("limit_bytes", None::<u64>),
        Some(limit) => Finding::warning(format!("this process may write files of at most {}", units::bytes(limit)))
            .advise("lift it: `ulimit -f unlimited`, or LimitFSIZE=infinity in the unit of the service")
            .value("limit_bytes", limit),
    }
}

/// The umask of this process, which the kernel tells without a change.
pub(super) fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let text = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(text.trim(), 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_tells_is_read() {
        assert!(umask().is_some_and(|umask| umask <= 0o777));
    }
}
