//! What an operator writes for the gate, held against what a model brings.

use std::collections::BTreeMap;

use jiff::Timestamp;
use muster::core::policy::judge::{Document, Facts, Kind, Name, Verdict, reasons};
use muster::core::policy::{Demand, LocalEdits, Policy};
use muster::core::repo::CommitId;

use super::{one_line, text};

/// A policy and, after a NUL, the JSON of each file that it asks for.
pub(super) fn policy(bytes: &[u8]) {
    let Some(text) = text(bytes) else { return };
    let (written, brought) = text.split_once('\0').unwrap_or((text, "{}"));
    if let Err(error) = Policy::parse_config(written, "muster.toml") {
        drop(one_line(&error));
    }
    let policy = match Policy::parse(written, "policy.toml") {
        Ok(policy) => policy,
        Err(error) => {
            let lines = written.matches('\n').count() + 1;
            assert!((1..=lines).contains(&error.line), "{error}");
            return drop(one_line(&error));
        }
    };
    assert!(!policy.is_empty() || policy.local_edits() == LocalEdits::Allow);
    let known = verdicts(&policy, &document(brought), true);
    let hidden = verdicts(&policy, &Document::Unreadable { why: brought.chars().take(9).collect() }, false);
    assert_eq!((known.len(), hidden.len()), (policy.rules().len(), policy.rules().len()));
    for (rule, verdict) in policy.rules().iter().zip(&known) {
        one_line(&rule.shown());
        if let Verdict::Met(seen) = verdict {
            one_line(seen);
        }
    }
    for reason in reasons(&known) {
        one_line(&reason);
    }
    // What cannot be looked at meets no rule that has to look.
    for (rule, verdict) in policy.rules().iter().zip(&hidden) {
        let looks = matches!(rule.demand, Demand::Json(_) | Demand::Forbid { .. } | Demand::NoExtra { .. });
        assert!(!looks || !matches!(verdict, Verdict::Met(_)), "{}", rule.shown());
    }
}

fn document(text: &str) -> Document {
    match serde_json::from_str(text) {
        Ok(value) => Document::Json(value),
        Err(error) => Document::NoJson { why: error.to_string() },
    }
}

fn verdicts(policy: &Policy, document: &Document, listed: bool) -> Vec<Verdict> {
    let documents: BTreeMap<_, _> = policy.documents().map(|path| (path.clone(), document.clone())).collect();
    let name = |path: &str, is_extra| Name { path: path.to_owned(), kind: Kind::File, mode: 0o664, is_extra };
    let names = [name("config.json", false), name("sub/odd\u{1b}[2J.PY", true)];
    policy.judge(&Facts {
        repo: "org/model",
        commit: CommitId::from_bytes([1; 20]),
        verified_at: Timestamp::UNIX_EPOCH,
        hashed_now: false,
        now: Timestamp::MAX,
        documents: &documents,
        names: if listed { Ok(&names) } else { Err("not\u{7}allowed") },
        digests: &BTreeMap::new(),
        local_edits: &[],
    })
}
