//! Answers that are not exactly what was asked: none of their bytes is written where it does not belong.

use super::*;

// class: ranges, wrong-bytes
#[test]
fn ranges_that_were_not_asked_for_are_never_written() {
    let traps = [
        ("shifted-up.bin", Behaviour::ShiftedContentRange(4096)),
        ("shifted-down.bin", Behaviour::ShiftedContentRange(-4096)),
        ("wrong-start.bin", Behaviour::WrongStart(4096)),
        ("wrong-total.bin", Behaviour::WrongTotal(1_000_000)),
        ("nameless.bin", Behaviour::NoContentRange),
        ("longer.bin", Behaviour::LongBody(4096)),
        ("gzip.bin", Behaviour::Gzip),
        ("page.bin", Behaviour::html_page()),
        ("page-chunked.bin", Behaviour::All(vec![Behaviour::html_page(), Behaviour::Chunked])),
        ("pointer.bin", Behaviour::PointerBody),
        ("not-satisfiable.bin", Behaviour::status(416)),
        ("twice.bin", Behaviour::Raw(two_content_ranges("bytes 0-199999/200000", "bytes 4096-204095/300000"))),
    ];
    let files: Vec<_> = traps.iter().map(|(path, _)| (*path, 200_000)).collect();
    let scene = Scene::of(repo(&files));
    for (path, trap) in traps {
        // The second range, so that an offset other than 0 is at stake.
        scene.hub.on(Match::cdn("").suffix(path).get()).then(Behaviour::ShortBody(70_000)).then(trap);
    }
    let out = scene.arrives_without_a_wrong_byte();
    for file in scene.repo.files() {
        let sent = scene.hub.bytes_sent_for(&file.path);
        assert!(sent < 750_000, "{}: {sent} bytes\n{out}", file.path);
    }
    assert!(out.took < SOON, "{:?}", out.took);
}

fn two_content_ranges(first: &str, second: &str) -> Vec<u8> {
    let head = format!("HTTP/1.1 206 Partial Content\r\nContent-Range: {first}\r\nContent-Range: {second}\r\n");
    [format!("{head}Content-Length: 200000\r\n\r\n").into_bytes(), vec![7; 200_000]].concat()
}

// class: wrong-bytes
#[test]
fn a_page_for_people_is_never_written_even_when_it_does_not_say_its_length() {
    let scene = Scene::of(repo(&[("a.bin", 200_000), ("b.bin", 60)]));
    let page = Behaviour::All(vec![Behaviour::html_page(), Behaviour::Chunked]);
    for file in ["a.bin", "b.bin"] {
        scene.hub.on(Match::cdn(file).get()).then(page.clone()).times(2);
    }
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.stderr.contains("text/html"), "{out}");
}

// class: ranges
#[test]
fn odd_but_legal_answers_are_taken_at_once() {
    let scene = Scene::of(repo(&[("capital.bin", 90_000), ("star.bin", 90_000), ("chunked.bin", 90_000)]));
    scene.hub.on(Match::cdn("capital.bin").get()).then(Behaviour::CapitalBytes);
    scene.hub.on(Match::cdn("star.bin").get()).then(Behaviour::StarTotal);
    scene.hub.on(Match::cdn("chunked.bin").get()).then(Behaviour::Chunked);
    scene.arrives_without_a_wrong_byte();
    for file in scene.repo.files() {
        assert_eq!(scene.reads_of(&file.path).len(), 1, "{}", file.path);
    }
}

