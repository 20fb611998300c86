//! `muster adopt`: takes over a directory that another tool filled.
//!
//! A pull into that directory: the same job, by the same owner. What is its own: the directory has to be
//! there and to be one that may be adopted; it tells what the other tool left; and with `--no-fetch` it
//! compares and reports, and goes on only when nothing is missing or wrong.

use std::path::{Path, PathBuf};

use serde_json::json;
use tokio::runtime::Handle;

use super::pull::{Looked, Pull, foreground, hub_config};
use crate::blocking::Blocking;
use crate::cli::args::AdoptArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::cli::hashing::with_progress;
use crate::cli::model_ref::{Model, subject};
use crate::cli::signals::Signals;
use crate::cli::{Context, resolve, runtime};
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::identity::Observed;
use crate::core::local_edits::Expected;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::units;
use crate::daemon::supervisor::yield_to_others;
use crate::gate::compare::{Compared, compare};
use crate::gate::report::{self, VerifyReport};
use crate::gate::verify::{ReceiptFate, Verified};
use crate::volume::foreign::{CLIENT_FOLDER, Remark, client_cache};
use crate::volume::inventory::Kept;
use crate::volume::place::{canonical, is_link};
use crate::volume::{ModelDir, Volume, VolumeError};

/// Most files that are named one by one.
const NAMED_MAX: usize = 5;
/// What to do with files that are links.
const COPY_HINT: &str = "copy the files themselves (cp -rL --reflink=auto DIR NEW), and adopt the copy";

/// Adopts a directory.
///
/// # Errors
/// What the user is told.
pub fn run(args: AdoptArgs, context: Context) -> Result<Exit, Failure> {
    let Context { settings, ui, here, environment, .. } = context;
    let (directory, no_fetch) = (resolve::absolute(&here, &args.dir), args.no_fetch);
    check_place(&directory)?;
    let (request, settings) = resolve::adopt(args, settings, &here)?;
    let pull = Pull { request, settings, ui, environment, detached: false, proved: Vec::new() };
    runtime::run_to_a_bounded_end(Signals::listen, Adopt { pull, directory, no_fetch }.run())
}

struct Adopt {
    pull: Pull,
    directory: PathBuf,
    no_fetch: bool,
}

/// What is there before anything is done.
struct Before {
    /// At each file of the manifest.
    looks: Vec<Observed>,
}

impl Adopt {
    async fn run(mut self) -> Result<Exit, Failure> {
        let mut signals = Signals::listen()?;
        let config = hub_config(&self.pull.settings)?;
        let seen = match self.pull.look(&config, &mut signals).await? {
            Looked::Seen(seen) => *seen,
            Looked::Stopped(exit) => return Ok(exit),
        };
        let dir = ModelDir::open(&self.directory).map_err(|error| CliError::from(&error))?;
        let expected = seen.expected.clone();
        let before = self.look_closer(&dir, expected.manifest())?;
        if !seen.complete {
            if self.no_fetch {
                let (compared, exit) = tokio::select! {
                    done = self.compare(&dir, &expected) => done?,
                    exit = signals.next() => return Ok(exit),
                };
                if exit != Exit::Success {
                    self.tell_compared(compared, &dir, exit)?;
                    return Ok(exit);
                }
                match compared.records(&dir) {
                    Ok(proved) => self.pull.proved = proved,
                    // A report was asked for, and this is one.
                    Err(error) => {
                        self.pull.ui.warn(&format!("no receipt is written: {}", in_words(&error)));
                        self.tell_compared(compared, &dir, exit)?;
                        return Ok(exit);
                    }
                }
            }
            seen.check_space().map_err(|error| CliError::from(&error))?;
        }
        if !seen.complete
            && let Some(exit) = foreground::pull(&self.pull, config, seen, &mut signals).await?.stopped()
        {
            return Ok(exit);
        }
        self.pull.sign(expected.edits())?;
        let aside = self.aside()?;
        self.pull.prune()?;
        self.tell(&dir, &expected, &before, aside)
    }
}

impl Adopt {
    /// Refuses what is no plain file, and tells what another tool left.
    fn look_closer(&self, dir: &ModelDir, manifest: &Manifest) -> Result<Before, CliError> {
        let looks: Vec<_> = manifest.files().iter().map(|entry| dir.observe(&entry.path)).collect();
        let each = || manifest.files().iter().zip(&looks);
        let links: Vec<_> = each().filter(|(_, look)| **look == Observed::NotRegular).map(|(entry, _)| entry).collect();
        if !links.is_empty() {
            let message = format!("{} in {}: a link, or no plain file", named(&links), self.directory.display());
            return Err(CliError::new(Code::Refused, message).hint(COPY_HINT));
        }
        let (mut pointers, mut unfinished) = (Vec::new(), Vec::new());
        for (entry, look) in each() {
            let has_size = matches!(look, Observed::Present(found) if found.size == entry.size);
            match dir.remark(entry).filter(|_| *look != Observed::Missing) {
                Some(Remark::Pointer) if !has_size => pointers.push(entry),
                Some(Remark::Unfinished { .. }) => unfinished.push(entry),
                _ => {}
            }
        }
        let ui = &self.pull.ui;
        if !pointers.is_empty() {
            let what = units::count(pointers.len() as u64, "git-lfs pointer");
            ui.note(&format!("{what} in place of the files themselves: {}", named(&pointers)));
        }
        if !unfinished.is_empty() {
            let what = units::count(unfinished.len() as u64, "unfinished download");
            ui.note(&format!("{what} of aria2, by the .aria2 beside it: {}", named(&unfinished)));
        }
        if dir.has_client_folder() {
            ui.note(&format!("{CLIENT_FOLDER} is the official client's: muster neither needs nor changes it"));
        }
        Ok(Before { looks })
    }

