//! `muster list`: lists the models on a volume. Its JSON is that of `status`.

use crate::cli::args::ListArgs;
use crate::cli::exit::{Exit, Failure};
use crate::cli::{Context, facts, runtime};
use crate::core::local_edits::in_words;
use crate::core::repo::RepoKind;
use crate::core::status::ModelStatus;
use crate::core::units;

/// Lists the models on a volume.
///
/// # Errors
/// What the user is told.
pub fn run(_args: ListArgs, context: Context) -> Result<Exit, Failure> {
    let Context { settings, ui, .. } = context;
    let volume = facts::open(&settings.volume)?;
    let facts = runtime::run(async { Ok(facts::look(&volume).await?) })?;
    if ui.is_json() {
        ui.result_json(&facts.report)?;
    } else if facts.report.models.is_empty() {
        ui.note(&format!("no models on {}", settings.volume.value.display()));
    } else {
        ui.result(&table(&facts.report.models))?;
    }
    Ok(Exit::Success)
}

fn table(models: &[ModelStatus]) -> String {
    let rows: Vec<_> = models.iter().map(row).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    let pad = |row: &[String; 4]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.chain([row[3].clone()]).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(pad).collect::<Vec<_>>().join("\n")
}

fn row(model: &ModelStatus) -> [String; 4] {
    let kind = if model.repo_type == RepoKind::Model { String::new() } else { format!("{} ", model.repo_type) };
    let repo = format!("{kind}{}@{}", model.repo, model.revision);
    let mut last = model.bytes.map(|bytes| units::bytes(bytes.total)).unwrap_or_default();
    if let Some(edits) = in_words(&model.local_edits) {
        last = format!("{last}  {edits}");
    }
    [model.id.to_string(), repo, model.state.word().to_owned(), last]
}
