//! A policy held against a model. Pure: the facts are arguments. Invariant: a fact that could not
//! be had keeps a rule from being met.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;

use super::breach::Breach;
use super::look::{Finding, Outcome, is_forbidden};
use super::{Demand, Policy, Rule};
use crate::core::digest::Sha256;
use crate::core::reason::{Reason, Why};
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;

/// What is known of a model.
#[derive(Debug)]
pub struct Facts<'a> {
    /// Its repository.
    pub repo: &'a str,
    /// Its commit.
    pub commit: CommitId,
    /// When it was last verified as a whole.
    pub verified_at: Timestamp,
    /// Whether every byte was hashed just now.
    pub hashed_now: bool,
    /// The time.
    pub now: Timestamp,
    /// The files that [`Policy::documents`] names.
    pub documents: &'a BTreeMap<RepoPath, Document>,
    /// What lies in the directory, for [`Policy::needs_names`]; or why that cannot be told.
    pub names: Result<&'a [Name], &'a str>,
    /// The contents of the files that [`Policy::digests`] names.
    pub digests: &'a BTreeMap<String, Digested>,
    /// Files that were changed here on purpose.
    pub local_edits: &'a [RepoPath],
}

/// A file that a condition is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Document {
    /// It is not there.
    Missing,
    /// What is in it.
    Json(Value),
    /// It is there, and no JSON.
    NoJson {
        /// What the parser says.
        why: String,
    },
    /// It is there, and nobody can tell what is in it.
    Unreadable {
        /// Why.
        why: String,
    },
}

/// A file whose digest decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Digested {
    /// What is in it.
    As(Sha256),
    /// More than anybody reads for this.
    TooLarge {
        /// Its size, in words.
        why: String,
    },
    /// Nobody can tell.
    Unreadable {
        /// Why.
        why: String,
    },
}

/// What a name in the directory stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A folder.
    Folder,
    /// A link, or something odder.
    Other,
}

/// A name in the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Its path below the directory.
    pub path: String,
    /// What it stands for.
    pub kind: Kind,
    /// Its permission bits.
    pub mode: u32,
    /// Whether the manifest does not have it.
    pub is_extra: bool,
}

/// What was demanded and found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// The file it is about, or the first of several.
    pub file: Option<RepoPath>,
    /// The place in that file.
    pub pointer: Option<String>,
    /// What it is about, in words.
    pub about: String,
    /// What was demanded.
    pub expected: String,
    /// What was found.
    pub found: String,
}

/// What became of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is about other repositories.
    Elsewhere,
    /// It is met.
    Met(Seen),
    /// It is not met, or nobody can tell.
    Broken(Breach),
}

impl Policy {
    /// The files whose content conditions are about.
    pub fn documents(&self) -> impl Iterator<Item = &RepoPath> {
        self.rules().iter().filter_map(|rule| match &rule.demand {
            Demand::Json(condition) => Some(&condition.file),
            _ => None,
        })
    }

    /// Whether a rule is about names or modes in the directory.
    #[must_use]
    pub fn needs_names(&self) -> bool {
        let is_about_names = |demand: &Demand| {
            matches!(
                demand,
                Demand::Forbid { .. } | Demand::Require { .. } | Demand::NoExtra { .. } | Demand::Modes { .. }
            )
        };
        self.rules().iter().any(|rule| is_about_names(&rule.demand))
    }

    /// The files among `names` whose digest decides.
    #[must_use]
    pub fn digests<'a>(&self, names: &'a [Name]) -> Vec<&'a Name> {
        let decides = |name: &Name| {
            self.rules().iter().any(|rule| match &rule.demand {
                Demand::Forbid { names, except, except_sha256: Some(_) } => is_forbidden(name, names, except),
                _ => false,
            })
        };
        names.iter().filter(|name| name.kind == Kind::File && decides(name)).collect()
    }

    /// The verdict of each rule, in their order.
    #[must_use]
    pub fn judge(&self, facts: &Facts<'_>) -> Vec<Verdict> {
        self.rules().iter().map(|rule| rule.judge(facts)).collect()
    }
}

