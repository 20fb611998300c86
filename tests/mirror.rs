//! The mirror, spoken to in raw HTTP: what clients other than the official one may rely on.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod mirror_support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use mirror_support::{Answer, COMMIT, Served, add_model, source};
use muster::core::digest::Digest;
use muster::core::repo::{CommitId, RepoKind, Revision};
use muster::core::selection::{Pattern, Selection};
use muster::mirror::MirrorAuth;
use muster::serving::BearerToken;

const SHARD: &str = "model-00002-of-000003.safetensors";

fn shard_url() -> String {
    format!("/org/model/resolve/main/{SHARD}")
}

fn digest_of(hub: &Served, path: &str) -> String {
    let file = hub.manifest.files().iter().find(|file| file.path.as_str() == path).unwrap();
    match file.digest {
        Digest::Sha256(hash) => hash.to_string(),
        Digest::GitBlob(hash) => hash.to_string(),
    }
}

#[test]
fn a_repository_is_described_by_branch_and_by_commit() {
    let hub = Served::start();
    for path in ["", "/revision/main", &format!("/revision/{COMMIT}")] {
        let answer = hub.get(&format!("/api/models/org/model{path}"));
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("x-repo-commit"), COMMIT);
        let info = answer.json();
        assert_eq!((info["id"].as_str(), info["sha"].as_str()), (Some("org/model"), Some(COMMIT)));
        assert_eq!(info["siblings"].as_array().unwrap().len(), 24);
        assert!(info["siblings"][0]["size"].is_null());
    }
    let info = hub.get("/api/models/org/model?blobs=true").json();
    let siblings = info["siblings"].as_array().unwrap();
    let shard = siblings.iter().find(|file| file["rfilename"] == SHARD).unwrap();
    assert_eq!(shard["lfs"]["sha256"], digest_of(&hub, SHARD));
    assert_eq!(shard["size"], 65_536);
    let refs = hub.get("/api/models/org/model/refs").json();
    assert_eq!(refs["branches"][0]["targetCommit"], COMMIT);
}

#[test]
fn pages_of_the_tree_are_linked_and_complete() {
    let hub = Served::with(3, muster::demo::SHARD_MIN, MirrorAuth::Everybody, 7);
    let mut next = Some("/api/models/org/model/tree/main?recursive=true&expand=false".to_owned());
    let mut seen = Vec::new();
    for page in 0..10 {
        let Some(path) = next else { break };
        let answer = hub.get(&path);
        assert_eq!(answer.status, 200);
        let entries = answer.json().as_array().unwrap().clone();
        assert!(entries.len() <= 7);
        seen.extend(entries);
        let link = answer.header("link");
        next = link.strip_prefix(&format!("<{}", hub.endpoint())).map(|rest| {
            let (path, rel) = rest.split_once('>').unwrap();
            assert_eq!(rel, "; rel=\"next\"");
            assert!(path.contains(COMMIT), "pages are pinned: {path}");
            path.to_owned()
        });
        assert!(page < 9, "the pages end");
    }
    let files: Vec<_> = seen.iter().filter(|entry| entry["type"] == "file").collect();
    assert_eq!(files.len(), 24);
    for (file, entry) in files.iter().zip(hub.manifest.files()) {
        assert_eq!(file["path"], entry.path.as_str());
        assert_eq!(file["size"], entry.size);
        let told = if file["lfs"].is_object() { &file["lfs"]["oid"] } else { &file["oid"] };
        assert_eq!(*told, digest_of(&hub, entry.path.as_str()));
    }
    assert_eq!(seen.iter().filter(|entry| entry["type"] == "directory").count(), 4);
}

#[test]
fn a_folder_is_listed_by_its_encoded_name() {
    let hub = Served::start();
    let paths = |answer: &Answer| -> Vec<String> {
        answer.json().as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap().to_owned()).collect()
    };
    let docs = hub.get(&format!("/api/models/org/model/tree/{COMMIT}/docs"));
    assert_eq!(paths(&docs), ["docs/.gitkeep", "docs/deploy guide.md", "docs/größe-模型.md", "docs/reference"]);
    let deep = hub.get("/api/models/org/model/tree/main/docs%2Freference?recursive=true");
    assert_eq!(paths(&deep), ["docs/reference/limits", "docs/reference/limits/context.md"]);
    let none = hub.get("/api/models/org/model/tree/main/nowhere");
    assert_eq!((none.status, none.header("x-error-code")), (404, "EntryNotFound"));
}

