//! The scripted hub itself, driven over raw sockets: what other tests believe is proved here.
#![allow(
    clippy::disallowed_methods,
    clippy::format_collect,
    clippy::cast_possible_truncation,
    reason = "a raw client of a few lines: blocking sockets, a clock, files of /proc; 64-bit sizes"
)]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{
    Behaviour, Content, Ending, FileSpec, Hub, Match, Muster, Origin, Reply, RepoSpec, git_blob_sha1, sha256_hex,
    wait_until,
};

const SOON: Duration = Duration::from_secs(10);

// ---- a client of a few lines -------------------------------------------------------------------

#[derive(Debug)]
struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// How the connection ended, when not cleanly.
    broken: Option<ErrorKind>,
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.maybe(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers))
    }

    fn maybe(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("JSON")
    }
}

fn ask(method: &str, url: &str, headers: &[(&str, &str)]) -> Answer {
    let (address, target) = split(url);
    let mut stream = connect(address);
    let extra: String = headers.iter().map(|(n, v)| format!("{n}: {v}\r\n")).collect();
    write!(stream, "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{extra}\r\n").expect("send");
    read_answer(&mut stream)
}

fn get(url: &str) -> Answer {
    ask("GET", url, &[])
}

fn head(url: &str) -> Answer {
    ask("HEAD", url, &[])
}

fn ranged(url: &str, range: &str) -> Answer {
    ask("GET", url, &[("Range", range)])
}

fn split(url: &str) -> (SocketAddr, String) {
    let rest = url.strip_prefix("http://").expect("an absolute URL");
    let slash = rest.find('/').expect("a path");
    (rest[..slash].parse().expect("an address"), rest[slash..].to_owned())
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream
}

/// Reads to the end of the connection.
fn read_answer(stream: &mut TcpStream) -> Answer {
    let (mut all, mut buf, mut broken) = (Vec::new(), vec![0; 65536], None);
    loop {
        match stream.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => all.extend_from_slice(&buf[..n]),
            Err(error) => {
                broken = Some(error.kind());
                break;
            }
        }
    }
    let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Answer { status: 0, headers: Vec::new(), body: all, broken };
    };
    let text = String::from_utf8(all[..end].to_vec()).expect("a head in UTF-8");
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).expect("a status line");
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    Answer { status: status.parse().expect("a status"), headers, body: all[end + 4..].to_vec(), broken }
}

// ---- shorthands --------------------------------------------------------------------------------

const ID: &str = "org/model";

fn small() -> RepoSpec {
    RepoSpec::new(ID)
        .lfs("weights.bin", Content::generated(7, 300_000))
        .plain("config.json", "{}\n")
        .plain("nested/a b/ü.txt", "text")
}

fn resolve_url(hub: &Hub, file: &str) -> String {
    format!("{}/{ID}/resolve/main/{file}", hub.url())
}

/// The signed CDN URL of an LFS file.
fn signed(hub: &Hub, file: &str) -> String {
    head(&resolve_url(hub, file)).header("Location").to_owned()
}

fn weights() -> Vec<u8> {
    Content::generated(7, 300_000).to_vec()
}

fn tree_pages(hub: &Hub, id: &str, query: &str) -> (Vec<Value>, usize) {
    let mut url = format!("{}/api/models/{id}/tree/main?recursive=true&expand=false{query}", hub.url());
    let (mut entries, mut pages) = (Vec::new(), 0);
    loop {
        let page = get(&url);
        assert_eq!(page.status, 200);
        entries.extend(page.json().as_array().expect("an array").clone());
        pages += 1;
        assert!(pages < 1000, "pages without end");
        match page.maybe("link") {
            Some(link) => {
                let (next, relation) = link.split_once('>').expect("a link");
                assert_eq!(relation, "; rel=\"next\"");
                next[1..].clone_into(&mut url);
            }
            None => return (entries, pages),
        }
    }
}

// ---- content and shape -------------------------------------------------------------------------

