//! A policy as it is written in TOML. Invariant: nothing that was written is ignored; every key is
//! known, belongs to its rule, and has a value that means something.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value;
use toml::Spanned;

use super::condition::{Bound, Condition, Missing, Pointer, Test};
use super::flaw::{Flaw, PolicyError, ValueFlaw};
use super::{Demand, Globs, LocalEdits, Origin, Policy, Rule, printable};
use crate::core::digest::Sha256;
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;
use crate::core::selection::Pattern;
use crate::core::units;

/// Most rules of a file.
const RULES_MAX: usize = 1000;
/// Most values of a list.
const LIST_MAX: usize = 1000;
/// Longest text for people, in characters.
const WORDS_MAX: usize = 1000;

/// What a demand begins with, and the keys that may stand beside it.
const DEMANDS: &[(&str, &[&str])] = &[
    ("file", &["pointer", "equals", "not", "in", "not_in", "exists", "compare", "ignore_case", "missing"]),
    ("forbid", &["except", "except_sha256", "ignore_case"]),
    ("require", &["ignore_case"]),
    ("extra_files", &["except", "ignore_case"]),
    ("mode_forbid", &["mode_require", "files"]),
    ("mode_require", &["mode_forbid", "files"]),
    ("commit", &[]),
    ("verified_within", &[]),
    ("verified_for", &[]),
];
/// The keys of every rule.
const COMMON: &[&str] = &["name", "message", "hint", "repos"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Spanned<Written>>,
    local_edits: Option<Spanned<String>>,
}

/// A configuration file; its other keys are checked by whoever reads it.
#[derive(Deserialize)]
struct Config {
    gate: Option<Gate>,
}

#[derive(Deserialize)]
struct Gate {
    #[serde(default)]
    rule: Vec<Spanned<Written>>,
}

macro_rules! written {
    ($($key:ident: $type:ty),* $(,)?) => {
        /// A rule as it stands there.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Written {
            $($key: Option<Spanned<$type>>),*
        }

        impl Written {
            /// The keys that are there, and where their values begin.
            fn keys(&self) -> Vec<(&'static str, usize)> {
                let all = [$((stringify!($key), self.$key.as_ref().map(|value| value.span().start))),*];
                let there = |(key, at): (&'static str, Option<usize>)| Some((key.trim_start_matches("r#"), at?));
                all.into_iter().filter_map(there).collect()
            }
        }
    };
}

written! {
    name: String,
    message: String,
    hint: String,
    repos: Texts,
    file: String,
    pointer: String,
    equals: toml::Value,
    not: toml::Value,
    r#in: Vec<toml::Value>,
    not_in: Vec<toml::Value>,
    exists: bool,
    compare: String,
    ignore_case: bool,
    missing: String,
    forbid: Texts,
    require: Texts,
    except: Texts,
    except_sha256: Texts,
    extra_files: String,
    files: Texts,
    mode_forbid: String,
    mode_require: String,
    commit: Texts,
    verified_within: String,
    verified_for: String,
}

/// One text, or a list of them.
struct Texts(Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }
            fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Reads a policy file.
pub(super) fn file(text: &str, source: &str) -> Result<Policy, PolicyError> {
    let reading = Reading { text, source };
    let File { rule, local_edits: edits } = reading.toml()?;
    let mut rules = reading.rules(rule)?;
    if let Some(edits) = &edits {
        let at = edits.span().start;
        let Some(word) = LocalEdits::parse(edits.get_ref()) else {
            let why = ValueFlaw::Word { text: edits.get_ref().clone(), words: "allow, deny" };
            return Err(reading.flaw(at, Flaw::Value { rule: "the policy".into(), key: "local_edits", why }));
        };
        let origin = Origin { source: source.to_owned(), line: Some(reading.line(at)), number: None };
        rules.extend(local_edits(word, origin));
    }
    if rules.is_empty() && edits.is_none() {
        return Err(reading.flaw(0, Flaw::Nothing));
    }
    Ok(Policy { rules })
}

/// Reads the rules in `[gate]` of a configuration file.
pub(super) fn config(text: &str, source: &str) -> Result<Policy, PolicyError> {
    let reading = Reading { text, source };
    let Config { gate } = reading.toml()?;
    let rules = gate.map(|gate| reading.rules(gate.rule)).transpose()?;
    Ok(Policy { rules: rules.unwrap_or_default() })
}

/// The rule that a word about local edits stands for.
pub(super) fn local_edits(edits: LocalEdits, origin: Origin) -> Option<Rule> {
    (edits == LocalEdits::Deny).then(|| Rule {
        name: Some("local_edits".to_owned()),
        origin,
        repos: Vec::new(),
        demand: Demand::NoLocalEdits,
        message: "files that were changed here on purpose may not be launched".to_owned(),
        hint: None,
    })
}

