//! The contract of the wire: the real binary against a hub that plays every trap once.
//!
//! Each test ends with every byte right, or with a bounded failure that names what happened.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::format_collect,
    unreachable_pub,
    dead_code,
    reason = "a test arranges its own world"
)]

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use support::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(20);
const TOKEN: &str = "hf_TheSecretOfThisTest0123456789abcd";

/// A repository of `org/model` with these LFS files.
fn repo(files: &[(&str, u64)]) -> RepoSpec {
    let file = |(path, len): &(&str, u64)| FileSpec::lfs(path, Content::generated(path.len() as u64 ^ len, *len));
    files.iter().map(file).fold(RepoSpec::new("org/model"), RepoSpec::file)
}

/// A hub, and a world that loses patience soon.
struct Scene {
    hub: Hub,
    world: Muster,
    repo: RepoSpec,
}

impl Scene {
    fn of(repo: RepoSpec) -> Self {
        let hub = Hub::start(repo.clone());
        let mut world = Muster::on(&hub);
        for (name, value) in [
            ("MUSTER_CONNECT_TIMEOUT", "1s"),
            ("MUSTER_HEADER_TIMEOUT", "1s"),
            ("MUSTER_IDLE_TIMEOUT", "1s"),
            ("MUSTER_RETRY_FOR", "20s"),
        ] {
            world = world.env(name, value);
        }
        Self { hub, world, repo }
    }

    fn pull(&self) -> Invocation {
        self.world.args(["pull", &self.repo.id, "--connections", "2", "--log", "info"])
    }

    fn directory(&self) -> PathBuf {
        self.world.model(&self.repo.id)
    }

    /// Pulls, and looks whether every file is there with the right bytes, and nothing else is.
    #[track_caller]
    fn arrives(&self) -> Output {
        let out = self.pull().run().expect_code(0);
        self.assert_complete();
        assert_eq!(self.hub.plays_left(), 0, "the trap was not played: {:#?}\n{out}", self.hub.requests());
        out
    }

    /// As `arrives`; no wrong byte was ever written, so nothing had to be set aside.
    #[track_caller]
    fn arrives_without_a_wrong_byte(&self) -> Output {
        let out = self.arrives();
        assert_eq!(self.quarantined(), Vec::<PathBuf>::new(), "{out}");
        out
    }

    #[track_caller]
    fn assert_complete(&self) {
        for file in self.repo.files() {
            self.assert_in_place(&file.path);
        }
        assert!(self.directory().join(".muster/receipt.json").exists());
        let left = std::fs::read_dir(self.directory().join(".muster/partial")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "no partial stays");
    }

