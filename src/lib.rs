//! muster brings a sharded model onto a volume, proves that every byte is the right one, and
//! lets the launcher start only then.

pub mod clock;
pub mod core;
