//! The operator's policy as a pipeline meets it: the real binary, real exit codes, and a launcher
//! that starts or does not.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

#[path = "support/model.rs"]
mod model;
#[path = "policy/shipped.rs"]
mod shipped;
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use model::{Model, weights};
use serde_json::Value;
use support::{Muster, Output, assert_valid, sha256_hex};

const SOON: Duration = Duration::from_secs(30);
const SCHEMA: &str = include_str!("../src/api/schema/gate.v1.json");
const COMMIT: &str = "5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c5c";
const CODE: &[u8] = b"class Modeling: pass\n";

/// A verified model, and somebody with a policy for it.
struct World {
    model: Model,
    muster: Muster,
}

/// A small model of the shape that policies are about.
fn files() -> Vec<(String, Vec<u8>)> {
    let config = br#"{"auto_map": {"AutoModel": "modeling.Modeling"}, "layers": 61, "rope": 1.5, "dtype": "bfloat16"}"#;
    let quantization = br#"{"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "none": null}}"#;
    vec![
        ("config.json".into(), config.to_vec()),
        ("hf_quant_config.json".into(), quantization.to_vec()),
        ("model.safetensors".into(), weights(1000, 7)),
        ("modeling.py".into(), CODE.to_vec()),
        ("notes.json".into(), b"no JSON at all".to_vec()),
    ]
}

impl World {
    fn new() -> Self {
        Self::of(&files())
    }

    fn of(files: &[(String, Vec<u8>)]) -> Self {
        let model = Model::verified(files);
        let muster = Muster::new(model.volume()).without_env("HF_ENDPOINT");
        Self { model, muster }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.muster.home().join(name)
    }

