//! The listing of a verified model, in the Hub's JSON.
//!
//! Owns the git object ids a listing carries. They are computed and not stored, from the same
//! bytes git would hash: a small file's blob, the pointer of an LFS file, the tree of a folder.
//! The executable bit is unknown here, so a folder's id may differ from upstream's where a file
//! has it; nothing is checked against folders.

use std::collections::BTreeMap;

use serde::Serialize;
use sha1::Digest as _;

use crate::core::digest::{Digest, GitSha1, Sha256};
use crate::core::manifest::{FileEntry, Manifest};

/// One line of a tree page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Entry {
    #[serde(rename = "type")]
    pub(super) kind: Kind,
    pub(super) oid: GitSha1,
    pub(super) size: u64,
    pub(super) path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lfs: Option<Lfs>,
}

/// File or folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    File,
    Directory,
}

/// What the tree says of a file in LFS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lfs {
    pub(super) oid: Sha256,
    pub(super) size: u64,
    pub(super) pointer_size: u64,
}

impl Entry {
    fn file(file: &FileEntry) -> Self {
        let (oid, lfs) = match file.digest {
            Digest::GitBlob(oid) => (oid, None),
            Digest::Sha256(oid) => {
                let pointer = pointer(oid, file.size);
                let lfs = Lfs { oid, size: file.size, pointer_size: pointer.len() as u64 };
                (git_object("blob", pointer.as_bytes()), Some(lfs))
            }
        };
        Self { kind: Kind::File, oid, size: file.size, path: file.path.as_str().to_owned(), lfs }
    }

    /// The same facts as the repository info names them.
    pub(super) fn sibling(&self, blobs: bool) -> serde_json::Value {
        if !blobs {
            return serde_json::json!({ "rfilename": self.path });
        }
        let mut sibling = serde_json::json!({ "rfilename": self.path, "size": self.size, "blobId": self.oid });
        if let Some(lfs) = &self.lfs {
            sibling["lfs"] =
                serde_json::json!({ "sha256": lfs.oid, "size": lfs.size, "pointerSize": lfs.pointer_size });
        }
        sibling
    }
}

/// Every file and folder of a manifest, sorted by path.
#[derive(Debug)]
pub(super) struct Listing(Vec<Entry>);

impl Listing {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let mut root = Folder::default();
        let mut entries = Vec::with_capacity(manifest.files().len());
        for file in manifest.files() {
            let entry = Entry::file(file);
            root.add(file.path.as_str(), entry.oid);
            entries.push(entry);
        }
        root.list("", &mut entries);
        entries.sort_by(|a, b| a.path.cmp(&b.path));
        Self(entries)
    }

    pub(super) fn files(&self) -> impl Iterator<Item = &Entry> {
        self.0.iter().filter(|entry| entry.kind == Kind::File)
    }

    pub(super) fn entry(&self, path: &str) -> Option<&Entry> {
        let at = self.0.binary_search_by(|entry| entry.path.as_str().cmp(path)).ok()?;
        self.0.get(at)
    }

    /// One page of a folder: at most `len` entries after the path `after`, and whether more
    /// follow. None when there is no such folder.
    pub(super) fn page(&self, ask: &PageAsk<'_>) -> Option<(Vec<&Entry>, bool)> {
        let prefix = match ask.folder {
            None => String::new(),
            Some(folder) => {
                self.entry(folder).filter(|entry| entry.kind == Kind::Directory)?;
                format!("{folder}/")
            }
        };
        let from = ask.after.map_or(0, |after| self.0.partition_point(|entry| entry.path.as_str() <= after));
        let below =
            |entry: &&Entry| entry.path.strip_prefix(&prefix).is_some_and(|rest| ask.recursive || !rest.contains('/'));
        let mut found = self.0[from..].iter().filter(below);
        let page: Vec<_> = found.by_ref().take(ask.len).collect();
        Some((page, found.next().is_some()))
    }
}

/// Which page of which folder.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageAsk<'a> {
    pub(super) folder: Option<&'a str>,
    pub(super) recursive: bool,
    pub(super) after: Option<&'a str>,
    pub(super) len: usize,
}

#[derive(Default)]
struct Folder {
    files: BTreeMap<String, GitSha1>,
    folders: BTreeMap<String, Folder>,
}

impl Folder {
    fn add(&mut self, path: &str, oid: GitSha1) {
        let mut folder = self;
        let mut rest = path;
        while let Some((name, below)) = rest.split_once('/') {
            folder = folder.folders.entry(name.to_owned()).or_default();
            rest = below;
        }
        folder.files.insert(rest.to_owned(), oid);
    }

