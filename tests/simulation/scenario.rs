//! What a scenario is made of, from which ranges it is drawn, and the bound that no plan can beat.

use std::fmt;

/// Bytes of the reference job: 119 shards.
pub const SHARDS: usize = 119;
pub const SHARD_BYTES: u64 = 4_540_000_000;
/// Connections that are used without being asked for.
pub const CONNECTIONS: usize = 32;

const MB: f64 = 1e6;

/// Every hazard with its range, drawn uniformly.
///
/// | hazard | from | to |
/// |---|---|---|
/// | link, MB/s | 12.5 (100 Mbit/s) | 12 500 (100 Gbit/s) |
/// | one connection at most, MB/s | 20 | 2 000 |
/// | disk, MB/s | 100 | 10 000 |
/// | round trip, ms | 1 | 200 |
/// | more until the first byte of an answer, ms | 0 | 300 |
/// | seconds between losses of one connection | 60 | 3 600 |
/// | share of connections on a slow edge | 0 | 0.1 |
/// | speed of the slow edge | 0.001 | 0.5 |
/// | connections above which throughput collapses | 8 | 256 |
/// | what is left of it then | 0.05 | 0.8 |
/// | answers of the resolver allowed in 5 minutes | 1 000 | 5 000 |
#[derive(Debug, Clone)]
pub struct Scenario {
    pub link: f64,
    pub connection: f64,
    pub disk: f64,
    pub round_trip_s: f64,
    pub first_byte_s: f64,
    pub loss_every_s: f64,
    pub slow_share: f64,
    pub slow_speed: f64,
    pub collapse_above: usize,
    pub collapse_to: f64,
    pub quota: u32,
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
            first_byte_s: between(0.0, 0.3),
            loss_every_s: between(60.0, 3600.0),
            slow_share: between(0.0, 0.1),
            slow_speed: between(0.001, 0.5),
            collapse_above: between(8.0, 256.0) as usize,
            collapse_to: between(0.05, 0.8),
            quota: between(1000.0, 5000.0) as u32,
        }
    }

    /// Bytes a second that `open` connections carry at most together.
    pub fn capacity(&self, open: usize) -> f64 {
        let link = if open > self.collapse_above { self.link * self.collapse_to } else { self.link };
        link.min(self.disk)
    }

    /// No plan is faster: all bytes over the slowest of link, disk, and as many connections as may
    /// be open at once, each as fast as one can be; and the first answer has to come.
    pub fn bound_s(&self) -> f64 {
        let carried = |open: usize| self.capacity(open).min(self.connection * open as f64);
        let best = (1..=CONNECTIONS).map(carried).fold(0.0, f64::max);
        (SHARDS as u64 * SHARD_BYTES) as f64 / best + 2.0 * self.round_trip_s
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "link {:.0}, connection {:.0}, disk {:.0} MB/s, round trip {:.0} + {:.0} ms, lost every {:.0} s, \
             {:.1} % at {:.3} of the speed, collapse above {} to {:.2}, quota {}",
            self.link / MB,
            self.connection / MB,
            self.disk / MB,
            self.round_trip_s * 1e3,
            self.first_byte_s * 1e3,
            self.loss_every_s,
            self.slow_share * 100.0,
            self.slow_speed,
            self.collapse_above,
            self.collapse_to,
            self.quota
        )
    }
}
