//! Which directory MODEL means, and the commands that would help with it.
//!
//! Owns the one rule that every verb with a MODEL shares: the path of a model directory; else a
//! name on the volume; else a repository that exactly one directory holds. Looks at the disk and
//! at nothing else; creates nothing.

use std::path::{Path, PathBuf};

use super::exit::CliError;
use super::resolve::ModelRef;
use crate::config::{Setting, SettingOrigin, Settings};
use crate::core::code::Code;
use crate::core::manifest::{Manifest, Source};
use crate::core::model_name::ModelName;
use crate::core::repo::{Repo, RepoId, RepoKind, Revision};
use crate::core::shell::quoted;
use crate::gate::report::Subject;
use crate::volume::place::canonical;
use crate::volume::{ModelDir, Volume};

/// A model directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Its name on the volume; none for a directory elsewhere.
    pub id: Option<ModelName>,
    /// The directory, as an absolute path.
    pub directory: PathBuf,
    /// The revision that came with the name.
    pub revision: Option<Revision>,
}

impl Model {
    /// Its name, for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        self.id.as_ref().map_or_else(|| self.directory.display().to_string(), ToString::to_string)
    }
}

/// What MODEL turned out to be.
#[derive(Debug)]
pub enum Located {
    /// A directory with a manifest.
    Here(Model),
    /// Nothing yet: where it would be, and the error (13) that says where was looked.
    Absent(Model, CliError),
}

impl Located {
    /// The model, for verbs that need one.
    ///
    /// # Errors
    /// The error that says where was looked.
    pub fn here(self) -> Result<Model, CliError> {
        match self {
            Self::Here(model) => Ok(model),
            Self::Absent(_, error) => Err(error),
        }
    }
}

/// Finds what `reference` means; `here` is the working directory.
///
/// # Errors
/// Exit 2 for a text that can name nothing, or two directories; 18 when the volume cannot be
/// read.
pub fn locate(reference: &ModelRef, volume: &Setting<PathBuf>, here: &Path) -> Result<Located, CliError> {
    match reference {
        ModelRef::Path(path) => Ok(at_path(path, volume)),
        ModelRef::Repo(repo, revision) => {
            let name = ModelName::of(repo);
            let holders = holders_of(volume, |other| other == repo)?;
            one_of(holders, volume, name, revision.clone(), &repo.to_string())
        }
        ModelRef::Text(text) => {
            let path = here.join(text);
            if is_model(&path) {
                return Ok(at_path(&path, volume));
            }
            let name = ModelName::parse(text).map_err(|error| {
                CliError::from_error(Code::Usage, &error).hint("muster list shows the names on the volume")
            })?;
            if open_volume(volume)?.is_some_and(|volume| is_model(&volume.path().join(name.as_str()))) {
                let directory = volume.value.join(name.as_str());
                return Ok(Located::Here(Model { id: Some(name), directory, revision: None }));
            }
            let id = RepoId::parse(text).ok();
            let holders = match &id {
                Some(id) => holders_of(volume, |repo| repo.id == *id)?,
                None => Vec::new(),
            };
            one_of(holders, volume, name, None, text)
        }
    }
}

/// The `muster pull …` that would fetch what `source` describes into the same place.
#[must_use]
pub fn pull_command(source: &Source, model: &Model, settings: &Settings) -> String {
    let Source { repo, endpoint, revision, selection, .. } = source;
    let mut words = vec!["muster".to_owned(), "pull".to_owned(), repo.id.to_string()];
    let mut flag = |name: &str, value: &str| words.extend([name.to_owned(), quoted(value)]);
    if repo.kind != RepoKind::Model {
        flag("--repo-type", &repo.kind.to_string());
    }
    if *revision != Revision::default() {
        flag("--revision", revision.as_str());
    }
    selection.include().iter().for_each(|pattern| flag("--include", pattern.as_str()));
    selection.exclude().iter().for_each(|pattern| flag("--exclude", pattern.as_str()));
    match &model.id {
        Some(id) if *id == ModelName::of(repo) => {}
        Some(id) => flag("--to", id.as_str()),
        None => flag("--local-dir", &model.directory.to_string_lossy()),
    }
    if let (Some(_), SettingOrigin::Flag(_)) = (&model.id, &settings.volume.origin) {
        flag("--volume", &settings.volume.value.to_string_lossy());
    }
    if *endpoint != settings.endpoint.value {
        flag("--endpoint", &endpoint.to_string());
    }
    words.join(" ")
}

