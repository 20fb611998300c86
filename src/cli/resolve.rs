//! What typed arguments mean together with the settings: requests.
//!
//! Owns the rules that join several flags. Every refusal is a usage error (exit 2) that names
//! the flag and the way out. Pure: it looks at no file.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::args::{AdoptArgs, DaemonArgs, DemoArgs, GateArgs, LimitArgs, MirrorArgs, PullArgs, TransferArgs, Wait};
use super::exit::CliError;
use super::repo_text::RepoText;
use crate::config::{Auto, Environment, Setting, SettingOrigin, Settings, Value};
use crate::core::job::JobSpec;
use crate::core::limit::Limit;
use crate::core::manifest::ManifestId;
use crate::core::model_name::ModelName;
use crate::core::repo::{Repo, Revision};
use crate::core::repo_path::RepoPath;
use crate::core::selection::{Pattern, Selection};
use crate::core::structure::Strictness;
use crate::limits;

/// What `muster pull` is to do. Everything about how is in the settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// The job.
    pub spec: JobSpec,
    /// Only say what would be done.
    pub dry_run: bool,
    /// Go on in the background.
    pub detach: bool,
    /// Wait while another host owns the volume.
    pub wait_for_owner: bool,
    /// Remove what is set aside of the model, once it is complete.
    pub prune: bool,
}

/// What the user called a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelRef {
    /// Certainly a path: it starts with `/` or `.`.
    Path(PathBuf),
    /// Certainly a repository: `hf://…` or with a revision.
    Repo(Repo, Option<Revision>),
    /// A path if that exists, else a name on the volume, else a repository id.
    Text(String),
}

/// What `muster gate` is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateRequest {
    /// The model.
    pub model: ModelRef,
    /// Only this revision will do.
    pub revision: Option<Revision>,
    /// Only this manifest will do.
    pub manifest_id: Option<ManifestId>,
    /// Trust no receipt.
    pub full: bool,
    /// Wait for it.
    pub wait: Option<Wait>,
    /// Give up waiting when no byte came for so long.
    pub stall: Option<Duration>,
    /// Where the verdict is written too.
    pub verdict: Option<PathBuf>,
    /// Say what each rule of the policy came to.
    pub explain: bool,
    /// Where what was hashed is remembered; nowhere when unset.
    pub remember: Option<PathBuf>,
    /// What faults in the structure mean, if not what the settings say.
    pub structure: Option<Strictness>,
    /// What an open gate does.
    pub then: Then,
}

/// What an open gate does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Reports, and that is all.
    Report,
    /// Keeps the lock until it is stopped.
    Hold,
    /// Hands over to a command: program and arguments.
    Start(Vec<OsString>),
}

/// What `muster limit` is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitRequest {
    /// Whose limit.
    pub scope: LimitScope,
    /// The new one, if there is to be one; the inner nothing is what the configuration says.
    pub change: Option<Option<Limit>>,
}

/// Whose limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LimitScope {
    /// That of all jobs together.
    All,
    /// That of one job.
    Model(ModelRef),
}

/// What `muster mirror` is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MirrorRequest {
    /// Address and port.
    pub listen: SocketAddr,
    /// Who may read.
    pub access: MirrorAccess,
}

/// Who may read from the mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MirrorAccess {
    /// Everybody who reaches the address.
    Everybody,
    /// Who sends the token in this file.
    Token(PathBuf),
}

/// What `muster demo` is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoRequest {
    /// Bytes of one shard.
    pub shard_bytes: u64,
    /// Number of shards.
    pub shards: u16,
    /// Keep the files.
    pub keep: bool,
    /// Where to work; a fresh folder for temporary files when unset.
    pub dir: Option<PathBuf>,
}

/// `muster pull`: the request, and the settings with its flags over them.
///
/// # Errors
/// A usage error.
pub fn pull(args: PullArgs, settings: Settings, here: &Path) -> Result<(PullRequest, Settings), CliError> {
    pull_into(args, "--local-dir", settings, here)
}

/// `muster adopt`: a pull into the directory that it was given.
///
/// # Errors
/// A usage error.
pub fn adopt(args: AdoptArgs, settings: Settings, here: &Path) -> Result<(PullRequest, Settings), CliError> {
    pull_into(args.into_pull(), "DIR", settings, here)
}

