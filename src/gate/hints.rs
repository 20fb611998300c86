//! What to do about a closed gate.
//!
//! Owns the hint of each kind of trouble, but for those of a policy (`explain`) and of deliberate
//! edits (`edited`), which have the words themselves. Says nothing that the [`Answer`] does not hold.

use super::check::Answer;
use super::report::Subject;
use super::{edited, explain};
use crate::core::manifest::Manifest;
use crate::core::reason::{Reason, Why};
use crate::core::units;

/// What helps when the bytes are right and make no model.
const UPSTREAM: &str = "every byte is as published, so pulling again changes nothing: take a revision in which it is mended, \
    or let it pass by --structure=warn (in muster.toml: [gate] structure = \"warn\")";

/// What to do about a closed gate: one hint for each kind of trouble, gravest first.
#[must_use]
pub fn hints(answer: &Answer, subject: &Subject) -> Vec<String> {
    let mut fixes: Vec<(Fix, usize, u64)> = Vec::new();
    let mut of_rules: Vec<String> = Vec::new();
    for reason in answer.decision.reasons().into_iter().filter(|reason| !edited::is_of_edit(reason, answer)) {
        if let Why::Policy(breach) = &reason.why {
            let hint = explain::hint(breach, subject);
            if !of_rules.contains(&hint) {
                of_rules.push(hint);
            }
            continue;
        }
        let (fix, size) = (Fix::of(&reason.why), size_of(reason, answer.manifest.as_ref()));
        match fixes.iter_mut().find(|(known, ..)| *known == fix) {
            Some((_, count, bytes)) => (*count, *bytes) = (*count + 1, *bytes + size),
            None => fixes.push((fix, 1, size)),
        }
    }
    // A pull that fetches named files also completes the rest.
    let fetches = fixes.iter().any(|(fix, ..)| *fix == Fix::Fetch);
    fixes.retain(|(fix, ..)| !(fetches && *fix == Fix::Complete));
    let of_files = fixes.into_iter().filter_map(|(fix, count, bytes)| fix.hint(count, bytes, subject));
    of_rules.iter().cloned().chain(of_files).chain(edited::hints(answer, subject)).collect()
}

/// What to do about one reason.
pub(super) fn reason_hint(reason: &Reason, answer: &Answer, subject: &Subject) -> Option<String> {
    if let Why::Policy(breach) = &reason.why {
        return Some(explain::hint(breach, subject));
    }
    let fix = Some(Fix::of(&reason.why)).filter(|_| !edited::is_of_edit(reason, answer));
    let hint = fix.and_then(|fix| fix.hint(1, size_of(reason, answer.manifest.as_ref()), subject));
    [hint, edited::hint(reason, answer, subject)].into_iter().flatten().reduce(|a, b| format!("{a}; {b}"))
}

fn size_of(reason: &Reason, manifest: Option<&Manifest>) -> u64 {
    reason.file.as_ref().and_then(|path| manifest?.file(path)).map_or(0, |entry| entry.size)
}

/// Kinds of help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fix {
    /// Pull: named files are fetched again.
    Fetch,
    /// Pull: goes on to the end.
    Complete,
    /// The bytes are wrong behind an unchanged identity: first let `verify` set them aside.
    Quarantine,
    /// Look at the name.
    Unknown,
    /// Pull the revision that is wanted.
    Revision,
    /// Wait for a writer.
    Wait,
    /// Ask what became of the pull.
    Status,
    /// Make the files readable.
    Readable,
    /// Use a newer program.
    Program,
    /// The pinned manifest is not this one.
    Pin,
    /// What was published cannot be loaded.
    Upstream,
    /// Each rule of a policy has a hint of its own.
    Rule,
    /// What is here was not signed.
    Sign,
}

impl Fix {
    const fn of(why: &Why) -> Self {
        match why {
            Why::NeverPulled { .. } => Self::Unknown,
            Why::OtherManifest { .. } => Self::Pin,
            Why::OtherCommit { .. } => Self::Revision,
            Why::NoReceipt | Why::ReceiptDamaged { .. } | Why::ReceiptOfOther { .. } => Self::Complete,
            Why::Held | Why::Unsteady | Why::Changing => Self::Wait,
            Why::PullFailed { .. } => Self::Status,
            Why::Missing { .. } | Why::Size { .. } | Why::NotRegular => Self::Fetch,
            Why::Bytes { disguised, .. } => {
                if *disguised {
                    Self::Quarantine
                } else {
                    Self::Fetch
                }
            }
            Why::ManifestUnreadable { .. } | Why::ReceiptUnreadable { .. } | Why::EditsUnreadable { .. } => {
                Self::Program
            }
            // `edited` knows the words.
            Why::EditedBoth(_) => Self::Pin,
            Why::Unreadable { .. } => Self::Readable,
            Why::Structure(_) => Self::Upstream,
            Why::Policy(_) => Self::Rule,
            Why::Signature(_) => Self::Sign,
        }
    }

    /// The sentence for `count` files of `bytes` in all.
    fn hint(self, count: usize, bytes: u64, subject: &Subject) -> Option<String> {
        let Subject { pull, verify, unknown, .. } = subject;
        let pull = pull.as_ref();
        let (what, size) = (if count == 1 { "this file" } else { "these files" }, units::bytes(bytes));
        match self {
            Self::Fetch => pull.map(|pull| format!("{pull} fetches {what} again ({size})")),
            Self::Complete => pull.map(|pull| format!("{pull} completes and verifies it; what is there is kept")),
            Self::Quarantine => pull.map(|pull| {
                format!("{verify} --quarantine sets {what} aside, then {pull} fetches {} again ({size})", it(count))
            }),
            Self::Unknown => Some(unknown.clone()),
            Self::Revision => pull.map(|pull| format!("{pull} --revision REVISION brings the revision that is wanted")),
            Self::Wait => Some("try again, or wait with --wait".to_owned()),
            Self::Status => Some("muster status tells what became of the pull".to_owned()),
            Self::Readable => Some("check the mount and the modes of the files, then try again".to_owned()),
            Self::Program => Some(format!("check the mount and the program's version; {verify} tells more")),
            Self::Upstream => Some(UPSTREAM.to_owned()),
            Self::Pin => Some("pull the commit that was pinned, or correct --manifest-id".to_owned()),
            Self::Rule => None,
            Self::Sign => Some(format!(
                "once it is what it should be, the holder of the key signs it: {} --key PRIVATE_KEY",
                subject.sign
            )),
        }
    }
}

const fn it(count: usize) -> &'static str {
    if count == 1 { "it" } else { "them" }
}
