//! In what steps a file larger than its fair share is handed out.
//!
//! Owns their sizes in bytes. A step is worth its request, and otherwise short, so that the bytes of
//! several connections come nearly in order and the hash finds them in memory.

use super::LARGE;
use crate::core::speed::Usual;

/// What the ends of steps are multiples of, and the least step of all.
pub(super) const ALIGN: u64 = 2 << 20;
/// The least step before the end of a file, and the longest.
const MIN: u64 = 8 << 20;
const MAX: u64 = 1 << 30;
/// What a step lasts at the usual speed: as many times as long as the answer to its request. In seconds,
/// at least and at most.
const ANSWERS: f64 = 40.0;
const S_MIN: f64 = 0.25;
const S_MAX: f64 = 4.0;
/// The same of the least step that is worth a request near the end of a file.
const LAST_ANSWERS: f64 = 6.0;
/// The speed that is assumed before one is known, in bytes a second.
const SPEED_ASSUMED: f64 = 64e6;

/// What one connection gets at a time.
pub(super) fn usual(usual: &Usual) -> u64 {
    let seconds = (usual.answer_s() * ANSWERS).clamp(S_MIN, S_MAX);
    let most = if usual.rate() > 0.0 { MAX } else { LARGE };
    bytes_in(usual, seconds).clamp(MIN, most)
}

/// What the longest of steps would have.
pub(super) fn longest(usual: &Usual) -> u64 {
    bytes_in(usual, S_MAX).clamp(LARGE, MAX)
}

/// What is worth a request, however little is left.
pub(super) fn least(usual: &Usual) -> u64 {
    bytes_in(usual, usual.answer_s() * LAST_ANSWERS).max(ALIGN)
}

/// What a connection brings in so many seconds.
fn bytes_in(usual: &Usual, seconds: f64) -> u64 {
    let rate = if usual.rate() > 0.0 { usual.rate() } else { SPEED_ASSUMED };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes of some seconds")]
    let bytes = (rate * seconds) as u64;
    bytes
}