#[test]
fn facts_of_some_paths_come_for_a_form_and_for_json() {
    let hub = Served::start();
    let url = "/api/models/org/model/paths-info/main";
    let form = ("Content-Type", "application/x-www-form-urlencoded");
    let body = b"paths=docs%2Fdeploy+guide.md&paths=docs&paths=missing&expand=False";
    let by_form = hub.ask("POST", url, &[form], body).json();
    let json = br#"{"paths": ["docs/deploy guide.md", "docs", "missing"], "expand": false}"#;
    let by_json = hub.ask("POST", url, &[("Content-Type", "application/json")], json).json();
    assert_eq!(by_form, by_json);
    assert_eq!(by_form[0]["oid"], digest_of(&hub, "docs/deploy guide.md"));
    assert_eq!(by_form[1]["type"], "directory");
    assert_eq!(by_form.as_array().unwrap().len(), 2);
    assert_eq!(hub.ask("POST", url, &[("Content-Type", "application/json")], b"{").status, 400);
    let wrong = hub.get(url);
    assert_eq!((wrong.status, wrong.header("allow")), (405, "POST"));
}

#[test]
fn a_head_request_tells_everything_but_the_bytes() {
    let hub = Served::start();
    for (path, url) in [
        (SHARD, SHARD),
        ("docs/größe-模型.md", "docs/gr%C3%B6%C3%9Fe-%E6%A8%A1%E5%9E%8B.md"),
        ("docs/.gitkeep", "docs/.gitkeep"),
    ] {
        // A range has no meaning for HEAD.
        let answer = hub.ask("HEAD", &format!("/org/model/resolve/main/{url}"), &[("Range", "bytes=0-0")], b"");
        let file = hub.manifest.files().iter().find(|file| file.path.as_str() == path).unwrap();
        let etag = format!("\"{}\"", digest_of(&hub, path));
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
        assert_eq!(answer.header("content-length"), file.size.to_string());
        assert_eq!(answer.header("x-linked-size"), file.size.to_string());
        assert_eq!((answer.header("etag"), answer.header("x-linked-etag")), (&*etag, &*etag));
        assert_eq!((answer.header("x-repo-commit"), answer.header("accept-ranges")), (COMMIT, "bytes"));
        assert!(answer.header("content-disposition").starts_with("attachment; filename*=UTF-8''"));
    }
}

// class: ranges
#[test]
fn exactly_the_asked_range_is_sent() {
    let hub = Served::start();
    let whole = std::fs::read(hub.model_path(SHARD)).unwrap();
    assert_eq!(hub.get(&shard_url()).body, whole);
    for (range, expected) in [
        ("bytes=0-0", 0..1),
        ("bytes=100-8191", 100..8192),
        ("bytes=65000-", 65_000..65_536),
        ("bytes=65000-99999", 65_000..65_536),
        ("bytes=-10", 65_526..65_536),
    ] {
        let answer = hub.ask("GET", &shard_url(), &[("Range", range)], b"");
        assert_eq!(answer.status, 206, "{range}");
        let told = format!("bytes {}-{}/65536", expected.start, expected.end - 1);
        assert_eq!(answer.header("content-range"), told);
        assert_eq!(answer.header("content-length"), expected.len().to_string());
        assert_eq!(answer.body, whole[expected], "{range}");
    }
    for ignored in ["bytes=0-1,5-6", "bytes=9-2", "rows=0-1"] {
        let answer = hub.ask("GET", &shard_url(), &[("Range", ignored)], b"");
        assert_eq!((answer.status, answer.body.len()), (200, 65_536), "{ignored}");
    }
    let large = Served::with(1, 3_000_000, MirrorAuth::Everybody, 1000);
    let bytes = std::fs::read(large.model_path("model-00001-of-000001.safetensors")).unwrap();
    assert_eq!(large.get("/org/model/resolve/main/model-00001-of-000001.safetensors").body, bytes);
}

// class: ranges
#[test]
fn a_range_past_the_end_is_refused_with_the_size() {
    let hub = Served::start();
    for (path, range, told) in [
        (SHARD, "bytes=65536-", "bytes */65536"),
        (SHARD, "bytes=-0", "bytes */65536"),
        ("docs/.gitkeep", "bytes=0-", "bytes */0"),
    ] {
        let answer = hub.ask("GET", &format!("/org/model/resolve/main/{path}"), &[("Range", range)], b"");
        assert_eq!((answer.status, answer.header("content-range")), (416, told), "{path} {range}");
    }
    let empty = hub.get("/org/model/resolve/main/docs/.gitkeep");
    assert_eq!((empty.status, empty.body.len(), empty.header("content-length")), (200, 0, "0"));
}

