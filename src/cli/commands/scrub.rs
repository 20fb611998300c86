//! `muster scrub`: reads models again, or a part of them, and names what is wrong.

use std::path::Path;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::cli::args::ScrubArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::hashing::with_progress;
use crate::cli::model_ref::{Model, command_on, locate};
use crate::cli::ui::Ui;
use crate::cli::{Context, facts, resolve};
use crate::clock;
use crate::config::{SettingOrigin, Settings};
use crate::core::code::Code;
use crate::core::limit::{Limit, Rate};
use crate::core::model_name::ModelName;
use crate::core::repo_path::RepoPath;
use crate::core::scrubbed::{Finding, Totals};
use crate::core::status::FindingStatus;
use crate::core::subset::Subset;
use crate::core::units;
use crate::daemon::supervisor::yield_to_others;
use crate::fetch::Valve;
use crate::gate::check::Notice;
use crate::gate::scrub::{Outcome, Scrub, reins, set_aside};
use crate::gate::verify::ReceiptFate;

/// Version of the JSON form.
const SCHEMA: u32 = 1;
/// Most findings and reasons that people are shown of one model.
const SHOWN_MAX: usize = 10;

/// Reads models again.
///
/// # Errors
/// What the user is told.
pub fn run(args: ScrubArgs, context: Context) -> Result<Exit, Failure> {
    let Context { settings, ui, here, .. } = context;
    let models = models(&args, &settings, &here)?;
    if args.low_impact || settings.low_impact.value {
        // The threads that read are started by this one.
        yield_to_others();
    }
    let subset = args.subset.unwrap_or_default();
    let rate = limit(&args, &settings).rate();
    let outcomes: Vec<_> = models
        .into_iter()
        .map(|model| {
            let outcome = scrub(&ui, &model, subset, rate);
            if !ui.is_json() {
                tell(&ui, &model, &outcome, &settings)?;
            }
            Ok((model, outcome))
        })
        .collect::<Result<_, Failure>>()?;
    let exit = gravest(outcomes.iter().filter_map(|(_, outcome)| outcome.code())).map_or(Exit::Success, Exit::Code);
    if ui.is_json() {
        let models = outcomes.iter().map(|(model, outcome)| ModelReport::new(model, outcome)).collect();
        ui.result_json(&ScrubReport { schema: SCHEMA, exit_code: exit.number(), models })?;
    } else if outcomes.is_empty() {
        ui.result(&format!("no models on {}", settings.volume.value.display()))?;
    }
    Ok(exit)
}

fn models(args: &ScrubArgs, settings: &Settings, here: &Path) -> Result<Vec<Model>, Failure> {
    if let Some(text) = &args.model {
        let reference = resolve::model(text, here)?;
        return Ok(vec![locate(&reference, &settings.volume, here)?.here()?]);
    }
    let volume = facts::open(&settings.volume)?;
    let names = volume.models().map_err(|error| CliError::from(&error))?;
    let model = |id: ModelName| Model { directory: volume.path().join(id.as_str()), id: Some(id), revision: None };
    Ok(names.into_iter().map(model).collect())
}

/// What was asked for, else what somebody configured: the default there is for timetables.
fn limit(args: &ScrubArgs, settings: &Settings) -> Limit {
    let configured = &settings.scrub.limit;
    let said = (configured.origin != SettingOrigin::Default).then_some(configured.value);
    args.limit.or(said).unwrap_or_default()
}

fn scrub(ui: &Ui, model: &Model, subset: Subset, rate: Option<Rate>) -> Outcome {
    let valve = Valve::default();
    valve.set(rate);
    let why = match rate {
        Some(rate) => format!("{subset} is asked for, at most {rate}"),
        None => format!("{subset} is asked for"),
    };
    with_progress(ui, &model.shown(), &why, |listener| {
        let pass = |bytes| {
            let passed = valve.wait(bytes, &|| true);
            (listener.bytes)(bytes);
            passed
        };
        let on_start = |files, bytes| (listener.notice)(Notice::Hashing { files, bytes });
        let on_finding = |finding: &Finding| ui.warn(&finding.words());
        Scrub {
            subset,
            reins: reins(rate, &pass),
            locked: true,
            close: &set_aside,
            on_finding: &on_finding,
            on_start: &on_start,
        }
        .run(model.directory.clone())
    })
}

/// Wrong bytes outweigh missing ones, and both outweigh what could not be checked.
fn gravest(codes: impl Iterator<Item = Code>) -> Option<Code> {
    const GRAVEST_FIRST: [Code; 6] =
        [Code::Corrupt, Code::Refused, Code::Incomplete, Code::UnknownModel, Code::Held, Code::CouldNotCheck];
    let codes: Vec<_> = codes.collect();
    GRAVEST_FIRST.into_iter().find(|code| codes.contains(code)).or_else(|| codes.first().copied())
}

