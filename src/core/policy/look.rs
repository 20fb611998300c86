//! One demand held against the facts: what was demanded, what was found, and what would help.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::breach::Remedy;
use super::condition::{Condition, shown};
use super::judge::{Digested, Document, Facts, Kind, Name, Seen};
use super::{Demand, Globs, printable};
use crate::core::digest::Sha256;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;
use crate::core::units;

/// Most names in one message.
const NAMES_SHOWN: usize = 5;
/// What rules about ages are about.
const VERIFICATION: &str = "the last verification";
/// How far the clocks of hosts may be apart.
const SKEW: Duration = Duration::from_secs(300);

/// What a look came to.
pub(super) struct Finding {
    /// What was seen.
    pub(super) seen: Seen,
    /// What it means.
    pub(super) outcome: Outcome,
}

/// What a look means.
pub(super) enum Outcome {
    /// It is so.
    Met,
    /// It is not.
    Broken(Remedy),
    /// Nobody can tell.
    Unknown(Remedy),
}

impl Outcome {
    fn of(met: bool, remedy: impl FnOnce() -> Remedy) -> Self {
        if met { Self::Met } else { Self::Broken(remedy()) }
    }
}

impl Demand {
    /// Holds the demand against the facts.
    pub(super) fn find(&self, facts: &Facts<'_>) -> Finding {
        match self {
            Self::Json(condition) => condition.find(facts),
            Self::Forbid { names: globs, except, except_sha256 } => of_names(facts, |names| {
                let forbidden = names.iter().filter(|name| is_forbidden(name, globs, except));
                find_forbidden(forbidden, globs, except_sha256.as_ref(), facts)
            }),
            Self::Require { names: globs } => of_names(facts, |names| find_required(names, globs)),
            Self::NoExtra { except } => of_names(facts, |names| find_extra(names, except)),
            Self::Modes { files, forbid, require } => {
                of_names(facts, |names| find_modes(names, files.as_ref(), *forbid, *require))
            }
            Self::Commit(commits) => find_commit(commits, facts.commit),
            Self::VerifiedWithin(most) => {
                let expected = format!("at most {} ago", units::duration(*most));
                if facts.hashed_now {
                    let found = "every byte hashed just now".to_owned();
                    return Finding { seen: seen(VERIFICATION, &expected, found), outcome: Outcome::Met };
                }
                find_age(facts, &expected, Remedy::Verify, |age| age <= *most)
            }
            Self::VerifiedFor(least) => {
                let expected = format!("at least {} ago", units::duration(*least));
                find_age(facts, &expected, Remedy::Wait, |age| age >= *least)
            }
            Self::NoLocalEdits => find_local_edits(facts.local_edits),
        }
    }
}

impl Condition {
    fn find(&self, facts: &Facts<'_>) -> Finding {
        let Self { file, pointer, test, ignore_case, missing } = self;
        let about = match pointer {
            Some(pointer) if !pointer.as_str().is_empty() => format!("{file} {}", printable(pointer.as_str())),
            _ => file.to_string(),
        };
        let remedy = || Remedy::Change { file: file.clone() };
        let not_there = || Outcome::of(test.holds_for_nothing(*missing), remedy);
        let (found, outcome) = match facts.documents.get(file) {
            None => ("it was not looked at".to_owned(), Outcome::Unknown(Remedy::Readable)),
            Some(Document::Missing) => ("no such file".to_owned(), not_there()),
            Some(Document::Unreadable { why }) => {
                (format!("something unreadable ({})", printable(why)), Outcome::Unknown(Remedy::Readable))
            }
            // Whatever is in it, there is a file.
            Some(Document::NoJson { .. } | Document::Json(_)) if pointer.is_none() => {
                ("a file".to_owned(), Outcome::of(test.holds_for(&Value::Null, false), remedy))
            }
            Some(Document::NoJson { why }) => {
                (format!("a file that is no JSON ({})", printable(why)), Outcome::Broken(remedy()))
            }
            Some(Document::Json(document)) => match pointer.as_ref().and_then(|pointer| pointer.find(document)) {
                None => ("nothing".to_owned(), not_there()),
                Some(value) => (shown(value), Outcome::of(test.holds_for(value, *ignore_case), remedy)),
            },
        };
        let pointer = pointer.as_ref().map(|pointer| pointer.as_str().to_owned());
        Finding { seen: Seen { file: Some(file.clone()), pointer, ..seen(&about, &test.expected(), found) }, outcome }
    }
}

