//! The client of the Hub's API against a scripted Hub: redirects, pages, refusals, limits, and
//! where a token goes.

#![allow(clippy::disallowed_methods, reason = "a test looks at the clock and runs itself again")]
#![allow(clippy::unwrap_used, clippy::too_many_lines, reason = "a test that cannot go on says where")]

mod support;

use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use muster::core::code::Code;
use muster::core::digest::Digest;
use muster::core::endpoint::Endpoint;
use muster::core::manifest::FileEntry;
use muster::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
use muster::core::repo_path::RepoPath;
use muster::hub::auth::TokenPlace;
use muster::hub::{Caller, HubClient, HubConfig, HubError, Location, PageFault, Phase, Timeouts, Token, Traffic};
use support::{Behaviour, Hub, Match, Origin, Recorded, Reply, RepoSpec};

const TOKEN: &str = "hf_thesecret";

fn small() -> RepoSpec {
    RepoSpec::new("org/model")
        .plain("config.json", b"{}".to_vec())
        .plain("a folder/é?#%.txt", b"odd name".to_vec())
        .lfs("model.safetensors", vec![7; 5000])
        .lfs("deep/er/empty.bin", Vec::new())
        .branch("main")
}

fn model(id: &str) -> Repo {
    Repo { kind: RepoKind::Model, id: RepoId::parse(id).unwrap() }
}

fn client(hub: &Hub, token: Option<&str>) -> HubClient {
    let token = token.and_then(|text| Token::parse(text, TokenPlace::Submitted).unwrap());
    let timeouts = Timeouts { connect: Duration::from_secs(5), header: Duration::from_secs(5), ..Timeouts::default() };
    HubClient::new(HubConfig { token, timeouts, ..HubConfig::new(Endpoint::parse(&hub.url()).unwrap()) }).unwrap()
}

fn impatient(hub: &Hub) -> HubClient {
    let brief = Duration::from_millis(150);
    let timeouts = Timeouts { connect: brief, header: brief, idle: brief };
    HubClient::new(HubConfig { timeouts, ..HubConfig::new(Endpoint::parse(&hub.url()).unwrap()) }).unwrap()
}

async fn commit(client: &HubClient, repo: &Repo) -> CommitId {
    client.resolve_revision(repo, &Revision::default()).await.unwrap()
}

async fn entry(client: &HubClient, repo: &Repo, path: &str) -> FileEntry {
    let listing = client.listing(repo, commit(client, repo).await).await.unwrap();
    listing.into_iter().find(|entry| entry.path.as_str() == path).unwrap()
}

async fn locate(client: &HubClient, path: &str) -> Result<Location, HubError> {
    let repo = model("org/model");
    let entry = entry(client, &repo, path).await;
    client.locate(&repo, commit(client, &repo).await, &entry).await
}

async fn body(client: &HubClient, location: &Location) -> Vec<u8> {
    let request = location.request(client);
    let response = client.send(request, &location.origin(), Traffic::Data).await.unwrap();
    assert_eq!(response.status(), 200, "{location}");
    response.bytes().await.unwrap().to_vec()
}

fn refusal(result: Result<CommitId, HubError>) -> HubError {
    let error = result.unwrap_err();
    let shown = format!("{error} {error:?} {:?}", error.hint());
    assert!(!shown.contains(TOKEN), "{shown}");
    error
}

fn bearers(seen: &[Recorded]) -> Vec<Option<&str>> {
    seen.iter().map(|request| request.header("authorization")).collect()
}

// ---- revision and listing ------------------------------------------------------------------------

#[tokio::test]
async fn a_revision_is_resolved_to_the_commit_it_stands_for_now() {
    let hub = Hub::start(small().branch("refs/pr/1").tag("v1.0"));
    let (client, repo) = (client(&hub, None), model("org/model"));
    for revision in ["main", "refs/pr/1", "v1.0"] {
        let found = client.resolve_revision(&repo, &Revision::parse(revision).unwrap()).await.unwrap();
        assert_eq!(found.to_string(), hub.commit("org/model", revision));
    }
    assert_eq!(hub.count(Match::info().suffix("refs/pr/1")), 1);
    let old = commit(&client, &repo).await;
    hub.push("org/model", "main", |repo| repo.plain("new.json", b"[]".to_vec()));
    let new = commit(&client, &repo).await;
    assert_ne!(old, new, "the branch moved");
    assert_eq!(client.listing(&repo, old).await.unwrap().len(), 4);
    assert_eq!(client.listing(&repo, new).await.unwrap().len(), 5);
}

