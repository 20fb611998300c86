//! Refusals: signed URLs that expire, 403 for other reasons, errors with bodies, status codes that lie.

use super::*;

// class: wrong-bytes, ranges
#[test]
fn an_error_with_a_body_on_one_of_several_ranges_is_never_written() {
    let scene = Scene::of(repo(&[("big.bin", 66 * MIB)]));
    scene.hub.pace(16 * MIB);
    let body = "x".repeat(5000);
    let error = Behaviour::Answer(Reply::status(503).body("application/octet-stream", body));
    scene.hub.on(Match::cdn("big.bin").get().covering(66 * MIB - 1)).then(error).times(2);
    scene.world.args(["pull", "org/model", "--connections", "4"]).run().expect_code(0);
    scene.assert_complete();
    assert_eq!(scene.hub.plays_left(), 0);
    assert_eq!(scene.quarantined(), Vec::<PathBuf>::new());
}

// class: proxies
#[test]
fn an_expired_url_is_resolved_again_and_the_file_goes_on_where_it_was() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    let expired = Behaviour::xml_403("AccessDenied", "Request has expired");
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(500_000)).then(expired);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
    assert_eq!(scene.hub.resolves_of("a.bin"), 2);
}

// class: proxies, credentials
#[test]
fn a_403_that_is_no_expiry_is_shown_and_not_repeated() {
    let scene = Scene::of(repo(&[("bad.bin", 100_000), ("good.bin", 100_000)]));
    let refusal = Behaviour::xml_403("SignatureError", "invalid key pair id");
    scene.hub.always(Match::cdn("bad.bin").get(), refusal);
    let out = scene.pull().run().expect_code(17);
    for word in ["bad.bin", "SignatureError: invalid key pair id", "403", &scene.hub.cdn_url()] {
        assert!(out.stderr.contains(word), "{word} is missing: {out}");
    }
    assert_eq!(scene.hub.count(Match::cdn("bad.bin").get()), 2, "once more with a new URL, then no more");
    assert_eq!(scene.hub.resolves_of("bad.bin"), 2);
    scene.assert_in_place("good.bin");
}

// class: credentials
#[test]
fn a_403_of_the_hub_itself_fails_at_once() {
    let scene = Scene::of(repo(&[("good.bin", 100_000)]).file(FileSpec::plain("config.json", "{}\n")));
    let refusal = Reply::status(403).header("X-Error-Message", "You need a licence for this");
    scene.hub.always(Match::plain("config.json").get(), Behaviour::Answer(refusal));
    let out = scene.pull().run().expect_code(17);
    assert!(out.stderr.contains("You need a licence for this"), "{out}");
    assert_eq!(scene.hub.count(Match::plain("config.json").get()), 1);
    scene.assert_in_place("good.bin");
}

// class: proxies
#[test]
fn urls_that_last_five_seconds_are_renewed_before_they_fail() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.signed_urls_last(Duration::from_secs(5));
    scene.hub.pace(150 * KIB);
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::HonestShortBody(200_000)).times(5);
    scene.arrives_without_a_wrong_byte();
    let statuses: BTreeSet<_> = scene.reads_of("a.bin").into_iter().map(|seen| seen.status).collect();
    assert_eq!(statuses, BTreeSet::from([206]));
    let resolves = scene.hub.resolves_of("a.bin");
    assert!((2..=4).contains(&resolves), "{resolves} resolves");
}

// class: proxies
#[test]
fn a_status_that_lies_about_a_file_that_is_there_is_asked_again_under_a_new_url() {
    let scene = Scene::of(repo(&[("a.bin", 300_000), ("b.bin", 200_000), ("c.bin", 100_000)]));
    for (file, status) in [("a.bin", 404), ("b.bin", 410), ("c.bin", 401)] {
        scene.hub.on(Match::cdn(file).get()).then(Behaviour::status(status));
    }
    let out = scene.arrives_without_a_wrong_byte();
    for file in ["a.bin", "b.bin", "c.bin"] {
        assert_eq!((scene.reads_of(file).len(), scene.hub.resolves_of(file)), (2, 2), "{file}");
    }
    assert!(out.took < SOON, "{:?}", out.took);
}