// class: ranges
#[test]
fn bytes_beyond_the_announced_length_are_not_taken() {
    let scene = Scene::of(repo(&[("a.bin", 200_000)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::Overrun(4096)).times(1);
    scene.arrives_without_a_wrong_byte();
}

// class: ranges
#[test]
fn a_server_that_ignores_ranges_sends_small_files_whole_and_once() {
    let scene = Scene::of(repo(&[("a.bin", 3 * MIB), ("b.bin", 200_000)]));
    scene.hub.always(Match::cdn("").get(), Behaviour::IgnoreRange);
    scene.arrives_without_a_wrong_byte();
    for file in scene.repo.files() {
        assert_eq!(scene.reads_of(&file.path).len(), 1, "{}", file.path);
        assert_eq!(scene.hub.bytes_sent_for(&file.path), file.size());
    }
}

// class: ranges
#[test]
fn a_server_that_ignores_ranges_gets_one_stream_instead_of_eight() {
    let scene = Scene::of(repo(&[("big.bin", 70 * MIB)]));
    scene.hub.always(Match::cdn("").get(), Behaviour::IgnoreRange);
    scene.world.args(["pull", "org/model", "--connections", "8"]).run().expect_code(0);
    scene.assert_complete();
    let sent = scene.hub.bytes_sent_for("big.bin");
    assert!(sent <= 78 * MIB, "{sent} bytes: {:#?}", scene.reads_of("big.bin"));
    assert!(scene.reads_of("big.bin").len() <= 2);
}

// class: ranges
#[test]
fn what_a_first_stream_brought_is_not_written_twice_when_ranges_are_ignored() {
    let scene = Scene::of(repo(&[("a.bin", 2 * MIB)]));
    // The second stream begins with other bytes: those before the break were taken already.
    let other = Behaviour::All(vec![Behaviour::IgnoreRange, Behaviour::FlipByte(1000)]);
    let cut = Behaviour::All(vec![Behaviour::IgnoreRange, Behaviour::ResetAfter(MIB)]);
    scene.hub.on(Match::cdn("a.bin").get()).then(cut).then(Behaviour::IgnoreRange).then(other);
    let out = scene.arrives();
    assert_eq!(scene.quarantined(), Vec::<PathBuf>::new(), "{out}");
}

// class: ranges
#[test]
fn a_range_that_is_ignored_once_costs_nothing_that_came_before() {
    let scene = Scene::of(repo(&[("a.bin", 2 * MIB)]));
    let cut = Behaviour::ShortBody(MIB);
    scene.hub.on(Match::cdn("a.bin").get()).then(cut).then(Behaviour::IgnoreRange);
    scene.arrives_without_a_wrong_byte();
    assert!(scene.hub.bytes_sent_for("a.bin") < 3 * MIB, "{:#?}", scene.reads_of("a.bin"));
    assert_eq!(scene.reads_of("a.bin").len(), 3);
}

// class: ranges
#[test]
fn etags_that_are_weak_or_change_make_nothing_start_again() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    let changed =
        |etag: &str| Behaviour::All(vec![Behaviour::ChangedEtag(etag.to_owned()), Behaviour::ShortBody(300_000)]);
    let weak = Behaviour::All(vec![Behaviour::WeakEtag, Behaviour::ShortBody(300_000)]);
    scene.hub.on(Match::cdn("a.bin").get()).then(weak).then(changed("one-7")).then(Behaviour::drop_header("ETag"));
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

// class: ranges, wrong-bytes
#[test]
fn bytes_that_come_twice_or_from_elsewhere_under_a_right_head_are_found_by_the_hash() {
    let scene = Scene::of(repo(&[("twice.bin", 300_000), ("elsewhere.bin", 300_000), ("good.bin", 100_000)]));
    scene.hub.on(Match::cdn("twice.bin").get()).then(Behaviour::Stutter(4096));
    let first = Behaviour::ShortBody(100_000);
    scene.hub.on(Match::cdn("elsewhere.bin").get()).then(first).then(Behaviour::Mislabelled(8192));
    let out = scene.arrives();
    let kept: Vec<_> = scene.quarantined().iter().map(|path| std::fs::metadata(path).unwrap().len()).collect();
    assert_eq!(kept.iter().filter(|len| **len == 300_000).count(), 2, "{kept:?} {out}");
    assert_eq!(scene.reads_of("good.bin").len(), 1);
}

// class: ranges, wrong-bytes
#[test]
fn a_file_that_changes_between_two_requests_is_never_a_mixture() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    let changed = Behaviour::All(vec![Behaviour::FlipByte(900_000), Behaviour::ChangedEtag("another".to_owned())]);
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(500_000)).then(changed);
    scene.arrives();
    assert_eq!(scene.reads_of("a.bin").len(), 3, "begun, changed, and once from its start");
    assert!(!scene.quarantined().is_empty());
}

