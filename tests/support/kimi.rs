//! The shape of the reference job: many safetensors shards with an index, and the small files
//! around them, with every kind of name a model repository can hold.

use serde_json::{Map, Value, json};

use super::content::Content;
use super::repo::FileSpec;

/// Room for the JSON header of a shard, padded with spaces as the format allows.
const HEADER: u64 = 2048;

pub(super) fn files(shards: usize, shard_bytes: u64, others: usize) -> Vec<FileSpec> {
    let mut weight_map = Map::new();
    let mut total_size = 0;
    let mut files = Vec::new();
    for number in 1..=shards {
        let name = format!("model-{number:05}-of-{shards:06}.safetensors");
        let tensors = tensors(number, shard_bytes - 8 - HEADER);
        for (tensor, _) in &tensors {
            weight_map.insert(tensor.clone(), Value::from(name.as_str()));
        }
        total_size += shard_bytes - 8 - HEADER;
        files.push(FileSpec::lfs(&name, shard(number, tensors, shard_bytes)));
    }
    let index = json!({ "metadata": { "total_size": total_size }, "weight_map": weight_map });
    files.extend(small_files(&index).into_iter().take(others));
    let missing = (shards + others).saturating_sub(files.len());
    files.extend((1..=missing).map(|n| FileSpec::plain(&format!("extra/note-{n:03}.txt"), format!("note {n}\n"))));
    files
}

/// Name and header entry of each tensor of a shard; together they cover `data` bytes exactly.
fn tensors(number: usize, data: u64) -> Vec<(String, Value)> {
    let name = |part: &str| format!("language_model.model.layers.{number}.mlp.experts.0.{part}");
    let entry = |dtype: &str, shape: Vec<u64>, start: u64, end: u64| json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
    let scales = 8 + (data - 8) / 16;
    vec![
        (name("down_proj.input_scale"), entry("F32", vec![1], 0, 4)),
        (name("down_proj.weight_scale_2"), entry("F32", vec![], 4, 8)),
        (name("down_proj.weight_scale"), entry("F8_E4M3", vec![scales - 8], 8, scales)),
        (name("down_proj.weight"), entry("U8", vec![data - scales, 1], scales, data)),
    ]
}

fn shard(number: usize, tensors: Vec<(String, Value)>, shard_bytes: u64) -> Content {
    assert!(shard_bytes >= 2 * HEADER, "shard too small");
    Content::head_then_generated(head(tensors), number as u64, shard_bytes - 8 - HEADER)
}

fn head(tensors: Vec<(String, Value)>) -> Vec<u8> {
    let mut header: Map<String, Value> = tensors.into_iter().collect();
    header.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut text = Value::Object(header).to_string();
    assert!(text.len() as u64 <= HEADER, "too many tensors for a header");
    text.push_str(&" ".repeat(HEADER as usize - text.len()));
    let mut head = HEADER.to_le_bytes().to_vec();
    head.extend_from_slice(text.as_bytes());
    head
}

/// Generated content with the header of the shard of that name, so that it fits the index of a
/// repository of this shape; a shorter one, with one tensor, when there is no room.
pub(super) fn with_header(path: &str, content: Content) -> Content {
    let number = path.rsplit_once("-of-").and_then(|(head, _)| head.rsplit_once('-')?.1.parse().ok());
    content.headed(|len| {
        if len >= 2 * HEADER {
            return Some(head(tensors(number.unwrap_or(0), len - 8 - HEADER)));
        }
        let data = len.checked_sub(128)?;
        let json = format!(r#"{{"t":{{"dtype":"U8","shape":[{data}],"data_offsets":[0,{data}]}}}}"#);
        Some([&120u64.to_le_bytes()[..], format!("{json:<120}").as_bytes()].concat())
    })
}

/// In order of importance: a smaller repository keeps the first ones.
fn small_files(index: &Value) -> Vec<FileSpec> {
    let plain = |path: &str, text: &str| FileSpec::plain(path, text);
    let document =
        |path: &str, value: &Value| FileSpec::plain(path, serde_json::to_string_pretty(value).unwrap() + "\n");
    vec![
        document("config.json", &config()),
        document("model.safetensors.index.json", index),
        plain(".gitattributes", "*.safetensors filter=lfs diff=lfs merge=lfs -text\n"),
        plain("README.md", "---\nlicense: other\n---\n# A model of the reference shape\n"),
        FileSpec::plain("assets/.gitkeep", ""),
        FileSpec::lfs("assets/überblick 概要.png", Content::generated(9001, 70_001)),
        document("hf_quant_config.json", &quantization()),
        document("generation_config.json", &json!({ "eos_token_id": 163_586, "max_length": 262_144 })),
        document("tokenizer_config.json", &json!({ "tokenizer_class": "TikTokenTokenizer" })),
        FileSpec::lfs("tiktoken.model", Content::generated(9002, 280_003)),
        plain("chat_template.jinja", "{%- for m in messages -%}{{ m.content }}{%- endfor -%}\n"),
        plain("configuration_kimi_k25.py", "class KimiK25Config:\n    pass\n"),
        plain("configuration_deepseek.py", "class DeepseekV3Config:\n    pass\n"),
        plain("modeling_kimi_k25.py", "class KimiK25Model:\n    pass\n"),
        plain("modeling_deepseek.py", "class DeepseekV3Model:\n    pass\n"),
        plain("tokenization_kimi.py", "class TikTokenTokenizer:\n    pass\n"),
        plain("media_utils.py", "def load(path):\n    return path\n"),
        document("preprocessor_config.json", &json!({ "patch_size": 14 })),
        plain("LICENSE", "Licence text of the reference shape.\n"),
        plain("docs/deploy guide.md", "# Deploying\n"),
        plain("docs/deep/nested/folder/note.txt", "deep\n"),
    ]
}

fn config() -> Value {
    json!({
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "quantization_config": quantization()["quantization"],
    })
}

fn quantization() -> Value {
    json!({
        "producer": { "name": "modelopt" },
        "quantization": { "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16 },
    })
}