fn pull_into(
    args: PullArgs,
    directory_flag: &'static str,
    settings: Settings,
    here: &Path,
) -> Result<(PullRequest, Settings), CliError> {
    let mut settings = transfer(args.transfer, settings, here);
    settings.retry_for = settings.retry_for.overridden("--retry-for", args.retry_for);
    settings.limits.job = settings.limits.job.overridden("--limit", args.limit);
    let RepoText { repo, revision } = RepoText::parse(&args.repo, args.repo_type)?;
    let revision = one_revision(revision, args.revision)?;
    let selection = selection(&args.files, args.include, args.exclude)?;
    let name = match (args.to, args.local_dir) {
        (Some(to), _) => ModelName::parse(&to).map_err(|error| CliError::usage(format!("--to: {error}")))?,
        (None, Some(directory)) => local_dir(&absolute(here, &directory), directory_flag, &mut settings.volume)?,
        (None, None) => ModelName::of(&repo),
    };
    let spec = JobSpec {
        name,
        repo,
        revision,
        selection,
        endpoint: settings.endpoint.value.clone(),
        // What a file says is the owner's, who reads it again.
        limit: Some(&settings.limits.job).filter(|limit| is_asked_for(&limit.origin)).map(|limit| limit.value),
        connections: settings.connections.value.fixed().map(crate::config::Connections::get),
        reselect: args.reselect,
        update: !args.no_update,
        repair: None,
    };
    let PullArgs { dry_run, detach, no_wait, prune, .. } = args;
    Ok((PullRequest { spec, dry_run, detach, wait_for_owner: !no_wait, prune }, settings))
}

/// `muster gate`.
///
/// # Errors
/// A usage error.
pub fn gate(args: GateArgs, environment: &Environment, here: &Path) -> Result<GateRequest, CliError> {
    let remember = match (args.no_remember, args.remember) {
        (true, _) => None,
        (false, Some(folder)) => Some(here.join(folder)),
        (false, None) => default_remember(environment),
    };
    let then = match (args.hold, args.command) {
        (true, _) => Then::Hold,
        (false, command) if command.is_empty() => Then::Report,
        (false, command) => Then::Start(command),
    };
    Ok(GateRequest {
        model: model(&args.model, here)?,
        revision: args.revision,
        manifest_id: args.manifest_id,
        full: args.full,
        wait: args.wait,
        stall: args.stall,
        explain: args.explain,
        verdict: args.verdict.map(|file| here.join(file)),
        remember,
        structure: args.structure,
        then,
    })
}

/// MODEL, as far as it can be told without looking at the disk.
///
/// # Errors
/// A usage error for an `hf://` text that names no repository.
pub fn model(text: &str, here: &Path) -> Result<ModelRef, CliError> {
    if text.is_empty() {
        return Err(CliError::usage("MODEL is empty").hint("muster list shows the names on the volume"));
    }
    if text.starts_with(['/', '.']) {
        return Ok(ModelRef::Path(absolute(here, Path::new(text))));
    }
    if text.starts_with("hf://") || text.contains('@') {
        let RepoText { repo, revision } = RepoText::parse(text, None)?;
        return Ok(ModelRef::Repo(repo, revision));
    }
    Ok(ModelRef::Text(text.to_owned()))
}

/// `muster daemon`: the settings with its flags over them.
///
/// # Errors
/// A usage error when the API would be open to everybody who reaches its address.
pub fn daemon(args: DaemonArgs, settings: Settings, here: &Path) -> Result<Settings, CliError> {
    let mut settings = transfer(args.transfer, settings, here);
    settings.limits.volume = settings.limits.volume.overridden("--volume-limit", args.volume_limit);
    let own = &mut settings.daemon;
    own.socket = own.socket.clone().overridden("--socket", args.socket.map(|path| Some(here.join(path))));
    own.api_group = own.api_group.clone().overridden("--api-group", args.api_group.map(Some));
    own.jobs = own.jobs.clone().overridden("--jobs", args.jobs);
    own.listen = own.listen.clone().overridden("--listen", args.listen.map(Some));
    let token_file = args.listen_token_file.map(|path| Some(here.join(path)));
    own.token_file = own.token_file.clone().overridden("--listen-token-file", token_file);
    if own.listen.value.is_some() && own.token_file.value.is_none() {
        return Err(CliError::usage(format!("the API would listen on {} without a token", own.listen))
            .hint("give the file with a bearer token by --listen-token-file, or use the unix socket alone"));
    }
    Ok(settings)
}

