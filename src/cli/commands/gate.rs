//! `muster gate`: decides whether a launcher may start, and starts it.
//!
//! The verdict is the result: on stdout, but on stderr when a command is about to have stdout.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;
use tracing::debug;

use crate::api::Client;
use crate::api::dto::SeenVerdict;
use crate::cli::args::{GateArgs, Wait};
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::hashing::with_progress;
use crate::cli::model_ref::{Located, Model, locate, subject};
use crate::cli::resolve::{self, GateRequest, Then};
use crate::cli::signals::Signals;
use crate::cli::{Context, owning, runtime, ui::Ui};
use crate::clock;
use crate::config::{self, Settings};
use crate::core::code::Code;
use crate::core::manifest::Manifest;
use crate::core::policy::Policy;
use crate::gate::check::{Answer, Gate, Question};
use crate::gate::exec::hand_over;
use crate::gate::explain;
use crate::gate::hints::hints;
use crate::gate::outlook::Outlook;
use crate::gate::report::{self, Report, Subject};
use crate::gate::trust::Demand;
use crate::gate::wait::{Patience, Step, Waiting};
use crate::limits;
use crate::volume::Volume;
use crate::volume::place::write_result;

/// How long the owner of the volume has to hear a verdict.
const HEARD_WITHIN: Duration = Duration::from_millis(500);

/// Decides whether a launcher may start.
///
/// # Errors
/// What the user is told.
pub fn run(mut args: GateArgs, context: Context) -> Result<Exit, Failure> {
    let Context { mut settings, ui, environment, here, .. } = context;
    let policy = args.policy.take().map(|file| Some(here.join(file)));
    settings.gate.policy = settings.gate.policy.overridden("--policy", policy);
    settings.gate.require_signature =
        settings.gate.require_signature.overridden("--require-signature", args.require_signature.then_some(true));
    settings.gate.key = settings.gate.key.overridden("--key", args.key.take().map(|file| Some(here.join(file))));
    settings.gate.trust_receipt_uid =
        settings.gate.trust_receipt_uid.overridden("--trust-receipt-uid", args.trust_receipt_uid.take());
    let demand = owning::demand(&settings.gate)?;
    let request = resolve::gate(args, &environment, &here)?;
    // Before anything is waited for: a policy that cannot be read will not become better.
    let policy = Arc::new(config::policy(&settings.gate)?);
    let mut looker =
        Looker { request: &request, settings: &settings, policy: &policy, demand, ui: &ui, here: &here, gate: None };
    let (look, code) = match request.wait {
        None => {
            let look = looker.look()?;
            let code = look.answer.decision.code();
            (look, code)
        }
        Some(wait) => looker.wait(wait)?,
    };
    let exit = code.map_or(Exit::Success, Exit::Code);
    tell(&look, &request, &policy, &ui, exit)?;
    let_owner_know(&look, &settings, exit);
    if exit != Exit::Success {
        return Ok(exit);
    }
    match &request.then {
        Then::Report => Ok(exit),
        Then::Hold => hold(look.answer),
        Then::Start(command) => Ok(start(command, &look.answer, &ui)),
    }
}

/// One look, and what it was at.
struct Look {
    model: Model,
    answer: Answer,
    subject: Subject,
}

struct Looker<'a> {
    request: &'a GateRequest,
    settings: &'a Settings,
    policy: &'a Arc<Policy>,
    demand: Option<Arc<Demand>>,
    ui: &'a Ui,
    here: &'a Path,
    /// Once the model is there, it stays the same one.
    gate: Option<(Model, Gate)>,
}