    #[track_caller]
    fn assert_in_place(&self, path: &str) {
        let bytes = std::fs::read(self.directory().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        assert!(sha256_hex(&bytes) == self.repo.get(path).content.sha256(), "{path} has wrong bytes");
    }

    fn quarantined(&self) -> Vec<PathBuf> {
        files_under(&self.world.volume().join(".muster/quarantine"))
    }

    /// Requests for bytes of a file, not for where it is.
    fn reads_of(&self, path: &str) -> Vec<Recorded> {
        let mut all = self.hub.matching(Match::any().get());
        all.retain(|seen| seen.file.as_deref() == Some(path));
        all
    }
}

fn files_under(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            match entry.file_type().unwrap() {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files
}

fn holds(bytes: &[u8], secret: &str) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
}

// ---- the right answers -------------------------------------------------------------------------

#[test]
fn a_repository_behind_a_token_arrives_and_no_secret_leaves_its_origin_or_is_written_down() {
    let scene = Scene::of(RepoSpec::kimi(5, 128 * KIB, 21));
    scene.hub.require_token(TOKEN);
    scene.hub.page_size(4);
    scene.hub.on(Match::cdn("model-00002")).then(Behaviour::ResetAfter(10_000)).then(Behaviour::status(503));
    scene.hub.on(Match::cdn("model-00003")).then(Behaviour::xml_403("AccessDenied", "Request has expired"));
    let loud = scene.world.args(["pull", &scene.repo.id, "--connections", "2", "--log", "trace"]);
    let mut child = loud.env("HF_TOKEN", TOKEN).spawn();
    let id = child.id();
    let title = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
    assert!(!holds(&title, TOKEN));
    assert!(child.is_running());
    let out = child.wait(Duration::from_secs(60)).expect_code(0);
    scene.assert_complete();
    assert!(scene.hub.count(Match::tree()) > 4, "several pages");
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
    assert!(scene.hub.matching(Match::hub("")).iter().all(|seen| seen.header("authorization").is_some()));
    for file in scene.repo.files() {
        let most = if file.path.contains("model-00003") { 2 } else { 1 };
        assert!(scene.hub.resolves_of(&file.path) <= most, "{} was resolved too often", file.path);
    }
    assert_eq!(scene.hub.count(Match::hub("/resolve/").with_range()), 0, "no range is asked of the resolver");
    let queries: Vec<_> = scene.hub.matching(Match::cdn("").get()).into_iter().map(|seen| seen.query).collect();
    let signatures: BTreeSet<_> = queries
        .iter()
        .filter_map(|query| query.split('&').find_map(|pair| pair.strip_prefix("Signature=")).map(str::to_owned))
        .collect();
    assert!(signatures.len() >= 5, "{queries:?}");
    for secret in signatures.iter().map(String::as_str).chain([TOKEN]) {
        assert!(!out.all().contains(secret), "a secret was printed: {out}");
        for file in files_under(scene.world.home()) {
            assert!(!holds(&std::fs::read(&file).unwrap(), secret), "a secret is in {}", file.display());
        }
    }
}

#[test]
fn empty_files_nested_folders_blanks_and_foreign_letters_in_names_are_no_trouble() {
    let repo =
        repo(&[("weights/one file.bin", 70_000), ("überblick 概要/ü ß+&#%41?.bin", 5_000), ("a/b/c/d/e.bin", 1)])
            .file(FileSpec::plain("leer.txt", ""))
            .file(FileSpec::lfs("empty.bin", Content::generated(1, 0)))
            .file(FileSpec::plain("docs/ein %20 name.md", "text\n"));
    let scene = Scene::of(repo);
    scene.arrives_without_a_wrong_byte();
    assert_eq!(
        scene.hub.matching(Match::any()).iter().filter(|seen| seen.file.as_deref() == Some("leer.txt")).count(),
        0
    );
}

#[test]
fn a_renamed_repository_is_followed() {
    let repo = repo(&[("a.bin", 50_000)]).file(FileSpec::plain("config.json", "{}\n")).renamed_from("old/name");
    let scene = Scene::of(repo);
    scene.hub.require_token(TOKEN);
    scene.world.args(["pull", "old/name"]).env("HF_TOKEN", TOKEN).run().expect_code(0);
    let bytes = std::fs::read(scene.world.model("old/name").join("a.bin")).unwrap();
    assert_eq!(sha256_hex(bytes), scene.repo.get("a.bin").sha256());
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
}

#[test]
fn a_redirect_of_the_resolver_to_another_port_never_carries_the_token() {
    let scene = Scene::of(repo(&[("a.bin", 50_000)]).file(FileSpec::plain("config.json", "{}\n")));
    scene.hub.require_token(TOKEN);
    for file in ["a.bin", "config.json"] {
        scene.hub.on(Match::resolve(file).head()).then(Behaviour::RedirectToOtherPort);
    }
    scene.pull().env("HF_TOKEN", TOKEN).run().expect_code(0);
    scene.assert_complete();
    assert!(scene.hub.count(Match::cdn("/resolve/")) >= 2, "it was followed");
    assert_eq!(scene.hub.authorization_seen_by_cdn(), Vec::<String>::new());
}

#[test]
fn a_redirect_of_the_storage_to_another_port_is_followed_with_the_range() {
    let scene = Scene::of(repo(&[("a.bin", 300_000)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(100_000));
    let child = scene.pull().spawn();
    wait_until("the first request", SOON, || scene.hub.count(Match::cdn("a.bin").get()) == 1);
    let first = scene.hub.matching(Match::cdn("a.bin").get()).remove(0);
    let port = scene.hub.address(Origin::Cdn).port();
    let location = format!("http://localhost:{port}{}?{}", first.path, first.query);
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::Redirect { status: 307, location });
    child.wait(SOON).expect_code(0);
    scene.assert_complete();
    let reads = scene.hub.matching(Match::cdn("a.bin").get());
    assert_eq!(reads.iter().map(|seen| seen.status).collect::<Vec<_>>(), [206, 307, 206]);
    assert_eq!(reads[2].range.map(|range| range.0), reads[1].range.map(|range| range.0));
    assert_eq!(reads[2].header("host"), Some(format!("localhost:{port}").as_str()));
    assert!(reads[2].range.unwrap().0 >= 90_000, "it goes on where it was: {:?}", reads[2]);
}

#[test]
fn one_large_file_is_fetched_by_all_connections_and_split_at_the_tail() {
    let scene = Scene::of(repo(&[("big.bin", 72 * MIB + 17)]));
    scene.hub.pace(4 * MIB);
    scene.world.args(["pull", "org/model", "--connections", "8"]).run().expect_code(0);
    scene.assert_complete();
    let reads = scene.reads_of("big.bin");
    assert!(reads.iter().all(|seen| seen.status == 206 && seen.range.is_some()));
    let carried = |seen: &&Recorded| seen.body_bytes_sent > MIB;
    let connections: BTreeSet<_> = reads.iter().filter(carried).map(|seen| seen.connection).collect();
    assert!(connections.len() >= 8, "{reads:#?}");
    assert!(scene.hub.peak_connections(Origin::Cdn) >= 8);
    assert!(scene.hub.bytes_sent_for("big.bin") < 80 * MIB, "{}", scene.hub.bytes_sent_for("big.bin"));
    assert_eq!(scene.hub.resolves_of("big.bin"), 1);
}

// ---- bodies that end too soon, or do not end ----------------------------------------------------

#[test]
fn a_short_body_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(300_000)).times(2);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

#[test]
fn a_body_that_is_honest_about_being_short_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::HonestShortBody(300_000)).times(3);
    let out = scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
    assert!(out.took < Duration::from_secs(10), "no back-off after a body that brought something: {:?}", out.took);
}