/// `muster limit`.
///
/// # Errors
/// A usage error.
pub fn limit(args: LimitArgs, here: &Path) -> Result<LimitRequest, CliError> {
    let (of, rate) = match args {
        LimitArgs { all: true, model: Some(rate), rate: None } => (None, Some(rate)),
        LimitArgs { all: true, model: None, rate: None } => {
            return Err(CliError::usage("--all needs a RATE: 200MB, none or auto"));
        }
        LimitArgs { all: true, .. } => return Err(CliError::usage("--all takes no MODEL")),
        LimitArgs { all: false, model, rate } => (model, rate),
    };
    let change = rate.map(|rate| Auto::<Limit>::parse(&rate)).transpose();
    let change = change.map_err(|error| CliError::usage(format!("RATE: {error}")))?.map(Auto::fixed);
    let scope = of.map_or(Ok(LimitScope::All), |text| model(&text, here).map(LimitScope::Model))?;
    Ok(LimitRequest { scope, change })
}

/// `muster mirror`.
///
/// # Errors
/// A usage error when other hosts could read without a token and nobody said that they may.
pub fn mirror(args: MirrorArgs, settings: &Settings, here: &Path) -> Result<MirrorRequest, CliError> {
    let listen = settings.mirror.listen.clone().overridden("--listen", args.listen);
    let token_file = args.token_file.map(|file| here.join(file));
    let access = match token_file.or_else(|| settings.mirror.token_file.value.clone()) {
        Some(file) if !args.public => MirrorAccess::Token(file),
        _ if args.public || listen.value.ip().is_loopback() => MirrorAccess::Everybody,
        _ => {
            return Err(CliError::usage(format!("other hosts could read from {listen}"))
                .hint("ask for a token by --token-file, or say --public if that is meant"));
        }
    };
    Ok(MirrorRequest { listen: listen.value, access })
}

/// `muster demo`.
#[must_use]
pub fn demo(args: DemoArgs, here: &Path) -> DemoRequest {
    DemoRequest {
        shard_bytes: args.shard_size.map_or(limits::DEMO_SHARD_BYTES, crate::config::Size::bytes),
        shards: args.shards.unwrap_or(limits::DEMO_SHARDS),
        keep: args.keep,
        dir: args.dir.map(|dir| here.join(dir)),
    }
}

fn transfer(args: TransferArgs, mut settings: Settings, here: &Path) -> Settings {
    let path = |path: Option<PathBuf>| path.map(|path| Some(here.join(path)));
    settings.endpoint = settings.endpoint.overridden("--endpoint", args.endpoint);
    settings.token_file = settings.token_file.overridden("--token-file", path(args.token_file));
    settings.connections = settings.connections.overridden("--connections", args.connections);
    settings.reserve = settings.reserve.overridden("--reserve", args.reserve);
    settings.readback = settings.readback.overridden("--readback", args.readback);
    settings.low_impact = settings.low_impact.overridden("--low-impact", args.low_impact.then_some(true));
    settings.keep_cached = settings.keep_cached.overridden("--keep-cached", args.keep_cached.then_some(true));
    settings.sign_key = settings.sign_key.overridden("--sign-key", path(args.sign_key));
    settings.state_dir = settings.state_dir.overridden("--state-dir", path(args.state_dir));
    settings
}

/// Whether whoever gave the command said it, too.
pub(super) const fn is_asked_for(origin: &SettingOrigin) -> bool {
    matches!(origin, SettingOrigin::Flag(_) | SettingOrigin::Env(_))
}

fn one_revision(in_repo: Option<Revision>, by_flag: Option<Revision>) -> Result<Revision, CliError> {
    match (in_repo, by_flag) {
        (Some(one), Some(other)) if one != other => {
            let message = format!("REPO says @{}, and --revision says {}", one.as_str(), other.as_str());
            Err(CliError::usage(message).hint("give the revision once"))
        }
        (Some(revision), _) | (None, Some(revision)) => Ok(revision),
        (None, None) => Revision::parse("main").map_err(|error| CliError::usage(error.to_string())),
    }
}

fn selection(files: &[String], include: Vec<Pattern>, exclude: Vec<Pattern>) -> Result<Selection, CliError> {
    if files.is_empty() {
        return Ok(Selection::new(include, exclude));
    }
    if !include.is_empty() {
        let message = "FILE and --include do not go together";
        return Err(CliError::usage(message).hint("give either names or globs"));
    }
    let named: Result<Vec<_>, _> = files.iter().map(|file| file_pattern(file)).collect();
    Ok(Selection::new(named?, exclude))
}

