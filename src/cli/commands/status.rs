//! `muster status`: shows where models stand.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use crate::cli::args::StatusArgs;
use crate::cli::exit::{Exit, Failure};
use crate::cli::facts::{self, Facts, Source};
use crate::cli::progress::status_line;
use crate::cli::resolve::ModelRef;
use crate::cli::signals::Signals;
use crate::cli::ui::printable;
use crate::cli::{Context, resolve, runtime};
use crate::clock;
use crate::core::job::JobState;
use crate::core::local_edits::in_words;
use crate::core::shell::quoted;
use crate::core::status::{ModelStatus, Report, ScrubStatus};
use crate::core::units;
use crate::limits::PROGRESS_LINE_EVERY;
use crate::volume::Volume;

/// How often `--watch` looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Home the cursor and clear what is below.
const REDRAW: &str = "\u{1b}[H\u{1b}[J";
/// Digits of a commit that people are shown.
const COMMIT_SHOWN: usize = 12;
/// Findings of a model that people are shown.
const FINDINGS_SHOWN: usize = 3;
/// Age from which it is said how long shards have not been read.
const AGE_SHOWN: Duration = Duration::from_secs(86_400);

/// Shows where models stand.
///
/// # Errors
/// What the user is told.
pub fn run(args: StatusArgs, context: Context) -> Result<Exit, Failure> {
    let reference = args.model.as_deref().map(|text| resolve::model(text, &context.here)).transpose()?;
    let view = View { volume: facts::open(&context.settings.volume)?, reference, context };
    runtime::run(async {
        if args.watch {
            return view.watch().await;
        }
        let facts = view.look().await?;
        if view.context.ui.is_json() {
            view.context.ui.result_json(&facts.report)?;
        } else {
            view.context.ui.result(&view.text(&facts))?;
        }
        Ok(Exit::Success)
    })
}

/// What is looked at.
struct View {
    volume: Volume,
    reference: Option<ModelRef>,
    context: Context,
}

impl View {
    /// Everything, or the one model.
    async fn look(&self) -> Result<Facts, Failure> {
        let mut facts = facts::look(&self.volume).await?;
        if let Some(reference) = &self.reference {
            let Context { settings, here, .. } = &self.context;
            let model = facts::model(&facts.report, reference, &settings.volume, here)?.clone();
            facts.report.models = vec![model];
        }
        Ok(facts)
    }

    async fn watch(&self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let ui = &self.context.ui;
        let mut shown = Shown::default();
        loop {
            let facts = tokio::select! {
                facts = self.look() => facts?,
                exit = signals.next() => return Ok(exit),
            };
            if ui.is_json() {
                if shown.is_new_report(&facts.report) {
                    ui.result_json(&facts.report)?;
                }
            } else if ui.stdout_is_terminal() {
                ui.result_bytes(format!("{REDRAW}{}\n", printable(&self.text(&facts))).as_bytes())?;
            } else {
                for line in shown.new_lines(&facts, clock::since_boot()) {
                    ui.result(&line)?;
                }
            }
            tokio::select! {
                () = sleep(LOOK_EVERY) => {}
                exit = signals.next() => return Ok(exit),
            }
        }
    }

    fn text(&self, facts: &Facts) -> String {
        let mut lines: Vec<_> = facts.report.models.iter().flat_map(lines).collect();
        if lines.is_empty() {
            lines.push(format!("no models on {}", self.context.settings.volume.value.display()));
        }
        lines.extend(facts.remarks());
        lines.join("\n")
    }
}

/// What `--watch` has shown where nothing can be redrawn.
#[derive(Default)]
struct Shown {
    report: Option<Report>,
    models: Vec<(ModelStatus, Duration)>,
    source: Option<(Source, Option<bool>)>,
}

