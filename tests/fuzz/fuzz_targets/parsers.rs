//! Every target in one program, so that one file can be carried to another machine: the
//! environment variable `TARGET` names the one that runs.

#![no_main]

use std::sync::LazyLock;

use muster_fuzz::targets::{ALL, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TARGET").unwrap_or_default();
    let known = ALL.iter().find(|(known, _)| *known == name);
    known
        .unwrap_or_else(|| {
            panic!("TARGET={name} names none of {:?}", ALL.iter().map(|(name, _)| name).collect::<Vec<_>>())
        })
        .1
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));
