//! Whether the weight files of a model are whole and belong together.
//!
//! Owns which files have a structure, what can be wrong with it, and how the shards, their index
//! and the parts of a split fit together. Everything here speaks of bytes that are the manifest's:
//! a fault is upstream's, and another pull brings it again. Reading is `gate::structure`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::gguf::{Gguf, GgufError};
use super::manifest::Manifest;
use super::reason::{Reason, Why};
use super::repo_path::RepoPath;
use super::safetensors::HeaderError;
use super::shard_index::{INDEX_MAX, Placement, ShardIndex, index_stem};
use super::shards::{series, shard_number};

/// Parts of a split that are looked for by name; of more, the sum of their tensors tells.
const PARTS_MAX: u32 = 1000;
/// Characters of foreign text in a message.
const SHOWN_MAX: usize = 120;
/// How a git-lfs pointer begins (`git-lfs/git-lfs`, `docs/spec.md`).
const POINTER: &[u8] = b"version https://git-lfs.github.com/spec/";

/// What a fault in the structure of a model means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strictness {
    /// The gate stays closed.
    #[default]
    Check,
    /// It is told.
    Warn,
    /// Nobody looks.
    Off,
}

/// Not one of the three words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{}` is none of check, warn, off", .text.escape_debug())]
pub struct StrictnessError {
    /// What was given.
    pub text: String,
}

/// Kinds of files that have a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Tensors behind a header.
    Safetensors,
    /// Tensors behind a head, or a part of them.
    Gguf,
    /// Names the shards of a model.
    Index,
}

/// What is wrong with the structure of a file.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Fault {
    /// The text that git has in place of the file was uploaded.
    #[error("it is a git-lfs pointer and not the file it points to")]
    Pointer,
    /// The header of a safetensors file.
    #[error("{0}")]
    Safetensors(HeaderError),
    /// The head of a GGUF file.
    #[error("{0}")]
    Gguf(GgufError),
    /// An index that cannot be read.
    #[error("the index is not readable: {why}")]
    Index {
        /// What the parser says.
        why: String,
    },
    /// Indexes of more than [`super::shard_index::INDEX_MAX`] bytes together.
    #[error("the index has {size} bytes, and the indexes of a model may have {INDEX_MAX} together")]
    IndexTooLarge {
        /// Its size.
        size: u64,
    },
    /// The index names files that nobody has.
    #[error("the index names {first}{}, which the repository does not have", more(*.count))]
    NoShard {
        /// One of them.
        first: String,
        /// How many.
        count: usize,
    },
    /// Shards that the index does not name.
    #[error("the index does not name {first}{}, which the repository has", more(*.count))]
    Unnamed {
        /// One of them.
        first: RepoPath,
        /// How many.
        count: usize,
    },
    /// Tensors in another shard than the index says.
    #[error("the index says that the tensor {tensor}{} is in {said}, and it is in {found}", more(*.count))]
    Elsewhere {
        /// One of them.
        tensor: String,
        /// Its shard by the index.
        said: String,
        /// The shard it is in.
        found: RepoPath,
        /// How many of this shard.
        count: usize,
    },
    /// Tensors that the shard the index says does not have.
    #[error("the index says that the tensor {tensor}{} is in {shard}, and it is not", more(*.count))]
    Absent {
        /// One of them.
        tensor: String,
        /// The shard.
        shard: RepoPath,
        /// How many of this shard.
        count: usize,
    },
    /// Tensors that the index does not know.
    #[error("the index does not know the tensor {tensor}{} of {shard}", more(*.count))]
    Unlisted {
        /// One of them.
        tensor: String,
        /// Its shard.
        shard: RepoPath,
        /// How many of this shard.
        count: usize,
    },
    /// Parts of a split that the repository does not have.
    #[error("part {first} of {of}{} is not in the repository", more(*.count))]
    NoPart {
        /// One of them, from 1.
        first: u32,
        /// Parts by the file names.
        of: u32,
        /// How many.
        count: usize,
    },
    /// A name that says another part than the file does.
    #[error("its name says part {number} of {of}, and its metadata {}", said(*.no, *.parts))]
    OtherPart {
        /// By the name, from 1.
        number: u32,
        /// By the name.
        of: u32,
        /// `split.no`, from 0.
        no: Option<u64>,
        /// `split.count`.
        parts: Option<u64>,
    },
    /// Tensors of all parts that do not add up.
    #[error("the parts have {found} tensors together, and the metadata says {expected}")]
    Tensors {
        /// `split.tensors.count`.
        expected: u64,
        /// Of all parts.
        found: u64,
    },
}