#[test]
fn a_chunked_body_that_ends_cleanly_and_early_continues_with_a_new_request() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    let cut = Behaviour::All(vec![Behaviour::Chunked, Behaviour::ShortBody(300_000)]);
    scene.hub.on(Match::cdn("a.bin").get()).then(cut).times(2).then(Behaviour::Chunked);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

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

#[test]
fn a_stall_in_the_body_ends_the_request_and_goes_on() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", 100_000)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(600_000));
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.stderr.contains("no bytes for 1 s"), "{out}");
    assert_goes_on(&scene, "a.bin");
}

#[test]
fn a_stall_before_the_head_of_an_answer_frees_every_connection() {
    let scene = Scene::of(repo(&[("a.bin", 100_000), ("b.bin", 100_000), ("c.bin", 100_000)]));
    scene.hub.on(Match::cdn("").get()).then(Behaviour::StallBeforeHeaders).times(3);
    scene.hub.on(Match::resolve("c.bin").head()).then(Behaviour::StallBeforeHeaders);
    let out = scene.arrives_without_a_wrong_byte();
    assert!(out.took < SOON, "{:?}", out.took);
}

/// What came of a file before a request failed was not asked for again, up to a buffer.
#[track_caller]
fn assert_goes_on(scene: &Scene, path: &str) {
    let size = scene.repo.get(path).size();
    let sent = scene.hub.bytes_sent_for(path);
    assert!(sent <= size + size / 10, "{sent} bytes for {size}: {:#?}", scene.reads_of(path));
    assert!(scene.reads_of(path).len() > 1);
}

// ---- answers that are not exactly what was asked ------------------------------------------------

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