#[test]
fn any_range_of_generated_content_equals_that_part_of_the_whole() {
    let content = Content::head_then_generated(*b"head", 3, 200_000);
    let whole = content.to_vec();
    for (start, end) in [(0, 1), (2, 9), (4, 5000), (65_530, 70_000), (199_000, 200_004), (7, 7)] {
        assert_eq!(content.slice(start, end), whole[start as usize..end as usize], "{start}..{end}");
    }
    assert_eq!(content.sha256(), sha256_hex(&whole));
    assert_eq!(git_blob_sha1(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
    assert_eq!(sha256_hex(b""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

#[test]
fn steps_of_generated_content_differ_from_each_other() {
    let whole = Content::generated(1, 1 << 20).to_vec();
    let distinct: std::collections::HashSet<&[u8]> = whole.chunks(4096).collect();
    assert_eq!(distinct.len(), 256);
}

#[test]
fn a_file_of_5_gib_is_served_without_being_held() {
    let size = 5 << 30;
    let content = Content::generated_with_sha256(5, size, &"ab".repeat(32));
    let hub = Hub::start(RepoSpec::new(ID).lfs("huge.bin", content.clone()));
    let url = signed(&hub, "huge.bin");
    let start = size - 1000;
    let answer = ranged(&url, &format!("bytes={start}-"));
    assert_eq!(answer.header("content-range"), format!("bytes {start}-{}/{size}", size - 1));
    assert_eq!(answer.body, content.slice(start, size));
}

#[test]
fn the_kimi_shape_has_140_files_and_119_shards_that_parse_and_cover_themselves() {
    let repo = RepoSpec::kimi(119, 8192, 21);
    let shards: Vec<&FileSpec> = repo.files().filter(|file| file.path.starts_with("model-")).collect();
    assert_eq!((repo.files().count(), shards.len()), (140, 119));
    assert_eq!(shards[0].path, "model-00001-of-000119.safetensors");

    let index: Value =
        serde_json::from_slice(&repo.get("model.safetensors.index.json").content.to_vec()).expect("JSON");
    let map = index["weight_map"].as_object().expect("a map");
    let mut total = 0;
    for file in &shards {
        let bytes = file.content.to_vec();
        assert_eq!(bytes.len(), 8192);
        let header_len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
        let header: Value = serde_json::from_slice(&bytes[8..8 + header_len]).expect("a header");
        let mut spans = Vec::new();
        for (name, tensor) in header.as_object().expect("an object") {
            if name == "__metadata__" {
                continue;
            }
            assert_eq!(map[name], file.path.as_str());
            let at = |i: usize| tensor["data_offsets"][i].as_u64().expect("an offset");
            let dims = tensor["shape"].as_array().expect("a shape");
            let elements: u64 = dims.iter().map(|dim| dim.as_u64().expect("a dimension")).product();
            let width = if tensor["dtype"] == "F32" { 4 } else { 1 };
            assert_eq!(elements * width, at(1) - at(0), "{name}");
            spans.push((at(0), at(1)));
        }
        spans.sort_unstable();
        assert_eq!(spans[0].0, 0);
        assert!(spans.windows(2).all(|two| two[0].1 == two[1].0), "a hole in {}", file.path);
        let data = (bytes.len() - 8 - header_len) as u64;
        assert_eq!(spans.last().expect("tensors").1, data);
        total += data;
    }
    assert_eq!(map.len(), 119 * 4);
    assert_eq!(index["metadata"]["total_size"], total);
    assert!(repo.files().any(|file| file.size() == 0));
    assert!(repo.files().any(|file| file.path.contains(' ') && !file.path.is_ascii()));
    assert!(repo.files().any(|file| file.path.matches('/').count() > 2));
}

// ---- API ---------------------------------------------------------------------------------------

#[test]
fn info_names_the_commit_and_revisions_are_branches_tags_and_commits() {
    let repo = RepoSpec::new(ID).plain("a", "1").tag("v1").branch("refs/pr/1").plain("a", "2");
    let hub = Hub::start(repo);
    let api = format!("{}/api/models/{ID}", hub.url());
    let sha = |revision: &str| get(&format!("{api}/revision/{revision}")).json()["sha"].clone();
    let main = sha("main");
    assert_eq!(get(&api).json()["sha"], main);
    assert_eq!(main, hub.commit(ID, "main").as_str());
    assert_ne!(sha("v1"), main);
    assert_eq!(sha("refs%2Fpr%2F1"), sha("v1"));
    assert_eq!(sha(main.as_str().expect("text")), main);
    let missing = get(&format!("{api}/revision/nope"));
    assert_eq!((missing.status, missing.header("x-error-code")), (404, "RevisionNotFound"));
    let refs = get(&format!("{api}/refs")).json();
    assert_eq!(refs["tags"][0]["ref"], "refs/tags/v1");
}

#[test]
fn a_branch_can_move_while_the_hub_runs_and_old_commits_stay() {
    let hub = Hub::start(small());
    let before = hub.commit(ID, "main");
    let after = hub.push(ID, "main", |repo| repo.plain("new.txt", "x").without("config.json"));
    assert_ne!(before, after);
    let status = |commit: &str, file: &str| head(&format!("{}/{ID}/resolve/{commit}/{file}", hub.url())).status;
    assert_eq!((status(&before, "config.json"), status(&before, "new.txt")), (307, 404));
    assert_eq!((status("main", "config.json"), status("main", "new.txt")), (404, 307));
    hub.move_branch(ID, "main", &before);
    assert_eq!(hub.commit(ID, "main"), before);
}

#[test]
fn the_tree_comes_in_pages_with_directories_and_both_digests() {
    let hub = Hub::start(RepoSpec::kimi(119, 4096, 21).named(ID));
    let (whole, pages) = tree_pages(&hub, ID, "");
    assert_eq!(pages, 1);
    hub.page_size(10);
    let (entries, pages) = tree_pages(&hub, ID, "");
    assert_eq!(entries, whole);
    assert_eq!(pages, entries.len().div_ceil(10));
    let files: Vec<_> = entries.iter().filter(|entry| entry["type"] == "file").collect();
    assert_eq!(files.len(), 140);
    assert!(entries.iter().any(|e| e["type"] == "directory" && e["path"] == "docs/deep/nested"));
    for entry in files {
        let repo = hub.repo(ID);
        let file = repo.get(entry["path"].as_str().expect("a path"));
        assert_eq!(entry["size"], file.content.len());
        if file.lfs {
            assert_eq!(entry["lfs"]["oid"], sha256_hex(file.content.to_vec()));
            assert_eq!(entry["oid"], git_blob_sha1(file.pointer().as_bytes()));
        } else {
            assert_eq!(entry["oid"], git_blob_sha1(&file.content.to_vec()));
            assert!(entry.get("lfs").is_none());
        }
    }
}

#[test]
fn repository_info_with_blobs_calls_the_digest_sha256() {
    let hub = Hub::start(small());
    let info = get(&format!("{}/api/models/{ID}?blobs=true", hub.url())).json();
    let siblings = info["siblings"].as_array().expect("siblings");
    let weights = siblings.iter().find(|s| s["rfilename"] == "weights.bin").expect("the file");
    assert_eq!(weights["lfs"]["sha256"], sha256_hex(self::weights()));
}

#[test]
fn datasets_spaces_single_segment_ids_and_former_names_resolve() {
    let file = |id: &str| RepoSpec::new(id).plain("a.txt", "a");
    let hub = Hub::with([
        file("org/data").dataset(),
        file("org/space").space(),
        file("gpt2"),
        file("org/new").renamed_from("org/old"),
    ]);
    let status = |path: &str| head(&format!("{}{path}", hub.url())).status;
    assert_eq!(status("/datasets/org/data/resolve/main/a.txt"), 307);
    assert_eq!(status("/spaces/org/space/resolve/main/a.txt"), 307);
    assert_eq!(status("/org/data/resolve/main/a.txt"), 401);
    assert_eq!(status("/gpt2/resolve/main/a.txt"), 307);
    for path in ["/api/models/gpt2", "/api/models/gpt2/revision/main", "/api/datasets/org/data"] {
        assert_eq!(status(path), 200, "{path}");
    }
    let moved = head(&format!("{}/org/old/resolve/main/a.txt", hub.url()));
    assert_eq!((moved.status, moved.header("location")), (307, "/org/new/resolve/main/a.txt"));
    assert!(moved.maybe("x-repo-commit").is_none());
    let moved = get(&format!("{}/api/models/org/old/tree/main?recursive=true", hub.url()));
    assert_eq!(moved.header("location"), "/api/models/org/new/tree/main?recursive=true");
}

// ---- resolve and bytes -------------------------------------------------------------------------

#[test]
fn an_lfs_file_redirects_to_the_other_origin_with_its_metadata_on_the_redirect() {
    let hub = Hub::start(small());
    let answer = head(&resolve_url(&hub, "weights.bin"));
    let digest = sha256_hex(weights());
    assert_eq!(answer.status, 302);
    assert_eq!(answer.header("x-linked-etag"), format!("\"{digest}\""));
    assert_eq!(answer.header("x-linked-size"), "300000");
    assert_eq!(answer.header("x-repo-commit"), hub.commit(ID, "main"));
    assert_eq!(answer.header("ratelimit"), "\"resolvers\";r=2999;t=300");
    assert_ne!(answer.header("content-length"), "300000");
    assert!(answer.body.is_empty());
    let location = answer.header("location");
    assert!(location.starts_with(&hub.cdn_url()) && location.contains("Expires="), "{location}");

    let whole = get(location);
    assert_eq!((whole.status, whole.body), (200, weights()));
    let part = ranged(location, "bytes=1000-1999");
    assert_eq!(part.status, 206);
    assert_eq!(part.header("content-range"), "bytes 1000-1999/300000");
    assert_eq!(part.body, weights()[1000..2000]);
    let etag = part.header("etag").trim_matches('"');
    assert!(etag.len() == 64 && etag != digest, "{etag}");
    for beyond in ["bytes=300000-", "bytes=-5"] {
        let answer = ranged(location, beyond);
        assert_eq!((answer.status, answer.header("content-range")), (416, "bytes */300000"));
    }
}

#[test]
fn a_plain_file_redirects_relatively_and_needs_its_query() {
    let hub = Hub::start(small());
    let answer = head(&resolve_url(&hub, "nested/a%20b/%C3%BC.txt"));
    assert_eq!(answer.status, 307);
    let location = answer.header("location").to_owned();
    assert!(location.starts_with("/api/resolve-cache/models/org/model/"), "{location}");
    assert_eq!(answer.header("x-linked-etag"), format!("\"{}\"", git_blob_sha1(b"text")));
    let body = get(&format!("{}{location}", hub.url()));
    assert_eq!((body.status, body.body.as_slice()), (200, b"text".as_slice()));
    assert_eq!(body.header("etag"), format!("\"{}\"", git_blob_sha1(b"text")));
    assert_eq!(ranged(&format!("{}{location}", hub.url()), "bytes=1-2").body, b"ex");
    let bare = location.split('?').next().expect("a path");
    assert_eq!(get(&format!("{}{bare}", hub.url())).status, 404);
}

#[test]
fn missing_entries_are_told_with_the_commit() {
    let hub = Hub::start(small());
    let answer = head(&resolve_url(&hub, "nope.bin"));
    assert_eq!((answer.status, answer.header("x-error-code")), (404, "EntryNotFound"));
    assert_eq!(answer.header("x-repo-commit"), hub.commit(ID, "main"));
}

#[test]
fn signed_urls_expire_by_time_and_by_order_and_cannot_be_forged() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    assert_eq!(get(&url.replace("Signature=", "Signature=0")).status, 403);
    assert_eq!(get(url.split('?').next().expect("a path")).status, 403);
    hub.expire_signed_urls();
    let refused = get(&url);
    assert_eq!((refused.status, refused.header("content-type")), (403, "application/xml"));
    assert_eq!(get(&signed(&hub, "weights.bin")).status, 200);
    hub.signed_urls_last(Duration::ZERO);
    let expired = get(&signed(&hub, "weights.bin"));
    // The end of the second that has begun may still be good.
    if expired.status == 200 {
        let url = signed(&hub, "weights.bin");
        wait_until("the URL expires", SOON, || get(&url).status == 403);
    }
}

// ---- access ------------------------------------------------------------------------------------

#[test]
fn tokens_are_judged_as_the_hub_does() {
    let hub = Hub::with([small(), small().named("org/gated").gated()]);
    hub.require_token("hf_good");
    hub.know_token("hf_stranger");
    let with = |token: Option<&str>, path: &str| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = bearer.iter().map(|value| ("Authorization", value.as_str())).collect();
        let answer = ask("GET", &format!("{}{path}", hub.url()), &headers);
        (answer.status, answer.maybe("x-error-code").unwrap_or("").to_owned(), answer)
    };
    for path in ["/api/models/org/model", "/org/model/resolve/main/weights.bin", "/api/models/no/such"] {
        let (status, code, _) = with(None, path);
        assert_eq!((status, code.as_str()), (401, "RepoNotFound"), "{path}");
        let (status, code, _) = with(Some("hf_stranger"), path);
        assert_eq!((status, code.as_str()), (404, "RepoNotFound"), "{path}");
        let (status, code, answer) = with(Some("hf_bad"), path);
        assert_eq!((status, code.as_str()), (401, ""));
        assert_eq!(answer.header("x-error-message"), "Invalid credentials in Authorization header");
    }
    assert_eq!(with(Some("hf_good"), "/api/models/org/model").0, 200);
    assert_eq!(with(Some("hf_good"), "/api/models/no/such").0, 404);

    let gated = "/org/gated/resolve/main/weights.bin";
    assert_eq!((with(None, gated).0, with(None, gated).1.as_str()), (401, "GatedRepo"));
    let stranger = with(Some("hf_stranger"), gated);
    assert_eq!((stranger.0, stranger.1.as_str()), (403, "GatedRepo"));
    assert_eq!(with(Some("hf_good"), gated).0, 302);
    let oid = |token| {
        let tree = with(token, "/api/models/org/gated/tree/main?recursive=true").2.json();
        let entry = tree.as_array().expect("entries").iter().find(|e| e["path"] == "weights.bin");
        entry.expect("the file")["lfs"]["oid"].as_str().expect("text").to_owned()
    };
    assert_eq!(oid(None), "*".repeat(64));
    assert_eq!(oid(Some("hf_good")), sha256_hex(weights()));
}

#[test]
fn a_disabled_repository_says_so() {
    let hub = Hub::start(small().disabled());
    let answer = get(&format!("{}/api/models/{ID}", hub.url()));
    assert_eq!(answer.header("x-error-message"), "Access to this resource is disabled.");
}

// ---- records -----------------------------------------------------------------------------------

#[test]
fn every_request_is_recorded_and_a_token_at_the_cdn_is_noticed() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    get(&resolve_url(&hub, "weights.bin"));
    ranged(&url, "bytes=0-99");
    ranged(&url, "bytes=100-299");
    assert_eq!(hub.resolves_of("weights.bin"), 2);
    assert_eq!(hub.bytes_sent_for("weights.bin"), 300);
    assert_eq!(hub.total_body_bytes(), 300);
    assert_eq!(hub.count(Match::cdn("weights").with_range()), 2);
    assert_eq!(hub.matching(Match::cdn(""))[1].range, Some((100, Some(299))));
    assert!(hub.authorization_seen_by_cdn().is_empty());
    ask("GET", &url, &[("Authorization", "Bearer hf_leak"), ("Range", "bytes=0-0")]);
    assert_eq!(hub.authorization_seen_by_cdn(), ["Bearer hf_leak"]);
    let last = hub.requests().pop().expect("requests");
    assert_eq!((last.origin, last.status, last.finished), (Origin::Cdn, 206, true));
}

#[test]
fn a_connection_carries_many_requests() {
    let hub = Hub::start(small());
    let mut stream = connect(hub.address(Origin::Hub));
    for _ in 0..3 {
        let one = format!("HEAD /{ID}/resolve/main/config.json HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(one.as_bytes()).expect("send");
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a byte of the head");
            seen.push(byte[0]);
        }
    }
    let all = hub.requests();
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|one| one.connection == all[0].connection));
    assert_eq!(hub.peak_connections(Origin::Hub), 1);
}

