//! The demo as a user runs it, on a small repository.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

fn demo(dir: &Path, shard_size: &str, more: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_muster"))
        .args(["demo", "--shards", "5", "--shard-size", shard_size, "--dir"])
        .arg(dir)
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn entries(dir: &Path) -> usize {
    std::fs::read_dir(dir).unwrap().count()
}

#[test]
fn the_demo_tells_the_whole_story_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let output = demo(dir.path(), "64KiB", &["--json"]).wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&told["files"], &told["shards"]), (&26.into(), &5.into()));
    let steps = told["steps"].as_array().unwrap();
    let codes: Vec<_> = steps.iter().map(|step| step["exit_code"].as_i64()).collect();
    assert_eq!(codes, [None, Some(0), Some(0), Some(0), Some(11), Some(0), Some(0)]);
    let repair = steps.iter().find(|step| step["step"] == "repair").unwrap();
    assert_eq!(repair["bytes_travelled"], 65_536);
    assert_eq!(told["damaged"], "model-00003-of-000005.safetensors");
    assert_eq!(entries(dir.path()), 0);
}

#[test]
fn a_demo_that_is_interrupted_ends_its_children_and_cleans_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = demo(dir.path(), "64KiB", &[]);
    let mut story = BufReader::new(child.stdout.take().unwrap()).lines();
    let started = |line: &String| line.contains("$ muster pull");
    story.by_ref().map(Result::unwrap).find(started).expect("the pull starts");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // The pipes close with the last process that holds them.
    story.for_each(drop);
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert_eq!(entries(dir.path()), 0);
}

#[test]
fn too_little_space_and_too_small_shards_are_told_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    for (size, code, expected) in [("900TB", 16, "the demo needs"), ("1KiB", 2, "too small")] {
        let output = demo(dir.path(), size, &[]).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && said.contains(expected), "{size}: {said}");
        assert_eq!(entries(dir.path()), 0);
    }
}
