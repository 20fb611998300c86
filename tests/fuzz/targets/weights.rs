//! Weight files and their indexes, as anybody may publish them.

use std::collections::{BTreeMap, BTreeSet};

use muster::core::gguf::{self, Gguf, Reading};
use muster::core::safetensors::{Header, PREFIX};
use muster::core::shard_index::{Placement, ShardIndex};
use serde_json::{Map, Value};

use super::{one_line, text};

/// A whole file. One that is accepted is tiled by its tensors, by another reading of its header.
pub(super) fn safetensors(bytes: &[u8]) {
    let size = bytes.len() as u64;
    let Some(prefix) = bytes.first_chunk() else { return };
    let len = match Header::length(*prefix, size) {
        Ok(len) => len,
        Err(error) => return drop(one_line(&error)),
    };
    let (json, data) = bytes[PREFIX..].split_at(usize::try_from(len).expect("it fits into the file"));
    let header = match Header::read(json, data.len() as u64) {
        Ok(header) => header,
        Err(error) => return drop(one_line(&error)),
    };
    for other in [data.len() as u64 + 1, u64::MAX] {
        assert!(Header::read(json, other).is_err(), "a longer file has bytes of no tensor");
    }
    let tensors: Map<String, Value> = serde_json::from_slice(json).expect("an object");
    let names: BTreeSet<&str> = header.names().iter().map(|name| &**name).collect();
    assert_eq!(names.len(), header.names().len(), "no name twice");
    let mut spans = Vec::new();
    for (name, tensor) in tensors.iter().filter(|(name, _)| *name != "__metadata__") {
        assert!(names.contains(&**name));
        // A tensor may be an object or, as the format's own library reads it, a list of the same three.
        let offsets = tensor.get("data_offsets").or_else(|| tensor.get(2)).expect("offsets");
        let offset = |at: usize| offsets[at].as_u64().expect("a number");
        spans.push((offset(0), offset(1)));
    }
    assert_eq!(spans.len(), names.len());
    spans.sort_unstable();
    let end = spans.iter().fold(0, |end, (start, stop)| {
        assert!(*start == end && stop >= start, "tiled");
        *stop
    });
    assert_eq!(end, data.len() as u64);
}

/// A whole file. However much of it is given at first, the same is said of it in the end.
pub(super) fn gguf(bytes: &[u8]) {
    let size = bytes.len() as u64;
    let all = gguf::read(bytes, size);
    match &all {
        Ok(Reading::Done(_)) => {}
        Ok(Reading::More(need)) => panic!("{need} of {size} bytes"),
        Err(error) => drop(one_line(error)),
    }
    let mut len = 1;
    while len < bytes.len() {
        match gguf::read(&bytes[..len], size) {
            Ok(Reading::More(need)) => {
                assert!(need > len as u64 && need <= size);
                len = usize::try_from(need).expect("it fits").max(2 * len);
            }
            other => {
                assert_eq!(other, all);
                break;
            }
        }
    }
    if let Ok(Reading::Done(Gguf { tensors, .. })) = all {
        assert!(tensors <= size, "each has a name");
        // Padding has an end, unless an unknown type takes what there is.
        for longer in [size + 1, size + (1 << 40), u64::MAX] {
            if let Err(error) = gguf::read(bytes, longer) {
                one_line(&error);
            }
        }
    }
}

pub(super) fn shard_index(bytes: &[u8]) {
    let index = match ShardIndex::read(bytes) {
        Ok(index) => index,
        Err(why) => return drop(one_line(&why)),
    };
    let shards: Vec<&str> = index.shards().collect();
    assert_eq!(shards.iter().collect::<BTreeSet<_>>().len(), shards.len(), "none twice");
    assert!(text(bytes).is_some());
    let Ok(whole) = serde_json::from_slice::<Value>(bytes) else { return };
    let Some(map) = whole.get("weight_map").or_else(|| whole.get(0)).and_then(Value::as_object) else { return };
    let mut by_shard: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in map {
        by_shard.entry(shard.as_str().expect("a name")).or_default().push(tensor);
    }
    assert_eq!(by_shard.len(), shards.len());
    for (place, shard) in shards.iter().enumerate() {
        let tensors = &by_shard[shard];
        assert_eq!(index.compare(place, tensors), Placement::default(), "what it says of itself");
        let less = index.compare(place, &tensors[1..]);
        assert!(less.absent.is_some_and(|(name, count)| count == 1 && !name.chars().any(char::is_control)));
    }
}
