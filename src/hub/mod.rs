//! The Hub's API: which commit a revision is, what the repository holds there, where each
//! file's bytes are.
//!
//! The only user of that API. A [`HubClient`] speaks to one endpoint and holds the rule that
//! its token goes to that endpoint's origin and nowhere else (P7): every request that carries
//! an `Authorization` header gets it from [`auth::Credential::header_for`]. Redirects are never
//! left to the HTTP library, and everything a server sends is bounded, checked and escaped
//! before it becomes a value or a message.
//!
//! It must not write files, move a file's bytes, or decide what to fetch.

mod answer;
pub mod auth;
mod client;
mod error;
mod faults;
mod greet;
mod hint;
mod limits;
pub mod listing;
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod names;
mod notices;
mod origins;
mod patience;
mod refusal;
mod resolve;
mod transport;
pub mod trust;
pub mod wire;

pub use crate::core::budget::Traffic;
pub use answer::Answer;
pub use auth::{Token, TokenError};
pub use client::{HubClient, HubConfig, Timeouts};
pub use error::{Caller, HubError, Phase};
pub use faults::{EntryFault, PageFault};
pub use greet::Greeting;
pub use origins::Origins;
pub use patience::{Lost, Patience};
pub use refusal::Asked;
pub use resolve::{Location, check_resolver};
