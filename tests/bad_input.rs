//! Each mistake has its own words and exit code, and leaves nothing behind.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use support::*;

const TOKEN: &str = "hf_aSecretThatNobodyMaySee";

fn repo() -> RepoSpec {
    RepoSpec::new("org/model").plain("config.json", "{}\n").lfs("weights.bin", Content::generated(1, 100_000))
}

/// A world whose volume does not exist yet.
fn fresh(hub: &Hub) -> (Muster, PathBuf) {
    let world = Muster::on(hub);
    let volume = world.home().join("not made yet");
    (world.env("MUSTER_VOLUME", &volume), volume)
}

/// Fails with this code and these words, at every log level, without a panic, a token or a trace.
#[track_caller]
fn refused(world: &Muster, volume: &std::path::Path, args: &[&str], code: i32, words: &[&str]) -> String {
    let mut error = String::new();
    for level in ["warn", "trace"] {
        let out = world.args(args).arg("--log").arg(level).run().expect_code(code);
        assert_eq!(out.stdout, "", "{out}");
        assert!(!out.all().contains("panicked"), "{out}");
        assert!(!out.all().contains(TOKEN), "a token is told: {out}");
        for word in words {
            assert!(out.stderr.contains(word), "{word:?} is missing: {out}");
        }
        assert!(!volume.exists(), "{:?}", listing(volume));
        assert_eq!(out.stderr.lines().filter(|line| line.starts_with("error:")).count(), 1, "{out}");
        if level == "warn" {
            error = out.stderr;
        }
    }
    error
}

// class: credentials, words
#[test]
fn each_refusal_of_the_hub_has_its_own_words_and_leaves_nothing() {
    let hub = Hub::with([
        repo(),
        repo().named("org/gated").gated(),
        repo().named("org/disabled").disabled(),
        repo().named("org/private").private(),
    ]);
    hub.know_token("hf_stranger");
    let (world, volume) = fresh(&hub);
    let mut told = BTreeMap::new();
    let mut check = |args: &[&str], words: &[&str]| {
        let error = refused(&world, &volume, args, 17, words);
        assert!(told.insert(error, args[1].to_owned()).is_none(), "{args:?} has the words of another");
    };
    check(&["pull", "org/nothing"], &["org/nothing", "does not exist, or is private", "--token-file"]);
    check(&["pull", "org/private"], &["org/private", "--token-file"]);
    check(&["pull", "org/model@no-such-branch"], &["no-such-branch", "--revision"]);
    check(&["pull", "org/gated"], &["org/gated", "hint:", "accept the licence", "HF_TOKEN"]);
    check(&["pull", "org/disabled"], &["org/disabled is disabled"]);
    let wrong = world.clone().env("HF_TOKEN", TOKEN);
    refused(&wrong, &volume, &["pull", "org/model"], 17, &["the token is not valid", "hint:"]);
    let stranger = world.env("HF_TOKEN", "hf_stranger");
    refused(&stranger, &volume, &["pull", "org/gated"], 17, &["org/gated", "the token's account"]);
}

// class: credentials
#[test]
fn masked_digests_are_refused_with_the_way_to_get_access() {
    let hub = Hub::start(repo().gated());
    let (world, volume) = fresh(&hub);
    let error = refused(&world, &volume, &["pull", "org/model"], 17, &["restricted by its owners", "hint:"]);
    assert!(error.contains(&format!("{}/org/model", hub.url())), "it names the page: {error}");
}

// class: network, words
#[test]
fn an_endpoint_that_cannot_be_reached_is_named() {
    let hub = Hub::start(repo());
    hub.unreachable(Origin::Hub);
    let (world, volume) = fresh(&hub);
    let host = hub.address(Origin::Hub).to_string();
    refused(&world, &volume, &["pull", "org/model"], 18, &[&host, "HF_ENDPOINT"]);
}

#[test]
fn words_on_the_command_line_are_checked_before_anybody_is_asked() {
    let hub = Hub::start(repo());
    let (world, volume) = fresh(&hub);
    for (args, words) in [
        (&["pull", "org/model", "--no-such-flag"][..], &["--no-such-flag"][..]),
        (&["pull", "org/model", "--include", ""], &["include", "empty"]),
        (&["pull", "org/model", "--reserve", "10M"], &["10M", "10MB", "10MiB"]),
        (&["pull", "../etc"], &["../etc"]),
        (&["pull", "a/b/c/d"], &["a/b/c/d"]),
        (&["pull", "org/model", "--to", "../x"], &["--to"]),
        (&["pull", "org/model", "--revision", "a..b"], &["revision"]),
        (&["pull", "org/model", "--connections", "0"], &["connections"]),
        (&["pull", "org/model", "--endpoint", "ftp://x"], &["endpoint"]),
        (&["pull", "org/model", "--token-file", "no-such-file"], &["no-such-file"]),
        (&["pull", "org/model", "--config", "no-such-file"], &["no-such-file"]),
    ] {
        refused(&world, &volume, args, 2, words);
    }
    assert!(hub.requests().is_empty(), "{:?}", hub.requests());
}

