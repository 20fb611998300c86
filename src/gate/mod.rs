//! The gate: proof before launch.
//!
//! Owns the check of a model directory against its manifest and receipt, the wait for one that
//! is not complete, and the hand-over to the launcher. Invariants (P2): it opens only on proof;
//! it needs no network, daemon or database; and it writes nothing in the model directory. Only
//! [`verify`](mod@verify) and [`accept`](mod@accept), which are other verbs, renew a receipt.

pub mod accept;
pub mod blocks;
pub mod check;
pub mod compare;
pub(crate) mod edited;
pub mod exec;
pub mod explain;
pub(crate) mod hash;
pub mod hints;
pub mod outlook;
mod policy;
pub mod remember;
pub mod report;
pub mod scrub;
mod second_look;
pub mod sign;
pub mod structure;
mod survey;
pub mod trust;
pub mod verify;
pub mod wait;