/// The reasons to stay closed among verdicts.
#[must_use]
pub fn reasons(verdicts: &[Verdict]) -> Vec<Reason> {
    let broken = verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Broken(breach) => Some(breach),
        Verdict::Elsewhere | Verdict::Met(_) => None,
    });
    broken.map(|breach| Reason { file: breach.seen.file.clone(), why: Why::Policy(Box::new(breach.clone())) }).collect()
}

impl Rule {
    /// Holds it against a model.
    #[must_use]
    pub fn judge(&self, facts: &Facts<'_>) -> Verdict {
        if !self.is_about(facts.repo) {
            return Verdict::Elsewhere;
        }
        let Finding { seen, outcome } = self.demand.find(facts);
        match outcome {
            Outcome::Met => Verdict::Met(seen),
            Outcome::Broken(remedy) => Verdict::Broken(Breach::new(self, seen, remedy, false)),
            Outcome::Unknown(remedy) => Verdict::Broken(Breach::new(self, seen, remedy, true)),
        }
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} expected, {} found", self.about, self.expected, self.found)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::core::code::Code;
    use crate::core::policy::Remedy;

    fn path(text: &str) -> RepoPath {
        RepoPath::parse(text).unwrap()
    }

    fn file(path: &str, mode: u32, is_extra: bool) -> Name {
        Name { path: path.to_owned(), kind: Kind::File, mode, is_extra }
    }

    /// Facts that tests change and hand out.
    struct World {
        documents: BTreeMap<RepoPath, Document>,
        names: Result<Vec<Name>, String>,
        digests: BTreeMap<String, Digested>,
        local_edits: Vec<RepoPath>,
        hashed_now: bool,
        age_s: i64,
    }

    impl World {
        fn new() -> Self {
            let names = vec![
                Name { path: ".".into(), kind: Kind::Folder, mode: 0o755, is_extra: true },
                file("config.json", 0o644, false),
                file("code.py", 0o640, false),
                file("old/weights.BIN", 0o664, true),
                Name { path: "link".into(), kind: Kind::Other, mode: 0o777, is_extra: true },
            ];
            let config = json!({"q": {"kv": "FP8", "bits": 8, "none": null}});
            Self {
                documents: BTreeMap::from([
                    (path("config.json"), Document::Json(config)),
                    (path("none.json"), Document::Missing),
                    (path("odd.json"), Document::NoJson { why: "expected value".into() }),
                    (path("shut.json"), Document::Unreadable { why: "permission denied".into() }),
                ]),
                names: Ok(names),
                digests: BTreeMap::new(),
                local_edits: Vec::new(),
                hashed_now: false,
                age_s: 7200,
            }
        }

        /// What a rule with these keys comes to: `None` when it is met, else the breach.
        fn judge(&self, keys: &str) -> Option<Breach> {
            let policy = Policy::parse(&format!("[[rule]]\nmessage = \"the words\"\n{keys}\n"), "p").unwrap();
            match self.verdicts(&policy).pop().unwrap() {
                Verdict::Met(_) => None,
                Verdict::Broken(breach) => Some(breach),
                Verdict::Elsewhere => panic!("{keys} is about this"),
            }
        }

        fn verdicts(&self, policy: &Policy) -> Vec<Verdict> {
            let now = Timestamp::from_second(1_800_000_000).unwrap();
            policy.judge(&Facts {
                repo: "org/Kimi",
                commit: CommitId::from_bytes([0x5c; 20]),
                verified_at: now.checked_sub(jiff::SignedDuration::from_secs(self.age_s)).unwrap(),
                hashed_now: self.hashed_now,
                now,
                documents: &self.documents,
                names: self.names.as_deref().map_err(String::as_str),
                digests: &self.digests,
                local_edits: &self.local_edits,
            })
        }
    }

    fn exit(breach: Option<Breach>) -> u8 {
        breach.map_or(0, |breach| breach.code().exit())
    }