// ---- behaviours --------------------------------------------------------------------------------

/// Plays one behaviour for `bytes=1000-1999` of the weights.
fn play(behaviour: Behaviour) -> Answer {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.on(Match::cdn("weights")).then(behaviour);
    let answer = ranged(&url, "bytes=1000-1999");
    assert_eq!(hub.plays_left(), 0);
    assert_eq!(ranged(&url, "bytes=1000-1999").body, weights()[1000..2000], "played once only");
    answer
}

#[test]
fn short_bodies_end_cleanly_and_resets_do_not() {
    let short = play(Behaviour::ShortBody(400));
    assert_eq!((short.header("content-length"), short.body.len(), short.broken), ("1000", 400, None));
    let honest = play(Behaviour::HonestShortBody(400));
    assert_eq!((honest.header("content-length"), honest.body.len()), ("400", 400));
    assert_eq!(honest.header("content-range"), "bytes 1000-1999/300000");
    let reset = play(Behaviour::ResetAfter(400));
    assert_eq!((reset.body.len(), reset.broken), (400, Some(ErrorKind::ConnectionReset)));
}

#[test]
fn a_reset_loses_nothing_that_was_sent_before_it() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.on(Match::cdn("weights")).then(Behaviour::ResetAfter(250_000)).times(3);
    for _ in 0..3 {
        let answer = get(&url);
        assert_eq!(answer.broken, Some(ErrorKind::ConnectionReset));
        assert_eq!(answer.body, weights()[..250_000]);
    }
}