fn tell(ui: &Ui, model: &Model, outcome: &Outcome, settings: &Settings) -> Result<(), Failure> {
    let Outcome { findings, reasons, .. } = outcome;
    let mut lines = vec![format!("{}: {}", model.shown(), summary(outcome))];
    lines.extend(findings.iter().take(SHOWN_MAX).map(|finding| format!("  {}", finding.words())));
    lines.extend(reasons.iter().take(SHOWN_MAX).map(|reason| format!("  {reason}")));
    let left = findings.len().saturating_sub(SHOWN_MAX) + reasons.len().saturating_sub(SHOWN_MAX);
    if left > 0 {
        lines.push(format!("  and {left} more; --json has all"));
    }
    ui.result(&lines.join("\n"))?;
    if outcome.receipt == ReceiptFate::SetAside {
        ui.note("the receipt is set aside: the gate stays closed until it is mended");
    }
    if let Some(why) = &outcome.not_closed {
        ui.warn(&format!("the gate could not be closed: {why}"));
    }
    if let Some(why) = &outcome.not_noted {
        ui.warn(&format!("what was read is not recorded: {why}"));
    }
    if outcome.bad_reads > 0 {
        let reads = units::count(outcome.bad_reads, "read");
        ui.warn(&format!(
            "{reads} went wrong and were right the second time: look at the memory, the disk and its cables"
        ));
    }
    if !findings.is_empty() {
        ui.note(&format!("hint: {} mends it, block by block", command_on("repair", model, settings)));
    } else if !outcome.has_receipt && reasons.is_empty() {
        ui.note(&format!("hint: there is no receipt; {} makes one", command_on("verify", model, settings)));
    }
    Ok(())
}

fn summary(outcome: &Outcome) -> String {
    let Outcome { findings, reasons, asked, oldest, .. } = outcome;
    let read = units::bytes(*asked);
    let age = oldest.as_ref().and_then(|oldest| oldest.at).map(age).map(units::duration);
    let age = age.map(|age| format!("; every shard was read in the last {age}")).unwrap_or_default();
    match (findings.len() as u64, reasons.len() as u64) {
        (0, 0) => format!("{read} read, nothing is wrong{age}"),
        (0, reasons) => format!("{read} asked for, {} could not be read", units::count(reasons, "file")),
        (findings, _) => format!("{read} read, {} in all", units::count(findings, "finding")),
    }
}

fn age(at: Timestamp) -> Duration {
    let age = clock::now().duration_since(at).max(SignedDuration::ZERO);
    Duration::from_secs(age.unsigned_abs().as_secs())
}

/// What `muster scrub --json` prints.
#[derive(Debug, Serialize)]
struct ScrubReport<'a> {
    schema: u32,
    exit_code: u8,
    models: Vec<ModelReport<'a>>,
}

#[derive(Debug, Serialize)]
struct ModelReport<'a> {
    id: Option<&'a ModelName>,
    directory: String,
    code: Option<Code>,
    asked_bytes: u64,
    read_bytes: u64,
    noted_files: u64,
    bad_reads: u64,
    findings: Vec<FindingStatus>,
    reasons: Vec<ReasonReport<'a>>,
    receipt: ReceiptFate,
    has_receipt: bool,
    not_closed: Option<&'a str>,
    not_recorded: Option<&'a str>,
    oldest_file: Option<&'a RepoPath>,
    oldest_at: Option<Timestamp>,
    totals: Totals,
}

#[derive(Debug, Serialize)]
struct ReasonReport<'a> {
    file: Option<&'a RepoPath>,
    code: Code,
    message: String,
}

impl<'a> ModelReport<'a> {
    fn new(model: &'a Model, outcome: &'a Outcome) -> Self {
        let reasons = outcome.reasons.iter().map(|reason| ReasonReport {
            file: reason.file.as_ref(),
            code: reason.why.code(),
            message: reason.why.to_string(),
        });
        Self {
            id: model.id.as_ref(),
            directory: outcome.directory.display().to_string(),
            code: outcome.code(),
            asked_bytes: outcome.asked,
            read_bytes: outcome.read,
            noted_files: outcome.noted,
            bad_reads: outcome.bad_reads,
            findings: outcome.findings.iter().map(FindingStatus::from).collect(),
            reasons: reasons.collect(),
            receipt: outcome.receipt,
            has_receipt: outcome.has_receipt,
            not_closed: outcome.not_closed.as_deref(),
            not_recorded: outcome.not_noted.as_deref(),
            oldest_file: outcome.oldest.as_ref().map(|oldest| &oldest.file),
            oldest_at: outcome.oldest.as_ref().and_then(|oldest| oldest.at),
            totals: outcome.totals,
        }
    }
}