// class: ranges
#[test]
fn a_part_of_a_file_where_the_whole_was_asked_for_is_not_taken() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    // It ignores ranges until it is asked without one.
    let cut = Behaviour::All(vec![Behaviour::IgnoreRange, Behaviour::ResetAfter(300_000)]);
    scene.hub.on(Match::cdn("a.bin").get().with_range()).then(cut).then(Behaviour::IgnoreRange);
    scene.hub.on(Match::cdn("a.bin").get().without_range()).then(Behaviour::WholeAsPartial);
    scene.arrives_without_a_wrong_byte();
    let statuses: Vec<_> = scene.reads_of("a.bin").iter().map(|seen| (seen.range.is_some(), seen.status)).collect();
    assert_eq!(statuses, [(true, 200), (true, 200), (false, 206), (false, 200)]);
}

// class: ranges
#[test]
fn more_than_the_asked_range_is_never_taken_for_it() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene
        .hub
        .on(Match::cdn("a.bin").get())
        .then(Behaviour::ShortBody(300_000))
        .then(Behaviour::WholeAsPartial)
        .times(2);
    scene.arrives_without_a_wrong_byte();
    assert_eq!(scene.reads_of("a.bin").len(), 4);
}

// class: ranges, proxies
#[test]
fn heads_that_are_odd_and_legal_are_read_right() {
    let files = ["interim.bin", "folded.bin", "old.bin", "both.bin"];
    let scene = Scene::of(repo(&files.map(|path| (path, 50_000))));
    let content = |path: &str| scene.repo.get(path).content.to_vec();
    let range = "Content-Range: bytes 0-49999/50000\r\n";
    let answer = |head: String, body: Vec<u8>| Behaviour::Raw([head.into_bytes(), body].concat());
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n";
    for (path, trap) in [
        // An answer before the answer.
        (
            "interim.bin",
            answer(
                format!("{early}HTTP/1.1 206 Partial Content\r\n{range}Content-Length: 50000\r\n\r\n"),
                content("interim.bin"),
            ),
        ),
        // Names in capitals, no reason, blanks around values, the same header twice.
        (
            "folded.bin",
            answer(
                "HTTP/1.1 206 \r\nCONTENT-RANGE:  bytes 0-49999/50000  \r\ncontent-range: bytes 0-49999/50000\r\n\
                 CONTENT-LENGTH:50000\r\nX-Odd: \u{e9}\r\n\r\n"
                    .to_owned(),
                content("folded.bin"),
            ),
        ),
        // HTTP/1.0: the end of the connection is the end of the body.
        ("old.bin", answer(format!("HTTP/1.0 206 Partial Content\r\n{range}\r\n"), content("old.bin"))),
        // Chunks and a length: the chunks count.
        (
            "both.bin",
            answer(
                format!(
                    "HTTP/1.1 206 Partial Content\r\n{range}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nC350\r\n"
                ),
                [content("both.bin"), b"\r\n0\r\n\r\n".to_vec()].concat(),
            ),
        ),
    ] {
        scene.hub.on(Match::cdn(path).get()).then(trap);
    }
    scene.arrives_without_a_wrong_byte();
    for path in files.iter().filter(|path| **path != "both.bin") {
        assert_eq!(scene.reads_of(path).len(), 1, "{path}");
    }
}

// class: ranges
#[test]
fn a_range_past_what_the_server_has_is_refused_and_told() {
    // The listing says more than there is; the resolver has no opinion.
    let short = FileSpec::lfs("short.bin", Content::generated(1, 100_000)).listed_with_size(150_000);
    let scene = Scene::of(repo(&[("good.bin", 100_000)]).file(short));
    scene.hub.always(Match::resolve("short.bin").head(), Behaviour::drop_header("X-Linked-Size"));
    // A partial of the listed size minus one, so that only what is not there is asked for.
    let star = Behaviour::set_header("Content-Range", "bytes 0-99999/*");
    scene.hub.on(Match::cdn("short.bin").get()).then(star);
    let child = scene.pull().spawn();
    wait_until("a refusal", SOON, || scene.reads_of("short.bin").iter().any(|seen| seen.status == 416));
    let mut child = child;
    child.wait_for_text("416", SOON);
    child.interrupt();
    let out = child.wait(SOON).expect_code(130);
    assert!(out.stderr.contains("bytes */100000"), "{out}");
    assert!(!scene.directory().join("short.bin").exists());
    assert_eq!(scene.quarantined(), Vec::<PathBuf>::new());
    let asked: Vec<_> = scene.reads_of("short.bin").into_iter().filter_map(|seen| seen.range).collect();
    assert!(asked.iter().all(|(first, last)| last.is_some_and(|last| *first <= last)), "no empty range: {asked:?}");
}