/// A FILE is a name and never a glob; one that ends in `/` is everything below that folder.
fn file_pattern(file: &str) -> Result<Pattern, CliError> {
    let path = RepoPath::parse(file.trim_end_matches('/'))
        .map_err(|error| CliError::usage(format!("FILE: {error}")).hint("give names as the repository lists them"))?;
    let exact = Pattern::exactly(&path);
    if !file.ends_with('/') {
        return Ok(exact);
    }
    Pattern::parse(&format!("{}/", exact.as_str())).map_err(|error| CliError::usage(format!("FILE: {error}")))
}

/// `--local-dir` is volume and name in one. A directory below the volume that is set anyway keeps
/// it, so that its owner does the work; otherwise the parent becomes the volume.
///
/// # Errors
/// A usage error for a directory that can be neither.
pub fn local_dir(directory: &Path, flag: &'static str, volume: &mut Setting<PathBuf>) -> Result<ModelName, CliError> {
    let refuse = |why: String| CliError::usage(format!("{flag} {}: {why}", directory.display()));
    let by_flag = matches!(volume.origin, SettingOrigin::Flag(_));
    if let Ok(below) = directory.strip_prefix(&volume.value) {
        let name = below.to_str().and_then(|name| ModelName::parse(name).ok());
        if let Some(name) = name {
            return Ok(name);
        }
    }
    if by_flag {
        return Err(refuse(format!("it is no directory below the volume {volume}")).hint("leave one of the two out"));
    }
    let (Some(parent), Some(last)) = (directory.parent(), directory.file_name().and_then(|name| name.to_str())) else {
        return Err(refuse("it has no name".to_owned()));
    };
    let name = ModelName::parse(last).map_err(|error| refuse(error.to_string()))?;
    *volume = Setting { value: parent.to_owned(), origin: SettingOrigin::Flag(flag) };
    Ok(name)
}

/// Absolute and without `.`, as the paths of the settings are.
pub(super) fn absolute(here: &Path, path: &Path) -> PathBuf {
    here.join(path).components().collect()
}

