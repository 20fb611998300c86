//! A rule made of its keys, each with a value that means something.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use toml::Spanned;

use super::condition::{Bound, Condition, Missing, Pointer, Test};
use super::flaw::{Flaw, ValueFlaw};
use super::written::{Texts, Written};
use super::{Demand, Globs};
use crate::core::digest::Sha256;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;
use crate::core::selection::Pattern;
use crate::core::units;

/// Most values of a list.
const LIST_MAX: usize = 1000;
/// Longest text for people, in characters.
const WORDS_MAX: usize = 1000;

/// A flaw, and the key it is about.
pub(super) type Wrong = (&'static str, Flaw);
/// Name, message, hint, repositories.
pub(super) type Words = (Option<String>, String, Option<String>, Vec<Pattern>);

/// A rule that is being made of what is written.
pub(super) struct Making<'a> {
    /// Which rule, for messages.
    pub(super) rule: &'a str,
}

impl Making<'_> {
    fn wrong(&self, key: &'static str, why: ValueFlaw) -> Wrong {
        (key, Flaw::Value { rule: self.rule.to_owned(), key, why })
    }

    fn senseless(&self, key: &'static str, beside: &'static str) -> Wrong {
        (key, Flaw::Senseless { rule: self.rule.to_owned(), key, beside })
    }

    /// What every rule has.
    pub(super) fn words(&self, written: &mut Written) -> Result<Words, Wrong> {
        let words = |key, text: Option<Spanned<String>>| {
            text.map(|text| in_one_line(text.get_ref()).map_err(|why| self.wrong(key, why))).transpose()
        };
        let name = words("name", written.name.take())?;
        let message = words("message", written.message.take())?;
        let hint = words("hint", written.hint.take())?;
        let repos = self.globs("repos", written.repos.take(), false)?.map(|globs| globs.patterns);
        let message = message.ok_or_else(|| ("message", Flaw::NoMessage { rule: self.rule.to_owned() }))?;
        Ok((name, message, hint, repos.unwrap_or_default()))
    }

    /// What it demands; `demand` is the key that says what kind of rule it is.
    pub(super) fn demand(&self, demand: &'static str, written: Written) -> Result<Demand, Wrong> {
        let ignore_case = written.ignore_case.as_ref().is_some_and(|flag| *flag.get_ref());
        Ok(match demand {
            "file" => return self.json(written, ignore_case),
            "forbid" => {
                let digest = |text: &str| Sha256::parse(text).map_err(ValueFlaw::Digest);
                // An empty list is how one begins: the gate then tells the digest of each file.
                let none_yet = written.except_sha256.as_ref().is_some_and(|list| list.get_ref().0.is_empty());
                let listed = written.except_sha256.filter(|_| !none_yet);
                let digests = self.list("except_sha256", listed, digest)?.or_else(|| none_yet.then(Vec::new));
                Demand::Forbid {
                    names: self.globs("forbid", written.forbid, ignore_case)?.unwrap_or_default(),
                    except: self.globs("except", written.except, ignore_case)?.unwrap_or_default(),
                    except_sha256: digests.map(BTreeSet::from_iter),
                }
            }
            "require" => {
                Demand::Require { names: self.globs("require", written.require, ignore_case)?.unwrap_or_default() }
            }
            "extra_files" => {
                let word = written.extra_files.map(Spanned::into_inner).unwrap_or_default();
                if word != "deny" {
                    return Err(self.wrong("extra_files", ValueFlaw::Word { text: word, words: "deny" }));
                }
                Demand::NoExtra { except: self.globs("except", written.except, ignore_case)?.unwrap_or_default() }
            }
            "mode_forbid" | "mode_require" => {
                let forbid = self.mode("mode_forbid", written.mode_forbid)?;
                let require = self.mode("mode_require", written.mode_require)?;
                if forbid & require != 0 {
                    return Err(self.senseless("mode_forbid", "mode_require"));
                }
                Demand::Modes { files: self.globs("files", written.files, false)?, forbid, require }
            }
            "commit" => {
                let commit =
                    |text: &str| CommitId::parse(text).map_err(|_| ValueFlaw::Commit { text: text.to_owned() });
                Demand::Commit(self.list("commit", written.commit, commit)?.unwrap_or_default())
            }
            "verified_within" => Demand::VerifiedWithin(self.age("verified_within", written.verified_within)?),
            _ => Demand::VerifiedFor(self.age("verified_for", written.verified_for)?),
        })
    }

    fn json(&self, written: Written, ignore_case: bool) -> Result<Demand, Wrong> {
        let name = written.file.map(Spanned::into_inner).unwrap_or_default();
        let file = one_file(&name).map_err(|why| self.wrong("file", why))?;
        let pointer = written.pointer.map(Spanned::into_inner).map(|text| Pointer::parse(&text)).transpose();
        let pointer = pointer.map_err(|why| self.wrong("pointer", why))?;
        let missing = match written.missing.map(Spanned::into_inner) {
            None => Missing::default(),
            Some(text) => Missing::parse(&text)
                .ok_or_else(|| self.wrong("missing", ValueFlaw::Word { text, words: "close, open" }))?,
        };
        let mut tests = Vec::new();
        for (key, value, test) in
            [("equals", written.equals, Test::Equals as fn(Value) -> Test), ("not", written.not, Test::Not)]
        {
            let Some(value) = value else { continue };
            tests.push(test(literal(value.into_inner()).map_err(|why| self.wrong(key, why))?));
        }
        for (key, values, test) in
            [("in", written.r#in, Test::In as fn(Vec<Value>) -> Test), ("not_in", written.not_in, Test::NotIn)]
        {
            let Some(values) = values else { continue };
            tests.push(test(literals(values.into_inner()).map_err(|why| self.wrong(key, why))?));
        }
        tests.extend(written.exists.map(|exists| Test::Exists(exists.into_inner())));
        if let Some(text) = written.compare {
            tests.push(Test::Compare(Bound::parse(text.get_ref()).map_err(|why| self.wrong("compare", why))?));
        }
        let rule = || self.rule.to_owned();
        let [test] = <[Test; 1]>::try_from(tests)
            .map_err(|tests| ("file", Flaw::Conditions { rule: rule(), found: tests.len() }))?;
        match &test {
            Test::Exists(false) if missing == Missing::Close => return Err(self.senseless("missing", "exists")),
            Test::Exists(true) if missing == Missing::Open => return Err(self.senseless("missing", "exists")),
            Test::Exists(_) if ignore_case => return Err(self.senseless("ignore_case", "exists")),
            Test::Compare(_) if ignore_case => return Err(self.senseless("ignore_case", "compare")),
            Test::Exists(_) => {}
            _ if pointer.is_none() => return Err(("file", Flaw::NoPointer { rule: rule() })),
            _ => {}
        }
        Ok(Demand::Json(Condition { file, pointer, test, ignore_case, missing }))
    }

    fn globs(
        &self,
        key: &'static str,
        texts: Option<Spanned<Texts>>,
        ignore_case: bool,
    ) -> Result<Option<Globs>, Wrong> {
        let glob = |text: &str| {
            let text = if ignore_case { text.to_ascii_lowercase() } else { text.to_owned() };
            Pattern::parse(&text).map_err(ValueFlaw::Pattern)
        };
        Ok(self.list(key, texts, glob)?.map(|patterns| Globs { patterns, ignore_case }))
    }

    fn list<T>(
        &self,
        key: &'static str,
        texts: Option<Spanned<Texts>>,
        parse: impl Fn(&str) -> Result<T, ValueFlaw>,
    ) -> Result<Option<Vec<T>>, Wrong> {
        let Some(Texts(texts)) = texts.map(Spanned::into_inner) else { return Ok(None) };
        let whole = bounded(texts.len(), LIST_MAX);
        let parsed = whole.and_then(|()| texts.iter().map(|text| parse(plain(text)?)).collect());
        parsed.map(Some).map_err(|why| self.wrong(key, why))
    }

    fn mode(&self, key: &'static str, text: Option<Spanned<String>>) -> Result<u32, Wrong> {
        let Some(text) = text.map(Spanned::into_inner) else { return Ok(0) };
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let bits = u32::from_str_radix(&text, 8).ok().filter(|bits| digits && (1..=0o7777).contains(bits));
        bits.ok_or_else(|| self.wrong(key, ValueFlaw::Mode { text }))
    }

    fn age(&self, key: &'static str, text: Option<Spanned<String>>) -> Result<Duration, Wrong> {
        let text = text.map(Spanned::into_inner).unwrap_or_default();
        let age = plain(&text).and_then(|text| units::parse_duration(text).map_err(ValueFlaw::Unit));
        age.map_err(|why| self.wrong(key, why))
    }
}

/// Words for people: line ends and tabs become blanks.
fn in_one_line(text: &str) -> Result<String, ValueFlaw> {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    bounded(words.chars().count(), WORDS_MAX)?;
    plain(&words).map(str::to_owned)
}

fn plain(text: &str) -> Result<&str, ValueFlaw> {
    if text.chars().any(char::is_control) { Err(ValueFlaw::Control) } else { Ok(text) }
}

const fn bounded(len: usize, max: usize) -> Result<(), ValueFlaw> {
    match len {
        0 => Err(ValueFlaw::Empty),
        len if len > max => Err(ValueFlaw::TooLong { max }),
        _ => Ok(()),
    }
}

fn one_file(name: &str) -> Result<RepoPath, ValueFlaw> {
    if name.contains(['*', '?']) {
        return Err(ValueFlaw::Wildcard { text: name.to_owned() });
    }
    RepoPath::parse(name).map_err(ValueFlaw::Path)
}

fn literals(values: Vec<toml::Value>) -> Result<Vec<Value>, ValueFlaw> {
    bounded(values.len(), LIST_MAX)?;
    values.into_iter().map(literal).collect()
}

/// A value of TOML as JSON has it.
fn literal(value: toml::Value) -> Result<Value, ValueFlaw> {
    Ok(match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => Value::from(number),
        toml::Value::Boolean(flag) => Value::Bool(flag),
        toml::Value::Float(number) => serde_json::Number::from_f64(number)
            .map(Value::Number)
            .ok_or(ValueFlaw::NoJson { found: "a number that is not finite" })?,
        toml::Value::Array(values) => Value::Array(values.into_iter().map(literal).collect::<Result<_, _>>()?),
        toml::Value::Table(table) => {
            let pairs = table.into_iter().map(|(key, value)| Ok((key, literal(value)?)));
            Value::Object(pairs.collect::<Result<_, _>>()?)
        }
        toml::Value::Datetime(_) => return Err(ValueFlaw::NoJson { found: "a date" }),
    })
}
