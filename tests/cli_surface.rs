//! The command line from outside: help, completions, manual pages, usage errors, colours.
//!
//! Every test runs the real binary with an environment of its own and touches no network.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const VERBS: [&str; 21] = [
    "pull",
    "adopt",
    "status",
    "list",
    "history",
    "gate",
    "verify",
    "repair",
    "accept",
    "pause",
    "resume",
    "cancel",
    "remove",
    "limit",
    "mirror",
    "daemon",
    "doctor",
    "demo",
    "schema",
    "completions",
    "man",
];

fn muster(home: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_muster"));
    command.args(arguments).env_clear().env("HOME", home).current_dir(home).stdin(Stdio::null());
    command.envs(variables.iter().copied());
    command
}

fn run_with(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    muster(home.path(), arguments, variables).output().unwrap()
}

fn run(arguments: &[&str]) -> Output {
    run_with(arguments, &[])
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn err(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_lists_every_verb_and_goes_to_stdout() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    for verb in VERBS {
        assert!(out(&output).lines().any(|line| line.trim_start().starts_with(&format!("{verb} "))), "{verb}");
    }
    assert_eq!(err(&output), "");
    assert!(out(&run(&["--version"])).starts_with("muster "));
}

#[test]
fn every_flag_with_a_value_shows_its_twin_in_the_help() {
    for verb in VERBS {
        let help = out(&run(&[verb, "--help"]));
        // An entry starts at a flag's name and ends where the next one starts.
        let mut entries: Vec<Vec<&str>> = Vec::new();
        for line in help.lines() {
            if line.trim_start().starts_with('-') {
                entries.push(Vec::new());
            }
            if let Some(entry) = entries.last_mut() {
                entry.extend(line.split_whitespace());
            }
        }
        let valued: Vec<_> = entries.iter().map(|words| words.join(" ")).filter(|entry| entry.contains('<')).collect();
        assert!(valued.len() >= 3, "{verb} has the global flags at least:\n{help}");
        for entry in valued {
            assert!(entry.contains("[env: MUSTER_"), "{verb}: {entry}");
            assert!(!entry.contains("MUSTER_PORT") && !entry.contains("MUSTER_SERVICE_"), "{verb}: {entry}");
        }
    }
}

#[test]
fn the_values_of_variables_are_never_shown() {
    let output =
        run_with(&["gate", "--help"], &[("MUSTER_VERDICT", "/secret/place"), ("MUSTER_VOLUME", "/secret/too")]);
    assert!(out(&output).contains("[env: MUSTER_VERDICT]"));
    assert!(!out(&output).contains("secret"), "{}", out(&output));
}

#[test]
fn completions_are_made_for_the_shells_people_use() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}: {}", err(&output));
        for verb in VERBS {
            assert!(out(&output).contains(verb), "{shell}: {verb}");
        }
        assert!(out(&output).contains("no-update"), "{shell}");
    }
}

#[test]
fn the_manual_tells_of_every_verb_and_has_a_page_for_each() {
    let page = out(&run(&["man"]));
    for verb in VERBS {
        assert!(page.contains(verb), "{verb}");
        let output = run(&["man", verb]);
        assert_eq!(output.status.code(), Some(0), "{verb}: {}", err(&output));
        assert!(out(&output).contains(&format!(".TH muster-{verb}")), "{verb}:\n{}", out(&output));
    }
    let unknown = run(&["man", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(err(&unknown).contains("no verb is called `nothing`"), "{}", err(&unknown));
}

#[test]
fn bad_flags_values_and_verbs_end_with_2_and_name_themselves() {
    let cases: &[(&[&str], &[&str])] = &[
        (&[], &["Usage"]),
        (&["fly"], &["fly"]),
        (&["pull"], &["REPO"]),
        (&["pull", "a/b", "--no-such"], &["--no-such"]),
        (&["pull", "a/b", "--reserve", "10M"], &["--reserve", "10MB (10000000 bytes)", "10MiB (10485760 bytes)"]),
        (&["pull", "a/b", "--connections", "0"], &["--connections", "1 to 256"]),
        (&["pull", "a/b", "--retry-for", "soon"], &["--retry-for", "90s"]),
        (&["pull", "a/b", "--include", ""], &["--include", "matches no file"]),
        (&["pull", "a/b", "x.json", "--include", "*.json"], &["--include"]),
        (&["pull", "a/b/c"], &["a/b/c", "hint:"]),
        (&["pull", "a/b", "--to", "../x"], &["--to", "../x"]),
        (&["gate", "m", "--manifest-id", "xyz"], &["--manifest-id"]),
        (&["mirror", "--listen", "0.0.0.0:1"], &["0.0.0.0:1 (from --listen)", "--public"]),
        (&["schema", "nothing"], &["nothing"]),
    ];
    for (arguments, told) in cases {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        for text in *told {
            assert!(err(&output).contains(text), "{arguments:?} does not tell {text:?}:\n{}", err(&output));
        }
        assert_eq!(out(&output), "", "{arguments:?}");
    }
}

#[test]
fn an_error_is_a_json_object_on_stdout_when_json_was_asked_for() {
    for arguments in [&["man", "nothing", "--json"][..], &["pull", "--json", "--no-such"][..]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2));
        let error: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(error["error"]["code"], "usage");
        assert!(error["error"]["message"].as_str().is_some_and(|message| message.contains("no")), "{error}");
        assert!(err(&output).starts_with("error: "), "{}", err(&output));
    }
}

