//! How many connections the limits on open files and memory allow.
//!
//! Owns the arithmetic: running out of descriptors shows as failures of everything else, names of
//! hosts first, and running out of memory ends the process.

use rustix::process::{Resource, getrlimit};

use super::memory::Memory;
use crate::limits::{MEMORY_BASE, MEMORY_EACH, MEMORY_ONE_IN};

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

/// Most connections that each of `jobs` jobs may have, as things are now. At least 1.
pub fn connections_max(jobs: usize) -> usize {
    by_descriptors(jobs).min(by_memory(Memory::now().map(|memory| memory.usable), jobs))
}

/// Most of them by the limit on open files alone.
pub fn by_descriptors(jobs: usize) -> usize {
    shared(getrlimit(Resource::Nofile).current.map(connections), jobs)
}

/// How many small files each of `jobs` jobs may sync at a time. At least 1.
pub fn syncs(jobs: usize) -> usize {
    shared(Some(getrlimit(Resource::Nofile).current.map_or(SYNCS_MAX, all_syncs)), jobs)
}

/// Connections of all jobs under a limit on open files.
fn connections(limit: u64) -> u64 {
    limit.saturating_sub(BASE + all_syncs(limit)) / EACH
}

fn all_syncs(limit: u64) -> u64 {
    (limit.saturating_sub(BASE) / SYNCS_ONE_IN).min(SYNCS_MAX)
}

/// Most of them by the memory that can be had, in bytes.
fn by_memory(usable: Option<u64>, jobs: usize) -> usize {
    shared(usable.map(|usable| (usable / MEMORY_ONE_IN).saturating_sub(MEMORY_BASE) / MEMORY_EACH), jobs)
}

fn shared(all: Option<u64>, jobs: usize) -> usize {
    let Some(all) = all else { return usize::MAX };
    (usize::try_from(all).unwrap_or(usize::MAX) / jobs.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::pace::{Pace, Window};

    #[test]
    fn connections_stay_below_the_limit_on_open_files() {
        for (limit, jobs, most) in
            [(Some(64), 1, 3), (Some(1024), 1, 153), (Some(1024), 2, 76), (Some(10), 1, 1), (None, 2, usize::MAX)]
        {
            assert_eq!(shared(limit.map(connections), jobs), most, "{limit:?} {jobs}");
        }
        assert_eq!([10, 64, 1024, 1 << 20].map(all_syncs), [0, 3, 64, 64]);
    }

    #[test]
    fn connections_stay_within_half_of_the_memory_that_can_be_had() {
        for (mib, jobs, most) in [(80, 1, 16), (80, 2, 8), (1024, 2, 244), (10, 1, 1)] {
            assert_eq!(by_memory(Some(mib << 20), jobs), most, "{mib} {jobs}");
        }
        assert_eq!(by_memory(None, 1), usize::MAX);
    }

    #[test]
    fn a_pace_never_exceeds_what_memory_allows_however_much_more_would_carry() {
        let most = by_memory(Some(80 << 20), 2);
        let mut pace = Pace::adaptive(most, Some(200));
        for _ in 0..100 {
            let bytes = 1_000_000 * pace.level() as u64;
            let span = std::time::Duration::from_secs(1);
            assert!(pace.observe(&Window { span, bytes, failures: 0, busy: true, files: 9 }) <= most);
        }
    }
}
