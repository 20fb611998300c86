//! What a repository holds at one commit: every page of the recursive tree, or an error.
//!
//! A listing that cannot be trusted to be whole is none: a page that comes again, an empty page
//! with a successor, a file named twice, a next page on another server all end it.

use std::collections::HashSet;

use sha2::Digest as _;
use url::Url;

use crate::core::digest::Sha256;
use crate::core::endpoint::Origin;
use crate::core::manifest::{FILES_MAX, FileEntry};
use crate::core::repo::{CommitId, Repo};

use super::client::HubClient;
use super::error::HubError;
use super::faults::PageFault;
use super::refusal::Asked;
use super::wire::{EntryError, Page, next_link};

/// Most of one page that is read, in bytes.
const PAGE_MAX: usize = 64 << 20;
/// Most pages of one listing.
const PAGES_MAX: usize = 50_000;
/// Most entries, folders included.
const ENTRIES_MAX: usize = 2 * FILES_MAX;
/// Most bytes of all names: as many files as there may be, with names of 256 bytes.
const NAMES_MAX: usize = 256 * FILES_MAX;

impl HubClient {
    /// The files of `repo` at `commit`, in the server's order; folders and what is no file are
    /// left out.
    ///
    /// # Errors
    /// [`HubError`]: refusals, a listing that is not whole, an entry that cannot be proved
    /// (masked, without size or digest), or a path that is not safe. Each page is asked for
    /// several times when its failure may pass.
    pub async fn listing(&self, repo: &Repo, commit: CommitId) -> Result<Vec<FileEntry>, HubError> {
        let asked = Asked::Listing(repo, commit);
        let path = format!("api/{}/{}/tree/{commit}?recursive=true&expand=false", repo.kind.plural(), repo.id);
        let mut url = self.endpoint().join(&path);
        let mut listing = Listing::default();
        loop {
            let page = self.retrying(|| self.ask::<Page>(&url, asked, PAGE_MAX)).await;
            let (entries, headers) = page?;
            let next = next_link(&headers);
            listing.take(&url, entries, next.is_some()).map_err(|error| self.explain(asked, error))?;
            let Some(next) = next else { return Ok(listing.files) };
            url = listing.follow(&url, &next).map_err(|error| self.explain(asked, error))?;
        }
    }

    fn explain(&self, asked: Asked<'_>, error: Wrong) -> HubError {
        let repo = asked.repo().clone();
        match error {
            Wrong::Page(fault) => HubError::Pages { repo, origin: self.endpoint().origin(), fault },
            Wrong::Entry(EntryError::Path(source)) => HubError::UnsafePath { repo, source },
            Wrong::Entry(EntryError::Masked(path)) => {
                HubError::Masked { repo, path, caller: self.caller(), page: self.page(asked) }
            }
            Wrong::Entry(EntryError::Fault(path, fault)) => HubError::Entry { repo, path, fault },
        }
    }
}

/// Why pages make no listing.
#[derive(Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The pages make no whole.
    Page(PageFault),
    /// An entry cannot be used.
    Entry(EntryError),
}

/// A listing while its pages come in. Pure: it asks for none.
#[derive(Debug, Default)]
pub struct Listing {
    files: Vec<FileEntry>,
    paths: HashSet<String>,
    /// Digests of the URLs asked: a server may make each as long as a header can be.
    asked: HashSet<Sha256>,
    entries: usize,
    /// Bytes of the names.
    names: usize,
}

impl Listing {
    /// The files so far, in the server's order; no two have one path.
    #[must_use]
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Takes the page that came from `url`.
    ///
    /// # Errors
    /// [`Wrong`]; the listing is none then.
    pub fn take(&mut self, url: &Url, page: Page, has_next: bool) -> Result<(), Wrong> {
        self.asked.insert(digest(url));
        if page.entries == 0 && has_next {
            return Err(Wrong::Page(PageFault::Empty { page: self.asked.len() }));
        }
        self.entries += page.entries;
        if self.entries > ENTRIES_MAX {
            return Err(Wrong::Page(PageFault::Endless { limit: ENTRIES_MAX }));
        }
        for file in page.files {
            self.names += file.path.as_str().len();
            if self.names > NAMES_MAX {
                return Err(Wrong::Page(PageFault::Names { limit: NAMES_MAX }));
            }
            if !self.paths.insert(file.path.to_string()) {
                return Err(Wrong::Page(PageFault::Twice { path: file.path }));
            }
            self.files.push(file);
        }
        page.wrong.map_or(Ok(()), |wrong| Err(Wrong::Entry(wrong)))
    }

