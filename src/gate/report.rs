//! What the gate says to people and to programs.
//!
//! Owns the JSON form (`api/schema/gate.v1.json`), the line for people and the hints. Says
//! nothing that the [`Answer`] does not hold.

use std::fmt::Write as _;

use serde::Serialize;

use super::check::Answer;
use super::explain::PolicyReport;
use super::hints;
use super::verify::{ReceiptFate, Verified};
use crate::core::code::Code;
use crate::core::digest::Sha256;
use crate::core::gate::Tally;
use crate::core::local_edits::{self, LocalEdit};
use crate::core::manifest::{Manifest, ManifestId};
use crate::core::model_name::ModelName;
use crate::core::policy::Policy;
use crate::core::reason::Reason;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;
use crate::core::structure::Strictness;
use crate::core::units;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Most reasons that people are shown.
const SHOWN_MAX: usize = 10;

/// The model as the caller named it, and the commands that would help there.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Its name on the volume; none for a directory elsewhere.
    pub id: Option<ModelName>,
    /// The command that pulls it, once its repository is known.
    pub pull: Option<String>,
    /// The command that verifies it.
    pub verify: String,
    /// The command that takes changed files for right; the files follow.
    pub accept: String,
    /// The command that signs it; the key follows.
    pub sign: String,
    /// What to do when there is no such model.
    pub unknown: String,
}

/// The JSON form.
#[derive(Debug, Serialize)]
pub struct Report {
    schema: u32,
    id: Option<ModelName>,
    directory: String,
    commit: Option<CommitId>,
    manifest_id: Option<ManifestId>,
    selection: Option<String>,
    verdict: &'static str,
    exit_code: u8,
    files: Files,
    shards: Shards,
    bytes: Bytes,
    elapsed_ms: u64,
    reasons: Vec<ReasonReport>,
    structure: StructureReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<PolicyReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_by: Option<Sha256>,
    local_edits: Vec<LocalEdit>,
}

#[derive(Debug, Serialize)]
struct StructureReport {
    mode: Strictness,
    looked_at: u64,
    left_out: u64,
    warnings: Vec<ReasonReport>,
}

#[derive(Debug, Serialize)]
struct Files {
    total: u64,
    trusted: u64,
    hashed: u64,
    bad: u64,
}

#[derive(Debug, Serialize)]
struct Shards {
    total: u64,
    verified: u64,
}

#[derive(Debug, Serialize)]
struct Bytes {
    total: u64,
    hashed: u64,
}

#[derive(Debug, Serialize)]
struct ReasonReport {
    file: Option<RepoPath>,
    code: Code,
    expected: Option<String>,
    found: Option<String>,
    hint: Option<String>,
}

/// The JSON form of `verify`.
#[derive(Debug, Serialize)]
pub struct VerifyReport {
    #[serde(flatten)]
    report: Report,
    receipt: ReceiptFate,
    quarantined: Vec<QuarantineReport>,
}

#[derive(Debug, Serialize)]
struct QuarantineReport {
    file: RepoPath,
    place: String,
}

impl VerifyReport {
    /// Of what was found and done.
    #[must_use]
    pub fn new(verified: &Verified, subject: &Subject, exit_code: u8) -> Self {
        let mut report = Report::new(&verified.answer, subject, exit_code);
        report.verdict = if verified.answer.decision.is_open() { "verified" } else { "not_verified" };
        let quarantined = verified
            .quarantined
            .iter()
            .map(|(file, place)| QuarantineReport { file: file.clone(), place: place.to_string_lossy().into_owned() });
        Self { report, receipt: verified.receipt, quarantined: quarantined.collect() }
    }
}

impl Report {
    /// Of an answer; `exit_code` is the verb's, which is another than the verdict's own when a
    /// wait ran out.
    #[must_use]
    pub fn new(answer: &Answer, subject: &Subject, exit_code: u8) -> Self {
        let tally = *answer.decision.tally();
        let report = |reason: &Reason| ReasonReport {
            file: reason.file.clone(),
            code: reason.why.code(),
            expected: reason.why.expected(),
            found: reason.why.found(),
            hint: hints::reason_hint(reason, answer, subject),
        };
        let seen = &answer.structure;
        let source = answer.manifest.as_ref().map(Manifest::source);
        Self {
            schema: SCHEMA,
            id: subject.id.clone(),
            directory: answer.directory.to_string_lossy().into_owned(),
            commit: source.map(|source| source.commit),
            manifest_id: answer.manifest.as_ref().map(Manifest::id),
            selection: source.filter(|s| !s.selection.is_everything()).map(|s| s.selection.to_string()),
            verdict: if answer.decision.is_open() { "open" } else { "closed" },
            exit_code,
            files: Files { total: tally.files, trusted: tally.trusted, hashed: tally.hashed, bad: tally.bad },
            shards: Shards { total: tally.shards, verified: tally.shards_verified },
            bytes: Bytes { total: tally.bytes, hashed: tally.bytes_hashed },
            elapsed_ms: u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX),
            reasons: answer.decision.reasons().into_iter().map(report).collect(),
            structure: StructureReport {
                mode: seen.strictness,
                looked_at: seen.looked_at,
                left_out: seen.left_out,
                warnings: seen.warnings().iter().map(report).collect(),
            },
            policy: None,
            signed_by: answer.signed,
            local_edits: answer.edits.files().to_vec(),
        }
    }

    /// The same, with the verdict of each rule.
    #[must_use]
    pub fn explained(mut self, answer: &Answer, policy: &Policy, subject: &Subject) -> Self {
        self.policy = Some(PolicyReport::new(policy, &answer.verdicts, subject));
        self
    }

    /// The JSON form and a line end.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec(self).expect("a report has string keys only");
        bytes.push(b'\n');
        bytes
    }
}