/// An index and where its shards are.
#[derive(Debug)]
pub struct Indexed<'a> {
    /// The index itself.
    pub path: RepoPath,
    /// What it says.
    pub index: ShardIndex<'a>,
    /// The path of each shard it names; none for those that the manifest does not have.
    pub shards: Vec<Option<RepoPath>>,
}

impl Role {
    /// What a file is by its name.
    #[must_use]
    pub fn of(path: &RepoPath) -> Option<Self> {
        let name = path.file_name();
        match name.rsplit_once('.')?.1 {
            "safetensors" => Some(Self::Safetensors),
            "gguf" => Some(Self::Gguf),
            "json" => index_stem(name).map(|_| Self::Index),
            _ => None,
        }
    }
}

impl<'a> Indexed<'a> {
    /// Finds the shards of an index in the manifest. Returns the faults of their names, and how
    /// many shards the selection leaves out.
    #[must_use]
    pub fn find(path: &RepoPath, index: ShardIndex<'a>, manifest: &Manifest) -> (Self, Vec<Fault>, usize) {
        let folder = folder_of(path);
        let selection = &manifest.source().selection;
        let named: Vec<_> = index.shards().map(|shard| RepoPath::parse(&format!("{folder}{shard}")).ok()).collect();
        let shards: Vec<_> =
            named.iter().map(|path| path.clone().filter(|path| manifest.file(path).is_some())).collect();
        let (mut absent, mut left_out) = (Vec::new(), 0);
        for (at, shard) in index.shards().enumerate().filter(|(at, _)| shards[*at].is_none()) {
            match &named[at] {
                Some(path) if !selection.selects(path) => left_out += 1,
                _ => absent.push(shard),
            }
        }
        let mut faults = Vec::new();
        absent.sort_unstable();
        if let Some(first) = absent.first() {
            faults.push(Fault::NoShard { first: plain(first), count: absent.len() });
        }
        let custom = index_stem(path.file_name()).map(|stem| format!("{folder}{stem}-*-of-"));
        let known: BTreeSet<&RepoPath> = named.iter().flatten().collect();
        let all: BTreeSet<String> = known.iter().filter_map(|path| series(path)).collect();
        let belongs = |path: &RepoPath| {
            let of = series(path).filter(|_| Role::of(path) == Some(Role::Safetensors));
            of.is_some_and(|of| all.contains(&of) || custom.as_ref().is_some_and(|custom| of.starts_with(custom)))
        };
        let unnamed: Vec<_> = manifest.files().iter().map(|entry| &entry.path).filter(|path| belongs(path)).collect();
        let unnamed: Vec<_> = unnamed.into_iter().filter(|path| !known.contains(path)).collect();
        if let Some(first) = unnamed.first() {
            faults.push(Fault::Unnamed { first: (*first).clone(), count: unnamed.len() });
        }
        (Self { path: path.clone(), index, shards }, faults, left_out)
    }

    /// The faults of the tensors of one shard.
    #[must_use]
    pub fn faults_of(placement: Placement, shard: &RepoPath) -> Vec<Fault> {
        let Placement { elsewhere, unlisted, absent } = placement;
        let elsewhere =
            elsewhere.map(|(tensor, said, count)| Fault::Elsewhere { tensor, said, found: shard.clone(), count });
        let unlisted = unlisted.map(|(tensor, count)| Fault::Unlisted { tensor, shard: shard.clone(), count });
        let absent = absent.map(|(tensor, count)| Fault::Absent { tensor, shard: shard.clone(), count });
        [elsewhere, absent, unlisted].into_iter().flatten().collect()
    }
}

