//! The only printer.
//!
//! Owns stdout and stderr: results go to the first, everything else to the second. Invariants:
//! a reader of stdout that has gone away is a quiet success; text from elsewhere cannot steer the
//! terminal; whatever is printed while a progress bar is drawn goes around it.

#![allow(clippy::print_stderr, clippy::print_stdout, reason = "the home of printing")]

use std::io::{self, IsTerminal, Write};
use std::panic::Location;

use clap::builder::StyledStr;
use indicatif::{MultiProgress, ProgressDrawTarget};
use serde::Serialize;
use tracing_subscriber::fmt::MakeWriter;

use super::exit::{CliError, Failure};
use super::progress::Progress;
use crate::config::Environment;
use crate::core::code::Code;

/// What the user said about output.
#[derive(Debug, Clone, Copy, Default)]
pub struct UiOptions {
    /// Results as JSON.
    pub json: bool,
    /// Results and errors only.
    pub quiet: bool,
    /// No colours.
    pub no_color: bool,
}

/// The printer. Clones print to the same place.
#[derive(Debug, Clone)]
pub struct Ui {
    options: UiOptions,
    colour: bool,
    colour_on_stdout: bool,
    live: bool,
    bars: MultiProgress,
}

impl Ui {
    /// A printer that honours the options, `NO_COLOR`, `TERM=dumb` and what the streams are.
    #[must_use]
    pub fn new(options: UiOptions, environment: &Environment) -> Self {
        let dumb = matches!(environment.text("TERM"), Ok(Some("dumb")));
        let plain = options.no_color || environment.is_set("NO_COLOR") || dumb;
        let live = io::stderr().is_terminal() && !dumb;
        let target = if live && !options.quiet { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self {
            options,
            colour: !plain && io::stderr().is_terminal(),
            colour_on_stdout: !plain && io::stdout().is_terminal(),
            live,
            bars: MultiProgress::with_draw_target(target),
        }
    }

    /// Whether results are JSON.
    #[must_use]
    pub const fn is_json(&self) -> bool {
        self.options.json
    }

    /// Whether only results and errors are wanted.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.options.quiet
    }

    /// Whether stderr takes colours.
    #[must_use]
    pub const fn has_colour(&self) -> bool {
        self.colour
    }

    /// Whether stdout takes colours.
    #[must_use]
    pub const fn has_colour_on_stdout(&self) -> bool {
        self.colour_on_stdout
    }

    /// Whether stdout is a terminal, which `status --watch` redraws.
    #[must_use]
    pub fn stdout_is_terminal(&self) -> bool {
        io::stdout().is_terminal()
    }

    /// Prints a result for people and a line end on stdout.
    ///
    /// # Errors
    /// [`Failure::OutputClosed`] when nobody reads any more; an error when it cannot be written.
    pub fn result(&self, text: &str) -> Result<(), Failure> {
        self.result_bytes(format!("{}\n", printable(text)).as_bytes())
    }

    /// Prints bytes as they are on stdout.
    ///
    /// # Errors
    /// As [`Ui::result`].
    pub fn result_bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let write = || {
            let mut out = io::stdout().lock();
            out.write_all(bytes)?;
            out.flush()
        };
        self.bars.suspend(write).map_err(|error| match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => CliError::from_error(Code::Internal, &error).context("cannot write the result to stdout").into(),
        })
    }

    /// Prints a result as one line of JSON on stdout.
    ///
    /// # Errors
    /// As [`Ui::result`].
    pub fn result_json<T: Serialize>(&self, result: &T) -> Result<(), Failure> {
        let text = serde_json::to_string(result)
            .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot write the result as JSON"))?;
        // Of another form, JSON would be none; its own escapes leave nothing but DEL and C1 in place.
        self.result_bytes(format!("{text}\n").as_bytes())
    }

    /// Tells something on the way, on stderr; not when quiet.
    pub fn note(&self, text: &str) {
        if !self.options.quiet {
            self.write(&printable(text));
        }
    }

    /// Warns on stderr; not when quiet.
    pub fn warn(&self, text: &str) {
        if !self.options.quiet {
            self.write(&format!("{} {}", self.paint("warning:"), printable(text)));
        }
    }

    /// Tells an error: for people on stderr, and as the result on stdout when that is JSON.
    pub fn error(&self, error: &CliError) {
        for (label, text) in error.lines() {
            let indent = if label == "caused by:" { "  " } else { "" };
            self.write(&format!("{indent}{} {}", self.paint(label), printable(text)));
        }
        if self.options.json {
            // The exit code already tells of the failure.
            let _ = self.result_json(&error.to_json());
        }
    }

    /// Tells what the argument parser found.
    pub(super) fn usage(&self, text: &StyledStr) {
        let plain = text.to_string();
        let shown = if self.colour { text.ansi().to_string() } else { printable(&plain) };
        self.write(shown.trim_end());
        if self.options.json {
            let message = plain.trim_start_matches("error: ").lines().next().unwrap_or_default().to_owned();
            let _ = self.result_json(&CliError::usage(message).hint("muster --help lists verbs and flags").to_json());
        }
    }

    /// A progress display: a bar on a terminal, lines elsewhere, nothing when quiet.
    #[must_use]
    pub fn progress(&self) -> Progress {
        if self.options.quiet {
            Progress::silent()
        } else if self.live {
            Progress::bar(&self.bars, self.colour)
        } else {
            Progress::lines(self.clone())
        }
    }

    /// Where log lines go: stderr, around the progress bar.
    #[must_use]
    pub fn log_writer(&self) -> LogWriter {
        LogWriter { bars: self.bars.clone() }
    }

    /// A stderr that cannot be written to is no reason to stop.
    fn write(&self, text: &str) {
        self.bars.suspend(|| {
            let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
        });
    }

    fn paint(&self, label: &str) -> String {
        painted(label, self.colour)
    }
}

/// A label as it stands in front of a line, in its colour where there are any.
#[must_use]
pub fn painted(label: &str, colour: bool) -> String {
    let code = match label {
        "error:" | "problem" => "1;31",
        "warning:" | "warning" => "1;33",
        "hint:" => "1;36",
        "ok" => "32",
        "note" => "36",
        "not checked" => "2",
        _ => "1",
    };
    if colour { format!("\u{1b}[{code}m{label}\u{1b}[0m") } else { label.to_owned() }
}

/// Tells of a panic: where, but not what it said.
pub fn report_defect(location: Option<&Location<'_>>) {
    let place = location.map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
    let line = format!("error: internal error at {place}: this is a defect of muster\n");
    let _ = io::stderr().lock().write_all(line.as_bytes());
}

/// Makes writers for log lines.
#[derive(Debug, Clone)]
pub struct LogWriter {
    bars: MultiProgress,
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Self;
    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bars.suspend(|| io::stderr().lock().write(bytes))
    }
    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

/// The text with control characters written out, line ends and tabs kept, so that what a server
/// or a file name says cannot move the cursor.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() => shown.extend(c.escape_debug()),
            c => shown.push(c),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\rc\nd"), "a\\u{1b}[2Jb\\rc\nd");
    }

    #[test]
    fn no_color_and_dumb_terminals_get_plain_text() {
        for environment in [Environment::of(&[("NO_COLOR", "1")]), Environment::of(&[("TERM", "dumb")])] {
            let ui = Ui::new(UiOptions::default(), &environment);
            assert!(!ui.has_colour() && !ui.has_colour_on_stdout());
            assert_eq!(ui.paint("error:"), "error:");
        }
    }
}