#[test]
fn bytes_beyond_the_announced_length_are_not_taken() {
    let scene = Scene::of(repo(&[("a.bin", 200_000)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::Overrun(4096)).times(1);
    scene.arrives_without_a_wrong_byte();
}

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

#[test]
fn a_range_that_is_ignored_once_costs_nothing_that_came_before() {
    let scene = Scene::of(repo(&[("a.bin", 2 * MIB)]));
    let cut = Behaviour::ShortBody(MIB);
    scene.hub.on(Match::cdn("a.bin").get()).then(cut).then(Behaviour::IgnoreRange);
    scene.arrives_without_a_wrong_byte();
    assert!(scene.hub.bytes_sent_for("a.bin") < 3 * MIB, "{:#?}", scene.reads_of("a.bin"));
    assert_eq!(scene.reads_of("a.bin").len(), 3);
}

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

// ---- refusals -----------------------------------------------------------------------------------

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

#[test]
fn an_expired_url_is_resolved_again_and_the_file_goes_on_where_it_was() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    let expired = Behaviour::xml_403("AccessDenied", "Request has expired");
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::ShortBody(500_000)).then(expired);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
    assert_eq!(scene.hub.resolves_of("a.bin"), 2);
}

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

#[test]
fn nobody_asks_again_before_the_server_wants_it() {
    type Wish = fn() -> Behaviour;
    let wishes: [(&str, Wish); 4] = [
        ("seconds", || Behaviour::too_many_requests(2)),
        ("date", || Behaviour::retry_at(429, SystemTime::now() + Duration::from_secs(3))),
        ("ratelimit", || Behaviour::rate_limited("resolvers", 2)),
        ("unavailable", || Behaviour::retry_after(503, 2)),
    ];
    std::thread::scope(|scope| {
        for (name, wish) in wishes {
            scope.spawn(move || {
                let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 80_000), ("c.bin", 70_000)]));
                scene.hub.on(Match::cdn("a.bin").get()).then(wish());
                scene.arrives_without_a_wrong_byte();
                let seen = scene.hub.matching(Match::cdn("").get());
                let refused = seen.iter().find(|one| one.status >= 400).expect("the refusal").at;
                // What was under way when it came could not know.
                let early = seen.iter().filter(|one| {
                    one.at > refused + Duration::from_millis(250) && one.at < refused + Duration::from_millis(1900)
                });
                assert_eq!(early.count(), 0, "{name}: {seen:#?}");
                assert_eq!(scene.hub.count(Match::cdn("a.bin").get()), 2, "{name}");
            });
        }
    });
}

#[test]
fn a_429_of_the_resolver_pauses_and_the_pull_ends_by_itself() {
    let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 80_000), ("c.bin", 70_000)]));
    // The last of the three, so that other answers have spoken of a longer window before.
    scene.hub.on(Match::resolve("c.bin")).then(Behaviour::rate_limited("resolvers", 2));
    scene.arrives_without_a_wrong_byte();
    let seen = scene.hub.matching(Match::hub("/resolve/"));
    let refused = seen.iter().find(|one| one.status == 429).expect("the refusal").at;
    let early = |one: &&Recorded| {
        one.at > refused + Duration::from_millis(250) && one.at < refused + Duration::from_millis(1900)
    };
    assert_eq!(seen.iter().filter(early).count(), 0, "{seen:#?}");
}

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

#[test]
fn a_server_that_stays_in_trouble_ends_the_pull_after_the_time_given() {
    let scene = Scene::of(repo(&[("a.bin", 90_000), ("b.bin", 80_000)]));
    scene.hub.always(Match::cdn("").get(), Behaviour::status(502));
    let out = scene.pull().env("MUSTER_RETRY_FOR", "3s").run().expect_code(17);
    assert!(out.stderr.contains("502") && out.stderr.contains(&scene.hub.cdn_url()), "{out}");
    assert!(out.took < SOON, "{:?}", out.took);
}

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

// ---- wrong bytes --------------------------------------------------------------------------------

