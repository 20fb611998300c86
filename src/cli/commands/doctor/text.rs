//! How findings are told to people: a line a check, then what to do.

use std::fmt::Write as _;

use crate::cli::exit::Failure;
use crate::cli::ui::{Ui, painted, printable};
use crate::doctor::{Check, Section, Status, Summary};

/// Width of the longest status and of the longest name of a check.
const STATUS_WIDTH: usize = 11;
const NAME_WIDTH: usize = 17;
/// Most of several findings of one check that are shown.
const ITEMS_SHOWN: usize = 10;

/// Tells checks as they come.
pub(super) struct Teller {
    ui: Ui,
    colour: bool,
    title: Option<String>,
    section: Option<Section>,
    /// What could not be checked for one and the same reason, told together.
    waiting: Option<Check>,
    broken: Option<Failure>,
}

impl Teller {
    pub(super) fn new(ui: &Ui, volume: &str) -> Self {
        let title = format!("muster {} looks at the volume {volume}", env!("CARGO_PKG_VERSION"));
        let colour = ui.has_colour_on_stdout();
        Self { ui: ui.clone(), colour, title: Some(title), section: None, waiting: None, broken: None }
    }

    /// Tells one check: every one, or with `--quiet` only what asks for something.
    pub(super) fn tell(&mut self, check: &Check) {
        let calls = matches!(check.status, Status::Warning | Status::Problem);
        if self.ui.is_json() || self.ui.is_quiet() && !calls {
            return;
        }
        if let Some(waiting) = self.waiting.as_mut().filter(|waiting| is_alike(waiting, check)) {
            waiting.items.push(check.check.replace('_', " "));
            return;
        }
        self.tell_waiting();
        if check.status == Status::NotChecked && check.items.is_empty() && check.advice.is_empty() {
            self.waiting = Some(check.clone());
        } else {
            self.print(check);
        }
    }

    fn tell_waiting(&mut self) {
        let Some(mut check) = self.waiting.take() else { return };
        if !check.items.is_empty() {
            check.items = vec![format!("nor {}", check.items.join(", "))];
        }
        self.print(&check);
    }

    fn print(&mut self, check: &Check) {
        if self.broken.is_some() {
            return;
        }
        let mut lines = String::new();
        if let Some(title) = self.title.take().filter(|_| !self.ui.is_quiet()) {
            let _ = writeln!(lines, "{}", printable(&title));
        }
        if self.section != Some(check.section) && !self.ui.is_quiet() {
            let _ = writeln!(lines, "\n{}", painted(check.section.heading(), self.colour));
        }
        self.section = Some(check.section);
        lines.push_str(&told(check, self.colour));
        self.broken = self.ui.result(lines.trim_end_matches('\n')).err();
    }

    /// Tells what it comes to.
    pub(super) fn end(mut self, checks: &[Check], exit: u8) -> Result<(), Failure> {
        self.tell_waiting();
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        let gap = if self.section.is_some() && !self.ui.is_quiet() { "\n" } else { "" };
        self.ui.result(&format!("{gap}{}", summary(checks, exit)))
    }
}

fn is_alike(waiting: &Check, check: &Check) -> bool {
    let same = (waiting.section, waiting.status, &waiting.found) == (check.section, check.status, &check.found);
    same && check.advice.is_empty()
}

fn told(check: &Check, colour: bool) -> String {
    let (status, name) = (check.status.word(), check.check.replace('_', " "));
    let gap = " ".repeat(STATUS_WIDTH.saturating_sub(status.len()));
    let margin = " ".repeat(STATUS_WIDTH + NAME_WIDTH + 6);
    let mut lines = format!("  {}{gap}  {name:NAME_WIDTH$}  {}\n", painted(status, colour), printable(&check.found));
    for item in check.items.iter().take(ITEMS_SHOWN) {
        let _ = writeln!(lines, "{margin}- {}", printable(item));
    }
    if let Some(more @ 1..) = check.items.len().checked_sub(ITEMS_SHOWN) {
        let _ = writeln!(lines, "{margin}- and {more} more: --json has them");
    }
    for advice in &check.advice {
        let _ = writeln!(lines, "{margin}{} {}", painted("→", colour), printable(advice));
    }
    lines
}

fn summary(checks: &[Check], exit: u8) -> String {
    let Summary { ok, note, warning, problem, not_checked } = Summary::of(checks);
    let plural = |count: usize, word: &str| match count {
        0 => None,
        1 => Some(format!("1 {word}")),
        _ => Some(format!("{count} {word}s")),
    };
    let unknown = (not_checked > 0).then(|| format!("{not_checked} not checked"));
    let rest = [plural(warning, "warning"), plural(note, "note"), unknown];
    let rest: Vec<_> = rest.into_iter().flatten().chain([format!("{ok} ok")]).collect();
    match checks.iter().find(|check| check.status == Status::Problem) {
        None => format!("Nothing found that keeps a pull from its work: {}.", rest.join(", ")),
        Some(first) => {
            let problems = plural(problem, "problem").unwrap_or_default();
            let keep = if problem == 1 { "keeps" } else { "keep" };
            let name = first.check.replace('_', " ");
            format!("{problems} {keep} a pull from its work (exit {exit}, from {name}); {}.", rest.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::code::Code;
    use crate::doctor::Finding;

    #[test]
    fn a_check_is_one_line_and_its_advice_stands_below() {
        let finding = Finding::warning("flock \u{1b}lies").items((0..12).map(|n| format!("item {n}"))).advise("do x");
        let check = finding.of(Section::Volume, "positioned_writes");
        let text = told(&check, false);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "  warning      positioned writes  flock \\u{1b}lies");
        assert_eq!(lines.len(), 13);
        assert!(lines[11].ends_with("- and 2 more: --json has them"), "{text}");
        assert!(lines[12].ends_with("→ do x"), "{text}");
        assert!(told(&check, true).contains("\u{1b}[1;33mwarning\u{1b}[0m"));
    }

    #[test]
    fn the_summary_names_what_decides() {
        let of = |finding: Finding, name| finding.of(Section::Volume, name);
        let mut checks =
            vec![of(Finding::ok("a"), "a"), of(Finding::note("b"), "b"), of(Finding::not_checked("c"), "c")];
        assert_eq!(summary(&checks, 0), "Nothing found that keeps a pull from its work: 1 note, 1 not checked, 1 ok.");
        checks.push(of(Finding::problem(Code::NoSpace, "d"), "inodes"));
        assert!(
            summary(&checks, 16).starts_with("1 problem keeps a pull from its work (exit 16, from inodes); 1 note")
        );
    }
}
