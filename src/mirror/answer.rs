//! From a request to its answer.
//!
//! The order matters: who asks, then what is asked, then what is here; so somebody without the
//! token learns nothing.

use std::ops::Range;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::json;

use super::Shared;
use super::body;
use super::byte_range::{Asked, asked};
use super::catalog::{Model, OpenFile};
use super::listing::PageAsk;
use super::refusal::Refusal;
use super::route::{self, Call, Unrouted};
use crate::core::digest::Digest;
use crate::core::manifest::FileEntry;
use crate::core::repo::{Repo, Revision};
use crate::core::repo_path::RepoPath;
use crate::serving::Admission;

const REPO_COMMIT: HeaderName = HeaderName::from_static("x-repo-commit");
const LINKED_ETAG: HeaderName = HeaderName::from_static("x-linked-etag");
const LINKED_SIZE: HeaderName = HeaderName::from_static("x-linked-size");
/// Largest list of paths that is read.
const BODY_MAX: usize = 4 << 20;
/// RFC 8187 `attr-char`, less what is rare.
const EXTENDED_VALUE: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_');

/// Answers one request and logs it, without its headers.
pub(super) async fn answer(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = match answered(&shared, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    };
    tracing::info!(%method, path, status = response.status().as_u16(), "answered");
    response
}

async fn answered(shared: &Arc<Shared>, request: Request) -> Result<Response, Refusal> {
    match shared.auth.admits(request.headers()) {
        Admission::Granted => {}
        Admission::NoToken => return Err(Refusal::NoToken),
        Admission::WrongToken => return Err(Refusal::WrongToken),
    }
    let path = request.uri().path();
    let call = route::parse(path).map_err(|unrouted| match unrouted {
        Unrouted::Route => Refusal::NoRoute,
        Unrouted::Revision => Refusal::NoRevision { revision: path.to_owned(), held: Vec::new() },
        Unrouted::Entry => Refusal::NoEntry { path: path.to_owned() },
    })?;
    check_method(&call, request.method())?;
    match call {
        Call::Refs { repo } => refs(shared, repo).await,
        Call::Info { repo, revision } => {
            let model = find(shared, repo, revision).await?;
            Ok(with_commit(&model, Json(info(&model, is_set(request.uri(), "blobs"))).into_response()))
        }
        Call::Tree { repo, revision, folder } => {
            let model = find(shared, repo, revision).await?;
            tree(shared, &model, folder.as_deref(), &request)
        }
        Call::PathsInfo { repo, revision } => {
            let model = find(shared, repo, revision).await?;
            let headers = request.headers().clone();
            let body = to_bytes(request.into_body(), BODY_MAX).await.map_err(|_| Refusal::BadRequest)?;
            let paths = asked_paths(&headers, &body)?;
            let found: Vec<_> = paths.iter().filter_map(|path| model.listing().entry(path)).collect();
            Ok(with_commit(&model, Json(found).into_response()))
        }
        Call::Resolve { repo, revision, path } => {
            let model = find(shared, repo, revision).await?;
            resolve(shared, model, path, request.method(), request.headers()).await
        }
    }
}

fn check_method(call: &Call, method: &Method) -> Result<(), Refusal> {
    let (fits, allowed) = match call {
        Call::PathsInfo { .. } => (method == Method::POST, "POST"),
        _ => (matches!(*method, Method::GET | Method::HEAD), "GET, HEAD"),
    };
    if fits { Ok(()) } else { Err(Refusal::Method { allowed }) }
}

async fn find(shared: &Arc<Shared>, repo: Repo, revision: Revision) -> Result<Arc<Model>, Refusal> {
    let catalog = Arc::clone(shared);
    shared.lookups.run(move || catalog.catalog.find(&repo, &revision)).await
}

