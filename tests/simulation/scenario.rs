//! What a scenario is made of, from which ranges it is drawn, and the bound that no plan can beat.

use std::fmt;

use muster::limits;

/// Connections that are used without being asked for.
pub const CONNECTIONS: usize = limits::CONNECTIONS_ADAPTIVE_MAX as usize;
/// What the Hub answers an anonymous caller of its resolver in five minutes.
pub const ANONYMOUS_QUOTA: u32 = 3000;
/// How long a quota lasts, s.
pub const QUOTA_WINDOW_S: f64 = 300.0;
/// What is smaller comes from the Hub itself, and counts against its quota too.
pub const SMALL: u64 = 16 << 20;

const SHARDS: usize = 119;
const SHARD_BYTES: u64 = 4_540_000_000;
/// Configuration, tokenizer, code and words beside the shards, bytes.
const BESIDE: [u64; 21] = [
    10_400_000, 9_200_000, 2_730_000, 910_000, 310_000, 120_000, 96_000, 41_000, 28_000, 19_000, 12_000, 11_000, 9_800,
    7_600, 6_100, 4_400, 3_100, 1_900, 1_500, 620, 210,
];

const MB: f64 = 1e6;

/// The reference job: 540 GB in 119 shards, and 21 small files beside them.
pub fn reference_job() -> Vec<u64> {
    [SHARD_BYTES; SHARDS].into_iter().chain(BESIDE).collect()
}

/// Every hazard with its range, drawn uniformly.
///
/// | hazard | from | to |
/// |---|---|---|
/// | link, MB/s | 12.5 (100 Mbit/s) | 12 500 (100 Gbit/s) |
/// | one connection at most, MB/s | 20 | 2 000 |
/// | disk, MB/s | 100 | 10 000 |
/// | latency: a round trip, ms | 1 | 200 |
/// | jitter: more until the first byte of an answer, at most, ms | 0 | 300 |
/// | seconds between losses of one connection, on average | 60 | 3 600 |
/// | share of connections on a slow edge | 0 | 0.1 |
/// | speed of the slow edge | 0.001 | 0.5 |
/// | connections above which throughput collapses | 8 | 256 |
/// | what is left of it then | 0.05 | 0.8 |
/// | throttling: requests that the resolver answers in 5 minutes | 1 000 | 5 000 |
/// | of these used up by others before the job begins | 0 | 1 |
/// | seconds until the first such window ends | 0 | 300 |
///
/// Beside them, always: a new connection costs two round trips more and begins with ten segments
/// in each (TCP's slow start), one whose answer was read to its end goes on as it is; a location
/// is good for an hour; one request more than the quota is refused (429) until its window ends.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub link: f64,
    pub connection: f64,
    pub disk: f64,
    pub round_trip_s: f64,
    pub jitter_s: f64,
    pub loss_every_s: f64,
    pub slow_share: f64,
    pub slow_speed: f64,
    pub collapse_above: usize,
    pub collapse_to: f64,
    pub quota: u32,
    pub quota_used: f64,
    pub quota_resets_s: f64,
}

impl Scenario {
    pub fn drawn(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut between = |from: f64, to: f64| from + (to - from) * random.f64();
        Self {
            link: between(12.5, 12_500.0) * MB,
            connection: between(20.0, 2000.0) * MB,
            disk: between(100.0, 10_000.0) * MB,
            round_trip_s: between(0.001, 0.2),
            jitter_s: between(0.0, 0.3),
            loss_every_s: between(60.0, 3600.0),
            slow_share: between(0.0, 0.1),
            slow_speed: between(0.001, 0.5),
            collapse_above: between(8.0, 256.0) as usize,
            collapse_to: between(0.05, 0.8),
            quota: between(1000.0, 5000.0) as u32,
            quota_used: between(0.0, 1.0),
            quota_resets_s: between(0.0, QUOTA_WINDOW_S),
        }
    }

    /// A world without hazards: each connection carries so much, and the link as much as all of
    /// them; an answer takes a millisecond.
    pub fn calm(connection: f64, connections: usize) -> Self {
        Self {
            link: connection * connections as f64,
            connection,
            disk: f64::MAX,
            round_trip_s: 0.001,
            jitter_s: 0.0,
            loss_every_s: f64::INFINITY,
            slow_share: 0.0,
            slow_speed: 1.0,
            collapse_above: usize::MAX,
            collapse_to: 1.0,
            quota: ANONYMOUS_QUOTA,
            quota_used: 0.0,
            quota_resets_s: QUOTA_WINDOW_S,
        }
    }

    /// Bytes a second that `open` connections carry at most together.
    pub fn capacity(&self, open: usize) -> f64 {
        let link = if open > self.collapse_above { self.link * self.collapse_to } else { self.link };
        link.min(self.disk)
    }

    /// Requests that the resolver answers in the first window.
    pub fn answers_left(&self) -> u32 {
        self.quota - (f64::from(self.quota) * self.quota_used) as u32
    }

    /// Bytes a second at the best number of connections: the slowest of link, disk, and as many
    /// connections as may be open at once, each as fast as one can be.
    pub fn best_rate(&self, connections: usize) -> f64 {
        let carried = |open: usize| self.capacity(open).min(self.connection * open as f64);
        (1..=connections).map(carried).fold(0.0, f64::max)
    }

    /// No plan is faster: two answers have to come, and then
    ///
    /// `max(bytes / rate, window + bytes of the files that the first window leaves / rate)`
    ///
    /// with [`Scenario::best_rate`]. Each file takes an answer of the resolver, a small one that
    /// comes from the Hub itself another; files that the first window has no answers for, the
    /// smallest, begin when the next one begins.
    pub fn bound_s(&self, files: &[u64], connections: usize) -> f64 {
        let rate = self.best_rate(connections);
        let mut sizes = files.to_vec();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let mut answers = 0;
        let left = sizes.iter().filter(|size| {
            answers += if **size < SMALL { 2 } else { 1 };
            answers > self.answers_left()
        });
        let (count, bytes) = left.fold((0, 0.0), |(count, bytes), size| (count + 1, bytes + *size as f64));
        let later = if count == 0 { 0.0 } else { self.quota_resets_s + bytes / rate };
        2.0 * self.round_trip_s + later.max(files.iter().sum::<u64>() as f64 / rate)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "link {:.0}, connection {:.0}, disk {:.0} MB/s, round trip {:.0} + {:.0} ms, lost every {:.0} s, \
             {:.1} % at {:.3} of the speed, collapse above {} to {:.2}, {} of a quota of {} left for {:.0} s",
            self.link / MB,
            self.connection / MB,
            self.disk / MB,
            self.round_trip_s * 1e3,
            self.jitter_s * 1e3,
            self.loss_every_s,
            self.slow_share * 100.0,
            self.slow_speed,
            self.collapse_above,
            self.collapse_to,
            self.answers_left(),
            self.quota,
            self.quota_resets_s,
        )
    }
}
