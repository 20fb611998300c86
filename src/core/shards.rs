//! Which files are shards: the weight files of a model that has several.
//!
//! Owns the naming rule `<stem>-NNNNN-of-NNNNN.<ext>` of safetensors, GGUF and pickle splits.

use std::collections::BTreeMap;
use std::fmt;

use super::repo_path::RepoPath;

/// Whether the name is that of one weight file of several.
#[must_use]
pub fn is_shard(path: &RepoPath) -> bool {
    shard_number(path.file_name()).is_some()
}

/// Number and total of a shard's name: `(42, 119)` for `model-00042-of-000119.safetensors`.
#[must_use]
pub fn shard_number(file_name: &str) -> Option<(u32, u32)> {
    let (stem, extension) = file_name.rsplit_once('.')?;
    if !matches!(extension, "safetensors" | "gguf" | "bin") {
        return None;
    }
    let (head, total) = stem.rsplit_once("-of-")?;
    let (_, number) = head.rsplit_once('-')?;
    let digits = |text: &str| -> Option<u32> {
        let plain = (5..=6).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
        plain.then(|| text.parse().ok()).flatten()
    };
    Some((digits(number)?, digits(total)?))
}

/// The set a shard belongs to: its path, a star in place of its number.
#[must_use]
pub fn series(path: &RepoPath) -> Option<String> {
    shard_number(path.file_name())?;
    let (head, tail) = path.as_str().rsplit_once("-of-")?;
    let (stem, _) = head.rsplit_once('-')?;
    Some(format!("{stem}-*-of-{tail}"))
}

/// A set of shards of which a selection takes a part: no loader can use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The shards' common name, a star in place of the number.
    pub set: String,
    /// How many of them are taken.
    pub taken: usize,
    /// How many there are.
    pub of: usize,
}

impl fmt::Display for Torn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} shards of {}", self.taken, self.of, self.set)
    }
}

/// The sets of shards among `paths` that `takes` tears.
pub fn torn<'a>(paths: impl Iterator<Item = &'a RepoPath>, takes: impl Fn(&RepoPath) -> bool) -> Vec<Torn> {
    let mut sets: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for path in paths {
        let Some(set) = series(path) else { continue };
        let (chosen, all) = sets.entry(set).or_default();
        *chosen += usize::from(takes(path));
        *all += 1;
    }
    let is_torn = |(_, (taken, all)): &(String, (usize, usize))| (1..*all).contains(taken);
    sets.into_iter().filter(is_torn).map(|(set, (taken, all))| Torn { set, taken, of: all }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_torn_when_some_of_it_is_taken() {
        let names =
            ["a-00001-of-00002.bin", "a-00002-of-00002.bin", "x/a-00001-of-00002.bin", "b-00001-of-00001.bin", "c"];
        let paths: Vec<_> = names.iter().map(|name| RepoPath::parse(name).unwrap()).collect();
        let torn_by = |takes: &dyn Fn(&str) -> bool| torn(paths.iter(), |path| takes(path.as_str()));
        assert_eq!(torn_by(&|_| true), []);
        assert_eq!(torn_by(&|_| false), []);
        assert_eq!(torn_by(&|name| name.starts_with("x/")), [], "a set of one, as far as it is there");
        let part = torn_by(&|name| name == names[0]);
        assert_eq!(part.iter().map(ToString::to_string).collect::<Vec<_>>(), ["1 of 2 shards of a-*-of-00002.bin"]);
    }

    #[test]
    fn shards_are_told_by_name() {
        assert_eq!(shard_number("model-00042-of-000119.safetensors"), Some((42, 119)));
        assert_eq!(shard_number("x-Q4-00001-of-00010.gguf"), Some((1, 10)));
        for other in ["model.safetensors", "model.safetensors.index.json", "a-1-of-2.bin", "model-00001-of-00002.json"]
        {
            assert_eq!(shard_number(other), None, "{other}");
        }
    }
}
