//! What a server answers: heads, listings, refusals, links, redirects.

use std::pin::pin;
use std::sync::{LazyLock, OnceLock};
use std::task::{Context, Waker};

use axum::http;
use jiff::Timestamp;
use muster::core::digest::Digest;
use muster::core::endpoint::{Endpoint, Origin, redacted};
use muster::core::manifest::{FileEntry, Manifest, Source};
use muster::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
use muster::core::repo_path::RepoPath;
use muster::core::selection::Selection;
use muster::hub::auth::TokenPlace;
use muster::hub::check_resolver;
use muster::hub::listing::{Listing, Wrong};
use muster::hub::wire::{Page, RepoInfo, digest_of_etag, next_link};
use muster::hub::{Asked, EntryFault, HubClient, HubConfig, Location, Origins, Token, Traffic};
use muster::sources::head::{Wish, check_head};
use reqwest::StatusCode;
use reqwest::header::{CONTENT_RANGE, HeaderMap, HeaderName, HeaderValue, LINK, LOCATION};
use tokio::runtime::{Builder, Runtime};
use url::Url;

use super::files::is_sealed;
use super::{one_line, text};

/// A token that no answer may bring into a message.
const SECRET: &str = "hf_SECRETsecret";
/// Pages that one input may have.
const PAGES: usize = 64;

static ENTRY: LazyLock<FileEntry> = LazyLock::new(|| FileEntry {
    path: RepoPath::parse("a.bin").expect("a path"),
    size: 100,
    digest: Digest::parse(&format!("sha256:{}", "07".repeat(32))).expect("a digest"),
    xet_hash: None,
});

fn repo() -> Repo {
    Repo { kind: RepoKind::Model, id: RepoId::parse("org/m").expect("an id") }
}

fn commit() -> CommitId {
    CommitId::from_bytes([7; 20])
}

/// An answer as HTTP/1.1 writes it: a status, header fields, an empty line, a body. A line that no
/// HTTP library would let through is left out.
fn answer(bytes: &[u8]) -> Option<(StatusCode, HeaderMap, &[u8])> {
    let (head, body) = match bytes.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&bytes[..at], &bytes[at + 2..]),
        None => (bytes, &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let status = text(lines.next()?)?.trim().parse().ok().and_then(|code| StatusCode::from_u16(code).ok())?;
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(&line[..colon]), value) {
            headers.append(name, value);
        }
    }
    Some((status, headers, body))
}

/// A first line with start, end and `whole`, then an answer: only the asked bytes are taken.
pub(super) fn range(bytes: &[u8]) {
    let Some((wish, rest)) = bytes.split_at_checked(3) else { return };
    let (start, len, whole) = (u64::from(wish[0]) % 100, u64::from(wish[1]), wish[2] & 1 == 1);
    let range = start..(start + len).min(100).max(start + 1);
    let Some((status, headers, _)) = answer(rest) else { return };
    match check_head(status, &headers, Wish { entry: &ENTRY, range: &range, whole }) {
        Ok(()) if status == StatusCode::PARTIAL_CONTENT => {
            assert!(!whole);
            // The shortest true reading: digits only, in their order.
            let value = headers.get(CONTENT_RANGE).and_then(|value| value.to_str().ok()).expect("it names its range");
            let numbers: Vec<u64> =
                value.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
            assert_eq!(numbers.first(), Some(&range.start), "{value}");
            assert!(numbers[1] >= range.start && numbers[1] < range.end, "{value}");
            assert!(numbers.get(2).is_none_or(|total| *total == 100), "{value}");
        }
        Ok(()) => {
            assert_eq!(status, StatusCode::OK);
            assert!(whole || range == (0..100), "a whole file for a part of it");
        }
        Err(problem) => {
            one_line(&problem);
            let _ = problem.class();
        }
    }
}

