//! Bodies that end too soon or do not end; connections that break or fall silent, at every phase.

use super::*;

// class: ranges
#[test]
fn a_short_body_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(300_000)).times(2);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

// class: ranges
#[test]
fn a_body_that_is_honest_about_being_short_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::HonestShortBody(300_000)).times(3);
    let out = scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
    assert!(out.took < Duration::from_secs(10), "no back-off after a body that brought something: {:?}", out.took);
}

// class: ranges
#[test]
fn a_chunked_body_that_ends_cleanly_and_early_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    let cut = Behaviour::All(vec![Behaviour::Chunked, Behaviour::ShortBody(300_000)]);
    scene.hub.on(Match::cdn("a.bin").get()).then(cut).times(2).then(Behaviour::Chunked);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

// class: progress-lost
#[test]
fn a_reset_continues_where_it_was() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]).file(FileSpec::plain("config.json", "{ \"a\": 1 }\n")));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ResetAfter(300_000)).times(2);
    scene
        .hub
        .on(Match::plain("config.json").get())
        .then(Behaviour::ResetWithoutAnswer)
        .then(Behaviour::CloseWithoutAnswer);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

// class: stalls
#[test]
fn a_stall_in_the_body_ends_the_request_and_goes_on() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", 100_000)])).hasty();
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(600_000));
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.stderr.contains("no bytes for 2 s"), "{out}");
    assert_goes_on(&scene, "a.bin");
}

// class: stalls
#[test]
fn a_stall_before_the_head_of_an_answer_frees_every_connection() {
    let scene = Scene::of(repo(&[("a.bin", 100_000), ("b.bin", 100_000), ("c.bin", 100_000)])).hasty();
    scene.hub.on(Match::cdn("").get()).then(Behaviour::StallBeforeHeaders).times(3);
    scene.hub.on(Match::resolve("c.bin").head()).then(Behaviour::StallBeforeHeaders);
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.took < SOON, "{:?}", out.took);
}

// class: ranges
#[test]
fn a_body_in_chunks_that_ends_early_in_good_form_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", MIB)]));
    let early = Behaviour::EndEarly(300_000);
    let in_chunks = Behaviour::All(vec![early.clone(), Behaviour::Chunked]);
    scene.hub.on(Match::cdn("a.bin").get()).then(in_chunks).times(2).then(Behaviour::Chunked);
    scene.hub.on(Match::cdn("b.bin").get()).then(early).times(2);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
    assert_goes_on(&scene, "b.bin");
}

/// A head that is cut in the middle of a header.
fn half_a_head() -> Vec<u8> {
    b"HTTP/1.1 206 Partial Content\r\nContent-Type: application/octet-stream\r\nContent-Ra".to_vec()
}

const ENDINGS: [Ending; 3] = [Ending::Close, Ending::Reset, Ending::Stall];

fn facing(ending: Ending, repo: RepoSpec) -> Scene {
    let scene = Scene::of(repo);
    if ending == Ending::Stall { scene.hasty() } else { scene }
}

/// Exactly, but where haste may take a peer for silent that is only slow.
#[track_caller]
fn assert_counts(ending: Ending, seen: [usize; 2], wanted: [usize; 2]) {
    let at_least = || seen.iter().zip(&wanted).all(|(seen, wanted)| seen >= wanted);
    let right = if ending == Ending::Stall { at_least() } else { seen == wanted };
    assert!(right, "{ending:?}: {seen:?} instead of {wanted:?}");
}

// class: stalls, progress-lost
#[test]
fn a_connection_that_ends_or_falls_silent_at_any_phase_costs_one_request() {
    std::thread::scope(|scope| {
        for ending in ENDINGS {
            scope.spawn(move || {
                let scene = facing(ending, repo(&[("a.bin", 200_000), ("b.bin", 200_000)]));
                let cut = |bytes| match ending {
                    Ending::Close => Behaviour::ShortBody(bytes),
                    Ending::Reset => Behaviour::ResetAfter(bytes),
                    Ending::Stall => Behaviour::StallAfter(bytes),
                };
                // Before the head, inside of it, right behind it, in the body, before its last byte.
                let rule = scene.hub.on(Match::cdn("a.bin").get());
                let rule = rule.then(Behaviour::RawThen(Vec::new(), ending));
                let rule = rule.then(Behaviour::RawThen(half_a_head(), ending)).then(cut(0)).then(cut(100_000));
                rule.then(cut(99_999));
                scene.arrives_without_a_wrong_byte();
                assert_goes_on(&scene, "a.bin");
                assert_counts(ending, [scene.reads_of("a.bin").len(), scene.reads_of("b.bin").len()], [6, 1]);
            });
        }
    });
}

