//! `muster accept`: takes files that were changed on purpose for right, and undoes that.
//!
//! The owner of the volume does it, or this process owns the volume for that moment; a directory on
//! no volume has no owner. After an undo the published files are pulled, at the directory's commit.

use super::pull;
use crate::api::Client;
use crate::api::dto::{Accepting, EditsReport, Undoing};
use crate::cli::args::AcceptArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::model_ref::{Model, command_on, locate, pull_command};
use crate::cli::{Context, asking, facts, resolve, runtime};
use crate::config::Environment;
use crate::core::code::Code;
use crate::core::job::JobSpec;
use crate::core::local_edits::{EditReason, in_words};
use crate::core::manifest::Source;
use crate::core::model_name::ModelName;
use crate::core::repo_path::RepoPath;
use crate::gate::accept::{Acceptance, Who, accept, here};
use crate::volume::ModelDir;

/// Takes files for right, or undoes that.
///
/// # Errors
/// What the user is told.
pub fn run(args: AcceptArgs, mut context: Context) -> Result<Exit, Failure> {
    let AcceptArgs { model, paths, reason, undo: is_undo, force } = args;
    let reference = resolve::model(&model, &context.here)?;
    let mut model = locate(&reference, &context.settings.volume, &context.here)?.here()?;
    if is_undo {
        if model.id.is_none() {
            // As `pull --local-dir` does: the parent is the volume.
            model.id = Some(resolve::local_dir(&model.directory, "MODEL", &mut context.settings.volume)?);
        }
        return undo(&model, paths, force, &context);
    }
    let reason = reason.ok_or_else(|| CliError::usage("--reason TEXT is needed"))?;
    let report = take(&model, paths, reason, force, &context)?;
    tell_accepted(&model, &report, &context)
}

fn take(
    model: &Model,
    paths: Vec<RepoPath>,
    reason: EditReason,
    force: bool,
    context: &Context,
) -> Result<EditsReport, Failure> {
    let user = user(&context.environment);
    let uid = Some(rustix::process::getuid().as_raw());
    let who = Who { uid, user: user.clone(), host: here() };
    let Some(name) = &model.id else {
        let dir = ModelDir::open(&model.directory).map_err(|error| CliError::from(&error))?;
        let what = Acceptance { paths, reason, force, who };
        let accepted =
            accept(&dir, &what, &|| true).map_err(|error| CliError::told(error.code(), &error, error.hint()))?;
        return Ok(EditsReport::accepted(None, accepted));
    };
    let volume = facts::open(&context.settings.volume)?;
    runtime::run(async {
        if let Some(client) = Client::find(&volume).await.map_err(|error| CliError::from(&error))? {
            let asked = client.accept(name, &Accepting { paths, reason, force, user }).await;
            return Ok(asked.map_err(|error| CliError::from(&error))?);
        }
        let daemon = asking::own_for_a_moment(context).await?;
        let accepted = daemon.jobs().accept(name, Acceptance { paths, reason, force, who }).await;
        daemon.stop().await;
        let accepted = accepted.map_err(|error| CliError::from(&error))?;
        Ok(EditsReport::accepted(Some(name.clone()), accepted))
    })
}

fn tell_accepted(model: &Model, report: &EditsReport, context: &Context) -> Result<Exit, Failure> {
    let Context { settings, ui, .. } = context;
    if ui.is_json() {
        ui.result_json(report)?;
    } else {
        let mut lines: Vec<_> = report.accepted.iter().map(|path| format!("{path}  accepted as it is")).collect();
        lines.extend(report.unchanged.iter().map(|path| format!("{path}  is as it was published: nothing to accept")));
        lines.extend(in_words(&report.local_edits).map(|words| format!("{}: {words}", model.shown())));
        ui.result(&lines.join("\n"))?;
    }
    if !report.receipt {
        let verify = command_on("verify", model, settings);
        ui.note(&format!(
            "hint: there is no receipt, so the gate stays closed: {verify} hashes everything and writes one"
        ));
    }
    Ok(Exit::Success)
}

fn undo(model: &Model, paths: Vec<RepoPath>, force: bool, context: &Context) -> Result<Exit, Failure> {
    let Context { settings, ui, .. } = context;
    let Some(name) = &model.id else { return Err(CliError::usage("the directory has no name").into()) };
    let source = source_of(model)?;
    let volume = facts::open(&settings.volume)?;
    let mut report: EditsReport = runtime::run(async {
        if let Some(client) = Client::find(&volume).await.map_err(|error| CliError::from(&error))? {
            return Ok(client
                .undo(name, &Undoing { paths: paths.clone(), force })
                .await
                .map_err(|error| CliError::from(&error))?);
        }
        let daemon = asking::own_for_a_moment(context).await?;
        let undone = daemon.jobs().undo(name, paths.clone(), force).await;
        daemon.stop().await;
        Ok(EditsReport::undone(name.clone(), undone.map_err(|error| CliError::from(&error))?))
    })?;
    for aside in &report.set_aside {
        ui.note(&format!("{} is set aside: {}", aside.file, aside.place));
    }
    if !report.receipt {
        let command = pull_command(&source, model, settings);
        match pull::complete(spec(name, &source), context) {
            Ok(None) => report.receipt = true,
            Ok(Some(exit)) => {
                ui.note(&format!("hint: {command} brings what is missing; until then the gate is closed"));
                return Ok(exit);
            }
            Err(Failure::Error(error)) => {
                let rest = error.hint.clone().map(|hint| format!("; {hint}")).unwrap_or_default();
                let told = error.context("the edit is undone, and the published file could not be brought");
                return Err(told.hint(format!("{command} brings it; until then the gate is closed{rest}")).into());
            }
            Err(other) => return Err(other),
        }
    }
    if ui.is_json() {
        ui.result_json(&report)?;
    } else {
        let lines: Vec<_> = paths.iter().map(|path| format!("{path}  is as it was published")).collect();
        ui.result(&lines.join("\n"))?;
    }
    Ok(Exit::Success)
}

fn source_of(model: &Model) -> Result<Source, CliError> {
    let manifest = ModelDir::open(&model.directory).and_then(|dir| dir.manifest());
    let manifest = manifest.map_err(|error| CliError::from(&error))?;
    let none = || CliError::new(Code::Incomplete, format!("{} has no manifest yet", model.shown()));
    Ok(manifest.ok_or_else(none)?.source().clone())
}

/// The directory as it is: what is missing at its own commit.
fn spec(name: &ModelName, source: &Source) -> JobSpec {
    JobSpec {
        name: name.clone(),
        repo: source.repo.clone(),
        revision: source.revision.clone(),
        selection: source.selection.clone(),
        endpoint: source.endpoint.clone(),
        connections: None,
        limit: None,
        reselect: false,
        update: false,
        repair: None,
    }
}

/// Who sits there: behind `sudo` it is another than the session's user.
fn user(environment: &Environment) -> Option<String> {
    let name = |variable| environment.text(variable).ok().flatten().map(str::to_owned);
    let name = name("SUDO_USER").or_else(|| name("USER")).or_else(|| name("LOGNAME"))?;
    (name.len() <= 256 && !name.chars().any(char::is_control)).then_some(name)
}
