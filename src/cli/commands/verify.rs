//! `muster verify`: hashes a model again and renews its receipt.

use std::path::Path;

use crate::cli::args::VerifyArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::hashing::with_progress;
use crate::cli::model_ref::{Located, Model, locate, subject};
use crate::cli::ui::Ui;
use crate::cli::{Context, resolve};
use crate::core::manifest::Manifest;
use crate::daemon::supervisor::yield_to_others;
use crate::gate::check::Answer;
use crate::gate::hints::hints;
use crate::gate::report::{self, Subject, VerifyReport};
use crate::gate::verify::{OpenQuarantine, ReceiptFate, Verified, verify};
use crate::volume::quarantine::Quarantine;
use crate::volume::{ModelDir, Volume, VolumeError};

/// Hashes a model again.
///
/// # Errors
/// What the user is told.
pub fn run(args: VerifyArgs, context: Context) -> Result<Exit, Failure> {
    let VerifyArgs { model, quarantine, low_impact, structure } = args;
    let Context { settings, ui, here, .. } = context;
    if low_impact || settings.low_impact.value {
        // The threads that hash are started by this one. Their pages are given back in any case.
        yield_to_others();
    }
    let strictness = structure.unwrap_or(settings.gate.structure.value);
    let reference = resolve::model(&model, &here)?;
    let (model, verified, hint) = match locate(&reference, &settings.volume, &here)? {
        Located::Here(model) => {
            let open = |dir: &ModelDir| quarantine_for(&model, &settings.volume.value, dir);
            let quarantine: Option<OpenQuarantine<'_>> = if quarantine { Some(&open) } else { None };
            let verified = with_progress(&ui, &model.shown(), "everything is asked for", |listener| {
                verify(model.directory.clone(), quarantine, strictness, listener)
            });
            (model, verified, None)
        }
        Located::Absent(model, CliError { message, hint, .. }) => {
            let answer = Answer::unknown(&model.directory, message);
            (model, Verified { answer, receipt: ReceiptFate::Kept, quarantined: vec![] }, hint)
        }
    };
    let source = verified.answer.manifest.as_ref().map(Manifest::source);
    let subject = subject(&model, source, &settings, hint);
    let exit = verified.answer.decision.code().map_or(Exit::Success, Exit::Code);
    tell(&verified, &subject, &ui, exit)?;
    Ok(exit)
}

fn tell(verified: &Verified, subject: &Subject, ui: &Ui, exit: Exit) -> Result<(), Failure> {
    if ui.is_json() {
        ui.result_json(&VerifyReport::new(verified, subject, exit.number()))?;
    } else {
        ui.result(&report::verdict(&verified.answer, exit.number(), report::VERIFY))?;
    }
    match verified.receipt {
        ReceiptFate::Renewed => ui.note("the receipt is renewed"),
        ReceiptFate::SetAside => ui.note("the receipt is set aside: the gate stays closed until a pull has ended"),
        ReceiptFate::Kept => {}
    }
    for (file, place) in &verified.quarantined {
        ui.note(&format!("{file} is now {}", place.display()));
    }
    for warning in report::warnings(&verified.answer) {
        ui.warn(&warning);
    }
    if let Some(note) = report::left_out(&verified.answer) {
        ui.note(&note);
    }
    for hint in hints(&verified.answer, subject) {
        ui.note(&format!("hint: {hint}"));
    }
    Ok(())
}

/// The volume's quarantine; a model on no volume keeps its own.
fn quarantine_for(model: &Model, volume: &Path, dir: &ModelDir) -> Result<Quarantine, VolumeError> {
    match &model.id {
        Some(name) => Ok(Volume::open(volume)?.quarantine()?.of_model(name)),
        None => dir.own_quarantine(),
    }
}
