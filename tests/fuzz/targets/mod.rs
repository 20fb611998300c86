//! What is fuzzed: one function for each parser of foreign bytes.
//!
//! Any bytes go in. A function returns when they were refused, or accepted and found to keep what
//! the parser promises: a value survives being written and read, keeps its invariants, and says
//! nothing that steers a terminal. It panics otherwise. Used by libFuzzer (`tests/fuzz`) and, with
//! the seeds and all past finds, by `tests/fuzz_corpus.rs`.

mod answers;
mod bodies;
mod files;
mod policies;
mod signatures;
mod weights;
mod words;

/// A target.
pub type Target = fn(&[u8]);

/// Every target by its name, which is that of its folder of seeds too.
pub const ALL: &[(&str, Target)] = &[
    ("bundle", signatures::bundle),
    ("claims", files::claims),
    ("config", words::config),
    ("discover", words::discover),
    ("endpoint", words::endpoint),
    ("gguf", weights::gguf),
    ("globs", words::globs),
    ("history", files::history),
    ("key", signatures::key),
    ("limits", answers::limits),
    ("link", answers::link),
    ("local-edits", files::local_edits),
    ("manifest", files::manifest),
    ("memory", files::memory),
    ("mirror", bodies::mirror),
    ("names", words::names),
    ("owner", files::owner),
    ("policy", policies::policy),
    ("range", answers::range),
    ("receipt", files::receipt),
    ("redirect", answers::redirect),
    ("refusal", answers::refusal),
    ("requests", bodies::requests),
    ("revision", answers::revision),
    ("safetensors", weights::safetensors),
    ("shard_index", weights::shard_index),
    ("statement", signatures::statement),
    ("status", bodies::status),
    ("store", files::store),
    ("tree", answers::tree),
    ("units", words::units),
];

/// Runs one target.
///
/// # Panics
/// When there is no such target, or the bytes break a promise of its parser.
pub fn run(name: &str, bytes: &[u8]) {
    let (_, target) = ALL.iter().find(|(known, _)| *known == name).expect("a target of that name");
    target(bytes);
}

/// Bytes as text; `None` for those of no text, which the callers of these parsers never pass on.
fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

/// What an error says: one line, and nothing in it that steers a terminal.
fn one_line(error: &dyn std::fmt::Display) -> String {
    let said = error.to_string();
    assert!(!said.chars().any(char::is_control), "a control character in {said:?}");
    said
}

/// A value survives being written and read.
fn survives<T>(value: &T)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
{
    let written = serde_json::to_vec(value).expect("it can be written");
    let read: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert_eq!(&read, value);
}
