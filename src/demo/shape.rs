//! The repository of the demo: which files, and what is in them.
//!
//! Pure. It has the shape of the reference job (many safetensors shards, an index that names
//! every tensor, the documents around them) and every kind of name a repository can hold: nested
//! folders, a blank, letters beyond ASCII, a file of zero bytes. The weights are noise from a
//! seeded generator: valid, incompressible, and the same at every run.

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::weights::{self, Weights};
use crate::core::repo_path::{RepoPath, RepoPathError};
use crate::core::units;

/// Most shards a name has digits for.
pub const SHARDS_MAX: u32 = 99_999;
/// Size of the tokenizer's vocabulary, in bytes.
const VOCABULARY: u64 = 2_795_286;
/// Size of the picture in the documentation, in bytes.
const PICTURE: u64 = 60_001;

/// The size of the repository cannot be had.
#[derive(Debug, Error)]
pub enum ShapeError {
    /// No room for a header and tensors.
    #[error("a shard of {} is too small: at least {}", units::bytes(*.asked), units::bytes(weights::SHARD_MIN))]
    ShardTooSmall {
        /// Bytes asked for.
        asked: u64,
    },
    /// None, or more than the names can count.
    #[error("a repository of {asked} shards: between 1 and {SHARDS_MAX}")]
    Shards {
        /// Shards asked for.
        asked: u32,
    },
    /// A defect in the list below.
    #[error("a file of the demo has an unusable name")]
    Name(#[from] RepoPathError),
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoFile {
    /// Its path.
    pub path: RepoPath,
    /// Its bytes.
    pub content: Content,
    /// Whether a real repository would have it in LFS.
    pub lfs: bool,
}

/// The bytes of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// These.
    Bytes(Vec<u8>),
    /// Noise behind a head.
    Noise {
        /// What comes first.
        head: Vec<u8>,
        /// Bytes of noise.
        len: u64,
        /// Seed of the noise.
        seed: u64,
    },
}

impl Content {
    /// Size in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Noise { head, len, .. } => head.len() as u64 + len,
        }
    }

    /// Hands all bytes to `take`, in order, in blocks of at most 1 MiB.
    ///
    /// # Errors
    /// The first error of `take`.
    pub fn read<E>(&self, mut take: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        const BLOCK: u64 = 1 << 20;
        let (head, mut left, seed) = match self {
            Self::Bytes(bytes) => (bytes, 0, 0),
            Self::Noise { head, len, seed } => (head, *len, *seed),
        };
        head.chunks(1 << 20).try_for_each(&mut take)?;
        let mut noise = fastrand::Rng::with_seed(seed);
        let mut block = vec![0; usize::try_from(left.min(BLOCK)).unwrap_or_default()];
        while left > 0 {
            let len = usize::try_from(left.min(BLOCK)).unwrap_or_default();
            noise.fill(&mut block[..len]);
            take(&block[..len])?;
            left -= len as u64;
        }
        Ok(())
    }
}

/// The files of a repository with this many shards of this many bytes each (rounded down to a
/// multiple of 8).
///
/// # Errors
/// [`ShapeError`].
pub fn files(shards: u32, shard_bytes: u64) -> Result<Vec<DemoFile>, ShapeError> {
    if !(1..=SHARDS_MAX).contains(&shards) {
        return Err(ShapeError::Shards { asked: shards });
    }
    if shard_bytes < weights::SHARD_MIN {
        return Err(ShapeError::ShardTooSmall { asked: shard_bytes });
    }
    let mut files = Vec::new();
    let mut weight_map = Map::new();
    let mut total_size = 0;
    for number in 1..=shards {
        let name = format!("model-{number:05}-of-{shards:06}.safetensors");
        let Weights { head, tensors, data_bytes } = weights::of_layer(number - 1, shard_bytes);
        total_size += data_bytes;
        weight_map.extend(tensors.into_iter().map(|tensor| (tensor, Value::from(name.as_str()))));
        let content = Content::Noise { head, len: data_bytes, seed: u64::from(number) };
        files.push(DemoFile { path: RepoPath::parse(&name)?, content, lfs: true });
    }
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    for (path, bytes) in documents(shards, &index) {
        files.push(DemoFile { path: RepoPath::parse(path)?, content: Content::Bytes(bytes), lfs: false });
    }
    for (path, len, seed) in [("tiktoken.model", VOCABULARY, 1 << 40), ("figures/architecture.png", PICTURE, 1 << 41)] {
        let content = Content::Noise { head: Vec::new(), len, seed };
        files.push(DemoFile { path: RepoPath::parse(path)?, content, lfs: true });
    }
    Ok(files)
}