/// What is wrong with the splits among GGUF files that are each whole, and how many parts the
/// selection leaves out.
#[must_use]
pub fn check_splits(files: &[(&RepoPath, Gguf)], manifest: &Manifest) -> (Vec<Reason>, usize) {
    let mut sets: BTreeMap<String, Vec<Part<'_>>> = BTreeMap::new();
    for (path, gguf) in files {
        if let (Some((number, of)), Some(set)) = (shard_number(path.file_name()), series(path)) {
            sets.entry(set).or_default().push(Part { number, of, path, gguf });
        }
    }
    let (mut reasons, mut left_out) = (Vec::new(), 0);
    for (set, parts) in sets {
        let Some(first) = parts.first() else { continue };
        let other = parts.iter().filter(|part| !part.is_what_it_is_called());
        reasons.extend(other.map(|part| reason(part.path, part.fault())));
        let missing = Missing::of(&set, &parts, manifest);
        left_out += missing.excluded;
        if let Some(number) = missing.absent.first() {
            let fault = Fault::NoPart { first: *number, of: first.of, count: missing.absent.len() };
            reasons.push(reason(first.path, fault));
        }
        let found = parts.iter().map(|part| part.gguf.tensors).fold(0, u64::saturating_add);
        let other = parts.iter().find_map(|part| Some((part, part.gguf.split_tensors.filter(|all| *all != found)?)));
        if let (true, Some((part, expected))) = (missing.is_nothing(), other) {
            reasons.push(reason(part.path, Fault::Tensors { expected, found }));
        }
    }
    (reasons, left_out)
}

/// A part of a split.
struct Part<'a> {
    /// By its name, from 1.
    number: u32,
    /// By its name.
    of: u32,
    path: &'a RepoPath,
    gguf: &'a Gguf,
}

impl Part<'_> {
    fn is_what_it_is_called(&self) -> bool {
        let no = u64::from(self.number).checked_sub(1);
        self.gguf.split_no == no && no.is_some() && self.gguf.split_count == Some(u64::from(self.of))
    }

    fn fault(&self) -> Fault {
        let Self { number, of, gguf, .. } = *self;
        Fault::OtherPart { number, of, no: gguf.split_no, parts: gguf.split_count }
    }
}

/// Parts of a split that are not among those looked at.
#[derive(Default)]
struct Missing {
    /// Upstream does not have them.
    absent: Vec<u32>,
    /// Nobody asked for them.
    excluded: usize,
    /// They are there, and broken.
    broken: usize,
}

