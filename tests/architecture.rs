//! The architecture as a test: layers, pure core, one home for each effect, sizes, words.
//!
//! Owns: what clippy cannot say. Every rule is a pure function over one file, and has a test below
//! that shows it catching a bad sample. The rules read tokens, so comments and literals never match.
//! A new module or a new home for an effect is added to the tables here, where a reviewer sees it.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

#[path = "architecture/rust_text.rs"]
mod rust_text;

use rust_text::{CodePath, Token, is_identifier, paths, tokens};
use std::{fmt, fs, path::Path};

/// Top-level modules and the layer each is on: a layer may use itself and what is below.
const LAYERS: &[(&str, u8)] = &[
    ("core", 0),
    ("limits", 0),
    ("clock", 0),
    ("blocking", 0),
    ("parallel", 0),
    ("hub", 1),
    ("store", 1),
    ("volume", 1),
    ("fetch", 2),
    ("serving", 2),
    ("sources", 2),
    ("daemon", 3),
    ("demo", 3),
    ("doctor", 3),
    ("gate", 3),
    ("mirror", 3),
    ("api", 4),
    ("cli", 4),
    ("config", 4),
    ("telemetry", 4),
    ("lib", 4),
    ("main", 4),
];

/// On this layer modules do not even know each other.
const LAYER_OF_STRANGERS: u8 = 1;

/// Effects and the only places that may name them. `core` may name none of them.
const HOMES: &[(&str, &[&str])] = &[
    ("sled", &["src/store/", "migrations/"]),
    ("tokio::spawn", &["src/daemon/supervisor.rs"]),
    ("tokio::task::spawn", &["src/daemon/supervisor.rs", "src/blocking.rs"]),
    ("std::thread::spawn", &["src/daemon/supervisor.rs"]),
    ("std::process::exit", &["src/main.rs"]),
    ("std::env::var", ENVIRONMENT),
    ("std::env::var_os", ENVIRONMENT),
    ("std::env::vars", ENVIRONMENT),
    ("std::env::vars_os", ENVIRONMENT),
    ("SystemTime::now", &["src/clock.rs"]),
    ("Timestamp::now", &["src/clock.rs"]),
    ("Zoned::now", &["src/clock.rs"]),
    ("std::fs", FILES),
    ("tokio::fs", &["src/volume/"]),
    ("rustix::fs", &["src/volume/", "src/store/"]),
    ("reqwest", &["src/hub/", "src/sources/", "src/fetch/", "src/api/client.rs"]),
    ("hf_hub", &["src/hub/"]),
    ("clap", &["src/cli/", "src/main.rs"]),
    ("indicatif", &["src/cli/"]),
    ("axum", &["src/serving/", "src/api/", "src/mirror/"]),
];
const ENVIRONMENT: &[&str] = &["src/config.rs", "src/config/", "src/hub/auth.rs", "src/hub/trust.rs", "src/cli/ui.rs"];
const FILES: &[&str] = &[
    "src/volume/",
    "src/store/",
    "src/config.rs",
    "src/config/",
    "src/hub/auth.rs",
    "src/cli/",
    "src/api/socket.rs",
    // Of /proc and /sys alone.
    "src/daemon/memory.rs",
    "src/doctor/machine.rs",
];

/// The modules that take time, randomness and facts as arguments, and never fetch them.
const PURE: &[&str] = &["core", "limits"];

/// What would make them impure.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio_util",
    "tokio_stream",
    "futures_util",
    "reqwest",
    "axum",
    "hf_hub",
    "sled",
    "rustix",
    "tracing",
    "tracing_subscriber",
    "rand",
    "fastrand",
    "tempfile",
    "std::env",
    "std::fs",
    "std::net",
    "std::os",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime::now",
    "Timestamp::now",
    "Zoned::now",
    "crate::clock",
    "crate::blocking",
    "crate::parallel",
];

/// Folders whose files may never opt out of `clippy::disallowed_methods`.
const WITHOUT_EFFECTS: &[&str] = &["src/core/", "src/fetch/", "src/sources/"];

const FILE_LINES_MAX: usize = 400;
const FUNCTION_LINES_MAX: usize = 70;
const EMPTY_NAMES: &[&str] = &["manager", "managers", "helper", "helpers", "util", "utils", "utility"];

#[test]
fn the_source_tree_keeps_the_architecture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "migrations", "tests", "benches", "config", ".ci"] {
        collect(root, folder, &mut files);
    }
    collect_top_level(root, &mut files);
    assert!(files.iter().any(|file| file.path == "src/lib.rs"), "the walk found the sources");

    let broken: Vec<_> = files.iter().flat_map(violations).map(|violation| violation.to_string()).collect();
    assert!(broken.is_empty(), "{} broken:\n{}", broken.len(), broken.join("\n"));
}

