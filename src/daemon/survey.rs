//! What of a manifest is in a model directory already.
//!
//! Compares names, identities and records; hashes only what no record speaks for. It changes
//! nothing: what has to go is listed, and moved by whoever may.

use std::collections::HashMap;

use tokio_util::sync::CancellationToken;

use super::error::WorkError;
use super::held::Held;
use crate::core::identity::Observed;
use crate::core::local_edits::{Expected, LocalEdit, LocalEdits};
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::model_name::ModelName;
use crate::core::plan::FileId;
use crate::core::reason::Why;
use crate::core::receipt::{FileRecord, Proved, recorded_files};
use crate::core::repo::CommitId;
use crate::core::repo_path::RepoPath;
use crate::gate::hash::{Hashed, Pages, hash_each};
use crate::volume::condemned::{Condemned, CondemnedFile};
use crate::volume::{ModelDir, VolumeError};

/// Everything of ours that may speak for a file, by path.
#[derive(Debug, Default)]
pub(super) struct Known {
    past: HashMap<RepoPath, Past>,
    /// Files that were found wrong, as they were then.
    condemned: Condemned,
    doubt: Doubt,
}

/// Files that are hashed whatever is known of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum Doubt {
    #[default]
    None,
    Of(Vec<RepoPath>),
    All,
}

/// What is known of one file from before.
#[derive(Debug)]
struct Past {
    /// The last commit known to have it.
    commit: CommitId,
    /// Sizes it had.
    sizes: Vec<u64>,
    /// What was proved of it at which commit; what is most certain comes last.
    records: Vec<(CommitId, FileRecord)>,
}

/// What is to happen to a file that has a name it must not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Displace {
    /// Right for this older commit.
    Retire(CommitId),
    /// Right for none we know, where one of ours was.
    Quarantine,
    /// Right for none we know, and nothing of ours was ever there: not ours to lose.
    Keep,
}

/// What hears of hashing, from several threads.
pub(super) struct Hearing<'a> {
    /// Bytes will be hashed.
    pub(super) begins: &'a (dyn Fn(u64) + Sync),
    /// So many more were.
    pub(super) bytes: &'a (dyn Fn(u64) + Sync),
    /// A file is right.
    pub(super) proved: &'a (dyn Fn(&FileRecord) + Sync),
    pub(super) stop: &'a CancellationToken,
}

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Survey {
    /// Files that are in place, each with its proof.
    pub(super) proved: Vec<FileRecord>,
    /// Files to fetch.
    pub(super) wanted: Vec<FileId>,
    /// Files that are in the way.
    pub(super) displaced: Vec<(RepoPath, Displace)>,
    /// Whether a file was hashed because no record spoke for it as it is now.
    pub(super) rehashed: bool,
    /// Files that were found wrong once, and are right.
    pub(super) acquitted: Vec<CondemnedFile>,
}

impl Known {
    /// Reads the receipts and manifests of the directory and adds what the store remembers: before there
    /// is a manifest, of what `wanted` asks for.
    pub(super) fn load(
        model: &ModelDir,
        held: &Held,
        wanted: &Manifest,
        stored: Vec<FileRecord>,
    ) -> Result<Self, VolumeError> {
        let mut known = Self { condemned: model.condemned()?, ..Self::default() };
        if let Some(current) = &held.current {
            let commit = current.source().commit;
            for entry in current.files() {
                known.past(&entry.path, commit).sizes.push(entry.size);
            }
            // The store does not say of which commit.
            for record in stored {
                known.learn(record, commit);
            }
        } else {
            let is_wanted = |record: &FileRecord| wanted.file(&record.path).is_some_and(|entry| record.proves(entry));
            for record in stored.into_iter().filter(is_wanted) {
                known.learn(record, wanted.source().commit);
            }
        }
        let receipts = [model.previous_receipt_bytes()?, model.receipt_bytes()?];
        for (commit, records) in receipts.into_iter().flatten().filter_map(|bytes| recorded_files(&bytes)) {
            for record in records {
                known.learn(record, commit);
            }
        }
        Ok(known)
    }