#[test]
fn conditions_compare_the_etag() {
    let hub = Served::start();
    let etag = format!("\"{}\"", digest_of(&hub, SHARD));
    let ask =
        |name: &str, value: &str| hub.ask("GET", &shard_url(), &[("Range", "bytes=0-1"), (name, value)], b"").status;
    assert_eq!(ask("If-Range", &etag), 206);
    assert_eq!(ask("If-Range", "\"other\""), 200);
    assert_eq!(ask("If-Range", &format!("W/{etag}")), 200);
    assert_eq!(ask("If-Range", "Tue, 01 Dec 2026 00:00:00 GMT"), 200);
    assert_eq!(ask("If-None-Match", &format!("\"x\", W/{etag}")), 304);
    assert_eq!(ask("If-None-Match", "\"x\""), 206);
}

#[test]
fn what_is_not_here_is_told_in_the_hubs_words() {
    let hub = Served::start();
    for (path, code) in [
        ("/api/models/org/other", "RepoNotFound"),
        ("/api/datasets/org/model", "RepoNotFound"),
        ("/org/other/resolve/main/config.json", "RepoNotFound"),
        ("/api/models/org/model/revision/v2", "RevisionNotFound"),
        ("/org/model/resolve/0000000000000000000000000000000000000000/config.json", "RevisionNotFound"),
        ("/org/model/resolve/main/missing.json", "EntryNotFound"),
        ("/org/model/resolve/main/docs", "EntryNotFound"),
        ("/api/nothing", ""),
        ("/", ""),
    ] {
        let answer = hub.get(path);
        assert_eq!((answer.status, answer.header("x-error-code")), (404, code), "{path}");
        assert!(!answer.header("x-error-message").is_empty(), "{path}");
    }
    assert_eq!(hub.ask("DELETE", &shard_url(), &[], b"").status, 405);
    assert_eq!(hub.ask("PUT", &shard_url(), &[], b"x").status, 405);
}

// class: names
#[test]
fn no_url_leaves_the_model_or_enters_our_folder() {
    let hub = Served::start();
    std::fs::write(hub.model_path("../secret"), b"secret").unwrap();
    for path in [
        "../secret",
        "%2e%2e/secret",
        "..%2fsecret",
        "%2e%2e%2fsecret",
        "docs/../../secret",
        "docs/..%2f..%2fsecret",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        ".muster/receipt.json",
        "./.muster/receipt.json",
        ".MUSTER/receipt.json",
        "docs/..%5c..%5csecret",
        "config.json%00.txt",
    ] {
        let answer = hub.get(&format!("/org/model/resolve/main/{path}"));
        assert_eq!((answer.status, answer.header("x-error-code")), (404, "EntryNotFound"), "{path}");
    }
}

// class: credentials
#[test]
fn without_the_token_nothing_is_told() {
    let auth = MirrorAuth::Bearer(BearerToken::parse("hf_mirror_secret").unwrap());
    let hub = Served::with(1, muster::demo::SHARD_MIN, auth, 1000);
    for path in ["/api/models/org/model", "/api/models/org/other", "/org/model/resolve/main/config.json", "/x"] {
        let answer = hub.get(path);
        assert_eq!((answer.status, answer.header("x-error-code")), (401, "RepoNotFound"), "{path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        let answer = hub.ask("GET", path, &[("Authorization", "Bearer hf_other")], b"");
        assert_eq!(answer.status, 401);
        assert_eq!(answer.header("x-error-message"), "Invalid credentials in Authorization header");
    }
    let answer = hub.ask("GET", "/api/models/org/model", &[("Authorization", "Bearer hf_mirror_secret")], b"");
    assert_eq!(answer.status, 200);
}

// class: wrong-bytes
#[test]
fn a_file_that_drifted_is_not_served_and_the_others_are() {
    let hub = Served::start();
    let path = hub.model_path(SHARD);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40_000] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    std::fs::remove_file(hub.model_path("LICENSE")).unwrap();
    std::fs::remove_file(hub.model_path("config.json")).unwrap();
    std::os::unix::fs::symlink("/etc/hostname", hub.model_path("config.json")).unwrap();
    for file in [SHARD, "LICENSE", "config.json"] {
        for method in ["HEAD", "GET"] {
            let answer = hub.ask(method, &format!("/org/model/resolve/main/{file}"), &[], b"");
            assert_eq!(answer.status, 503, "{method} {file}");
            let message = answer.header("x-error-message");
            assert!(message.contains(file) && message.contains("has changed"), "{message}");
        }
    }
    assert_eq!(hub.get("/org/model/resolve/main/README.md").status, 200);
}