// class: stalls
#[test]
fn questions_to_the_hub_survive_each_end_of_a_connection_at_any_phase() {
    std::thread::scope(|scope| {
        for ending in ENDINGS {
            scope.spawn(move || {
                let scene = facing(ending, repo(&[("a.bin", 1000)]).file(FileSpec::plain("config.json", "{}\n")));
                let half_a_body = |status: &str| {
                    format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n[{{")
                        .into_bytes()
                };
                for question in [Match::info(), Match::tree()] {
                    let rule = scene.hub.on(question).then(Behaviour::RawThen(Vec::new(), ending));
                    let rule = rule.then(Behaviour::RawThen(half_a_head(), ending));
                    rule.then(Behaviour::RawThen(half_a_body("200 OK"), ending));
                }
                for question in [Match::resolve("a.bin").head(), Match::resolve("config.json").head()] {
                    let rule = scene.hub.on(question).then(Behaviour::RawThen(Vec::new(), ending));
                    rule.then(Behaviour::RawThen(half_a_head(), ending));
                }
                scene.arrives_without_a_wrong_byte();
                assert_counts(ending, [scene.hub.count(Match::info()), scene.hub.count(Match::tree())], [4, 4]);
            });
        }
    });
}

// class: stalls
#[test]
fn connections_that_are_reset_or_ignored_as_soon_as_they_are_there_are_made_again() {
    let scene = Scene::of(repo(&[("a.bin", 200_000), ("b.bin", 200_000)]));
    scene.hub.turn_away(Origin::Hub, 2);
    scene.hub.turn_away(Origin::Cdn, 3);
    scene.arrives_without_a_wrong_byte();
    let scene = Scene::of(repo(&[("a.bin", 200_000), ("b.bin", 200_000)])).hasty();
    scene.hub.mute(Origin::Cdn, true);
    let child = scene.pull().spawn();
    wait_until("silent connections", SOON, || scene.hub.open_connections(Origin::Cdn) == 2);
    // They are given up, and others come.
    wait_until("new connections", SOON, || scene.hub.peak_connections(Origin::Cdn) >= 2);
    scene.hub.mute(Origin::Cdn, false);
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
}

// class: progress-lost
#[test]
fn a_server_that_comes_back_is_found_again_without_a_byte_lost() {
    let scene = Scene::of(repo(&[("a.bin", 2 * MIB), ("b.bin", 200_000)]));
    scene.hub.hold_after(MIB);
    let child = scene.pull().spawn();
    scene.world.wait_for_received("org/model", MIB - 128 * KIB, SOON);
    scene.hub.unreachable(Origin::Cdn);
    scene.hub.release();
    // Long enough to be refused at least once.
    let refused = || child_says(&child, "a server is in trouble") || child_says(&child, "a read failed");
    wait_until("a refusal", SOON, refused);
    scene.hub.reachable(Origin::Cdn);
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
    assert_goes_on(&scene, "a.bin");
}

fn child_says(child: &Child, text: &str) -> bool {
    child.stderr_so_far().contains(text)
}

// class: stalls, network
#[test]
fn a_connection_that_nobody_accepts_is_given_up_and_named() {
    // A queue for connections that is full: the system answers no more of them.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut waiting = Vec::new();
    for _ in 0..8 {
        match std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            Ok(stream) => waiting.push(stream),
            Err(_) => break,
        }
    }
    assert!(waiting.len() < 8, "the queue is full");
    let scene = Scene::of(repo(&[("a.bin", 1000)])).hasty();
    let out = scene.pull().env("HF_ENDPOINT", format!("http://{address}")).run().expect_code(18);
    assert!(out.stderr.contains("no connection") && out.stderr.contains(&address.to_string()), "{out}");
    assert!(out.took < SOON, "{:?}", out.took);
}

// class: stalls
#[test]
fn a_byte_now_and_then_holds_no_connection_for_ever() {
    let scene = Scene::of(repo(&[("a.bin", 300_000), ("b.bin", 100_000), ("c.bin", 90_000)])).hasty();
    // Within the bound on silence, each of them.
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(100_000)).then(Behaviour::Pace(5)).times(2);
    scene.hub.on(Match::tree()).then(Behaviour::Pace(5));
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.stderr.contains("bytes came in 2 s after"), "{out}");
    assert_goes_on(&scene, "a.bin");
    assert!(out.took < SOON, "{:?}", out.took);
}

// class: stalls
#[test]
fn a_slow_link_is_borne_for_as_long_as_it_takes() {
    let spec = repo(&[("a.bin", 600_000), ("b.bin", 500_000)]).file(FileSpec::plain("c.json", "{}\n"));
    let scene = Scene::of(spec).waiting("5s");
    scene.hub.pace(40 * KIB);
    let out = scene.arrives_without_a_wrong_byte();
    // Longer than every timeout there is, in one request for each file.
    assert!(out.took > Duration::from_secs(12), "{:?}", out.took);
    assert_eq!((scene.reads_of("a.bin").len(), scene.reads_of("b.bin").len()), (1, 1));
}
