//! The manifest: the sealed list of what a model directory must hold at one commit.
//!
//! Invariant: the files of a [`Manifest`] are sorted by path, unique, none stands where another
//! needs a folder, all were selected, and their sizes add up without overflow. Its id speaks of
//! content only: the same files at the same commit under the same selection have one id,
//! wherever they came from and by whichever branch name.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;
use thiserror::Error;

use super::digest::{Digest, Sha256};
use super::endpoint::Endpoint;
use super::fold::Folding;
use super::repo::{CommitId, Repo, Revision};
use super::repo_path::RepoPath;
use super::selection::Selection;
use super::shards::is_shard;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Most files a manifest may have.
pub const FILES_MAX: usize = 1_000_000;

/// Why a list of files is no manifest.
#[derive(Debug, Error)]
pub enum ManifestError {
    /// Not JSON of the expected shape.
    #[error("the manifest is not readable")]
    Json(#[source] serde_json::Error),
    /// Written by another program version.
    #[error("the manifest has schema {found}, this program reads {SCHEMA}")]
    Schema {
        /// Its schema.
        found: u32,
    },
    /// The same path twice.
    #[error("the file {path} is listed twice")]
    Twice {
        /// The path.
        path: RepoPath,
    },
    /// A file where another entry needs a folder.
    #[error("{path} is both a file and a folder")]
    FileIsFolder {
        /// The path.
        path: String,
    },
    /// More than [`FILES_MAX`] files.
    #[error("{count} files are more than {FILES_MAX}")]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Sizes that do not fit.
    #[error("the sizes of the files add up to more than 2^63 bytes")]
    TooLarge,
    /// The listing is empty. A set of nothing is complete at once, and whoever gates on it would
    /// launch without a model.
    #[error("the listing of the repository holds no file")]
    Nothing,
    /// The selection matches no file.
    #[error("no file of the repository matches {selection}")]
    Empty {
        /// The selection.
        selection: Selection,
    },
}

/// One file of a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Where it goes, relative to the model directory.
    pub path: RepoPath,
    /// Size in bytes.
    pub size: u64,
    /// What its bytes hash to.
    pub digest: Digest,
    /// Its name in Xet storage, when it is there: 64 digits, kept as sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xet_hash: Option<String>,
}

/// Identity of a manifest: SHA-256 of its canonical form.
pub type ManifestId = Sha256;

/// A sealed manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Manifest {
    schema: u32,
    #[serde(flatten)]
    source: Source,
    files: Vec<FileEntry>,
    #[serde(skip)]
    id: ManifestId,
}

/// Where a manifest's files come from and what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// The repository.
    pub repo: Repo,
    /// The server that listed it.
    pub endpoint: Endpoint,
    /// What the user asked for.
    pub revision: Revision,
    /// What it resolved to.
    pub commit: CommitId,
    /// Which files were asked for.
    pub selection: Selection,
}