// class: wrong-bytes
#[test]
fn a_file_that_changes_while_it_is_sent_is_cut_short() {
    let hub = Served::with(1, 64_000_000, MirrorAuth::Everybody, 1000);
    let file = "model-00001-of-000001.safetensors";
    let mut stream = hub.send("GET", &format!("/org/model/resolve/main/{file}"), &[], b"");
    let mut begun = vec![0; 1000];
    stream.read_exact(&mut begun).unwrap();
    let open = std::fs::OpenOptions::new().write(true).open(hub.model_path(file)).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&open, b"changed", 63_000_000).unwrap();
    let mut rest = Vec::new();
    let _ended = stream.read_to_end(&mut rest);
    let received = begun.len() + rest.len();
    assert!(received < 63_000_000, "{received} bytes came");
}

// class: gate
#[test]
fn only_what_has_a_receipt_is_served_and_what_comes_is_noticed() {
    let hub = Served::start();
    let receipt = hub.model_path(".muster/receipt.json");
    let aside = hub.model_path(".muster/receipt.aside");
    assert_eq!(hub.get(&shard_url()).status, 200);
    std::fs::rename(&receipt, &aside).unwrap();
    let gone = hub.get(&shard_url());
    assert_eq!((gone.status, gone.header("x-error-code")), (404, "RepoNotFound"));
    std::fs::rename(&aside, &receipt).unwrap();
    let mut later = source("org/later");
    later.repo.kind = RepoKind::Dataset;
    later.revision = Revision::parse("refs/pr/1").unwrap();
    later.commit = CommitId::from_bytes([9; 20]);
    add_model(&hub.volume, later, 1, muster::demo::SHARD_MIN);
    mirror_until(|| hub.get("/datasets/org/later/resolve/refs%2Fpr%2F1/config.json").status == 200);
    mirror_until(|| hub.get(&shard_url()).status == 200);
    let main = hub.get("/api/datasets/org/later");
    assert_eq!((main.status, main.header("x-error-code")), (404, "RevisionNotFound"));
    assert!(main.header("x-error-message").contains("refs/pr/1"));
}

// class: revision
#[test]
fn a_selection_of_files_does_not_pass_for_the_repository() {
    let hub = Served::start();
    let mut part = source("org/part");
    part.selection = Selection::new(vec![Pattern::parse("*.json").unwrap()], vec![]);
    add_model(&hub.volume, part, 1, muster::demo::SHARD_MIN);
    let answer = hub.get("/api/models/org/part");
    assert_eq!((answer.status, answer.header("x-error-code")), (404, "RepoNotFound"));
}

#[test]
fn a_stop_ends_idle_connections_at_once() {
    let mut hub = Served::start();
    let mut idle = TcpStream::connect(hub.address).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    idle.write_all(b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    let mut begun = [0; 16];
    idle.read_exact(&mut begun).unwrap();
    hub.stop();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    assert!(TcpStream::connect(hub.address).is_err());
}

// class: stalls, bounds
#[test]
fn idle_connections_make_room_for_whoever_waits() {
    let hub = Served::start();
    // As many as are served at a time, each with an answer behind it.
    let idle: Vec<_> = (0..256)
        .map(|_| {
            let mut stream = TcpStream::connect(hub.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            stream.write_all(b"HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            stream.read_exact(&mut [0; 16]).unwrap();
            stream
        })
        .collect();
    // Idle ones would keep their places for a minute, and nobody waits so long for the head of an answer.
    for _ in 0..20 {
        let mut late = hub.send("GET", &shard_url(), &[], b"");
        late.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        late.read_exact(&mut [0; 16]).unwrap();
    }
    drop(idle);
}

/// Unknown names are looked for again at most once a second.
#[track_caller]
fn mirror_until(mut condition: impl FnMut() -> bool) {
    for _ in 0..300 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not within six seconds");
}

// class: credentials
#[test]
fn the_verb_serves_tells_where_and_logs_no_token() {
    let hub = Served::start();
    let volume = hub.volume.path().to_str().unwrap().to_owned();
    let token_file = hub.model_path("../token");
    std::fs::write(&token_file, "hf_ours_secret\n").unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["mirror", "--volume", &volume, "--listen", "127.0.0.1:0", "--log", "trace", "--token-file"])
        .arg(&token_file)
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut url = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut url).unwrap();
    let address: SocketAddr = url.trim().strip_prefix("http://").unwrap().parse().unwrap();
    let status = |token: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!(
            "GET /api/models/org/model HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        Answer::parse(&bytes).status
    };
    assert_eq!((status("hf_ours_secret"), status("hf_theirs_secret")), (200, 401));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    let logged = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{logged}");
    assert!(logged.contains("/api/models/org/model") && logged.contains("401"), "{logged}");
    assert!(!logged.contains("secret"), "{logged}");
}
