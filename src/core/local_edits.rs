//! What somebody changed in a model directory on purpose, and so what it should hold.
//!
//! Owns the record (`.muster/local.json`) and the one notion that everything which checks or mends
//! a directory goes by: [`Expected`], the manifest's files with the accepted ones in place of the
//! published. Invariants: an edit stands for exactly one published file, by size and digest; when
//! the manifest has another file there, nothing is expected and somebody has to decide. The id of
//! the manifest stays the published one's.

use std::fmt::Write as _;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::digest::{Digest, Sha256};
use super::manifest::{FileEntry, Manifest};
use super::repo_path::RepoPath;
use super::shards::is_shard;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Bytes from which a file counts as weights, whatever its name is.
const WEIGHTS_FROM: u64 = 64 << 20;
/// Endings of files that hold weights.
const WEIGHTS: [&str; 12] =
    ["safetensors", "gguf", "ggml", "bin", "pt", "pth", "ckpt", "onnx", "h5", "msgpack", "npz", "tflite"];
/// Longest reason, in bytes.
const REASON_MAX: usize = 1000;
/// Files that are named in one sentence.
const NAMED_MAX: usize = 3;

/// Why edits are none, or do not fit.
#[derive(Debug, Error)]
pub enum LocalEditsError {
    /// Not JSON of the expected shape.
    #[error("the record of deliberate edits is not readable")]
    Json(#[source] serde_json::Error),
    /// Written by another program version.
    #[error("the record of deliberate edits has schema {found}, this program reads {SCHEMA}")]
    Schema {
        /// Its schema.
        found: u32,
    },
    /// The same path twice.
    #[error("{path} has two deliberate edits")]
    Twice {
        /// The path.
        path: RepoPath,
    },
    /// Sizes that do not fit.
    #[error("the sizes of the files add up to more than 2^63 bytes")]
    TooLarge,
    /// The published file is another one than the edit was made over.
    #[error(transparent)]
    Conflict(#[from] Conflict),
}

/// A file that was changed here and by its publisher.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{}", self.words())]
pub struct Conflict {
    /// What was accepted, and over what.
    pub edit: Box<LocalEdit>,
    /// What is published now; nothing when the file went.
    pub now: Option<Published>,
}

impl Conflict {
    fn words(&self) -> String {
        let LocalEdit { path, sha256, published, reason, .. } = &*self.edit;
        let was = &published.digest;
        let now = self.now.map_or_else(|| "gone".to_owned(), |now| now.digest.to_string());
        format!(
            "{path} was changed here on purpose (\"{reason}\") and its publisher changed it too: \
             published was {was}, published is now {now}, here it is sha256:{sha256}"
        )
    }
}

/// Why a text is no reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum EditReasonError {
    /// There is none.
    #[error("a reason is needed: it is shown wherever the file is named")]
    Empty,
    /// Longer than is kept.
    #[error("the reason has {len} bytes, {REASON_MAX} are kept")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// Line breaks, or what steers a terminal.
    #[error("the reason has control characters; one line of text is wanted")]
    Control,
}

/// Why a file was changed, in one line of the operator's words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct EditReason(String);

impl EditReason {
    /// Takes a text, without the spaces around it.
    ///
    /// # Errors
    /// [`EditReasonError`].
    pub fn parse(text: &str) -> Result<Self, EditReasonError> {
        let text = text.trim();
        match text {
            "" => Err(EditReasonError::Empty),
            _ if text.len() > REASON_MAX => Err(EditReasonError::TooLong { len: text.len() }),
            _ if text.chars().any(char::is_control) => Err(EditReasonError::Control),
            _ => Ok(Self(text.to_owned())),
        }
    }
}

impl std::fmt::Display for EditReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for EditReason {
    type Error = EditReasonError;
    fn try_from(text: String) -> Result<Self, EditReasonError> {
        Self::parse(&text)
    }
}

impl From<EditReason> for String {
    fn from(reason: EditReason) -> Self {
        reason.0
    }
}

/// A published file, by what its manifest says of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Size in bytes.
    pub size: u64,
    /// What its bytes hash to.
    pub digest: Digest,
}

impl From<&FileEntry> for Published {
    fn from(entry: &FileEntry) -> Self {
        Self { size: entry.size, digest: entry.digest }
    }
}

