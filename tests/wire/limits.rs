//! Limits and trouble: 429 in every form, servers that fail, files that fail alone.

use super::*;

// class: rate-limits
#[test]
fn nobody_asks_again_before_the_server_wants_it() {
    let two = Duration::from_secs(2);
    let wishes = [
        ("seconds", Behaviour::too_many_requests(2)),
        ("ratelimit", Behaviour::rate_limited("resolvers", 2)),
        ("unavailable", Behaviour::retry_after(503, 2)),
    ];
    let files = [("a.bin", 90_000), ("b.bin", 80_000), ("c.bin", 70_000)];
    std::thread::scope(|scope| {
        for (name, wish) in wishes {
            scope.spawn(move || {
                let scene = Scene::of(repo(&files));
                scene.hub.on(Match::cdn("a.bin").get()).then(wish);
                scene.arrives_without_a_wrong_byte();
                assert_waits(&scene.hub.matching(Match::cdn("").get()), 2, |refused| refused + two);
                assert_eq!(scene.hub.count(Match::cdn("a.bin").get()), 2, "{name}");
            });
        }
        scope.spawn(move || {
            let until = SystemTime::now() + Duration::from_secs(8);
            let scene = Scene::of(repo(&files));
            let started = SystemTime::now();
            scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::retry_at(429, until));
            scene.arrives_without_a_wrong_byte();
            // A date has whole seconds; the hub started before `started`.
            let until = until.duration_since(started).unwrap().saturating_sub(Duration::from_secs(1));
            assert_waits(&scene.hub.matching(Match::cdn("").get()), 2, |_| until);
        });
    });
}

/// Behind the first refusal nothing comes before `until`, but what was under way on the other
/// connections and could not know.
#[track_caller]
fn assert_waits(seen: &[Recorded], connections: usize, until: impl Fn(Duration) -> Duration) {
    let refused = seen.iter().position(|one| one.status == 429 || one.status == 503).expect("the refusal");
    let until = until(seen[refused].at);
    let early = seen[refused + 1..].iter().filter(|one| one.at < until).count();
    assert!(early < connections, "{early} too early: {seen:#?}");
}

// class: rate-limits
#[test]
fn a_429_of_the_resolver_pauses_and_the_pull_ends_by_itself() {
    let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 80_000), ("c.bin", 70_000)]));
    // The last of the three, so that other answers have spoken of a longer window before.
    scene.hub.on(Match::resolve("c.bin")).then(Behaviour::rate_limited("resolvers", 2));
    scene.arrives_without_a_wrong_byte();
    let seen = scene.hub.matching(Match::hub("/resolve/"));
    assert_waits(&seen, 2, |refused| refused + Duration::from_secs(2));
}

// class: rate-limits
#[test]
fn a_server_in_trouble_is_asked_seldom_and_the_pull_goes_on_when_it_recovers() {
    let names: Vec<String> = (0..40).map(|n| format!("file-{n:02}.bin")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 20_000)).collect();
    let scene = Scene::of(repo(&files));
    scene.hub.always(Match::cdn("").get(), Behaviour::status(502));
    let child = scene.world.args(["pull", "org/model", "--connections", "8"]).spawn();
    wait_until("the first failure", SOON, || scene.hub.count(Match::cdn("")) > 0);
    std::thread::sleep(Duration::from_secs(3));
    let asked = scene.hub.count(Match::cdn(""));
    assert!(asked <= 8 * 5, "{asked} requests to a server in trouble");
    scene.hub.behave();
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
}

// class: rate-limits
#[test]
fn a_server_that_stays_in_trouble_ends_the_pull_after_the_time_given() {
    let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 80_000)]));
    scene.hub.always(Match::cdn("").get(), Behaviour::status(502));
    let out = scene.pull().env("MUSTER_RETRY_FOR", "3s").run().expect_code(17);
    assert!(out.stderr.contains("502") && out.stderr.contains(&scene.hub.cdn_url()), "{out}");
    assert!(out.took < SOON, "{:?}", out.took);
}

// class: wrong-bytes, proxies
#[test]
fn a_file_that_keeps_failing_does_not_stop_the_others() {
    let scene = Scene::of(repo(&[("bad.bin", 100_000), ("good.bin", 90_000), ("fine.bin", 80_000)]));
    scene.hub.always(Match::resolve("bad.bin"), Behaviour::status(404));
    let out = scene.pull().run().expect_code(17);
    assert!(out.stderr.contains("bad.bin"), "{out}");
    scene.assert_in_place("good.bin");
    scene.assert_in_place("fine.bin");
    assert!(!scene.directory().join(".muster/receipt.json").exists());
    scene.hub.behave();
    scene.hub.forget();
    scene.arrives();
    assert_eq!(scene.hub.bytes_sent_for("good.bin"), 0, "the others are not fetched again");
}