#[test]
fn a_byte_flipped_once_is_set_aside_and_the_file_fetched_again() {
    let scene = Scene::of(repo(&[("a.bin", 300_000), ("b.bin", 100_000)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::FlipByte(123_456));
    scene.arrives();
    assert_eq!(scene.reads_of("a.bin").len(), 2);
    let kept = scene.quarantined();
    assert!(kept.iter().any(|path| std::fs::metadata(path).unwrap().len() == 300_000), "{kept:?}");
}

#[test]
fn bytes_that_are_always_wrong_end_after_three_fetches_with_both_hashes() {
    let scene = Scene::of(repo(&[("bad.bin", 300_000), ("good.bin", 100_000)]));
    scene.hub.always(Match::cdn("bad.bin").get(), Behaviour::FlipByte(123_456));
    let out = scene.pull().run().expect_code(11);
    let mut wrong = scene.repo.get("bad.bin").content.to_vec();
    wrong[123_456] ^= 0xff;
    for word in ["bad.bin", scene.repo.get("bad.bin").sha256(), &sha256_hex(&wrong)] {
        assert!(out.stderr.contains(word), "{word} is missing: {out}");
    }
    assert_eq!(scene.reads_of("bad.bin").len(), 3);
    assert!(!scene.directory().join("bad.bin").exists());
    assert!(!scene.directory().join(".muster/receipt.json").exists());
    scene.assert_in_place("good.bin");
}

// ---- stopping -----------------------------------------------------------------------------------

/// Interrupts the pull once `ready`, and looks how long it takes to end.
#[track_caller]
fn assert_stops_soon(scene: &Scene, ready: impl Fn() -> bool) {
    let world = scene.world.clone().env("MUSTER_IDLE_TIMEOUT", "60s").env("MUSTER_HEADER_TIMEOUT", "60s");
    let mut child = world.args(["pull", "org/model", "--connections", "2"]).spawn();
    wait_until("the pull is under way", SOON, ready);
    let asked = Instant::now();
    child.interrupt();
    let out = child.wait(SOON).expect_code(130);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}: {out}", asked.elapsed());
}

#[test]
fn a_stop_ends_soon_while_a_body_stalls_and_keeps_what_came() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallAfter(600_000));
    assert_stops_soon(&scene, || scene.hub.bytes_sent_for("a.bin") >= 600_000);
    scene.arrives_without_a_wrong_byte();
    assert_goes_on(&scene, "a.bin");
}

#[test]
fn a_stop_ends_soon_while_no_head_comes() {
    let scene = Scene::of(repo(&[("a.bin", MIB)]));
    scene.hub.on(Match::cdn("a.bin").get()).then(Behaviour::StallBeforeHeaders);
    assert_stops_soon(&scene, || scene.hub.count(Match::cdn("a.bin")) > 0);
}

#[test]
fn a_stop_ends_soon_while_the_server_wants_nobody() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", MIB)]));
    scene.hub.always(Match::cdn("").get(), Behaviour::too_many_requests(300));
    assert_stops_soon(&scene, || scene.hub.count(Match::cdn("")) > 0);
}

#[test]
fn a_stop_ends_soon_while_a_server_is_in_trouble() {
    let scene = Scene::of(repo(&[("a.bin", MIB), ("b.bin", MIB)]));
    scene.hub.always(Match::resolve(""), Behaviour::status(503));
    assert_stops_soon(&scene, || scene.hub.count(Match::resolve("")) > 3);
}

// ---- going on -----------------------------------------------------------------------------------

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

#[test]
fn a_file_beyond_four_gib_is_exact_across_every_power_of_two() {
    let size = (4 << 30) + 3 * MIB + 7;
    let scene = Scene::of(repo(&[("huge.bin", size)]));
    let pull = scene.world.args(["pull", "org/model", "--connections", "4"]);
    pull.time_limit(Duration::from_secs(600)).run().expect_code(0);
    // The receipt was written for the digest of the listing, which the hub computed itself.
    assert_eq!(std::fs::metadata(scene.directory().join("huge.bin")).unwrap().len(), size);
    let beyond = |seen: &Recorded| seen.range.is_some_and(|(first, _)| first >= 4 << 30);
    assert!(scene.reads_of("huge.bin").iter().any(beyond));
    assert!(scene.reads_of("huge.bin").iter().all(|seen| seen.body_bytes_sent <= 1 << 30));
}
