//! Keys of the records tree.
//!
//! Owns the encoding: a prefix for the kind of record, then the model's name, then what tells
//! records of one model apart. All keys are UTF-8 text. `\0` ends a name, which no
//! [`ModelName`], [`RepoPath`] or [`Origin`] contains, so no model's records are found under
//! another's prefix.
//!
//! | prefix | key | value |
//! |---|---|---|
//! | `a/` | name `\0` number, 16 hexadecimal digits | one line of a model's history |
//! | `f/` | name `\0` path | a verified file |
//! | `j/` | name | a job |
//! | `l/` | | the volume's limit, asked for while an owner ran |
//! | `o/` | origin | what was learned about a server |
//! | `p/` | name | a model's progress |

use crate::core::endpoint::Origin;
use crate::core::model_name::ModelName;
use crate::core::repo_path::RepoPath;

/// What every job's key starts with.
pub(super) const JOBS: &str = "j/";

/// What the keys of all histories start with, and what comes after them.
pub(super) const HISTORIES: &str = "a/";
pub(super) const HISTORIES_END: &str = "a0";

/// The job of a model.
pub(super) fn job(name: &ModelName) -> String {
    format!("{JOBS}{name}")
}

/// What the keys of a model's files start with.
pub(super) fn files(name: &ModelName) -> String {
    format!("f/{name}\0")
}

/// One file of a model.
pub(super) fn file(name: &ModelName, path: &RepoPath) -> String {
    format!("f/{name}\0{}", path.as_str())
}

/// What the keys of a model's history start with.
pub(super) fn history(name: &ModelName) -> String {
    format!("a/{name}\0")
}

/// One line of a model's history; lines sort by number.
pub(super) fn history_line(name: &ModelName, number: u64) -> String {
    format!("a/{name}\0{number:016x}")
}

/// The model in the key of a line.
pub(super) fn name_of_line(key: &[u8]) -> Option<ModelName> {
    let text = std::str::from_utf8(key).ok()?.strip_prefix(HISTORIES)?;
    ModelName::parse(text.split_once('\0')?.0).ok()
}

/// What comes after a model's history and before that of any other behind it.
pub(super) fn after_history(name: &ModelName) -> String {
    format!("{HISTORIES}{name}\x01")
}

/// The number in the key of a line.
pub(super) fn line_number(key: &[u8]) -> Option<u64> {
    let at = key.len().checked_sub(16)?;
    u64::from_str_radix(std::str::from_utf8(&key[at..]).ok()?, 16).ok()
}

/// The volume's limit.
pub(super) const LIMIT: &str = "l/";

/// What was learned about a server.
pub(super) fn origin(origin: &Origin) -> String {
    format!("o/{origin}")
}

/// The progress of a model.
pub(super) fn progress(name: &ModelName) -> String {
    format!("p/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_one_model_are_never_found_under_another() {
        let (short, long) = (ModelName::parse("org/name").unwrap(), ModelName::parse("org/name-2").unwrap());
        let path = RepoPath::parse("a/b").unwrap();
        assert!(!file(&long, &path).starts_with(&files(&short)));
        assert!(!history_line(&long, 0).starts_with(&history(&short)));
        assert!(file(&short, &path).starts_with(&files(&short)));
    }

    #[test]
    fn lines_of_a_history_sort_by_number() {
        let name = ModelName::parse("org/name").unwrap();
        for (less, more) in [(0, 1), (9, 10), (15, 16), (255, 256), (u64::MAX - 1, u64::MAX)] {
            assert!(history_line(&name, less) < history_line(&name, more));
            assert_eq!(line_number(history_line(&name, more).as_bytes()), Some(more));
        }
        assert_eq!(line_number(b"short"), None);
    }
}
