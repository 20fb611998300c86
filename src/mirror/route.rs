//! What a request's path asks for.
//!
//! Pure. Segments are split before they are decoded, so an encoded slash stays inside its
//! revision or folder. Every name in a [`Call`] has been parsed; what cannot be parsed names
//! nothing here and never reaches a file (P9).

use percent_encoding::percent_decode_str;

use crate::core::repo::{Repo, RepoId, RepoKind, Revision};
use crate::core::repo_path::RepoPath;

/// One thing the mirror can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// Facts of a repository.
    Info {
        /// Of which.
        repo: Repo,
        /// At which revision.
        revision: Revision,
    },
    /// Branches and tags.
    Refs {
        /// Of which repository.
        repo: Repo,
    },
    /// The listing of a folder.
    Tree {
        /// Of which repository.
        repo: Repo,
        /// At which revision.
        revision: Revision,
        /// The folder; none is the root.
        folder: Option<String>,
    },
    /// The entries of some paths.
    PathsInfo {
        /// Of which repository.
        repo: Repo,
        /// At which revision.
        revision: Revision,
    },
    /// One file.
    Resolve {
        /// Of which repository.
        repo: Repo,
        /// At which revision.
        revision: Revision,
        /// The file.
        path: RepoPath,
    },
}

/// Why a path names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unrouted {
    /// No such route, or no repository could have that name.
    Route,
    /// No revision could have that name.
    Revision,
    /// No file could have that name.
    Entry,
}

/// Reads the still encoded path of a URL.
///
/// # Errors
/// [`Unrouted`] says which of its names could be none.
pub fn parse(path: &str) -> Result<Call, Unrouted> {
    let segments = path.trim_start_matches('/').split('/').map(decode).collect::<Option<Vec<_>>>();
    let segments = segments.ok_or(Unrouted::Route)?;
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    match segments.as_slice() {
        ["api", kind @ ("models" | "datasets" | "spaces"), rest @ ..] => {
            let kind: RepoKind = kind.parse().map_err(|_| Unrouted::Route)?;
            with_id(kind, rest, api_call)
        }
        ["datasets", rest @ ..] => with_id(RepoKind::Dataset, rest, resolve_call),
        ["spaces", rest @ ..] => with_id(RepoKind::Space, rest, resolve_call),
        rest => with_id(RepoKind::Model, rest, resolve_call),
    }
}

/// An id has two segments, or one (legacy names): what fits with two is not read with one.
fn with_id(
    kind: RepoKind,
    segments: &[&str],
    call: fn(Repo, &[&str]) -> Result<Call, Unrouted>,
) -> Result<Call, Unrouted> {
    let attempt = |len: usize| {
        let (id, rest) = segments.split_at_checked(len).ok_or(Unrouted::Route)?;
        let id = RepoId::parse(&id.join("/")).map_err(|_| Unrouted::Route)?;
        call(Repo { kind, id }, rest)
    };
    match attempt(2) {
        Err(Unrouted::Route) => attempt(1),
        routed => routed,
    }
}

fn api_call(repo: Repo, rest: &[&str]) -> Result<Call, Unrouted> {
    match rest {
        [] => Ok(Call::Info { repo, revision: Revision::default() }),
        ["refs"] => Ok(Call::Refs { repo }),
        ["revision", revision] => Ok(Call::Info { repo, revision: parse_revision(revision)? }),
        ["paths-info", revision] => Ok(Call::PathsInfo { repo, revision: parse_revision(revision)? }),
        ["tree", revision, folder @ ..] => {
            let folder = folder.join("/");
            let folder = folder.trim_end_matches('/');
            let revision = parse_revision(revision)?;
            if folder.is_empty() {
                return Ok(Call::Tree { repo, revision, folder: None });
            }
            let folder = RepoPath::parse(folder).map_err(|_| Unrouted::Entry)?;
            Ok(Call::Tree { repo, revision, folder: Some(folder.into()) })
        }
        _ => Err(Unrouted::Route),
    }
}

fn resolve_call(repo: Repo, rest: &[&str]) -> Result<Call, Unrouted> {
    match rest {
        ["resolve", revision, path @ ..] if !path.is_empty() => {
            let revision = parse_revision(revision)?;
            let path = RepoPath::parse(&path.join("/")).map_err(|_| Unrouted::Entry)?;
            Ok(Call::Resolve { repo, revision, path })
        }
        _ => Err(Unrouted::Route),
    }
}