// class: rate-limits
#[test]
fn a_429_without_a_sensible_wish_is_waited_out_all_the_same() {
    let past = || Behaviour::retry_at(429, SystemTime::now() - Duration::from_secs(3600));
    let with = |value: &str| Behaviour::Answer(Reply::status(429).header("Retry-After", value));
    let wishes: Vec<(&str, Behaviour)> = vec![
        ("none", Behaviour::status(429)),
        ("past", past()),
        ("zero", with("0")),
        ("negative", with("-5")),
        ("words", with("a while")),
        ("beyond any number", with("99999999999999999999999999")),
        ("fraction", with("1.5")),
        ("empty", with("")),
        (
            "window without end",
            Behaviour::Answer(Reply::status(429).header("RateLimit", "\"x\";r=-1;t=99999999999999999999")),
        ),
    ];
    std::thread::scope(|scope| {
        for (name, wish) in wishes {
            scope.spawn(move || {
                let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 80_000)]));
                scene.hub.on(Match::info()).then(wish.clone());
                scene.hub.on(Match::cdn("a.bin").get()).then(wish);
                let out = scene.arrives_without_a_wrong_byte();
                assert!(out.took < AT_ONCE, "{name}: {:?}", out.took);
                assert_eq!(scene.hub.count(Match::info()), 2, "{name}");
            });
        }
    });
}

// class: rate-limits
#[test]
fn an_absurdly_long_wish_is_obeyed_for_minutes_at_most_and_a_stop_is_not() {
    let scene = Scene::of(repo(&[("a.bin", 90_000)]));
    scene.hub.always(Match::cdn("a.bin").get(), Behaviour::too_many_requests(4_000_000_000));
    let mut child = scene.pull().spawn();
    wait_until("the refusal", SOON, || scene.hub.count(Match::cdn("a.bin").get()) == 1);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(scene.hub.count(Match::cdn("")), 1, "nobody asks again");
    assert!(child.is_running());
    child.interrupt();
    child.wait(Duration::from_secs(5)).expect_code(130);
}

// class: rate-limits
#[test]
fn a_429_that_never_ends_is_a_bounded_failure_that_a_later_pull_makes_good() {
    let scene = Scene::of(repo(&[("a.bin", 300_000), ("b.bin", 80_000)]));
    let cut = Behaviour::ShortBody(150_000);
    scene.hub.on(Match::cdn("a.bin").get()).then(cut).then(Behaviour::too_many_requests(1)).always();
    let out = scene.pull().env("MUSTER_RETRY_FOR", "3s").time_limit(Duration::from_secs(60)).run().expect_code(17);
    assert!(out.stderr.contains("429") && out.stderr.contains("a.bin"), "{out}");
    let asked = scene.hub.count(Match::cdn("a.bin").get());
    assert!(asked < 20, "{asked} requests");
    scene.hub.behave();
    scene.hub.forget();
    scene.arrives_without_a_wrong_byte();
    assert!(scene.hub.bytes_sent_for("a.bin") <= 160_000, "what came was kept");
}

// class: rate-limits
#[test]
fn pulls_that_are_all_told_to_wait_come_back_one_by_one_and_none_too_early() {
    let id = |n: usize| format!("org/m{n}");
    let hub = Hub::with((0..8).map(|n| repo(&[("a.bin", 1000)]).named(&id(n))));
    let worlds: Vec<_> = (0..8).map(|_| Muster::on(&hub)).collect();
    for n in 0..8 {
        hub.on(Match::hub(&format!("{}/revision/", id(n)))).then(Behaviour::too_many_requests(2));
    }
    let children: Vec<_> = worlds.iter().enumerate().map(|(n, world)| world.args(["pull", &id(n)]).spawn()).collect();
    for child in children {
        child.wait(Duration::from_secs(60)).expect_code(0);
    }
    let mut waited: Vec<_> = (0..8)
        .map(|n| {
            let seen = hub.matching(Match::hub(&format!("{}/revision/", id(n))));
            assert_eq!(seen.iter().map(|one| one.status).collect::<Vec<_>>(), [429, 200]);
            seen[1].at.saturating_sub(seen[0].at)
        })
        .collect();
    waited.sort();
    assert!(waited[0] >= Duration::from_secs(2), "too early: {waited:?}");
    // Each waits up to 3 s longer by a number of its own: eight of them within half a second are a wave.
    assert!(waited[7].saturating_sub(waited[0]) >= Duration::from_millis(500), "in one wave: {waited:?}");
}