fn documents(shards: u32, index: &Value) -> Vec<(&'static str, Vec<u8>)> {
    let text = |text: &str| text.as_bytes().to_vec();
    let document = |value: &Value| format!("{value:#}\n").into_bytes();
    vec![
        (
            ".gitattributes",
            text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n*.model filter=lfs diff=lfs merge=lfs -text\n"),
        ),
        ("LICENSE", text("The weights are noise and belong to nobody.\n")),
        ("README.md", text(README)),
        ("chat_template.jinja", text("{%- for m in messages -%}<|{{ m.role }}|>{{ m.content }}{%- endfor -%}\n")),
        ("config.json", document(&config(shards))),
        ("configuration_kimi.py", text("class KimiConfig:\n    model_type = \"kimi_k25\"\n")),
        ("docs/.gitkeep", Vec::new()),
        ("docs/deploy guide.md", text("# Deploying\n\nPut `muster gate` in front of the launcher.\n")),
        ("docs/größe-模型.md", text("# Größe · 大小\n\nNames are bytes; these are UTF-8.\n")),
        ("docs/reference/limits/context.md", text("# Context\n\nThere is none: the weights are noise.\n")),
        ("generation_config.json", document(&json!({ "eos_token_id": 163_586, "max_length": 262_144 }))),
        ("hf_quant_config.json", document(&quantization())),
        ("model.safetensors.index.json", document(index)),
        ("modeling_kimi.py", text("raise NotImplementedError(\"the weights of this demo are noise\")\n")),
        ("preprocessor_config.json", document(&json!({ "patch_size": 14, "merge_kernel_size": [2, 2] }))),
        (
            "special_tokens_map.json",
            document(&json!({ "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]" })),
        ),
        (
            "tokenization_kimi.py",
            text("class KimiTokenizer:\n    vocab_files_names = {\"vocab_file\": \"tiktoken.model\"}\n"),
        ),
        (
            "tokenizer.json",
            document(&json!({ "version": "1.0", "model": { "type": "BPE", "vocab": {}, "merges": [] } })),
        ),
        (
            "tokenizer_config.json",
            document(&json!({ "tokenizer_class": "KimiTokenizer", "model_max_length": 262_144 })),
        ),
    ]
}

const README: &str = "---\nlicense: other\nlibrary_name: transformers\n---\n# A model of the shape of Kimi-K2.5-NVFP4\n\n\
     Made by `muster demo`: valid safetensors, documents and names like those of the real one, weights of noise.\n";

fn config(layers: u32) -> Value {
    json!({
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "text_config": {
            "model_type": "kimi_k2",
            "num_hidden_layers": layers,
            "n_routed_experts": weights::EXPERTS,
            "vocab_size": 163_840,
        },
        "quantization_config": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "kv_cache_scheme": { "type": "float", "num_bits": 8, "dynamic": false },
            "config_groups": { "group_0": { "weights": { "type": "float", "num_bits": 4, "group_size": 16 } } },
        },
    })
}

fn quantization() -> Value {
    json!({
        "producer": { "name": "modelopt", "version": "0.40.0" },
        "quantization": {
            "quant_algo": "NVFP4",
            "kv_cache_quant_algo": "FP8",
            "group_size": 16,
            "exclude_modules": ["lm_head", "vision_tower*"],
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::core::shards::is_shard;

    fn bytes(content: &Content) -> Vec<u8> {
        let mut all = Vec::new();
        content
            .read(|block| -> Result<(), ()> {
                all.extend_from_slice(block);
                Ok(())
            })
            .unwrap();
        all
    }

    #[test]
    fn the_repository_has_the_shape_of_the_reference_job() {
        let files = files(119, 65_536).unwrap();
        assert_eq!(files.len(), 140);
        assert_eq!(files.iter().filter(|file| is_shard(&file.path)).count(), 119);
        assert_eq!(files.iter().map(|file| &file.path).collect::<BTreeSet<_>>().len(), 140);
        let has = |test: fn(&DemoFile) -> bool| files.iter().any(test);
        assert!(has(|file| file.content.size() == 0));
        assert!(has(|file| file.path.as_str().contains(' ')));
        assert!(has(|file| !file.path.as_str().is_ascii()));
        assert!(has(|file| file.path.components().count() == 4));
        assert!(has(|file| file.lfs && !is_shard(&file.path)));
    }

    #[test]
    fn content_is_the_same_at_every_reading_and_differs_between_shards() {
        let files = files(2, 65_543).unwrap();
        let (first, second) = (bytes(&files[0].content), bytes(&files[1].content));
        assert_eq!(first.len() as u64, files[0].content.size());
        assert_eq!(first.len(), 65_536);
        assert_eq!(first, bytes(&files[0].content));
        assert_ne!(first[20_000..], second[20_000..]);
    }

    #[test]
    fn the_index_names_every_tensor_of_every_shard() {
        let files = files(3, 70_000).unwrap();
        let index = files.iter().find(|file| file.path.as_str() == "model.safetensors.index.json").unwrap();
        let index: Value = serde_json::from_slice(&bytes(&index.content)).unwrap();
        let mut named = BTreeSet::new();
        for file in files.iter().filter(|file| is_shard(&file.path)) {
            let bytes = bytes(&file.content);
            let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
            let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
            for (tensor, _) in header.iter().filter(|(name, _)| *name != "__metadata__") {
                assert_eq!(index["weight_map"][tensor], file.path.as_str());
                named.insert(tensor.clone());
            }
        }
        assert_eq!(index["weight_map"].as_object().unwrap().len(), named.len());
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert!(matches!(files(119, 1000), Err(ShapeError::ShardTooSmall { asked: 1000 })));
        assert!(matches!(files(0, 1 << 20), Err(ShapeError::Shards { .. })));
        assert!(matches!(files(100_000, 1 << 20), Err(ShapeError::Shards { .. })));
    }
}
