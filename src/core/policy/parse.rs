//! A policy as it is written in TOML. Invariant: nothing that was written is ignored; every key is
//! known, belongs to its rule, and has a value that means something.

use serde::Deserialize;
use toml::Spanned;

use super::flaw::{Flaw, PolicyError, ValueFlaw};
use super::making::Making;
use super::written::{Written, kind};
use super::{Demand, LocalEdits, Origin, Policy, Rule, printable};

/// Most rules of a file.
const RULES_MAX: usize = 1000;

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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::condition::{Condition, Missing, Pointer, Test};
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
