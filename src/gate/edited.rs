//! The words about deliberate edits in a verdict.
//!
//! Owns what the gate and `verify` say of files that somebody changed: that they were, on purpose;
//! and how to say so, when nobody did.

use super::check::Answer;
use super::report::Subject;
use crate::core::local_edits::is_weights;
use crate::core::reason::{Reason, Why};
use crate::core::repo_path::RepoPath;
use crate::core::shell::quoted;

/// Files that one hint names.
const NAMED_MAX: usize = 5;

/// What a changed file may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// Nobody has said that the change is meant.
    Word,
    /// It is not what was accepted.
    Again,
    /// It is gone or makes no model, or its publisher changed it too.
    Undo,
}

/// Whether a deliberate edit is the trouble, so that no pull mends it.
pub(super) fn is_of_edit(reason: &Reason, answer: &Answer) -> bool {
    matches!(need(reason, answer), Some((Need::Again | Need::Undo, _)))
}

/// The hint about one reason.
pub(super) fn hint(reason: &Reason, answer: &Answer, subject: &Subject) -> Option<String> {
    let (need, path) = need(reason, answer)?;
    Some(words(need, &[path], subject))
}

/// The hints about all reasons, one for each need.
pub(super) fn hints(answer: &Answer, subject: &Subject) -> Vec<String> {
    let needs: Vec<_> =
        answer.decision.reasons().into_iter().filter_map(|reason| need(reason, answer)).take(NAMED_MAX).collect();
    let of = |wanted: Need| -> Vec<&RepoPath> {
        needs.iter().filter(|(need, _)| *need == wanted).map(|(_, path)| *path).collect()
    };
    let all = [Need::Word, Need::Again, Need::Undo].map(|need| (need, of(need)));
    all.iter().filter(|(_, paths)| !paths.is_empty()).map(|(need, paths)| words(*need, paths, subject)).collect()
}

fn need<'a>(reason: &'a Reason, answer: &Answer) -> Option<(Need, &'a RepoPath)> {
    if let Why::EditedBoth(conflict) = &reason.why {
        return Some((Need::Undo, &conflict.edit.path));
    }
    let path = reason.file.as_ref()?;
    let is_edit = answer.edits.of(path).is_some();
    let size = || answer.manifest.as_ref().and_then(|manifest| manifest.file(path)).map_or(0, |entry| entry.size);
    match &reason.why {
        Why::Missing { .. } | Why::Structure(_) if is_edit => Some((Need::Undo, path)),
        Why::Bytes { .. } | Why::Size { .. } | Why::NotRegular if is_edit => Some((Need::Again, path)),
        Why::Bytes { disguised: false, .. } | Why::Size { .. } if !is_weights(path, size()) => Some((Need::Word, path)),
        _ => None,
    }
}

fn words(need: Need, paths: &[&RepoPath], subject: &Subject) -> String {
    let accept = &subject.accept;
    let names = paths.iter().map(|path| quoted(path.as_str())).collect::<Vec<_>>().join(" ");
    let force = if paths.iter().any(|path| is_weights(path, 0)) { " --force" } else { "" };
    match need {
        Need::Word => {
            format!(
                "changed on purpose? {accept} {names} --reason TEXT takes it as it is, and names it in every verdict"
            )
        }
        Need::Again => format!(
            "{accept} {names} --reason TEXT{force} takes it as it is now; {accept} --undo {names} brings the published file back"
        ),
        Need::Undo => format!("{accept} --undo {names} brings the published file"),
    }
}
