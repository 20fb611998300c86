//! Repositories the hub serves: files, commits, refs, and who may see them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::content::{Content, sha1_hex, sha256_hex};
use super::kimi;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RepoKind {
    Model,
    Dataset,
    Space,
}

impl RepoKind {
    /// The word in API paths.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Model => "models",
            Self::Dataset => "datasets",
            Self::Space => "spaces",
        }
    }

    pub fn from_plural(word: &str) -> Option<Self> {
        [Self::Model, Self::Dataset, Self::Space].into_iter().find(|kind| kind.plural() == word)
    }

    /// What stands before the id in `/resolve/` paths.
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Model => "",
            Self::Dataset => "datasets/",
            Self::Space => "spaces/",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Public,
    Private,
    /// Everybody sees the listing, with masked digests; bytes need access.
    Gated,
}

/// One file of a commit.
#[derive(Clone, Debug)]
pub struct FileSpec {
    pub path: String,
    pub content: Content,
    pub lfs: bool,
    listed_sha256: Option<String>,
    listed_size: Option<u64>,
}

impl FileSpec {
    /// Generated content under the name of a safetensors file begins as one that covers itself.
    pub fn lfs(path: &str, content: impl Into<Content>) -> Self {
        let content = content.into();
        let content = if path.ends_with(".safetensors") { kimi::with_header(path, content) } else { content };
        Self::new(path, content, true)
    }

    pub fn plain(path: &str, content: impl Into<Content>) -> Self {
        Self::new(path, content.into(), false)
    }

    /// Listing and headers name this digest, whatever the bytes are.
    pub fn listed_with_sha256(mut self, sha256: &str) -> Self {
        self.listed_sha256 = Some(sha256.to_owned());
        self
    }

    /// Listing and headers name this size, whatever the bytes are.
    pub fn listed_with_size(mut self, size: u64) -> Self {
        self.listed_size = Some(size);
        self
    }

    pub fn size(&self) -> u64 {
        self.listed_size.unwrap_or_else(|| self.content.len())
    }

    pub fn sha256(&self) -> &str {
        self.listed_sha256.as_deref().unwrap_or_else(|| self.content.sha256())
    }

    /// The digest the Hub names for the bytes: SHA-256 for LFS, git blob id otherwise.
    pub fn etag(&self) -> &str {
        if self.lfs { self.sha256() } else { self.content.git_sha1() }
    }

    /// What git stores for an LFS file.
    pub fn pointer(&self) -> String {
        format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n", self.sha256(), self.size())
    }

    /// The git blob id: of the pointer text for an LFS file.
    pub fn oid(&self) -> String {
        if self.lfs { Content::from(self.pointer()).git_sha1().to_owned() } else { self.content.git_sha1().to_owned() }
    }

    /// A stand-in for a Xet hash: 64 hex digits that are not the SHA-256.
    pub fn xet_hash(&self) -> String {
        sha256_hex(format!("xet {}", self.content.fingerprint()))
    }

    fn new(path: &str, content: Content, lfs: bool) -> Self {
        Self { path: path.to_owned(), content, lfs, listed_sha256: None, listed_size: None }
    }
}

pub type Tree = BTreeMap<String, FileSpec>;

/// Builder of a repository, and the repository itself once the hub holds it.
///
/// File methods change a working tree; [`branch`](Self::branch) and [`tag`](Self::tag) commit it
/// under a name; `main` is the working tree at [`Hub::start`](super::Hub::start) unless named before.
#[derive(Clone, Debug)]
pub struct RepoSpec {
    pub kind: RepoKind,
    pub id: String,
    pub visibility: Visibility,
    pub disabled: bool,
    pub xet: bool,
    pub former_ids: Vec<String>,
    /// Shared, so that a copy of the repository for each request costs nothing.
    tree: Arc<Tree>,
    commits: BTreeMap<String, Arc<Tree>>,
    branches: BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
}

impl RepoSpec {
    pub fn new(id: &str) -> Self {
        Self {
            kind: RepoKind::Model,
            id: id.to_owned(),
            visibility: Visibility::Public,
            disabled: false,
            xet: false,
            former_ids: Vec::new(),
            tree: Arc::default(),
            commits: BTreeMap::new(),
            branches: BTreeMap::new(),
            tags: BTreeMap::new(),
        }
    }

    /// A repository of the shape of the reference job: `shards` valid safetensors files of exactly
    /// `shard_bytes` (at least 4096) with their index, and `others` more files. Reference: 119 and 21.
    pub fn kimi(shards: usize, shard_bytes: u64, others: usize) -> Self {
        kimi::files(shards, shard_bytes, others).into_iter().fold(Self::new("nvidia/Kimi-K2.5-NVFP4"), Self::file)
    }

