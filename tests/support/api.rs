//! The JSON API: repository info, tree pages, refs.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::access::Wish;
use super::content::sha1_hex;
use super::http::{Request, Response};
use super::record::Origin;
use super::repo::{FileSpec, RepoKind, RepoSpec, Tree, Visibility};
use super::resolve::{encode, revision_not_found, under_new_id};
use super::server::State;

const VERBS: [&str; 5] = ["revision", "tree", "refs", "auth-check", "xet-read-token"];

/// What the caller may see of a repository.
struct View<'a> {
    repo: &'a RepoSpec,
    has_access: bool,
}

pub(super) fn answer(state: &State, request: &Request) -> Response {
    let segments = &request.segments;
    let kind = segments.get(1).and_then(|word| RepoKind::from_plural(word));
    let (Some(kind), Some(_)) = (kind, segments.get(2)) else {
        return no_page();
    };
    let is_verb = |at: usize| segments.get(at).is_some_and(|s| VERBS.contains(&s.as_str()));
    let id_len = if segments.len() == 3 || is_verb(3) { 1 } else { 2 };
    let id = segments[2..2 + id_len].join("/");
    let rest: Vec<&str> = segments[2 + id_len..].iter().map(String::as_str).collect();

    let repos = state.repos.lock().unwrap().clone();
    let of_kind = || repos.iter().filter(|repo| repo.kind == kind);
    if let Some(repo) = of_kind().find(|repo| repo.former_ids.contains(&id)) {
        return Response::redirect(307, &under_new_id(request, 2, id_len, &repo.id));
    }
    let access = state.access.lock().unwrap();
    let caller = access.caller(request);
    let wish = if rest.first() == Some(&"auth-check") { Wish::Bytes } else { Wish::Listing };
    let repo = match access.admit(of_kind().find(|repo| repo.id == id), caller, wish) {
        Ok(repo) => repo,
        Err(refusal) => return refusal,
    };
    let view = View { repo, has_access: access.has_access(repo, caller) };
    match rest.as_slice() {
        [] => view.info("main", request),
        ["revision", revision] => view.info(revision, request),
        ["tree", revision, folder @ ..] => view.tree(state, revision, &folder.join("/"), request),
        ["refs"] => view.refs(),
        ["auth-check"] => Response::json(200, &json!({})),
        _ => no_page(),
    }
}

fn no_page() -> Response {
    Response::error(404, None, "Sorry, we can't find the page you are looking for.")
}

