//! `muster repair`: replaces what is wrong in a model, and keeps what is right of it.
//!
//! A pull of the commit that is there, which doubts what is there: the same job, by the same owner. What
//! is its own: what is looked at, where right bytes may come from, and what is told at the end.

use std::path::Path;

use serde::Serialize;

use super::pull::{Ended, Pull, foreground, hub_config};
use crate::cli::args::RepairArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::model_ref::{Model, locate};
use crate::cli::resolve::{self, PullRequest, absolute, is_asked_for, local_dir};
use crate::cli::signals::Signals;
use crate::cli::{Context, runtime};
use crate::config::{Connections, Settings, Size};
use crate::core::code::Code;
use crate::core::endpoint::Endpoint;
use crate::core::job::JobSpec;
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::repair::{From, Look, RefusedCopy, Repair, Repaired, RepairedFile};
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;
use crate::core::status::SCHEMA;
use crate::core::units;
use crate::daemon::preview::preview;
use crate::volume::ModelDir;

/// Repairs a model.
///
/// # Errors
/// What the user is told.
pub fn run(args: RepairArgs, context: Context) -> Result<Exit, Failure> {
    let Context { mut settings, ui, here, environment, .. } = context;
    let reference = resolve::model(&args.model, &here)?;
    let model = locate(&reference, &settings.volume, &here)?.here()?;
    let manifest = manifest_of(&model)?;
    let look = look(&args, &manifest)?;
    let from = args.from.as_deref().map(|text| from(text, &here, &model)).transpose()?;
    let name = match &model.id {
        Some(name) => name.clone(),
        // A directory on no volume is one of a volume of its own, as for a pull with --local-dir.
        None => local_dir(&model.directory, "MODEL", &mut settings.volume)?,
    };
    settings.retry_for = settings.retry_for.overridden("--retry-for", args.retry_for);
    settings.limits.job = settings.limits.job.overridden("--limit", args.limit);
    settings.connections = settings.connections.overridden("--connections", args.connections);
    settings.reserve = settings.reserve.overridden("--reserve", args.reserve);
    let spec = spec(name, &manifest, Repair { look, from: from.clone() }, &settings);
    let wait_for_owner = !args.no_wait;
    let request = PullRequest { spec, dry_run: false, detach: false, wait_for_owner, prune: false };
    let pull = Pull { request, settings, ui, environment, detached: false, proved: Vec::new() };
    runtime::run_to_a_bounded_end(Signals::listen, Work { pull, manifest, from }.run())
}

struct Work {
    pull: Pull,
    manifest: Manifest,
    from: Option<From>,
}

/// What `muster repair --json` prints.
#[derive(Serialize)]
struct RepairReport<'a> {
    schema: u32,
    id: &'a ModelName,
    directory: String,
    commit: CommitId,
    /// Null when somebody else brought it about, and did not say how.
    repaired: Option<&'a Repaired>,
}

impl Work {
    async fn run(self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let config = hub_config(&self.pull.settings)?;
        let reserve = self.pull.settings.reserve.value.fixed().map(Size::bytes);
        let (volume, spec) = (&self.pull.settings.volume.value, &self.pull.request.spec);
        // Its manifest is there: nobody has to be asked.
        let seen = preview(volume, spec, None, reserve).await.map_err(|error| CliError::from(&error))?;
        match foreground::pull(&self.pull, config, seen, &mut signals).await? {
            Ended::Stopped(exit) => Ok(exit),
            Ended::Done(model) => self.tell(model.and_then(|model| model.repaired).as_ref()),
        }
    }

    fn tell(&self, repaired: Option<&Repaired>) -> Result<Exit, Failure> {
        let (ui, spec) = (&self.pull.ui, &self.pull.request.spec);
        for refused in repaired.iter().flat_map(|repaired| &repaired.refused) {
            ui.warn(&self.refused_line(refused));
        }
        if ui.is_json() {
            let directory = self.pull.settings.volume.value.join(spec.name.as_str());
            ui.result_json(&RepairReport {
                schema: SCHEMA,
                id: &spec.name,
                directory: directory.to_string_lossy().into_owned(),
                commit: self.manifest.source().commit,
                repaired,
            })?;
            return Ok(Exit::Success);
        }
        let files = repaired.map(|repaired| repaired.files.as_slice()).unwrap_or_default();
        let mut lines: Vec<_> = files.iter().map(|file| self.file_line(file)).collect();
        lines.push(match repaired {
            Some(Repaired { files, bytes_fetched, .. }) if !files.is_empty() => {
                let count = units::count(files.len() as u64, "file");
                format!(
                    "{}: {count} repaired, {} fetched; every file is right",
                    spec.name,
                    units::bytes(*bytes_fetched)
                )
            }
            Some(_) => format!("{}: nothing to repair; every file is right", spec.name),
            None => format!("{}: another process has completed it", spec.name),
        });
        ui.result(&lines.join("\n"))?;
        Ok(Exit::Success)
    }

