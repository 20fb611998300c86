//! The owner's API: HTTP/1.1 and JSON over a unix socket, and over TCP where that was configured.
//!
//! Owns the paths, the bodies that are not core types, who may call, and the client that the verbs
//! use. Invariants: a caller is known before its request is read; everything is bounded
//! (connections, followers, bodies, silence); a token that comes with a job goes to
//! [`crate::daemon::Jobs`] and nowhere else (P7). It decides nothing about jobs.

mod answer;
pub mod client;
pub mod dto;
mod events;
pub mod owner;
mod routes;
pub mod serve;
pub mod socket;

pub use client::{Client, ClientError};
pub use owner::{Candidate, OwnError};
pub use serve::{Door, Service, serve};
pub use socket::{Access, BoundSocket, SocketError, Wish, path_bytes_on};
