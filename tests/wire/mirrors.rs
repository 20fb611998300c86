//! Mirrors, proxies and storage that leave headers out, compress, hold other bytes, or know Xet.

use super::*;

// class: proxies
#[test]
fn headers_that_a_mirror_leaves_out_are_not_missed() {
    let spec = repo(&[("a.bin", 90_000)]).file(FileSpec::plain("config.json", "{ \"a\": 1 }\n"));
    std::thread::scope(|scope| {
        for mask in 0..16u32 {
            let spec = spec.clone();
            scope.spawn(move || {
                let scene = Scene::of(spec);
                let mut traps = Vec::new();
                for (bit, names) in [
                    (1, &["X-Repo-Commit"][..]),
                    (2, &["ETag", "X-Linked-Etag", "X-Linked-Size"]),
                    (8, &["Accept-Ranges", "Content-Type", "RateLimit", "RateLimit-Policy", "X-Request-Id"]),
                ] {
                    if mask & bit != 0 {
                        traps.extend(names.iter().map(|name| Behaviour::drop_header(name)));
                    }
                }
                if mask & 4 != 0 {
                    // No `Content-Length` anywhere.
                    traps.push(Behaviour::Chunked);
                }
                scene.hub.always(Match::any(), Behaviour::All(traps));
                let out = scene.pull().run();
                assert_eq!(out.code, Some(0), "{mask:04b}: {out}");
                scene.assert_complete();
                let reads = (scene.reads_of("a.bin").len(), scene.hub.count(Match::plain("config.json").get()));
                assert_eq!(reads, (1, 1), "{mask:04b}");
            });
        }
    });
}

// class: proxies
#[test]
fn digests_and_sizes_under_another_name_or_of_the_storage_are_not_mistaken_for_the_files() {
    let scene = Scene::of(repo(&[("a.bin", 90_000)]).file(FileSpec::plain("config.json", "{}\n")));
    // Only the storage's own tag, which has 64 digits and means something else; the length of a redirect.
    let alien = Behaviour::All(vec![
        Behaviour::drop_header("X-Linked-Etag"),
        Behaviour::drop_header("X-Linked-Size"),
        Behaviour::set_header("ETag", &format!("\"{}\"", "cd".repeat(32))),
    ]);
    scene.hub.always(Match::hub("/resolve/"), alien.clone());
    scene.hub.always(Match::cdn("").get(), Behaviour::ChangedEtag("ef".repeat(32)));
    scene.arrives_without_a_wrong_byte();
}

// class: proxies, wrong-bytes
#[test]
fn metadata_that_contradict_the_listing_end_the_file_and_name_both() {
    for (name, value, words) in [
        ("X-Linked-Size", "89999".to_owned(), "size expected 90000, found 89999"),
        ("X-Linked-Etag", format!("\"{}\"", "ab".repeat(32)), "digest"),
        ("X-Repo-Commit", "c".repeat(40), "commit"),
        ("X-Repo-Commit", "main".to_owned(), "commit"),
    ] {
        let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 1000)]));
        scene.hub.always(Match::resolve("a.bin"), Behaviour::set_header(name, &value));
        let out = scene.pull().run().expect_code(17);
        assert!(out.stderr.contains(words) && out.stderr.contains(&scene.hub.url()), "{name}: {out}");
        assert_eq!(scene.reads_of("a.bin").len(), 0, "{name}");
        scene.assert_in_place("b.bin");
    }
}

// class: proxies
#[test]
fn whoever_compresses_what_was_asked_for_as_it_is_gets_refused_and_only_then() {
    let spec = repo(&[("a.bin", 90_000)]).file(FileSpec::plain("config.json", "{ \"a\": 1 }\n"));
    // Where compression is allowed: nobody asks for it.
    let scene = Scene::of(spec.clone());
    scene.arrives_without_a_wrong_byte();
    let seen = scene.hub.requests();
    assert!(seen.iter().all(|one| one.header("accept-encoding") == Some("identity")), "{seen:#?}");
    // On wholes alone: ranges are asked for, of small files, too.
    let scene = Scene::of(spec.clone());
    for file in [Match::cdn("a.bin"), Match::plain("config.json")] {
        scene.hub.always(file.get().without_range(), Behaviour::Gzip);
    }
    scene.arrives_without_a_wrong_byte();
    // For a while.
    let scene = Scene::of(spec.clone());
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::Gzip);
    scene.hub.on(Match::plain("config.json").get()).then(Behaviour::Gzip);
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.stderr.contains("content encoding `gzip`"), "{out}");
    // Answers of the API.
    for question in [Match::info(), Match::tree()] {
        let scene = Scene::of(spec.clone());
        scene.hub.always(question, Behaviour::set_header("Content-Encoding", "gzip"));
        let out = scene.pull().run().expect_code(17);
        assert!(out.stderr.contains("compressed") && out.stderr.contains("proxy"), "{out}");
    }
}

