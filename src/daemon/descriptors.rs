//! How many connections the limit on open files allows.
//!
//! Owns the arithmetic of descriptors: running out of them shows as failures of everything else,
//! names of hosts first.

use rustix::process::{Resource, getrlimit};

/// Open files of an owner without a connection: runtimes, store, socket, signals, records of
/// ownership, and what the blocking threads have open for a moment.
const BASE: u64 = 40;
/// Open files of one connection: its socket, one to the Hub, the partial twice, its claims, its folder.
const EACH: u64 = 6;

/// Most connections that each of `jobs` jobs may have. At least 1.
pub fn connections_max(jobs: usize) -> usize {
    allowed(getrlimit(Resource::Nofile).current, jobs)
}

fn allowed(limit: Option<u64>, jobs: usize) -> usize {
    let Some(limit) = limit else { return usize::MAX };
    let all = usize::try_from(limit.saturating_sub(BASE) / EACH).unwrap_or(usize::MAX);
    (all / jobs.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_stay_below_the_limit_on_open_files() {
        for (limit, jobs, most) in
            [(Some(64), 1, 4), (Some(1024), 1, 196), (Some(1024), 2, 98), (Some(10), 1, 1), (None, 2, usize::MAX)]
        {
            assert_eq!(allowed(limit, jobs), most, "{limit:?} {jobs}");
        }
    }
}
