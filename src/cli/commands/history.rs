//! `muster history`: shows the audit trail of a model.

use crate::api::Client;
use crate::api::dto::History;
use crate::cli::args::HistoryArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::{Context, asking, facts, resolve, runtime};

/// Shows the audit trail of a model: the owner's, or by owning the volume for that moment.
///
/// # Errors
/// What the user is told.
pub fn run(args: HistoryArgs, context: Context) -> Result<Exit, Failure> {
    let reference = resolve::model(&args.model, &context.here)?;
    let volume = facts::open(&context.settings.volume)?;
    let history = runtime::run(async {
        let facts = facts::look(&volume).await?;
        let id = facts::model(&facts.report, &reference, &context.settings.volume, &context.here)?.id.clone();
        if let Some(client) = Client::find(&volume).await.map_err(|error| CliError::from(&error))? {
            return Ok(client.history(&id).await.map_err(|error| CliError::from(&error))?);
        }
        let daemon = asking::own_for_a_moment(&context).await?;
        let entries = daemon.jobs().history(&id);
        daemon.stop().await;
        Ok(History::new(id, entries))
    })?;
    if context.ui.is_json() {
        context.ui.result_json(&history)?;
    } else if history.entries.is_empty() {
        context.ui.note(&format!("nothing is remembered of {}", history.id));
    } else {
        let lines: Vec<_> = history
            .entries
            .iter()
            .map(|entry| format!("{:.0}  {}  {}", entry.at, entry.phase.word(), entry.detail).trim_end().to_owned())
            .collect();
        context.ui.result(&lines.join("\n"))?;
    }
    Ok(Exit::Success)
}
