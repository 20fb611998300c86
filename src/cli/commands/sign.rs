//! `muster sign`: signs a model whose gate is open.

use serde_json::json;

use crate::cli::args::SignArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::hashing::with_progress;
use crate::cli::model_ref::{Located, Model, command_on, locate, subject};
use crate::cli::ui::Ui;
use crate::cli::{Context, owning, resolve};
use crate::config::Settings;
use crate::core::code::Code;
use crate::core::manifest::Manifest;
use crate::core::oms::key::PrivateKey;
use crate::core::repo_path::RepoPath;
use crate::core::units;
use crate::gate::check::{Answer, Gate, Question};
use crate::gate::hints::hints;
use crate::gate::report::{self, Words};
use crate::gate::sign::{SignError, Signed, sign};
use crate::volume::ModelDir;

/// What a closed gate means here.
const WORDS: Words = Words { good: "verified", bad: "not signed" };

/// Signs a model.
///
/// # Errors
/// What the user is told.
pub fn run(args: SignArgs, mut context: Context) -> Result<Exit, Failure> {
    let key = args.key.map(|file| Some(context.here.join(file)));
    context.settings.sign_key = context.settings.sign_key.overridden("--key", key);
    let Some(key) = owning::signer(&context.settings)? else {
        let hint = "muster keygen makes one; sign_key in muster.toml names one for good";
        return Err(CliError::usage("--key FILE is needed: the private key that signs").hint(hint).into());
    };
    let reference = resolve::model(&args.model, &context.here)?;
    let model = match locate(&reference, &context.settings.volume, &context.here)? {
        Located::Here(model) => model,
        Located::Absent(_, error) => return Err(error.into()),
    };
    let Context { settings, ui, .. } = &context;
    let (signed, answer) = sign_model(&model, &key, settings, ui)?;
    tell(&model, &signed, &answer, settings, ui)
}

/// Signs a model if its gate is open. The answer holds the lock: as long as it lives, no update comes.
///
/// # Errors
/// A closed gate, or a signature that cannot be made.
pub(super) fn sign_model(
    model: &Model,
    key: &PrivateKey,
    settings: &Settings,
    ui: &Ui,
) -> Result<(Signed, Answer), CliError> {
    let question = Question { structure: settings.gate.structure.value, ..Question::default() };
    let mut gate = Gate::new(&model.directory, question);
    let why = "changed on disk since it was verified";
    let answer = with_progress(ui, &model.shown(), why, |listener| gate.check(listener));
    if let Some(code) = answer.decision.code() {
        return Err(refused(model, &answer, code, settings));
    }
    let Some(manifest) = &answer.manifest else { return Err(CliError::usage("the model has no manifest")) };
    let dir = ModelDir::open(&model.directory).map_err(|error| CliError::from(&error))?;
    let still = || dir.manifest().is_ok_and(|now| now.is_some_and(|now| now.id() == manifest.id()));
    let signed = sign(&dir, manifest, key, &still).map_err(|error| told(&error, model, settings))?;
    for extra in &signed.extras {
        ui.warn(&format!("{extra}: who checks the signature refuses the directory while it is there"));
    }
    Ok((signed, answer))
}

/// Nobody signs what is not known to be right.
fn refused(model: &Model, answer: &Answer, code: Code, settings: &Settings) -> CliError {
    let subject = subject(model, answer.manifest.as_ref().map(Manifest::source), settings, None);
    let error = CliError::new(code, report::verdict(answer, code.exit(), WORDS));
    match hints(answer, &subject).into_iter().next() {
        Some(hint) => error.hint(hint),
        None => error,
    }
}

fn tell(model: &Model, signed: &Signed, answer: &Answer, settings: &Settings, ui: &Ui) -> Result<Exit, Failure> {
    if ui.is_json() {
        ui.result_json(&json!({
            "schema": 1,
            "id": model.id,
            "directory": answer.directory,
            "signature": signed.path,
            "key": signed.key,
            "files": signed.files,
            "edited": answer.edits.files().iter().map(|edit| &edit.path).collect::<Vec<_>>(),
        }))?;
    } else {
        ui.result(&line(signed, answer))?;
    }
    let gate = command_on("gate", model, settings);
    ui.note(&format!("hint: {gate} --require-signature --key PUBLIC_KEY opens for nothing else"));
    Ok(Exit::Success)
}

fn line(signed: &Signed, answer: &Answer) -> String {
    let (files, key) = (units::count(signed.files as u64, "file"), signed.key.short());
    let was = if signed.is_new { "signed" } else { "signed before, with the same signature" };
    let edits = crate::core::local_edits::in_words(answer.edits.files()).map(|words| format!(", {words}"));
    format!("{was}: {files} by key {key}…{}: {}", edits.unwrap_or_default(), signed.path.display())
}

fn told(error: &SignError, model: &Model, settings: &Settings) -> CliError {
    let hint = match error {
        SignError::File { path, .. } => {
            let path: &RepoPath = path;
            format!("{} tells more of {path}", command_on("verify", model, settings))
        }
        SignError::Changed => "try again when nobody changes it any more".to_owned(),
        SignError::Statement(_) => "a signature speaks of files, but for .git* at the root".to_owned(),
        SignError::Volume(source) => match source.hint() {
            Some(hint) => hint.to_owned(),
            None => return CliError::from_error(error.code(), error),
        },
    };
    CliError::told(error.code(), error, Some(hint))
}
