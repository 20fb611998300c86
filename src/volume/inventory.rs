//! What lies about on a volume: bad bytes and old files set aside, and names nobody here gave.
//!
//! Reads only. What comes and goes while it is counted is left out.

use std::time::Duration;

use rustix::fs::FileType;

use super::dir::{Dir, Entry, size_of};
use super::error::Result;
use super::identity;
use super::layout::Volume;
use super::model_dir::ModelDir;
use super::probe;
use super::writer::PartialName;
use crate::clock;
use crate::core::repo_path::OWN_DIR;

/// Names that the owner's area has.
const AREA: [&str; 7] = ["owners", "state", "quarantine", "log", "retired", "status.json", "api.sock"];
/// Names that our folder in a model directory has.
const OWN: &[&str] = &[
    "manifest.json",
    "manifest.pending.json",
    "receipt.json",
    "receipt.previous.json",
    "local.json",
    "in-use",
    "blocks",
    "wrong.json",
    "scrubbed.json",
    "partial",
    "retired",
    "quarantine",
];
/// Beginnings and ends of names that come and go, and of databases beside the first.
const PASSING: [(&str, &str); 3] = [(".", ".tmp"), (".sock-", ""), ("state.", "")];

/// Files that are kept somewhere.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Kept {
    /// How many.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How long the oldest has been there, by this machine's clock.
    pub oldest: Option<Duration>,
}

impl Kept {
    fn of(dir: Option<&Dir>) -> Result<Self> {
        let mut kept = Self::default();
        let Some(dir) = dir else { return Ok(kept) };
        let now = i64::try_from(clock::now().as_nanosecond()).unwrap_or(i64::MAX);
        for file in dir.walk(|_| true)?.files {
            let Some(stat) = dir.look(&file.name)? else { continue };
            // The rename that brought it here changed its ctime.
            let age = now.saturating_sub(identity::of(&stat).ctime_ns);
            let age = Duration::from_nanos(u64::try_from(age).unwrap_or(0));
            kept.files += 1;
            kept.bytes = kept.bytes.saturating_add(size_of(&stat));
            kept.oldest = kept.oldest.max(Some(age));
        }
        Ok(kept)
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            files: self.files + other.files,
            bytes: self.bytes.saturating_add(other.bytes),
            oldest: self.oldest.max(other.oldest),
        }
    }
}

impl Volume {
    /// Bad bytes in the volume's quarantine.
    pub fn kept_in_quarantine(&self) -> Result<Kept> {
        Kept::of(folder(self.existing_area()?, "quarantine")?.as_ref())
    }

    /// Files of models that were removed.
    pub fn kept_of_removed(&self) -> Result<Kept> {
        Kept::of(folder(self.existing_area()?, "retired")?.as_ref())
    }

    /// Names in the owner's area that muster does not give, and folders of tries in the root.
    pub fn strangers(&self) -> Result<Vec<String>> {
        let area = match self.existing_area()? {
            Some(area) => strangers(&area, &AREA)?,
            None => Vec::new(),
        };
        let tries = self.root().list()?.into_iter().map(|entry| entry.name).filter(|name| probe::is_ours(name));
        Ok(area.into_iter().chain(tries).collect())
    }
}

impl ModelDir {
    /// Bad bytes in the directory's own quarantine.
    pub fn kept_in_quarantine(&self) -> Result<Kept> {
        Kept::of(folder(self.own()?, "quarantine")?.as_ref())
    }

    /// Files of older commits.
    pub fn kept_of_old(&self) -> Result<Kept> {
        Kept::of(folder(self.own()?, "retired")?.as_ref())
    }

    /// Names in our folder that muster does not give.
    pub fn strangers(&self) -> Result<Vec<String>> {
        let Some(own) = self.own()? else { return Ok(Vec::new()) };
        let mut found = strangers(&own, OWN)?;
        if let Some(partials) = folder(Some(own), "partial")? {
            let is_strange = |entry: &Entry| PartialName::parse(&entry.name).is_none() && !is_passing(&entry.name);
            let strange = partials.list()?.into_iter().filter(is_strange);
            found.extend(strange.map(|entry| format!("{OWN_DIR}/partial/{}", entry.name)));
        }
        Ok(found)
    }
}

fn strangers(dir: &Dir, known: &[&str]) -> Result<Vec<String>> {
    let entries = dir.list()?.into_iter();
    // A link in the place of a folder of ours is somebody's, and nothing of ours follows it.
    let is_strange =
        |entry: &Entry| !(known.contains(&&*entry.name) && entry.kind != FileType::Symlink || is_passing(&entry.name));
    let mut names: Vec<_> = entries.filter(is_strange).map(|entry| format!("{OWN_DIR}/{}", entry.name)).collect();
    names.sort();
    Ok(names)
}

fn is_passing(name: &str) -> bool {
    PASSING.iter().any(|(start, end)| name.starts_with(start) && name.ends_with(end))
}

pub(super) fn folder(parent: Option<Dir>, name: &str) -> Result<Option<Dir>> {
    match parent.map(|parent| parent.folder(name)) {
        None => Ok(None),
        Some(Err(error)) if error.is_missing() => Ok(None),
        Some(other) => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bytes, lfs_entry, model, verified};
    use super::*;
    use crate::core::repo::CommitId;

    #[test]
    fn what_is_set_aside_is_counted_and_only_alien_names_are_strangers() {
        let (place, model) = model();
        let volume = Volume::create(place.path()).unwrap();
        let (a, b) = (lfs_entry("a", &bytes(100)), lfs_entry("sub/b", &bytes(11)));
        verified(&model, &a, &bytes(100)).publish(&model).unwrap();
        verified(&model, &b, &bytes(11)).publish(&model).unwrap();
        model.quarantine(&a.path, &volume.quarantine().unwrap()).unwrap();
        model.retire(&b.path, &CommitId::parse(&"a".repeat(40)).unwrap()).unwrap();
        volume.owners().unwrap();
        volume.state_dir().unwrap();
        let kept = volume.kept_in_quarantine().unwrap();
        assert_eq!((kept.files, kept.bytes, kept.oldest.is_some()), (1, 100, true));
        assert_eq!(model.kept_of_old().unwrap().bytes, 11);
        assert_eq!((model.kept_in_quarantine().unwrap(), volume.kept_of_removed().unwrap()), Default::default());
        assert_eq!((volume.strangers().unwrap(), model.strangers().unwrap()), (vec![], vec![]));
        std::fs::write(place.path().join(".muster/notes.txt"), b"").unwrap();
        std::fs::write(model.path().join(".muster/partial/x.bin"), b"").unwrap();
        std::fs::write(model.path().join(".muster/.status.json.00ff.tmp"), b"").unwrap();
        assert_eq!(volume.strangers().unwrap(), [".muster/notes.txt"]);
        assert_eq!(model.strangers().unwrap(), [".muster/partial/x.bin"]);
    }
}
