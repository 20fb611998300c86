//! The state database: the daemon's working memory, and its answers to queries.
//!
//! Owns the state directory, and is the only user of sled. Invariant (P5): it is disposable.
//! Nothing here proves anything about bytes on the volume: manifests, claims and receipts do. A
//! database that is unusable in any way is set aside, never repaired and never deleted; one that
//! is in use is not touched. A record that cannot be read is skipped and counted.
//!
//! Calls are short and synchronous; [`Store::open`] and [`Store::flush`] wait for the disk and
//! belong on a blocking thread.

#![allow(clippy::disallowed_methods, reason = "home of the state directory, which is no part of a model")]

mod copy;
mod directory;
mod engine;
mod error;
pub mod examine;
mod export;
mod keys;
mod migrate;
mod places;
pub mod records;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use jiff::Timestamp;
use serde::de::DeserializeOwned;

use crate::core::endpoint::Origin;
use crate::core::job::Job;
use crate::core::limit::Limit;
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::core::repo_path::RepoPath;

pub use self::directory::SetAside;
pub use self::engine::panics_inside;
pub use self::error::{Fault, StoreError, Unusable};
pub use self::places::{Found, Notice};
pub use self::records::{AuditEntry, OriginMemory, Phase, ProgressSnapshot};

use self::directory::{Directory, Note, trouble};
use self::engine::{Engine, Refusal};

/// How many lines of a model's history are kept.
pub const HISTORY_MAX: u64 = 1000;
/// Of how many models without a job the history is kept.
pub const HISTORIES_MAX: usize = 256;

/// A store, and how it was come by.
pub struct Opened {
    /// The store.
    pub store: Store,
    /// Whether it is a new one: everything in it has to be found out from the volume.
    pub fresh: bool,
    /// The one that was there before and could not be used. To be logged.
    pub notice: Option<SetAside>,
}

/// An open state database. Dropping it flushes.
pub struct Store {
    engine: Engine,
    /// Numbers of history lines are given out by one at a time.
    numbering: Mutex<()>,
    undecodable: AtomicU64,
    /// Unlocked last, after the engine has closed; none where nothing is remembered.
    _directory: Option<Directory>,
}

impl Store {
    /// Opens the store in `dir`, or a fresh one where none is or the one there is unusable.
    /// `program` is name and version, as another version's log will show them.
    ///
    /// # Errors
    /// [`StoreError::Locked`]: use another directory, or give up. [`StoreError::Crowded`],
    /// [`StoreError::Directory`], [`StoreError::Unusable`]: use another directory.
    pub fn open(dir: &Path, program: &str, now: Timestamp) -> Result<Opened, StoreError> {
        let note = Note { schema: migrate::SCHEMA, program: program.to_owned(), opened_at: now };
        match open_in(Directory::claim(dir)?, &note)? {
            Attempt::Opened(store, fresh) => Ok(Opened { store, fresh, notice: None }),
            Attempt::Refused(directory, why, written_by) => {
                let notice = Some(directory.set_aside(why, written_by)?);
                match open_in(Directory::claim(dir)?, &note)? {
                    Attempt::Opened(store, fresh) => Ok(Opened { store, fresh, notice }),
                    Attempt::Refused(_, why, _) => {
                        Err(StoreError::Unusable { dir: dir.to_owned(), why: Box::new(why) })
                    }
                }
            }
        }
    }

    /// A store that remembers nothing, for an owner that finds no place for one. Every call fails
    /// as after a failure.
    fn none() -> Self {
        let (numbering, undecodable) = (Mutex::new(()), AtomicU64::new(0));
        Self { engine: Engine::none(), numbering, undecodable, _directory: None }
    }

    /// Remembers a job, in place of an earlier one of the same name.
    pub fn put_job(&self, job: &Job) -> Result<(), StoreError> {
        self.put("remember a job", &keys::job(&job.spec.name), records::encode(job))
    }

    /// The job of that name.
    pub fn job(&self, name: &ModelName) -> Result<Option<Job>, StoreError> {
        self.get("read a job", &keys::job(name))
    }

    /// Every job, by name.
    pub fn jobs(&self) -> Result<Vec<Job>, StoreError> {
        self.scan("list the jobs", keys::JOBS)
    }

    /// Forgets a job. Its files and history stay.
    pub fn remove_job(&self, name: &ModelName) -> Result<(), StoreError> {
        self.remove("forget a job", &keys::job(name))
    }