    #[test]
    fn a_condition_is_met_broken_or_unknown() {
        let world = World::new();
        let at = |file: &str, pointer: &str, test: &str| {
            exit(world.judge(&format!("file = \"{file}\"\npointer = \"{pointer}\"\n{test}")))
        };
        for (test, value, null, nothing, no_file) in [
            ("equals = \"FP8\"", 0, 12, 12, 12),
            ("equals = \"FP8\"\nmissing = \"open\"", 0, 12, 0, 0),
            ("not = \"FP8\"", 12, 0, 0, 0),
            ("not = \"FP8\"\nmissing = \"close\"", 12, 0, 12, 12),
            ("not = \"fp8\"", 0, 0, 0, 0),
            ("not = \"fp8\"\nignore_case = true", 12, 0, 0, 0),
            ("in = [\"FP8\", 1]", 0, 12, 12, 12),
            ("not_in = [\"FP8\", 1]", 12, 0, 0, 0),
            ("not_in = [\"FP8\", 1]\nmissing = \"close\"", 12, 0, 12, 12),
            ("exists = true", 0, 0, 12, 12),
            ("exists = false", 12, 12, 0, 0),
            ("compare = \"< 9\"", 12, 12, 12, 12),
            ("compare = \"< 9\"\nmissing = \"open\"", 12, 12, 0, 0),
        ] {
            assert_eq!(at("config.json", "/q/kv", test), value, "value: {test}");
            assert_eq!(at("config.json", "/q/none", test), null, "null: {test}");
            assert_eq!(at("config.json", "/q/nothing", test), nothing, "nothing: {test}");
            assert_eq!(at("none.json", "/q/kv", test), no_file, "no file: {test}");
            assert_eq!(at("odd.json", "/q/kv", test), 12, "no JSON: {test}");
            assert_eq!(at("shut.json", "/q/kv", test), 18, "unreadable: {test}");
            assert_eq!(at("unasked.json", "/q/kv", test), 18, "not looked at: {test}");
        }
        assert_eq!(at("config.json", "/q/bits", "compare = \">= 8, < 9\""), 0);
    }

    #[test]
    fn a_condition_on_the_file_itself_does_not_look_into_it() {
        let world = World::new();
        for (name, there, not_there) in
            [("config.json", 0, 12), ("odd.json", 0, 12), ("none.json", 12, 0), ("shut.json", 18, 18)]
        {
            assert_eq!(exit(world.judge(&format!("file = \"{name}\"\nexists = true"))), there, "{name}");
            assert_eq!(exit(world.judge(&format!("file = \"{name}\"\nexists = false"))), not_there, "{name}");
        }
    }

    #[test]
    fn a_breach_says_the_operators_words_first_then_rule_place_demand_and_find() {
        let breach =
            World::new().judge("file = \"config.json\"\npointer = \"/q/kv\"\nnot = \"FP8\"\nname = \"kv\"").unwrap();
        let line =
            "the words (rule 1 \"kv\" in p line 1: config.json /q/kv: anything but \"FP8\" expected, \"FP8\" found)";
        assert_eq!(breach.to_string(), line);
        assert_eq!(breach.remedy, Remedy::Change { file: path("config.json") });
        let reason = reasons(&[Verdict::Broken(breach)]).pop().unwrap();
        assert_eq!((reason.to_string().as_str(), reason.why.code()), (line, Code::Refused));
        assert_eq!(
            (reason.why.expected().unwrap(), reason.why.found().unwrap()),
            ("anything but \"FP8\"".into(), "\"FP8\"".into())
        );
        let unknown = World::new().judge("file = \"shut.json\"\npointer = \"\"\nexists = true").unwrap();
        assert!(
            unknown.to_string().starts_with("it cannot be told whether this rule is met: the words ("),
            "{unknown}"
        );
    }

    #[test]
    fn names_are_forbidden_required_or_extra() {
        let mut world = World::new();
        let breach = world.judge("forbid = [\"*.bin\", \"*.pt\"]\nignore_case = true").unwrap();
        assert_eq!(breach.seen.to_string(), "files *.bin, *.pt: none expected, old/weights.BIN found");
        assert_eq!((breach.seen.file, breach.remedy), (Some(path("old/weights.BIN")), Remedy::Except));
        for (keys, expected) in [
            ("forbid = \"*.bin\"", 0),
            ("forbid = \"*.bin\"\nexcept = \"OLD/*\"\nignore_case = true", 0),
            ("forbid = \"link\"", 12),
            ("forbid = \".\"", 0),
            ("require = [\"config.json\", \"*.py\"]", 0),
            ("require = [\"config.json\", \"*.gguf\"]", 12),
            ("require = \"link\"", 12),
            ("extra_files = \"deny\"", 12),
            ("extra_files = \"deny\"\nexcept = \"old/*\"", 12),
            ("extra_files = \"deny\"\nexcept = [\"old/*\", \"link\"]", 0),
        ] {
            assert_eq!(exit(world.judge(keys)), expected, "{keys}");
        }
        world.names = Err("not allowed to list /m".into());
        for keys in ["forbid = \"*.bin\"", "require = \"*\"", "extra_files = \"deny\"", "mode_forbid = \"2\""] {
            assert_eq!(exit(world.judge(keys)), 18, "{keys}");
        }
    }