/// What the names in the directory say; nobody can tell where they could not be listed.
fn of_names(facts: &Facts<'_>, look: impl FnOnce(&[Name]) -> Finding) -> Finding {
    match facts.names {
        Ok(names) => look(names),
        Err(why) => Finding {
            seen: seen("the directory", "a list of its files", printable(why)),
            outcome: Outcome::Unknown(Remedy::Readable),
        },
    }
}

fn find_required(names: &[Name], globs: &Globs) -> Finding {
    let has = |glob: &Globs| names.iter().any(|name| name.kind == Kind::File && glob.match_name(&name.path));
    let lacking: Vec<_> = globs.each().filter(|glob| !has(glob)).map(|glob| glob.to_string()).collect();
    let found = if lacking.is_empty() { "all".to_owned() } else { format!("none for {}", lacking.join(", ")) };
    Finding {
        seen: seen("files", &format!("one for each of {globs}"), found),
        outcome: Outcome::of(lacking.is_empty(), || Remedy::Pull),
    }
}

fn find_extra(names: &[Name], except: &Globs) -> Finding {
    let is_extra = |name: &&Name| name.is_extra && name.kind != Kind::Folder && !except.match_name(&name.path);
    let extra: Vec<_> = names.iter().filter(is_extra).map(|name| name.path.as_str()).collect();
    Finding {
        seen: seen_of_names("files that are not in the manifest", "none", &extra, listed(&extra)),
        outcome: Outcome::of(extra.is_empty(), || Remedy::Except),
    }
}

fn find_commit(commits: &[CommitId], found: CommitId) -> Finding {
    let mut allowed: Vec<_> = commits.iter().take(NAMES_SHOWN).map(ToString::to_string).collect();
    if commits.len() > NAMES_SHOWN {
        allowed.push(format!("{} more", commits.len() - NAMES_SHOWN));
    }
    let first = commits.first().copied().unwrap_or(found);
    Finding {
        seen: seen("the commit", &allowed.join(" or "), found.to_string()),
        outcome: Outcome::of(commits.contains(&found), || Remedy::Commit(first)),
    }
}

fn find_local_edits(edits: &[RepoPath]) -> Finding {
    let names: Vec<_> = edits.iter().map(RepoPath::as_str).collect();
    let outcome = edits.first().map_or(Outcome::Met, |file| Outcome::Broken(Remedy::Undo { file: file.clone() }));
    Finding { seen: seen_of_names("files changed here on purpose", "none", &names, listed(&names)), outcome }
}

/// Whether a rule against `globs` means this file.
pub(super) fn is_forbidden(name: &Name, globs: &Globs, except: &Globs) -> bool {
    name.kind != Kind::Folder && globs.match_name(&name.path) && !except.match_name(&name.path)
}

fn find_forbidden<'a>(
    forbidden: impl Iterator<Item = &'a Name>,
    globs: &Globs,
    allowed: Option<&BTreeSet<Sha256>>,
    facts: &Facts<'_>,
) -> Finding {
    let (mut bad, mut words, mut doubts) = (Vec::new(), Vec::new(), 0);
    for name in forbidden {
        let shown = printable(&name.path);
        words.push(match facts.digests.get(&name.path).zip(allowed) {
            Some((Digested::As(digest), allowed)) if allowed.contains(digest) => continue,
            Some((Digested::As(digest), _)) => format!("{shown} (sha256 {digest})"),
            Some((Digested::TooLarge { why }, _)) => format!("{shown} ({why})"),
            Some((Digested::Unreadable { why }, _)) => {
                doubts += 1;
                format!("{shown} ({})", printable(why))
            }
            None => shown,
        });
        bad.push(name.path.as_str());
    }
    let remedy = if allowed.is_none() { Remedy::Except } else { Remedy::ExceptDigest };
    let outcome = match bad.len() {
        0 => Outcome::Met,
        // Nothing is certainly forbidden.
        all if all == doubts => Outcome::Unknown(Remedy::Readable),
        _ => Outcome::Broken(remedy),
    };
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let about = format!("files {globs}");
    Finding { seen: seen_of_names(&about, "none", &bad, few(&words)), outcome }
}

