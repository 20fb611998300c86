//! What a check found, and the report of all.
//!
//! Invariants: "could not check" is a status of its own and never "ok"; a problem always names the
//! outcome that a pull would end with now, and nothing else does; the report ends with the outcome
//! of its first problem, so that one rule gives the exit code. The shape is public (`muster schema
//! doctor`).

use serde::Serialize;
use serde_json::{Map, Value};

use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::volume::VolumeError;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Most single lines that one check tells.
const ITEMS_MAX: usize = 200;

/// What checks are about, in the order in which they are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Section {
    /// The root directory and its file system.
    Volume,
    /// Who writes there.
    Owner,
    /// What lies in the model directories.
    Models,
    /// The state database.
    Store,
    /// This machine and this process.
    Machine,
    /// What was set, and where.
    Settings,
    /// The endpoint and the way to it.
    Network,
}

impl Section {
    /// Its heading.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Volume => "Volume",
            Self::Owner => "Owner",
            Self::Models => "Models",
            Self::Store => "State database",
            Self::Machine => "This machine",
            Self::Settings => "Settings",
            Self::Network => "Network",
        }
    }
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As it should be.
    Ok,
    /// Worth knowing; nothing has to be done.
    Note,
    /// Something should be done, and work goes on without it.
    Warning,
    /// A pull cannot do its work now.
    Problem,
    /// Not known: it was not asked for, or could not be found out.
    NotChecked,
}

impl Status {
    /// The word for it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Problem => "problem",
            Self::NotChecked => "not checked",
        }
    }
}

/// One check and what it found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// What it is about.
    pub section: Section,
    /// Its name, in snake case.
    pub check: &'static str,
    /// How it came out.
    pub status: Status,
    /// What was found, in one line.
    pub found: String,
    /// The same, one by one, where there are several.
    pub items: Vec<String>,
    /// What to do about it.
    pub advice: Vec<String>,
    /// The outcome that a pull would have now; only a problem has one.
    pub code: Option<Code>,
    /// The figures in it, for programs.
    pub values: Map<String, Value>,
}

/// What a check found, before it is known which check it was.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    status: Status,
    found: String,
    items: Vec<String>,
    advice: Vec<String>,
    code: Option<Code>,
    values: Map<String, Value>,
}

impl Finding {
    fn new(status: Status, found: impl Into<String>, code: Option<Code>) -> Self {
        let (items, advice, values) = (Vec::new(), Vec::new(), Map::new());
        Self { status, found: found.into(), items, advice, code, values }
    }

    /// As it should be.
    pub fn ok(found: impl Into<String>) -> Self {
        Self::new(Status::Ok, found, None)
    }

    /// Worth knowing.
    pub fn note(found: impl Into<String>) -> Self {
        Self::new(Status::Note, found, None)
    }

    /// Something should be done.
    pub fn warning(found: impl Into<String>) -> Self {
        Self::new(Status::Warning, found, None)
    }

    /// A pull would end with `code`.
    pub fn problem(code: Code, found: impl Into<String>) -> Self {
        Self::new(Status::Problem, found, Some(code))
    }

    /// Not known, and why.
    pub fn not_checked(why: impl Into<String>) -> Self {
        Self::new(Status::NotChecked, why, None)
    }

    /// What a failure on the volume means for the check that met it.
    pub fn failed(error: &VolumeError) -> Self {
        let finding = Self::problem(error.code(), in_words(error));
        match error.hint() {
            Some(hint) => finding.advise(hint),
            None => finding,
        }
    }

    /// Says what to do.
    #[must_use]
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.advice.push(advice.into());
        self
    }

    /// Tells one of several.
    #[must_use]
    pub fn item(mut self, item: impl Into<String>) -> Self {
        if self.items.len() < ITEMS_MAX {
            self.items.push(item.into());
        }
        self
    }

    /// Tells several.
    #[must_use]
    pub fn items(self, items: impl IntoIterator<Item = String>) -> Self {
        items.into_iter().fold(self, Self::item)
    }

    /// Adds a figure.
    #[must_use]
    pub fn value(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.values.insert(name.to_owned(), value.into());
        self
    }

    /// The check that found this.
    #[must_use]
    pub fn of(self, section: Section, check: &'static str) -> Check {
        let Self { status, found, items, advice, code, values } = self;
        Check { section, check, status, found, items, advice, code, values }
    }
}

/// How often each status came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// As they should be.
    pub ok: usize,
    /// Worth knowing.
    pub note: usize,
    /// Something should be done.
    pub warning: usize,
    /// A pull cannot do its work.
    pub problem: usize,
    /// Not known.
    pub not_checked: usize,
}

impl Summary {
    /// Of these checks.
    #[must_use]
    pub fn of(checks: &[Check]) -> Self {
        let mut summary = Self::default();
        for check in checks {
            *match check.status {
                Status::Ok => &mut summary.ok,
                Status::Note => &mut summary.note,
                Status::Warning => &mut summary.warning,
                Status::Problem => &mut summary.problem,
                Status::NotChecked => &mut summary.not_checked,
            } += 1;
        }
        summary
    }
}

/// The outcome of all checks: that of the first problem, in the order in which they are told.
#[must_use]
pub fn outcome(checks: &[Check]) -> Option<Code> {
    checks.iter().find_map(|check| check.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_problem_decides_and_nothing_else_does() {
        let check = |finding: Finding| finding.of(Section::Volume, "x");
        let harmless = [Finding::ok("a"), Finding::note("b"), Finding::warning("c"), Finding::not_checked("d")];
        let mut checks: Vec<_> = harmless.into_iter().map(check).collect();
        assert_eq!(outcome(&checks), None);
        checks.push(check(Finding::problem(Code::NoSpace, "full")));
        checks.push(check(Finding::problem(Code::UpstreamRefused, "no")));
        assert_eq!(outcome(&checks), Some(Code::NoSpace));
        let summary = Summary::of(&checks);
        assert_eq!((summary.ok, summary.note, summary.warning), (1, 1, 1));
        assert_eq!((summary.problem, summary.not_checked), (2, 1));
    }
}