impl Shown {
    /// Whether something changed but the time.
    fn is_new_report(&mut self, report: &Report) -> bool {
        let mut timeless = report.clone();
        timeless.written_at = jiff::Timestamp::UNIX_EPOCH;
        timeless.daemon.age_s = None;
        timeless.models.iter_mut().for_each(|model| model.last_byte_age_s = None);
        let is_new = self.report.as_ref() != Some(&timeless);
        self.report = Some(timeless);
        is_new
    }

    /// A line for each model whose state, phase or verified files changed, and now and then for one
    /// that moves; and one when the facts come from elsewhere.
    fn new_lines(&mut self, facts: &Facts, now: Duration) -> Vec<String> {
        let mut new = Vec::new();
        for model in &facts.report.models {
            let known = self.models.iter_mut().find(|(known, _)| known.id == model.id);
            let due = match &known {
                None => true,
                Some((last, at)) => {
                    mark(last) != mark(model) || (last != model && now.saturating_sub(*at) >= PROGRESS_LINE_EVERY)
                }
            };
            if due {
                new.extend(lines(model));
                match known {
                    Some(known) => *known = (model.clone(), now),
                    None => self.models.push((model.clone(), now)),
                }
            }
        }
        self.models.retain(|(known, _)| {
            let is_there = facts.report.models.iter().any(|model| model.id == known.id);
            if !is_there {
                new.push(format!("{}  removed", known.id));
            }
            is_there
        });
        let source = Some((facts.source, facts.report.daemon.running));
        if self.source != source {
            new.extend(facts.remarks());
            self.source = source;
        }
        new
    }
}

type Mark<'a> = (JobState, Option<&'a str>, Option<u64>, bool);

fn mark(model: &ModelStatus) -> Mark<'_> {
    (model.state, model.phase.as_deref(), model.files.map(|files| files.verified), model.error.is_some())
}

/// The lines of one model: one, and what went wrong below it.
fn lines(model: &ModelStatus) -> Vec<String> {
    let mut line = status_line(model);
    if let (JobState::Ready | JobState::Damaged, Some(commit)) = (model.state, &model.commit) {
        let _ = write!(line, "  commit {:.COMMIT_SHOWN$}", commit.to_string());
    }
    if let Some(selection) = &model.selection {
        let _ = write!(line, "  only {selection}");
    }
    let mut lines = vec![line];
    lines.extend(in_words(&model.local_edits).map(|words| format!("  {words}")));
    lines.extend(model.scrub.iter().flat_map(|scrub| scrub_lines(scrub, clock::now())));
    if let Some(error) = &model.error {
        lines.push(format!("  error: {}", error.message));
        lines.extend(error.hint.as_ref().map(|hint| format!("  hint: {hint}")));
    } else if model.scrub.as_ref().is_some_and(|scrub| !scrub.findings.is_empty()) {
        lines.push(format!("  hint: muster repair {} mends it, block by block", quoted(model.id.as_str())));
    } else if model.state == JobState::Damaged {
        let again = PathBuf::from(&model.directory);
        lines.push(format!("  hint: muster verify {} names what is wrong; muster pull mends it", again.display()));
    }
    lines
}

/// What is not right in it, and how long bytes of it have not been read from the disk.
fn scrub_lines(scrub: &ScrubStatus, now: Timestamp) -> Vec<String> {
    let findings = scrub.findings.iter().take(FINDINGS_SHOWN);
    let mut lines: Vec<_> = findings.map(|finding| format!("  found: {}", finding.message)).collect();
    let more = scrub.findings.len().saturating_sub(FINDINGS_SHOWN);
    if more > 0 {
        lines.push(format!("  found: {} more", units::count(more as u64, "thing")));
    }
    let (Some(at), Some(file)) = (scrub.oldest_at, &scrub.oldest_file) else { return lines };
    let age = Duration::from_secs(u64::try_from(now.duration_since(at).as_secs()).unwrap_or(0));
    if scrub.last_at.is_some() || age >= AGE_SHOWN {
        lines.push(format!("  longest unread: {file}, for {}", units::duration(age)));
    }
    lines
}
