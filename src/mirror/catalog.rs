//! What the mirror may serve: models with a valid receipt, whole ones only.
//!
//! Invariant: a model is handed out only if its receipt was there, and the same, in this very
//! call; a file only if it still has the identity on that receipt. Blocking calls.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::listing::Listing;
use super::refusal::Refusal;
use crate::clock;
use crate::core::identity::Identity;
use crate::core::manifest::{FileEntry, Manifest, Source};
use crate::core::model_name::ModelName;
use crate::core::receipt::Receipt;
use crate::core::repo::{Repo, Revision};
use crate::core::repo_path::RepoPath;
use crate::volume::error::Result;
use crate::volume::model_dir::PublishedFile;
use crate::volume::{ModelDir, Volume, VolumeError};

/// Age from which the volume is looked over again before an answer.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// The same, when what was asked for is not known.
const LOOK_AGAIN_FOR_UNKNOWN_AFTER: Duration = Duration::from_secs(1);

/// The verified models of a volume.
#[derive(Debug)]
pub(super) struct Catalog {
    volume: Volume,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    models: BTreeMap<ModelName, Arc<Model>>,
    /// Why others are not served, as it was last said in the log.
    left_out: BTreeMap<ModelName, String>,
    looked_at: Option<Instant>,
}

impl Catalog {
    pub(super) fn of(volume: Volume) -> Self {
        Self { volume, held: Mutex::default() }
    }

    /// Every model, after a fresh look.
    pub(super) fn all(&self) -> Result<Vec<Arc<Model>>> {
        let mut held = self.lock();
        self.look(&mut held)?;
        Ok(held.models.values().cloned().collect())
    }

    /// The models of a repository.
    pub(super) fn all_of(&self, repo: &Repo) -> std::result::Result<Vec<Arc<Model>>, Refusal> {
        let mut held = self.lock();
        self.look_if_older(&mut held, LOOK_AGAIN_FOR_UNKNOWN_AFTER)?;
        let models: Vec<_> = held.of(repo).cloned().collect();
        if models.is_empty() { Err(Refusal::NoRepo { repo: repo.clone() }) } else { Ok(models) }
    }

    /// The model of a repository at a revision: at that very commit, or pulled by that name, the
    /// one verified last.
    pub(super) fn find(&self, repo: &Repo, revision: &Revision) -> std::result::Result<Arc<Model>, Refusal> {
        let mut held = self.lock();
        self.look_if_older(&mut held, LOOK_AGAIN_AFTER)?;
        match held.choose(repo, revision) {
            Ok(model) if model.is_current() => return Ok(model),
            // Its receipt is another one, or gone.
            Ok(_) => self.look(&mut held).map_err(|error| unreadable(&error))?,
            Err(_) => self.look_if_older(&mut held, LOOK_AGAIN_FOR_UNKNOWN_AFTER)?,
        }
        held.choose(repo, revision)
    }

    fn look_if_older(&self, held: &mut Held, age: Duration) -> std::result::Result<(), Refusal> {
        let now = clock::instant();
        if held.looked_at.is_some_and(|at| now.saturating_duration_since(at) < age) {
            return Ok(());
        }
        self.look(held).map_err(|error| unreadable(&error))
    }