    /// Hashes what is there, on a thread that may wait.
    async fn compare(&self, dir: &ModelDir, expected: &Expected) -> Result<(Compared, Exit), CliError> {
        let (dir, expected, directory) = (dir.clone(), expected.clone(), self.directory.clone());
        let (ui, name) = (self.pull.ui.clone(), self.pull.request.spec.name.clone());
        let low_impact = self.pull.settings.low_impact.value;
        let work = move || {
            if low_impact {
                yield_to_others();
            }
            with_progress(&ui, name.as_str(), "nothing speaks for them yet", |listener| {
                compare(&dir, directory, expected, listener)
            })
        };
        let compared = Blocking::new(Handle::current(), 1).run(work).await;
        let exit = compared.answer.decision.code().map_or(Exit::Success, Exit::Code);
        Ok((compared, exit))
    }

    /// What a comparison found, in the words of `verify`.
    fn tell_compared(&self, compared: Compared, dir: &ModelDir, exit: Exit) -> Result<(), Failure> {
        let ui = &self.pull.ui;
        let answer = compared.answer;
        let model = Model { id: None, directory: self.directory.clone(), revision: None };
        let subject = subject(&model, answer.manifest.as_ref().map(Manifest::source), &self.pull.settings, None);
        let verified = Verified { answer, receipt: ReceiptFate::Kept, quarantined: Vec::new() };
        if ui.is_json() {
            ui.result_json(&VerifyReport::new(&verified, &subject, exit.number()))?;
        } else {
            ui.result(&report::verdict(&verified.answer, exit.number(), report::VERIFY))?;
        }
        let Verified { answer, .. } = verified;
        for reason in answer.decision.reasons() {
            let entry = reason.file.as_ref().and_then(|path| answer.manifest.as_ref()?.file(path));
            if let Some((entry, remark)) = entry.and_then(|entry| Some((entry, dir.remark(entry)?))) {
                ui.note(&format!("{}: {remark}", entry.path));
            }
        }
        if exit != Exit::Success {
            ui.note(
                "nothing was changed; the same command without --no-fetch keeps what is right and fetches the rest",
            );
        }
        Ok(())
    }

    fn tell(&self, dir: &ModelDir, expected: &Expected, before: &Before, aside: Kept) -> Result<Exit, Failure> {
        let manifest = expected.manifest();
        let ui = &self.pull.ui;
        let (mut kept, mut missing, mut wrong) = (0u64, 0u64, 0u64);
        for (entry, was) in manifest.files().iter().zip(&before.looks) {
            match (was, dir.observe(&entry.path)) {
                (Observed::Missing, _) => missing += 1,
                (Observed::Present(was), Observed::Present(now)) if was.inode == now.inode => kept += 1,
                _ => wrong += 1,
            }
        }
        let of = units::count(manifest.files().len() as u64, "file");
        ui.note(&format!("{kept} of {of} right as they were; fetched: {missing} missing, {wrong} wrong"));
        if aside.files > 0 && !self.pull.request.prune {
            let (files, bytes) = (units::count(aside.files, "file"), units::bytes(aside.bytes));
            ui.note(&format!("{files} of this model set aside, {bytes}; the same command with --prune removes them"));
        }
        if !ui.is_json() {
            return self.pull.tell_done(manifest, expected.edits());
        }
        let aside = if self.pull.request.prune { Kept::default() } else { aside };
        ui.result_json(&json!({
            "id": self.pull.request.spec.name,
            "directory": self.directory,
            "commit": manifest.source().commit,
            "files": manifest.files().len(),
            "shards": manifest.shard_count(),
            "bytes": manifest.total_bytes(),
            "local_edits": expected.edits().files(),
            "adopted": {"kept": kept, "missing": missing, "wrong": wrong},
            "set_aside": {"files": aside.files, "bytes": aside.bytes},
        }))?;
        Ok(Exit::Success)
    }

    /// What is set aside of the model.
    fn aside(&self) -> Result<Kept, CliError> {
        let volume = Volume::open(&self.pull.settings.volume.value);
        let kept = volume.and_then(|volume| volume.kept_aside(&self.pull.request.spec.name));
        kept.map_err(|error| CliError::from(&error))
    }
}

/// Only a plain directory that is nobody else's can be adopted.
fn check_place(directory: &Path) -> Result<(), CliError> {
    let shown = directory.display();
    match ModelDir::open(directory) {
        Err(error @ (VolumeError::Missing { .. } | VolumeError::Steered { .. })) => {
            let error = CliError::from_error(Code::UnknownModel, &error).context(format!("{shown} is no directory"));
            return Err(error.hint("muster pull REPO --local-dir DIR makes one"));
        }
        Err(error) => return Err(CliError::from(&error)),
        Ok(_) => {}
    }
    if let Some(cache) = client_cache(directory).map_err(|error| CliError::from(&error))? {
        let message = format!("{shown} is in the official client's cache ({})", cache.display());
        let why = "files there are links to what several commits share, and the client may remove them";
        return Err(CliError::new(Code::Refused, message).context(why).hint(COPY_HINT));
    }
    if is_link(directory) {
        let message = format!("{shown} is a link");
        let to = canonical(directory).map_err(|error| CliError::from(&error))?;
        return Err(CliError::new(Code::Refused, message).hint(format!("give the directory itself: {}", to.display())));
    }
    Ok(())
}

/// `a, b, c and 2 more`.
fn named(entries: &[&FileEntry]) -> String {
    let names: Vec<_> = entries.iter().take(NAMED_MAX).map(|entry| entry.path.as_str()).collect();
    let more = entries.len().saturating_sub(NAMED_MAX);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", names.join(", "))
}
