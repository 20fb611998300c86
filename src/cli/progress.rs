//! Progress as people see it: a bar on a terminal, a line now and then elsewhere.
//!
//! Owns the wording of a model's line, which `status` uses too. Invariant (P11): received and
//! verified bytes are told apart, silence is told as silence, and what is unknown is left out.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use super::ui::Ui;
use crate::core::status::{Count, ModelStatus};
use crate::core::units;
use crate::limits::{PROGRESS_LINE_EVERY, PROGRESS_LINE_MIN_GAP, STALL_SHOWN_AFTER};

/// So many of so many; the total is unknown before the manifest is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// All of them.
    pub total: Option<u64>,
    /// Those with the right digest.
    pub verified: u64,
}

/// Bytes of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// All of them.
    pub total: Option<u64>,
    /// Came over the wire, or were found on disk.
    pub received: u64,
    /// Synced and claimed.
    pub durable: u64,
    /// In files with the right digest.
    pub verified: u64,
}

/// Where one model stands: plain facts, taken at one time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ProgressView {
    /// The model's name on the volume.
    pub name: String,
    /// The state's or the phase's word: `fetching`, `verifying`, `disk`.
    pub phase: String,
    /// All files.
    pub files: Counted,
    /// The weight files of a multi-file model.
    pub shards: Counted,
    /// Bytes of all files.
    pub bytes: ByteCounts,
    /// Received bytes a second.
    pub rate_bytes_per_s: Option<f64>,
    /// How long it will take.
    pub eta: Option<Duration>,
    /// How long ago the last byte came.
    pub last_byte_age: Option<Duration>,
    /// Open connections.
    pub connections: u64,
}

impl From<&ModelStatus> for ProgressView {
    fn from(model: &ModelStatus) -> Self {
        let counted = |count: Option<Count>| {
            count.map_or_else(Counted::default, |c| Counted { total: Some(c.total), verified: c.verified })
        };
        let bytes = model.bytes.map_or_else(ByteCounts::default, |b| ByteCounts {
            total: Some(b.total),
            received: b.received,
            durable: b.durable,
            verified: b.verified,
        });
        Self {
            name: model.id.to_string(),
            phase: model.phase.clone().unwrap_or_else(|| model.state.word().to_owned()),
            files: counted(model.files),
            shards: counted(model.shards),
            bytes,
            rate_bytes_per_s: model.rate_bytes_per_s.map(|rate| rate as f64),
            eta: model.eta_s.map(Duration::from_secs),
            last_byte_age: model.last_byte_age_s.map(Duration::from_secs_f64),
            connections: model.connections.into(),
        }
    }
}

/// The line of one model, for example `kimi  fetching  38/119 shards  237.1 of 540.2 GB verified
/// 262.4 received  361 MB/s  12 min left  last byte 0 s ago  16 connections`.
#[must_use]
pub fn status_line(view: &ProgressView) -> String {
    let mut parts = vec![view.name.clone(), view.phase.clone()];
    parts.extend(count(view));
    parts.extend(amounts(&view.bytes));
    let moving = view.last_byte_age.is_none_or(|age| age < STALL_SHOWN_AFTER);
    if moving {
        parts.extend(view.rate_bytes_per_s.filter(|rate| *rate >= 1.0).map(units::rate));
        parts.extend(view.eta.map(|eta| format!("{} left", left(eta))));
    }
    parts.extend(view.last_byte_age.map(|age| match (moving, age.as_secs()) {
        (true, seconds) => format!("last byte {seconds} s ago"),
        (false, seconds) => format!("no bytes for {seconds} s"),
    }));
    match view.connections {
        0 => {}
        1 => parts.push("1 connection".to_owned()),
        many => parts.push(format!("{many} connections")),
    }
    parts.join("  ")
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

    /// Shows the facts; `now` is of any clock that only goes forward.
    pub fn show(&mut self, view: &ProgressView, now: Duration) {
        match &mut self.0 {
            Display::Silent => {}
            Display::Bar(bar) => {
                bar.set_length(view.bytes.total.unwrap_or(0));
                bar.set_position(view.bytes.received);
                bar.set_message(status_line(view));
            }
            Display::Lines { ui, pacer } => {
                if pacer.is_due(now, &view.phase) {
                    ui.note(&status_line(view));
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

/// `38/119 shards`; a model without shards counts its files.
fn count(view: &ProgressView) -> Option<String> {
    let (what, counted) = match view.shards.total {
        Some(1..) => ("shards", view.shards),
        _ => ("files", view.files),
    };
    counted.total.map(|total| format!("{}/{total} {what}", counted.verified))
}

/// `237.1 of 540.2 GB verified`, `262.4 received`: one unit for all of them.
fn amounts(bytes: &ByteCounts) -> Vec<String> {
    let Some(total) = bytes.total else {
        let known = (bytes.received > 0).then(|| format!("{} received", units::bytes(bytes.received)));
        return known.into_iter().collect();
    };
    if bytes.verified == total {
        return vec![format!("{} verified", units::bytes(total))];
    }
    let beside = |count| units::bytes_beside(count, total);
    vec![
        format!("{} of {} verified", beside(bytes.verified), units::bytes(total)),
        format!("{} received", beside(bytes.received)),
    ]
}

/// Under a second is still a second: nobody reads milliseconds of hope.
fn left(eta: Duration) -> String {
    units::duration(eta.max(Duration::from_secs(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kimi() -> ProgressView {
        ProgressView {
            name: "kimi-k2.5-nvfp4".to_owned(),
            phase: "fetching".to_owned(),
            files: Counted { total: Some(140), verified: 58 },
            shards: Counted { total: Some(119), verified: 38 },
            bytes: ByteCounts {
                total: Some(540_200_000_000),
                received: 262_400_000_000,
                durable: 261_900_000_000,
                verified: 237_100_000_000,
            },
            rate_bytes_per_s: Some(361e6),
            eta: Some(Duration::from_secs(770)),
            last_byte_age: Some(Duration::from_millis(300)),
            connections: 16,
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
        let line = status_line(&ProgressView { last_byte_age: Some(Duration::from_secs(42)), ..kimi() });
        assert!(line.contains("no bytes for 42 s"), "{line}");
        assert!(!line.contains("left") && !line.contains("MB/s"), "{line}");
    }

    #[test]
    fn what_is_unknown_is_left_out() {
        let view = ProgressView { name: "a".to_owned(), phase: "resolving".to_owned(), ..ProgressView::default() };
        assert_eq!(status_line(&view), "a  resolving");
        let done = ProgressView {
            phase: "ready".to_owned(),
            shards: Counted::default(),
            files: Counted { total: Some(3), verified: 3 },
            bytes: ByteCounts { total: Some(5_000), received: 5_000, durable: 5_000, verified: 5_000 },
            name: "a".to_owned(),
            ..ProgressView::default()
        };
        assert_eq!(status_line(&done), "a  ready  3/3 files  5.0 kB verified");
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