#[test]
fn ranges_can_be_told_wrongly_in_every_way() {
    let range = |behaviour| play(behaviour).maybe("content-range").map(str::to_owned);
    assert_eq!(range(Behaviour::ShiftedContentRange(-10)).as_deref(), Some("bytes 990-1989/300000"));
    assert_eq!(range(Behaviour::NoContentRange), None);
    assert_eq!(range(Behaviour::WrongTotal(5000)).as_deref(), Some("bytes 1000-1999/5000"));
    assert_eq!(range(Behaviour::CapitalBytes).as_deref(), Some("Bytes 1000-1999/300000"));
    assert_eq!(range(Behaviour::StarTotal).as_deref(), Some("bytes 1000-1999/*"));
    let later = play(Behaviour::WrongStart(100));
    assert_eq!(later.header("content-range"), "bytes 1100-1999/300000");
    assert_eq!(later.body, weights()[1100..2000]);
    let whole = play(Behaviour::IgnoreRange);
    assert_eq!((whole.status, whole.body.len()), (200, 300_000));
    assert!(whole.maybe("content-range").is_none());
}

#[test]
fn bodies_can_be_wrong_in_every_way() {
    let flipped = play(Behaviour::FlipByte(1500)).body;
    let differing: Vec<usize> = (0..1000).filter(|at| flipped[*at] != weights()[1000 + at]).collect();
    assert_eq!(differing, [500]);
    assert_eq!(play(Behaviour::FlipByte(5)).body, weights()[1000..2000]);
    let long = play(Behaviour::LongBody(7));
    assert_eq!((long.header("content-length"), long.body.len()), ("1007", 1007));
    let over = play(Behaviour::Overrun(7));
    assert_eq!((over.header("content-length"), over.body.len()), ("1000", 1007));
    let pointer = play(Behaviour::PointerBody);
    assert!(pointer.body.starts_with(b"version https://git-lfs"));
    let gzip = play(Behaviour::Gzip);
    assert_eq!((gzip.status, gzip.header("content-encoding")), (200, "gzip"));
    assert_eq!(gzip.header("transfer-encoding"), "chunked");
    let chunked = play(Behaviour::Chunked);
    assert!(chunked.body.starts_with(b"3e8\r\n") && chunked.body.ends_with(b"\r\n0\r\n\r\n"));
    let weak = play(Behaviour::WeakEtag);
    assert!(weak.header("etag").starts_with("W/\""));
    assert_eq!(play(Behaviour::ChangedEtag("other".into())).header("etag"), "\"other\"");
}