#[tokio::test]
async fn datasets_and_spaces_have_addresses_of_their_own() {
    let file = |repo: RepoSpec| repo.lfs("data.bin", vec![1; 100]).branch("main");
    let hub = Hub::with([file(RepoSpec::new("org/data").dataset()), file(RepoSpec::new("org/room").space())]);
    let client = client(&hub, None);
    for (kind, id) in [(RepoKind::Dataset, "org/data"), (RepoKind::Space, "org/room")] {
        let repo = Repo { kind, id: RepoId::parse(id).unwrap() };
        let entry = entry(&client, &repo, "data.bin").await;
        let location = client.locate(&repo, commit(&client, &repo).await, &entry).await.unwrap();
        assert_eq!(body(&client, &location).await, vec![1; 100]);
    }
}

// class: revision
#[tokio::test]
async fn every_page_of_a_listing_is_read() {
    let spec = RepoSpec::kimi(9, 4096, 5).branch("main").named("org/model");
    let files = spec.files().count();
    let hub = Hub::start(spec);
    hub.page_size(4);
    let (client, repo) = (client(&hub, None), model("org/model"));
    let listing = client.listing(&repo, commit(&client, &repo).await).await.unwrap();
    assert_eq!(listing.len(), files);
    assert!(hub.count(Match::tree()) >= files.div_ceil(4));
    let spec = hub.repo("org/model");
    for entry in listing {
        let file = spec.get(entry.path.as_str());
        assert_eq!(entry.size, file.size());
        match entry.digest {
            Digest::Sha256(digest) => assert_eq!(digest.to_string(), file.sha256()),
            Digest::GitBlob(digest) => assert_eq!(digest.to_string(), file.etag()),
        }
    }
}

// class: revision
#[tokio::test]
async fn a_page_that_comes_again_ends_the_listing() {
    let hub = Hub::start(small());
    let again = format!(
        "<{}/api/models/org/model/tree/{}?recursive=true&expand=false>; rel=\"next\"",
        hub.url(),
        hub.commit("org/model", "main")
    );
    hub.always(Match::tree(), Behaviour::set_header("Link", &again));
    let (client, repo) = (client(&hub, None), model("org/model"));
    let error = client.listing(&repo, commit(&client, &repo).await).await.unwrap_err();
    assert!(matches!(error, HubError::Pages { fault: PageFault::Repeated { page: 2 }, .. }), "{error}");
    assert_eq!(hub.count(Match::tree()), 1);
}

// class: proxies, credentials
#[tokio::test]
async fn a_next_page_on_another_server_is_not_asked_for() {
    let hub = Hub::start(small());
    hub.always(Match::tree(), Behaviour::set_header("Link", &format!("<{}/next>; rel=\"next\"", hub.cdn_url())));
    let (client, repo) = (client(&hub, Some(TOKEN)), model("org/model"));
    let error = client.listing(&repo, commit(&client, &repo).await).await.unwrap_err();
    assert!(matches!(error, HubError::Pages { fault: PageFault::Elsewhere { .. }, .. }), "{error}");
    assert!(error.hint().unwrap().contains(&hub.cdn_url()));
    assert_eq!(hub.count(Match::cdn("")), 0);
}

// class: credentials
#[tokio::test]
async fn masked_digests_are_refused_with_the_way_to_access() {
    let hub = Hub::start(small().gated());
    let repo = model("org/model");
    for (token, caller, advice) in [
        (None, Caller::Anonymous, "/org/model, then set HF_TOKEN"),
        (Some("hf_stranger"), Caller::Token, "with the token's account"),
    ] {
        hub.know_token("hf_stranger");
        let client = client(&hub, token);
        let error = client.listing(&repo, commit(&client, &repo).await).await.unwrap_err();
        let HubError::Masked { caller: found, .. } = &error else { panic!("{error}") };
        assert_eq!(*found, caller);
        assert!(error.hint().unwrap().contains(advice), "{:?}", error.hint());
    }
}