    /// Writes a policy and returns its path.
    fn policy(&self, text: &str) -> String {
        let path = self.at("policy.toml");
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    /// Runs the gate in front of a launcher, and says whether that ran.
    fn launches(&self, args: &[&str]) -> (Output, bool) {
        let mark = self.at("mark");
        let ended = self.muster.args(["gate", "kimi"]).args(args).args(["--", "touch"]).arg(&mark).run();
        let ran = mark.exists();
        let _absent = fs::remove_file(&mark);
        (ended, ran)
    }

    /// The same with a policy of this text.
    fn under(&self, text: &str) -> (Output, bool) {
        let policy = self.policy(text);
        self.launches(&["--policy", &policy])
    }
}

/// One more flag for a call.
trait Args {
    fn args(self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self;
}

impl Args for support::Invocation {
    fn args(self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        args.into_iter().fold(self, Self::arg)
    }
}

fn rule(keys: &str) -> String {
    format!("[[rule]]\nmessage = \"not on this host\"\n{keys}\n")
}

// class: gate
#[test]
fn a_rule_that_is_not_met_refuses_in_the_operators_words_and_the_launcher_never_runs() {
    let world = World::new();
    let text = "[[rule]]\nname = \"kv\"\nfile = \"hf_quant_config.json\"\npointer = \"/quantization/kv_cache_quant_algo\"\n\
                not = \"FP8\"\nmessage = \"this GPU cannot read an FP8 KV cache\"\nhint = \"use the H200 pool\"\n";
    let (ended, ran) = world.under(text);
    assert_eq!((ended.code, ran), (Some(12), false), "{ended}");
    let line = format!(
        "closed (12): this GPU cannot read an FP8 KV cache (rule 1 \"kv\" in {} line 1: hf_quant_config.json \
         /quantization/kv_cache_quant_algo: anything but \"FP8\" expected, \"FP8\" found)",
        world.at("policy.toml").display()
    );
    assert_eq!(ended.stdout.trim_end(), line);
    assert!(ended.stderr.contains("hint: use the H200 pool"), "{ended}");
    let (ended, ran) = world.under(&text.replace("\"FP8\"", "\"INT8\""));
    assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
    assert!(ended.stderr.starts_with("open: "), "{ended}");
}

/// Keys of a rule that opens, of one that closes, and what is said then: what was found, what helps.
type Row = (String, String, String, &'static str);

fn row(open: &str, closed: &str, words: &str, remedy: &'static str) -> Row {
    (open.to_owned(), closed.to_owned(), words.to_owned(), remedy)
}

fn assert_opens_and_closes(world: &World, rows: &[Row]) {
    for (open, closed, words, remedy) in rows {
        let (ended, ran) = world.under(&rule(open));
        assert_eq!((ended.code, ran), (Some(0), true), "{open}\n{ended}");
        let (ended, ran) = world.under(&rule(closed));
        assert_eq!((ended.code, ran), (Some(12), false), "{closed}\n{ended}");
        assert!(ended.stdout.starts_with("closed (12): not on this host (rule 1 in "), "{closed}\n{ended}");
        assert!(ended.stdout.contains(words), "{words}\n{ended}");
        assert!(ended.stderr.contains("hint: ") && ended.stderr.contains(remedy), "{remedy}\n{ended}");
    }
}

// class: gate
#[test]
fn every_condition_on_a_file_of_the_model_opens_the_gate_and_closes_it() {
    const EDIT: &str = "muster accept kimi hf_quant_config.json --reason";
    const CONFIG: &str = "muster accept kimi config.json --reason";
    let kv = |open: &str, closed: &str, words: &str| {
        let at = "file = \"hf_quant_config.json\"\npointer = \"/quantization/kv_cache_quant_algo\"\n";
        row(&format!("{at}{open}"), &format!("{at}{closed}"), words, EDIT)
    };
    let config = |open: &str, closed: &str, words: &str| {
        row(&format!("file = \"config.json\"\n{open}"), &format!("file = \"config.json\"\n{closed}"), words, CONFIG)
    };
    let rows = [
        kv("equals = \"FP8\"", "equals = \"FP4\"", "\"FP4\" expected, \"FP8\" found"),
        kv("not = \"fp8\"", "not = \"fp8\"\nignore_case = true", "anything but \"fp8\" expected"),
        kv("in = [\"FP8\", \"none\"]", "in = [\"none\"]", "one of \"none\" expected, \"FP8\" found"),
        kv("not_in = [\"INT8\"]", "not_in = [\"INT8\", \"FP8\"]", "none of \"INT8\", \"FP8\" expected"),
        config(
            "pointer = \"/auto_map\"\nexists = true",
            "pointer = \"/auto_map\"\nexists = false",
            "config.json /auto_map: nothing expected, {\"AutoModel\"",
        ),
        config("exists = true", "exists = false", "config.json: nothing expected, a file found"),
        config(
            "pointer = \"/layers\"\ncompare = \">= 61, < 61.5\"",
            "pointer = \"/rope\"\ncompare = \"> 1.5\"",
            "config.json /rope: a number > 1.5 expected, 1.5 found",
        ),
        config(
            "pointer = \"/none\"\nnot = 1",
            "pointer = \"/none\"\nnot = 1\nmissing = \"close\"",
            "config.json /none: anything but 1 expected, nothing found",
        ),
        row(
            "file = \"none.json\"\npointer = \"/a\"\nnot = 1",
            "file = \"none.json\"\npointer = \"/a\"\nequals = 1",
            "none.json /a: 1 expected, no such file found",
            "change none.json",
        ),
    ];
    assert_opens_and_closes(&World::new(), &rows);
}

// class: gate
#[test]
fn every_demand_on_names_modes_commit_and_age_opens_the_gate_and_closes_it() {
    let world = World::new();
    fs::set_permissions(world.model.path("modeling.py"), fs::Permissions::from_mode(0o664)).unwrap();
    fs::write(world.model.path("pytorch_model.BIN"), b"pickle").unwrap();
    let other = "aa".repeat(20);
    let rows = [
        row(
            "forbid = \"*.bin\"",
            "forbid = \"*.bin\"\nignore_case = true",
            "files *.bin: none expected, pytorch_model.BIN found",
            "name it in the rule's `except`",
        ),
        row(
            "forbid = \"*.py\"\nexcept = \"model*\"",
            "forbid = [\"*.pt\", \"*.py\"]",
            "files *.pt, *.py: none expected, modeling.py found",
            "remove it",
        ),
        row(
            "require = \"*.safetensors\"",
            "require = [\"*.safetensors\", \"*.gguf\"]",
            "none for *.gguf found",
            "muster pull org/Kimi --to kimi brings",
        ),
        row(
            "extra_files = \"deny\"\nexcept = \"*.BIN\"",
            "extra_files = \"deny\"",
            "files that are not in the manifest: none expected, pytorch_model.BIN found",
            "remove it",
        ),
        row(
            "mode_forbid = \"0002\"\nfiles = \"*.py\"",
            "mode_forbid = \"0020\"\nfiles = \"*.py\"",
            "none of 0020 expected, modeling.py (0664) found",
            "chmod -R g-w",
        ),
        row(
            "mode_require = \"0400\"",
            "mode_require = \"0001\"\nfiles = \"*.py\"",
            "all of 0001 expected, modeling.py (0664) found",
            "chmod -R o+x",
        ),
        row(
            &format!("commit = [\"{other}\", \"{COMMIT}\"]"),
            &format!("commit = \"{other}\""),
            &format!("the commit: {other} expected, {COMMIT} found"),
            "--revision aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa brings",
        ),
        row(
            "verified_within = \"1h\"",
            "verified_within = \"0s\"",
            "the last verification: at most 0 ms ago expected",
            "muster verify kimi hashes every byte again",
        ),
        row(
            "verified_for = \"0s\"",
            "verified_for = \"1h\"",
            "the last verification: at least 60 min ago expected",
            "try again later",
        ),
    ];
    assert_opens_and_closes(&world, &rows);
}

// class: gate
#[test]
fn a_rule_counts_only_for_its_repositories_and_every_broken_one_is_told() {
    let world = World::new();
    let about = |repos: &str| rule(&format!("forbid = \"*.py\"\nrepos = \"{repos}\""));
    assert_eq!(world.under(&about("nvidia/*")).0.code, Some(0));
    let (ended, ran) =
        world.under(&[about("org/*"), rule("require = \"*.gguf\""), rule("exists = true\nfile = \"a\"")].concat());
    assert_eq!((ended.code, ran), (Some(12), false));
    for number in 1..=3 {
        assert!(ended.stdout.contains(&format!("rule {number} in ")), "{ended}");
    }
    assert_eq!(ended.stderr.matches("hint: ").count(), 3, "{ended}");
}

// class: gate
#[test]
fn a_file_that_is_no_json_is_refused_and_one_that_cannot_be_looked_into_could_not_be_checked() {
    let world = World::new();
    let about = |file: &str| rule(&format!("file = \"{file}\"\npointer = \"/a\"\nnot = 1"));
    let (ended, ran) = world.under(&about("notes.json"));
    assert_eq!((ended.code, ran), (Some(12), false));
    assert!(
        ended.stdout.contains("notes.json /a: anything but 1 expected, a file that is no JSON (expected ident"),
        "{ended}"
    );

    fs::File::create(world.model.path("large.json")).unwrap().set_len((64 << 20) + 1).unwrap();
    std::os::unix::fs::symlink("config.json", world.model.path("link.json")).unwrap();
    fs::create_dir(world.model.path("folder.json")).unwrap();
    for (file, words) in [
        ("large.json", "67.1 MB, and a rule reads at most 67.1 MB"),
        ("link.json", "a link, folder or device, which a gate does not follow"),
        ("folder.json", "a link, folder or device"),
    ] {
        let (ended, ran) = world.under(&about(file));
        assert_eq!((ended.code, ran), (Some(18), false), "{ended}");
        let start = "closed (18): it cannot be told whether this rule is met: not on this host (rule 1";
        assert!(ended.stdout.starts_with(start) && ended.stdout.contains(words), "{ended}");
        assert!(ended.stderr.contains("hint: make it readable"), "{ended}");
    }
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    fs::write(world.model.path("deep.json"), deep).unwrap();
    let (ended, _) = world.under(&about("deep.json"));
    assert_eq!(ended.code, Some(12), "{ended}");
    assert!(ended.stdout.contains("no JSON (recursion limit exceeded"), "{ended}");
}

// class: gate
#[test]
fn a_file_that_the_manifest_does_not_have_is_looked_into_all_the_same() {
    let world = World::new();
    let generation = rule("file = \"generation_config.json\"\npointer = \"/do_sample\"\nnot = true");
    assert_eq!(world.under(&generation).0.code, Some(0));
    // A loader takes it for the model's own.
    fs::write(world.model.path("generation_config.json"), b"{\"do_sample\": true}").unwrap();
    assert_eq!(world.under(&generation).0.code, Some(12));
}

// class: gate
#[test]
fn code_that_was_read_is_let_be_by_its_digest_and_no_other_is() {
    let world = World::new();
    let allowing = |digest: &str| rule(&format!("forbid = \"*.py\"\nexcept_sha256 = [\"{digest}\"]"));
    let (ended, ran) = world.under(&allowing(&"00".repeat(32)));
    assert_eq!((ended.code, ran), (Some(12), false));
    let digest = sha256_hex(CODE);
    assert!(ended.stdout.contains(&format!("modeling.py (sha256 {digest}) found")), "ready to be copied: {ended}");
    assert!(ended.stderr.contains("hint: read it first; then add its digest"), "{ended}");
    assert_eq!(world.under(&allowing(&digest)).0.code, Some(0));
    // Code that somebody laid beside the model counts too, whatever its name.
    fs::write(world.model.path("extra.py"), b"import os\n").unwrap();
    let (ended, ran) = world.under(&allowing(&digest));
    assert_eq!((ended.code, ran), (Some(12), false));
    assert!(ended.stdout.contains("found") && ended.stdout.contains("extra.py (sha256 "), "{ended}");
    assert!(!ended.stdout.contains("modeling.py"), "{ended}");
}

// class: gate, names
#[test]
fn no_name_hides_a_file_from_a_rule() {
    let world = World::new();
    let extra = rule("extra_files = \"deny\"");
    assert_eq!(world.under(&extra).0.code, Some(0));
    for name in [&b"odd\xff.py"[..], b"clear\x1b[2J.py", b".hidden"] {
        let path = world.model.dir().join(OsStr::from_bytes(name));
        fs::write(&path, b"").unwrap();
        let (ended, ran) = world.under(&extra);
        assert_eq!((ended.code, ran), (Some(12), false), "{ended}");
        assert!(!ended.all().contains('\x1b'), "{ended}");
        fs::remove_file(path).unwrap();
    }
    std::os::unix::fs::symlink("/tmp", world.model.path("package")).unwrap();
    assert_eq!(world.under(&extra).0.code, Some(12), "a link to a folder may hold anything");
}

// class: gate
#[test]
fn a_policy_that_makes_no_sense_is_a_usage_error_before_anything_is_waited_for() {
    let world = World::new();
    for (text, line, words) in [
        ("[[rule]]\nforbid = \"*.bin\"\nmesage = \"x\"\n", 3, "unknown field `mesage`"),
        ("locals = \"deny\"\n", 1, "unknown field `locals`"),
        ("# nothing\n", 1, "the policy is empty"),
        ("[[rule]]\nforbid = \"*.bin\"\n", 1, "rule 1 has no `message`"),
        ("[[rule]]\nmessage = \"m\"\nfile = \"a\"\npointer = \"b\"\nnot = 1\n", 4, "`pointer`: `b` is no JSON pointer"),
        ("[[rule]\n", 1, "line 1"),
    ] {
        let policy = world.policy(text);
        // The model is not there, and would be waited for without end.
        let call = world.muster.args(["gate", "nothing", "--wait", "--policy", &policy, "--", "true"]);
        let ended = call.time_limit(SOON).run().expect_code(2);
        let place = format!("error: {policy} line {line}: ");
        assert!(ended.stderr.contains(&place) && ended.stderr.contains(words), "{text}\n{ended}");
        assert!(ended.stderr.contains("hint: the examples in config/policy"), "{ended}");
    }
}

// class: gate
#[test]
fn a_policy_that_was_named_must_be_there_wherever_it_was_named() {
    let world = World::new();
    let none = world.at("none.toml");
    let none = none.to_str().unwrap();
    let config = world.at("muster.toml");
    fs::write(&config, format!("# mine\n[gate]\npolicy = \"{none}\"\n")).unwrap();
    let config = config.to_str().unwrap();
    let gate = || world.muster.args(["gate", "kimi"]);
    for (call, origin) in [
        (gate().args(["--policy", none]), "--policy".to_owned()),
        (gate().env("MUSTER_POLICY", none), "MUSTER_POLICY".to_owned()),
        (gate().args(["--config", config]), format!("{config} line 3")),
    ] {
        let ended = call.run().expect_code(2);
        assert!(ended.stderr.contains(&format!("cannot read the policy {none} (from {origin})")), "{ended}");
        assert!(ended.stderr.contains("No such file"), "{ended}");
    }
    let folder = world.muster.home().to_str().unwrap().to_owned();
    gate().args(["--policy", &folder]).run().expect_code(2);
    fs::File::create(world.at("huge.toml")).unwrap().set_len(2 << 20).unwrap();
    let ended = gate().args(["--policy", world.at("huge.toml").to_str().unwrap()]).run().expect_code(2);
    assert!(ended.stderr.contains("larger than one may be"), "{ended}");
}

// class: gate
#[test]
fn a_flag_beats_the_variable_and_that_the_file_and_rules_in_the_configuration_always_count() {
    let world = World::new();
    let write = |name: &str, text: String| {
        fs::write(world.at(name), text).unwrap();
        world.at(name).to_str().unwrap().to_owned()
    };
    let open = write("open.toml", rule("require = \"config.json\""));
    let shut = write("shut.toml", rule("forbid = \"*.py\""));
    let named = write("named.toml", format!("[gate]\npolicy = \"{shut}\"\n"));
    let inline =
        write("inline.toml", "[gate]\n[[gate.rule]]\nforbid = \"*.safetensors\"\nmessage = \"inline\"\n".into());
    let odd = write("odd.toml", "[gate]\n[[gate.rule]]\nforbids = \"*.safetensors\"\nmessage = \"inline\"\n".into());
    let gate = || world.muster.args(["gate", "kimi"]);
    gate().args(["--config", &named]).run().expect_code(12);
    gate().args(["--config", &named]).env("MUSTER_POLICY", &open).run().expect_code(0);
    gate().env("MUSTER_POLICY", &open).args(["--policy", &shut]).run().expect_code(12);
    gate().env("MUSTER_POLICY", &shut).args(["--policy", &open]).run().expect_code(0);
    let ended = gate().args(["--config", &inline, "--policy", &open]).run().expect_code(12);
    assert!(ended.stdout.contains(&format!("inline (rule 1 in {inline} line 2: ")), "{ended}");
    let ended = gate().args(["--config", &inline, "--policy", &shut]).run().expect_code(12);
    assert!(ended.stdout.contains("inline (rule 1") && ended.stdout.contains("not on this host"), "{ended}");
    let ended = gate().args(["--config", &odd]).run().expect_code(2);
    assert!(ended.stderr.contains(&format!("{odd} line 3: unknown field `forbids`")), "{ended}");
    gate().env("MUSTER_LOCAL_EDITS", "maybe").run().expect_code(2);
    gate().env("MUSTER_LOCAL_EDITS", "deny").run().expect_code(0);
}

// class: gate
#[test]
fn every_rule_is_explained_with_its_verdict_to_people_and_to_programs() {
    let world = World::new();
    fs::create_dir(world.model.path("folder.json")).unwrap();
    let policy = world.policy(&format!(
        "local_edits = \"deny\"\n{}{}{}{}",
        rule("name = \"loadable\"\nrequire = \"config.json\""),
        rule("forbid = \"*.py\"\nhint = \"read it\""),
        rule("forbid = \"*\"\nrepos = \"nvidia/*\""),
        rule("file = \"folder.json\"\npointer = \"/a\"\nnot = 1")
    ));
    let gate = |flags: &[&str]| world.muster.args(["gate", "kimi", "--policy", &policy, "--explain"]).args(flags).run();
    let ended = gate(&[]).expect_code(12);
    let lines: Vec<_> = ended.stdout.lines().map(str::trim).collect();
    for line in [
        format!("met: rule 1 \"loadable\" in {policy} line 2: files: one for each of config.json expected, all found"),
        format!("broken: rule 2 in {policy} line 6: files *.py: none expected, modeling.py found"),
        format!("elsewhere: rule 3 in {policy} line 10: it is about other repositories"),
        format!(
            "met: rule \"local_edits\" in {policy} line 1: files changed here on purpose: none expected, none found"
        ),
    ] {
        assert!(lines.contains(&line.as_str()), "{line}\n{ended}");
    }
    assert!(lines.iter().any(|line| line.starts_with(&format!("unknown: rule 4 in {policy} line 14: "))), "{ended}");

    let json = gate(&["--json"]).expect_code(12).json();
    assert_valid(SCHEMA, &json);
    let rules = json["policy"]["rules"].as_array().unwrap();
    let verdicts: Vec<_> = rules.iter().map(|rule| rule["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["met", "broken", "elsewhere", "unknown", "met"]);
    assert_eq!(
        (&rules[1]["code"], &rules[1]["hint"], &rules[1]["line"]),
        (&"refused".into(), &"read it".into(), &6.into())
    );
    assert_eq!((&rules[1]["file"], &rules[1]["found"]), (&Value::from("modeling.py"), &Value::from("modeling.py")));
    assert_eq!((&rules[3]["pointer"], &rules[3]["code"]), (&"/a".into(), &"could_not_check".into()));
    assert_eq!(json["policy"]["local_edits"], "deny");
    let reasons = json["reasons"].as_array().unwrap();
    assert_eq!((&reasons[0]["code"], &reasons[0]["hint"]), (&"refused".into(), &"read it".into()));

    fs::remove_file(world.model.path("config.json")).unwrap();
    let ended = gate(&[]).expect_code(10);
    assert!(ended.stdout.contains(&format!("not judged: rule 1 \"loadable\" in {policy} line 2: ")), "{ended}");
    let json = gate(&["--json"]).expect_code(10).json();
    assert_valid(SCHEMA, &json);
    assert!(json["policy"]["rules"].as_array().unwrap().iter().all(|rule| rule["verdict"] == "not_judged"));
}

#[test]
fn an_open_gate_explains_too_and_says_when_there_is_no_policy() {
    let world = World::new();
    let policy = world.policy(&rule("require = \"config.json\""));
    let (ended, ran) = world.launches(&["--policy", &policy, "--explain"]);
    assert_eq!((ended.code, ran), (Some(0), true));
    assert!(ended.stderr.starts_with("open: ") && ended.stderr.contains("\n  met: rule 1 in "), "{ended}");
    let ended = world.muster.args(["gate", "kimi", "--explain"]).run().expect_code(0);
    assert!(ended.stdout.contains("policy: none (--policy, MUSTER_POLICY or [gate]"), "{ended}");
    let json = world.muster.args(["gate", "kimi", "--explain", "--json"]).run().expect_code(0).json();
    assert_valid(SCHEMA, &json);
    assert_eq!(json["policy"]["rules"], Value::Array(vec![]));
    let json = world.muster.args(["gate", "kimi", "--json"]).run().expect_code(0).json();
    assert!(json.get("policy").is_none(), "{json}");
}

// class: gate
#[test]
fn a_wait_ends_at_once_when_a_rule_is_not_met_and_the_policy_is_judged_when_the_model_arrives() {
    let world = World::new();
    let shut = world.policy(&rule("forbid = \"*.py\""));
    let (ended, ran) = world.launches(&["--policy", &shut, "--wait"]);
    assert_eq!((ended.code, ran), (Some(12), false));

    let elsewhere = world.model.volume().join("not-yet");
    fs::rename(world.model.dir(), &elsewhere).unwrap();
    let mark = world.at("mark");
    let call = world.muster.args(["gate", "kimi", "--wait=60s", "--policy", &shut, "--", "touch"]).arg(&mark);
    let mut child = call.spawn();
    child.wait_for_text("waiting for kimi", SOON);
    fs::rename(&elsewhere, world.model.dir()).unwrap();
    child.wait(SOON).expect_code(12);
    assert!(!mark.exists());
}

// class: gate, verify-cost
#[test]
fn rules_cost_no_hashing_of_the_model_and_leave_no_trace_in_it() {
    let world = World::new();
    let policy = world.policy(
        &[rule("extra_files = \"deny\""), rule("file = \"config.json\"\npointer = \"\"\nexists = true")].concat(),
    );
    let before = support::trace(&world.model.dir());
    let json = world.muster.args(["gate", "kimi", "--policy", &policy, "--json"]).run().expect_code(0).json();
    assert_eq!((&json["files"]["hashed"], &json["files"]["trusted"]), (&0.into(), &5.into()));
    assert_eq!(support::trace(&world.model.dir()), before);
}

// class: gate, wrong-bytes
#[test]
fn wrong_bytes_are_told_as_wrong_bytes_before_any_rule_is_looked_at() {
    let world = World::new();
    fs::write(world.model.path("hf_quant_config.json"), b"{}").unwrap();
    let (ended, ran) = world.under(&rule("forbid = \"*.py\""));
    assert_eq!((ended.code, ran), (Some(11), false));
    assert!(!ended.stdout.contains("not on this host"), "{ended}");
}

// class: gate
#[test]
fn a_full_gate_counts_as_a_verification_and_a_receipt_of_tomorrow_tells_nothing() {
    let world = World::new();
    let within = rule("verified_within = \"1h\"");
    let policy = world.policy(&within);
    let receipt = world.model.path(".muster/receipt.json");
    let stamp = |at: &str| {
        let mut json: Value = serde_json::from_slice(&fs::read(&receipt).unwrap()).unwrap();
        json["verified_at"] = at.into();
        fs::write(&receipt, json.to_string()).unwrap();
    };
    stamp("2020-01-01T00:00:00Z");
    let (ended, _) = world.launches(&["--policy", &policy]);
    assert_eq!(ended.code, Some(12), "{ended}");
    assert!(ended.stderr.contains("hint: muster verify kimi hashes every byte again"), "{ended}");
    let (ended, ran) = world.launches(&["--policy", &policy, "--full"]);
    assert_eq!((ended.code, ran), (Some(0), true), "{ended}");
    stamp("2120-01-01T00:00:00Z");
    let (ended, ran) = world.launches(&["--policy", &policy]);
    assert_eq!((ended.code, ran), (Some(18), false), "{ended}");
    assert!(ended.stdout.contains("which is yet to come"), "{ended}");
    // What the hint says helps.
    stamp("2020-01-01T00:00:00Z");
    world.muster.args(["verify", "kimi"]).run().expect_code(0);
    assert_eq!(world.launches(&["--policy", &policy]).0.code, Some(0));
}