impl Manifest {
    /// Seals a listing: keeps what the selection asks for and checks the invariants.
    ///
    /// # Errors
    /// [`ManifestError`] names what is wrong with the list.
    pub fn seal(source: Source, listing: Vec<FileEntry>) -> Result<Self, ManifestError> {
        if listing.len() > FILES_MAX {
            return Err(ManifestError::TooMany { count: listing.len() });
        }
        let mut files = listing;
        if files.is_empty() {
            return Err(ManifestError::Nothing);
        }
        files.retain(|file| source.selection.selects(&file.path));
        files.sort_by(|a, b| a.path.cmp(&b.path));
        if files.is_empty() {
            return Err(ManifestError::Empty { selection: source.selection });
        }
        check_names(&files)?;
        let total = files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size));
        if total.is_none_or(|total| total > i64::MAX as u64) {
            return Err(ManifestError::TooLarge);
        }
        let id = canonical_id(&source, &files);
        Ok(Self { schema: SCHEMA, source, files, id })
    }

    /// Reads the JSON form, checking everything again.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, ManifestError> {
        #[derive(Deserialize)]
        struct Probe {
            schema: u32,
        }
        #[derive(Deserialize)]
        struct Stored {
            #[serde(flatten)]
            source: Source,
            files: Vec<FileEntry>,
        }
        let probe: Probe = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        if probe.schema != SCHEMA {
            return Err(ManifestError::Schema { found: probe.schema });
        }
        let stored: Stored = serde_json::from_slice(bytes).map_err(ManifestError::Json)?;
        Self::seal(stored.source, stored.files)
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a manifest has string keys only");
        bytes.push(b'\n');
        bytes
    }

    /// SHA-256 of the canonical form.
    #[must_use]
    pub const fn id(&self) -> ManifestId {
        self.id
    }

    /// Repository, endpoint, revision, commit and selection.
    #[must_use]
    pub const fn source(&self) -> &Source {
        &self.source
    }

    /// The files, sorted by path.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// The entry of a path.
    #[must_use]
    pub fn file(&self, path: &RepoPath) -> Option<&FileEntry> {
        let at = self.files.binary_search_by(|file| file.path.cmp(path)).ok()?;
        self.files.get(at)
    }

    /// Two names, of files or of a file and a folder, that a directory with this folding takes for
    /// one. `None` when all files find room there.
    #[must_use]
    pub fn collision(&self, folding: Folding) -> Option<(&str, &str)> {
        let names = self.files.iter().map(|file| file.path.as_str());
        let mut folded: Vec<_> = names.map(|name| (folding.apply(name), name)).collect();
        folded.sort_unstable();
        if let Some(pair) = folded.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Some((pair[0].1, pair[1].1));
        }
        let (file, below) =
            folded.iter().find_map(|(name, file)| Some((file, first_below(&folded, name, |n| &n.0)?)))?;
        // The folder has as many components as the file it is taken for.
        let depth = file.matches('/').count();
        let end = below.1.match_indices('/').nth(depth).map_or(below.1.len(), |(at, _)| at);
        Some((file, &below.1[..end]))
    }

    /// Bytes of all files.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }

    /// The same with other files in the place of those of their names: what a directory should hold
    /// where somebody changed files on purpose. `None` when the sizes do not add up. The id stays.
    pub(super) fn holding(mut self, entries: Vec<FileEntry>) -> Option<Self> {
        for entry in entries {
            if let Ok(at) = self.files.binary_search_by(|file| file.path.cmp(&entry.path)) {
                self.files[at] = entry;
            }
        }
        let total = self.files.iter().try_fold(0u64, |sum, file| sum.checked_add(file.size));
        total.is_some_and(|total| i64::try_from(total).is_ok()).then_some(self)
    }

    /// How many files are shards.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.files.iter().filter(|file| is_shard(&file.path)).count()
    }
}

fn check_names(files: &[FileEntry]) -> Result<(), ManifestError> {
    if let Some(pair) = files.windows(2).find(|pair| pair[0].path == pair[1].path) {
        return Err(ManifestError::Twice { path: pair[0].path.clone() });
    }
    let is_folder = |file: &&FileEntry| first_below(files, file.path.as_str(), |file| file.path.as_str()).is_some();
    let clash = files.iter().find(is_folder);
    clash.map_or(Ok(()), |file| Err(ManifestError::FileIsFolder { path: file.path.to_string() }))
}

/// Of things sorted by name, the first that lies in a folder called `folder`. Looking it up costs
/// the logarithm of their number; looking up every folder of every name would cost the square of
/// a name's length.
fn first_below<'a, T>(sorted: &'a [T], folder: &str, name: impl Fn(&T) -> &str) -> Option<&'a T> {
    let below = |text: &str| text.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let before = |text: &str| text.bytes().lt(folder.bytes().chain([b'/']));
    let at = sorted.partition_point(|thing| before(name(thing)));
    sorted.get(at).filter(|thing| below(name(thing)))
}