// class: rate-limits
#[test]
fn every_connection_of_a_pull_waits_when_one_is_told_to() {
    let names: Vec<String> = (0..24).map(|n| format!("file-{n:02}.bin")).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), 30_000)).collect();
    let scene = Scene::of(repo(&files));
    scene.hub.on(Match::cdn("file-05").get()).then(Behaviour::too_many_requests(2));
    scene.world.args(["pull", "org/model", "--connections", "8"]).run().expect_code(0);
    scene.assert_complete();
    let seen = scene.hub.matching(Match::cdn("").get());
    assert_waits(&seen, 8, |refused| refused + Duration::from_secs(2));
}

// class: wrong-bytes, ranges, stalls
#[test]
fn files_that_can_never_be_had_meet_their_own_ends_while_all_others_arrive() {
    // Each in a way of its own, for ever; with the word that tells it.
    let size = 120_000;
    let lying = |path: &str, listed| FileSpec::lfs(path, Content::generated(9, size)).listed_with_size(listed);
    let cases: Vec<(&str, Behaviour, &str)> = vec![
        ("e503.bin", Behaviour::status(503), "503"),
        ("e500.bin", Behaviour::status(500), "500"),
        ("reset.bin", Behaviour::ResetWithoutAnswer, "broke"),
        ("silent.bin", Behaviour::StallBeforeHeaders, "no answer"),
        ("shifted.bin", Behaviour::ShiftedContentRange(512), "Content-Range"),
        ("refused.bin", Behaviour::status(416), "416"),
        ("gzip.bin", Behaviour::Gzip, "gzip"),
        ("page.bin", Behaviour::html_page(), "text/html"),
        ("pointer.bin", Behaviour::PointerBody, "pointer"),
        ("stuck.bin", Behaviour::StuckAt(70_000), "broke after 0 bytes"),
        ("trickle.bin", Behaviour::Pace(5), "bytes came in"),
        ("loop.bin", Behaviour::RedirectLoop, "redirects"),
    ];
    let good: Vec<String> = (1..=6).map(|n| format!("good-{n}.bin")).collect();
    let mut spec = repo(&good.iter().zip(1..).map(|(path, n)| (path.as_str(), n * 5000)).collect::<Vec<_>>());
    for (path, ..) in &cases {
        spec = spec.file(FileSpec::lfs(path, Content::generated(path.len() as u64, size)));
    }
    spec = spec.file(lying("larger.bin", size + 1000)).file(lying("smaller.bin", size - 1000));
    let scene = Scene::of(spec).hasty();
    for (path, behaviour, _) in &cases {
        scene.hub.always(Match::cdn(path).get(), behaviour.clone());
    }
    let pull = scene.world.args(["pull", "org/model", "--connections", "16", "--log", "info"]);
    let out = pull.env("MUSTER_RETRY_FOR", "1h").time_limit(Duration::from_secs(400)).run().expect_code(17);
    let told: Vec<_> = out.stderr.lines().filter(|line| line.contains("is given up")).collect();
    for (path, _, word) in &cases {
        assert!(told.iter().any(|line| line.contains(path) && line.contains(word)), "{path}: {word}\n{out}");
        assert!(!scene.directory().join(path).exists(), "{path}");
    }
    for path in ["larger.bin", "smaller.bin"] {
        assert!(told.iter().any(|line| line.contains(path)), "{path}\n{out}");
        assert!(!scene.directory().join(path).exists(), "{path}");
    }
    for path in &good {
        scene.assert_in_place(path);
    }
    assert!(!scene.directory().join(".muster/receipt.json").exists());
    for (path, ..) in &cases {
        let asked = scene.reads_of(path).len();
        assert!(asked <= 60, "{path} was asked for {asked} times");
    }
}

// class: rate-limits, stalls
#[test]
fn the_only_file_of_a_server_that_fails_is_retried_for_as_long_as_was_said() {
    // Nothing else tells whether the file is at fault or the server.
    let scene = Scene::of(repo(&[("only.bin", 100_000)]));
    scene.hub.always(Match::cdn("only.bin").get(), Behaviour::status(503));
    let child = scene.pull().env("MUSTER_RETRY_FOR", "1h").spawn();
    wait_until("some tries", SOON, || scene.hub.count(Match::cdn("only.bin").get()) >= 4);
    scene.hub.behave();
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
}
