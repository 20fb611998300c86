//! What can go wrong with the state database, and how grave it is.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why the store cannot be opened or used. None of them is a reason to doubt a byte on the
/// volume: the store is working memory (P5).
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another live process has it. Nothing in the directory was touched.
    #[error("the state database {} is in use by another process", .dir.display())]
    Locked {
        /// The state directory.
        dir: PathBuf,
    },
    /// The directory itself cannot be used: no room, no permission, no locks.
    #[error("cannot {action} {}", .path.display())]
    Directory {
        /// What was tried, as in "cannot …".
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// The operating system's answer.
        #[source]
        source: io::Error,
    },
    /// Enough unusable databases have been set aside; somebody should look at them.
    #[error("{count} unusable state databases are kept beside {}; none is ever deleted", .dir.display())]
    Crowded {
        /// The state directory.
        dir: PathBuf,
        /// How many there are.
        count: usize,
    },
    /// A newer state than this one could not be used: what was ended since would come back.
    #[error("{} is older than a state that cannot be used now", .dir.display())]
    Stale {
        /// The state directory.
        dir: PathBuf,
    },
    /// Even a fresh database cannot be opened there.
    #[error("no state database can be made in {}", .dir.display())]
    Unusable {
        /// The state directory.
        dir: PathBuf,
        /// What the fresh one failed with.
        #[source]
        why: Box<Unusable>,
    },
    /// It failed while open. It answers nothing more until it is opened again.
    #[error("the state database failed to {during}")]
    Failed {
        /// What was tried, as in "failed to …".
        during: &'static str,
        /// What the engine said.
        #[source]
        fault: Fault,
    },
}

impl StoreError {
    /// Whether it was told before: the store had failed, or there was none from the start.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        matches!(self, Self::Failed { fault: Fault::Earlier, .. })
    }
}

/// Why a database that is there cannot be used.
#[derive(Debug, Error)]
pub enum Unusable {
    /// A later version of this program wrote it.
    #[error("it has schema {found}, this program knows schemas up to {known}")]
    Newer {
        /// Its schema.
        found: u32,
        /// The latest this program has a migration to.
        known: u32,
    },
    /// It was written before, and now holds nothing.
    #[error("its contents are gone")]
    Emptied,
    /// The engine cannot read it.
    #[error("it is not readable")]
    Unreadable(#[source] Fault),
}

/// What the engine did instead of its work.
#[derive(Debug, Error)]
pub enum Fault {
    /// It returned an error, which stays until the database is opened again.
    #[error(transparent)]
    Engine(#[from] sled::Error),
    /// It panicked, which sled does on some kinds of corruption.
    #[error("the database engine panicked: {message}")]
    Panicked {
        /// Its words.
        message: String,
    },
    /// It failed before; nothing was tried this time.
    #[error("it failed earlier and has not been opened again")]
    Earlier,
}