/// The words of a verdict, as a verb says them.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    /// Every file is right.
    pub good: &'static str,
    /// Not so.
    pub bad: &'static str,
}

/// The words of the gate.
pub const GATE: Words = Words { good: "open", bad: "closed" };
/// The words of `verify`.
pub const VERIFY: Words = Words { good: "verified", bad: "not verified" };

/// The verdict for people: one line when open, one for each of the first reasons when closed.
/// `exit` is the verb's, which is another than the verdict's own when a wait ran out.
#[must_use]
pub fn verdict(answer: &Answer, exit: u8, words: Words) -> String {
    let reasons = answer.decision.reasons();
    let Some(first) = reasons.first() else { return open_line(answer, words.good) };
    let ended = match exit {
        _ if exit == Code::Stalled.exit() => "nothing moved for too long; ",
        _ if exit == Code::TimedOut.exit() => "out of time; ",
        _ => "",
    };
    let mut text = format!("{} ({exit}): {ended}{first}", words.bad);
    for reason in reasons.iter().take(SHOWN_MAX).skip(1) {
        let _infallible = write!(text, "\n  {reason}");
    }
    if let Some(more) = reasons.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        let _infallible = write!(text, "\n  and {more} more");
    }
    if let Some(edits) = local_edits::in_words(answer.edits.files()) {
        let _infallible = write!(text, "\n  {edits}");
    }
    text
}

/// Faults of the weight files that are told and close nothing.
#[must_use]
pub fn warnings(answer: &Answer) -> Vec<String> {
    let faults = answer.structure.warnings();
    let is_edit = |fault: &Reason| fault.file.as_ref().is_some_and(|path| answer.edits.of(path).is_some());
    let told = |fault| format!("as {}, {fault}", if is_edit(fault) { "accepted" } else { "published" });
    let mut warnings: Vec<_> = faults.iter().take(SHOWN_MAX).map(told).collect();
    if let Some(more) = faults.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
        warnings.push(format!("{more} more files have such faults"));
    }
    warnings
}

/// What is told of the shards that nobody asked for.
#[must_use]
pub fn left_out(answer: &Answer) -> Option<String> {
    let count = answer.structure.left_out;
    let what = if count == 1 { "1 shard that belongs".to_owned() } else { format!("{count} shards that belong") };
    (count > 0).then(|| format!("the selection leaves out {what} to the model"))
}

/// Before hashing: how much, and why.
#[must_use]
pub fn hashing_line(files: u64, bytes: u64, why: &str) -> String {
    let what = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    format!("hashing {what}, {}: {why}", units::bytes(bytes))
}

fn open_line(answer: &Answer, word: &str) -> String {
    let Tally { files, hashed, shards, bytes, bytes_hashed, .. } = *answer.decision.tally();
    let count = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
    let present = match shards {
        0 => format!("{count} present and verified"),
        _ => format!("{count}, all {shards} shards present and verified"),
    };
    let mut line = format!("{word}: {}, {present}", units::bytes(bytes));
    if let Some(source) = answer.manifest.as_ref().map(Manifest::source) {
        if !source.selection.is_everything() {
            let _infallible = write!(line, ", selection {}", source.selection);
        }
        let _infallible = write!(line, ", commit {}…", source.commit.short());
    }
    if let Some(edits) = local_edits::in_words(answer.edits.files()) {
        let _infallible = write!(line, ", {edits}");
    }
    if let Some(key) = answer.signed {
        let _infallible = write!(line, ", signed by key {}…", key.short());
    }
    let took = units::duration(answer.took);
    let _infallible = match hashed {
        0 => write!(line, " ({took})"),
        _ => write!(line, " ({took}, {} hashed)", units::bytes(bytes_hashed)),
    };
    line
}
