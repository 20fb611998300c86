//! The official client and the official reader of weights, unmodified, against the mirror.
//!
//! They are installed by `tests/run`. Without them these tests fail: a test that did not run did
//! not pass.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod mirror_support;
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use mirror_support::{COMMIT, Served};
use muster::mirror::MirrorAuth;
use muster::serving::BearerToken;

const SHARDS: u32 = 119;
/// Smaller than the repository, so that the client has to follow pages.
const PAGE_SIZE: usize = 50;

fn hub() -> Served {
    Served::with(SHARDS, muster::demo::SHARD_MIN, MirrorAuth::Everybody, PAGE_SIZE)
}

#[track_caller]
fn witness(variable: &str) -> PathBuf {
    let path = std::env::var_os(variable).unwrap_or_else(|| panic!("{variable} is not set: run tests/run"));
    assert!(Path::new(&path).exists(), "{variable} names nothing: run tests/run");
    path.into()
}

/// `hf` in a home of its own, asking nobody but the mirror.
struct Client {
    home: tempfile::TempDir,
    endpoint: String,
    token: Option<&'static str>,
}

impl Client {
    fn of(hub: &Served) -> Self {
        Self { home: tempfile::tempdir().unwrap(), endpoint: hub.endpoint(), token: None }
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
        command.env("HOME", self.home.path()).env("HF_HOME", self.home.path().join("hf"));
        command.env("HF_ENDPOINT", &self.endpoint).env("HF_HUB_DISABLE_TELEMETRY", "1");
        command.env("HF_HUB_DISABLE_XET", "1").env("HF_HUB_DISABLE_PROGRESS_BARS", "1");
        command.env("NO_PROXY", "127.0.0.1").envs(self.token.map(|token| ("HF_TOKEN", token)));
        command
    }

    /// Runs `hf`; its exit code and everything it said.
    fn hf(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let output = self.command(&witness("MUSTER_TEST_HF")).args(arguments).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&said).into_owned())
    }

    #[track_caller]
    fn hf_succeeds(&self, arguments: &[&str]) -> String {
        let (code, said) = self.hf(arguments);
        assert_eq!(code, Some(0), "hf {arguments:?}: {said}");
        said
    }

    fn local(&self) -> PathBuf {
        self.home.path().join("local")
    }
}

/// Every file of the repository, byte for byte.
#[track_caller]
fn assert_is_copy(hub: &Served, copy: &Path) {
    for file in hub.manifest.files() {
        let bytes = std::fs::read(copy.join(file.path.as_str())).unwrap_or_else(|e| panic!("{}: {e}", file.path));
        assert_eq!(bytes, std::fs::read(hub.model_path(file.path.as_str())).unwrap(), "{}", file.path);
    }
}

// class: proxies
#[test]
fn hf_downloads_to_a_directory_and_agrees_with_what_it_got() {
    let hub = hub();
    let client = Client::of(&hub);
    let local = client.local();
    let to = local.to_str().unwrap();
    client.hf_succeeds(&["download", "org/model", "--local-dir", to]);
    assert_is_copy(&hub, &local);
    let strict = ["--fail-on-missing-files", "--fail-on-extra-files"];
    let verify = ["cache", "verify", "org/model", "--local-dir", to, strict[0], strict[1]];
    client.hf_succeeds(&verify);
    // The check itself works: one byte more, and it disagrees.
    let shard = local.join("model-00042-of-000119.safetensors");
    let mut bytes = std::fs::read(&shard).unwrap();
    bytes[30_000] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let (code, said) = client.hf(&verify);
    assert_eq!(code, Some(1), "{said}");
}

#[test]
fn hf_downloads_to_its_cache_at_a_branch_and_at_a_commit() {
    let hub = hub();
    let client = Client::of(&hub);
    client.hf_succeeds(&["download", "org/model"]);
    let repo = client.home.path().join("hf/hub/models--org--model");
    assert_is_copy(&hub, &repo.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(repo.join("refs/main")).unwrap(), COMMIT);
    client.hf_succeeds(&["cache", "verify", "org/model", "--fail-on-missing-files", "--fail-on-extra-files"]);
    client.hf_succeeds(&["download", "org/model", "--revision", COMMIT]);
    client.hf_succeeds(&["download", "org/model", "docs/größe-模型.md", "docs/deploy guide.md"]);
    client.hf_succeeds(&[
        "download",
        "org/model",
        "--include",
        "*.json",
        "--local-dir",
        client.local().to_str().unwrap(),
    ]);
    assert!(client.local().join("config.json").exists() && !client.local().join("README.md").exists());
}

#[test]
fn hf_understands_what_the_mirror_refuses() {
    let hub = hub();
    let client = Client::of(&hub);
    for (arguments, expected) in [
        (&["download", "org/other"][..], "not found"),
        (&["download", "org/model", "--revision", "v9"], "revision"),
        (&["download", "org/model", "missing.json"], "not found"),
    ] {
        let (code, said) = client.hf(arguments);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        assert!(said.to_lowercase().contains(expected), "{arguments:?}: {said}");
    }
}

// class: credentials
#[test]
fn hf_shows_its_token_and_gets_nothing_without_it() {
    let auth = MirrorAuth::Bearer(BearerToken::parse("hf_of_the_mirror").unwrap());
    let hub = Served::with(1, muster::demo::SHARD_MIN, auth, PAGE_SIZE);
    let mut client = Client::of(&hub);
    let to = client.local();
    let download = ["download", "org/model", "--local-dir", to.to_str().unwrap()];
    assert_eq!(client.hf(&download).0, Some(1));
    client.token = Some("hf_of_the_mirror");
    client.hf_succeeds(&download);
    assert_is_copy(&hub, &to);
}