    /// The same, of which less is believed.
    pub(super) fn in_doubt(self, doubt: Doubt) -> Self {
        Self { doubt, ..self }
    }

    fn learn(&mut self, record: FileRecord, commit: CommitId) {
        let past = self.past(&record.path, commit);
        past.sizes.push(record.size);
        past.records.push((commit, record));
    }

    fn past(&mut self, path: &RepoPath, commit: CommitId) -> &mut Past {
        let fresh = || Past { commit, sizes: Vec::new(), records: Vec::new() };
        let past = self.past.entry(path.clone()).or_insert_with(fresh);
        past.commit = commit;
        past
    }

    /// The record of the file as it is now, and the commit it is of.
    fn record(&self, path: &RepoPath, observed: &Observed) -> Option<&(CommitId, FileRecord)> {
        let Observed::Present(identity) = observed else { return None };
        let is_doubted = match &self.doubt {
            Doubt::None => false,
            Doubt::Of(paths) => paths.contains(path),
            Doubt::All => true,
        };
        if is_doubted || self.condemned.has(path, identity) {
            return None;
        }
        self.past.get(path)?.records.iter().rev().find(|(_, record)| record.identity == *identity)
    }

    /// Where wrong bytes under this name go.
    fn aside(&self, path: &RepoPath) -> Displace {
        let ours = self.past.get(path).is_some_and(|past| !past.records.is_empty());
        if ours { Displace::Quarantine } else { Displace::Keep }
    }

    /// Whether a file of an older manifest stands where a folder is needed for `path`, or the
    /// other way round: such an obstacle leaves by itself.
    fn gives_way(&self, path: &RepoPath, manifest: &Manifest) -> bool {
        let mut gone = self.past.keys().filter(|known| manifest.file(known).is_none());
        gone.any(|known| {
            path.ancestors().any(|folder| folder == known.as_str())
                || known.ancestors().any(|folder| folder == path.as_str())
        })
    }
}

/// Looks at every file of the manifest, and at the files of ours that it has no longer. Blocks.
pub(super) fn survey(
    model: &ModelDir,
    name: &ModelName,
    expected: &Expected,
    known: &Known,
    hearing: &Hearing<'_>,
) -> Result<Survey, WorkError> {
    let (manifest, edits) = (expected.manifest(), expected.edits());
    let mut survey = Survey::default();
    let mut unknown = Vec::new();
    for (at, entry) in manifest.files().iter().enumerate() {
        let observed = model.observe(&entry.path);
        let record = known.record(&entry.path, &observed);
        if let Some(why) = spoiled(entry, &observed, record.map(|(_, record)| record)) {
            edit_must_hold(name, edits, entry, why)?;
        }
        match (&observed, record) {
            (_, Some((_, record))) if record.proves(entry) => survey.proved.push(record.clone()),
            (_, Some((commit, _))) => survey.displace(at, entry, Displace::Retire(*commit)),
            (Observed::Missing, _) => survey.wanted.push(FileId(at)),
            (Observed::NotRegular, _) if known.gives_way(&entry.path, manifest) => survey.wanted.push(FileId(at)),
            (Observed::NotRegular, _) => return Err(WorkError::NotAFile { path: entry.path.clone() }),
            (Observed::Unreadable { why }, _) => {
                return Err(WorkError::Unreadable { path: entry.path.clone(), why: why.clone() });
            }
            (Observed::Present(found), _) if found.size != entry.size => {
                survey.displace(at, entry, known.aside(&entry.path));
            }
            (Observed::Present(_), _) => unknown.push(at),
        }
    }
    survey.hash(model, name, expected, &unknown, known, hearing)?;
    survey.leave(model, manifest, known);
    Ok(survey)
}

/// Why a look is enough to say that a file is not the entry's.
fn spoiled(entry: &FileEntry, observed: &Observed, record: Option<&FileRecord>) -> Option<Why> {
    match observed {
        Observed::Missing => Some(Why::Missing { size: entry.size }),
        Observed::NotRegular => Some(Why::NotRegular),
        Observed::Present(found) if found.size != entry.size => {
            Some(Why::Size { expected: entry.size, found: found.size })
        }
        Observed::Present(_) => record.filter(|record| !record.proves(entry)).map(|record| Why::Bytes {
            expected: entry.digest,
            found: record.digest,
            disguised: false,
        }),
        Observed::Unreadable { .. } => None,
    }
}

