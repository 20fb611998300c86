//! How people see that files are being hashed.
//!
//! Owns the words for the notices of a check, and its progress. Heard from several threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::progress::{Line, Progress};
use super::ui::Ui;
use crate::clock;
use crate::core::units;
use crate::gate::check::{Listener, Notice};
use crate::gate::report::hashing_line;

/// From when on progress is shown, and how often at most.
const SHOWN_AFTER: Duration = Duration::from_secs(1);
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// Does `work`, a check of the model `name`, and tells of its hashing. `why` is told with it.
pub fn with_progress<R>(ui: &Ui, name: &str, why: &str, work: impl FnOnce(&Listener<'_>) -> R) -> R {
    let (done, total) = (AtomicU64::new(0), AtomicU64::new(0));
    let display = Mutex::new(Display { progress: None, started: clock::since_boot(), shown: Duration::ZERO });
    let notice = |notice| match notice {
        Notice::Hashing { files, bytes } => {
            total.fetch_add(bytes, Ordering::Relaxed);
            ui.note(&hashing_line(files, bytes, why));
        }
        Notice::NoLock => {
            ui.warn("the model cannot be locked here: an update or removal would not know that it is in use");
        }
        Notice::NotRemembered { why } => {
            ui.warn(&format!("what was hashed is not remembered, so that the next gate hashes it again: {why}"));
        }
        Notice::ReceiptKept { why } => ui.warn(&format!("the receipt stays as it was: {why}")),
        Notice::NotQuarantined { file, why } => ui.warn(&format!("{file} stays where it is: {why}")),
    };
    let bytes = |count| {
        let done = done.fetch_add(count, Ordering::Relaxed) + count;
        // Whoever finds the display busy has nothing newer to say.
        if let Ok(mut display) = display.try_lock() {
            display.show(ui, name, done, total.load(Ordering::Relaxed));
        }
    };
    let result = work(&Listener { notice: &notice, bytes: &bytes });
    let display = display.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(progress) = display.progress {
        progress.finish();
    }
    result
}

struct Display {
    progress: Option<Progress>,
    started: Duration,
    shown: Duration,
}

impl Display {
    fn show(&mut self, ui: &Ui, name: &str, done: u64, total: u64) {
        let now = clock::since_boot();
        let spent = now.saturating_sub(self.started);
        if spent < SHOWN_AFTER || now.saturating_sub(self.shown) < SHOWN_EVERY {
            return;
        }
        self.shown = now;
        let rate = done as f64 / spent.as_secs_f64();
        let left = Duration::try_from_secs_f64(total.saturating_sub(done) as f64 / rate).unwrap_or(Duration::MAX);
        let text = format!(
            "{name}  hashing  {} of {}  {}  {} left",
            units::bytes_beside(done, total),
            units::bytes(total),
            units::rate(rate),
            units::duration(left)
        );
        let line = Line { phase: "hashing".to_owned(), done, total, text };
        self.progress.get_or_insert_with(|| ui.progress()).show(&line, now);
    }
}