async fn refs(shared: &Arc<Shared>, repo: Repo) -> Result<Response, Refusal> {
    let catalog = Arc::clone(shared);
    let models = shared.lookups.run(move || catalog.catalog.all_of(&repo)).await?;
    let branches: Vec<_> = models
        .iter()
        .map(|model| model.source())
        .filter(|source| source.revision.as_commit().is_none())
        .map(|source| {
            let name = source.revision.as_str();
            json!({ "name": name, "ref": format!("refs/heads/{name}"), "targetCommit": source.commit })
        })
        .collect();
    Ok(Json(json!({ "branches": branches, "converts": [], "tags": [] })).into_response())
}

fn info(model: &Model, blobs: bool) -> serde_json::Value {
    let source = model.source();
    let id = source.repo.id.as_str();
    let siblings: Vec<_> = model.listing().files().map(|entry| entry.sibling(blobs)).collect();
    json!({
        "_id": source.commit.short(),
        "id": id,
        "modelId": id,
        "author": id.split_once('/').map(|(author, _)| author),
        "sha": source.commit,
        "private": false,
        "gated": false,
        "disabled": false,
        "downloads": 0,
        "likes": 0,
        "tags": [],
        "usedStorage": model.total_bytes(),
        "siblings": siblings,
    })
}

fn tree(shared: &Shared, model: &Model, folder: Option<&str>, request: &Request) -> Result<Response, Refusal> {
    let uri = request.uri();
    let recursive = is_set(uri, "recursive");
    let after = query(uri, "cursor");
    let wanted = query(uri, "limit").and_then(|text| text.parse().ok()).unwrap_or(usize::MAX);
    let len = wanted.clamp(1, shared.page_size);
    let ask = PageAsk { folder, recursive, after: after.as_deref(), len };
    let refused = || Refusal::NoEntry { path: folder.unwrap_or_default().to_owned() };
    let (page, more) = model.listing().page(&ask).ok_or_else(refused)?;
    let last = page.last().filter(|_| more).map(|entry| entry.path.as_str());
    let mut response = with_commit(model, Json(&page).into_response());
    if let Some(next) = last.and_then(|last| next_link(model, &ask, last, request)) {
        response.headers_mut().insert(header::LINK, next);
    }
    Ok(response)
}

/// The next page's URL: absolute, for clients send it as it is, and pinned to the commit, for
/// the pages of one listing belong together.
fn next_link(model: &Model, ask: &PageAsk<'_>, after: &str, request: &Request) -> Option<HeaderValue> {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b)) {
        return None;
    }
    let secure = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    let origin =
        if host.is_empty() { String::new() } else { format!("http{}://{host}", if secure { "s" } else { "" }) };
    let source = model.source();
    let (kind, id, commit) = (source.repo.kind.plural(), &source.repo.id, source.commit);
    let folder = ask.folder.map(|folder| format!("/{}", encode(folder))).unwrap_or_default();
    let (recursive, len, cursor) = (ask.recursive, ask.len, encode(after));
    let query = format!("recursive={recursive}&expand=false&limit={len}&cursor={cursor}");
    HeaderValue::from_str(&format!("<{origin}/api/{kind}/{id}/tree/{commit}{folder}?{query}>; rel=\"next\"")).ok()
}

/// The paths of a form (`paths` repeated) or of a JSON body (`{"paths": […]}`).
fn asked_paths(headers: &HeaderMap, body: &[u8]) -> Result<Vec<String>, Refusal> {
    #[derive(serde::Deserialize)]
    struct Asked {
        paths: Vec<String>,
    }
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.starts_with("application/json") {
        let asked: Asked = serde_json::from_slice(body).map_err(|_| Refusal::BadRequest)?;
        return Ok(asked.paths);
    }
    let pairs = url::form_urlencoded::parse(body);
    Ok(pairs.filter(|(name, _)| name == "paths").map(|(_, path)| path.into_owned()).collect())
}

