//! What people and their tools write: settings, names, patterns, sizes, addresses, tokens.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster::cli::repo_text::RepoText;
use muster::config::{
    Auto, ConfigFile, Connections, Environment, Jobs, KEYS, LogFormat, LogLevel, SettingOrigin, Settings, Size, Value,
};
use muster::core::digest::{Digest, GitSha1, Sha256};
use muster::core::endpoint::{Endpoint, Origin, redacted};
use muster::core::fold::Folding;
use muster::core::model_name::ModelName;
use muster::core::readback::Readback;
use muster::core::repo::{CommitId, RepoId, RepoKind, Revision};
use muster::core::repo_path::RepoPath;
use muster::core::selection::{Pattern, Selection};
use muster::core::shards::{is_shard, shard_number};
use muster::core::units;
use muster::hub::auth::{Surroundings, discover_in};
use muster::hub::wire::{encode_path, encode_segment};
use muster::volume::writer::{PathHash, WriterId};

use super::files::is_safe;
use super::{one_line, survives, text};

pub(super) fn config(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let file = ConfigFile { path: PathBuf::from("/etc/muster/muster.toml"), text: text.to_owned() };
    match Settings::resolve(Some(&file), &Environment::default()) {
        Ok(settings) => {
            for key in KEYS {
                let mut again = Settings::default();
                let shown = (key.show)(&settings);
                (key.set)(&mut again, &shown, SettingOrigin::Default).expect("what is shown can be set");
                assert_eq!((key.show)(&again), shown, "{}", key.name);
                if let SettingOrigin::File { line, .. } = (key.origin)(&settings) {
                    assert!((1..=text.matches('\n').count() + 1).contains(line), "{}", key.name);
                }
            }
            // The bounds on silence are added to each other and to a clock.
            let sum = settings.connect_timeout.value.checked_add(settings.header_timeout.value).expect("they add up");
            assert!(std::time::Instant::now().checked_add(sum).is_some());
            assert!(std::time::Instant::now().checked_add(settings.retry_for.value).is_some());
            assert!(std::time::Instant::now().checked_add(settings.retire_after.value).is_some());
            let anchored = settings.anchored(Path::new("/here"));
            assert!(anchored.volume.value.is_absolute());
        }
        Err(error) => drop(one_line(&error)),
    }
}