impl Missing {
    fn of(set: &str, parts: &[Part<'_>], manifest: &Manifest) -> Self {
        let mut missing = Self::default();
        let (Some(first), Some((stem, tail))) = (parts.first(), set.split_once("-*-of-")) else { return missing };
        let there: BTreeSet<u32> = parts.iter().map(|part| part.number).collect();
        let digits = first.path.as_str().len() - set.len() + 1;
        for number in (1..=first.of.min(PARTS_MAX)).filter(|number| !there.contains(number)) {
            match RepoPath::parse(&format!("{stem}-{number:0digits$}-of-{tail}")) {
                Ok(path) if manifest.file(&path).is_some() => missing.broken += 1,
                Ok(path) if !manifest.source().selection.selects(&path) => missing.excluded += 1,
                _ => missing.absent.push(number),
            }
        }
        missing
    }

    const fn is_nothing(&self) -> bool {
        self.absent.is_empty() && self.excluded == 0 && self.broken == 0
    }
}

/// The reason for a fault of a file.
#[must_use]
pub fn reason(path: &RepoPath, fault: Fault) -> Reason {
    Reason { file: Some(path.clone()), why: Why::Structure(Box::new(fault)) }
}

/// Whether a file begins as a git-lfs pointer does.
#[must_use]
pub fn is_pointer(head: &[u8]) -> bool {
    head.starts_with(POINTER)
}

/// Foreign text in one line, cut short, that steers no terminal.
#[must_use]
pub fn plain(text: &str) -> String {
    let keep = |c: char| matches!(c, '"' | '\'' | '\\');
    let mut shown: String =
        text.chars().take(SHOWN_MAX).flat_map(|c| if keep(c) { vec![c] } else { c.escape_debug().collect() }).collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}

fn folder_of(path: &RepoPath) -> &str {
    path.as_str().strip_suffix(path.file_name()).unwrap_or_default()
}

fn more(count: usize) -> String {
    if count > 1 { format!(" and {} more", count - 1) } else { String::new() }
}

fn said(no: Option<u64>, parts: Option<u64>) -> String {
    match (no, parts) {
        (None, None) => "no part at all".to_owned(),
        (Some(no), Some(parts)) => format!("part {} of {parts}", no.saturating_add(1)),
        (Some(no), None) => format!("part {} of an unknown number", no.saturating_add(1)),
        (None, Some(parts)) => format!("an unknown part of {parts}"),
    }
}

impl fmt::Display for Strictness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "check",
            Self::Warn => "warn",
            Self::Off => "off",
        })
    }
}