/// A file that was changed on purpose is neither fetched nor moved: nobody else has its bytes.
fn edit_must_hold(name: &ModelName, edits: &LocalEdits, entry: &FileEntry, why: Why) -> Result<(), WorkError> {
    let Some(edit) = edits.of(&entry.path) else { return Ok(()) };
    let LocalEdit { path, reason, .. } = edit.clone();
    Err(WorkError::EditSpoiled { name: name.clone(), path, reason, why })
}

impl Survey {
    /// Whether everything is in its place, and was believed unread.
    pub(super) fn is_well(&self) -> bool {
        self.wanted.is_empty() && self.displaced.is_empty() && !self.rehashed
    }

    fn displace(&mut self, at: usize, entry: &FileEntry, how: Displace) {
        self.displaced.push((entry.path.clone(), how));
        self.wanted.push(FileId(at));
    }

    fn hash(
        &mut self,
        model: &ModelDir,
        name: &ModelName,
        expected: &Expected,
        unknown: &[usize],
        known: &Known,
        hearing: &Hearing<'_>,
    ) -> Result<(), WorkError> {
        self.rehashed = !unknown.is_empty();
        let (manifest, edits) = (expected.manifest(), expected.edits());
        let entries: Vec<&FileEntry> = unknown.iter().map(|at| &manifest.files()[*at]).collect();
        if self.rehashed {
            (hearing.begins)(entries.iter().map(|entry| entry.size).sum());
        }
        let each = |entry: &FileEntry, answer: Result<Hashed, Why>| -> Result<FileRecord, NotProved> {
            let record = record(model, entry, answer?)?;
            (hearing.proved)(&record);
            Ok(record)
        };
        let go_on = || !hearing.stop.is_cancelled();
        let mut answers = hash_each(model, &entries, Pages::Drop, hearing.bytes, each, go_on);
        // A disk or a page that was wrong once says nothing: only what is wrong twice is.
        let is_in_doubt = |at: &usize| matches!(&answers[*at], Some(Err(NotProved::Why(why))) if may_pass(why));
        let again: Vec<usize> = (0..entries.len()).filter(is_in_doubt).collect();
        let entries_again: Vec<&FileEntry> = again.iter().map(|at| entries[*at]).collect();
        let second = hash_each(model, &entries_again, Pages::Drop, &|_| (), each, go_on);
        for (at, answer) in again.into_iter().zip(second) {
            answers[at] = answer;
        }
        for ((at, entry), answer) in unknown.iter().zip(entries).zip(answers) {
            let answer = answer.ok_or(WorkError::Stopped)?;
            if let Err(NotProved::Why(why @ (Why::Missing { .. } | Why::Bytes { .. } | Why::Size { .. }))) = &answer {
                edit_must_hold(name, edits, entry, why.clone())?;
            }
            match answer {
                Ok(record) => {
                    if let Observed::Present(identity) = model.observe(&entry.path)
                        && known.condemned.has(&entry.path, &identity)
                    {
                        self.acquitted.push(CondemnedFile { path: entry.path.clone(), identity });
                    }
                    self.proved.push(record);
                }
                Err(NotProved::Volume(error)) => return Err(error.into()),
                Err(NotProved::Why(Why::Missing { .. })) => self.wanted.push(FileId(*at)),
                Err(NotProved::Why(Why::Bytes { .. } | Why::Size { .. })) => {
                    self.displace(*at, entry, known.aside(&entry.path));
                }
                // Whoever repairs wants it replaced; one that cannot even be opened is another matter.
                Err(NotProved::Why(Why::Unreadable { .. }))
                    if known.doubt != Doubt::None && matches!(model.observe(&entry.path), Observed::Present(_)) =>
                {
                    self.displace(*at, entry, known.aside(&entry.path));
                }
                Err(NotProved::Why(why)) => {
                    return Err(WorkError::Unreadable { path: entry.path.clone(), why: why.to_string() });
                }
            }
        }
        self.wanted.sort();
        Ok(())
    }