// class: names
#[tokio::test]
async fn an_unsafe_path_is_named_and_refused() {
    let hub = Hub::start(small());
    let page = format!(r#"[{{"type":"file","path":"../../etc/cron.d/x","size":1,"oid":"{}"}}]"#, "1".repeat(40));
    hub.always(Match::tree(), Behaviour::Answer(Reply::status(200).body("application/json", page)));
    let (client, repo) = (client(&hub, None), model("org/model"));
    let error = client.listing(&repo, commit(&client, &repo).await).await.unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("../../etc/cron.d/x"));
    assert_eq!(error.code(), Code::Refused);
}

// ---- where a file's bytes are --------------------------------------------------------------------

// class: credentials
#[tokio::test]
async fn the_token_goes_to_the_hub_and_never_to_another_origin() {
    let hub = Hub::start(small());
    hub.require_token(TOKEN);
    let client = client(&hub, Some(TOKEN));
    let location = locate(&client, "model.safetensors").await.unwrap();
    assert_eq!(location.origin().to_string(), hub.cdn_url());
    assert!(!location.is_at_hub(&client));
    assert_eq!(body(&client, &location).await, vec![7; 5000]);
    let location = locate(&client, "config.json").await.unwrap();
    assert!(location.is_at_hub(&client));
    assert_eq!(body(&client, &location).await, b"{}");
    assert_eq!(hub.authorization_seen_by_cdn(), Vec::<String>::new());
    let bearer = format!("Bearer {TOKEN}");
    assert!(bearers(&hub.matching(Match::hub(""))).iter().all(|seen| *seen == Some(bearer.as_str())));
    let identity = |request: &Recorded| request.header("accept-encoding") == Some("identity");
    assert!(hub.requests().iter().all(identity));
    assert!(hub.requests().iter().all(|request| request.header("user-agent").unwrap().starts_with("muster/")));
}

// class: proxies
#[tokio::test]
async fn the_metadata_are_read_on_the_redirect_and_the_storage_is_not_asked() {
    let hub = Hub::start(small());
    let client = client(&hub, None);
    let location = locate(&client, "model.safetensors").await.unwrap();
    assert_eq!(hub.count(Match::cdn("")), 0);
    assert_eq!(hub.resolves_of("model.safetensors"), 1);
    let expires = location.expires_at().unwrap();
    let now = Timestamp::now();
    assert!(!location.is_stale(now) && location.is_stale(expires));
    assert!(!format!("{location} {location:?}").contains("Signature"));
    hub.forget();
    hub.on(Match::resolve("model.safetensors")).then(Behaviour::set_header("X-Linked-Size", "4999"));
    let error = locate(&client, "model.safetensors").await.unwrap_err();
    assert!(error.to_string().contains("size expected 5000, found 4999"), "{error}");
    hub.on(Match::resolve("model.safetensors"))
        .then(Behaviour::set_header("X-Linked-Etag", &format!("\"{}\"", "a".repeat(64))));
    let error = locate(&client, "model.safetensors").await.unwrap_err();
    assert!(matches!(error, HubError::Contradiction { what: "digest", .. }), "{error}");
    hub.on(Match::resolve("model.safetensors")).then(Behaviour::set_header("X-Repo-Commit", &"a".repeat(40)));
    let error = locate(&client, "model.safetensors").await.unwrap_err();
    assert!(matches!(error, HubError::Contradiction { what: "commit", .. }), "{error}");
}

// class: proxies
#[tokio::test]
async fn a_relative_redirect_is_followed_with_its_query() {
    let hub = Hub::start(small());
    let client = client(&hub, None);
    for (path, bytes) in [("config.json", b"{}".to_vec()), ("a folder/é?#%.txt", b"odd name".to_vec())] {
        let location = locate(&client, path).await.unwrap();
        assert_eq!(body(&client, &location).await, bytes);
    }
    let hops = hub.matching(Match::hub("/api/resolve-cache/"));
    assert!(!hops.is_empty() && hops.iter().all(|hop| hop.query.contains("&etag=%22")), "{hops:?}");
    assert_eq!(hub.resolves_of("config.json"), 1, "the bytes come from where the resolver sent us");
}