fn default_remember(environment: &Environment) -> Option<PathBuf> {
    let folder = |name| environment.text(name).ok().flatten().map(PathBuf::from).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    state.map(|state| state.join("muster/verified"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Verb, parse};

    fn pull_of(line: &str) -> Result<(PullRequest, Settings), CliError> {
        pull_on(line, Settings::default().anchored(Path::new("/here")))
    }

    fn pull_on(line: &str, settings: Settings) -> Result<(PullRequest, Settings), CliError> {
        let Cli { verb: Verb::Pull(args), .. } = parse(line.split(' '), &Environment::default()).unwrap() else {
            panic!("another verb")
        };
        pull(args, settings, Path::new("/here"))
    }

    #[test]
    fn a_plain_pull_takes_main_into_the_repositorys_own_name() {
        let (request, settings) = pull_of("muster pull nvidia/Kimi-K2.5-NVFP4").unwrap();
        assert_eq!(request.spec.name.as_str(), "nvidia/Kimi-K2.5-NVFP4");
        assert_eq!(request.spec.revision.as_str(), "main");
        assert!(request.spec.update && request.wait_for_owner && request.spec.selection.is_everything());
        assert_eq!(settings.volume.value, Path::new("/here/models"));
        assert_eq!(request.spec.connections, None);
    }

    #[test]
    fn flags_reach_spec_and_settings() {
        let line = "muster pull a/b@v1 --connections 8 --reserve 1GiB --no-update --to x --state-dir s --retry-for 5m";
        let (request, settings) = pull_of(line).unwrap();
        assert_eq!(request.spec.connections, Some(8));
        assert_eq!(request.spec.revision.as_str(), "v1");
        assert!(!request.spec.update);
        assert_eq!(settings.reserve.to_string(), "1073741824B (from --reserve)");
        assert_eq!(settings.state_dir.value.as_deref(), Some(Path::new("/here/s")));
        assert_eq!(settings.retry_for.value, Duration::from_secs(300));
    }

    #[test]
    fn files_are_names_and_folders_are_everything_below() {
        let (request, _) = pull_of("muster pull a/b what[1].json tokenizer/").unwrap();
        let selects = |path: &str| request.spec.selection.selects(&RepoPath::parse(path).unwrap());
        assert!(selects("what[1].json") && selects("tokenizer/a/b.json"));
        assert!(!selects("what1.json") && !selects("tokenizer") && !selects("other"));
        assert!(pull_of("muster pull a/b ../x").unwrap_err().message.starts_with("FILE"));
    }

    #[test]
    fn a_local_dir_is_volume_and_name() {
        let (request, settings) = pull_of("muster pull a/b --local-dir /data/kimi").unwrap();
        assert_eq!((request.spec.name.as_str(), settings.volume.value.as_path()), ("kimi", Path::new("/data")));
        let (request, settings) = pull_of("muster pull a/b --local-dir models/org/kimi").unwrap();
        assert_eq!(request.spec.name.as_str(), "org/kimi");
        assert_eq!(settings.volume.origin, SettingOrigin::Default, "below the volume that is set anyway");

        let mut settings = Settings::default();
        settings.volume = settings.volume.overridden("--volume", Some(PathBuf::from("/shared")));
        let error = pull_on("muster pull a/b --local-dir /data/kimi", settings).unwrap_err();
        assert!(error.message.contains("/shared (from --volume)"), "{}", error.message);
    }

    #[test]
    fn two_revisions_are_refused() {
        let error = pull_of("muster pull a/b@v1 --revision v2").unwrap_err();
        assert!(error.message.contains("--revision says v2"), "{}", error.message);
        assert!(pull_of("muster pull a/b@v1 --revision v1").is_ok());
    }

    #[test]
    fn a_model_is_a_path_a_repository_or_a_text() {
        let here = Path::new("/here");
        assert_eq!(model("./x", here).unwrap(), ModelRef::Path(PathBuf::from("/here/x")));
        assert_eq!(model("/x", here).unwrap(), ModelRef::Path(PathBuf::from("/x")));
        assert_eq!(model("org/x", here).unwrap(), ModelRef::Text("org/x".to_owned()));
        assert!(matches!(model("hf://org/x", here).unwrap(), ModelRef::Repo(_, None)));
        assert!(matches!(model("org/x@v1", here).unwrap(), ModelRef::Repo(_, Some(_))));
        assert!(model("", here).is_err());
    }

    #[test]
    fn nobody_serves_other_hosts_by_accident() {
        let args = |listen: &str, public| MirrorArgs { listen: listen.parse().ok(), token_file: None, public };
        let settings = Settings::default();
        let here = Path::new("/here");
        let error = mirror(args("0.0.0.0:1", false), &settings, here).unwrap_err();
        assert!(error.hint.unwrap().contains("--public"));
        assert_eq!(mirror(args("0.0.0.0:1", true), &settings, here).unwrap().access, MirrorAccess::Everybody);
        assert_eq!(mirror(args("[::1]:0", false), &settings, here).unwrap().access, MirrorAccess::Everybody);

        let mut settings = Settings::default();
        settings.daemon.listen = settings.daemon.listen.overridden("--listen", "127.0.0.1:1".parse().ok().map(Some));
        let Cli { verb: Verb::Daemon(args), .. } = parse(["muster", "daemon"], &Environment::default()).unwrap() else {
            panic!("another verb")
        };
        assert!(daemon(args, settings, here).unwrap_err().message.contains("127.0.0.1:1 (from --listen)"));
    }

    #[test]
    fn the_gate_remembers_outside_the_model() {
        let gate_of = |line: &str, variables: &[(&str, &str)]| {
            let Cli { verb: Verb::Gate(args), .. } = parse(line.split(' '), &Environment::default()).unwrap() else {
                panic!("another verb")
            };
            gate(args, &Environment::of(variables), Path::new("/here")).unwrap()
        };
        let home = [("HOME", "/home/x")];
        let default = gate_of("muster gate m", &home);
        assert_eq!(default.remember.as_deref(), Some(Path::new("/home/x/.local/state/muster/verified")));
        assert_eq!(default.then, Then::Report);
        assert_eq!(gate_of("muster gate m", &[]).remember, None);
        assert_eq!(gate_of("muster gate m --no-remember", &home).remember, None);
        assert_eq!(gate_of("muster gate m -- a b", &home).then, Then::Start(vec!["a".into(), "b".into()]));
    }
}