impl View<'_> {
    fn info(&self, revision: &str, request: &Request) -> Response {
        let Some((commit, tree)) = self.at(revision) else {
            return revision_not_found(revision);
        };
        let blobs = request.parameter("blobs").is_some_and(|v| matches!(v.as_str(), "true" | "1" | "True"));
        let siblings: Vec<Value> = tree
            .values()
            .map(|file| if blobs { self.sibling(file) } else { json!({ "rfilename": file.path }) })
            .collect();
        let repo = self.repo;
        let mut info = json!({
            "_id": &commit[..24],
            "id": repo.id,
            "author": repo.id.split_once('/').map(|(author, _)| author),
            "sha": commit,
            "private": repo.visibility == Visibility::Private,
            "gated": if repo.visibility == Visibility::Gated { json!("auto") } else { json!(false) },
            "disabled": repo.disabled,
            "lastModified": "2026-02-03T04:05:06.000Z",
            "downloads": 1234,
            "likes": 56,
            "tags": ["region:us"],
            "siblings": siblings,
        });
        if repo.kind == RepoKind::Model {
            info["modelId"] = json!(repo.id);
        }
        Response::json(200, &info)
    }

    fn tree(&self, state: &State, revision: &str, folder: &str, request: &Request) -> Response {
        let Some((commit, tree)) = self.at(revision) else {
            return revision_not_found(revision);
        };
        let recursive = request.parameter("recursive").is_some_and(|v| v == "true" || v == "True");
        let entries = self.entries(tree, folder, recursive);
        if entries.is_empty() && !folder.is_empty() {
            return Response::error(404, Some("EntryNotFound"), "Entry not found").with("X-Repo-Commit", commit);
        }
        let page_size = state.settings.lock().unwrap().page_size;
        let cursor = request.parameter("cursor");
        let start = match cursor.as_deref().map(|cursor| u64::from_str_radix(cursor, 16)) {
            None => 0,
            Some(Ok(start)) => start as usize,
            Some(Err(_)) => return Response::error(400, None, "Invalid cursor"),
        };
        let end = entries.len().min(start.saturating_add(page_size));
        let page = entries.get(start..end).unwrap_or_default();
        let response = Response::json(200, &json!(page)).with("X-Repo-Commit", commit);
        if end == entries.len() {
            return response;
        }
        let path = request.target.split('?').next().unwrap_or_default();
        let kept = request.query.split('&').filter(|pair| !pair.starts_with("cursor="));
        let mut query: Vec<String> = kept.filter(|pair| !pair.is_empty()).map(str::to_owned).collect();
        query.push(format!("cursor={}", encode(&format!("{end:08x}"))));
        let next = format!("{}{path}?{}", state.url(Origin::Hub), query.join("&"));
        response.with("Link", &format!("<{next}>; rel=\"next\""))
    }

    /// Directories and files below a folder, each directory before what it holds.
    fn entries(&self, tree: &Tree, folder: &str, recursive: bool) -> Vec<Value> {
        let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
        let mut seen = BTreeSet::new();
        let mut entries = Vec::new();
        for file in tree.values().filter(|file| file.path.starts_with(&prefix)) {
            let below = &file.path[prefix.len()..];
            let depths = below.match_indices('/').map(|(at, _)| prefix.len() + at);
            for at in depths.take(if recursive { usize::MAX } else { 1 }) {
                let directory = &file.path[..at];
                if seen.insert(directory) {
                    let oid = sha1_hex(format!("tree {directory}"));
                    entries.push(json!({ "type": "directory", "oid": oid, "size": 0, "path": directory }));
                }
            }
            if recursive || !below.contains('/') {
                entries.push(self.entry(file));
            }
        }
        entries
    }

    fn entry(&self, file: &FileSpec) -> Value {
        let mut entry = json!({
            "type": "file", "oid": file.oid(), "size": file.size(), "path": file.path,
        });
        if file.lfs {
            entry["lfs"] = self.lfs(file, "oid");
            if self.repo.xet {
                entry["xetHash"] = json!(self.masked(&file.xet_hash()));
            }
        }
        entry
    }

    fn sibling(&self, file: &FileSpec) -> Value {
        let mut entry = json!({
            "rfilename": file.path, "size": file.size(), "blobId": file.oid(),
        });
        if file.lfs {
            entry["lfs"] = self.lfs(file, "sha256");
        }
        entry
    }

    /// The same digest has two names: `oid` in trees, `sha256` in repository info.
    fn lfs(&self, file: &FileSpec, digest_name: &str) -> Value {
        json!({
            digest_name: self.masked(file.sha256()),
            "size": file.size(),
            "pointerSize": file.pointer().len(),
        })
    }

    fn masked(&self, digest: &str) -> String {
        if self.has_access { digest.to_owned() } else { "*".repeat(digest.len()) }
    }

    fn refs(&self) -> Response {
        let one = |folder: &str, (name, commit): (&str, &str)| {
            let full = if name.starts_with("refs/") { name.to_owned() } else { format!("{folder}{name}") };
            json!({ "name": name, "ref": full, "targetCommit": commit })
        };
        let branches: Vec<_> = self.repo.branches().map(|b| one("refs/heads/", b)).collect();
        let tags: Vec<_> = self.repo.tags().map(|t| one("refs/tags/", t)).collect();
        Response::json(200, &json!({ "branches": branches, "converts": [], "tags": tags }))
    }

    fn at(&self, revision: &str) -> Option<(&str, &Tree)> {
        let commit = self.repo.resolve(revision)?;
        Some((commit, self.repo.tree_at(commit)?))
    }
}
