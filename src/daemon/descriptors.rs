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

/// Most small files of all jobs that are open at a time to be synced: from here on more of them are hardly
/// faster together.
const SYNCS_MAX: u64 = 64;
/// Share of what is left that they may have, as one part in this many.
const SYNCS_ONE_IN: u64 = 8;

/// Most connections that each of `jobs` jobs may have. At least 1.
pub fn connections_max(jobs: usize) -> usize {
    allowed(getrlimit(Resource::Nofile).current, jobs)
}

/// How many small files each of `jobs` jobs may sync at a time. At least 1.
pub fn syncs(jobs: usize) -> usize {
    let all = getrlimit(Resource::Nofile).current.map_or(SYNCS_MAX, all_syncs);
    (usize::try_from(all).unwrap_or(1) / jobs.max(1)).max(1)
}

fn allowed(limit: Option<u64>, jobs: usize) -> usize {
    let Some(limit) = limit else { return usize::MAX };
    let left = limit.saturating_sub(BASE + all_syncs(limit));
    let all = usize::try_from(left / EACH).unwrap_or(usize::MAX);
    (all / jobs.max(1)).max(1)
}

fn all_syncs(limit: u64) -> u64 {
    (limit.saturating_sub(BASE) / SYNCS_ONE_IN).min(SYNCS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_stay_below_the_limit_on_open_files() {
        for (limit, jobs, most) in
            [(Some(64), 1, 4), (Some(1024), 1, 184), (Some(1024), 2, 92), (Some(10), 1, 1), (None, 2, usize::MAX)]
        {
            assert_eq!(allowed(limit, jobs), most, "{limit:?} {jobs}");
        }
        assert_eq!([10, 64, 1024, 1 << 20].map(all_syncs), [0, 3, 64, 64]);
    }
}