    #[test]
    fn many_names_are_told_in_few_words() {
        let mut world = World::new();
        world.names = Ok((0..9).map(|n| file(&format!("{n}.bin"), 0o644, false)).collect());
        let found = world.judge("forbid = \"*.bin\"").unwrap().seen.found;
        assert_eq!(found, "0.bin, 1.bin, 2.bin, 3.bin, 4.bin and 4 more");
    }

    #[test]
    fn code_that_was_read_may_stay_by_its_digest_and_no_other_may() {
        let mut world = World::new();
        let digest = |byte| Sha256::from_bytes([byte; 32]);
        let keys = format!("forbid = \"*.py\"\nexcept_sha256 = [\"{}\"]", digest(1));
        let policy = Policy::parse(&format!("[[rule]]\nmessage = \"m\"\n{keys}"), "p").unwrap();
        let names = world.names.clone().unwrap();
        let wanted: Vec<_> = policy.digests(&names).into_iter().map(|name| name.path.as_str()).collect();
        assert_eq!(wanted, ["code.py"]);
        world.digests.insert("code.py".into(), Digested::As(digest(1)));
        assert_eq!(exit(world.judge(&keys)), 0);
        world.digests.insert("code.py".into(), Digested::As(digest(2)));
        let breach = world.judge(&keys).unwrap();
        assert!(breach.seen.found.contains(&format!("code.py (sha256 {})", digest(2))), "{breach}");
        world.digests.insert("code.py".into(), Digested::TooLarge { why: "5 GB".into() });
        assert_eq!(exit(world.judge(&keys)), 12, "what nobody could have read was not allowed");
        world.digests.insert("code.py".into(), Digested::Unreadable { why: "permission denied".into() });
        assert_eq!(exit(world.judge(&keys)), 18);
        world.names.as_mut().unwrap().push(file("more.py", 0o644, true));
        world.digests.insert("more.py".into(), Digested::As(digest(3)));
        assert_eq!(exit(world.judge(&keys)), 12, "what is certainly forbidden outweighs what is in doubt");
        world.digests.clear();
        assert_eq!(exit(world.judge(&keys)), 12, "no digest is no excuse");
    }

    #[test]
    fn modes_are_looked_at_bit_by_bit() {
        let world = World::new();
        let breach = world.judge("mode_forbid = \"0022\"\nmode_require = \"0444\"").unwrap();
        assert_eq!(breach.seen.found, "code.py (0640), old/weights.BIN (0664)", "a link has no mode of its own");
        let Remedy::Modes { change } = &breach.remedy else { panic!("{breach:?}") };
        assert_eq!(change, "u+r,g-w,g+r,o-w,o+r");
        for (keys, expected) in [
            ("mode_forbid = \"0020\"\nfiles = \"*.json\"", 0),
            ("mode_forbid = \"0020\"\nfiles = \"old/*\"", 12),
            ("mode_forbid = \"0001\"", 12),
            ("mode_forbid = \"0001\"\nfiles = \"*\"", 0),
            ("mode_require = \"0004\"\nfiles = \"config.json\"", 0),
            ("mode_require = \"0400\"", 0),
        ] {
            assert_eq!(exit(world.judge(keys)), expected, "{keys}");
        }
    }