    fn file_line(&self, file: &RepairedFile) -> String {
        let RepairedFile { blocks, bytes_kept, bytes_copied, bytes_to_fetch, .. } = file;
        let blocks = units::count(*blocks, "block");
        let mut parts = vec![match (file.bad_blocks, &file.set_aside) {
            (Some(bad), _) => format!("{bad} of {blocks} wrong"),
            (None, None) if *bytes_kept == 0 => "missing".to_owned(),
            (None, _) => format!("wrong, and which of its {blocks} is not known"),
        }];
        parts.push(format!("{} fetched", units::bytes(*bytes_to_fetch)));
        if *bytes_kept > 0 {
            let how = if file.shared { "kept, blocks shared" } else { "kept, by copying" };
            parts.push(format!("{} {how}", units::bytes(*bytes_kept)));
        }
        if *bytes_copied > 0 {
            parts.push(format!("{} from {}", units::bytes(*bytes_copied), self.copy()));
        }
        parts.extend(file.set_aside.as_ref().map(|place| format!("the wrong file is {place}")));
        format!("{}: {}", file.file, parts.join("; "))
    }

    fn refused_line(&self, RefusedCopy { file, blocks }: &RefusedCopy) -> String {
        let what =
            blocks.map_or_else(|| "is wrong or missing".to_owned(), |n| format!("has {n} of the wanted blocks wrong"));
        format!("{file} {what} in {}, too, and none of that was used", self.copy())
    }

    fn copy(&self) -> &str {
        match &self.from {
            Some(From::Directory(directory)) => directory,
            _ => "the other copy",
        }
    }
}

fn manifest_of(model: &Model) -> Result<Manifest, CliError> {
    let manifest = ModelDir::open(&model.directory).and_then(|dir| dir.manifest());
    let none = || {
        CliError::new(Code::Incomplete, format!("{} has no manifest yet", model.shown()))
            .hint("muster pull REPO brings the model")
    };
    manifest.map_err(|error| CliError::from(&error))?.ok_or_else(none)
}

fn look(args: &RepairArgs, manifest: &Manifest) -> Result<Look, CliError> {
    if args.full {
        return Ok(Look::Everything);
    }
    let mut paths = Vec::new();
    for text in &args.files {
        let path = RepoPath::parse(text).map_err(|error| CliError::usage(format!("FILE: {error}")))?;
        if manifest.file(&path).is_none() {
            return Err(CliError::usage(format!("{path} is no file of the model"))
                .hint("muster verify MODEL names the files that are wrong"));
        }
        paths.push(path);
    }
    Ok(if paths.is_empty() { Look::Known } else { Look::Files(paths) })
}

/// `--from`, as a directory that is there or as a server.
fn from(text: &str, here: &Path, model: &Model) -> Result<From, CliError> {
    if text.contains("://") {
        let endpoint = Endpoint::parse(text).map_err(|error| CliError::usage(format!("--from: {error}")))?;
        return Ok(From::Endpoint(endpoint));
    }
    let directory = absolute(here, Path::new(text));
    if directory == model.directory {
        return Err(CliError::usage("--from names the model itself"));
    }
    if let Err(error) = ModelDir::open(&directory) {
        let code = if error.is_missing() { Code::Usage } else { error.code() };
        return Err(CliError::from_error(code, &error).context("--from cannot be opened"));
    }
    let shown = directory.to_str().ok_or_else(|| CliError::usage("--from: its path is no UTF-8"))?;
    Ok(From::Directory(shown.to_owned()))
}

/// The directory as it is to be: its own commit, from where it came.
fn spec(name: ModelName, manifest: &Manifest, repair: Repair, settings: &Settings) -> JobSpec {
    let source = manifest.source();
    JobSpec {
        name,
        repo: source.repo.clone(),
        revision: source.revision.clone(),
        selection: source.selection.clone(),
        endpoint: source.endpoint.clone(),
        connections: settings.connections.value.fixed().map(Connections::get),
        limit: Some(&settings.limits.job).filter(|limit| is_asked_for(&limit.origin)).map(|limit| limit.value),
        reselect: false,
        update: false,
        repair: Some(repair),
    }
}