// class: wrong-bytes
#[test]
fn safetensors_opens_every_shard_and_finds_every_tensor_of_the_index() {
    let script = r#"
import json, pathlib, sys
from safetensors import safe_open
root = pathlib.Path(sys.argv[1])
index = json.loads((root / "model.safetensors.index.json").read_text())
found, size = {}, 0
for shard in sorted(root.glob("*.safetensors")):
    with safe_open(shard, framework="np") as file:
        for name in file.keys():
            found[name] = shard.name
            size += file.get_tensor(name).nbytes
assert found == index["weight_map"], "the index and the shards differ"
assert size == index["metadata"]["total_size"], (size, index["metadata"])
print(len(set(found.values())))
"#;
    let hub = hub();
    let client = Client::of(&hub);
    let mut python = client.command(&witness("MUSTER_TEST_PYTHON"));
    let output = python.args(["-c", script]).arg(hub.model_path("")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), SHARDS.to_string());
}

// class: verify-cost, wrong-bytes
#[test]
fn a_directory_that_hf_made_is_adopted_and_exactly_what_was_damaged_or_removed_is_fetched() {
    use support::{Hub, Muster, RepoSpec, assert_complete, flip_byte};
    let repo = RepoSpec::kimi(6, 1 << 20, 12).named("org/model");
    let hub = Hub::start(repo.clone());
    let client = Client { home: tempfile::tempdir().unwrap(), endpoint: hub.url(), token: None };
    let world = Muster::on(&hub);
    let directory = world.model("by-hf");
    let to = directory.to_str().unwrap();
    client.hf_succeeds(&["download", "org/model", "--local-dir", to]);
    for file in repo.files() {
        assert_eq!(std::fs::read(directory.join(&file.path)).unwrap(), file.content.to_vec(), "{}", file.path);
    }
    let (damaged, removed) = ("model-00002-of-000006.safetensors", "model-00005-of-000006.safetensors");
    flip_byte(&directory.join(damaged), 400_000);
    std::fs::remove_file(directory.join(removed)).unwrap();
    let of_hf = support::trace(&directory.join(".cache"));
    hub.forget();
    world.args(["adopt", to, "--repo", "org/model", "--no-fetch"]).run().expect_code(11);
    assert_eq!(hub.total_body_bytes(), 0);
    let out = world.args(["adopt", to, "--repo", "org/model"]).run().expect_code(0);
    assert!(out.stderr.contains("16 of 18 files right as they were; fetched: 1 missing, 1 wrong"), "{out}");
    assert_complete(&directory, &repo);
    assert_eq!((hub.bytes_sent_for(damaged), hub.bytes_sent_for(removed)), (1 << 20, 1 << 20));
    assert_eq!(hub.total_body_bytes(), 2 << 20, "those two and nothing else");
    assert_eq!(support::trace(&directory.join(".cache")), of_hf, "what is the client's stays as it was");
    hub.forget();
    world.args(["pull", "org/model", "--local-dir", to]).run().expect_code(0);
    assert_eq!(hub.total_body_bytes(), 0);
    world.args(["gate", to]).run().expect_code(0);
    // And the client still takes it for its own.
    client.hf_succeeds(&["cache", "verify", "org/model", "--local-dir", to, "--fail-on-missing-files"]);
}

// class: progress-lost
#[test]
fn what_hf_had_of_a_file_when_it_was_killed_is_not_fetched_again() {
    use std::time::Duration;
    use support::{Hub, Muster, RepoSpec, assert_complete, listing, wait_until};
    const MIB: u64 = 1 << 20;
    let repo = RepoSpec::kimi(2, 24 * MIB, 4).named("org/model");
    let hub = Hub::start(repo.clone());
    let client = Client { home: tempfile::tempdir().unwrap(), endpoint: hub.url(), token: None };
    let world = Muster::on(&hub);
    let directory = world.model("by-hf");
    let to = directory.to_str().unwrap();
    hub.hold_after(40 * MIB);
    let mut hf = client.command(&witness("MUSTER_TEST_HF"));
    let mut hf = hf.args(["download", "org/model", "--local-dir", to]).spawn().unwrap();
    let downloads = directory.join(".cache/huggingface/download");
    let partials = || {
        let names = listing(&downloads).into_iter().filter(|name| name.ends_with(".incomplete"));
        names.map(|name| std::fs::metadata(downloads.join(name)).map_or(0, |meta| meta.len())).collect::<Vec<_>>()
    };
    // It writes in steps of 10 MiB.
    wait_until("a partial with something in it", Duration::from_secs(60), || {
        partials().iter().sum::<u64>() >= 10 * MIB
    });
    hf.kill().unwrap();
    hf.wait().unwrap();
    hub.cut(support::Origin::Cdn);
    hub.release();
    let had: u64 = partials().iter().sum();
    let there: u64 = repo.files().filter(|f| directory.join(&f.path).exists()).map(support::FileSpec::size).sum();
    hub.forget();
    world.args(["adopt", to, "--repo", "org/model"]).run().expect_code(0);
    assert_complete(&directory, &repo);
    // A connection that takes over the end of another may ask for a little twice, and how often chance decides.
    let (fetched, lacking) = (hub.total_body_bytes(), repo.total_bytes() - there - had);
    assert!(had >= 10 * MIB && fetched < lacking + had / 2, "{fetched} of {lacking} that were lacking");
}
