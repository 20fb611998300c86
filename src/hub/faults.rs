//! What can be wrong with a listing: with its pages, and with one entry of it.

use thiserror::Error;

use crate::core::digest::DigestError;
use crate::core::endpoint::Origin;
use crate::core::repo_path::RepoPath;

/// What is wrong with the pages of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PageFault {
    /// The next page is one that was read already.
    #[error("page {page} comes again")]
    Repeated {
        /// Counted from 1.
        page: usize,
    },
    /// A page without entries that promises another one.
    #[error("page {page} is empty and yet names a next one")]
    Empty {
        /// Counted from 1.
        page: usize,
    },
    /// It does not end.
    #[error("it has more than {limit} pages or entries")]
    Endless {
        /// The limit that was passed.
        limit: usize,
    },
    /// Names without end.
    #[error("its names have more than {limit} bytes")]
    Names {
        /// The limit that was passed.
        limit: usize,
    },
    /// A path stands on two pages, or twice on one.
    #[error("it names {path} twice")]
    Twice {
        /// The path.
        path: RepoPath,
    },
    /// The next page is on another server.
    #[error("its next page is on {to}")]
    Elsewhere {
        /// That server.
        to: Origin,
    },
    /// The link to the next page is no URL.
    #[error("the link to the page after page {page} is unreadable")]
    Link {
        /// Counted from 1.
        page: usize,
    },
}

/// What is wrong with one entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EntryFault {
    /// No size, or one that is no whole number.
    #[error("it has no size")]
    NoSize,
    /// Two sizes.
    #[error("it has two sizes, {size} and {lfs}")]
    TwoSizes {
        /// Of the entry.
        size: u64,
        /// Of the LFS record.
        lfs: u64,
    },
    /// No digest.
    #[error("it has no digest")]
    NoDigest,
    /// Two SHA-256 that differ.
    #[error("it has two digests")]
    TwoDigests,
    /// No path at all.
    #[error("it has no path")]
    NoPath,
    /// A digest that is none.
    #[error("its digest is malformed: {0}")]
    Digest(DigestError),
}
