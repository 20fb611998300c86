//! What every HTTP server of muster shares: connections within bounds, and the bearer token.
//!
//! Invariants: a server serves so many connections at most and leaves no task behind; a token is
//! kept as its digest and compared in constant time (P7). What is served, and to whom, is for the
//! servers themselves: the API of an owner, the mirror.

pub mod bearer;
pub mod connections;

pub use bearer::{Admission, BearerToken, BearerTokenError};
pub use connections::{Accepts, Bounds};
