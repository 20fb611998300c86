//! The resolver (`/resolve/`) and the hop that serves plain files (`/api/resolve-cache/`).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::access::Wish;
use super::cdn;
use super::http::{Request, Response};
use super::record::Origin;
use super::repo::{FileSpec, RepoKind, RepoSpec};
use super::server::State;

/// Unreserved characters stay.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Encodes a path segment by segment.
pub(super) fn encode_path(path: &str) -> String {
    path.split('/').map(encode).collect::<Vec<_>>().join("/")
}

pub(super) fn encode(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// What a resolver URL names.
struct Wanted {
    kind: RepoKind,
    id: String,
    revision: String,
    path: String,
    /// Index of the first segment of the id.
    id_at: usize,
    id_len: usize,
}

pub(super) fn answer(state: &State, request: &Request) -> (Response, Option<FileSpec>) {
    let cached = request.path.starts_with("/api/resolve-cache/");
    let wanted = if cached { parse_cached(request) } else { parse(request) };
    let Some(wanted) = wanted else {
        return (Response::error(404, None, "Sorry, we can't find the page you are looking for."), None);
    };
    let repos = state.repos.lock().unwrap().clone();
    if let Some(moved) = renamed(&repos, &wanted, request) {
        return (moved, None);
    }
    let (repo, commit, file) = match find(state, &repos, &wanted, request) {
        Ok(found) => found,
        Err(refusal) => return (refusal, None),
    };
    let response = if cached {
        plain_body(&file, &commit, request)
    } else if file.lfs {
        lfs_redirect(state, repo, &file, &commit)
    } else {
        plain_redirect(repo, &file, &commit, request)
    };
    (response, Some(file))
}

fn find<'a>(
    state: &State,
    repos: &'a [RepoSpec],
    wanted: &Wanted,
    request: &Request,
) -> Result<(&'a RepoSpec, String, FileSpec), Response> {
    let access = state.access.lock().unwrap();
    let repo = repos.iter().find(|repo| repo.kind == wanted.kind && repo.id == wanted.id);
    let repo = access.admit(repo, access.caller(request), Wish::Bytes)?;
    let commit = repo.resolve(&wanted.revision).ok_or_else(|| revision_not_found(&wanted.revision))?;
    let file = repo
        .tree_at(commit)
        .and_then(|tree| tree.get(&wanted.path))
        .ok_or_else(|| Response::error(404, Some("EntryNotFound"), "Entry not found").with("X-Repo-Commit", commit))?;
    Ok((repo, commit.to_owned(), file.clone()))
}

pub(super) fn revision_not_found(revision: &str) -> Response {
    Response::error(404, Some("RevisionNotFound"), &format!("Invalid rev id: {revision}"))
}

fn lfs_redirect(state: &State, repo: &RepoSpec, file: &FileSpec, commit: &str) -> Response {
    let response = Response::redirect(302, &cdn::sign(state, repo, file))
        .with("X-Repo-Commit", commit)
        .with("X-Linked-Etag", &format!("\"{}\"", file.etag()))
        .with("X-Linked-Size", &file.size().to_string())
        .with("ETag", &format!("\"{}\"", file.etag()))
        .with("Accept-Ranges", "bytes");
    if !repo.xet {
        return response;
    }
    let (hub, kind, id) = (state.url(Origin::Hub), repo.kind.plural(), &repo.id);
    let token = format!("{hub}/api/{kind}/{id}/xet-read-token/{commit}");
    let plan = format!("{}/v1/reconstructions/{}", state.url(Origin::Cdn), file.xet_hash());
    response
        .with("X-Xet-Hash", &file.xet_hash())
        .with("Link", &format!("<{token}>; rel=\"xet-auth\", <{plan}>; rel=\"xet-reconstruction-info\""))
}

fn plain_redirect(repo: &RepoSpec, file: &FileSpec, commit: &str, request: &Request) -> Response {
    let (kind, id, path) = (repo.kind.plural(), &repo.id, encode_path(&file.path));
    let from = encode(&request.path);
    let location = format!("/api/resolve-cache/{kind}/{id}/{commit}/{path}?{from}=&etag=%22{}%22", file.etag());
    Response::redirect(307, &location)
        .with("X-Repo-Commit", commit)
        .with("X-Linked-Etag", &format!("\"{}\"", file.etag()))
        .with("X-Linked-Size", &file.size().to_string())
        .with("Accept-Ranges", "bytes")
}

fn plain_body(file: &FileSpec, commit: &str, request: &Request) -> Response {
    // The query is part of the address: a client that loses it finds nothing.
    if request.parameter("etag") != Some(format!("\"{}\"", file.etag())) {
        return Response::error(404, None, "Sorry, we can't find the page you are looking for.");
    }
    Response::file(file, file.etag(), request).with("X-Repo-Commit", commit)
}

/// A request under a former id is sent on, relative and without metadata.
fn renamed(repos: &[RepoSpec], wanted: &Wanted, request: &Request) -> Option<Response> {
    let repo = repos.iter().find(|repo| repo.kind == wanted.kind && repo.former_ids.contains(&wanted.id))?;
    Some(Response::redirect(307, &under_new_id(request, wanted.id_at, wanted.id_len, &repo.id)))
}

/// The request's target with the id segments replaced.
pub(super) fn under_new_id(request: &Request, at: usize, len: usize, id: &str) -> String {
    let (path, query) = request
        .target
        .split_once('?')
        .map_or((request.target.as_str(), String::new()), |(path, query)| (path, format!("?{query}")));
    let mut segments: Vec<&str> = path.split('/').skip(1).collect();
    segments.splice(at..at + len, id.split('/'));
    format!("/{}{query}", segments.join("/"))
}

/// `/{prefix}{id}/resolve/{revision}/{path…}`
fn parse(request: &Request) -> Option<Wanted> {
    let segments = &request.segments;
    let (kind, id_at) = match RepoKind::from_plural(segments.first()?) {
        Some(RepoKind::Model) | None => (RepoKind::Model, 0),
        Some(other) => (other, 1),
    };
    let id_len = (1..=2).find(|n| segments.get(id_at + n).is_some_and(|s| s == "resolve"))?;
    wanted(request, kind, id_at, id_len, id_at + id_len + 1)
}

/// `/api/resolve-cache/{kind}s/{id}/{commit}/{path…}`
fn parse_cached(request: &Request) -> Option<Wanted> {
    let kind = RepoKind::from_plural(request.segments.get(2)?)?;
    let is_commit = |s: &String| s.len() == 40 && s.bytes().all(|b| b.is_ascii_hexdigit());
    let id_len = (1..=2).find(|n| request.segments.get(3 + n).is_some_and(is_commit))?;
    wanted(request, kind, 3, id_len, 3 + id_len)
}

fn wanted(request: &Request, kind: RepoKind, id_at: usize, id_len: usize, revision_at: usize) -> Option<Wanted> {
    let segments = &request.segments;
    let path = segments.get(revision_at + 1..).filter(|path| !path.is_empty())?.join("/");
    let id = segments[id_at..id_at + id_len].join("/");
    let revision = segments.get(revision_at)?.clone();
    Some(Wanted { kind, id, revision, path, id_at, id_len })
}
