//! Progress as people see it: a bar on a terminal, a line now and then elsewhere.
//!
//! Owns the wording of a model's line, which `status` uses too. Invariant (P11): received and
//! verified bytes are told apart, silence is told as silence, and what is unknown is left out.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::ui::{Ui, printable};
use crate::core::job::JobState;
use crate::core::status::{Bytes, Count, Hashing, LimitOf, LimitStatus, ModelStatus};
use crate::core::units;
use crate::limits::{PROGRESS_LINE_EVERY, PROGRESS_LINE_MIN_GAP, STALL_SHOWN_AFTER};

/// The line of one model, for example `kimi  fetching  38/119 shards  237.1 of 540.2 GB verified
/// 262.4 received  361 MB/s  12 min left  last byte 0 s ago  16 connections`.
#[must_use]
pub fn status_line(model: &ModelStatus) -> String {
    let mut parts = vec![model.id.to_string(), word(model).to_owned()];
    if let Some(Hashing { total, hashed }) = model.hashing {
        parts.push(format!("{} of {} hashed", units::bytes_beside(hashed, total), units::bytes(total)));
    } else if is_unseen(model) {
        parts.extend(totals(model));
    } else {
        parts.extend(count(model));
        parts.extend(model.bytes.as_ref().map(amounts).unwrap_or_default());
    }
    let age = model.last_byte_age_s.map(|age| age.max(0.0));
    let moving = age.is_none_or(|age| age < STALL_SHOWN_AFTER.as_secs_f64());
    if moving {
        parts.extend(model.rate_bytes_per_s.filter(|rate| *rate > 0).map(|rate| units::rate(rate as f64)));
        // Less than a second is still a second: nobody reads milliseconds of hope.
        let left = |eta: u64| format!("{} left", units::duration(Duration::from_secs(eta.max(1))));
        parts.extend(model.eta_s.map(left));
    }
    parts.extend(age.map(f64::floor).map(|seconds| {
        if moving { format!("last byte {seconds} s ago") } else { format!("no bytes for {seconds} s") }
    }));
    parts.extend(model.limit.map(|limit| limit_text(&limit)));
    match model.connections {
        0 => {}
        1 => parts.push("1 connection".to_owned()),
        many => parts.push(format!("{many} connections")),
    }
    parts.join("  ")
}

/// What a display shows at one time.
#[derive(Debug, Clone)]
pub struct Line {
    /// What is going on; a change of it is worth a line.
    pub phase: String,
    /// Bytes done.
    pub done: u64,
    /// Bytes in all; 0 when unknown.
    pub total: u64,
    /// The words.
    pub text: String,
}

impl From<&ModelStatus> for Line {
    fn from(model: &ModelStatus) -> Self {
        let received = || model.bytes.map_or((0, 0), |bytes| (bytes.received, bytes.total));
        let (done, total) = model.hashing.map_or_else(received, |hashing| (hashing.hashed, hashing.total));
        Self { phase: word(model).to_owned(), done, total, text: status_line(model) }
    }
}

/// A display of progress. Give it facts as often as they change; it paces itself.
#[derive(Debug)]
pub struct Progress(Display);

#[derive(Debug)]
enum Display {
    Silent,
    Bar(ProgressBar),
    Lines { ui: Ui, pacer: LinePacer },
}

impl Progress {
    pub(super) const fn silent() -> Self {
        Self(Display::Silent)
    }

    pub(super) fn bar(bars: &MultiProgress, colour: bool) -> Self {
        let bar = bars.add(ProgressBar::new(0));
        let template = if colour { "{bar:16.green/dim} {wide_msg}" } else { "{bar:16} {wide_msg}" };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸─"));
        Self(Display::Bar(bar))
    }

    pub(super) const fn lines(ui: Ui) -> Self {
        Self(Display::Lines { ui, pacer: LinePacer { last: None } })
    }