/// One file of the project: its path from the root with `/`, and its text.
struct Source {
    path: String,
    text: String,
}

#[derive(Debug, PartialEq)]
struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, line, rule, detail } = self;
        write!(f, "{path}:{line}: {rule}: {detail}")
    }
}

/// Everything that is wrong with one file.
fn violations(file: &Source) -> Vec<Violation> {
    let mut found = unfinished(file);
    if !is_rust(file) {
        return found;
    }
    found.extend(header(file));
    found.extend(empty_file_name(file));
    if is_production(file) {
        let tokens = tokens(&file.text);
        let end = production_end(file, &tokens);
        let tokens: Vec<_> = tokens.into_iter().filter(|t| t.line < end).collect();
        let paths = paths(&tokens);
        found.extend(layers(file, &paths));
        found.extend(pure_core(file, &paths));
        found.extend(homes(file, &paths));
        found.extend(file_length(file, end - 1));
        found.extend(function_lengths(file, &tokens));
        found.extend(empty_type_names(file, &tokens));
    }
    found
}

// The rules.

fn unfinished(file: &Source) -> Vec<Violation> {
    // Written apart so that this file passes its own rule.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let is_marked =
        |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| words.contains(&word));
    lines_where(&file.text, is_marked)
        .map(|line| broken(file, line, "unfinished", "finish it, or file an issue".into()))
        .collect()
}

fn header(file: &Source) -> Option<Violation> {
    let missing = !file.text.starts_with("//! ");
    let detail = "the first line is a `//!` header: what the module owns, its invariant";
    missing.then(|| broken(file, 1, "header", detail.into()))
}

fn layers(file: &Source, paths: &[CodePath]) -> Vec<Violation> {
    let own = top_module(&file.path);
    let Some(own_layer) = layer_of(own) else {
        let detail = format!("`{own}` is on no layer: add it to LAYERS");
        return vec![broken(file, 1, "layers", detail)];
    };
    let imports = paths.iter().filter_map(|path| Some((path.line, imported_module(file, path)?)));
    imports
        .filter_map(|(line, other)| {
            let detail = match layer_of(other) {
                None => format!("`crate::{other}` is no module on a layer: name the module it comes from"),
                Some(layer) if layer > own_layer => {
                    format!("`{own}` (layer {own_layer}) looks up to `{other}` (layer {layer})")
                }
                Some(LAYER_OF_STRANGERS) if own_layer == LAYER_OF_STRANGERS && other != own => {
                    format!("`{own}` and `{other}` are both on layer {own_layer} and do not know each other")
                }
                Some(_) => return None,
            };
            Some(broken(file, line, "layers", detail))
        })
        .collect()
}

fn pure_core(file: &Source, paths: &[CodePath]) -> Vec<Violation> {
    if !PURE.contains(&top_module(&file.path)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for path in paths {
        for banned in IMPURE.iter().filter(|banned| path.names(banned)) {
            let detail = format!("`{banned}` in the pure core: take it as an argument");
            found.push(broken(file, path.line, "pure core", detail));
        }
    }
    found
}

fn homes(file: &Source, paths: &[CodePath]) -> Vec<Violation> {
    let lives_in = |homes: &[&str]| homes.iter().any(|home| file.path.starts_with(home));
    let mut found = Vec::new();
    for path in paths {
        for (effect, homes) in HOMES.iter().filter(|(effect, _)| path.names(effect)) {
            if !lives_in(homes) {
                let detail = format!("`{effect}` belongs to {}", homes.join(", "));
                found.push(broken(file, path.line, "homes", detail));
            }
        }
        if path.names("clippy::disallowed_methods") && lives_in(WITHOUT_EFFECTS) {
            let detail = "this folder has no effect of its own to opt out for".into();
            found.push(broken(file, path.line, "homes", detail));
        }
    }
    found
}

fn file_length(file: &Source, lines: usize) -> Option<Violation> {
    let detail = format!("{lines} lines before the tests, {FILE_LINES_MAX} allowed: find the second concept");
    (lines > FILE_LINES_MAX).then(|| broken(file, FILE_LINES_MAX + 1, "file length", detail))
}

fn function_lengths(file: &Source, tokens: &[Token]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        if keyword.text != "fn" || !is_identifier(name.text) {
            continue;
        }
        let Some(last) = body_end(&tokens[at..]) else {
            continue;
        };
        let lines = last - keyword.line + 1;
        if lines > FUNCTION_LINES_MAX {
            let detail = format!("`{}` has {lines}, {FUNCTION_LINES_MAX} allowed", name.text);
            found.push(broken(file, keyword.line, "function length", detail));
        }
    }
    found
}