    #[test]
    fn commits_and_ages_are_held_against_what_is_there() {
        let mut world = World::new();
        let (here, other) = ("5c".repeat(20), "aa".repeat(20));
        assert_eq!(exit(world.judge(&format!("commit = [\"{other}\", \"{here}\"]"))), 0);
        let breach = world.judge(&format!("commit = \"{other}\"")).unwrap();
        assert_eq!(breach.seen.to_string(), format!("the commit: {other} expected, {here} found"));
        for (age_s, keys, expected) in [
            (7200, "verified_within = \"2h\"", 0),
            (7201, "verified_within = \"2h\"", 12),
            (7200, "verified_for = \"2h\"", 0),
            (7199, "verified_for = \"2h\"", 12),
            // Clocks may differ a little, and a receipt of tomorrow tells nothing.
            (-60, "verified_within = \"2h\"", 0),
            (-60, "verified_for = \"1s\"", 12),
            (-86_400, "verified_within = \"2h\"", 18),
            (-86_400, "verified_for = \"2h\"", 18),
        ] {
            world.age_s = age_s;
            assert_eq!(exit(world.judge(keys)), expected, "{age_s} {keys}");
        }
        world.age_s = 1 << 30;
        world.hashed_now = true;
        assert_eq!(exit(world.judge("verified_within = \"2h\"")), 0, "it was verified just now");
    }

    #[test]
    fn local_edits_are_refused_where_they_are_denied() {
        let mut world = World::new();
        let deny = Policy::parse("local_edits = \"deny\"", "p").unwrap();
        assert!(matches!(world.verdicts(&deny)[..], [Verdict::Met(_)]));
        world.local_edits = vec![path("config.json"), path("code.py")];
        let [Verdict::Broken(breach)] = &world.verdicts(&deny)[..] else { panic!("it is met") };
        assert_eq!(breach.seen.to_string(), "files changed here on purpose: none expected, config.json, code.py found");
        assert!(world.verdicts(&Policy::parse("local_edits = \"allow\"", "p").unwrap()).is_empty());
    }

    #[test]
    fn a_rule_about_other_repositories_says_nothing_here() {
        let rule = |repos: &str| format!("[[rule]]\nforbid = \"*\"\nmessage = \"m\"\nrepos = {repos}\n");
        let verdict = |repos: &str| World::new().verdicts(&Policy::parse(&rule(repos), "p").unwrap()).pop().unwrap();
        assert_eq!(verdict("[\"nvidia/*\", \"org/other\"]"), Verdict::Elsewhere);
        assert!(matches!(verdict("\"org/*\""), Verdict::Broken(_)));
    }

    proptest! {
        #[test]
        fn what_cannot_be_told_never_opens_a_gate(why in "\\PC{0,9}", test in 0usize..7, open: bool) {
            const TESTS: [&str; 7] = ["equals = 1", "not = 1", "in = [1]", "not_in = [1]", "exists = true", "exists = false", "compare = \"> 1\""];
            let mut world = World::new();
            world.documents.insert(path("a.json"), Document::Unreadable { why: why.clone() });
            world.names = Err(why);
            let missing = if open && !TESTS[test].starts_with("exists") { "missing = \"open\"" } else { "" };
            let keys = format!("file = \"a.json\"\npointer = \"/x\"\n{}\n{missing}", TESTS[test]);
            prop_assert_eq!(exit(world.judge(&keys)), 18);
            prop_assert_eq!(exit(world.judge("extra_files = \"deny\"")), 18);
        }

        #[test]
        fn within_and_for_split_all_ages(age_s in 0i64..1 << 35, bound_s in 1u32..1 << 30) {
            let mut world = World::new();
            world.age_s = age_s;
            let within = exit(world.judge(&format!("verified_within = \"{bound_s}s\""))) == 0;
            let since = exit(world.judge(&format!("verified_for = \"{bound_s}s\""))) == 0;
            prop_assert!(within || since);
            prop_assert_eq!(within && since, u64::try_from(age_s).unwrap() == Duration::from_secs(bound_s.into()).as_secs());
        }

        #[test]
        fn names_of_a_directory_steer_no_terminal(name in "\\PC*|[\\x00-\\x1f]{1,5}") {
            let mut world = World::new();
            world.names = Ok(vec![file(&name, 0o666, true)]);
            for keys in ["extra_files = \"deny\"", "mode_forbid = \"2\"", "forbid = \"*\""] {
                let breach = world.judge(keys).unwrap();
                prop_assert!(!breach.to_string().chars().any(char::is_control), "{}", breach);
            }
        }
    }
}
