//! The head of a safetensors file whose data is noise.
//!
//! The format: eight bytes of header length, little-endian, a JSON header padded with blanks,
//! then the data; the tensors cover the data exactly. Types are those that every reader knows.

use serde_json::{Map, Value, json};

/// Experts of one layer.
pub(super) const EXPERTS: u32 = 4;
/// Smallest shard, in bytes: the header and a few rows for each tensor.
pub const SHARD_MIN: u64 = 64 << 10;

/// Room for the header of [`PROJECTIONS`] × [`EXPERTS`] × 4 + 1 tensors, at most 220 bytes each.
const HEADER: u64 = 12 << 10;
const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];
/// Bytes of a row of packed weights: two of four bits each.
const ROW: u64 = 256;
/// Bytes of scales that belong to a row: one for each group of sixteen weights.
const ROW_SCALES: u64 = ROW * 2 / 16;

/// One shard.
#[derive(Debug)]
pub(super) struct Weights {
    /// Header length and header.
    pub(super) head: Vec<u8>,
    /// Names of the tensors.
    pub(super) tensors: Vec<String>,
    /// Bytes of data behind the head.
    pub(super) data_bytes: u64,
}

/// The shard of a layer, in `shard_bytes` (at least [`SHARD_MIN`]) rounded down to a multiple
/// of 8.
pub(super) fn of_layer(layer: u32, shard_bytes: u64) -> Weights {
    let data_bytes = shard_bytes / 8 * 8 - 8 - HEADER;
    let mut tensors = Tensors::default();
    let prefix = format!("language_model.model.layers.{layer}");
    let count = u64::from(EXPERTS) * PROJECTIONS.len() as u64;
    let rows = (data_bytes - count * 8 - 8) / (count * (ROW + ROW_SCALES));
    for expert in 0..EXPERTS {
        for projection in PROJECTIONS {
            let name = |part: &str| format!("{prefix}.mlp.experts.{expert}.{projection}.{part}");
            tensors.add(name("input_scale"), "F32", &[], 4);
            tensors.add(name("weight_scale_2"), "F32", &[], 4);
            tensors.add(name("weight_scale"), "U8", &[rows, ROW_SCALES], rows * ROW_SCALES);
            tensors.add(name("weight"), "U8", &[rows, ROW], rows * ROW);
        }
    }
    let left = data_bytes - tensors.end;
    tensors.add(format!("{prefix}.input_layernorm.weight"), "F32", &[left / 4], left);
    tensors.into_weights()
}

#[derive(Default)]
struct Tensors {
    header: Map<String, Value>,
    end: u64,
}

impl Tensors {
    fn add(&mut self, name: String, dtype: &str, shape: &[u64], bytes: u64) {
        let start = self.end;
        self.end += bytes;
        self.header.insert(name, json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, self.end] }));
    }

    fn into_weights(mut self) -> Weights {
        let tensors = self.header.keys().cloned().collect();
        self.header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
        let mut head = HEADER.to_le_bytes().to_vec();
        head.extend_from_slice(Value::Object(self.header).to_string().as_bytes());
        let len = usize::try_from(8 + HEADER).unwrap_or(usize::MAX);
        debug_assert!(head.len() <= len, "a header of {} bytes", head.len());
        head.resize(len, b' ');
        Weights { head, tensors, data_bytes: self.end }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_cover_the_data_exactly() {
        for (layer, size) in [(0, SHARD_MIN), (118, 9_000_000), (99_998, SHARD_MIN + 7), (60, 5_000_000_001)] {
            let weights = of_layer(layer, size);
            assert_eq!(weights.head.len() as u64 + weights.data_bytes, size / 8 * 8);
            let header: Map<String, Value> = serde_json::from_slice(&weights.head[8..]).unwrap();
            assert_eq!(weights.tensors.len(), 49);
            let mut spans = Vec::new();
            for (_, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
                let offset = |at: usize| tensor["data_offsets"][at].as_u64().unwrap();
                let elements: u64 = tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).product();
                let width = if tensor["dtype"] == "F32" { 4 } else { 1 };
                assert_eq!(elements * width, offset(1) - offset(0));
                assert_eq!(offset(0) % width, 0, "aligned");
                spans.push((offset(0), offset(1)));
            }
            spans.sort_unstable();
            assert_eq!(spans.first().unwrap().0, 0);
            assert_eq!(spans.last().unwrap().1, weights.data_bytes);
            assert!(spans.windows(2).all(|pair| pair[0].1 == pair[1].0));
        }
    }
}