/// A text that is being read.
struct Reading<'a> {
    text: &'a str,
    source: &'a str,
}

impl Reading<'_> {
    fn toml<T: for<'de> Deserialize<'de>>(&self) -> Result<T, PolicyError> {
        toml::from_str(self.text).map_err(|error| {
            let message = printable(&error.message().split_whitespace().collect::<Vec<_>>().join(" "));
            self.flaw(error.span().map_or(0, |span| span.start), Flaw::Toml { message })
        })
    }

    fn line(&self, at: usize) -> usize {
        1 + self.text.bytes().take(at).filter(|byte| *byte == b'\n').count()
    }

    fn flaw(&self, at: usize, flaw: Flaw) -> PolicyError {
        PolicyError { file: self.source.to_owned(), line: self.line(at), flaw }
    }

    fn rules(&self, written: Vec<Spanned<Written>>) -> Result<Vec<Rule>, PolicyError> {
        let many = written.len();
        if many > RULES_MAX {
            return Err(self.flaw(0, Flaw::TooMany { rules: many, max: RULES_MAX }));
        }
        let numbered = written.into_iter().enumerate();
        numbered.map(|(at, written)| self.rule(at + 1, written)).collect()
    }

    fn rule(&self, number: usize, written: Spanned<Written>) -> Result<Rule, PolicyError> {
        let start = written.span().start;
        let mut written = written.into_inner();
        let keys = written.keys();
        let shown = match &written.name {
            Some(name) => format!("rule {number} \"{}\"", printable(name.get_ref())),
            None => format!("rule {number}"),
        };
        let at_key = |key: &str| keys.iter().find(|(known, _)| *known == key).map_or(start, |(_, at)| *at);
        let demand = kind(&keys, &shown).map_err(|(at, flaw)| self.flaw(at.unwrap_or(start), flaw))?;
        let making = Making { rule: &shown };
        let made = making.words(&mut written).and_then(|words| Ok((words, making.demand(demand, written)?)));
        let ((name, message, hint, repos), demand) = made.map_err(|(key, flaw)| self.flaw(at_key(key), flaw))?;
        let origin = Origin { source: self.source.to_owned(), line: Some(self.line(start)), number: Some(number) };
        Ok(Rule { name, origin, repos, demand, message, hint })
    }
}