impl Looker<'_> {
    fn look(&mut self) -> Result<Look, CliError> {
        let Self { settings, ui, here, .. } = *self;
        if self.gate.is_none() {
            match locate(&self.request.model, &settings.volume, here)? {
                Located::Here(model) => {
                    let gate = Gate::new(&model.directory, self.question(&model)?);
                    self.gate = Some((model, gate));
                }
                Located::Absent(model, error) => {
                    let answer = Answer::unknown(&model.directory, error.message.clone());
                    let subject = subject(&model, None, settings, error.hint);
                    return Ok(Look { model, answer, subject });
                }
            }
        }
        let Some((model, gate)) = &mut self.gate else {
            return Err(CliError::new(Code::Internal, "the gate has no model"));
        };
        let why = match (self.request.full, &self.demand) {
            (true, _) => "everything is asked for",
            (false, Some(_)) => "a signature is required",
            (false, None) => "changed on disk since it was verified",
        };
        let answer = with_progress(ui, &model.shown(), why, |listener| gate.check(listener));
        let subject = subject(model, answer.manifest.as_ref().map(Manifest::source), settings, None);
        Ok(Look { model: model.clone(), answer, subject })
    }

    fn question(&self, model: &Model) -> Result<Question, CliError> {
        let GateRequest { revision, manifest_id, full, remember, wait, .. } = self.request;
        if let (Some(flag), Some(text)) = (revision, &model.revision)
            && flag != text
        {
            return Err(CliError::usage(format!("MODEL says @{text}, and --revision says {flag}")));
        }
        Ok(Question {
            full: *full,
            manifest_id: *manifest_id,
            revision: revision.clone().or_else(|| model.revision.clone()),
            policy: (!self.policy.is_empty()).then(|| Arc::clone(self.policy)),
            remember: remember.clone(),
            lazy: wait.is_some(),
            structure: self.request.structure.unwrap_or(self.settings.gate.structure.value),
            signature: self.demand.clone(),
        })
    }

    /// Looks until the gate is open or waiting is over.
    fn wait(&mut self, wait: Wait) -> Result<(Look, Option<Code>), CliError> {
        let limit = match wait {
            Wait::Forever => None,
            Wait::AtMost(limit) => Some(limit),
        };
        let patience = Patience { limit, stall: self.request.stall.unwrap_or(limits::GATE_STALL) };
        let mut waiting = Waiting::new(patience, clock::since_boot());
        loop {
            let mut look = self.look()?;
            let outlook = match look.answer.decision.code() {
                None => Outlook::default(),
                Some(_) => Outlook::of(&self.settings.volume.value, look.model.id.as_ref(), &look.answer.directory),
            };
            if let Some((code, message)) = outlook.failed {
                look.answer.decision = look.answer.decision.after_failed_pull(code, message);
            }
            let now = clock::since_boot();
            match waiting.step(now, look.answer.decision.code(), outlook.progress) {
                Step::Open => return Ok((look, None)),
                Step::End(code) => return Ok((look, Some(code))),
                Step::Again { pause, say } => {
                    if say {
                        self.ui.note(&waiting_line(&look, waiting.still_for(now)));
                    }
                    drop(look);
                    std::thread::sleep(pause);
                }
            }
        }
    }
}

fn waiting_line(look: &Look, still: Duration) -> String {
    let reasons = look.answer.decision.reasons();
    let first = reasons.first().map(ToString::to_string).unwrap_or_default();
    let more = reasons.len().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" and {more} more") };
    format!("waiting for {}: {first}{more}; last movement {} s ago", look.model.shown(), still.as_secs())
}

fn tell(look: &Look, request: &GateRequest, policy: &Policy, ui: &Ui, exit: Exit) -> Result<(), Failure> {
    let mut report = Report::new(&look.answer, &look.subject, exit.number());
    if request.explain {
        report = report.explained(&look.answer, policy, &look.subject);
    }
    if let Some(file) = &request.verdict {
        write_result(file, &report.to_json()).map_err(|error| CliError::from_error(error.code(), &error))?;
    }
    let mut line = report::verdict(&look.answer, exit.number(), report::GATE);
    if request.explain {
        line = explain::lines(policy, &look.answer.verdicts).iter().fold(line, |text, rule| text + "\n  " + rule);
    }
    let command_follows = exit == Exit::Success && matches!(request.then, Then::Start(_));
    if ui.is_json() {
        ui.result_bytes(&report.to_json())?;
    } else if command_follows {
        ui.note(&line);
    } else {
        ui.result(&line)?;
    }
    for warning in report::warnings(&look.answer) {
        ui.warn(&warning);
    }
    if let Some(note) = report::left_out(&look.answer) {
        ui.note(&note);
    }
    for hint in hints(&look.answer, &look.subject) {
        ui.note(&format!("hint: {hint}"));
    }
    Ok(())
}

/// Tells the verdict to the owner of the volume, for the model's history, if one listens on this
/// host. Nothing depends on it: who does not hear it in a moment does not get it.
fn let_owner_know(look: &Look, settings: &Settings, exit: Exit) {
    let Some(name) = look.model.id.as_ref() else { return };
    let Ok(volume) = Volume::open(&settings.volume.value) else { return };
    // Most of the time nobody listens, and then nothing is spent on it.
    if volume.owner().ok().flatten().is_none_or(|owner| owner.is_dead()) {
        return;
    }
    let line = report::verdict(&look.answer, exit.number(), report::GATE);
    let verdict = SeenVerdict { open: exit == Exit::Success, line };
    let told = async {
        match Client::find(&volume).await {
            Ok(Some(owner)) => owner.saw(name, &verdict).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        }
    };
    let heard = runtime::run(async { Ok(timeout(HEARD_WITHIN, told).await) });
    if let Ok(Ok(Err(error))) = heard {
        debug!(%error, "the owner of the volume did not hear the verdict");
    }
}

fn start(command: &[OsString], answer: &Answer, ui: &Ui) -> Exit {
    let commit = answer.manifest.as_ref().map(|manifest| manifest.source().commit);
    let Some(commit) = commit else { return Exit::Code(Code::Internal) };
    let error = hand_over(command, &answer.directory, commit, answer.lock.as_ref());
    ui.error(&CliError::from_error(Code::Internal, &error));
    Exit::NotStarted(error.exit())
}

/// Keeps the lock until a signal says that it is enough, which is what was asked for.
fn hold(answer: Answer) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot wait for a signal"))?;
    runtime.block_on(async {
        Signals::listen()?.next().await;
        Ok::<_, CliError>(())
    })?;
    // Only now may the lock go.
    drop(answer);
    Ok(Exit::Success)
}