/// The model, and the commands that would help with it. `source` is its manifest's, `unknown`
/// what to do when there is no such model.
#[must_use]
pub fn subject(model: &Model, source: Option<&Source>, settings: &Settings, unknown: Option<String>) -> Subject {
    Subject {
        id: model.id.clone(),
        pull: source.map(|source| pull_command(source, model, settings)),
        verify: command_on("verify", model, settings),
        accept: command_on("accept", model, settings),
        sign: command_on("sign", model, settings),
        unknown: unknown.unwrap_or_else(|| "muster pull brings a model; muster list shows what is there".to_owned()),
    }
}

/// The command `muster VERB MODEL` for this model.
#[must_use]
pub fn command_on(verb: &str, model: &Model, settings: &Settings) -> String {
    let volume = &settings.volume;
    match (&model.id, &volume.origin) {
        (None, _) => format!("muster {verb} {}", quoted(&model.directory.to_string_lossy())),
        (Some(id), SettingOrigin::Flag(_)) => {
            format!("muster {verb} {} --volume {}", quoted(id.as_str()), quoted(&volume.value.to_string_lossy()))
        }
        (Some(id), _) => format!("muster {verb} {}", quoted(id.as_str())),
    }
}

fn at_path(path: &Path, volume: &Setting<PathBuf>) -> Located {
    let model = Model { id: name_below(path, &volume.value), directory: plain(path), revision: None };
    if is_model(path) {
        return Located::Here(model);
    }
    let message = format!("{} is no model directory: it has no manifest", model.directory.display());
    let error = CliError::new(Code::UnknownModel, message).hint("muster pull REPO --local-dir DIR makes one");
    Located::Absent(model, error)
}

fn one_of(
    mut holders: Vec<ModelName>,
    volume: &Setting<PathBuf>,
    name: ModelName,
    revision: Option<Revision>,
    text: &str,
) -> Result<Located, CliError> {
    let model = |id: ModelName| Model { directory: volume.value.join(id.as_str()), id: Some(id), revision };
    match holders.len() {
        0 => {
            let error = CliError::new(Code::UnknownModel, format!("no model `{text}` on the volume {volume}"))
                .hint("muster list shows what is there; muster pull brings a model; --volume names another volume");
            Ok(Located::Absent(model(name), error))
        }
        1 => Ok(Located::Here(model(holders.remove(0)))),
        _ => {
            let names: Vec<_> = holders.iter().map(ModelName::as_str).collect();
            let message = format!("several directories hold {text}: {}", names.join(", "));
            Err(CliError::usage(message).hint("give one of these names"))
        }
    }
}

/// The models of a repository. One whose manifest cannot be read is none of them.
fn holders_of(volume: &Setting<PathBuf>, is_wanted: impl Fn(&Repo) -> bool) -> Result<Vec<ModelName>, CliError> {
    let Some(volume) = open_volume(volume)? else { return Ok(Vec::new()) };
    let mut names = volume.models().map_err(|error| CliError::from(&error))?;
    names.retain(|name| {
        let manifest = volume.model(name).ok().flatten().and_then(|dir| manifest_of(&dir));
        manifest.is_some_and(|manifest| is_wanted(&manifest.source().repo))
    });
    Ok(names)
}

fn manifest_of(dir: &ModelDir) -> Option<Manifest> {
    dir.manifest().ok().flatten().or_else(|| dir.pending_manifest().ok().flatten())
}

/// Whether it has a manifest, be it one that cannot be read.
fn is_model(path: &Path) -> bool {
    let Ok(dir) = ModelDir::open(path) else { return false };
    !matches!((dir.manifest(), dir.pending_manifest()), (Ok(None), Ok(None)))
}

fn open_volume(volume: &Setting<PathBuf>) -> Result<Option<Volume>, CliError> {
    match Volume::open(&volume.value) {
        Err(error) if error.is_missing() => Ok(None),
        Err(error) => Err(CliError::from(&error)),
        Ok(volume) => Ok(Some(volume)),
    }
}

/// The name of a directory that is below the volume, whatever links lead there.
fn name_below(path: &Path, volume: &Path) -> Option<ModelName> {
    let (path, volume) = (canonical(path).ok()?, canonical(volume).ok()?);
    ModelName::parse(path.strip_prefix(volume).ok()?.to_str()?).ok()
}