    /// Files of ours from an older manifest that this one has not. One whose times have changed
    /// since is an old one still, unless it has another size.
    fn leave(&mut self, model: &ModelDir, manifest: &Manifest, known: &Known) {
        for (path, past) in known.past.iter().filter(|(path, _)| manifest.file(path).is_none()) {
            let Observed::Present(found) = model.observe(path) else { continue };
            let ours = past.sizes.contains(&found.size);
            self.displaced
                .push((path.clone(), if ours { Displace::Retire(past.commit) } else { Displace::Quarantine }));
        }
        self.displaced.sort_by(|a, b| a.0.cmp(&b.0));
    }
}

/// Whether the next read may tell another thing.
const fn may_pass(why: &Why) -> bool {
    matches!(why, Why::Bytes { .. } | Why::Unreadable { .. })
}

/// Why a file that was to be hashed has no record.
enum NotProved {
    Why(Why),
    Volume(VolumeError),
}

impl From<Why> for NotProved {
    fn from(why: Why) -> Self {
        Self::Why(why)
    }
}

impl From<VolumeError> for NotProved {
    fn from(error: VolumeError) -> Self {
        Self::Volume(error)
    }
}

/// What is known of a file that was just hashed, once its identity counts.
fn record(model: &ModelDir, entry: &FileEntry, hashed: Hashed) -> Result<FileRecord, VolumeError> {
    let Hashed { proof, identity } = hashed;
    model.note_blocks([proof.blocks()]);
    model.settle_record(FileRecord::new(entry.path.clone(), &proof, identity, Proved::Readback))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::core::manifest::tests::source;
    use crate::core::verify::tests::lfs_entry;

    /// Looks, and says how many bytes were hashed and what was proved on the way.
    fn look(model: &ModelDir, manifest: &Manifest, stored: Vec<FileRecord>) -> (Survey, u64, Vec<FileRecord>) {
        let known = Known::load(model, &Held::default(), manifest, stored).unwrap();
        let (hashed, proved) = (Mutex::new(0), Mutex::new(Vec::new()));
        let hearing = Hearing {
            begins: &|bytes| *hashed.lock().unwrap() += bytes,
            bytes: &|_| {},
            proved: &|record| proved.lock().unwrap().push(record.clone()),
            stop: &CancellationToken::new(),
        };
        let name = ModelName::parse("org/model").unwrap();
        let survey = survey(model, &name, &Expected::plain(manifest.clone()), &known, &hearing).unwrap();
        (survey, hashed.into_inner().unwrap(), proved.into_inner().unwrap())
    }

    #[test]
    fn what_was_hashed_before_there_is_a_manifest_is_not_hashed_again_and_what_is_not_ours_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let model = ModelDir::create(place.path()).unwrap();
        let entries = vec![lfs_entry("a", b"right"), lfs_entry("b", b"right too"), lfs_entry("gone", b"x")];
        let manifest = Manifest::seal(source(), entries).unwrap();
        std::fs::write(place.path().join("a"), b"right").unwrap();
        std::fs::write(place.path().join("b"), b"wrong too").unwrap();
        let (first, hashed, proved) = look(&model, &manifest, vec![]);
        assert_eq!((hashed, proved.len(), first.proved.len(), first.wanted.len()), (14, 1, 1, 2));
        assert_eq!(first.displaced, [(RepoPath::parse("b").unwrap(), Displace::Keep)]);

        let (second, hashed, _) = look(&model, &manifest, proved.clone());
        assert_eq!((hashed, second.proved), (9, proved.clone()), "only what nothing speaks for");

        std::fs::write(place.path().join("a"), b"wrong").unwrap();
        let (third, hashed, _) = look(&model, &manifest, proved);
        assert_eq!(hashed, 14);
        assert_eq!(third.displaced[0], (RepoPath::parse("a").unwrap(), Displace::Quarantine), "it was proved once");
    }
}