/// What the resolver says of a file, and what its limits are.
pub(super) fn limits(bytes: &[u8]) {
    let Some((status, headers, _)) = answer(bytes) else { return };
    let origin = Origin::of(&Url::parse("https://hub.example").expect("a URL"));
    if let Err(error) = check_resolver(status, &headers, commit(), &ENTRY, &origin) {
        one_line(&error);
    }
    if let Some(digest) = headers.get("etag").and_then(|value| value.to_str().ok()).and_then(digest_of_etag) {
        assert_eq!(Digest::parse(&digest.to_string()), Ok(digest));
    }
    let origins = Origins::default();
    for traffic in [Traffic::Api, Traffic::Resolve, Traffic::Data] {
        let _ = origins.observe(&origin, traffic, status.as_u16(), &headers);
    }
    // Whatever it said, the next request begins to wait for an end that a timer can be set to.
    let _inside = runtime().enter();
    let mut admitted = pin!(origins.admit(&origin, Traffic::Data));
    let _ = admitted.as_mut().poll(&mut Context::from_waker(Waker::noop()));
}

pub(super) fn link(bytes: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        headers.extend(HeaderValue::from_bytes(line).ok().map(|value| (LINK, value)));
    }
    let Some(target) = next_link(&headers) else { return };
    let sent = |value: &HeaderValue| {
        value.to_str().is_ok_and(|value| value.contains(&format!("<{target}")) || value.contains(&target))
    };
    assert!(headers.get_all(LINK).iter().any(sent), "it was sent");
    let is_next = |value: &HeaderValue| value.to_str().is_ok_and(|value| value.to_ascii_lowercase().contains("next"));
    assert!(headers.get_all(LINK).iter().any(is_next));
}

/// A URL on the first line, then an answer: where it leads.
pub(super) fn redirect(bytes: &[u8]) {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return };
    let Some(url) = text(&bytes[..end]).and_then(|text| Url::parse(text).ok()) else { return };
    if !matches!(url.scheme(), "http" | "https") {
        return;
    }
    let now = Timestamp::from_second(1_767_225_600).expect("a time");
    let location = Location::new(url.clone(), now);
    is_good(&location, &url, now);
    let Some((status, headers, _)) = answer(&bytes[end + 1..]) else { return };
    let mut response = http::Response::builder().status(status).body(Vec::new()).expect("an answer");
    *response.headers_mut() = headers.clone();
    let (repo, path) = (repo(), &ENTRY.path);
    match location.next(&response.into(), Asked::File(&repo, commit(), path), now) {
        Ok(None) => assert!(!matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)),
        Ok(Some(next)) => {
            let shown = Url::parse(next.to_string().trim_end_matches("?…")).expect("it is shown as a URL");
            assert!(headers.contains_key(LOCATION));
            assert!(shown.scheme() == "https" || (shown.scheme() == "http" && url.scheme() == "http"));
            assert!(shown.has_host() && shown.username().is_empty() && shown.password().is_none());
            assert!(shown.fragment().is_none());
            assert_eq!(Origin::of(&shown), next.origin());
            is_good(&next, &shown, now);
        }
        Err(error) => drop(one_line(&error)),
    }
}

/// A location tells nothing of a signature, and once stale it stays so.
fn is_good(location: &Location, url: &Url, now: Timestamp) {
    let shown = format!("{location} {location:?}");
    assert!(redacted(url).len() <= url.as_str().len() + "?…".len());
    // What is shown may repeat the query by chance.
    let before = url.as_str().split('?').next().unwrap_or_default().to_owned() + "?…";
    if let Some(secret) = url.query().filter(|query| query.len() > 12 && !before.contains(*query)) {
        assert!(!shown.contains(secret), "{shown}");
    }
    let at = |seconds: i64| now.checked_add(jiff::SignedDuration::from_secs(seconds)).expect("a time");
    let stale = [0, 30, 3600, 1 << 30].map(|seconds| location.is_stale(at(seconds)));
    assert!(stale.is_sorted(), "{stale:?}");
    assert!(!stale[0], "what was just signed is tried: its own clock may be another");
}

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Builder::new_current_thread().enable_time().build().expect("a runtime"))
}

fn client() -> &'static HubClient {
    static CLIENT: OnceLock<HubClient> = OnceLock::new();
    CLIENT.get_or_init(|| {
        let endpoint = Endpoint::parse("http://127.0.0.1:9").expect("an endpoint");
        let token = Token::parse(SECRET, TokenPlace::Submitted).expect("a token");
        HubClient::new(HubConfig { token, ..HubConfig::new(endpoint) }).expect("a client")
    })
}