#[test]
fn bodies_can_end_early_in_good_form_and_lie_about_where_they_are_from() {
    let early = play(Behaviour::EndEarly(400));
    assert_eq!((early.header("content-length"), early.body.len(), early.broken), ("400", 400, None));
    assert_eq!(early.header("content-range"), "bytes 1000-1999/300000");
    let chunked = play(Behaviour::All(vec![Behaviour::EndEarly(16), Behaviour::Chunked]));
    assert!(chunked.body.starts_with(b"10\r\n") && chunked.body.ends_with(b"\r\n0\r\n\r\n"), "the last chunk comes");
    let stuck = play(Behaviour::StuckAt(1300));
    assert_eq!((stuck.header("content-length"), stuck.body.len()), ("1000", 300));
    let whole = play(Behaviour::WholeAsPartial);
    assert_eq!(
        (whole.status, whole.body.len(), whole.header("content-range")),
        (206, 300_000, "bytes 0-299999/300000")
    );
    let elsewhere = play(Behaviour::Mislabelled(50));
    assert_eq!(elsewhere.header("content-range"), "bytes 1000-1999/300000");
    assert_eq!(elsewhere.body, weights()[1050..2050]);
    let twice = play(Behaviour::Stutter(100)).body;
    assert_eq!(twice, [&weights()[1000..1100], &weights()[1000..1900]].concat());
    let torn = play(Behaviour::RawThen(b"HTTP/1.1 206 Part".to_vec(), Ending::Reset));
    assert_eq!((torn.status, torn.broken), (0, Some(ErrorKind::ConnectionReset)));
}