/// One file that is right as somebody changed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalEdit {
    /// The file.
    pub path: RepoPath,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its bytes.
    pub sha256: Sha256,
    /// The published file that it stands for.
    pub published: Published,
    /// Why, in the operator's words.
    pub reason: EditReason,
    /// Who accepted it: the number of the user, as the system knows it; null over the network.
    pub uid: Option<u32>,
    /// The user's name, as the user's session has it.
    pub user: Option<String>,
    /// On which host.
    pub host: String,
    /// When.
    pub at: Timestamp,
}

impl LocalEdit {
    /// What the directory should hold in the published file's place.
    #[must_use]
    pub fn entry(&self) -> FileEntry {
        let digest = Digest::Sha256(self.sha256);
        FileEntry { path: self.path.clone(), size: self.size, digest, xet_hash: None }
    }
}

/// Whether a file is one that nobody edits by hand: it is accepted only when that is insisted on.
#[must_use]
pub fn is_weights(path: &RepoPath, size: u64) -> bool {
    let ending = path.file_name().rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    is_shard(path) || size >= WEIGHTS_FROM || ending.is_some_and(|ending| WEIGHTS.contains(&ending.as_str()))
}

/// All edits of a directory, sorted by path, one for each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LocalEdits(Vec<LocalEdit>);

impl LocalEdits {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// [`LocalEditsError`]; what cannot be understood is never taken for "no edits".
    pub fn from_json(bytes: &[u8]) -> Result<Self, LocalEditsError> {
        #[derive(Deserialize)]
        struct Probe {
            schema: u32,
        }
        let probe: Probe = serde_json::from_slice(bytes).map_err(LocalEditsError::Json)?;
        if probe.schema != SCHEMA {
            return Err(LocalEditsError::Schema { found: probe.schema });
        }
        let Stored { files: mut edits, .. } = serde_json::from_slice(bytes).map_err(LocalEditsError::Json)?;
        edits.sort_by(|a, b| a.path.cmp(&b.path));
        match edits.windows(2).find(|pair| pair[0].path == pair[1].path) {
            Some(pair) => Err(LocalEditsError::Twice { path: pair[0].path.clone() }),
            None => Ok(Self(edits)),
        }
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let stored = Stored { schema: SCHEMA, files: self.0.clone() };
        let mut bytes = serde_json::to_vec_pretty(&stored).expect("edits have string keys only");
        bytes.push(b'\n');
        bytes
    }

    /// The edits, sorted by path.
    #[must_use]
    pub fn files(&self) -> &[LocalEdit] {
        &self.0
    }

    /// The edit of a file.
    #[must_use]
    pub fn of(&self, path: &RepoPath) -> Option<&LocalEdit> {
        let at = self.0.binary_search_by(|edit| edit.path.cmp(path)).ok()?;
        self.0.get(at)
    }

    /// The same with these edits, in place of what was known of their files.
    #[must_use]
    pub fn with(mut self, edits: Vec<LocalEdit>) -> Self {
        for edit in edits {
            match self.0.binary_search_by(|known| known.path.cmp(&edit.path)) {
                Ok(at) => self.0[at] = edit,
                Err(at) => self.0.insert(at, edit),
            }
        }
        self
    }

    /// The same without what is known of these files.
    #[must_use]
    pub fn without(mut self, paths: &[RepoPath]) -> Self {
        self.0.retain(|edit| !paths.contains(&edit.path));
        self
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    schema: u32,
    files: Vec<LocalEdit>,
}

/// What a directory of a manifest should hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    manifest: Manifest,
    edits: LocalEdits,
}

impl Expected {
    /// Lays the edits over the manifest.
    ///
    /// # Errors
    /// [`LocalEditsError::Conflict`] names the first file that its publisher changed too.
    pub fn of(published: Manifest, edits: LocalEdits) -> Result<Self, LocalEditsError> {
        for edit in edits.files() {
            let now = published.file(&edit.path).map(Published::from);
            if now != Some(edit.published) {
                return Err(Conflict { edit: Box::new(edit.clone()), now }.into());
            }
        }
        let entries = edits.files().iter().map(LocalEdit::entry).collect();
        let manifest = published.holding(entries).ok_or(LocalEditsError::TooLarge)?;
        Ok(Self { manifest, edits })
    }

    /// The manifest alone: nothing was changed here on purpose.
    #[must_use]
    pub const fn plain(published: Manifest) -> Self {
        Self { manifest: published, edits: LocalEdits(Vec::new()) }
    }

    /// The manifest with each file as it should be here. Not to be stored: its id is that of the
    /// published one, whose files it has not.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The edits.
    #[must_use]
    pub const fn edits(&self) -> &LocalEdits {
        &self.edits
    }

