//! What a policy came to, rule by rule, for people and for programs; and what would help.

use serde::Serialize;

use super::report::Subject;
use crate::core::code::Code;
use crate::core::policy::judge::{Seen, Verdict};
use crate::core::policy::{Breach, Policy, Remedy, Rule};
use crate::core::repo_path::RepoPath;

/// The JSON form of a policy and its verdicts.
#[derive(Debug, Serialize)]
pub struct PolicyReport {
    local_edits: &'static str,
    rules: Vec<RuleReport>,
}

#[derive(Debug, Serialize)]
struct RuleReport {
    name: Option<String>,
    source: String,
    line: Option<usize>,
    verdict: &'static str,
    code: Option<Code>,
    file: Option<RepoPath>,
    pointer: Option<String>,
    expected: Option<String>,
    found: Option<String>,
    message: String,
    hint: Option<String>,
}

impl PolicyReport {
    /// Of a policy and its verdicts; `verdicts` is empty when no file could be believed, so that
    /// nothing was judged.
    #[must_use]
    pub fn new(policy: &Policy, verdicts: &[Verdict], subject: &Subject) -> Self {
        let rules = paired(policy, verdicts).map(|(rule, verdict)| {
            let seen = verdict.and_then(seen_of);
            let breach = verdict.and_then(breach_of);
            RuleReport {
                name: rule.name.clone(),
                source: rule.origin.source.clone(),
                line: rule.origin.line,
                verdict: word(verdict),
                code: breach.map(Breach::code),
                file: seen.and_then(|seen| seen.file.clone()),
                pointer: seen.and_then(|seen| seen.pointer.clone()),
                expected: seen.map(|seen| seen.expected.clone()),
                found: seen.map(|seen| seen.found.clone()),
                message: rule.message.clone(),
                hint: breach.map(|breach| hint(breach, subject)).or_else(|| rule.hint.clone()),
            }
        });
        Self { local_edits: policy.local_edits().word(), rules: rules.collect() }
    }
}

/// Each rule with its verdict, a line each.
#[must_use]
pub fn lines(policy: &Policy, verdicts: &[Verdict]) -> Vec<String> {
    if policy.is_empty() {
        return vec!["policy: none (--policy, MUSTER_POLICY or [gate] in the configuration gives one)".to_owned()];
    }
    let line = |(rule, verdict): (&Rule, Option<&Verdict>)| {
        let word = word(verdict).replace('_', " ");
        let told = match verdict {
            None => "the files are not right, and only right ones are judged".to_owned(),
            Some(Verdict::Elsewhere) => "it is about other repositories".to_owned(),
            Some(Verdict::Met(seen)) => seen.to_string(),
            Some(Verdict::Broken(breach)) => breach.seen.to_string(),
        };
        format!("{word}: {}: {told}", rule.shown())
    };
    paired(policy, verdicts).map(line).collect()
}

/// What to do about a breach: the operator's advice, or ours.
#[must_use]
pub fn hint(breach: &Breach, subject: &Subject) -> String {
    if let Some(hint) = &breach.hint {
        return hint.clone();
    }
    let pull = subject.pull.as_deref().unwrap_or("muster pull");
    match &breach.remedy {
        Remedy::Change { file } => format!(
            "take another model or launcher, or change {file} and say so: {} {file} --reason TEXT",
            subject.accept
        ),
        Remedy::Except => "remove it, or name it in the rule's `except`".to_owned(),
        Remedy::ExceptDigest => {
            "read it first; then add its digest to the rule's `except_sha256`, or remove the file".to_owned()
        }
        Remedy::Pull => format!("{pull} brings what the repository has; a selection may have left it out"),
        Remedy::Modes { change } => format!("chmod -R {change} on the directory; what changes is hashed once more"),
        Remedy::Commit(commit) => format!("{pull} --revision {commit} brings the commit that is allowed"),
        Remedy::Verify => format!("{} hashes every byte again, and --full does so for this gate alone", subject.verify),
        Remedy::Wait => "try again later; each muster verify starts the time anew".to_owned(),
        Remedy::Undo { file } => format!("{} {file} --undo brings the published file back", subject.accept),
        Remedy::Readable => "make it readable for this user, or change the rule".to_owned(),
        Remedy::Clocks => "set the clocks of this host and of the one that verified".to_owned(),
    }
}

fn paired<'a>(
    policy: &'a Policy,
    verdicts: &'a [Verdict],
) -> impl Iterator<Item = (&'a Rule, Option<&'a Verdict>)> + 'a {
    policy.rules().iter().enumerate().map(|(at, rule)| (rule, verdicts.get(at)))
}

const fn word(verdict: Option<&Verdict>) -> &'static str {
    match verdict {
        None => "not_judged",
        Some(Verdict::Elsewhere) => "elsewhere",
        Some(Verdict::Met(_)) => "met",
        Some(Verdict::Broken(breach)) if breach.unknown => "unknown",
        Some(Verdict::Broken(_)) => "broken",
    }
}

const fn seen_of(verdict: &Verdict) -> Option<&Seen> {
    match verdict {
        Verdict::Elsewhere => None,
        Verdict::Met(seen) => Some(seen),
        Verdict::Broken(breach) => Some(&breach.seen),
    }
}

fn breach_of(verdict: &Verdict) -> Option<&Breach> {
    match verdict {
        Verdict::Broken(breach) => Some(breach),
        Verdict::Elsewhere | Verdict::Met(_) => None,
    }
}