    fn look(&self, held: &mut Held) -> Result<()> {
        let mut models = BTreeMap::new();
        let mut left_out = BTreeMap::new();
        for name in self.volume.models()? {
            match Model::load(&self.volume, &name, held.models.get(&name)) {
                Ok(Ok(model)) => drop(models.insert(name, model)),
                Ok(Err(why)) => drop(left_out.insert(name, why.to_owned())),
                Err(error) => drop(left_out.insert(name, error.to_string())),
            }
        }
        for (name, why) in left_out.iter().filter(|(name, why)| held.left_out.get(name) != Some(why)) {
            tracing::info!(model = %name, why, "not served");
        }
        *held = Held { models, left_out, looked_at: Some(clock::instant()) };
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Whatever a panic left behind is replaced by the next look.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn of<'a>(&'a self, repo: &'a Repo) -> impl Iterator<Item = &'a Arc<Model>> {
        self.models.values().filter(move |model| model.source().repo == *repo)
    }

    fn choose(&self, repo: &Repo, revision: &Revision) -> std::result::Result<Arc<Model>, Refusal> {
        let commit = revision.as_commit();
        let fits = |model: &&Arc<Model>| match commit {
            Some(commit) => model.source().commit == commit,
            None => model.source().revision == *revision,
        };
        if let Some(model) = self.of(repo).filter(fits).max_by_key(|model| model.receipt.verified_at()) {
            return Ok(Arc::clone(model));
        }
        let held: Vec<_> = self.of(repo).map(|model| model.source().revision.clone()).collect();
        if held.is_empty() {
            return Err(Refusal::NoRepo { repo: repo.clone() });
        }
        Err(Refusal::NoRevision { revision: revision.to_string(), held })
    }
}

/// One verified model.
#[derive(Debug)]
pub(super) struct Model {
    dir: ModelDir,
    manifest: Manifest,
    receipt: Receipt,
    /// Of the receipt.
    identity: Identity,
    listing: Listing,
}

impl Model {
    /// Loads a model, or says why it is not to be served; `known` is taken if it is still right.
    fn load(
        volume: &Volume,
        name: &ModelName,
        known: Option<&Arc<Self>>,
    ) -> Result<std::result::Result<Arc<Self>, &'static str>> {
        let Some(dir) = volume.model(name)? else { return Ok(Err("it is gone")) };
        // Looked at before it is read: a receipt that comes in between is noticed next time.
        let Some(identity) = dir.receipt_identity()? else { return Ok(Err("it has no receipt")) };
        if let Some(known) = known.filter(|known| known.identity == identity) {
            return Ok(Ok(Arc::clone(known)));
        }
        let Some(manifest) = dir.manifest()? else { return Ok(Err("it has no manifest")) };
        let Some(receipt) = dir.receipt(&manifest)? else { return Ok(Err("it has no receipt")) };
        if !dir.local_edits()?.files().is_empty() {
            return Ok(Err("files were changed here on purpose, and what is served must be what was published"));
        }
        if !manifest.source().selection.is_everything() {
            return Ok(Err("only a selection of its files is here, which would look like the whole repository"));
        }
        let listing = Listing::of(&manifest);
        Ok(Ok(Arc::new(Self { dir, manifest, receipt, identity, listing })))
    }

    fn is_current(&self) -> bool {
        matches!(self.dir.receipt_identity(), Ok(Some(identity)) if identity == self.identity)
    }

    pub(super) fn source(&self) -> &Source {
        self.manifest.source()
    }

    pub(super) const fn listing(&self) -> &Listing {
        &self.listing
    }

    pub(super) fn total_bytes(&self) -> u64 {
        self.manifest.total_bytes()
    }

    pub(super) fn file(&self, path: &RepoPath) -> Option<&FileEntry> {
        self.manifest.file(path)
    }

    /// Opens a file, if it is still the one that was verified.
    pub(super) fn open(&self, path: &RepoPath) -> std::result::Result<OpenFile, Refusal> {
        let records = self.receipt.files();
        let at = records.binary_search_by(|record| record.path.cmp(path));
        let record = at.ok().and_then(|at| records.get(at));
        let record = record.ok_or_else(|| Refusal::NoEntry { path: path.to_string() })?;
        match self.dir.open_published(path) {
            Ok(file) if file.identity() == record.identity => Ok(OpenFile { file, path: path.clone() }),
            Ok(_) => Err(self.drifted(path)),
            Err(VolumeError::Missing { .. } | VolumeError::NotRegular { .. } | VolumeError::Steered { .. }) => {
                Err(self.drifted(path))
            }
            Err(error) => {
                tracing::warn!(%error, "a file cannot be served");
                Err(Refusal::Unreadable { path: path.clone() })
            }
        }
    }

    fn drifted(&self, path: &RepoPath) -> Refusal {
        tracing::warn!(file = %self.dir.path_of(path).display(), "changed since it was verified: not served");
        Refusal::Drifted { path: path.clone() }
    }
}

/// A file that was the verified one when it was opened.
#[derive(Debug)]
pub(super) struct OpenFile {
    file: PublishedFile,
    path: RepoPath,
}

impl OpenFile {
    pub(super) const fn path(&self) -> &RepoPath {
        &self.path
    }

    /// Fills `buf` from `offset`, if the file is still the verified one after the reading.
    pub(super) fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let count = self.file.read_at(offset, buf).map_err(io::Error::other)?;
        if count < buf.len() { Err(changed()) } else { self.check() }
    }

    /// The same from memory; `None` when a disk would have to be waited for.
    pub(super) fn read_cached_at(&self, offset: u64, buf: &mut [u8]) -> Option<io::Result<()>> {
        self.file.read_cached_at(offset, buf).then(|| self.check())
    }

    /// Called after a reading: a change before it shows, a later one does not matter.
    fn check(&self) -> io::Result<()> {
        let now = self.file.identity_now().map_err(io::Error::other)?;
        if now == self.file.identity() { Ok(()) } else { Err(changed()) }
    }
}

fn changed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the file changed while it was read")
}

fn unreadable(error: &VolumeError) -> Refusal {
    tracing::warn!(%error, "the volume cannot be looked over");
    Refusal::VolumeUnreadable
}