/// Without `.` components, for display.
fn plain(path: &Path) -> PathBuf {
    path.components().filter(|component| *component != std::path::Component::CurDir).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::{entry, source};
    use crate::core::selection::{Pattern, Selection};

    fn settings(volume: &Path, origin: SettingOrigin) -> Settings {
        Settings { volume: Setting { value: volume.to_owned(), origin }, ..Settings::default() }
    }

    fn put(volume: &Path, name: &str, repo: &str) {
        let mut source = source();
        source.repo.id = RepoId::parse(repo).unwrap();
        let manifest = Manifest::seal(source, vec![entry("a", 1)]).unwrap();
        let volume = Volume::create(volume).unwrap();
        volume.create_model(&ModelName::parse(name).unwrap()).unwrap().store_manifest(&manifest).unwrap();
    }

    fn find(text: &str, volume: &Path, here: &Path) -> Result<Located, CliError> {
        let reference = super::super::resolve::model(text, here).unwrap();
        locate(&reference, &settings(volume, SettingOrigin::Env("MUSTER_VOLUME")).volume, here)
    }

    fn id(text: &str, volume: &Path, here: &Path) -> Option<String> {
        find(text, volume, here).unwrap().here().unwrap().id.map(String::from)
    }

    #[test]
    fn a_path_comes_before_a_name_and_a_name_before_a_repository() {
        let place = tempfile::tempdir().unwrap();
        let volume = place.path().join("vol");
        let here = place.path().join("here");
        std::fs::create_dir(&here).unwrap();
        put(&volume, "kimi", "org/model");
        put(&volume, "org/model", "other/repo");
        put(&volume, "solo", "org/solo");
        put(&here, "kimi", "org/elsewhere");
        assert_eq!(id("org/model", &volume, &here), Some("org/model".into()), "a name");
        assert_eq!(id("org/solo", &volume, &here), Some("solo".into()), "a repository");
        assert_eq!(id("hf://org/solo@v1", &volume, &here), Some("solo".into()));
        assert_eq!(id("kimi", &volume, &here), None, "a path");
        assert_eq!(id("kimi", &volume, place.path()), Some("kimi".into()));
        assert_eq!(id(&format!("{}/kimi/", volume.display()), &volume, &here), Some("kimi".into()));
    }

    #[test]
    fn a_folder_that_is_no_model_does_not_hide_a_name() {
        let place = tempfile::tempdir().unwrap();
        let volume = place.path().join("vol");
        put(&volume, "kimi", "org/model");
        std::fs::create_dir(place.path().join("kimi")).unwrap();
        assert_eq!(id("kimi", &volume, place.path()), Some("kimi".into()));
    }

    #[test]
    fn two_directories_of_one_repository_are_both_named() {
        let place = tempfile::tempdir().unwrap();
        put(place.path(), "one", "org/model");
        put(place.path(), "two", "org/model");
        let error = find("org/model", place.path(), place.path()).unwrap_err();
        assert_eq!(error.code, Code::Usage);
        assert!(error.message.contains("one, two"), "{}", error.message);
    }

    #[test]
    fn an_unknown_model_says_where_was_looked_and_why_there() {
        let place = tempfile::tempdir().unwrap();
        for volume in [place.path().to_owned(), place.path().join("not/there")] {
            let Located::Absent(model, error) = find("org/x", &volume, place.path()).unwrap() else { panic!("none") };
            assert_eq!(error.code, Code::UnknownModel);
            assert!(error.message.contains(&format!("{} (from MUSTER_VOLUME)", volume.display())), "{}", error.message);
            assert_eq!(model.directory, volume.join("org/x"));
        }
        assert_eq!(find("a b/../c", place.path(), place.path()).unwrap_err().code, Code::Usage);
    }

    #[test]
    fn the_pull_that_helps_says_everything_that_is_not_default() {
        let mut source = source();
        source.endpoint = Settings::default().endpoint.value;
        let model = |id: &str| Model { id: ModelName::parse(id).ok(), directory: "/v/x y".into(), revision: None };
        let by_default = settings(Path::new("/v"), SettingOrigin::Default);
        assert_eq!(pull_command(&source, &model("org/model"), &by_default), "muster pull org/model");
        assert_eq!(pull_command(&source, &model("kimi"), &by_default), "muster pull org/model --to kimi");
        source.selection = Selection::new(vec![Pattern::parse("*.json").unwrap()], vec![]);
        source.repo.kind = RepoKind::Dataset;
        assert_eq!(
            pull_command(&source, &model(""), &settings(Path::new("/v"), SettingOrigin::Flag("--volume"))),
            "muster pull org/model --repo-type dataset --include '*.json' --local-dir '/v/x y'"
        );
        let by_flag = settings(Path::new("/v"), SettingOrigin::Flag("--volume"));
        assert_eq!(command_on("verify", &model("kimi"), &by_flag), "muster verify kimi --volume /v");
    }
}
