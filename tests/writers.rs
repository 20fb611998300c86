//! Other writers (P6): several processes and hosts on one volume, writers that wake up late, users who
//! plant links, records that say nothing or lie. Whoever cannot be proved dead is waited for a whole
//! lease; what is published stays as it is; and one right model is what comes of it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]
#![allow(unreachable_pub, reason = "`pub` says what the drills may use; no test binary exports anything")]
#![allow(clippy::cast_possible_wrap, reason = "ids of processes, on 64-bit Linux")]

mod faultfs;
mod support;

#[path = "writers/crowd.rs"]
mod crowd;
#[path = "writers/ground.rs"]
mod ground;
#[path = "writers/host.rs"]
mod host;
#[path = "writers/late.rs"]
mod late;
#[path = "writers/leases.rs"]
mod leases;
#[path = "writers/links.rs"]
mod links;
#[path = "writers/lying.rs"]
mod lying;
#[path = "writers/readers.rs"]
mod readers;