// class: credentials
#[tokio::test]
async fn a_renamed_repository_is_found_under_its_new_name() {
    let hub = Hub::start(small().renamed_from("old/name"));
    let (client, repo) = (client(&hub, None), model("old/name"));
    let entry = entry(&client, &repo, "model.safetensors").await;
    let location = client.locate(&repo, commit(&client, &repo).await, &entry).await.unwrap();
    assert_eq!(body(&client, &location).await, vec![7; 5000]);
}

// class: proxies, credentials
#[tokio::test]
async fn a_mirror_that_sends_on_to_another_hub_is_followed_without_the_token() {
    let (mirror, hub) = (Hub::start(small()), Hub::start(small()));
    let client = client(&mirror, Some(TOKEN));
    let there = format!("{}/org/model/resolve/{}/config.json", hub.url(), hub.commit("org/model", "main"));
    mirror.always(Match::resolve("config.json"), Behaviour::Redirect { status: 308, location: there });
    let location = locate(&client, "config.json").await.unwrap();
    assert_eq!(location.origin().to_string(), hub.url());
    assert_eq!(body(&client, &location).await, b"{}");
    assert!(bearers(&hub.requests()).iter().all(Option::is_none));
}

// class: proxies
#[tokio::test]
async fn a_head_that_is_not_supported_leaves_the_resolver_itself() {
    let hub = Hub::start(small());
    let client = client(&hub, None);
    for status in [405, 501] {
        hub.on(Match::resolve("config.json").head()).then(Behaviour::status(status));
        let location = locate(&client, "config.json").await.unwrap();
        assert!(location.is_at_hub(&client) && location.to_string().contains("/resolve/"), "{location}");
    }
}

// class: proxies
#[tokio::test]
async fn redirects_without_end_or_aim_are_errors() {
    let hub = Hub::start(small());
    let client = client(&hub, Some(TOKEN));
    hub.on(Match::resolve("config.json")).then(Behaviour::RedirectLoop).times(21);
    let error = locate(&client, "config.json").await.unwrap_err();
    assert!(matches!(error, HubError::Redirect { .. }), "{error}");
    assert_eq!(hub.plays_left(), 0);
    for location in ["ftp://x/y", "http://["] {
        let redirect = Behaviour::Redirect { status: 302, location: location.to_owned() };
        hub.on(Match::resolve("config.json")).then(redirect);
        let error = locate(&client, "config.json").await.unwrap_err();
        assert!(matches!(error, HubError::Redirect { .. }), "{error}");
    }
    hub.on(Match::info()).then(Behaviour::RedirectToOtherPort);
    let error = refusal(client.resolve_revision(&model("org/model"), &Revision::default()).await);
    assert!(error.to_string().contains(&hub.cdn_url()), "{error}");
    assert_eq!(hub.count(Match::cdn("")), 0);
}

// ---- refusals ------------------------------------------------------------------------------------