fn empty_type_names(file: &Source, tokens: &[Token]) -> Vec<Violation> {
    tokens
        .iter()
        .filter(|token| token.text.starts_with(char::is_uppercase))
        .filter(|token| camel_words(token.text).any(|word| is_empty_name(&word)))
        .map(|token| {
            let detail = format!("`{}` says nothing: name what it does", token.text);
            broken(file, token.line, "names", detail)
        })
        .collect()
}

fn empty_file_name(file: &Source) -> Option<Violation> {
    let words = file.path.split(['/', '_', '.']);
    let word = words.into_iter().find(|word| is_empty_name(word))?;
    let detail = format!("a file called `{word}` collects everything: name its concept");
    Some(broken(file, 1, "names", detail))
}

// Where a file stands.

fn is_rust(file: &Source) -> bool {
    Path::new(&file.path).extension().is_some_and(|e| e == "rs")
}

fn is_production(file: &Source) -> bool {
    file.path.starts_with("src/") || file.path.starts_with("migrations/")
}

/// `hub` for both `src/hub.rs` and `src/hub/auth.rs`; migrations are a part of `store`.
fn top_module(path: &str) -> &str {
    match path.strip_prefix("src/") {
        Some(inside) => inside.split(['/', '.']).next().unwrap_or(inside),
        None => "store",
    }
}

/// How many `super::` lead from the file's module to the crate's root.
fn depth(path: &str) -> usize {
    let inside = path.trim_start_matches("src/").trim_end_matches(".rs");
    if inside == "lib" || inside == "main" {
        return 0;
    }
    inside.trim_end_matches("/mod").split('/').count()
}

fn layer_of(module: &str) -> Option<u8> {
    LAYERS.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// The top-level module that a path inside the crate leads to.
fn imported_module<'a>(file: &Source, path: &CodePath<'a>) -> Option<&'a str> {
    let mut segments = path.segments.iter().copied().peekable();
    if segments.next_if_eq(&"crate").is_some() {
        return segments.next();
    }
    segments.next_if_eq(&"self");
    let mut supers = 0;
    while segments.next_if_eq(&"super").is_some() {
        supers += 1;
    }
    (supers > 0 && supers == depth(&file.path)).then(|| segments.next()).flatten()
}

/// The line of `#[cfg(test)] mod …`, or one past the last line.
fn production_end(file: &Source, tokens: &[Token]) -> usize {
    if file.path.ends_with("/tests.rs") || file.path.contains("/tests/") {
        return 1;
    }
    let cfg_test = ["#", "[", "cfg", "(", "test", ")", "]"];
    let is_test_module = |rest: &[Token]| {
        let starts = rest.iter().map(|t| t.text).take(cfg_test.len()).eq(cfg_test);
        // Other attributes may stand between, an item other than a module may not.
        let item = rest.iter().skip(cfg_test.len()).map(|t| t.text);
        starts
            && item
                .take_while(|text| !matches!(*text, ";" | "{" | "use" | "fn" | "impl" | "struct"))
                .any(|text| text == "mod")
    };
    (0..tokens.len())
        .find(|&at| is_test_module(&tokens[at..]))
        .map_or(file.text.lines().count() + 1, |at| tokens[at].line)
}

/// The line of the brace that closes the function which starts the slice; none without a body.
fn body_end(tokens: &[Token]) -> Option<usize> {
    let mut open_braces = 0usize;
    let mut open_brackets = 0usize;
    for token in tokens {
        match token.text {
            "(" | "[" => open_brackets += 1,
            ")" | "]" => open_brackets = open_brackets.saturating_sub(1),
            ";" if open_braces == 0 && open_brackets == 0 => return None,
            "{" => open_braces += 1,
            "}" if open_braces == 1 => return Some(token.line),
            "}" => open_braces = open_braces.saturating_sub(1),
            _ => {}
        }
    }
    None
}

// Words.

fn is_empty_name(word: &str) -> bool {
    EMPTY_NAMES.contains(&word)
}

/// `JobManager` → `job`, `manager`.
fn camel_words(name: &str) -> impl Iterator<Item = String> {
    let mut words: Vec<String> = Vec::new();
    for letter in name.chars() {
        match words.last_mut() {
            Some(word) if !letter.is_uppercase() => word.push(letter),
            _ => words.push(letter.to_lowercase().collect()),
        }
    }
    words.into_iter()
}

