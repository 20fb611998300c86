//! Sources: things that serve byte ranges of a file.
//!
//! A source promises exact answers: what [`Body`] yields are the bytes asked for, in
//! order, and never one more; anything else is a typed [`error::ReadError`]. There is one source
//! so far, the Hub over HTTP (and whatever speaks like it); another becomes a variant beside it.

mod body;
pub mod error;
pub mod head;
mod health;
pub mod http;

pub use body::Body;
pub use error::{Problem, ReadError};
pub use health::Blame;
pub use http::HubSource;