// class: credentials
#[tokio::test]
async fn refusals_are_told_apart_and_not_repeated() {
    let gated = RepoSpec::new("org/gated").gated().lfs("w.bin", vec![1; 9]).branch("main");
    let disabled = RepoSpec::new("org/off").disabled().lfs("w.bin", vec![1; 9]).branch("main");
    let hub = Hub::with([small(), gated, disabled]);
    hub.know_token("hf_stranger");
    let ask = async |token: Option<&str>, id: &str, revision: &str| {
        let client = client(&hub, token);
        refusal(client.resolve_revision(&model(id), &Revision::parse(revision).unwrap()).await)
    };
    let error = ask(None, "org/none", "main").await;
    assert!(matches!(error, HubError::RepoNotFound { caller: Caller::Anonymous, .. }), "{error}");
    assert!(error.hint().unwrap().contains("HF_TOKEN"));
    let error = ask(Some("hf_stranger"), "org/none", "main").await;
    assert!(matches!(error, HubError::RepoNotFound { caller: Caller::Token, .. }), "{error}");
    let error = ask(None, "org/model", "nope").await;
    assert!(matches!(&error, HubError::RevisionNotFound { revision, .. } if revision == "nope"), "{error}");
    let error = ask(Some(TOKEN), "org/model", "main").await;
    assert!(matches!(error, HubError::BadToken { .. }), "{error}");
    let error = ask(None, "org/off", "main").await;
    assert!(matches!(error, HubError::Disabled { .. }), "{error}");
    assert_eq!(hub.count(Match::any()), 5, "no refusal is tried again");

    let entry = |path: &str, digest: &str| FileEntry {
        path: RepoPath::parse(path).unwrap(),
        size: 9,
        digest: Digest::parse(&format!("sha256:{digest}")).unwrap(),
        xet_hash: None,
    };
    let at = |id: &str| CommitId::parse(&hub.commit(id, "main")).unwrap();
    for (token, caller) in [(None, Caller::Anonymous), (Some("hf_stranger"), Caller::Token)] {
        let found =
            client(&hub, token).locate(&model("org/gated"), at("org/gated"), &entry("w.bin", &"1".repeat(64))).await;
        let error = found.unwrap_err();
        assert!(matches!(error, HubError::AccessDenied { caller: found, .. } if found == caller), "{error}");
        assert!(error.hint().unwrap().contains(&format!("{}/org/gated", hub.url())));
    }
    let missing =
        client(&hub, None).locate(&model("org/model"), at("org/model"), &entry("no.bin", &"1".repeat(64))).await;
    let error = missing.unwrap_err();
    assert!(matches!(&error, HubError::EntryNotFound { path, .. } if path == "no.bin"), "{error}");
}