// class: proxies
#[test]
fn a_file_that_its_storage_lacks_is_told_and_the_others_arrive() {
    let scene = Scene::of(repo(&[("bad.bin", 100_000), ("good.bin", 100_000)]));
    let reply = Reply::status(404).body("application/xml", "<Error><Code>NoSuchKey</Code></Error>");
    scene.hub.always(Match::cdn("bad.bin").get(), Behaviour::Answer(reply));
    let out = scene.pull().run().expect_code(17);
    for word in ["bad.bin", "404", "NoSuchKey", "the storage lacks the file", &scene.hub.cdn_url()] {
        assert!(out.stderr.contains(word), "{word} is missing: {out}");
    }
    assert_eq!(scene.reads_of("bad.bin").len(), 2);
    scene.assert_in_place("good.bin");
}

// class: ranges, wrong-bytes
#[test]
fn statuses_that_no_ranged_read_has_are_no_bytes() {
    let statuses = [201, 202, 203, 204, 205, 207, 226, 304];
    let names: Vec<String> = statuses.iter().map(|status| format!("s{status}.bin")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 50_000)).collect();
    let scene = Scene::of(repo(&files));
    for (status, name) in statuses.iter().zip(&names) {
        // With right headers and wrong bytes, where a body may be.
        let reply = Reply::status(*status).header("Content-Range", "bytes 0-49999/50000");
        let body = if matches!(status, 204 | 304) { Vec::new() } else { vec![7; 50_000] };
        scene.hub.on(Match::cdn(name).get()).then(Behaviour::Answer(reply.body("application/octet-stream", body)));
    }
    let out = scene.pull().run();
    assert_eq!(scene.quarantined(), Vec::<PathBuf>::new(), "{out}");
    for name in &names {
        if scene.directory().join(name).exists() {
            scene.assert_in_place(name);
        }
    }
    // What was refused for good is there after the next pull.
    scene.pull().run().expect_code(0);
    scene.assert_complete();
}

// class: proxies, ranges
#[test]
fn a_url_that_ends_in_the_middle_of_a_file_is_renewed_once_for_all_connections() {
    let scene = Scene::of(repo(&[("big.bin", 96 * MIB)]));
    scene.hub.pace(8 * MIB);
    scene.hub.hold_after(24 * MIB);
    let child = scene.world.args(["pull", "org/model", "--connections", "8"]).spawn();
    scene.world.wait_for_received("org/model", 20 * MIB, SOON);
    scene.hub.expire_signed_urls();
    scene.hub.cut(Origin::Cdn);
    scene.hub.release();
    child.wait(Duration::from_secs(60)).expect_code(0);
    scene.assert_complete();
    let refused = scene.reads_of("big.bin").iter().filter(|seen| seen.status == 403).count();
    assert!(refused >= 1, "the old URL was tried");
    assert_eq!(scene.hub.resolves_of("big.bin"), 2, "one new URL for all");
    let sent = scene.hub.bytes_sent_for("big.bin");
    assert!(sent <= 96 * MIB + 9 * MIB, "{sent} bytes: it goes on where it was");
}

// class: proxies
#[test]
fn a_url_is_never_kept_for_the_next_pull() {
    let scene = Scene::of(repo(&[("a.bin", 2 * MIB)]));
    scene.hub.hold_after(MIB);
    let mut child = scene.pull().spawn();
    scene.hub.wait_for_bytes(MIB / 2, SOON);
    child.kill();
    child.wait(SOON);
    scene.hub.expire_signed_urls();
    scene.hub.release();
    scene.hub.forget();
    scene.arrives_without_a_wrong_byte();
    assert!(scene.reads_of("a.bin").iter().all(|seen| seen.status == 206), "{:#?}", scene.reads_of("a.bin"));
}

// class: credentials
#[test]
fn refusals_of_the_hub_end_a_pull_within_seconds_and_are_asked_once() {
    for (status, message) in
        [(401, "Invalid username or password."), (403, "no permission"), (400, "odd"), (451, "law")]
    {
        let scene = Scene::of(repo(&[("a.bin", 1000)]));
        let reply = Reply::status(status).header("X-Error-Message", message);
        scene.hub.always(Match::info(), Behaviour::Answer(reply));
        let out = scene.pull().run().expect_code(17);
        assert_eq!(scene.hub.requests().len(), 1, "{status}");
        assert!(out.stderr.contains(message), "{out}");
    }
}
