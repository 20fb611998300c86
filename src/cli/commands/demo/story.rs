//! The nine steps of the demo, each checked: a surprise ends the story and names the step.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use sha1::Digest as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Stop;
use super::child::{Ended, Program, Said};
use super::place::Place;
use crate::cli::exit::{CliError, Failure};
use crate::cli::resolve::DemoRequest;
use crate::cli::ui::Ui;
use crate::clock;
use crate::config::Environment;
use crate::core::code::Code;
use crate::core::endpoint::Endpoint;
use crate::core::manifest::{FileEntry, Manifest, Source};
use crate::core::repo::{CommitId, Repo, RepoId, RepoKind, Revision};
use crate::core::repo_path::RepoPath;
use crate::core::selection::Selection;
use crate::core::shards::is_shard;
use crate::core::units;
use crate::demo::make::{self, MakeError};
use crate::demo::shape::DemoFile;
use crate::mirror::{Mirror, MirrorAuth, Observer};
use crate::parallel::cores;
use crate::volume::Volume;

const REPO: &str = "demo/kimi-shaped";
/// What the stand-in for a launcher says.
const LAUNCHER: &str = "the launcher starts with";
/// Bytes of a repaired shard that may travel, per byte of it: a retry is no surprise.
const REPAIR_FACTOR: u64 = 2;

/// Bytes sent by the mirror, for each file.
type Traffic = Arc<Mutex<BTreeMap<RepoPath, u64>>>;

/// The story, and what came of it so far.
#[derive(Debug)]
pub(super) struct Story<'a> {
    ui: &'a Ui,
    place: &'a Place,
    program: Program,
    seed: String,
    threads: usize,
    stop: Stop,
    traffic: Traffic,
    told: Told,
}

/// What is told at the end.
#[derive(Debug, Default, Serialize)]
struct Told {
    schema: u32,
    repo: &'static str,
    files: usize,
    shards: usize,
    bytes: u64,
    damaged: Option<RepoPath>,
    steps: Vec<Chapter>,
    kept: Option<PathBuf>,
}

/// One step, done.
#[derive(Debug, Serialize)]
struct Chapter {
    step: &'static str,
    result: String,
    exit_code: Option<i32>,
    /// Sent by the mirror.
    bytes_travelled: u64,
    seconds: f64,
}

/// A command line and what is expected of it.
struct Ask<'a> {
    step: &'static str,
    arguments: Vec<String>,
    /// The exit code that is no surprise.
    expected: u8,
    /// Whether people see its progress.
    watched: bool,
    /// Looks at the answer; what is told of it, or what is wrong with it.
    judge: &'a dyn Fn(&Answer) -> Result<String, String>,
}

/// What came of a command line.
struct Answer {
    said: Said,
    travelled: BTreeMap<RepoPath, u64>,
    seconds: f64,
}

impl<'a> Story<'a> {
    pub(super) fn new(
        request: &DemoRequest,
        place: &'a Place,
        ui: &'a Ui,
        environment: &Environment,
        stop: Stop,
    ) -> Result<Self, CliError> {
        let shown = !ui.is_json() && !ui.is_quiet();
        let program = Program::this(place, environment, shown)
            .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot find this program"))?;
        let kept = request.keep.then(|| place.path().to_path_buf());
        Ok(Self {
            ui,
            place,
            program,
            seed: format!("{} shards of {} bytes", request.shards, request.shard_bytes),
            threads: cores(),
            stop,
            traffic: Traffic::default(),
            told: Told { schema: 1, repo: REPO, kept, ..Told::default() },
        })
    }

