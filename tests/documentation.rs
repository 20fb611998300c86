//! The documents say what is so: promises, exit codes, verbs, variables.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test reads the sources it is about")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use muster::cli::args;
use muster::config::Environment;
use muster::core::code::Code;

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rows of the table below a heading, as their cells; without the two lines of its head.
fn table(document: &str, heading: &str) -> Vec<Vec<String>> {
    let below = document.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no `{heading}`")).1;
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    let cells = |row: &str| row.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    let rows: Vec<_> = rows.skip(2).map(cells).collect();
    assert!(!rows.is_empty(), "no table below `{heading}`");
    rows
}

/// What stands between backticks.
fn code(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Whether `path::name` is a function of that file; a `test` has to be one that runs.
fn stands_in_the_sources(reference: &str, is_test: bool) -> Result<(), String> {
    let (path, name) = reference.split_once("::").ok_or_else(|| format!("{reference} is not `path::name`"))?;
    let text = read(path);
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let is_it = |line: &&str| {
        line.split_once("fn ").is_some_and(|(_, rest)| {
            rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('(') || rest.starts_with('<'))
        })
    };
    let at = lines.iter().position(is_it).ok_or_else(|| format!("{path} has no `fn {name}`"))?;
    let attributes = lines[..at].iter().rev().take_while(|line| line.starts_with('#')).collect::<Vec<_>>();
    let runs = attributes
        .iter()
        .any(|line| matches!(**line, "#[test]" | "#[tokio::test]") || line.starts_with("#[tokio::test("));
    if is_test && !runs { Err(format!("{reference} is no test")) } else { Ok(()) }
}

fn assert_all_stand(cell: &str, is_test: bool, what: &str) {
    let references = code(cell);
    assert!(!references.is_empty(), "{what}: nothing is named in `{cell}`");
    for reference in references {
        if let Err(why) = stands_in_the_sources(reference, is_test) {
            panic!("{what}: {why}");
        }
    }
}

#[test]
fn every_promise_names_code_and_tests_that_exist() {
    let rows = table(&read("ARCHITECTURE.md"), "## Promises");
    let promises: BTreeSet<_> = rows.iter().map(|row| row[0].clone()).filter(|name| !name.is_empty()).collect();
    let expected: BTreeSet<_> = (1..=11).map(|number| format!("P{number}")).collect();
    assert_eq!(promises, expected);
    for row in &rows {
        let [promise, what, kept_by, proved_by] = &row[..] else { panic!("four cells: {row:?}") };
        assert_all_stand(kept_by, false, &format!("{promise} {what}"));
        assert_all_stand(proved_by, true, &format!("{promise} {what}"));
    }
}

#[test]
fn every_row_of_the_fault_model_names_drills_that_exist() {
    let document = read("ARCHITECTURE.md");
    let model = document.split_once("\n## Fault model\n").expect("the fault model").1;
    let model = model.split("\n## ").next().unwrap_or_default();
    let areas: Vec<_> = model.split("\n### ").skip(1).collect();
    assert!(areas.len() >= 8, "{} areas", areas.len());
    for area in areas {
        let name = area.lines().next().unwrap_or_default();
        // The first table of each; what follows it may have another form.
        let table = area.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
        let rows: Vec<_> = table.skip(2).collect();
        assert!(!rows.is_empty(), "nothing breaks in `{name}`");
        for row in rows {
            let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
            let [fault, _, drills] = &cells[..] else { panic!("three cells: {row}") };
            assert_all_stand(drills, true, &format!("{name}: {fault}"));
        }
    }
}

#[test]
fn the_table_of_what_has_hurt_people_is_the_one_that_the_tests_make() {
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/classes");
    let made = std::process::Command::new(program).output().expect("python3 runs tests/classes");
    let (table, error) = (String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
    assert!(made.status.success(), "{error}");
    assert!(
        read("ARCHITECTURE.md").contains(&format!("-->\n{}\n<!--", table.trim())),
        "the table in ARCHITECTURE.md is an old one: tests/classes --write"
    );
    for row in table.lines().skip(2) {
        assert_all_stand(row, true, "what has hurt people");
    }
}

#[test]
fn the_table_of_exit_codes_is_the_one_in_the_program() {
    let mut named = BTreeMap::new();
    for row in table(&read("README.md"), "## Exit codes") {
        if let Some(name) = code(&row[1]).first() {
            for number in row[0].split(", ") {
                named.insert(number.parse::<i32>().unwrap(), (*name).to_owned());
            }
        }
    }
    let name_of = |code: Code| serde_json::to_value(code).unwrap().as_str().unwrap().to_owned();
    let mut expected: BTreeMap<_, _> =
        (0..256).filter_map(|number| Some((number, name_of(Code::of_exit(number)?)))).collect();
    // The other signals that end a verb.
    expected.extend([129, 143].map(|number| (number, name_of(Code::Interrupted))));
    assert_eq!(named, expected);
}

#[test]
fn the_verbs_are_those_of_the_help() {
    let readme: BTreeSet<_> = table(&read("README.md"), "## Verbs")
        .iter()
        .flat_map(|row| code(&row[0]).into_iter().map(first_word).collect::<Vec<_>>())
        .collect();
    assert_eq!(readme, verbs());
}

#[test]
fn every_cell_of_verb_and_exit_code_names_a_test_that_exists() {
    let rows = table(&read("ARCHITECTURE.md"), "## Exit codes by verb");
    let mut seen = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for row in &rows {
        let [verb_cell, exit, when, proved_by] = &row[..] else { panic!("four cells: {row:?}") };
        for verb in code(verb_cell) {
            seen.insert(verb.to_owned());
            assert!(cells.insert((verb.to_owned(), exit.clone())), "`{verb}` {exit} stands there twice");
        }
        for number in exit.split(", ").map(|number| number.parse::<i32>().unwrap()) {
            assert!(
                matches!(number, 0 | 126 | 127 | 129 | 143) || Code::of_exit(number).is_some(),
                "{number}: no code"
            );
        }
        if proved_by != "no test" {
            assert_all_stand(proved_by, true, &format!("{verb_cell} {exit} {when}"));
        }
    }
    assert_eq!(seen, verbs());
}

#[test]
fn every_variable_in_the_readme_is_known_to_the_program() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let readme = read("README.md");
    let is_variable = |word: &&str| word.contains('_') && word.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let words =
        code(&readme).into_iter().flat_map(|text| text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')));
    let variables: BTreeSet<_> = words.filter(is_variable).collect();
    assert!(variables.len() >= 10, "{variables:?}");
    for variable in variables {
        assert!(sources.contains(variable), "README names {variable}, and no source does");
    }
}

#[test]
fn the_changelog_has_a_place_for_what_comes_next() {
    let changelog = read("CHANGELOG.md");
    let below = changelog.split_once("\n## [Unreleased]\n").expect("a section `[Unreleased]`").1;
    assert!(below.split("\n## ").next().unwrap().contains("\n- "), "it says something");
}

fn first_word(usage: &str) -> String {
    usage.split_whitespace().next().unwrap_or_default().to_owned()
}

fn verbs() -> BTreeSet<String> {
    let tree = args::command(&Environment::default());
    tree.get_subcommands().map(|verb| verb.get_name().to_owned()).filter(|name| name != "help").collect()
}

/// The text of every source file below.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all += &sources(&path);
        } else {
            all += &std::fs::read_to_string(&path).unwrap();
        }
    }
    all
}
