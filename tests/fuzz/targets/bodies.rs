//! Bodies and paths of HTTP requests and answers, ours on both ends, and the status file.

use axum::body::Bytes;
use muster::api::dto::{Accepting, EditsReport, Health, History, Refusal, Removal, SeenVerdict, Submission, Undoing};
use muster::cli::progress::{Line, status_line};
use muster::core::job::JobSpec;
use muster::core::model_name::ModelName;
use muster::core::selection::Selection;
use muster::core::status::{ModelStatus, Report};
use muster::hub::Token;
use muster::hub::auth::TokenPlace;
use muster::mirror::byte_range::{Asked, asked};
use muster::mirror::route::{self, Call};

use super::files::is_safe;
use super::{survives, text};

/// A body of the API: whatever it is one of.
pub(super) fn requests(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(Submission { job, token }) = serde_json::from_slice::<Submission>(&bytes) {
        is_usable(&job);
        survives(&job);
        if let Some(Ok(Some(token))) = token.map(|text| Token::parse(&text, TokenPlace::Submitted)) {
            assert!(token.hand_over().bytes().all(|byte| byte.is_ascii_graphic()));
            assert!(
                !format!("{token:?}").contains(token.hand_over())
                    || "Token { place: Submitted, .. }".contains(token.hand_over())
            );
        }
    }
    let _ = serde_json::from_slice::<Removal>(&bytes).is_ok_and(|removal| removal.now);
    if let Ok(body) = serde_json::from_slice::<SeenVerdict>(&bytes) {
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<Accepting>(&bytes) {
        body.paths.iter().for_each(is_safe);
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<Undoing>(&bytes) {
        body.paths.iter().for_each(is_safe);
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<EditsReport>(&bytes) {
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<Refusal>(&bytes) {
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<Health>(&bytes) {
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<History>(&bytes) {
        survives(&body);
    }
    if let Ok(body) = serde_json::from_slice::<ModelStatus>(&bytes) {
        is_shown(&body);
    }
}

/// What a job asks for is what the command line could have asked for.
fn is_usable(job: &JobSpec) {
    let Selection { .. } = &job.selection;
    let (include, exclude) = (job.selection.include(), job.selection.exclude());
    assert_eq!(Selection::new(include.to_vec(), exclude.to_vec()), job.selection, "patterns in order, none twice");
    assert_eq!(ModelName::parse(job.name.as_str()).as_ref(), Ok(&job.name));
    assert!(!std::path::Path::new(job.name.as_str()).is_absolute());
    assert!(job.name.as_str().split('/').all(|part| !part.is_empty() && !part.starts_with('.')));
}

/// The status file as the command line reads it.
pub(super) fn status(bytes: &[u8]) {
    let Ok(report) = serde_json::from_slice::<Report>(bytes) else { return };
    for model in &report.models {
        is_shown(model);
    }
    // Not every number of JSON has a second form: what was read once stays.
    let written = serde_json::to_vec(&report).expect("it can be written");
    let again: Report = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(again.models.len(), report.models.len());
    assert_eq!(serde_json::to_vec(&again).expect("it can be written").len(), written.len());
}

fn is_shown(model: &ModelStatus) {
    let line = status_line(model);
    assert!(line.starts_with(model.id.as_str()));
    let Line { text, .. } = Line::from(model);
    assert_eq!(text, line);
}

/// A size and a line end, then a `Range` header, a line end, and a path.
pub(super) fn mirror(bytes: &[u8]) {
    let Some(all) = text(bytes) else { return };
    let mut lines = all.splitn(3, '\n');
    let size = lines.next().and_then(|line| line.parse().ok()).unwrap_or(10);
    match asked(lines.next(), size) {
        Asked::Part(range) => assert!(range.start < range.end && range.end <= size),
        Asked::Whole | Asked::Unsatisfiable => {}
    }
    match route::parse(lines.next().unwrap_or_default()) {
        Ok(Call::Resolve { path, repo, .. }) => {
            is_safe(&path);
            assert!(!repo.id.as_str().contains(".."));
        }
        Ok(Call::Tree { folder: Some(folder), .. }) => {
            is_safe(&muster::core::repo_path::RepoPath::parse(&folder).expect("a folder is a path"));
        }
        Ok(_) | Err(_) => {}
    }
}
