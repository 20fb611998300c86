//! What every integration test stands on: a scripted Hub on real sockets ([`Hub`]), the repositories
//! it serves ([`RepoSpec`]), the faults it plays ([`Behaviour`]) and the real binary ([`Muster`]).
//!
//! It is a witness: nothing here may use the crate under test, so that one misreading of the
//! protocol cannot hide in both. It must not sleep for luck, reach beyond 127.0.0.1, or outlive the
//! value that started it.
//!
//! ```no_run
//! let hub = Hub::start(RepoSpec::kimi(8, 1 << 20, 12).named("org/model"));
//! hub.on(Match::cdn("model-00003")).then(Behaviour::ResetAfter(100_000)).times(2);
//! let out = Muster::on(&hub).args(["pull", "org/model"]).run();
//! ```
#![allow(dead_code, unused_imports, reason = "each test binary compiles this module and uses a part of it")]
#![allow(unreachable_pub, reason = "`pub` says what tests may use; no test binary exports anything")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "blocking files, threads and clocks belong in a harness; the bans are for the product"
)]
#![allow(
    clippy::format_push_string,
    clippy::format_collect,
    clippy::needless_pass_by_value,
    reason = "tests read better, and wait for sockets anyway"
)]
#![allow(clippy::result_large_err, reason = "a refusal is a whole answer, and few are made")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "sizes of buffers and ids of processes, on 64-bit Linux"
)]

mod access;
mod api;
mod behaviour;
mod cdn;
mod chaos;
mod content;
mod directory;
mod http;
mod hub;
mod kimi;
mod mount;
mod process;
mod record;
mod repo;
mod resolve;
mod script;
mod server;
mod socket;
mod watch;
mod wire;

use std::time::{Duration, Instant};

pub use behaviour::{Behaviour, Reply};
pub use chaos::{Odds, Played};
pub use content::{Content, git_blob_sha1, sha256_hex};
pub use directory::{
    assert_complete, assert_valid, flip_byte, listing, own_elsewhere, partial_of, partials, receipt, trace,
};
pub use http::Ending;
pub use hub::Hub;
pub use mount::{Disk, Kind, cannot_mount, clone_file};
pub use process::{Child, Invocation, Muster, Output};
pub use record::{Origin, Recorded};
pub use repo::{FileSpec, RepoKind, RepoSpec};
pub use script::{Match, Scripted};
pub use socket::{Api, Events, Owner, answer, submission};
pub use watch::{Flag, Looks, Watch, assert_gate_is_right, is_whole, number, seed};

/// Says that this test could not run here and why; the caller returns. `tests/run` counts the line as
/// skipped, so it goes past the capture of output, which hides what a passed test prints.
pub fn skip(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("\nskipped: {name}: {why}\n");
    std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes()).expect("stderr");
}

/// What waits for nothing is done by then, however busy the machine; the least that muster waits for a silent server
/// by default is longer.
pub const AT_ONCE: Duration = Duration::from_secs(25);

/// Looks at `condition` every few milliseconds until it holds; panics with `what` after `limit`.
#[track_caller]
pub fn wait_until(what: &str, limit: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}