/// Which demand the keys of a rule make, by its key in [`DEMANDS`].
fn kind(keys: &[(&'static str, usize)], rule: &str) -> Result<&'static str, (Option<usize>, Flaw)> {
    let rule = rule.to_owned();
    let demand = DEMANDS.iter().find(|(first, _)| keys.iter().any(|(key, _)| key == first));
    let Some((demand, beside)) = demand else {
        let known = DEMANDS.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
        return Err((None, Flaw::NoDemand { rule, known }));
    };
    let strange = keys.iter().find(|(key, _)| key != demand && !beside.contains(key) && !COMMON.contains(key));
    match strange {
        None => Ok(demand),
        Some((other, at)) if DEMANDS.iter().any(|(first, _)| first == other) => {
            Err((Some(*at), Flaw::TwoDemands { rule, one: demand, other }))
        }
        Some((key, at)) => Err((Some(*at), Flaw::Foreign { rule, key, demand })),
    }
}

/// A flaw, and the key it is about.
type Wrong = (&'static str, Flaw);
/// Name, message, hint, repositories.
type Words = (Option<String>, String, Option<String>, Vec<Pattern>);

/// A rule that is being made of what is written.
struct Making<'a> {
    rule: &'a str,
}

impl Making<'_> {
    fn wrong(&self, key: &'static str, why: ValueFlaw) -> Wrong {
        (key, Flaw::Value { rule: self.rule.to_owned(), key, why })
    }

    fn senseless(&self, key: &'static str, beside: &'static str) -> Wrong {
        (key, Flaw::Senseless { rule: self.rule.to_owned(), key, beside })
    }

    fn words(&self, written: &mut Written) -> Result<Words, Wrong> {
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

    fn demand(&self, demand: &'static str, written: Written) -> Result<Demand, Wrong> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn flaw(text: &str) -> String {
        Policy::parse(text, "p.toml").map(|policy| format!("{policy:?}")).unwrap_err().to_string()
    }

    fn demand(keys: &str) -> Demand {
        let policy = Policy::parse(&format!("[[rule]]\nmessage = \"no\"\n{keys}\n"), "p.toml");
        policy.unwrap_or_else(|error| panic!("{keys}: {error}")).rules()[0].demand.clone()
    }

    #[test]
    fn a_rule_knows_what_it_is_called_where_it_stands_and_what_it_says() {
        let text = "# first\n[[rule]]\nname = \"kv\"\nfile = \"hf_quant_config.json\"\npointer = \"/q/kv\"\nnot = \"FP8\"\n\
                    message = \"\"\"\n  no FP8\n  here\"\"\"\nhint = \"another\\thost\"\nrepos = \"nvidia/*\"\n\n[[rule]]\n\
                    commit = \"5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c\"\nmessage = \"pinned\"\n";
        let policy = Policy::parse(text, "/etc/p.toml").unwrap();
        let [first, second] = policy.rules() else { panic!("{policy:?}") };
        assert_eq!(first.shown(), "rule 1 \"kv\" in /etc/p.toml line 2");
        assert_eq!((first.message.as_str(), first.hint.as_deref()), ("no FP8 here", Some("another host")));
        assert!(first.is_about("nvidia/Kimi") && !first.is_about("org/Kimi") && second.is_about("org/Kimi"));
        assert_eq!(second.shown(), "rule 2 in /etc/p.toml line 13");
        let Demand::Json(condition) = &first.demand else { panic!("{first:?}") };
        assert_eq!(condition.pointer, Some(Pointer::parse("/q/kv").unwrap()));
        assert_eq!(condition.test, Test::Not("FP8".into()));
    }

    #[test]
    fn every_demand_and_every_condition_can_be_written() {
        let json = |test: &str| match demand(&format!("file = \"a.json\"\npointer = \"/x\"\n{test}")) {
            Demand::Json(condition) => condition,
            other => panic!("{other:?}"),
        };
        assert_eq!(json("equals = {a = [1, 1.5, true, \"x\"]}").test.expected(), r#"{"a":[1,1.5,true,"x"]}"#);
        assert_eq!(json("in = [1, \"x\"]").test.expected(), "one of 1, \"x\"");
        assert_eq!(json("not_in = [\"x\"]").test, Test::NotIn(vec!["x".into()]));
        assert_eq!(json("exists = true").test, Test::Exists(true));
        assert_eq!(json("compare = \">= 1, < 2\"").test.expected(), "a number >= 1, < 2");
        assert!(json("not = \"x\"\nignore_case = true").ignore_case);
        assert_eq!(json("not = \"x\"\nmissing = \"close\"").missing, Missing::Close);
        assert_eq!(json("equals = \"x\"\nmissing = \"open\"").missing, Missing::Open);
        assert!(matches!(demand("file = \"a\"\nexists = false"), Demand::Json(Condition { pointer: None, .. })));
        let Demand::Forbid { names, except, .. } =
            demand("forbid = \"*.BIN\"\nexcept = [\"ok.bin\"]\nignore_case = true")
        else {
            panic!("another demand")
        };
        assert!(names.match_name("a/B.bin") && names.match_name("x.BIN") && except.match_name("OK.bin"));
        assert!(matches!(demand("require = [\"*.json\"]"), Demand::Require { .. }));
        assert!(matches!(demand("extra_files = \"deny\""), Demand::NoExtra { .. }));
        assert_eq!(demand("mode_forbid = \"0022\""), Demand::Modes { files: None, forbid: 0o22, require: 0 });
        assert!(matches!(demand("mode_require = \"444\"\nfiles = \"*\""), Demand::Modes { require: 0o444, .. }));
        assert_eq!(demand("verified_within = \"1h\""), Demand::VerifiedWithin(Duration::from_secs(3600)));
        assert_eq!(demand("verified_for = \"1d\""), Demand::VerifiedFor(Duration::from_secs(86_400)));
        assert_eq!(Policy::parse("local_edits = \"deny\"", "p").unwrap().rules()[0].origin.line, Some(1));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_line_and_its_key() {
        let rule = |keys: &str| format!("[[rule]]\nmessage = \"no\"\n{keys}");
        for (text, line, words) in [
            (String::new(), 1, "the policy is empty"),
            ("rules = 1".into(), 1, "unknown field `rules`"),
            ("[[rule]]\n[[rule]]".into(), 1, "rule 1 demands nothing: it needs one of file, forbid"),
            ("[[rule]]\nforbid = \"*.bin\"".into(), 1, "rule 1 has no `message`"),
            ("local_edits = \"never\"".into(), 1, "`local_edits`: `never` is none of allow, deny"),
            (rule("mesage = \"x\""), 3, "unknown field `mesage`"),
            (rule("forbid = \"a\"\ncommit = \"b\""), 4, "rule 1 has `forbid` and `commit`, which are two demands"),
            (rule("forbid = \"a\"\npointer = \"/b\""), 4, "`pointer` does not belong to a rule with `forbid`"),
            (rule("extra_files = \"deny\"\nexcept_sha256 = \"a\""), 4, "`except_sha256` does not belong"),
            (rule("file = \"a\"\npointer = \"/b\""), 3, "rule 1 has 0 conditions"),
            (rule("file = \"a\"\npointer = \"/b\"\nnot = 1\nexists = true"), 3, "has 2 conditions"),
            (rule("file = \"a\"\nequals = 1"), 3, "rule 1 has no `pointer`"),
            (rule("file = \"a\"\npointer = \"b\"\nnot = 1"), 4, "`pointer`: `b` is no JSON pointer"),
            (rule("file = \"*.json\"\nexists = true"), 3, "`file`: `*.json` names one file"),
            (rule("file = \"../a\"\nexists = true"), 3, "`file`: unsafe file name"),
            (rule("file = \"a\"\npointer = \"\"\nnot = 2026-01-01"), 5, "`not`: a value of JSON belongs there"),
            (rule("file = \"a\"\npointer = \"\"\nequals = nan"), 5, "a number that is not finite"),
            (rule("file = \"a\"\npointer = \"\"\nin = []"), 5, "`in`: it is empty"),
            (rule("file = \"a\"\npointer = \"\"\ncompare = \"= 1\""), 5, "`compare`: `= 1` compares nothing"),
            (rule("file = \"a\"\npointer = \"\"\nnot = 1\nmissing = \"no\""), 6, "`no` is none of close, open"),
            (rule("file = \"a\"\nexists = false\nmissing = \"close\""), 5, "`missing` makes no sense beside `exists`"),
            (rule("file = \"a\"\nexists = true\nignore_case = true"), 5, "`ignore_case` makes no sense"),
            (rule("forbid = []"), 3, "`forbid`: it is empty"),
            (rule("forbid = [\"\"]"), 3, "an empty pattern matches no file"),
            (rule("forbid = 1"), 3, "a text or a list of texts"),
            (rule("forbid = \"a\"\nexcept_sha256 = \"abc\""), 4, "`except_sha256`: `abc` is no"),
            (rule("extra_files = \"allow\""), 3, "`allow` is none of deny"),
            (rule("mode_forbid = \"99\""), 3, "`99` is no mode"),
            (rule("mode_forbid = \"0\""), 3, "is no mode"),
            (
                rule("mode_forbid = \"6\"\nmode_require = \"4\""),
                3,
                "`mode_forbid` makes no sense beside `mode_require`",
            ),
            (rule("commit = \"main\""), 3, "`main` is no commit"),
            (rule("commit = [\"5c5c\"]"), 3, "`5c5c` is no commit"),
            (rule("verified_within = \"30\""), 3, "`30` is no duration"),
            (rule("forbid = \"a\"\nhint = \" \""), 4, "`hint`: it is empty"),
            (rule("forbid = \"a\"\nname = \"\\u0007\""), 4, "it has a control character"),
            (rule("forbid = \"a\"\n\nforbid = \"b\""), 5, "duplicate key"),
        ] {
            let said = flaw(&text);
            assert!(said.starts_with(&format!("p.toml line {line}: ")) && said.contains(words), "{text}\n{said}");
            assert!(!said.chars().any(char::is_control), "{said}");
        }
    }

    #[test]
    fn the_rules_of_a_configuration_stand_among_its_other_keys() {
        let text = "volume = \"/v\"\n[gate]\npolicy = \"/p\"\n[[gate.rule]]\nforbid = \"*.bin\"\nmessage = \"no\"\n[log]\nlevel = 1\n";
        let policy = Policy::parse_config(text, "muster.toml").unwrap();
        assert_eq!(policy.rules()[0].shown(), "rule 1 in muster.toml line 4");
        assert!(Policy::parse_config("volume = \"/v\"", "m").unwrap().is_empty());
        let error = Policy::parse_config("[gate]\nrule = 1\n", "m").unwrap_err();
        assert_eq!(error.line, 2);
    }

    #[test]
    fn a_policy_as_large_as_may_be_is_read_in_no_time() {
        let size = usize::try_from(crate::limits::CONFIG_MAX_BYTES).unwrap();
        let many = "[[rule]]\n".repeat(size / 9);
        let deep = format!("[[rule]]\nnot = {}", "[".repeat(size - 20));
        let long = format!("[[rule]]\nmessage = \"{}\"", "x".repeat(size - 30));
        for text in [many, deep, long] {
            assert!(flaw(&text).len() < 1000);
        }
    }
}