fn parse_revision(text: &str) -> Result<Revision, Unrouted> {
    Revision::parse(text).map_err(|_| Unrouted::Revision)
}

fn decode(segment: &str) -> Option<String> {
    percent_decode_str(segment).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn repo(kind: RepoKind, id: &str) -> Repo {
        Repo { kind, id: RepoId::parse(id).unwrap() }
    }

    fn revision(text: &str) -> Revision {
        Revision::parse(text).unwrap()
    }

    #[test]
    fn ids_of_one_and_of_two_segments_are_told_apart() {
        let model = |id| repo(RepoKind::Model, id);
        for (path, expected) in [
            ("/api/models/o/r", Call::Info { repo: model("o/r"), revision: revision("main") }),
            ("/api/models/gpt2", Call::Info { repo: model("gpt2"), revision: revision("main") }),
            (
                "/api/models/o/r/revision/refs%2Fpr%2F1",
                Call::Info { repo: model("o/r"), revision: revision("refs/pr/1") },
            ),
            ("/api/models/gpt2/revision/v1", Call::Info { repo: model("gpt2"), revision: revision("v1") }),
            ("/api/models/gpt2/refs", Call::Info { repo: model("gpt2/refs"), revision: revision("main") }),
            ("/api/models/o/r/refs", Call::Refs { repo: model("o/r") }),
            (
                "/api/datasets/o/d/tree/main/a%2Fb%20c",
                Call::Tree {
                    repo: repo(RepoKind::Dataset, "o/d"),
                    revision: revision("main"),
                    folder: Some("a/b c".into()),
                },
            ),
            (
                "/api/models/gpt2/tree/main",
                Call::Tree { repo: model("gpt2"), revision: revision("main"), folder: None },
            ),
            ("/api/models/o/r/paths-info/main", Call::PathsInfo { repo: model("o/r"), revision: revision("main") }),
        ] {
            assert_eq!(parse(path), Ok(expected), "{path}");
        }
    }

    #[test]
    fn files_are_resolved_below_each_kind() {
        let path = |text: &str| RepoPath::parse(text).unwrap();
        for (url, kind, id, file) in [
            ("/o/r/resolve/main/a/b%20c.json", RepoKind::Model, "o/r", "a/b c.json"),
            ("/gpt2/resolve/main/resolve/x", RepoKind::Model, "gpt2", "resolve/x"),
            ("/datasets/o/d/resolve/main/%C3%BCber.txt", RepoKind::Dataset, "o/d", "über.txt"),
            ("/spaces/o/s/resolve/main/app.py", RepoKind::Space, "o/s", "app.py"),
        ] {
            let expected = Call::Resolve { repo: repo(kind, id), revision: revision("main"), path: path(file) };
            assert_eq!(parse(url), Ok(expected), "{url}");
        }
    }

    #[test]
    fn a_path_that_leaves_the_repository_names_nothing() {
        for (url, expected) in [
            ("/o/r/resolve/main/../../etc/passwd", Unrouted::Entry),
            ("/o/r/resolve/main/%2e%2e/%2e%2e/etc/passwd", Unrouted::Entry),
            ("/o/r/resolve/main/..%2f..%2fetc%2fpasswd", Unrouted::Entry),
            ("/o/r/resolve/main//etc/passwd", Unrouted::Entry),
            ("/o/r/resolve/main/%2fetc%2fpasswd", Unrouted::Entry),
            ("/o/r/resolve/main/.muster/receipt.json", Unrouted::Entry),
            ("/o/r/resolve/main/a%00", Unrouted::Entry),
            ("/o/r/resolve/main/", Unrouted::Entry),
            ("/o/r/resolve/ma%20in/x", Unrouted::Revision),
            ("/api/models/o/r/tree/main/%2e%2e", Unrouted::Entry),
            ("/api/models/../r", Unrouted::Route),
            ("/%2e%2e/r/resolve/main/x", Unrouted::Route),
            ("/o/r/resolve/main/%ff", Unrouted::Route),
            ("/api/agent-harnesses", Unrouted::Route),
            ("/", Unrouted::Route),
            ("", Unrouted::Route),
        ] {
            assert_eq!(parse(url), Err(expected), "{url}");
        }
    }

    proptest! {
        #[test]
        fn no_path_makes_the_parser_panic(path in "[/%.0-9a-fA-F\\PC]{0,60}") {
            let _ = parse(&path);
        }
    }
}