/// An answer that is no success: what is told of it.
pub(super) fn refusal(bytes: &[u8]) {
    let Some((status, headers, body)) = answer(bytes) else { return };
    if let Some(words) = client().words(&headers, body) {
        let words = one_line(&words);
        assert!(!words.contains(SECRET), "{words}");
        assert!(words.chars().count() <= 4000, "a message is for people");
    }
    let (repo, revision, path) = (repo(), Revision::default(), &ENTRY.path);
    for asked in
        [Asked::Revision(&repo, &revision), Asked::Listing(&repo, commit()), Asked::File(&repo, commit(), path)]
    {
        let mut response = http::Response::builder().status(status).body(body.to_vec()).expect("an answer");
        *response.headers_mut() = headers.clone();
        let error = runtime().block_on(client().refused(asked, response.into()));
        let said = one_line(&error);
        assert!(!said.contains(SECRET), "{said}");
        let _ = (error.class(), error.code());
        if let Some(hint) = error.hint() {
            one_line(&hint);
        }
    }
}

pub(super) fn revision(bytes: &[u8]) {
    let Ok(info) = serde_json::from_slice::<RepoInfo>(bytes) else { return };
    if let Some(Ok(commit)) = info.sha.as_deref().map(CommitId::parse) {
        let shown = commit.to_string();
        assert_eq!(info.sha.map(|sha| sha.to_ascii_lowercase()), Some(shown.clone()));
        assert_eq!(Revision::parse(&shown).expect("a revision").as_commit(), Some(commit));
    }
}

/// Pages, divided by a line `---`: each is the value of a `Link` header, a line end, and the JSON.
pub(super) fn tree(bytes: &[u8]) {
    let mut url = Url::parse("https://hub.example/api/models/org/m/tree/main").expect("a URL");
    let mut listing = Listing::default();
    let mut rest = bytes;
    for _ in 0..PAGES {
        let (page, after) = match rest.windows(5).position(|window| window == b"\n---\n") {
            Some(at) => (&rest[..at], &rest[at + 5..]),
            None => (rest, &[][..]),
        };
        rest = after;
        let end = page.iter().position(|byte| *byte == b'\n').unwrap_or(page.len());
        let link = HeaderValue::from_bytes(&page[..end]).ok().map(|value| (LINK, value));
        let Ok(entries) = serde_json::from_slice::<Page>(page.get(end + 1..).unwrap_or_default()) else { return };
        let next = next_link(&HeaderMap::from_iter(link));
        match listing
            .take(&url, entries, next.is_some())
            .and_then(|()| next.map(|next| listing.follow(&url, &next)).transpose())
        {
            Ok(Some(next)) => {
                assert_eq!(Origin::of(&next), Origin::of(&url), "the listing stays where it began");
                url = next;
            }
            Ok(None) => return is_whole(&listing),
            Err(wrong) => return is_told(&wrong),
        }
    }
}

fn is_whole(listing: &Listing) {
    let source = Source {
        repo: repo(),
        endpoint: Endpoint::parse("https://hub.example").expect("an endpoint"),
        revision: Revision::default(),
        commit: commit(),
        selection: Selection::default(),
    };
    match Manifest::seal(source, listing.files().to_vec()) {
        Ok(manifest) => {
            is_sealed(&manifest);
            assert_eq!(manifest.files().len(), listing.files().len());
        }
        Err(error) => drop(one_line(&error)),
    }
}

fn is_told(wrong: &Wrong) {
    use muster::hub::wire::EntryError;
    match wrong {
        Wrong::Page(fault) => drop(one_line(fault)),
        Wrong::Entry(EntryError::Path(error)) => drop(one_line(error)),
        Wrong::Entry(EntryError::Masked(path)) => drop(one_line(path)),
        Wrong::Entry(EntryError::Fault(path, fault)) => {
            assert!(path == "a file" || *fault != EntryFault::NoPath);
            one_line(fault);
        }
    }
}
