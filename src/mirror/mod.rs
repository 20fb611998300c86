//! A read-only Hub over the verified models of a volume.
//!
//! Owns the server side of the Hub's protocol: repository info, tree, paths, files with ranges.
//! Invariants: only models with a valid receipt are served, of those only files that still are
//! what was verified, and nothing is ever written. It must not know where models come from, ask
//! another server, or log what a client sent beyond method and path.

mod answer;
mod auth;
mod body;
pub mod byte_range;
mod catalog;
mod door;
mod listing;
mod refusal;
pub mod route;

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use axum::Router;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::blocking::Blocking;
use crate::core::manifest::Source;
use crate::core::repo_path::RepoPath;
use crate::serving::connections;
use crate::volume::{Volume, VolumeError};
pub use auth::MirrorAuth;
use catalog::Catalog;
use door::{BOUNDS, Door};

/// Entries of a tree page, as on the Hub.
const PAGE_SIZE: usize = 1000;
/// Reads of files that run at a time; more only queue up at the disk.
const READS: usize = 32;
/// Looks at manifests, receipts and names that run at a time.
const LOOKUPS: usize = 8;

/// Called with a file and the number of its bytes that were handed to a connection.
pub type Observer = Arc<dyn Fn(&RepoPath, u64) + Send + Sync>;

/// A mirror, ready to serve.
pub struct Mirror {
    catalog: Catalog,
    auth: MirrorAuth,
    page_size: usize,
    observer: Option<Observer>,
}

/// What every request needs.
struct Shared {
    catalog: Catalog,
    auth: MirrorAuth,
    page_size: usize,
    lookups: Blocking,
    reads: Blocking,
    on_sent: Option<Observer>,
}

impl Mirror {
    /// A mirror of what is on `volume`, for whom `auth` admits.
    #[must_use]
    pub fn of(volume: Volume, auth: MirrorAuth) -> Self {
        Self { catalog: Catalog::of(volume), auth, page_size: PAGE_SIZE, observer: None }
    }

    /// The same with at most this many entries (and at least one) on a tree page.
    #[must_use]
    pub fn with_page_size(self, entries: usize) -> Self {
        Self { page_size: entries.max(1), ..self }
    }

    /// The same, telling `observer` what is sent.
    #[must_use]
    pub fn observed_by(self, observer: Observer) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// What can be served now. Reads the volume: a blocking call.
    ///
    /// # Errors
    /// When the volume cannot be looked over.
    pub fn served(&self) -> Result<Vec<Source>, VolumeError> {
        Ok(self.catalog.all()?.iter().map(|model| model.source().clone()).collect())
    }

    /// Serves on `listener` until `shutdown` is ready. Then answers under way have five seconds;
    /// when this returns, every connection has ended.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let runtime = Handle::current();
        let shared = Shared {
            catalog: self.catalog,
            auth: self.auth,
            page_size: self.page_size,
            lookups: Blocking::new(runtime.clone(), LOOKUPS),
            reads: Blocking::new(runtime, READS),
            on_sent: self.observer,
        };
        let router = Router::new().fallback(answer::answer).with_state(Arc::new(shared));
        connections::run(Door { listener, router }, BOUNDS, shutdown).await;
    }
}

impl fmt::Debug for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mirror").field("catalog", &self.catalog).field("auth", &self.auth).finish_non_exhaustive()
    }
}
