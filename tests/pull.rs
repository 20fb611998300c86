//! `muster pull` against a scripted hub: what arrives, what is asked, what is kept.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    unreachable_pub,
    dead_code,
    reason = "a test arranges its own world"
)]

mod support;

use support::*;

const MIB: u64 = 1 << 20;

// class: rate-limits
#[test]
fn a_repository_arrives_whole_and_the_second_pull_asks_once() {
    let repo = RepoSpec::kimi(12, MIB, 21);
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let out = world.args(["pull", &repo.id]).run().expect_code(0);
    let directory = world.model(&repo.id);
    assert_eq!(out.stdout.trim(), directory.display().to_string());
    assert_complete(&directory, &repo);
    assert!(hub.authorization_seen_by_cdn().is_empty());
    for file in repo.files() {
        assert!(hub.resolves_of(&file.path) <= 1, "{} resolved once", file.path);
    }
    hub.forget();
    world.args(["pull", &repo.id]).run().expect_code(0);
    assert_eq!(hub.requests().len(), 1, "{:?}", hub.requests());
}