fn lines_where(text: &str, matches: impl Fn(&str) -> bool) -> impl Iterator<Item = usize> {
    let numbered = text.lines().enumerate();
    numbered.filter_map(move |(at, line)| matches(line).then_some(at + 1))
}

fn broken(file: &Source, line: usize, rule: &'static str, detail: String) -> Violation {
    let path = file.path.clone();
    Violation { path, line, rule, detail }
}

// The walk.

fn collect(root: &Path, folder: &str, files: &mut Vec<Source>) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else {
        return; // Folders appear when they have something in them.
    };
    for entry in entries {
        let entry = entry.unwrap();
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.file_name() == "target" {
            // What the fuzz crate built is nobody's source.
        } else if entry.file_type().unwrap().is_dir() {
            collect(root, &path, files);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            files.push(Source { path, text });
        } // Not UTF-8: a binary sample, nothing to read.
    }
}

fn collect_top_level(root: &Path, files: &mut Vec<Source>) {
    for entry in fs::read_dir(root).unwrap() {
        let path = entry.unwrap().file_name().to_string_lossy().into_owned();
        let is_ours = [".md", ".toml"].iter().any(|end| path.ends_with(end));
        if is_ours {
            let text = fs::read_to_string(root.join(&path)).unwrap();
            files.push(Source { path, text });
        }
    }
}

mod each_rule_catches_a_bad_sample {
    use super::{FILE_LINES_MAX, FUNCTION_LINES_MAX, Source, violations};

    /// `line: rule` of everything found in a file with a header before `code`; `code` starts on line 2.
    fn found(path: &str, code: &str) -> Vec<String> {
        let file = Source { path: path.into(), text: format!("//! Header.\n{code}") };
        let found = violations(&file);
        assert!(found.iter().all(|v| v.path == path && !v.detail.is_empty()));
        let found = found.iter();
        found.map(|v| format!("{}: {}", v.line, v.rule)).collect()
    }

    #[test]
    fn a_lower_layer_does_not_look_up() {
        assert_eq!(found("src/hub/tree.rs", "use crate::fetch::pool::Pool;"), ["2: layers"]);
        assert_eq!(found("src/core/plan.rs", "\nfn f() { crate::hub::go() }"), ["3: layers"]);
        assert_eq!(found("src/fetch/file.rs", "use crate::daemon::events::*;"), ["2: layers"]);
        assert!(found("src/fetch/file.rs", "use crate::{core::plan, hub::auth, sources};").is_empty());
        assert!(found("src/cli/mod.rs", "use crate::daemon::run;").is_empty());
    }

    #[test]
    fn a_grouped_or_relative_import_is_seen_too() {
        let grouped = "use crate::{\n    core::{digest, plan as p},\n    cli::{ui, exit::{Code}},\n};";
        assert_eq!(found("src/hub/tree.rs", grouped), ["4: layers", "4: layers"]);
        assert_eq!(found("src/hub/tree.rs", "use super::super::fetch::pool;"), ["2: layers"]);
        assert_eq!(found("src/hub/mod.rs", "use super::fetch::pool;"), ["2: layers"]);
        assert!(found("src/hub/tree.rs", "use super::fetch::pool;").is_empty());
    }

    #[test]
    fn the_users_of_the_world_do_not_know_each_other() {
        assert_eq!(found("src/hub/tree.rs", "use crate::volume::layout;"), ["2: layers"]);
        assert_eq!(found("migrations/0001_initial.rs", "use crate::hub::tree;"), ["2: layers"]);
        assert!(found("src/hub/tree.rs", "use crate::hub::auth;").is_empty());
    }

    #[test]
    fn a_module_on_no_layer_is_named() {
        assert_eq!(found("src/stuff/mod.rs", ""), ["1: layers"]);
        assert_eq!(found("src/hub/tree.rs", "use crate::stuff::Thing;"), ["2: layers"]);
    }

    #[test]
    fn the_core_is_pure() {
        let core = |code| found("src/core/plan.rs", code);
        for impure in [
            "use std::time::Instant;\nfn f() { Instant::now(); }",
            "\nfn f() { let t = std::time::Instant::now(); }",
            "use std::{\n    fmt, env};",
            "\n#[tokio::test]",
            "\nuse fastrand::Rng;",
            "\nuse tracing::{info};",
            "\nfn f() -> ::rand::Rng {}",
            "\nuse crate::{clock::now, core::plan};",
        ] {
            assert_eq!(core(impure), ["3: pure core"], "{impure}");
        }
        assert_eq!(core("use std::fs;"), ["2: pure core", "2: homes"]);
        assert_eq!(core("fn f() { Timestamp::now() }"), ["2: pure core", "2: homes"]);
        assert!(core("/// tokio::spawn, std::fs::read\nfn f(rand: u64) { g(\"std::env::var\", rand) }").is_empty());
    }