#[test]
fn pages_can_go_on_without_end() {
    let hub = Hub::start(small());
    hub.always(Match::tree(), Behaviour::EndlessPages(3));
    let first = get(&format!("{}/api/models/{ID}/tree/main", hub.url()));
    let names = |answer: &Answer| {
        answer.json().as_array().expect("a page").iter().map(|e| e["path"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(names(&first), ["p0/0", "p0/1", "p0/2"]);
    let link = first.header("link").split(['<', '>']).nth(1).expect("a link").to_owned();
    assert_eq!(names(&get(&format!("{}{link}", hub.url()))), ["p1/0", "p1/1", "p1/2"]);
}

#[test]
fn connections_can_be_turned_away_and_an_origin_can_stand_behind_another_address() {
    let hub = Hub::start(small());
    hub.turn_away(Origin::Hub, 1);
    let mut stream = connect(hub.address(Origin::Hub));
    assert!(matches!(stream.read(&mut [0]), Ok(0) | Err(_)), "no byte comes");
    assert_eq!(head(&resolve_url(&hub, "weights.bin")).status, 302, "once only");
    let resolver = resolve_url(&hub, "weights.bin");
    hub.stands_behind(Origin::Cdn, "https://front.test");
    assert!(head(&resolver).header("location").starts_with("https://front.test/models/"));
}

#[test]
fn answers_can_be_replaced() {
    let limited = play(Behaviour::too_many_requests(7));
    assert_eq!((limited.status, limited.header("retry-after")), (429, "7"));
    let bucket = play(Behaviour::rate_limited("resolvers", 3));
    assert_eq!(bucket.header("ratelimit"), "\"resolvers\";r=0;t=3");
    assert_eq!(play(Behaviour::status(503)).status, 503);
    assert_eq!(play(Behaviour::html_page()).header("content-type"), "text/html; charset=utf-8");
    assert!(play(Behaviour::xml_403("AccessDenied", "no")).body.starts_with(b"<?xml"));
    let own = Behaviour::Answer(Reply::status(418).header("X-A", "b").body("text/plain", "tea"));
    assert_eq!(play(own).body, b"tea");
    assert_eq!(play(Behaviour::Raw(b"nonsense\n".to_vec())).body, b"nonsense\n");
    assert_eq!(play(Behaviour::CloseWithoutAnswer).body, b"");
    assert!(play(Behaviour::ResetWithoutAnswer).broken.is_some());
    assert!(play(Behaviour::RedirectLoop).header("location").starts_with("/models/org/model/"));
    assert_eq!(play(Behaviour::RedirectToOtherPort).status, 307);
}

#[test]
fn stalls_last_until_the_peer_or_the_hub_goes() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.on(Match::cdn("weights")).then(Behaviour::StallAfter(500)).then(Behaviour::StallBeforeHeaders);
    let (address, target) = split(&url);
    let mut streams = Vec::new();
    for expected in [true, false] {
        let mut stream = connect(address);
        write!(stream, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
        wait_until("the request is seen", SOON, || hub.matching(Match::cdn("")).len() > streams.len());
        if expected {
            wait_until("500 bytes", SOON, || hub.bytes_sent_for("weights.bin") == 500);
        }
        streams.push(stream);
    }
    hub.mute(Origin::Cdn, true);
    let mut silent = connect(address);
    write!(silent, "GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").expect("send");
    wait_until("three connections", SOON, || hub.open_connections(Origin::Cdn) == 3);
    drop(streams.pop());
    wait_until("one gone", SOON, || hub.open_connections(Origin::Cdn) == 2);
    let start = Instant::now();
    drop(hub);
    assert!(start.elapsed() < SOON, "stalled connections kept the hub");
    assert_eq!(read_answer(&mut silent).body, b"");
}

#[test]
fn queues_are_first_in_first_out_and_rules_can_be_persistent() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.on(Match::cdn("weights"))
        .then(Behaviour::status(500))
        .times(2)
        .then(Behaviour::Pass)
        .then(Behaviour::status(503))
        .always();
    let seen: Vec<u16> = (0..6).map(|_| ranged(&url, "bytes=0-0").status).collect();
    assert_eq!(seen, [500, 500, 206, 503, 503, 503]);
    assert_eq!(head(&resolve_url(&hub, "weights.bin")).status, 302);
    hub.behave();
    assert_eq!(ranged(&url, "bytes=0-0").status, 206);
    hub.on(Match::cdn("").covering(150)).then(Behaviour::status(404));
    let seen: Vec<u16> =
        ["bytes=0-99", "bytes=100-199", "bytes=100-199"].map(|range| ranged(&url, range).status).into();
    assert_eq!(seen, [206, 404, 206]);
}

#[test]
fn pace_bounds_the_bytes_of_a_connection() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.pace(1_000_000);
    let start = Instant::now();
    assert_eq!(get(&url).body.len(), 300_000);
    let took = start.elapsed();
    assert!(took > Duration::from_millis(250), "{took:?}");
}

#[test]
fn bodies_can_be_held_at_an_exact_number_of_bytes() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.hold_after(123_456);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| get(&url).body);
        hub.wait_for_bytes(123_456, SOON);
        assert_eq!(hub.total_body_bytes(), 123_456);
        hub.release();
        assert_eq!(reader.join().expect("the reader"), weights());
    });
}