pub(super) fn units(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match units::parse_size(text) {
        Ok(bytes) => {
            assert!(i64::try_from(bytes).is_ok(), "{bytes}");
            assert!(!units::bytes(bytes).is_empty() && !units::bytes_beside(bytes, bytes).is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match units::parse_duration(text) {
        Ok(span) => {
            assert!(span.checked_add(span).is_some());
            assert!(!units::duration(span).is_empty());
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    shown::<Auto<Connections>>(text);
    shown::<Auto<Size>>(text);
    shown::<Jobs>(text);
    shown::<Duration>(text);
    shown::<Option<PathBuf>>(text);
    shown::<Option<SocketAddr>>(text);
    shown::<Option<String>>(text);
    shown::<Endpoint>(text);
    shown::<Readback>(text);
    shown::<Auto<LogLevel>>(text);
    shown::<LogFormat>(text);
    shown::<bool>(text);
}

fn shown<T: Value + PartialEq + std::fmt::Debug>(text: &str) {
    if let Ok(value) = T::parse(text) {
        assert_eq!(T::parse(&value.show()), Ok(value), "{text:?}");
    }
}

pub(super) fn endpoint(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let endpoint = match Endpoint::parse(text) {
        Ok(endpoint) => endpoint,
        Err(error) => return drop(one_line(&error)),
    };
    survives(&endpoint);
    let shown = endpoint.to_string();
    assert_eq!(Endpoint::parse(&shown).as_ref(), Ok(&endpoint), "{shown:?}");
    assert!(!shown.ends_with('/') && shown.starts_with("http"));
    let below = endpoint.join("api/models/a/b?x=1");
    assert_eq!(Origin::of(&below), endpoint.origin());
    assert_eq!(below.as_str(), format!("{shown}/api/models/a/b?x=1"));
    assert_eq!(redacted(&below), format!("{shown}/api/models/a/b?…"));
    let host = below.host_str().expect("an endpoint has a host").trim_matches(['[', ']']).to_owned();
    let address = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let near = host == "localhost" || host.ends_with(".localhost") || address;
    assert_eq!(endpoint.may_carry_token(), below.scheme() == "https" || near, "{shown}");
}

pub(super) fn names(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    match RepoPath::parse(text) {
        Ok(path) => {
            is_safe(&path);
            survives(&path);
            assert_eq!(path.as_str(), text);
            assert_eq!(path.components().collect::<Vec<_>>().join("/"), text);
            assert!(path.ancestors().all(|folder| RepoPath::parse(folder).is_ok()));
            let encoded = encode_path(&path);
            assert!(encoded.is_ascii() && encoded.matches('/').count() == text.matches('/').count());
            assert!(Pattern::exactly(&path).matches(&path));
            assert_eq!(is_shard(&path), shard_number(path.file_name()).is_some());
            let _ = PathHash::of(&path);
        }
        Err(error) => drop(one_line(&error)),
    }
    match ModelName::parse(text) {
        Ok(name) => {
            survives(&name);
            assert!(name.as_str().split('/').all(|part| !part.is_empty() && !part.starts_with('.')));
            is_safe(&RepoPath::parse(name.as_str()).expect("a name is a path"));
        }
        Err(error) => drop(one_line(&error)),
    }
    match RepoId::parse(text) {
        Ok(id) => {
            survives(&id);
            is_safe(&RepoPath::parse(id.as_str()).expect("an id is a path"));
            assert!(ModelName::parse(id.as_str()).is_ok());
        }
        Err(error) => drop(one_line(&error)),
    }
    match Revision::parse(text) {
        Ok(revision) => {
            survives(&revision);
            assert!(!encode_segment(revision.as_str()).contains('/'));
            assert!(revision.as_commit().is_none_or(|commit| commit.to_string() == text));
        }
        Err(error) => drop(one_line(&error)),
    }
    digests(text);
    for kind in [None, Some(RepoKind::Dataset)] {
        if let Ok(found) = RepoText::parse(text, kind) {
            assert!(kind.is_none_or(|kind| found.repo.kind == kind));
            let written = found.revision.map_or(String::new(), |revision| format!("@{revision}"));
            // `hf://spaces/x` is a space, and the model of that name is written without.
            let scheme = if found.repo.kind == RepoKind::Model { "" } else { "hf://" };
            let again = RepoText::parse(&format!("{scheme}{}{written}", found.repo), kind).expect("it can be written");
            assert_eq!(again.repo, found.repo);
        }
    }
    if let Ok(writer) = WriterId::parse(text) {
        assert_eq!(writer.to_string(), text);
    }
    for (case, form) in [(false, false), (true, false), (false, true), (true, true)] {
        let folding = Folding { case, form };
        let once = folding.apply(text);
        assert_eq!(folding.apply(&once), once);
    }
}

fn digests(text: &str) {
    match Digest::parse(text) {
        Ok(digest) => survives(&digest),
        Err(error) => drop(one_line(&error)),
    }
    if let Ok(digest) = Sha256::parse(text) {
        assert_eq!(digest.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(digest) = GitSha1::parse(text) {
        assert_eq!(digest.to_string(), text.to_ascii_lowercase());
    }
    if let Ok(commit) = CommitId::parse(text) {
        assert_eq!(commit.to_string(), text.to_ascii_lowercase());
        assert_eq!(commit.short().len(), 12);
    }
}

/// Patterns, one a line; the last line is a path.
pub(super) fn globs(bytes: &[u8]) {
    let Some(all) = text(bytes) else { return };
    let (patterns, path) = all.rsplit_once('\n').unwrap_or((all, "a/b.bin"));
    let Ok(path) = RepoPath::parse(path) else { return };
    let mut known = Vec::new();
    for line in patterns.split('\n').take(16) {
        match Pattern::parse(line) {
            Ok(pattern) => {
                survives(&pattern);
                assert_eq!(Pattern::parse(pattern.as_str()).as_ref(), Ok(&pattern), "a normal form is its own");
                if pattern.as_str().len() * path.as_str().len() < 4096 {
                    let (glob, name): (Vec<_>, Vec<_>) =
                        (pattern.as_str().chars().collect(), path.as_str().chars().collect());
                    assert_eq!(pattern.matches(&path), fnmatch(&glob, &name), "{:?} {path}", pattern.as_str());
                }
                known.push(pattern);
            }
            Err(error) => drop(one_line(&error)),
        }
    }
    let matches = known.iter().any(|pattern| pattern.matches(&path));
    let selection = Selection::new(known.clone(), vec![]);
    assert_eq!(selection.selects(&path), matches || known.is_empty());
    survives(&selection);
    assert_eq!(Selection::new(vec![], known).selects(&path), !matches);
    let exact = Pattern::exactly(&path);
    survives(&exact);
    assert!(
        exact.matches(&path)
            && !exact.matches(&RepoPath::parse(&format!("{path}x")).unwrap_or(RepoPath::parse("%").expect("a path")))
    );
}

/// Python's `fnmatch`, in the plainest way there is: every way to match is tried.
fn fnmatch(pattern: &[char], name: &[char]) -> bool {
    let mut reached = vec![false; name.len() + 1];
    reached[0] = true;
    let mut at = 0;
    while at < pattern.len() {
        let mut next = vec![false; name.len() + 1];
        let mut used = 1;
        match pattern[at] {
            '*' => {
                let from = reached.iter().position(|reached| *reached).unwrap_or(name.len() + 1);
                next[from.min(name.len() + 1)..].fill(true);
            }
            '[' => {
                let body = at + 1 + usize::from(pattern.get(at + 1) == Some(&'!'));
                let from = body + usize::from(pattern.get(body) == Some(&']'));
                match (from..pattern.len()).find(|end| pattern[*end] == ']') {
                    None => step(&reached, &mut next, name, |c| c == '['),
                    Some(end) => {
                        used = end + 1 - at;
                        let set = &pattern[body..end];
                        step(&reached, &mut next, name, |c| is_in(set, c) != (body == at + 2));
                    }
                }
            }
            '?' => step(&reached, &mut next, name, |_| true),
            plain => step(&reached, &mut next, name, |c| c == plain),
        }
        reached = next;
        at += used;
    }
    reached[name.len()]
}

fn step(reached: &[bool], next: &mut [bool], name: &[char], fits: impl Fn(char) -> bool) {
    for (at, c) in name.iter().enumerate() {
        next[at + 1] = reached[at] && fits(*c);
    }
}

fn is_in(set: &[char], c: char) -> bool {
    match set {
        [from, '-', to, rest @ ..] => (*from..=*to).contains(&c) || is_in(rest, c),
        [one, rest @ ..] => *one == c || is_in(rest, c),
        [] => false,
    }
}

/// Variables as `NAME=value`, one a line; a line that starts with `/` or `~` is a file and its text.
pub(super) fn discover(bytes: &[u8]) {
    let Some(all) = text(bytes) else { return };
    let lines: Vec<_> = all.split('\n').filter_map(|line| line.split_once('=')).collect();
    let find = |name: &str| lines.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    let read = |path: &Path| path.to_str().and_then(find).ok_or_else(|| io::ErrorKind::NotFound.into());
    for file in [None, Some(Path::new("/t"))] {
        match discover_in(file, &Surroundings { var: &find, read: &read }) {
            Ok(Some(token)) => {
                assert!(!token.hand_over().is_empty() && token.hand_over().bytes().all(|byte| byte.is_ascii_graphic()));
                assert!(all.contains(token.hand_over()));
            }
            Ok(None) => assert!(file.is_none(), "a file that was named has a token, or it is an error"),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}