    /// Shows the line; `now` is of any clock that only goes forward.
    pub fn show(&mut self, line: &Line, now: Duration) {
        match &mut self.0 {
            Display::Silent => {}
            Display::Bar(bar) => {
                bar.set_length(line.total);
                bar.set_position(line.done);
                bar.set_message(printable(&line.text));
            }
            Display::Lines { ui, pacer } => {
                if pacer.is_due(now, &line.phase) {
                    ui.note(&line.text);
                }
            }
        }
    }

    /// Takes the bar off the terminal, before the result is printed.
    pub fn finish(self) {
        if let Display::Bar(bar) = self.0 {
            bar.finish_and_clear();
        }
    }
}

/// When a plain line is due: every five seconds, sooner when the phase changes, never twice in
/// a second.
#[derive(Debug, Clone, Default)]
struct LinePacer {
    last: Option<(Duration, String)>,
}

impl LinePacer {
    fn is_due(&mut self, now: Duration, phase: &str) -> bool {
        let due = match &self.last {
            None => true,
            Some((at, last_phase)) => {
                let gap = now.saturating_sub(*at);
                gap >= PROGRESS_LINE_EVERY || (last_phase != phase && gap >= PROGRESS_LINE_MIN_GAP)
            }
        };
        if due {
            self.last = Some((now, phase.to_owned()));
        }
        due
    }
}

/// What is going on: the phase while somebody works on it, else the state.
fn word(model: &ModelStatus) -> &str {
    let phase = model.phase.as_deref().filter(|_| model.state.is_active());
    phase.unwrap_or(model.state.word())
}

/// Whether nobody has looked yet how much is there: what would be shown is no count.
fn is_unseen(model: &ModelStatus) -> bool {
    let nothing_found = model.bytes.is_some_and(|bytes| bytes.received == 0);
    model.state == JobState::Resolving || (model.state == JobState::Verifying && nothing_found)
}

/// `119 shards`, `540.2 GB`: what is asked for.
fn totals(model: &ModelStatus) -> Vec<String> {
    let count = counted(model).map(|(what, count)| units::count(count.total, what));
    count.into_iter().chain(model.bytes.map(|bytes| units::bytes(bytes.total))).collect()
}

/// `38/119 shards`; a model without shards counts its files.
fn count(model: &ModelStatus) -> Option<String> {
    counted(model).map(|(what, count)| format!("{}/{} {what}s", count.verified, count.total))
}

fn counted(model: &ModelStatus) -> Option<(&'static str, Count)> {
    let shards = model.shards.filter(|shards| shards.total > 0).map(|shards| ("shard", shards));
    shards.or(model.files.map(|files| ("file", files)))
}

/// `limited to 200 MB/s`; that of all jobs together says so.
fn limit_text(limit: &LimitStatus) -> String {
    let rate = units::rate(limit.bytes_per_s as f64);
    match limit.of {
        LimitOf::Job => format!("limited to {rate}"),
        LimitOf::Volume => format!("limited to {rate} with all others"),
    }
}