#[test]
fn an_origin_can_be_unreachable_and_come_back_on_its_port() {
    let hub = Hub::start(small());
    let url = signed(&hub, "weights.bin");
    hub.unreachable(Origin::Cdn);
    let refused = TcpStream::connect(hub.address(Origin::Cdn)).map(drop);
    assert_eq!(refused.map_err(|e| e.kind()), Err(ErrorKind::ConnectionRefused));
    assert_eq!(head(&resolve_url(&hub, "weights.bin")).status, 302);
    hub.reachable(Origin::Cdn);
    assert_eq!(get(&url).status, 200);
}

#[test]
fn a_quota_ends_in_429_and_begins_again() {
    let hub = Hub::start(small());
    hub.quota("resolvers", 2, Duration::from_millis(300));
    let url = resolve_url(&hub, "weights.bin");
    let start = Instant::now();
    let seen: Vec<u16> = (0..3).map(|_| head(&url).status).collect();
    if start.elapsed() < Duration::from_millis(250) {
        assert_eq!(seen, [302, 302, 429]);
    }
    wait_until("the window ends", SOON, || head(&url).status == 302);
    assert_eq!(get(&format!("{}/api/models/{ID}", hub.url())).status, 200);
}

#[test]
fn a_dropped_hub_listens_no_more() {
    let hub = Hub::start(small());
    let addresses = [hub.address(Origin::Hub), hub.address(Origin::Cdn)];
    let mut idle = connect(addresses[0]);
    wait_until("the connection is seen", SOON, || hub.open_connections(Origin::Hub) == 1);
    drop(hub);
    assert_eq!(read_answer(&mut idle).body, b"", "the connection outlived the hub");
    let listening = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    for address in addresses {
        let row = format!("0100007F:{:04X} 00000000:0000 0A", address.port());
        assert!(!listening.contains(&row), "{address} still listens");
    }
}