#[test]
fn a_key_that_no_configuration_has_is_named() {
    let hub = Hub::start(repo());
    let (world, volume) = fresh(&hub);
    let config = world.home().join("muster.toml");
    std::fs::write(&config, "volumes = \"/shared\"\n").unwrap();
    refused(&world, &volume, &["pull", "org/model", "--config", config.to_str().unwrap()], 2, &["volumes"]);
    assert!(hub.requests().is_empty());
}

// class: revision
#[test]
fn patterns_that_match_nothing_are_told() {
    let hub = Hub::start(repo());
    let (world, volume) = fresh(&hub);
    refused(&world, &volume, &["pull", "org/model", "--include", "*.gguf"], 2, &["--include *.gguf", "hint:"]);
}

// class: bounds
#[test]
fn a_volume_without_room_is_told_with_its_figures() {
    let hub = Hub::start(repo());
    let (world, volume) = fresh(&hub);
    for args in [&["pull", "org/model"][..], &["pull", "org/model", "--detach"], &["pull", "org/model", "--dry-run"]] {
        let mut args = args.to_vec();
        args.extend(["--reserve", "9000TB"]);
        let out = world.args(&args).run().expect_code(16);
        assert!(out.stderr.contains("100.0 kB") && out.stderr.contains("9000.00 TB"), "{out}");
        assert!(out.stderr.contains("--reserve"), "{out}");
        assert!(!volume.exists());
    }
}

// class: permissions
#[test]
fn a_volume_that_cannot_be_written_is_told_before_a_byte_is_fetched() {
    let hub = Hub::start(repo());
    let world = Muster::on(&hub);
    let file = world.home().join("a file");
    std::fs::write(&file, "").unwrap();
    for volume in [file.join("volume"), file.clone()] {
        let out = world.args(["pull", "org/model", "--volume"]).arg(&volume).run();
        assert!(matches!(out.code, Some(2 | 18)), "{out}");
        assert!(out.stderr.contains(volume.to_str().unwrap()) && !out.stderr.contains("panicked"), "{out}");
    }
    assert_eq!(hub.total_body_bytes(), 0);
}

#[test]
fn a_token_file_that_is_empty_or_of_several_lines_is_refused() {
    let hub = Hub::start(repo());
    let (world, volume) = fresh(&hub);
    let file = world.home().join("token");
    for content in ["", "\n", &format!("{TOKEN}\n{TOKEN}\n")] {
        std::fs::write(&file, content).unwrap();
        refused(&world, &volume, &["pull", "org/model", "--token-file", file.to_str().unwrap()], 2, &["token"]);
    }
}

// class: names
#[test]
fn hostile_names_in_a_listing_are_refused_whole() {
    for name in ["../outside", "/etc/passwd", "a/../../b", "a\\b", ".muster/receipt.json", "nul\0", "a//b"] {
        let hub = Hub::start(repo().plain(name, "evil"));
        let (world, volume) = fresh(&hub);
        let error = refused(&world, &volume, &["pull", "org/model"], 12, &["org/model"]);
        assert!(!error.contains('\0'), "{error}");
        assert!(!world.home().join("outside").exists());
    }
}

// class: names
#[test]
fn a_listing_in_which_a_file_is_a_folder_is_refused() {
    let hub = Hub::start(repo().plain("node", "x").plain("node/child", "y"));
    let (world, volume) = fresh(&hub);
    refused(&world, &volume, &["pull", "org/model"], 17, &["node", "both a file and a folder"]);
}

#[test]
fn errors_are_json_when_json_was_asked_for() {
    let hub = Hub::start(repo());
    let (world, volume) = fresh(&hub);
    let out = world.args(["pull", "org/nothing", "--json"]).run().expect_code(17);
    let line = out.all();
    let error: serde_json::Value = line.lines().find_map(|line| serde_json::from_str(line).ok()).expect("JSON");
    assert_eq!(error["error"]["code"], "upstream_refused");
    assert!(error["error"]["hint"].is_string());
    assert!(!volume.exists());
}