/// One fact a line; no path or pattern has a line break, so the form is unambiguous.
fn canonical_id(source: &Source, files: &[FileEntry]) -> ManifestId {
    let mut text = String::from("muster manifest 1\n");
    let mut line = |args: std::fmt::Arguments<'_>| {
        text.write_fmt(args).expect("writing to a string does not fail");
        text.push('\n');
    };
    line(format_args!("repo {} {}", source.repo.kind, source.repo.id));
    line(format_args!("commit {}", source.commit));
    for pattern in source.selection.include() {
        line(format_args!("include {}", pattern.as_str()));
    }
    for pattern in source.selection.exclude() {
        line(format_args!("exclude {}", pattern.as_str()));
    }
    for file in files {
        line(format_args!("file {} {} {}", file.size, file.digest, file.path));
    }
    Sha256::from_bytes(sha2::Sha256::digest(text.as_bytes()).into())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::repo::{RepoId, RepoKind};
    use crate::core::selection::Pattern;

    /// A source for tests.
    pub(crate) fn source() -> Source {
        Source {
            repo: Repo { kind: RepoKind::default(), id: RepoId::parse("org/model").unwrap() },
            endpoint: Endpoint::parse("https://hub.example").unwrap(),
            revision: Revision::default(),
            commit: CommitId::from_bytes([7; 20]),
            selection: Selection::default(),
        }
    }

    /// An entry for tests: its digest is that of nothing in particular.
    pub(crate) fn entry(path: &str, size: u64) -> FileEntry {
        let digest = Digest::Sha256(Sha256::from_bytes([size.to_le_bytes()[0]; 32]));
        FileEntry { path: RepoPath::parse(path).unwrap(), size, digest, xet_hash: None }
    }

    #[test]
    fn a_manifest_survives_its_json_form() {
        let manifest = Manifest::seal(source(), vec![entry("b", 2), entry("a/x", 1), entry("z z", 0)]).unwrap();
        let again = Manifest::from_json(&manifest.to_json()).unwrap();
        assert_eq!(again, manifest);
        assert_eq!(again.id(), manifest.id());
        assert_eq!(manifest.files().iter().map(|f| f.path.as_str()).collect::<Vec<_>>(), ["a/x", "b", "z z"]);
        assert_eq!(manifest.total_bytes(), 3);
    }

    #[test]
    fn a_file_in_the_place_of_a_folder_is_refused_in_any_order() {
        for list in [["node", "node/child"], ["node/child", "node"]] {
            let files = list.iter().map(|path| entry(path, 1)).collect();
            assert!(matches!(Manifest::seal(source(), files), Err(ManifestError::FileIsFolder { .. })));
        }
        let between = vec![entry("node", 1), entry("node.json", 1), entry("node/child", 1)];
        assert!(matches!(Manifest::seal(source(), between), Err(ManifestError::FileIsFolder { .. })));
    }

    #[test]
    fn repeated_paths_huge_sums_and_newer_schemas_are_refused() {
        let twice = vec![entry("a", 1), entry("a", 2)];
        assert!(matches!(Manifest::seal(source(), twice), Err(ManifestError::Twice { .. })));
        let huge = vec![entry("a", u64::MAX), entry("b", 1)];
        assert!(matches!(Manifest::seal(source(), huge), Err(ManifestError::TooLarge)));
        let newer = br#"{"schema": 2, "anything": true}"#;
        assert!(matches!(Manifest::from_json(newer), Err(ManifestError::Schema { found: 2 })));
        assert!(matches!(Manifest::from_json(b"{"), Err(ManifestError::Json(_))));
    }

    #[test]
    fn a_repository_of_nothing_is_no_set_that_could_be_complete() {
        assert!(matches!(Manifest::seal(source(), Vec::new()), Err(ManifestError::Nothing)));
    }

    #[test]
    fn a_selection_that_matches_nothing_is_refused() {
        let mut nothing = source();
        nothing.selection = Selection::new(vec![Pattern::parse("*.gguf").unwrap()], vec![]);
        assert!(matches!(Manifest::seal(nothing, vec![entry("a", 1)]), Err(ManifestError::Empty { .. })));
    }

    #[test]
    fn the_id_speaks_of_content_and_not_of_the_way_there() {
        let files = vec![entry("a", 1)];
        let id = |source| Manifest::seal(source, files.clone()).unwrap().id();
        let mut elsewhere = source();
        elsewhere.endpoint = Endpoint::parse("http://localhost:1").unwrap();
        elsewhere.revision = Revision::parse("v1").unwrap();
        assert_eq!(id(source()), id(elsewhere));
        let mut later = source();
        later.commit = CommitId::from_bytes([8; 20]);
        assert_ne!(id(source()), id(later));
    }

    #[test]
    fn names_collide_only_where_the_directory_folds_them() {
        let case = Folding { case: true, form: false };
        let form = Folding { case: false, form: true };
        for (one, other, at) in [
            ("Model.bin", "model.bin", case),
            ("sub/Model.bin", "sub/model.bin", case),
            ("Sub/x", "sub/x", case),
            ("Sub", "sub/x", case),
            ("caf\u{e9}.json", "cafe\u{301}.json", form),
            ("caf\u{e9}", "cafe\u{301}/x", form),
        ] {
            let manifest = Manifest::seal(source(), vec![entry(one, 1), entry("z", 1), entry(other, 1)]).unwrap();
            let (a, b) = manifest.collision(at).unwrap_or_else(|| panic!("{one} {other}"));
            assert!(
                [a, b].iter().any(|name| one.starts_with(name)) && [a, b].iter().any(|name| other.starts_with(name))
            );
            assert_eq!(manifest.collision(Folding::NONE), None, "{one} {other}");
            let not = if at == case { form } else { case };
            assert_eq!(manifest.collision(not), None, "{one} {other}");
        }
        let apart = Manifest::seal(source(), vec![entry("Sub/x", 1), entry("sub/y", 1)]).unwrap();
        assert_eq!(apart.collision(Folding::ALL), None, "one folder holds both");
    }

    #[test]
    fn deep_folders_cost_no_more_than_their_names() {
        let deep = "a/".repeat(1500);
        let files: Vec<_> = (0..2000).map(|n| entry(&format!("{deep}{n}"), 1)).collect();
        let manifest = Manifest::seal(source(), files.clone()).unwrap();
        assert_eq!(manifest.collision(Folding::ALL), None);
        let clash = files.into_iter().chain([entry(deep.trim_end_matches('/'), 1)]).collect();
        assert!(matches!(Manifest::seal(source(), clash), Err(ManifestError::FileIsFolder { .. })));
    }

    proptest! {
        #[test]
        fn a_file_stands_where_a_folder_has_to_be_exactly_when_a_path_says_so(
            paths in prop::collection::btree_set("[aA.!0]{1,2}(/[aA.!0]{1,2}){0,3}", 1..12),
        ) {
            let paths: Vec<_> = paths.into_iter().filter(|path| RepoPath::parse(path).is_ok()).collect();
            let clash = paths.iter().any(|path| paths.iter().any(|other| other.starts_with(&format!("{path}/"))));
            match Manifest::seal(source(), paths.iter().map(|path| entry(path, 1)).collect()) {
                Ok(manifest) => {
                    prop_assert!(!clash);
                    let case = Folding { case: true, form: false };
                    let folded: Vec<_> = paths.iter().map(|path| path.to_lowercase()).collect();
                    let collides = folded.iter().enumerate().any(|(at, one)| folded.iter().enumerate().any(|(other_at, other)| {
                        at != other_at && (one == other || other.starts_with(&format!("{one}/")))
                    }));
                    let found = manifest.collision(case);
                    prop_assert_eq!(found.is_some(), collides);
                    if let Some((one, other)) = found {
                        prop_assert_eq!(one.to_lowercase(), other.to_lowercase());
                    }
                }
                Err(ManifestError::FileIsFolder { .. }) => prop_assert!(clash),
                Err(ManifestError::Nothing) => prop_assert!(paths.is_empty()),
                Err(other) => prop_assert!(false, "{}", other),
            }
        }

        #[test]
        fn the_order_of_a_listing_does_not_matter(mut sizes in prop::collection::vec(0u64..9, 1..20), seed in any::<u64>()) {
            let files: Vec<_> = sizes.drain(..).enumerate().map(|(i, size)| entry(&format!("f{i}"), size)).collect();
            let mut shuffled = files.clone();
            let len = shuffled.len();
            shuffled.rotate_left(usize::try_from(seed % len as u64).unwrap());
            prop_assert_eq!(Manifest::seal(source(), files).unwrap(), Manifest::seal(source(), shuffled).unwrap());
        }

        #[test]
        fn garbled_json_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Manifest::from_json(&bytes);
        }
    }
}