fn find_modes(names: &[Name], files: Option<&Globs>, forbid: u32, require: u32) -> Finding {
    let is_meant = |name: &&Name| match (name.kind, files) {
        (Kind::File, Some(globs)) => globs.match_name(&name.path),
        (Kind::File, None) => true,
        (Kind::Folder, None) => true,
        (Kind::Folder, Some(_)) | (Kind::Other, _) => false,
    };
    let is_wrong = |name: &&Name| {
        let lacks = name.kind == Kind::File && name.mode & require != require;
        name.mode & forbid != 0 || lacks
    };
    let wrong: Vec<_> = names.iter().filter(is_meant).filter(is_wrong).collect();
    let paths: Vec<_> = wrong.iter().map(|name| name.path.as_str()).collect();
    let words: Vec<_> = wrong.iter().map(|name| format!("{} ({:04o})", printable(&name.path), name.mode)).collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut expected = Vec::new();
    if forbid != 0 {
        expected.push(format!("none of {forbid:04o}"));
    }
    if require != 0 {
        expected.push(format!("all of {require:04o}"));
    }
    let found = if wrong.is_empty() { "so".to_owned() } else { few(&words) };
    let change = || Remedy::Modes { change: as_chmod(forbid, require) };
    Finding {
        seen: seen_of_names("permission bits", &expected.join(" and "), &paths, found),
        outcome: Outcome::of(wrong.is_empty(), change),
    }
}

/// The change that `chmod` needs: `g-w,o-w`.
fn as_chmod(forbid: u32, require: u32) -> String {
    let mut words = Vec::new();
    for (shift, who) in [(6, 'u'), (3, 'g'), (0, 'o')] {
        for (bits, sign) in [(forbid, '-'), (require, '+')] {
            let bits = bits >> shift & 7;
            let letters: String = [(4, 'r'), (2, 'w'), (1, 'x')]
                .iter()
                .filter(|(bit, _)| bits & bit != 0)
                .map(|(_, letter)| *letter)
                .collect();
            if !letters.is_empty() {
                words.push(format!("{who}{sign}{letters}"));
            }
        }
    }
    for (bit, who, letter) in [(0o4000, "u", 's'), (0o2000, "g", 's'), (0o1000, "", 't')] {
        for (bits, sign) in [(forbid, '-'), (require, '+')] {
            if bits & bit != 0 {
                words.push(format!("{who}{sign}{letter}"));
            }
        }
    }
    words.join(",")
}

fn find_age(facts: &Facts<'_>, expected: &str, remedy: Remedy, is_met: impl Fn(Duration) -> bool) -> Finding {
    let age = facts.now.duration_since(facts.verified_at);
    let behind = age.unsigned_abs();
    if age.is_negative() && behind > SKEW {
        let found = format!("{}, which is yet to come", facts.verified_at);
        return Finding { seen: seen(VERIFICATION, expected, found), outcome: Outcome::Unknown(Remedy::Clocks) };
    }
    let age = if age.is_negative() { Duration::ZERO } else { behind };
    let found = format!("{} ago", units::duration(age));
    Finding { seen: seen(VERIFICATION, expected, found), outcome: Outcome::of(is_met(age), || remedy) }
}

fn seen(about: &str, expected: &str, found: String) -> Seen {
    Seen { file: None, pointer: None, about: about.to_owned(), expected: expected.to_owned(), found }
}

fn seen_of_names(about: &str, expected: &str, names: &[&str], found: String) -> Seen {
    // A name that no repository can have is told in the words alone.
    let file = names.first().and_then(|name| RepoPath::parse(name).ok());
    Seen { file, ..seen(about, expected, found) }
}

/// Names for people: the first few, and how many more.
fn listed(names: &[&str]) -> String {
    let shown: Vec<_> = names.iter().take(NAMES_SHOWN).map(|name| printable(name)).collect();
    more(&shown, names.len())
}

/// The same, for what is printable already.
fn few(words: &[&str]) -> String {
    let shown: Vec<_> = words.iter().take(NAMES_SHOWN).map(|word| (*word).to_owned()).collect();
    more(&shown, words.len())
}

fn more(shown: &[String], all: usize) -> String {
    match all - shown.len() {
        _ if all == 0 => "none".to_owned(),
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}