    #[test]
    fn an_effect_stays_in_its_home() {
        assert_eq!(found("src/daemon/worker.rs", "use sled::Tree;"), ["2: homes"]);
        assert_eq!(found("src/daemon/worker.rs", "fn f() { tokio::spawn(x); }"), ["2: homes"]);
        assert_eq!(found("src/gate/exec.rs", "use std::{env::var_os, fs};"), ["2: homes", "2: homes"]);
        assert_eq!(found("src/daemon/run.rs", "fn f() { std::process::exit(1) }"), ["2: homes"]);
        assert!(found("src/store/mod.rs", "use sled::Tree;").is_empty());
        assert!(found("migrations/0001_initial.rs", "use sled::Tree;").is_empty());
        assert!(found("src/daemon/supervisor.rs", "fn f() { tokio::spawn(x); }").is_empty());
    }

    #[test]
    fn a_folder_without_effects_does_not_opt_out() {
        let opt_out = "#![allow(clippy::disallowed_methods, reason = \"…\")]";
        assert_eq!(found("src/fetch/pool.rs", opt_out), ["2: homes"]);
        assert!(found("src/volume/mod.rs", opt_out).is_empty());
    }

    #[test]
    fn every_file_starts_with_a_header() {
        for (path, text) in [("src/hub/mod.rs", "use x;\n"), ("tests/gate.rs", "// x\n")] {
            let (path, text) = (path.into(), text.into());
            let found = violations(&Source { path, text });
            assert_eq!((found[0].line, found[0].rule), (1, "header"));
        }
    }

    #[test]
    fn a_file_is_short() {
        let tests = "#[cfg(test)]\n#[allow(x)]\nmod tests {}\n";
        let full = "// x\n".repeat(FILE_LINES_MAX - 1);
        let name = "src/hub/tree.rs";
        assert!(found(name, &full).is_empty());
        assert!(found(name, &format!("{full}{tests}{full}")).is_empty());
        assert_eq!(found(name, &format!("{full}x\n{tests}")), ["401: file length"]);
        assert_eq!(found(name, &format!("#[cfg(test)]\nuse x;\n{full}")), ["401: file length"]);
        assert!(found("src/hub/tree/tests.rs", &format!("{full}{full}")).is_empty());
    }

    #[test]
    fn a_function_is_short() {
        let function = |lines: usize| {
            let body = "    let s = \"}\"; // }\n".repeat(lines - 2);
            format!("impl X {{\nfn long(a: [u8; 4]) -> u8 {{\n{body}}}\n}}\n")
        };
        assert!(found("src/hub/tree.rs", &function(FUNCTION_LINES_MAX)).is_empty());
        assert_eq!(found("src/hub/tree.rs", &function(FUNCTION_LINES_MAX + 1)), ["3: function length"]);
        assert!(found("src/hub/tree.rs", "trait X { fn declared(&self); }").is_empty());
    }

    #[test]
    fn a_name_says_something() {
        assert_eq!(found("src/daemon/run.rs", "struct JobManager;"), ["2: names"]);
        assert_eq!(found("src/daemon/utils.rs", ""), ["1: names"]);
        assert_eq!(found("tests/support/helper.rs", ""), ["1: names"]);
        assert!(found("src/daemon/run.rs", "use tokio_util::Utilization; fn manager() {}").is_empty());
    }

    #[test]
    fn nothing_is_left_unfinished() {
        let marked = concat!("\n// TO", "DO: later");
        assert_eq!(found("tests/gate.rs", marked), ["3: unfinished"]);
        assert_eq!(found("README.md", marked), ["3: unfinished"]);
        assert!(found("README.md", "// MASTODON, ToDo").is_empty());
    }

    #[test]
    fn literals_and_comments_are_no_code() {
        let code = r##"
            const A: &str = r#"use sled::Tree; " std::env::var"#;
            const B: (u8, char, char) = (b'"', '\'', '"'); // sled::Db
            const C: &[u8] = b"sled::Db \" sled::Db";
            /* sled::Db /* sled::Db */ sled::Db */
            fn life<'a>(x: &'a str) -> Option<sled::Db> { None }
        "##;
        assert_eq!(found("src/hub/tree.rs", code), ["7: homes"]);
    }
}