// class: proxies
#[test]
fn a_weak_tag_or_the_word_identity_is_no_compression() {
    let scene = Scene::of(repo(&[("a.bin", 90_000)]).file(FileSpec::plain("config.json", "{}\n")));
    let odd = Behaviour::All(vec![Behaviour::WeakEtag, Behaviour::set_header("Content-Encoding", "identity")]);
    scene.hub.always(Match::any(), odd);
    scene.arrives_without_a_wrong_byte();
    assert_eq!(scene.reads_of("a.bin").len(), 1);
}

// class: proxies, wrong-bytes
#[test]
fn a_login_page_in_the_place_of_any_answer_is_named_as_a_page() {
    for question in [Match::info(), Match::tree(), Match::resolve("a.bin")] {
        let scene = Scene::of(repo(&[("a.bin", 90_000)]));
        scene.hub.always(question.clone(), Behaviour::html_page());
        let out = scene.pull().run().expect_code(17);
        assert!(
            out.stderr.contains("a page for people") && out.stderr.contains(&scene.hub.url()),
            "{question:?}: {out}"
        );
        assert_eq!(scene.hub.count(question.clone()), 1, "{question:?}");
    }
}

// class: proxies
#[test]
fn a_repository_that_lies_in_xet_comes_by_plain_http_and_asks_for_no_xet_token() {
    let spec = repo(&[("a.bin", 300_000), ("b.bin", 200_000)]).with_xet();
    let scene = Scene::of(spec.clone());
    scene.arrives_without_a_wrong_byte();
    assert_eq!(scene.hub.count(Match::hub("xet-read-token")), 0);
    assert_eq!(scene.hub.count(Match::cdn("reconstructions")), 0);
    let accepts_xet = |seen: &Recorded| seen.header("accept").is_some_and(|accept| accept.contains("xet"));
    assert!(!scene.hub.requests().iter().any(accepts_xet));
}

// class: proxies
#[test]
fn a_mirror_that_answers_with_every_byte_is_the_only_one_asked() {
    // Small files lie at the Hub itself: one whose every file does sends nobody elsewhere.
    let spec = RepoSpec::new("org/model")
        .plain("config.json", "{}\n")
        .plain("folder/notes.md", "notes\n".repeat(1000))
        .plain("weights.bin", Content::generated(3, 300_000));
    let scene = Scene::of(spec);
    scene.hub.unreachable(Origin::Cdn);
    scene.arrives_without_a_wrong_byte();
    assert!(scene.hub.matching(Match::plain("weights.bin").get()).iter().all(|seen| seen.status == 206));
}

// class: proxies
#[test]
fn a_pull_through_a_mirror_of_ours_asks_the_hub_for_nothing() {
    let scene = Scene::of(RepoSpec::kimi(3, 40_000, 8).named("org/model"));
    scene.arrives_without_a_wrong_byte();
    let mut mirror = scene.world.args(["mirror", "--listen", "127.0.0.1:0"]).spawn();
    mirror.wait_for_text("http://127.0.0.1:", SOON);
    let said = mirror.stdout_so_far() + &mirror.stderr_so_far();
    let url: String =
        said.split("http://").nth(1).unwrap().chars().take_while(|c| c.is_ascii_digit() || ".:".contains(*c)).collect();
    scene.hub.forget();
    let elsewhere = scene.world.home().join("elsewhere");
    let pull = scene.pull().arg("--endpoint").arg(format!("http://{url}")).arg("--volume").arg(&elsewhere);
    pull.run().expect_code(0);
    assert_complete(&elsewhere.join("org/model"), &scene.repo);
    assert_eq!(scene.hub.requests().len(), 0);
    mirror.terminate();
    mirror.wait(SOON).expect_code(0);
}

// class: proxies, ranges
#[test]
fn an_answer_of_the_whole_to_one_byte_is_not_read() {
    // The one byte that tells a server in trouble from a file at fault.
    let scene = Scene::of(repo(&[("bad.bin", 90_000), ("small.bin", 40 * MIB)]));
    scene.hub.always(Match::cdn("bad.bin").get(), Behaviour::status(503));
    scene.hub.always(Match::cdn("small.bin").get().covering(0), Behaviour::IgnoreRange);
    let child = scene.world.args(["pull", "org/model", "--connections", "2", "--log", "info"]).spawn();
    let asked = |seen: &Recorded| seen.range == Some((0, Some(0)));
    wait_until("the question", Duration::from_secs(40), || scene.reads_of("small.bin").iter().any(asked));
    wait_until("its end", SOON, || !scene.reads_of("small.bin").iter().any(|seen| asked(seen) && seen.status == 0));
    drop(child);
    let probes: Vec<_> = scene.reads_of("small.bin").into_iter().filter(asked).collect();
    assert!(probes.iter().all(|seen| seen.body_bytes_sent < 4 * MIB), "{probes:#?}");
}

// class: proxies, ranges
#[test]
fn a_short_answer_of_a_caching_mirror_again_and_again_at_one_place_ends() {
    let scene = Scene::of(repo(&[("a.bin", 600_000), ("b.bin", 90_000)]));
    // Each answer ends at 128 KiB behind its start, whatever its head says.
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(128 << 10)).times(4);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}