#[test]
fn a_listing_can_lie_about_digest_and_size() {
    let lying = FileSpec::lfs("weights.bin", Content::generated(7, 300_000))
        .listed_with_sha256(&"cd".repeat(32))
        .listed_with_size(99);
    let hub = Hub::start(RepoSpec::new(ID).file(lying));
    let (entries, _) = tree_pages(&hub, ID, "");
    assert_eq!(entries[0]["lfs"]["oid"], "cd".repeat(32));
    assert_eq!(entries[0]["size"], 99);
    assert_eq!(get(&signed(&hub, "weights.bin")).body.len(), 300_000);
}

// ---- the process harness -----------------------------------------------------------------------

#[test]
fn the_binary_runs_in_a_clean_world_that_ends_with_its_handle() {
    let hub = Hub::start(small());
    let world = Muster::on(&hub).env("EXTRA", "1");
    let out = world.program("env", [""; 0]).run().expect_code(0);
    let names: Vec<&str> = out.stdout.lines().filter_map(|line| line.split('=').next()).collect();
    for name in ["PATH", "HOME", "HF_HOME", "HF_ENDPOINT", "NO_COLOR", "MUSTER_VOLUME", "EXTRA"] {
        assert!(names.contains(&name), "{name} is missing: {out}");
    }
    assert!(names.len() == 9 && out.stdout.contains(&hub.url()), "{out}");
    assert!(world.args(["--version"]).run().code.is_some());
    let home = world.home().to_owned();
    drop(world);
    assert!(!home.exists());
}

#[test]
fn a_running_process_is_signalled_awaited_and_killed_on_drop() {
    let world = Muster::new("/nonexistent");
    let script = "trap 'echo got; exit 7' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = world.program("sh", ["-c", script]).spawn();
    child.wait_for_text("ready", SOON);
    child.terminate();
    let out = child.wait(SOON).expect_code(7);
    assert_eq!(out.stdout, "ready\ngot\n");

    let mut child = world.program("sleep", ["60"]).spawn();
    assert!(child.is_running() && world.processes() == [child.id()]);
    child.kill();
    assert_eq!(child.wait(SOON).signal, Some(9));
    drop(world.program("sleep", ["60"]).spawn());
    assert!(world.processes().is_empty());
}

#[test]
fn a_process_past_its_time_is_killed_and_its_words_are_shown() {
    let world = Muster::new("/nonexistent");
    let slow = world.program("sh", ["-c", "echo so far; exec sleep 60"]);
    let caught = std::panic::catch_unwind(|| slow.time_limit(Duration::from_millis(300)).run());
    let panic = caught.expect_err("it ran past its limit");
    let text = panic.downcast_ref::<String>().expect("words");
    assert!(text.contains("ran past") && text.contains("so far"), "{text}");
    assert!(world.processes().is_empty());
}

#[test]
fn a_detached_process_does_not_outlive_its_world() {
    let world = Muster::new("/nonexistent");
    let detach = "setsid sleep 60 >/dev/null 2>&1 </dev/null & echo $!";
    world.program("sh", ["-c", detach]).run().expect_code(0);
    wait_until("the detached process", SOON, || world.processes().len() == 1);
    let pid = world.processes()[0];
    drop(world);
    // Killed; whoever inherited it may still have to reap it, and a zombie has no command line.
    wait_until("its end", SOON, || std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty());
}
