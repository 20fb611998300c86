//! The index of a sharded model: which tensor lies in which shard.
//!
//! `NAME.safetensors.index.json` (with a variant: `NAME.safetensors.index.VARIANT.json`) has the
//! object `weight_map`, a file name for each tensor, in the folder of the index (`transformers`,
//! `huggingface_hub.serialization`). Its `metadata.total_size` is for people: it is often wrong, no
//! loader goes by it, and neither does this. Invariant: an index that is accepted names each
//! tensor once. It speaks of names only; whether the files exist is [`super::structure`]'s.

use std::borrow::Cow;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::safetensors::Name;
use super::structure::plain;

/// Most bytes of the indexes of a model: four times those of one with 384 experts a layer.
pub const INDEX_MAX: u64 = 128 << 20;
/// Most tensors that an index names: ten times as many as that model has.
const TENSORS_MAX: usize = 4_000_000;

/// The part of an index's file name that tells it from other JSON.
const MIDDLE: &str = ".safetensors.index.";

/// An index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardIndex<'a> {
    /// In the order in which they are named first, and the tensors in each.
    shards: Vec<(Cow<'a, str>, usize)>,
    /// The place of its shard among `shards`.
    tensors: HashMap<Cow<'a, str>, usize>,
}

/// Where the tensors of one shard are, by its header and by the index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// In the header, while the index says another shard: one of them, that shard, and how many.
    pub elsewhere: Option<(String, String, usize)>,
    /// In the header, and not in the index: one of them, and how many.
    pub unlisted: Option<(String, usize)>,
    /// Here by the index, and not in the header: one of them, and how many.
    pub absent: Option<(String, usize)>,
}

/// The beginning that the names of its shards have by custom, when the file name is that of an
/// index: `model` or `model.fp16`.
#[must_use]
pub fn index_stem(file_name: &str) -> Option<String> {
    let (stem, rest) = file_name.split_once(MIDDLE)?;
    let variant = rest.strip_suffix("json")?;
    match variant.strip_suffix('.') {
        None if variant.is_empty() => Some(stem.to_owned()),
        None => None,
        Some(variant) => Some(format!("{stem}.{variant}")),
    }
}

impl<'a> ShardIndex<'a> {
    /// Reads an index.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn read(json: &'a [u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Index<'a> {
            #[serde(borrow)]
            weight_map: WeightMap<'a>,
        }
        let text = std::str::from_utf8(json).map_err(|error| plain(&error.to_string()))?;
        let index: Result<Index<'a>, _> = serde_json::from_str(text);
        let WeightMap { mut shards, places } = index.map_err(|error| plain(&error.to_string()))?.weight_map;
        let mut tensors = HashMap::with_capacity(places.len());
        for (name, place) in places {
            match tensors.entry(name) {
                Entry::Vacant(free) => {
                    free.insert(place);
                    shards[place].1 += 1;
                }
                Entry::Occupied(known) if *known.get() == place => {}
                Entry::Occupied(known) => return Err(format!("the tensor {} is in two files", plain(known.key()))),
            }
        }
        Ok(Self { shards, tensors })
    }

    /// The shards it names, as it names them.
    pub fn shards(&self) -> impl Iterator<Item = &str> {
        self.shards.iter().map(|(shard, _)| &**shard)
    }

    /// Compares the tensors in the shard at `place` of [`Self::shards`] with what is said of it.
    #[must_use]
    pub fn compare<T: AsRef<str>>(&self, place: usize, names: &[T]) -> Placement {
        let (mut placement, mut found) = (Placement::default(), 0);
        for name in names.iter().map(AsRef::as_ref) {
            match self.tensors.get(name) {
                Some(said) if *said == place => found += 1,
                Some(said) => {
                    let shard = self.shards.get(*said).map(|(shard, _)| plain(shard)).unwrap_or_default();
                    placement.elsewhere.get_or_insert_with(|| (plain(name), shard, 0)).2 += 1;
                }
                None => placement.unlisted.get_or_insert_with(|| (plain(name), 0)).1 += 1,
            }
        }
        let said = self.shards.get(place).map_or(0, |(_, tensors)| *tensors);
        if said != found {
            let there: HashSet<&str> = names.iter().map(AsRef::as_ref).collect();
            let here = self.tensors.iter().filter(|(_, said)| **said == place);
            let absent = here.filter(|(name, _)| !there.contains(&***name)).map(|(name, _)| name).min();
            placement.absent = absent.map(|name| (plain(name), said - found));
        }
        placement
    }
}

/// The object `weight_map`, as it is written: a tensor may be in it twice.
struct WeightMap<'a> {
    shards: Vec<(Cow<'a, str>, usize)>,
    places: Vec<(Cow<'a, str>, usize)>,
}

impl<'de: 'a, 'a> Deserialize<'de> for WeightMap<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = WeightMap<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors and their files")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap<'de>, A::Error> {
                let mut known: HashMap<Cow<'de, str>, usize> = HashMap::new();
                let mut read = WeightMap { shards: Vec::new(), places: Vec::new() };
                while let Some((Name(name), Name(shard))) = map.next_entry()? {
                    let next = read.shards.len();
                    let place = *known.entry(shard).or_insert_with_key(|shard| {
                        read.shards.push((shard.clone(), 0));
                        next
                    });
                    if read.places.len() == TENSORS_MAX {
                        return Err(A::Error::custom(format!("more than {TENSORS_MAX} tensors")));
                    }
                    read.places.push((name, place));
                }
                Ok(read)
            }
        }
        deserializer.deserialize_map(Object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_told_by_their_names() {
        for (name, stem) in [
            ("model.safetensors.index.json", Some("model")),
            ("model.safetensors.index.fp16.json", Some("model.fp16")),
            ("diffusion_pytorch_model.safetensors.index.json", Some("diffusion_pytorch_model")),
            ("pytorch_model.bin.index.json", None),
            ("model.safetensors.index", None),
            ("config.json", None),
            ("model.safetensors.index.xjson", None),
        ] {
            assert_eq!(index_stem(name).as_deref(), stem, "{name}");
        }
    }

    #[test]
    fn an_index_is_read_without_regard_to_its_total() {
        let index = ShardIndex::read(br#"{"metadata":{"total_size":-1.5},"weight_map":{"b":"2","a":"1","c":"2"}}"#);
        assert_eq!(index.unwrap().shards().collect::<Vec<_>>(), ["2", "1"]);
        let same = ShardIndex::read(br#"{"weight_map":{"a":"1","a":"1"}}"#).unwrap();
        assert_eq!(same.shards().count(), 1);
        for (text, words) in [
            ("{}", "missing field `weight_map`"),
            ("[", "EOF"),
            (r#"{"weight_map":{"a":1}}"#, "expected a string"),
            (r#"{"weight_map":{"a":"1","a":"2"}}"#, "the tensor a is in two files"),
            (r#"{"weight_map":[]}"#, "an object of tensors and their files"),
        ] {
            let error = ShardIndex::read(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    #[test]
    fn a_shard_is_compared_both_ways() {
        let index = ShardIndex::read(br#"{"weight_map":{"a":"1","b":"1","c":"2"}}"#).unwrap();
        assert_eq!(index.compare(0, &["b", "a"]), Placement::default());
        let placement = index.compare(0, &["a", "c", "d", "e"]);
        assert_eq!(placement.elsewhere, Some(("c".into(), "2".into(), 1)));
        assert_eq!(placement.unlisted, Some(("d".into(), 2)));
        assert_eq!(placement.absent, Some(("b".into(), 1)));
    }
}