    /// Adds an entry for each folder below this one; returns this one's tree id.
    ///
    /// A path has at most 3072 bytes, so the recursion is bounded.
    fn list(&self, prefix: &str, into: &mut Vec<Entry>) -> GitSha1 {
        // git sorts a folder as if its name ended in a slash.
        let mut lines = BTreeMap::new();
        for (name, oid) in &self.files {
            lines.insert(name.clone(), ("100644", name, *oid));
        }
        for (name, folder) in &self.folders {
            let path = format!("{prefix}{name}");
            let oid = folder.list(&format!("{path}/"), into);
            into.push(Entry { kind: Kind::Directory, oid, size: 0, path, lfs: None });
            lines.insert(format!("{name}/"), ("40000", name, oid));
        }
        let mut body = Vec::new();
        for (mode, name, oid) in lines.into_values() {
            body.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            body.extend_from_slice(oid.as_bytes());
        }
        git_object("tree", &body)
    }
}

/// The text git stores in place of an LFS file (git-lfs specification, version 1).
fn pointer(oid: Sha256, size: u64) -> String {
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n")
}

fn git_object(kind: &str, body: &[u8]) -> GitSha1 {
    let hash = sha1::Sha1::new().chain_update(format!("{kind} {}\0", body.len())).chain_update(body);
    GitSha1::from_bytes(hash.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::source;
    use crate::core::repo_path::RepoPath;

    fn plain(path: &str, bytes: &[u8]) -> FileEntry {
        let digest = Digest::GitBlob(git_object("blob", bytes));
        FileEntry { path: RepoPath::parse(path).unwrap(), size: bytes.len() as u64, digest, xet_hash: None }
    }

    fn listing(files: Vec<FileEntry>) -> Listing {
        Listing::of(&Manifest::seal(source(), files).unwrap())
    }

    fn ask(folder: Option<&'static str>, recursive: bool) -> PageAsk<'static> {
        PageAsk { folder, recursive, after: None, len: 100 }
    }

    fn paths<'a>(page: &[&'a Entry]) -> Vec<&'a str> {
        page.iter().map(|entry| entry.path.as_str()).collect()
    }

    /// The ids were made by git itself: `git hash-object`, and `git write-tree` of these files.
    #[test]
    fn ids_are_those_that_git_gives() {
        let listing = listing(vec![plain("a/b.txt", b"hello\n"), plain("a.txt", b""), plain("a/c/d", b"x")]);
        let oid = |path: &str| listing.entry(path).unwrap().oid.to_string();
        assert_eq!(oid("a/b.txt"), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert_eq!(oid("a.txt"), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(oid("a"), "a8c7c82b84b28cd4d8af6c3552f73d8fd1168673");
        assert_eq!(oid("a/c"), "203e0cd34d56c4fb0d9957ba47d8c66b9acc03aa");
    }

    #[test]
    fn an_lfs_file_carries_the_id_of_its_pointer() {
        let sha256 = Sha256::from_bytes([0xab; 32]);
        let digest = Digest::Sha256(sha256);
        let path = RepoPath::parse("m.safetensors").unwrap();
        let listing = listing(vec![FileEntry { path, size: 12345, digest, xet_hash: None }]);
        let entry = listing.entry("m.safetensors").unwrap();
        assert_eq!(entry.oid.to_string(), "ce15dea791ee5386348438e36d33ea88df761fba");
        assert_eq!(entry.lfs, Some(Lfs { oid: sha256, size: 12345, pointer_size: 130 }));
        assert_eq!(entry.sibling(true)["lfs"]["sha256"], sha256.to_string());
        assert_eq!(serde_json::to_value(entry).unwrap()["lfs"]["pointerSize"], 130);
    }

    #[test]
    fn a_folder_is_listed_flat_or_deep() {
        let listing = listing(vec![plain("a/b", b""), plain("a/c/d", b""), plain("a b", b""), plain("z", b"")]);
        assert_eq!(paths(&listing.page(&ask(None, true)).unwrap().0), ["a", "a b", "a/b", "a/c", "a/c/d", "z"]);
        assert_eq!(paths(&listing.page(&ask(None, false)).unwrap().0), ["a", "a b", "z"]);
        assert_eq!(paths(&listing.page(&ask(Some("a"), false)).unwrap().0), ["a/b", "a/c"]);
        assert_eq!(paths(&listing.page(&ask(Some("a"), true)).unwrap().0), ["a/b", "a/c", "a/c/d"]);
        assert!(listing.page(&ask(Some("z"), true)).is_none());
        assert!(listing.page(&ask(Some("nothing"), true)).is_none());
    }

    #[test]
    fn pages_hold_every_entry_once() {
        let listing = listing((0..25).map(|n| plain(&format!("d{}/f{n}", n % 3), b"")).collect());
        let mut seen = Vec::new();
        let mut after: Option<String> = None;
        for _ in 0..100 {
            let ask = PageAsk { folder: None, recursive: true, after: after.as_deref(), len: 4 };
            let (page, more) = listing.page(&ask).unwrap();
            seen.extend(page.iter().map(|entry| entry.path.clone()));
            after = seen.last().cloned();
            if !more {
                break;
            }
        }
        assert_eq!(seen, paths(&listing.page(&ask(None, true)).unwrap().0));
        assert_eq!(seen.len(), 28);
    }
}