#[test]
fn a_bad_configuration_ends_with_2_and_says_where() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("m.toml");
    let name = file.to_str().unwrap();
    let with = |text: &str| {
        fs::write(&file, text).unwrap();
        let output = muster(home.path(), &["schema", "--config", name], &[]).output().unwrap();
        (output.status.code(), err(&output))
    };
    let (code, told) = with("volume = \"/a\"\n[daemon]\nsokcet = \"/x\"\n");
    assert_eq!(code, Some(2), "{told}");
    for text in ["unknown key `daemon.sokcet`", name, "line 3", "did you mean `daemon.socket`?"] {
        assert!(told.contains(text), "{text}: {told}");
    }
    let (code, told) = with("volume = \n");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("line 1"), "{told}");
    let (code, told) = with("reserve = \"1G\"\n");
    assert_eq!(code, Some(2), "{told}");
    assert!(told.contains("`reserve` (from") && told.contains("1GiB"), "{told}");

    let missing = run(&["schema", "--config", "/nowhere/m.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(err(&missing).contains("/nowhere/m.toml"), "{}", err(&missing));
    let variable = run_with(&["schema"], &[("MUSTER_RETRY_FOR", "soon")]);
    assert_eq!(variable.status.code(), Some(2));
    assert!(err(&variable).contains("MUSTER_RETRY_FOR"), "{}", err(&variable));
    assert_eq!(run_with(&["schema"], &[("MUSTER_RETRY_FOR", "")]).status.code(), Some(0), "empty is unset");
}

#[test]
fn a_twin_is_read_a_flag_beats_it_and_an_empty_one_is_unset() {
    let code = |arguments: &[&str], value| run_with(arguments, &[("MUSTER_WAIT", value)]).status.code();
    let bad = run_with(&["gate", "/nowhere"], &[("MUSTER_WAIT", "soon")]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(err(&bad).contains("--wait") && err(&bad).contains("`soon` is no duration"), "{}", err(&bad));
    assert_ne!(code(&["gate", "/nowhere", "--wait=1ms"], "soon"), Some(2));
    assert_ne!(code(&["gate", "/nowhere"], ""), Some(2));
}

#[test]
fn no_colour_leaves_a_pipe_whatever_the_flags() {
    for (arguments, variables) in
        [(&["man", "x"][..], &[("NO_COLOR", "1")][..]), (&["man", "x", "--no-color"], &[]), (&["fly"], &[])]
    {
        let output = run_with(arguments, variables);
        assert!(!output.stderr.contains(&0x1b), "{arguments:?}");
    }
    assert!(!run(&["--help"]).stdout.contains(&0x1b));
}

#[test]
fn a_reader_that_leaves_is_a_quiet_success() {
    let home = tempfile::tempdir().unwrap();
    let mut child = muster(home.path(), &["completions", "bash"], &[])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!((child.wait().unwrap().code(), told.as_str()), (Some(0), ""));
}

#[test]
fn a_full_stdout_is_an_error_and_not_a_success() {
    let home = tempfile::tempdir().unwrap();
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = muster(home.path(), &["completions", "bash"], &[]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("cannot write the result to stdout"), "{}", err(&output));
}
