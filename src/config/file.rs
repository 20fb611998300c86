//! The configuration file: where it is looked for, and which keys on which lines it has.

#![allow(clippy::disallowed_methods, reason = "reads its own file, which is on no volume")]

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::environment::Environment;
use super::{CONFIG_VARIABLE, ConfigError};
use crate::limits;

/// The key that may be a list of tables.
const ROWS: &str = "limits.hours";
/// Rules of a policy, which are no setting.
pub(super) const RULES: &str = "gate.rule";

/// A configuration file that was read.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// Where it is.
    pub path: PathBuf,
    /// What it says.
    pub text: String,
}

/// One key of a file.
#[derive(Debug)]
pub(super) struct Entry {
    /// The key with its table, joined by dots.
    pub(super) key: String,
    /// The line, from 1.
    pub(super) line: usize,
    /// The value as text, or the name of a type that cannot be a setting.
    pub(super) value: Result<String, &'static str>,
}

/// Reads the file that `--config`, `MUSTER_CONFIG` or the search path names: `muster.toml` in
/// `$XDG_CONFIG_HOME/muster` (else `~/.config/muster`), then in `/etc/muster`.
///
/// # Errors
/// A file that was named must exist; one that exists must be readable.
pub fn load(flag: Option<&Path>, environment: &Environment) -> Result<Option<ConfigFile>, ConfigError> {
    if let Some(path) = flag {
        return read(path, "--config").map(Some);
    }
    if let Some(path) = environment.text(CONFIG_VARIABLE)? {
        return read(Path::new(path), CONFIG_VARIABLE).map(Some);
    }
    for path in search_path(environment)? {
        match read(&path, "the search path") {
            Ok(file) => return Ok(Some(file)),
            Err(ConfigError::Unreadable { source, .. }) if is_absent(&source) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

impl ConfigFile {
    /// Every key of the file, in the file's order.
    pub(super) fn entries(&self) -> Result<Vec<Entry>, ConfigError> {
        let lines = Lines::of(&self.text);
        let table = DeTable::parse(&self.text).map_err(|error| ConfigError::Broken {
            file: self.path.clone(),
            line: lines.at(error.span().map_or(0, |span| span.start)),
            message: error.message().replace('\n', ", "),
        })?;
        let mut entries = Vec::new();
        lines.collect(None, table.get_ref(), &mut entries);
        entries.sort_by_key(|entry| entry.line);
        Ok(entries)
    }
}

/// Where the lines of a file end.
struct Lines(Vec<usize>);

impl Lines {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// The line of an offset, from 1.
    fn at(&self, offset: usize) -> usize {
        1 + self.0.partition_point(|end| *end < offset)
    }

    /// The keys of the file, or of a table of it. No key of ours is in a table of a table, so
    /// nobody looks into one.
    fn collect(&self, inside: Option<&str>, table: &DeTable<'_>, entries: &mut Vec<Entry>) {
        for (key, value) in table {
            let name = inside.map_or_else(|| key.get_ref().to_string(), |table| format!("{table}.{}", key.get_ref()));
            if name == RULES {
                continue;
            }
            let value = match value.get_ref() {
                DeValue::Table(inner) if inside.is_none() => {
                    self.collect(Some(&name), inner, entries);
                    continue;
                }
                DeValue::String(text) => Ok(text.to_string()),
                DeValue::Integer(number) => Ok(number.as_str().to_owned()),
                DeValue::Float(number) => Ok(number.as_str().to_owned()),
                DeValue::Boolean(yes) => Ok(yes.to_string()),
                DeValue::Array(rows) if name == ROWS => in_one_text(rows),
                other => Err(other.type_str()),
            };
            entries.push(Entry { key: name, line: self.at(key.span().start), value });
        }
    }
}

/// The rows of a list as `key=value key=value; key=value`, as they can be said in a variable.
fn in_one_text(rows: &DeArray<'_>) -> Result<String, &'static str> {
    const ODD: &str = "a list of something else than tables with plain texts";
    let mut texts = Vec::new();
    for row in rows {
        let DeValue::Table(row) = row.get_ref() else { return Err(ODD) };
        let mut words: Vec<_> = row.iter().collect();
        words.sort_by_key(|(key, _)| key.span().start);
        let word = |(key, value): (&Spanned<Cow<'_, str>>, &Spanned<DeValue<'_>>)| {
            let DeValue::String(value) = value.get_ref() else { return Err(ODD) };
            // White space separates words.
            let value: String = value.split_whitespace().collect();
            let is_word = |text: &str| !text.contains(|c: char| c.is_whitespace() || matches!(c, ';' | '='));
            let key = key.get_ref();
            if is_word(key) && is_word(&value) { Ok(format!("{key}={value}")) } else { Err(ODD) }
        };
        texts.push(words.into_iter().map(word).collect::<Result<Vec<_>, _>>()?.join(" "));
    }
    Ok(texts.join("; "))
}

fn search_path(environment: &Environment) -> Result<Vec<PathBuf>, ConfigError> {
    let home = match environment.text("XDG_CONFIG_HOME")? {
        Some(path) => Some(PathBuf::from(path)),
        None => environment.text("HOME")?.map(|home| Path::new(home).join(".config")),
    };
    // The XDG rule: a relative path there is to be ignored.
    let home = home.filter(|path| path.is_absolute()).map(|path| path.join("muster/muster.toml"));
    Ok(home.into_iter().chain([PathBuf::from("/etc/muster/muster.toml")]).collect())
}

fn read(path: &Path, named_by: &'static str) -> Result<ConfigFile, ConfigError> {
    let unreadable = |source| ConfigError::Unreadable { file: path.to_owned(), named_by, source };
    let file = File::open(path).map_err(unreadable)?;
    let mut text = String::new();
    file.take(limits::CONFIG_MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > limits::CONFIG_MAX_BYTES {
        return Err(ConfigError::TooLarge { file: path.to_owned() });
    }
    Ok(ConfigFile { path: path.to_owned(), text })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_must_exist_and_a_searched_one_may_not() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("nowhere.toml");
        let error = load(Some(&missing), &Environment::default()).unwrap_err().to_string();
        assert!(error.contains("nowhere.toml") && error.contains("--config"), "{error}");

        let home = folder.path().to_str().unwrap();
        let environment = Environment::of(&[("XDG_CONFIG_HOME", home)]);
        assert!(load(None, &environment).unwrap().is_none_or(|file| file.path.starts_with("/etc")));

        std::fs::create_dir(folder.path().join("muster")).unwrap();
        std::fs::write(folder.path().join("muster/muster.toml"), "volume = \"/a\"\n").unwrap();
        let found = load(None, &environment).unwrap().unwrap();
        assert!(found.path.starts_with(folder.path()));

        std::fs::write(&missing, [0xff, 0xfe]).unwrap();
        let named = Environment::of(&[("MUSTER_CONFIG", missing.to_str().unwrap()), ("XDG_CONFIG_HOME", home)]);
        let error = load(None, &named).unwrap_err().to_string();
        assert!(error.contains("MUSTER_CONFIG"), "{error}");
    }
}
