//! `muster limit`: shows and changes how fast bytes may come.

use crate::cli::args::LimitArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::resolve::{LimitRequest, LimitScope};
use crate::cli::{Context, asking, facts, resolve, runtime};
use crate::core::limit::Rate;
use crate::daemon::limiting::{InForce, LimitReport};

/// Shows what is in force, after a change if one was asked for.
///
/// # Errors
/// 14 when nobody works on the volume; else what the owner says.
pub fn run(args: LimitArgs, context: Context) -> Result<Exit, Failure> {
    let LimitRequest { scope, change } = resolve::limit(args, &context.here)?;
    let volume = facts::open(&context.settings.volume)?;
    let report: LimitReport = runtime::run(async {
        let client = asking::find(&volume, &context).await?;
        let mut id = None;
        if let LimitScope::Model(reference) = &scope {
            let report = client.report().await.map_err(|error| CliError::from(&error))?;
            id = Some(facts::model(&report, reference, &context.settings.volume, &context.here)?.id.clone());
        }
        if let Some(limit) = change {
            let asked = match &id {
                Some(id) => client.limit(id, limit).await.map(drop),
                None => client.limit_all(limit).await.map(drop),
            };
            asked.map_err(|error| CliError::from(&error))?;
        }
        let mut report = client.limits().await.map_err(|error| CliError::from(&error))?;
        report.models.retain(|model| id.as_ref().is_none_or(|id| model.id == *id));
        Ok(report)
    })?;
    if context.ui.is_json() {
        context.ui.result_json(&report)?;
    } else {
        context.ui.result(&text(&report))?;
    }
    Ok(Exit::Success)
}

fn text(report: &LimitReport) -> String {
    let mut lines = vec![line("all together", &report.volume)];
    lines.extend(report.models.iter().map(|model| line(model.id.as_str(), &model.limit)));
    lines.join("\n")
}

fn line(name: &str, InForce { bytes_per_s, why }: &InForce) -> String {
    let limit = bytes_per_s.and_then(Rate::new).map_or_else(|| "no limit".to_owned(), |rate| rate.to_string());
    format!("{name}  {limit}  ({why})")
}