// class: credentials
#[tokio::test]
async fn a_refusal_shows_the_servers_words_and_request_but_not_the_token() {
    let hub = Hub::start(small());
    let words = format!(r#"{{"error":"token {TOKEN} may not do this"}}"#);
    let reply = Reply::status(403).header("X-Request-Id", "Root=1-abc").body("application/json", words);
    hub.always(Match::info(), Behaviour::Answer(reply));
    let client = client(&hub, Some(TOKEN));
    let error = refusal(client.resolve_revision(&model("org/model"), &Revision::default()).await);
    let shown = error.to_string();
    assert!(shown.contains("token … may not do this") && shown.contains("request id Root=1-abc"), "{shown}");
    assert!(matches!(error, HubError::Forbidden { .. }));
}

// class: proxies
#[tokio::test]
async fn a_page_for_people_is_not_a_hub() {
    let hub = Hub::start(small());
    let client = client(&hub, None);
    hub.on(Match::info()).then(Behaviour::html_page());
    let error = refusal(client.resolve_revision(&model("org/model"), &Revision::default()).await);
    assert!(matches!(error, HubError::NotAHub { .. }), "{error}");
    hub.on(Match::info()).then(Behaviour::Answer(Reply::status(200).body("application/json", "{}")));
    let error = refusal(client.resolve_revision(&model("org/model"), &Revision::default()).await);
    assert!(matches!(error, HubError::NotAHub { .. }), "{error}");
    hub.on(Match::resolve("config.json")).then(Behaviour::html_page());
    let error = locate(&client, "config.json").await.unwrap_err();
    assert!(matches!(error, HubError::NotAHub { .. }), "{error}");
}

// ---- trouble -------------------------------------------------------------------------------------

// class: rate-limits
#[tokio::test]
async fn trouble_that_passes_is_waited_out_and_trouble_that_stays_is_reported() {
    let hub = Hub::start(small());
    let (client, repo) = (client(&hub, None), model("org/model"));
    hub.on(Match::info())
        .then(Behaviour::status(502))
        .then(Behaviour::ResetWithoutAnswer)
        .then(Behaviour::ShortBody(10));
    assert_eq!(commit(&client, &repo).await.to_string(), hub.commit("org/model", "main"));
    assert_eq!(hub.count(Match::info()), 4);
    hub.forget();
    hub.on(Match::info()).then(Behaviour::status(500)).always();
    let error = refusal(client.resolve_revision(&repo, &Revision::default()).await);
    assert!(matches!(&error, HubError::Server { answer, .. } if answer.status == 500), "{error}");
    assert_eq!(hub.count(Match::info()), 5, "five failures in a row are enough");
}

// class: stalls
#[tokio::test]
async fn silence_is_named_by_what_was_waited_for() {
    let hub = Hub::start(small());
    let (client, repo) = (impatient(&hub), model("org/model"));
    hub.always(Match::info(), Behaviour::StallBeforeHeaders);
    let error = refusal(client.resolve_revision(&repo, &Revision::default()).await);
    assert!(matches!(error, HubError::Timeout { phase: Phase::Answer, .. }), "{error}");
    hub.behave();
    let at = commit(&client, &repo).await;
    hub.always(Match::tree(), Behaviour::StallAfter(5));
    let error = client.listing(&repo, at).await.unwrap_err();
    assert!(matches!(error, HubError::Timeout { phase: Phase::Body, .. }), "{error}");
}

#[tokio::test]
async fn an_unreachable_hub_is_named_and_could_not_be_checked() {
    let hub = Hub::start(small());
    hub.unreachable(Origin::Hub);
    let error = refusal(client(&hub, Some(TOKEN)).resolve_revision(&model("org/model"), &Revision::default()).await);
    assert!(error.to_string().contains(&hub.url()), "{error}");
    assert_eq!(error.code(), Code::CouldNotCheck);
    assert!(error.hint().is_some() || matches!(error, HubError::Broken { .. }));
}

/// Trust roots are read from the environment, which a test may not change for its neighbours:
/// the test runs itself once more in an environment of its own.
// class: network
#[test]
fn a_machine_without_certificates_still_talks_to_a_mirror_of_its_own() {
    const NAME: &str = "a_machine_without_certificates_still_talks_to_a_mirror_of_its_own";
    if std::env::var_os("MUSTER_TEST_NO_ROOTS").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME]).env("MUSTER_TEST_NO_ROOTS", "1");
        again.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/dev/null");
        let ran = again.output().unwrap();
        let shown = String::from_utf8_lossy(&ran.stdout).into_owned();
        assert!(ran.status.success() && shown.contains("1 passed"), "{shown}");
        return;
    }
    let new = |endpoint: &str| HubClient::new(HubConfig::new(Endpoint::parse(endpoint).unwrap()));
    assert!(new("http://127.0.0.1:1").is_ok());
    let error = new("https://hub.example").unwrap_err();
    assert!(matches!(error, HubError::Tls { .. }), "{error}");
}

// class: rate-limits
#[tokio::test]
async fn retry_after_is_obeyed_in_seconds_and_as_a_date() {
    let in_seconds = || Behaviour::too_many_requests(1);
    let as_a_date = || Behaviour::retry_at(429, SystemTime::now() + Duration::from_secs(3));
    for refused in [&in_seconds as &dyn Fn() -> Behaviour, &as_a_date] {
        let hub = Hub::start(small());
        let (client, repo) = (client(&hub, None), model("org/model"));
        hub.on(Match::info()).then(refused());
        let start = Instant::now();
        commit(&client, &repo).await;
        assert!(start.elapsed() >= Duration::from_millis(900), "{:?}", start.elapsed());
        assert_eq!(hub.count(Match::info()), 2);
    }
}

// class: rate-limits
#[tokio::test]
async fn requests_are_paced_by_what_is_left_before_a_429_comes() {
    let hub = Hub::start(small());
    hub.quota("resolvers", 4, Duration::from_secs(2));
    let (client, repo) = (client(&hub, None), model("org/model"));
    let entry = entry(&client, &repo, "model.safetensors").await;
    let at = commit(&client, &repo).await;
    for _ in 0..9 {
        client.locate(&repo, at, &entry).await.unwrap();
    }
    let refused = hub.requests().iter().filter(|request| request.status == 429).count();
    assert_eq!(refused, 0);
}