    /// Manifest and edits.
    #[must_use]
    pub fn into_parts(self) -> (Manifest, LocalEdits) {
        (self.manifest, self.edits)
    }
}

/// `2 files changed here on purpose: a.json, b.json`; nothing when there are none.
#[must_use]
pub fn in_words(edits: &[LocalEdit]) -> Option<String> {
    let names: Vec<_> = edits.iter().take(NAMED_MAX).map(|edit| edit.path.as_str()).collect();
    let mut words = match edits.len() {
        0 => return None,
        1 => "1 file changed here on purpose: ".to_owned(),
        many => format!("{many} files changed here on purpose: "),
    };
    words.push_str(&names.join(", "));
    if let Some(more) = edits.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
        let _infallible = write!(words, " and {more} more");
    }
    Some(words)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::manifest::tests::{entry, source};
    use crate::core::receipt::{FileRecord, Proved, Receipt, Witness};
    use crate::core::verify::FileHasher;

    /// An edit of a file, for tests.
    pub(crate) fn edit_of(entry: &FileEntry, bytes: &[u8]) -> LocalEdit {
        use sha2::Digest as _;
        LocalEdit {
            path: entry.path.clone(),
            size: bytes.len() as u64,
            sha256: Sha256::from_bytes(sha2::Sha256::digest(bytes).into()),
            published: entry.into(),
            reason: EditReason::parse("the backend cannot do FP8").unwrap(),
            uid: Some(1000),
            user: None,
            host: "here".into(),
            at: Timestamp::UNIX_EPOCH,
        }
    }

    fn manifest(names: &[&str]) -> Manifest {
        Manifest::seal(source(), names.iter().map(|name| entry(name, 5)).collect()).unwrap()
    }

    fn edits(edits: Vec<LocalEdit>) -> LocalEdits {
        LocalEdits::default().with(edits)
    }

    #[test]
    fn an_accepted_file_takes_the_published_ones_place_and_the_id_stays() {
        let published = manifest(&["a.json", "b.json"]);
        let edit = edit_of(&published.files()[1], b"other");
        let expected = Expected::of(published.clone(), edits(vec![edit.clone()])).unwrap();
        assert_eq!(expected.manifest().id(), published.id());
        assert_eq!(expected.manifest().files()[0], published.files()[0]);
        assert_eq!(expected.manifest().files()[1], edit.entry());
        let plain = Expected::of(published.clone(), LocalEdits::default()).unwrap();
        assert_eq!(*plain.manifest(), published);
    }

    #[test]
    fn an_edit_over_another_published_file_is_a_conflict_that_shows_both() {
        let old = manifest(&["a.json", "b.json"]);
        let edit = edit_of(&old.files()[1], b"other");
        let new = Manifest::seal(source(), vec![entry("a.json", 5), entry("b.json", 6)]).unwrap();
        let Err(LocalEditsError::Conflict(conflict)) = Expected::of(new.clone(), edits(vec![edit.clone()])) else {
            panic!("no conflict")
        };
        let said = conflict.to_string();
        for part in [
            "b.json",
            "the backend cannot do FP8",
            &old.files()[1].digest.to_string(),
            &new.files()[1].digest.to_string(),
            &edit.sha256.to_string(),
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let gone = Expected::of(manifest(&["a.json"]), edits(vec![edit])).unwrap_err();
        assert!(gone.to_string().contains("published is now gone"), "{gone}");
    }

    #[test]
    fn a_receipt_of_an_edited_directory_proves_nothing_to_who_does_not_know_of_the_edit() {
        let published = manifest(&["a.json"]);
        let edit = edit_of(&published.files()[0], b"other");
        let expected = Expected::of(published.clone(), edits(vec![edit.clone()])).unwrap();
        let mut hasher = FileHasher::new(&edit.entry());
        hasher.update(b"other");
        let identity = crate::core::identity::Identity { inode: 1, size: 5, mtime_ns: 2, ctime_ns: 3 };
        let record = FileRecord::new(edit.path.clone(), &hasher.finish().unwrap(), identity, Proved::Readback);
        let witness = Witness { at: Timestamp::UNIX_EPOCH, program: "p".into(), host: "h".into() };
        let receipt = Receipt::seal(expected.manifest(), vec![record], witness).unwrap();
        assert!(Receipt::from_json(&receipt.to_json(), expected.manifest()).is_ok());
        assert!(Receipt::from_json(&receipt.to_json(), &published).is_err(), "an older program stays closed");
    }

    #[test]
    fn what_cannot_be_understood_is_not_taken_for_no_edits() {
        for bad in [
            &b""[..],
            b"{",
            b"[]",
            br#"{"schema": 2, "files": []}"#,
            br#"{"schema": 1}"#,
            br#"{"schema": 1, "files": [], "more": 1}"#,
            br#"{"schema": 1, "files": [{"path": "../x"}]}"#,
        ] {
            assert!(LocalEdits::from_json(bad).is_err(), "{}", String::from_utf8_lossy(bad));
        }
        let edit = edit_of(&entry("a", 1), b"x");
        let twice = serde_json::json!({ "schema": 1, "files": [edit, edit] }).to_string();
        assert!(matches!(LocalEdits::from_json(twice.as_bytes()), Err(LocalEditsError::Twice { .. })));
        assert_eq!(LocalEdits::from_json(br#"{"schema": 1, "files": []}"#).unwrap(), LocalEdits::default());
    }

    #[test]
    fn sizes_that_do_not_add_up_are_refused() {
        let published = manifest(&["a", "b"]);
        let huge = |at: usize| LocalEdit { size: u64::MAX, ..edit_of(&published.files()[at], b"x") };
        let both = edits(vec![huge(0), huge(1)]);
        assert!(matches!(Expected::of(published.clone(), both), Err(LocalEditsError::TooLarge)));
    }

    #[test]
    fn weights_are_told_by_name_and_by_size() {
        let path = |text: &str| RepoPath::parse(text).unwrap();
        for (name, size, weights) in [
            ("config.json", 1000, false),
            ("tokenizer.json", 30 << 20, false),
            ("anything.json", 64 << 20, true),
            ("model-00001-of-00119.safetensors", 1, true),
            ("sub/model.SAFETENSORS", 1, true),
            ("x.gguf", 1, true),
            ("safetensors", 1, false),
        ] {
            assert_eq!(is_weights(&path(name), size), weights, "{name}");
        }
    }

    #[test]
    fn a_reason_is_one_line_and_not_empty() {
        assert_eq!(EditReason::parse("  FP8 off ").unwrap().to_string(), "FP8 off");
        assert_eq!(EditReason::parse(" \n "), Err(EditReasonError::Empty));
        assert_eq!(EditReason::parse("a\nb"), Err(EditReasonError::Control));
        assert!(matches!(EditReason::parse(&"x".repeat(REASON_MAX + 1)), Err(EditReasonError::TooLong { .. })));
    }

    #[test]
    fn edits_are_counted_and_the_first_are_named() {
        let some =
            |count: usize| -> Vec<_> { (0..count).map(|n| edit_of(&entry(&format!("{n}.json"), 1), b"x")).collect() };
        assert_eq!(in_words(&[]), None);
        assert_eq!(in_words(&some(1)).unwrap(), "1 file changed here on purpose: 0.json");
        assert_eq!(in_words(&some(2)).unwrap(), "2 files changed here on purpose: 0.json, 1.json");
        assert!(in_words(&some(5)).unwrap().ends_with("0.json, 1.json, 2.json and 2 more"));
    }

    proptest! {
        #[test]
        fn edits_survive_their_json_form_and_change_only_their_own_files(
            files in 1usize..7,
            edited in prop::collection::vec((0usize..7, prop::collection::vec(any::<u8>(), 0..9)), 0..9),
        ) {
            let names: Vec<_> = (0..files).map(|n| format!("f{n}")).collect();
            let published = manifest(&names.iter().map(String::as_str).collect::<Vec<_>>());
            let of = |(at, bytes): &(usize, Vec<u8>)| Some(edit_of(published.files().get(*at)?, bytes));
            let made = edits(edited.iter().filter_map(of).collect());
            prop_assert_eq!(&LocalEdits::from_json(&made.to_json()).unwrap(), &made);
            let expected = Expected::of(published.clone(), made.clone()).unwrap();
            prop_assert_eq!(expected.manifest().id(), published.id());
            for (was, is) in published.files().iter().zip(expected.manifest().files()) {
                prop_assert_eq!(&was.path, &is.path);
                let held = made.of(&was.path).map_or_else(|| was.clone(), LocalEdit::entry);
                prop_assert_eq!(&held, is);
            }
            let all: Vec<_> = made.files().iter().map(|edit| edit.path.clone()).collect();
            prop_assert_eq!(made.without(&all), LocalEdits::default());
        }
    }
}
