//! Bounds and defaults, each with its unit in its name or type and its reason.
//!
//! Pure numbers. What a user may change has its default here and its key in `config`; what must
//! not be changed without thought stays a constant.

use std::time::Duration;

/// Server asked when nobody says otherwise.
pub const ENDPOINT: &str = "https://huggingface.co";

/// Establishing a connection, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Between a request and the head of its answer.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Between two reads of a body. There is no total timeout: a slow body that moves is fine.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a foreground pull goes on without progress. The daemon goes on without end.
pub const RETRY_FOR: Duration = Duration::from_secs(3600);
/// How long files of an older commit stay in `retired`: a reader whose lock was not seen may
/// still have them open.
pub const RETIRE_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Most connections a user may ask for; more than that collapses before it helps.
pub const CONNECTIONS_MAX: u16 = 256;
/// Most connections that are used without being asked for.
pub const CONNECTIONS_ADAPTIVE_MAX: u16 = 32;
/// Memory that a pull may need without a connection, in bytes.
pub const MEMORY_BASE: u64 = 24 << 20;
/// Memory that each connection may need more, in bytes: what its library, TLS and tasks hold of what
/// comes.
pub const MEMORY_EACH: u64 = 1 << 20;
/// The share of the memory that can be had, as one part in this many, that connections may need.
pub const MEMORY_ONE_IN: u64 = 2;
/// Jobs that a daemon works on at a time; the rest is queued.
pub const JOBS: u16 = 2;
/// Most jobs at a time that a user may ask for.
pub const JOBS_MAX: u16 = 64;

/// Share of the volume that stays free, as one part in this many.
pub const RESERVE_ONE_IN: u64 = 100;
/// The reserve never grows beyond this by itself.
pub const RESERVE_MAX_BYTES: u64 = 10 << 30;

/// How often an owner says that it lives.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(10);
/// How long an owner's silence is believed.
pub const LEASE: Duration = Duration::from_secs(30);
/// How long a stop may sync and claim before it goes without the rest.
pub const STOP_WITHIN: Duration = Duration::from_secs(20);
/// How long the last report and giving the volume back may take then: both are small, so the volume
/// answers at once or hangs.
pub const GIVE_BACK_WITHIN: Duration = Duration::from_secs(3);

/// Bytes a second at which a daemon reads models again, unless told otherwise: 360 GB an hour, and a fraction of
/// what any disk of models gives.
pub const SCRUB_BYTES_PER_S: u64 = 100_000_000;

/// Longest socket address that the kernel takes, its final NUL left out.
pub const SOCKET_PATH_MAX_BYTES: usize = 107;
/// Largest configuration file that is read.
pub const CONFIG_MAX_BYTES: u64 = 1 << 20;

/// Largest file of a model that a rule of a policy looks into: tokenizers and indexes are smaller.
pub const POLICY_FILE_MAX_BYTES: u64 = 64 << 20;

/// Port of `muster mirror`, on the loopback address unless told otherwise.
pub const MIRROR_PORT: u16 = 8642;

/// How long a waiting gate bears that nothing moves.
pub const GATE_STALL: Duration = Duration::from_secs(300);

/// Plain progress lines come at most this often.
pub const PROGRESS_LINE_EVERY: Duration = Duration::from_secs(5);
/// A change of phase may come earlier, but no line sooner than this after the last.
pub const PROGRESS_LINE_MIN_GAP: Duration = Duration::from_secs(1);
/// From this age of the last byte on, progress says that nothing comes.
pub const STALL_SHOWN_AFTER: Duration = Duration::from_secs(10);

/// Shards of the demo's repository: the shape of the reference job.
pub const DEMO_SHARDS: u16 = 119;
/// Bytes of one shard of the demo: about 1 GiB over all shards.
pub const DEMO_SHARD_BYTES: u64 = 9_000_000;