/// `237.1 of 540.2 GB verified`, `262.4 received`: one unit for all of them.
fn amounts(bytes: &Bytes) -> Vec<String> {
    if bytes.verified == bytes.total {
        return vec![format!("{} verified", units::bytes(bytes.total))];
    }
    let beside = |count| units::bytes_beside(count, bytes.total);
    vec![
        format!("{} of {} verified", beside(bytes.verified), units::bytes(bytes.total)),
        format!("{} received", beside(bytes.received)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::model_name::ModelName;
    use crate::core::repo::{RepoId, RepoKind, Revision};

    fn unknown(name: &str, state: JobState) -> ModelStatus {
        ModelStatus {
            id: ModelName::parse(name).unwrap(),
            repo: RepoId::parse("nvidia/Kimi-K2.5-NVFP4").unwrap(),
            repo_type: RepoKind::Model,
            revision: Revision::parse("main").unwrap(),
            commit: None,
            selection: None,
            directory: format!("/shared/{name}"),
            state,
            phase: None,
            files: None,
            shards: None,
            bytes: None,
            hashing: None,
            rate_bytes_per_s: None,
            eta_s: None,
            last_byte_age_s: None,
            limit: None,
            connections: 0,
            error: None,
            local_edits: Vec::new(),
            scrub: None,
        }
    }

    fn kimi() -> ModelStatus {
        ModelStatus {
            phase: Some("fetching".to_owned()),
            files: Some(Count { total: 140, verified: 58 }),
            shards: Some(Count { total: 119, verified: 38 }),
            bytes: Some(Bytes {
                total: 540_200_000_000,
                received: 262_400_000_000,
                durable: 261_900_000_000,
                verified: 237_100_000_000,
            }),
            rate_bytes_per_s: Some(361_000_000),
            eta_s: Some(770),
            last_byte_age_s: Some(0.3),
            limit: None,
            connections: 16,
            ..unknown("kimi-k2.5-nvfp4", JobState::Fetching)
        }
    }

    #[test]
    fn the_line_tells_all_that_matters() {
        assert_eq!(
            status_line(&kimi()),
            "kimi-k2.5-nvfp4  fetching  38/119 shards  237.1 of 540.2 GB verified  262.4 received  361 MB/s  \
             12 min left  last byte 0 s ago  16 connections"
        );
    }

    #[test]
    fn silence_is_told_as_silence_and_promises_nothing() {
        let line = status_line(&ModelStatus { last_byte_age_s: Some(42.9), ..kimi() });
        assert!(line.contains("no bytes for 42 s"), "{line}");
        assert!(!line.contains("left") && !line.contains("MB/s"), "{line}");
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        assert_eq!(status_line(&unknown("a", JobState::Resolving)), "a  resolving");
        let known = ModelStatus {
            state: JobState::Resolving,
            phase: None,
            bytes: kimi().bytes.map(|bytes| Bytes { received: 0, durable: 0, verified: 0, ..bytes }),
            shards: Some(Count { total: 119, verified: 0 }),
            ..unknown("a", JobState::Resolving)
        };
        assert_eq!(status_line(&known), "a  resolving  119 shards  540.2 GB");
        let hashing = Some(Hashing { total: 540_200_000_000, hashed: 12_300_000_000 });
        let hashing =
            ModelStatus { state: JobState::Verifying, phase: Some("hashing".to_owned()), hashing, ..known.clone() };
        assert_eq!(status_line(&hashing), "a  hashing  12.3 of 540.2 GB hashed");
        let looked_over = ModelStatus { state: JobState::Verifying, ..known };
        assert_eq!(status_line(&looked_over), "a  verifying  119 shards  540.2 GB");
        let done = ModelStatus {
            files: Some(Count { total: 3, verified: 3 }),
            bytes: Some(Bytes { total: 5_000, received: 5_000, durable: 5_000, verified: 5_000 }),
            ..unknown("a", JobState::Ready)
        };
        assert_eq!(status_line(&done), "a  ready  3/3 files  5.0 kB verified");
    }

    #[test]
    fn a_paused_model_is_not_shown_in_the_phase_it_was_in() {
        let disk = ModelStatus { phase: Some("disk".to_owned()), ..kimi() };
        assert!(status_line(&disk).starts_with("kimi-k2.5-nvfp4  disk  38/119"));
        let paused = ModelStatus { state: JobState::Paused, ..disk };
        assert!(status_line(&paused).starts_with("kimi-k2.5-nvfp4  paused  38/119"));
    }

    #[test]
    fn plain_lines_come_every_five_seconds_or_with_a_new_phase_and_never_twice_a_second() {
        let mut pacer = LinePacer::default();
        let ms = Duration::from_millis;
        assert!(pacer.is_due(ms(0), "resolving"));
        assert!(!pacer.is_due(ms(500), "fetching"), "too soon even for a new phase");
        assert!(pacer.is_due(ms(1000), "fetching"));
        assert!(!pacer.is_due(ms(5900), "fetching"));
        assert!(pacer.is_due(ms(6000), "fetching"));
    }
}