impl FromStr for Strictness {
    type Err = StrictnessError;
    fn from_str(text: &str) -> Result<Self, StrictnessError> {
        match text {
            "check" => Ok(Self::Check),
            "warn" => Ok(Self::Warn),
            "off" => Ok(Self::Off),
            _ => Err(StrictnessError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::Source;
    use crate::core::manifest::tests::{entry, source};
    use crate::core::selection::{Pattern, Selection};

    fn path(text: &str) -> RepoPath {
        RepoPath::parse(text).unwrap()
    }

    fn manifest(names: &[&str], exclude: &[&str]) -> Manifest {
        let exclude = exclude.iter().map(|glob| Pattern::parse(glob).unwrap()).collect();
        let source = Source { selection: Selection::new(vec![], exclude), ..source() };
        Manifest::seal(source, names.iter().map(|name| entry(name, 1)).collect()).unwrap()
    }

    fn index(shards: &[&str]) -> String {
        let map: serde_json::Map<_, _> =
            shards.iter().enumerate().map(|(n, shard)| (format!("t{n}"), (*shard).into())).collect();
        serde_json::json!({ "weight_map": map }).to_string()
    }

    const ONE: &str = "model-00001-of-00002.safetensors";
    const TWO: &str = "model-00002-of-00002.safetensors";

    fn words(at: &str, shards: &[&str], manifest: &Manifest) -> (Vec<String>, usize) {
        let json = index(shards);
        let index = ShardIndex::read(json.as_bytes()).unwrap();
        let (_, faults, left_out) = Indexed::find(&path(at), index, manifest);
        (faults.iter().map(ToString::to_string).collect(), left_out)
    }

    #[test]
    fn an_index_names_exactly_the_shards_there_are() {
        let at = "model.safetensors.index.json";
        let both = manifest(&[ONE, TWO, "other-00001-of-00001.safetensors", "consolidated.safetensors"], &[]);
        assert_eq!(words(at, &[ONE, TWO], &both), (vec![], 0));
        assert_eq!(words(at, &[ONE], &both).0, [format!("the index does not name {TWO}, which the repository has")]);
        let one = manifest(&[ONE], &[]);
        assert_eq!(
            words(at, &[ONE, TWO], &one).0,
            [format!("the index names {TWO}, which the repository does not have")]
        );
        let renamed = words(at, &["model-00001-of-00003.safetensors", "../up.safetensors"], &both).0;
        assert_eq!(renamed.len(), 2, "{renamed:?}");
        assert!(
            renamed[0].contains("../up.safetensors and 1 more") && renamed[1].contains("and 1 more"),
            "{renamed:?}"
        );
    }

    #[test]
    fn an_index_speaks_of_its_own_folder_and_variant() {
        let names =
            ["vae/m-00001-of-00001.safetensors", "m-00001-of-00001.safetensors", "m.fp16-00001-of-00001.safetensors"];
        let all = manifest(&names, &[]);
        let name = "m-00001-of-00001.safetensors";
        assert_eq!(words("m.safetensors.index.json", &[name], &all), (vec![], 0));
        assert_eq!(words("vae/m.safetensors.index.json", &[name], &all), (vec![], 0));
        assert_eq!(words("m.safetensors.index.fp16.json", &["m.fp16-00001-of-00001.safetensors"], &all), (vec![], 0));
        assert_eq!(words("unet/m.safetensors.index.json", &[name], &all).0.len(), 1);
    }

    #[test]
    fn shards_that_nobody_asked_for_are_counted_and_no_fault() {
        let part = manifest(&[ONE], &["*-00002-of-*"]);
        assert_eq!(words("model.safetensors.index.json", &[ONE, TWO], &part), (vec![], 1));
    }

    fn part(no: u64, count: u64, tensors: u64) -> Gguf {
        Gguf { tensors, split_no: Some(no), split_count: Some(count), split_tensors: Some(3) }
    }

    #[test]
    fn parts_of_a_split_are_all_there_and_say_what_their_names_say() {
        let (a, b, c) = (path("q/x-00001-of-00002.gguf"), path("q/x-00002-of-00002.gguf"), path("y.gguf"));
        let all = manifest(&[a.as_str(), b.as_str(), c.as_str()], &[]);
        let check = |files: &[(&RepoPath, Gguf)], manifest: &Manifest| {
            let (reasons, left_out) = check_splits(files, manifest);
            (reasons.iter().map(ToString::to_string).collect::<Vec<_>>(), left_out)
        };
        let good = [(&a, part(0, 2, 1)), (&b, part(1, 2, 2)), (&c, Gguf::default())];
        assert_eq!(check(&good, &all), (vec![], 0));
        let one = manifest(&[a.as_str()], &[]);
        assert_eq!(check(&good[..1], &one).0, [format!("{a}: part 2 of 2 is not in the repository")]);
        let chosen = manifest(&[a.as_str()], &["*-00002-of-*"]);
        assert_eq!(check(&good[..1], &chosen), (vec![], 1));
        assert_eq!(check(&good[1..2], &all), (vec![], 0), "a part that is broken is told already");
        let swapped = check(&[(&a, part(1, 2, 1)), (&b, part(0, 2, 2))], &all).0;
        assert_eq!(swapped[0], format!("{a}: its name says part 1 of 2, and its metadata part 2 of 2"));
        let plain = check(&[(&a, Gguf { tensors: 1, ..Gguf::default() }), (&b, part(1, 2, 2))], &all).0;
        assert_eq!(plain, [format!("{a}: its name says part 1 of 2, and its metadata no part at all")]);
        let fewer = check(&[(&a, part(0, 2, 1)), (&b, part(1, 2, 1))], &all).0;
        assert_eq!(fewer, [format!("{a}: the parts have 2 tensors together, and the metadata says 3")]);
    }

    #[test]
    fn the_words_survive_being_written_and_read() {
        for word in [Strictness::Check, Strictness::Warn, Strictness::Off] {
            assert_eq!(word.to_string().parse(), Ok(word));
        }
        assert!("on".parse::<Strictness>().unwrap_err().to_string().contains("check, warn, off"));
    }

    #[test]
    fn roles_are_told_by_name() {
        for (name, role) in [
            ("a/model.safetensors", Some(Role::Safetensors)),
            ("x.gguf", Some(Role::Gguf)),
            ("model.safetensors.index.json", Some(Role::Index)),
            ("pytorch_model.bin.index.json", None),
            ("config.json", None),
            ("safetensors", None),
        ] {
            assert_eq!(Role::of(&path(name)), role, "{name}");
        }
    }
}