    /// Remembers verified files. No batch of the engine's: each of those writes to the disk at once, and waits
    /// for it.
    pub fn put_files(&self, name: &ModelName, files: &[FileRecord]) -> Result<(), StoreError> {
        self.engine.run("remember files", |records| {
            files
                .iter()
                .try_for_each(|file| records.insert(keys::file(name, &file.path), records::encode(file)).map(drop))
        })
    }

    /// The verified files of a model, by path. Each is a hint: its identity has to be compared.
    pub fn files(&self, name: &ModelName) -> Result<Vec<FileRecord>, StoreError> {
        self.scan("list a model's files", &keys::files(name))
    }

    /// Forgets a file.
    pub fn forget_file(&self, name: &ModelName, path: &RepoPath) -> Result<(), StoreError> {
        self.remove("forget a file", &keys::file(name, path))
    }

    /// Forgets files and progress of a model. Its job and its history stay.
    pub fn forget_model(&self, name: &ModelName) -> Result<(), StoreError> {
        self.engine.run("forget a model", |records| {
            let mut batch = sled::Batch::default();
            for key in records.scan_prefix(keys::files(name)).keys() {
                batch.remove(key?);
            }
            batch.remove(keys::progress(name).as_str());
            records.apply_batch(batch)
        })
    }

    /// Adds a line to a model's history; past [`HISTORY_MAX`] lines the oldest go.
    pub fn audit(&self, name: &ModelName, entry: &AuditEntry) -> Result<(), StoreError> {
        self.audit_all(name, std::slice::from_ref(entry))
    }

    /// As [`Self::audit`], for several lines.
    pub fn audit_all(&self, name: &ModelName, entries: &[AuditEntry]) -> Result<(), StoreError> {
        let _numbering = self.numbering.lock().unwrap_or_else(PoisonError::into_inner);
        self.engine.run("add to a model's history", |records| {
            let last = records.scan_prefix(keys::history(name)).next_back().transpose()?;
            let mut next = last.and_then(|(key, _)| keys::line_number(&key)).map_or(0, |last| last.saturating_add(1));
            for entry in entries {
                records.insert(keys::history_line(name, next), records::encode(&entry.bounded()))?;
                next = next.saturating_add(1);
            }
            let first = keys::history_line(name, 0);
            let oldest_kept = keys::history_line(name, next.saturating_sub(HISTORY_MAX));
            for key in records.range(first..oldest_kept).keys() {
                records.remove(key?)?;
            }
            Ok(())
        })
    }

    /// A model's history, oldest first.
    pub fn history(&self, name: &ModelName) -> Result<Vec<AuditEntry>, StoreError> {
        self.scan("read a model's history", &keys::history(name))
    }

    /// Drops the histories of models that have no job any more, but for the [`HISTORIES_MAX`] that
    /// something happened to last.
    pub fn forget_old_histories(&self) -> Result<(), StoreError> {
        let mut gone = self.engine.run("look through the histories", |records| {
            let (mut gone, mut from) = (Vec::new(), keys::HISTORIES.to_owned());
            while let Some((key, _)) = records.range(from.as_str()..keys::HISTORIES_END).next().transpose()? {
                let Some(name) = keys::name_of_line(&key) else { break };
                let last = records.scan_prefix(keys::history(&name)).next_back().transpose()?;
                if !records.contains_key(keys::job(&name))? {
                    let last = last.and_then(|(_, line)| records::decode::<AuditEntry>(&line));
                    gone.push((last.map(|line| line.at), name.clone()));
                }
                from = keys::after_history(&name);
            }
            Ok(gone)
        })?;
        gone.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        for (_, name) in gone.iter().skip(HISTORIES_MAX) {
            self.engine.run("drop a history", |records| {
                records.scan_prefix(keys::history(name)).keys().try_for_each(|key| records.remove(key?).map(drop))
            })?;
        }
        Ok(())
    }

    /// Remembers what was learned about a server.
    pub fn put_origin(&self, origin: &Origin, memory: &OriginMemory) -> Result<(), StoreError> {
        self.put("remember an origin", &keys::origin(origin), records::encode(memory))
    }

    /// What was learned about a server.
    pub fn origin(&self, origin: &Origin) -> Result<Option<OriginMemory>, StoreError> {
        self.get("read an origin", &keys::origin(origin))
    }

