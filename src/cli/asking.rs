//! Asking the owner of a volume to do something about a model.
//!
//! Owns what `pause`, `resume`, `cancel` and `remove` and `limit` share: which model, whether anybody can be
//! asked, and what is said when not.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::exit::{CliError, Exit, Failure};
use super::{Context, facts, owning, resolve, runtime};
use crate::api::{Candidate, Client};
use crate::clock;
use crate::core::code::Code;
use crate::core::model_name::ModelName;
use crate::core::status::ModelStatus;
use crate::daemon::Daemon;
use crate::hub::HubConfig;
use crate::limits::STOP_WITHIN;
use crate::volume::Volume;
use crate::volume::owner::Glance;

/// How often a job that is to stop is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A change of a job that only its owner can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Stop, and keep what is durable.
    Pause,
    /// Go on.
    Resume,
    /// Give up.
    Cancel,
}

/// Asks for the change and tells what came of it.
///
/// # Errors
/// 14 when nobody can be asked; else what the owner says.
pub fn change(change: Change, model: &str, context: &Context) -> Result<Exit, Failure> {
    let reference = resolve::model(model, &context.here)?;
    let volume = facts::open(&context.settings.volume)?;
    let status = runtime::run(async {
        let client = find(&volume, context).await?;
        let report = client.report().await.map_err(|error| CliError::from(&error))?;
        let id = facts::model(&report, &reference, &context.settings.volume, &context.here)?.id.clone();
        let asked = match change {
            Change::Pause => client.pause(&id).await,
            Change::Resume => client.resume(&id).await,
            Change::Cancel => client.cancel(&id).await,
        };
        let status = asked.map_err(|error| CliError::from(&error))?;
        Ok(if change == Change::Resume { status } else { settled(&client, &id, status).await? })
    })?;
    if context.ui.is_json() {
        context.ui.result_json(&status)?;
    } else {
        context.ui.result(&format!("{}  {}", status.id, status.state.word()))?;
    }
    Ok(Exit::Success)
}

/// Takes a model off the volume: by its owner, or by owning the volume for that moment.
///
/// # Errors
/// What the user is told.
pub fn remove(model: &str, now: bool, context: &Context) -> Result<Exit, Failure> {
    let reference = resolve::model(model, &context.here)?;
    let volume = facts::open(&context.settings.volume)?;
    let id = runtime::run(async {
        let facts = facts::look(&volume).await?;
        let id = facts::model(&facts.report, &reference, &context.settings.volume, &context.here)?.id.clone();
        if let Some(client) = Client::find(&volume).await.map_err(|error| CliError::from(&error))? {
            client.remove(&id, now).await.map_err(|error| CliError::from(&error))?;
        } else {
            let daemon = own_for_a_moment(context).await?;
            let removed = daemon.jobs().remove(&id, now).await;
            daemon.stop().await;
            removed.map_err(|error| CliError::from(error.to_job_error()))?;
        }
        Ok(id)
    })?;
    if context.ui.is_json() {
        context.ui.result_json(&json!({ "id": id, "removed": true }))?;
    } else {
        let kept = context.settings.retire_after.value;
        let when = if now {
            String::new()
        } else {
            format!("; its space is freed after {}", crate::core::units::duration(kept))
        };
        context.ui.result(&format!("{id}  removed{when}"))?;
    }
    Ok(Exit::Success)
}

/// Owns the volume for one thing that needs an owner, asking nobody and serving nobody.
///
/// # Errors
/// 15 when somebody else holds it.
pub async fn own_for_a_moment(context: &Context) -> Result<Daemon, CliError> {
    let settings = &context.settings;
    let options = owning::options(settings, true, HubConfig::new(settings.endpoint.value.clone()));
    let wish = owning::wish(settings, &context.environment, true)?;
    let mut candidate = Candidate::prepare(options, &wish).map_err(|error| CliError::from(&error))?;
    candidate.own(None).await.map_err(|error| CliError::from(&error))
}

/// The owner of the volume, on this host and answering.
///
/// # Errors
/// 14 when there is none such.
pub async fn find(volume: &Volume, context: &Context) -> Result<Client, CliError> {
    if let Some(client) = Client::find(volume).await.map_err(|error| CliError::from(&error))? {
        return Ok(client);
    }
    let shown = &context.settings.volume;
    let glance = volume.owner().ok().flatten();
    let holder = glance.filter(|glance| !glance.is_dead()).and_then(|Glance { record, .. }| record);
    let (message, hint) = match holder {
        None => (
            format!("nobody works on the volume {shown}"),
            "muster pull REPO goes on with a download; muster daemon goes on with all of them",
        ),
        Some(record) => (
            format!("process {} on {} owns the volume {shown} and cannot be reached", record.pid, record.host),
            "run this on that host, as its user or in its api_group",
        ),
    };
    Err(CliError::new(Code::DaemonUnreachable, message).hint(hint))
}

/// Waits until a job that was asked to stop has done so.
async fn settled(client: &Client, id: &ModelName, mut status: ModelStatus) -> Result<ModelStatus, CliError> {
    let until = clock::since_boot() + STOP_WITHIN;
    while status.state.is_active() && clock::since_boot() < until {
        sleep(LOOK_EVERY).await;
        status = client.model(id).await.map_err(|error| CliError::from(&error))?;
    }
    Ok(status)
}
