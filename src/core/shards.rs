//! Which files are shards: the weight files of a model that has several.
//!
//! Owns the naming rule `<stem>-NNNNN-of-NNNNN.<ext>` of safetensors, GGUF and pickle splits.

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

#[cfg(test)]
mod tests {
    use super::*;

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