    /// Remembers the limit that was asked for the volume, or that none was.
    pub fn put_limit(&self, limit: Option<Limit>) -> Result<(), StoreError> {
        match limit {
            Some(limit) => self.put("remember the volume's limit", keys::LIMIT, records::encode(&limit)),
            None => self.remove("forget the volume's limit", keys::LIMIT),
        }
    }

    /// The limit that was asked for the volume.
    pub fn limit(&self) -> Result<Option<Limit>, StoreError> {
        self.get("read the volume's limit", keys::LIMIT)
    }

    /// Remembers how far a model has come.
    pub fn put_progress(&self, name: &ModelName, progress: &ProgressSnapshot) -> Result<(), StoreError> {
        self.put("remember progress", &keys::progress(name), records::encode(progress))
    }

    /// How far a model had come when that was last remembered.
    pub fn progress(&self, name: &ModelName) -> Result<Option<ProgressSnapshot>, StoreError> {
        self.get("read progress", &keys::progress(name))
    }

    /// Hands everything to the operating system: it survives the end of this process. No promise
    /// about a power cut.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.engine.run("flush", |records| records.flush().map(drop))
    }

    /// How many records were met that could not be read.
    #[must_use]
    pub fn undecodable(&self) -> u64 {
        self.undecodable.load(Ordering::Relaxed)
    }

    fn put(&self, during: &'static str, key: &str, value: Vec<u8>) -> Result<(), StoreError> {
        self.engine.run(during, |records| records.insert(key, value).map(drop))
    }

    fn remove(&self, during: &'static str, key: &str) -> Result<(), StoreError> {
        self.engine.run(during, |records| records.remove(key).map(drop))
    }

    fn get<T: DeserializeOwned>(&self, during: &'static str, key: &str) -> Result<Option<T>, StoreError> {
        let value = self.engine.run(during, |records| records.get(key))?;
        Ok(value.and_then(|value| self.decode(&value)))
    }

    fn scan<T: DeserializeOwned>(&self, during: &'static str, prefix: &str) -> Result<Vec<T>, StoreError> {
        let values: Vec<_> = self.engine.run(during, |records| records.scan_prefix(prefix).values().collect())?;
        Ok(values.iter().filter_map(|value| self.decode(value)).collect())
    }

    fn decode<T: DeserializeOwned>(&self, value: &[u8]) -> Option<T> {
        let record = records::decode(value);
        if record.is_none() {
            self.undecodable.fetch_add(1, Ordering::Relaxed);
        }
        record
    }
}

enum Attempt {
    Opened(Store, bool),
    Refused(Directory, Unusable, Option<String>),
}

fn open_in(directory: Directory, note: &Note) -> Result<Attempt, StoreError> {
    let earlier = directory.note();
    let earlier_program = || earlier.as_ref().map(|earlier| earlier.program.clone());
    if let Some(Note { schema: found, .. }) = earlier.as_ref().filter(|earlier| earlier.schema > migrate::SCHEMA) {
        let why = Unusable::Newer { found: *found, known: migrate::SCHEMA };
        return Ok(Attempt::Refused(directory, why, earlier_program()));
    }
    if earlier.is_some() && !directory.has_database() {
        // The engine would make a new one, and what is set aside is left as it was.
        return Ok(Attempt::Refused(directory, Unusable::Emptied, earlier_program()));
    }
    let mut written_by = earlier_program();
    let opened = Engine::open(directory.path(), |db| {
        let written = migrate::written(db).map_err(|error| Unusable::Unreadable(Fault::Engine(error)))?;
        if written.schema == 0 && earlier.is_some() {
            return Err(Unusable::Emptied);
        }
        written_by = written.program.or_else(|| written_by.take());
        migrate::migrate(db, &note.program)?;
        Ok(written.schema == 0)
    });
    match opened {
        Ok((engine, fresh)) => {
            directory.sign(note)?;
            let (numbering, undecodable) = (Mutex::new(()), AtomicU64::new(0));
            Ok(Attempt::Opened(Store { engine, numbering, undecodable, _directory: Some(directory) }, fresh))
        }
        Err(Refusal::Contents(why)) => Ok(Attempt::Refused(directory, why, written_by)),
        Err(Refusal::Locked) => Err(StoreError::Locked { dir: directory.path().to_owned() }),
        Err(Refusal::Directory(error)) => Err(trouble("open the state database in", directory.path(), error)),
    }
}

#[cfg(test)]
mod tests;