    pub fn named(mut self, id: &str) -> Self {
        id.clone_into(&mut self.id);
        self
    }

    pub fn kind(mut self, kind: RepoKind) -> Self {
        self.kind = kind;
        self
    }

    pub fn dataset(self) -> Self {
        self.kind(RepoKind::Dataset)
    }

    pub fn space(self) -> Self {
        self.kind(RepoKind::Space)
    }

    pub fn private(mut self) -> Self {
        self.visibility = Visibility::Private;
        self
    }

    pub fn gated(mut self) -> Self {
        self.visibility = Visibility::Gated;
        self
    }

    pub fn disabled(mut self) -> Self {
        self.disabled = true;
        self
    }

    /// LFS files also carry `xetHash`, `X-Xet-Hash` and the Xet links (no token is served).
    pub fn with_xet(mut self) -> Self {
        self.xet = true;
        self
    }

    /// Requests under `id` are redirected (307, relative, no metadata) to the present id.
    pub fn renamed_from(mut self, id: &str) -> Self {
        self.former_ids.push(id.to_owned());
        self
    }

    /// Adds or replaces one file of the working tree.
    pub fn file(mut self, file: FileSpec) -> Self {
        Arc::make_mut(&mut self.tree).insert(file.path.clone(), file);
        self
    }

    pub fn lfs(self, path: &str, content: impl Into<Content>) -> Self {
        self.file(FileSpec::lfs(path, content))
    }

    pub fn plain(self, path: &str, content: impl Into<Content>) -> Self {
        self.file(FileSpec::plain(path, content))
    }

    pub fn without(mut self, path: &str) -> Self {
        Arc::make_mut(&mut self.tree).remove(path).unwrap_or_else(|| panic!("no file {path} to take out"));
        self
    }

    /// Commits the working tree and points the branch at it. `refs/pr/1` is a branch here too.
    pub fn branch(mut self, name: &str) -> Self {
        let commit = self.commit();
        self.branches.insert(name.to_owned(), commit);
        self
    }

    /// Commits the working tree and points the tag at it.
    pub fn tag(mut self, name: &str) -> Self {
        let commit = self.commit();
        self.tags.insert(name.to_owned(), commit);
        self
    }

    /// The commit a revision (branch, tag, 40-hex id) names.
    pub fn resolve(&self, revision: &str) -> Option<&str> {
        let named = self.branches.get(revision).or_else(|| self.tags.get(revision));
        named.or_else(|| self.commits.get_key_value(revision).map(|(id, _)| id)).map(String::as_str)
    }

    pub fn tree_at(&self, commit: &str) -> Option<&Tree> {
        self.commits.get(commit).map(Arc::as_ref)
    }

    /// The working tree, sorted by path.
    pub fn files(&self) -> impl Iterator<Item = &FileSpec> {
        self.tree.values()
    }

    /// A file of the working tree.
    #[track_caller]
    pub fn get(&self, path: &str) -> &FileSpec {
        self.tree.get(path).unwrap_or_else(|| panic!("no file {path} in {}", self.id))
    }

    /// Sum of the sizes of the working tree, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.files().map(FileSpec::size).sum()
    }

    pub fn branches(&self) -> impl Iterator<Item = (&str, &str)> {
        self.branches.iter().map(|(name, commit)| (name.as_str(), commit.as_str()))
    }

    pub fn tags(&self) -> impl Iterator<Item = (&str, &str)> {
        self.tags.iter().map(|(name, commit)| (name.as_str(), commit.as_str()))
    }

    pub(super) fn sealed(self) -> Self {
        if self.branches.contains_key("main") { self } else { self.branch("main") }
    }

    /// The working tree becomes that of a branch, for an edit on top of it.
    pub(super) fn checked_out(mut self, branch: &str) -> Self {
        if let Some(tree) = self.branches.get(branch).and_then(|id| self.commits.get(id)) {
            self.tree = Arc::clone(tree);
        }
        self
    }

    /// Points a branch at a commit that exists already.
    pub(super) fn point(&mut self, branch: &str, commit: &str) {
        assert!(self.commits.contains_key(commit), "no commit {commit}");
        self.branches.insert(branch.to_owned(), commit.to_owned());
    }

    fn commit(&mut self) -> String {
        let mut text = String::from("commit\n");
        for file in self.tree.values() {
            let (path, print) = (&file.path, file.content.fingerprint());
            let listed = (&file.listed_sha256, file.listed_size);
            text.push_str(&format!("{path}\0{}\0{print}\0{listed:?}\n", file.lfs));
        }
        let id = sha1_hex(text);
        self.commits.insert(id.clone(), Arc::clone(&self.tree));
        id
    }
}