async fn resolve(
    shared: &Arc<Shared>,
    model: Arc<Model>,
    path: RepoPath,
    method: &Method,
    request: &HeaderMap,
) -> Result<Response, Refusal> {
    let entry = model.file(&path).ok_or_else(|| Refusal::NoEntry { path: path.to_string() })?.clone();
    let opening = Arc::clone(&model);
    let file = shared.lookups.run(move || opening.open(&path)).await?;
    let etag = etag(&entry);
    if matches_any(request.get(header::IF_NONE_MATCH), &etag) {
        let mut response = StatusCode::NOT_MODIFIED.into_response();
        set(response.headers_mut(), header::ETAG, &etag);
        return Ok(with_commit(&model, response));
    }
    // RFC 9110 §14.2: a range has a meaning for GET only, and under If-Range only for this very
    // file. No date is ever sent, so a date never fits.
    let same = request.get(header::IF_RANGE).is_none_or(|known| known.as_bytes() == etag.as_bytes());
    let range = request.get(header::RANGE).filter(|_| same && method == Method::GET);
    let asked = asked(range.and_then(|range| range.to_str().ok()), entry.size);
    let (status, part) = match asked {
        Asked::Whole => (StatusCode::OK, 0..entry.size),
        Asked::Part(part) => (StatusCode::PARTIAL_CONTENT, part),
        Asked::Unsatisfiable => return Err(Refusal::Unsatisfiable { size: entry.size }),
    };
    let body = if method == Method::HEAD { Body::empty() } else { sent(shared, file, &entry, part.clone()) };
    let mut response = (status, body).into_response();
    file_headers(response.headers_mut(), &entry, &etag, &part);
    if status == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {}-{}/{}", part.start, part.end - 1, entry.size);
        set(response.headers_mut(), header::CONTENT_RANGE, &text);
    }
    Ok(with_commit(&model, response))
}

fn sent(shared: &Shared, file: OpenFile, entry: &FileEntry, part: Range<u64>) -> Body {
    let on_sent = shared.on_sent.clone().map(|observer| -> body::OnSent {
        let path = entry.path.clone();
        Arc::new(move |bytes| observer(&path, bytes))
    });
    body::of(file, part, shared.reads.clone(), on_sent)
}

fn file_headers(headers: &mut HeaderMap, entry: &FileEntry, etag: &str, part: &Range<u64>) {
    let name = utf8_percent_encode(entry.path.file_name(), EXTENDED_VALUE);
    set(headers, header::CONTENT_LENGTH, &(part.end - part.start).to_string());
    set(headers, header::CONTENT_TYPE, "application/octet-stream");
    set(headers, header::CONTENT_DISPOSITION, &format!("attachment; filename*=UTF-8''{name}"));
    set(headers, header::ACCEPT_RANGES, "bytes");
    set(headers, header::ETAG, etag);
    set(headers, LINKED_ETAG, etag);
    set(headers, LINKED_SIZE, &entry.size.to_string());
    // A repository is foreign content: a browser must not run it.
    set(headers, header::CONTENT_SECURITY_POLICY, "default-src 'none'; sandbox");
    set(headers, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
}

fn etag(entry: &FileEntry) -> String {
    match entry.digest {
        Digest::Sha256(sha256) => format!("\"{sha256}\""),
        Digest::GitBlob(oid) => format!("\"{oid}\""),
    }
}

/// RFC 9110 §13.1.2: weak comparison against each tag of the list.
fn matches_any(header: Option<&HeaderValue>, etag: &str) -> bool {
    let tags = header.and_then(|value| value.to_str().ok()).unwrap_or_default();
    tags.split(',').map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

fn with_commit(model: &Model, mut response: Response) -> Response {
    set(response.headers_mut(), REPO_COMMIT, &model.source().commit.to_string());
    response
}

/// Sets a header whose value is made of digits and ASCII text of ours.
fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

fn query(uri: &Uri, name: &str) -> Option<String> {
    let pairs = url::form_urlencoded::parse(uri.query()?.as_bytes());
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

fn is_set(uri: &Uri, name: &str) -> bool {
    query(uri, name).is_some_and(|value| matches!(value.to_ascii_lowercase().as_str(), "1" | "true"))
}
