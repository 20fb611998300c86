//! A stop ends soon whatever the server does, and the next pull goes on from there.

use super::*;

/// Interrupts the pull once `ready`, and looks how long it takes to end.
#[track_caller]
fn assert_stops_soon(scene: &Scene, ready: impl Fn() -> bool) {
    let mut child = scene.world.args(["pull", "org/model", "--connections", "2"]).spawn();
    wait_until("the pull is under way", SOON, ready);
    let asked = Instant::now();
    child.interrupt();
    let out = child.wait(SOON).expect_code(130);
    assert!(asked.elapsed() < AT_ONCE, "it waited for the server: {:?}: {out}", asked.elapsed());
}

// class: stalls, words
#[test]
fn a_stop_ends_soon_while_a_body_stalls_and_keeps_what_came() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(600_000));
    assert_stops_soon(&scene, || scene.world.received("org/model") >= 600_000);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

// class: stalls, words
#[test]
fn a_stop_ends_soon_while_no_head_comes() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallBeforeHeaders);
    assert_stops_soon(&scene, || scene.hub.count(Match::cdn("a.bin")) > 0);
}

// class: rate-limits, words
#[test]
fn a_stop_ends_soon_while_the_server_wants_nobody() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", MIB)]));
    scene.hub.always(Match::cdn("").get(), Behaviour::too_many_requests(300));
    assert_stops_soon(&scene, || scene.hub.count(Match::cdn("")) > 0);
}

// class: stalls, words
#[test]
fn a_stop_ends_soon_while_a_server_is_in_trouble() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", MIB)]));
    scene.hub.always(Match::resolve(""), Behaviour::status(503));
    assert_stops_soon(&scene, || scene.hub.count(Match::resolve("")) > 3);
}

// class: ranges
#[test]
fn a_partial_goes_on_in_one_pass_against_a_server_that_ignores_ranges() {
    let scene = Scene::of(repo(&[("a.bin", 4 * MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(2 * MIB));
    assert_stops_soon(&scene, || scene.hub.bytes_sent_for("a.bin") >= 2 * MIB);
    scene.hub.forget();
    scene.hub.always(Match::cdn("").get(), Behaviour::IgnoreRange);
    scene.arrives_without_a_wrong_byte();
    let sent = scene.hub.bytes_sent_for("a.bin");
    assert!(sent <= 4 * MIB + 512 * KIB, "{sent}: {:#?}", scene.reads_of("a.bin"));
}

// class: ranges
#[test]
fn a_file_beyond_four_gib_is_exact_across_every_power_of_two() {
    let size = (4 << 30) + 3 * MIB + 7;
    let scene = Scene::of(repo(&[("huge.bin", size)]));
    let pull = scene.world.args(["pull", "org/model", "--connections", "4"]);
    pull.time_limit(Duration::from_secs(600)).run().expect_code(0);
    // The receipt was written for the digest of the listing, which the hub computed itself.
    assert_eq!(std::fs::metadata(scene.directory().join("huge.bin")).unwrap().len(), size);
    let beyond = |seen: &Recorded| seen.range.is_some_and(|(_, last)| last.is_none_or(|last| last >= 4 << 30));
    assert!(scene.reads_of("huge.bin").iter().any(beyond));
    assert!(scene.reads_of("huge.bin").iter().all(|seen| seen.body_bytes_sent <= 1 << 30));
}
