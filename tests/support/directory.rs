//! What tests look at in a model directory, by reading its files alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{RepoSpec, sha256_hex};

/// Every file of the repository is there, with the right bytes, under a receipt, and nothing of
/// the work is left.
#[track_caller]
pub fn assert_complete(directory: &Path, repo: &RepoSpec) {
    for file in repo.files() {
        let bytes = std::fs::read(directory.join(&file.path)).unwrap_or_else(|e| panic!("{}: {e}", file.path));
        assert_eq!(sha256_hex(&bytes), file.content.sha256(), "{}", file.path);
    }
    assert!(directory.join(".muster/receipt.json").exists(), "a receipt");
    assert!(!directory.join(".muster/manifest.pending.json").exists(), "nothing is pending");
    assert_eq!(partials(directory), Vec::<PathBuf>::new(), "no partial stays");
}

/// Partials and their claims. A small file that a kill left half written is none; it is swept
/// once it is old enough to be nobody's.
pub fn partials(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory.join(".muster/partial")).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_none_or(|extension| extension != "tmp"));
    paths.sort();
    paths
}

/// The partial of a file of the model; the newest writer's if there are several.
pub fn partial_of(directory: &Path, file: &str) -> Option<PathBuf> {
    let hash = &sha256_hex(file)[..32];
    let is_of = |path: &&PathBuf| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.starts_with(hash) && name.contains(".incomplete")
    };
    partials(directory).iter().rfind(is_of).cloned()
}

/// The records of the receipt, by path.
#[track_caller]
pub fn receipt(directory: &Path) -> BTreeMap<String, Value> {
    let bytes = std::fs::read(directory.join(".muster/receipt.json")).expect("a receipt");
    let receipt: Value = serde_json::from_slice(&bytes).unwrap();
    let records = receipt["files"].as_array().unwrap().iter();
    records.map(|record| (record["path"].as_str().unwrap().to_owned(), record.clone())).collect()
}

/// Every path below a folder, relative to it, folders with a slash at their end; sorted.
pub fn listing(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && !path.is_symlink() {
                found.push(name + "/");
                open.push(path);
            } else {
                found.push(name);
            }
        }
    }
    found.sort();
    found
}

/// Every path below a folder with its times and more: equal as long as nothing was written there.
pub fn trace(folder: &Path) -> Vec<(PathBuf, u64, i64, i64, u32)> {
    use std::os::unix::fs::MetadataExt as _;
    let names = listing(folder).into_iter().chain([String::new()]);
    let stamp = |name: String| {
        let path = folder.join(name);
        let meta = path.symlink_metadata().unwrap();
        let ns = |s: i64, ns: i64| s * 1_000_000_000 + ns;
        let (changed, touched) = (ns(meta.mtime(), meta.mtime_nsec()), ns(meta.ctime(), meta.ctime_nsec()));
        (path, meta.size(), changed, touched, meta.mode())
    };
    names.map(stamp).collect()
}

/// A value is what the schema says.
#[track_caller]
pub fn assert_valid(schema: &str, value: &Value) {
    let schema: Value = serde_json::from_str(schema).unwrap();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}\n{value:#}");
}

/// Writes the record of an owner on this host in a world of its own (another pid namespace, so nobody can tell whether it
/// lives), who took the volume after its last owner.
pub fn own_elsewhere(volume: &Path, pid: u32, host: &str) {
    let owners = volume.join(".muster/owners");
    let epoch_of = |name: &String| name.strip_suffix(".json")?.parse::<u64>().ok();
    let last = listing(&owners).iter().filter_map(epoch_of).max().expect("somebody owned the volume");
    let mut record: Value =
        serde_json::from_slice(&std::fs::read(owners.join(format!("{last}.json"))).unwrap()).unwrap();
    let epoch = last + 1;
    record["epoch"] = epoch.into();
    record["writer"] = format!("{epoch}-00000001").into();
    record["pid_namespace"] = 1.into();
    record["host"] = host.into();
    record["pid"] = pid.into();
    record["socket"] = Value::Null;
    record["ended"] = false.into();
    std::fs::write(owners.join(format!("{epoch}.json")), record.to_string()).unwrap();
}

/// Inverts one byte of a file, in place.
pub fn flip_byte(path: &Path, at: u64) {
    use std::os::unix::fs::FileExt as _;
    let file = std::fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
}