    /// The page that a link on the page `from` leads to.
    ///
    /// # Errors
    /// [`Wrong`] when it must not be asked for.
    pub fn follow(&self, from: &Url, link: &str) -> Result<Url, Wrong> {
        let page = self.asked.len();
        let next = from.join(link).map_err(|_| Wrong::Page(PageFault::Link { page }))?;
        let to = Origin::of(&next);
        if to != Origin::of(from) {
            return Err(Wrong::Page(PageFault::Elsewhere { to }));
        }
        if self.asked.contains(&digest(&next)) {
            return Err(Wrong::Page(PageFault::Repeated { page: page + 1 }));
        }
        if page >= PAGES_MAX {
            return Err(Wrong::Page(PageFault::Endless { limit: PAGES_MAX }));
        }
        Ok(next)
    }
}

fn digest(url: &Url) -> Sha256 {
    Sha256::from_bytes(sha2::Sha256::digest(url.as_str()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(paths: &[&str]) -> Page {
        let entry = |path: &&str| format!(r#"{{"type":"file","path":"{path}","size":1,"oid":"{}"}}"#, "1".repeat(40));
        let json = format!("[{}]", paths.iter().map(entry).collect::<Vec<_>>().join(","));
        serde_json::from_str(&json).unwrap()
    }

    fn url(text: &str) -> Url {
        Url::parse("https://hub.example/api/tree").unwrap().join(text).unwrap()
    }

    #[test]
    fn pages_that_make_no_whole_are_refused() {
        let mut listing = Listing::default();
        listing.take(&url("?a"), page(&["x", "y"]), true).unwrap();
        assert_eq!(listing.follow(&url("?a"), "https://hub.example/api/tree?b"), Ok(url("?b")));
        assert_eq!(listing.follow(&url("?a"), "?a"), Err(Wrong::Page(PageFault::Repeated { page: 2 })));
        let elsewhere = listing.follow(&url("?a"), "https://huggingface.co/api/tree?b");
        assert!(matches!(elsewhere, Err(Wrong::Page(PageFault::Elsewhere { .. }))));
        let plain = listing.follow(&url("?a"), "http://hub.example/api/tree?b");
        assert!(matches!(plain, Err(Wrong::Page(PageFault::Elsewhere { .. }))));
        assert_eq!(listing.follow(&url("?a"), "https://["), Err(Wrong::Page(PageFault::Link { page: 1 })));
        assert_eq!(listing.take(&url("?b"), page(&[]), true), Err(Wrong::Page(PageFault::Empty { page: 2 })));
        assert!(matches!(listing.take(&url("?b"), page(&["y"]), false), Err(Wrong::Page(PageFault::Twice { .. }))));
    }

    #[test]
    fn names_that_would_fill_the_memory_are_refused() {
        let mut listing = Listing { names: NAMES_MAX - 3, ..Listing::default() };
        listing.take(&url("?a"), page(&["abc"]), true).unwrap();
        let refused = listing.take(&url("?b"), page(&["d"]), false);
        assert_eq!(refused, Err(Wrong::Page(PageFault::Names { limit: NAMES_MAX })));
    }

    #[test]
    fn a_listing_without_end_is_given_up() {
        let endless = |limit| Err(Wrong::Page(PageFault::Endless { limit }));
        let mut listing = Listing { entries: ENTRIES_MAX - 1, ..Listing::default() };
        assert_eq!(listing.take(&url("?a"), page(&["x", "y"]), true), endless(ENTRIES_MAX));
        let asked = (0..PAGES_MAX).map(|page| digest(&url(&format!("?{page}")))).collect();
        let listing = Listing { asked, ..Listing::default() };
        assert_eq!(listing.follow(&url("?1"), "?next").map(drop), endless(PAGES_MAX).map(drop));
    }

    #[test]
    fn an_empty_repository_is_an_empty_listing() {
        let mut listing = Listing::default();
        listing.take(&url("?a"), page(&[]), false).unwrap();
        assert_eq!(listing.files, []);
    }
}