    /// Tells it.
    ///
    /// # Errors
    /// The step that went otherwise than it should.
    pub(super) async fn tell(mut self, files: Vec<DemoFile>) -> Result<(), Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| surprise("serve", error.to_string()))?;
        let address = listener.local_addr().map_err(|error| surprise("serve", error.to_string()))?;
        let endpoint = format!("http://{address}");
        let (volume, manifest) = self.make(files, &endpoint).await?;
        let serving_ends = CancellationToken::new();
        let mut serving = JoinSet::new();
        let mirror = Mirror::of(volume, MirrorAuth::Everybody).observed_by(self.observer());
        serving.spawn(mirror.serve(listener, serving_ends.clone().cancelled_owned()));
        let told = self.steps(&manifest, &endpoint).await;
        serving_ends.cancel();
        while serving.join_next().await.is_some() {}
        told?;
        self.sum_up()
    }

    async fn make(&mut self, files: Vec<DemoFile>, endpoint: &str) -> Result<(Volume, Manifest), Failure> {
        self.say("A repository of the shape of Kimi-K2.5-NVFP4")?;
        let since = clock::instant();
        let source = self.source(endpoint)?;
        let (path, threads, stop) = (self.place.join("origin"), self.threads, Arc::clone(&self.stop.flag));
        let mut making = JoinSet::new();
        making.spawn_blocking(move || {
            let volume = Volume::create(&path)?;
            let manifest = make::make(&volume, source, &files, threads, &stop)?;
            Ok::<_, MakeError>((volume, manifest))
        });
        let made = making.join_next().await.and_then(Result::ok);
        let (volume, manifest) = match made {
            Some(Ok(made)) => made,
            Some(Err(MakeError::Volume(error))) => return Err(CliError::from(&error).into()),
            Some(Err(error)) => return Err(CliError::from_error(Code::Internal, &error).into()),
            None => return Err(surprise("make", "it broke off").into()),
        };
        self.told.files = manifest.files().len();
        self.told.shards = manifest.shard_count();
        self.told.bytes = manifest.total_bytes();
        let result =
            format!("{} files, {} shards, {}", self.told.files, self.told.shards, units::bytes(self.told.bytes));
        self.say(&format!("  {result}; served as a Hub on {endpoint}"))?;
        self.done(Chapter { step: "make", result, exit_code: None, bytes_travelled: 0, seconds: seconds(since) });
        Ok((volume, manifest))
    }

    async fn steps(&mut self, manifest: &Manifest, endpoint: &str) -> Result<(), Failure> {
        let files = manifest.files().len();
        let volume = self.place.join("shared").display().to_string();
        let on = |words: &[&str]| -> Vec<String> {
            words.iter().chain(&["--volume", &volume]).map(ToString::to_string).collect()
        };
        let pull = on(&["pull", REPO, "--endpoint", endpoint]);
        let mut gate = on(&["gate", REPO]);
        gate.extend(["--", "echo", LAUNCHER, "{}"].map(String::from));

        let pulled = |answer: &Answer| match answer.travelled.len() {
            count if count >= files - manifest.files().iter().filter(|file| file.size == 0).count() => {
                Ok(travelled(answer))
            }
            count => Err(format!("only {count} of {files} files travelled")),
        };
        let ask = Ask { step: "pull", arguments: pull.clone(), expected: 0, watched: true, judge: &pulled };
        self.ask("Pull it onto a shared volume: every byte is hashed on its way to the disk", ask).await?;

        let ready = |answer: &Answer| {
            if answer.said.split_whitespace().any(|word| word == "ready") {
                Ok("ready".to_owned())
            } else {
                Err("it is not ready".to_owned())
            }
        };
        let ask = Ask { step: "status", arguments: on(&["status"]), expected: 0, watched: false, judge: &ready };
        self.ask("Where does it stand?", ask).await?;

        let ask = Ask { step: "gate", arguments: gate.clone(), expected: 0, watched: false, judge: &launched };
        self.ask("The gate opens, and the launcher starts", ask).await?;

        let victim = self.damage(manifest)?;
        let name = victim.path.as_str();
        let closed = |answer: &Answer| match (answer.said.contains(LAUNCHER), answer.said.contains(name)) {
            (true, _) => Err("the launcher was started".to_owned()),
            (_, false) => Err(format!("{name} is not named")),
            _ => Ok(format!("closed, {name} named")),
        };
        let expected = Code::Corrupt.exit();
        let ask = Ask { step: "gate after damage", arguments: gate.clone(), expected, watched: false, judge: &closed };
        self.ask("The gate closes, and the launcher does not start", ask).await?;

        let repaired = |answer: &Answer| {
            let sent = answer.travelled.get(&victim.path).copied().unwrap_or_default();
            match answer.travelled.len() {
                1 if (1..=victim.size * REPAIR_FACTOR).contains(&sent) => Ok(travelled(answer)),
                count => Err(format!("{count} files travelled, {} of {name}", units::bytes(sent))),
            }
        };
        let ask = Ask { step: "repair", arguments: pull, expected: 0, watched: true, judge: &repaired };
        self.ask("Pull again: only what is damaged travels", ask).await?;

        let ask = Ask { step: "gate after repair", arguments: gate, expected: 0, watched: false, judge: &launched };
        self.ask("The gate opens again", ask).await
    }

    /// Runs a command line, shows it and its answer, and judges it.
    async fn ask(&mut self, title: &str, ask: Ask<'_>) -> Result<(), Failure> {
        self.say(&format!("\n{title}\n  $ muster {}", shown(&ask.arguments)))?;
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let since = clock::instant();
        let ended = self.program.run(&ask.arguments, ask.watched, &self.stop).await;
        let (status, said) = match ended.map_err(|error| surprise(ask.step, error.to_string()))? {
            Ended::By(status, said) => (status, said),
            Ended::Stopped => return Err(CliError::new(Code::Interrupted, "the demo was stopped").into()),
        };
        let travelled = self.traffic.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let answer = Answer { said, travelled, seconds: seconds(since) };
        self.say(&indented(&answer.said))?;
        let code = status.code();
        if code != Some(i32::from(ask.expected)) {
            let found = code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
            return Err(surprise(ask.step, format!("exit code {} expected, {found} found", ask.expected)).into());
        }
        let result = (ask.judge)(&answer).map_err(|wrong| surprise(ask.step, wrong))?;
        self.say(&format!("  → exit code {}; {result}; {:.1} s", ask.expected, answer.seconds))?;
        let bytes_travelled = answer.travelled.values().sum();
        self.done(Chapter { step: ask.step, result, exit_code: code, bytes_travelled, seconds: answer.seconds });
        Ok(())
    }

    /// Damages the shard in the middle.
    fn damage(&mut self, manifest: &Manifest) -> Result<FileEntry, Failure> {
        let shards: Vec<_> = manifest.files().iter().filter(|file| is_shard(&file.path)).collect();
        let victim = shards.get(shards.len() / 2).ok_or_else(|| surprise("damage", "there is no shard"))?;
        let file = self.place.join("shared").join(REPO).join(victim.path.as_str());
        let at = Place::flip_a_bit(&file).map_err(|error| surprise("damage", error.to_string()))?;
        self.say(&format!("\nOne bit flips: {} at byte {at}", victim.path))?;
        self.told.damaged = Some(victim.path.clone());
        Ok((*victim).clone())
    }

    fn source(&self, endpoint: &str) -> Result<Source, CliError> {
        let defect = |error: &(dyn std::error::Error + 'static)| CliError::from_error(Code::Internal, error);
        Ok(Source {
            repo: Repo { kind: RepoKind::Model, id: RepoId::parse(REPO).map_err(|error| defect(&error))? },
            endpoint: Endpoint::parse(endpoint).map_err(|error| defect(&error))?,
            revision: Revision::default(),
            commit: CommitId::from_bytes(sha1::Sha1::digest(&self.seed).into()),
            selection: Selection::default(),
        })
    }

    fn observer(&self) -> Observer {
        let traffic = Arc::clone(&self.traffic);
        Arc::new(move |path, bytes| {
            let mut traffic = traffic.lock().unwrap_or_else(PoisonError::into_inner);
            *traffic.entry(path.clone()).or_default() += bytes;
        })
    }

    fn sum_up(&self) -> Result<(), Failure> {
        if self.ui.is_json() {
            return self.ui.result_json(&self.told);
        }
        let mut table = String::from("\n");
        for Chapter { step, result, exit_code, seconds, .. } in &self.told.steps {
            let code = exit_code.map_or(String::new(), |code| format!("exit {code}"));
            let _ = writeln!(table, "  {step:<18}  {code:<7}  {seconds:>5.1} s  {result}");
        }
        self.ui.result(table.trim_end())
    }

    /// The story is the result; beside a JSON result it goes to stderr.
    fn say(&self, text: &str) -> Result<(), Failure> {
        match text {
            "" => Ok(()),
            text if self.ui.is_json() => {
                self.ui.note(text);
                Ok(())
            }
            _ if self.ui.is_quiet() => Ok(()),
            text => self.ui.result(text),
        }
    }

    fn done(&mut self, step: Chapter) {
        self.told.steps.push(step);
    }
}

fn launched(answer: &Answer) -> Result<String, String> {
    if answer.said.contains(LAUNCHER) { Ok("open".to_owned()) } else { Err("the launcher did not start".to_owned()) }
}

fn travelled(answer: &Answer) -> String {
    let count = answer.travelled.len();
    let bytes = units::bytes(answer.travelled.values().sum());
    format!("{bytes} travelled, {count} file{}", if count == 1 { "" } else { "s" })
}

fn surprise(step: &'static str, what: impl Into<String>) -> CliError {
    CliError::new(Code::Internal, format!("the demo did not go as it should at the step `{step}`: {}", what.into()))
        .hint("run it again with --keep to look at what is left")
}

/// A command line as it would be typed.
fn shown(arguments: &[String]) -> String {
    let plain = |word: &String| word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_./:{}=".contains(&b));
    let quoted = arguments.iter().map(|word| if plain(word) { word.clone() } else { format!("'{word}'") });
    quoted.collect::<Vec<_>>().join(" ")
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn seconds(since: Instant) -> f64 {
    clock::instant().saturating_duration_since(since).as_secs_f64()
}
