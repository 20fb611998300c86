//! Taking over what earlier writers left of the wanted files.
//!
//! Invariants: every partial of another writer is fenced before anything of it is used (P6); the
//! best one of a file is taken up and the others go, and so does what nobody wants any more. What the
//! official client left is only copied: it may be at work.

use std::collections::HashMap;

use tokio_util::sync::CancellationToken;
use tracing::info;

use super::bench::Bench;
use super::error::WorkError;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::plan::FileId;
use crate::core::range_set::RangeSet;
use crate::fetch::Wanted;
use crate::fetch::owned::{WriteError, begin};
use crate::volume::ModelDir;
use crate::volume::adopt::{self, Leftover, TakeOver};
use crate::volume::foreign::Beginning;
use crate::volume::partial::{Partial, Resumed};
use crate::volume::writer::PathHash;

/// Takes up the partials of the wanted files and drops all others. Blocks.
pub(super) fn take_up(
    bench: &Bench,
    model: &ModelDir,
    manifest: &Manifest,
    wanted: &[FileId],
    mut beginnings: HashMap<FileId, Beginning>,
    stop: &CancellationToken,
) -> Result<Vec<Wanted>, WorkError> {
    (bench.may_write)()?;
    adopt::fence(model, bench.writer, &|| (bench.may_write)().is_ok())?;
    (bench.may_write)()?;
    let mut left: HashMap<PathHash, Vec<Leftover>> = HashMap::new();
    for leftover in adopt::leftovers(model)? {
        left.entry(leftover.path().clone()).or_default().push(leftover);
    }
    let mut taken = Vec::new();
    for id in wanted {
        let entry = manifest.files()[id.0].clone();
        let mine = left.remove(&PathHash::of(&entry.path)).unwrap_or_default();
        let adopted = best_of(bench, model, &entry, mine, beginnings.remove(id), stop)?;
        taken.push(Wanted { id: *id, entry, adopted });
    }
    discard(bench, model, left.into_values().flatten())?;
    Ok(taken)
}

/// Takes over the best of the partials of one file and drops the others; or begins with what the official
/// client has, where that is more.
fn best_of(
    bench: &Bench,
    model: &ModelDir,
    entry: &FileEntry,
    left: Vec<Leftover>,
    beginning: Option<Beginning>,
    stop: &CancellationToken,
) -> Result<Option<(Partial, RangeSet)>, WorkError> {
    let (own, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|leftover| leftover.writer() == bench.writer);
    if !own.is_empty()
        && let Some(Resumed { partial, durable }) = Partial::resume(model, entry, bench.writer)?
    {
        discard(bench, model, others)?;
        return Ok(Some((partial, durable)));
    }
    let mut ranked = Vec::new();
    for leftover in others {
        let how = (bench.take_over)(leftover.writer());
        ranked.push((leftover.worth(model, entry, how)?, leftover));
    }
    ranked.sort_by_key(|(worth, _)| *worth);
    let best = ranked.pop_if(|(worth, _)| *worth > 0);
    let beginning = beginning.filter(|found| best.as_ref().is_none_or(|(worth, _)| found.len() > *worth));
    let begun = match beginning {
        Some(beginning) => begin_with(bench, model, entry, &beginning, stop)?,
        None => None,
    };
    let adopted = match (begun, best) {
        (Some(begun), best) => {
            ranked.extend(best);
            Some(begun)
        }
        (None, Some((_, best))) => Some(take_over(bench, model, entry, best, stop)?),
        (None, None) => None,
    };
    discard(bench, model, ranked.into_iter().map(|(_, leftover)| leftover))?;
    Ok(adopted)
}

fn take_over(
    bench: &Bench,
    model: &ModelDir,
    entry: &FileEntry,
    best: Leftover,
    stop: &CancellationToken,
) -> Result<(Partial, RangeSet), WorkError> {
    let how = (bench.take_over)(best.writer());
    let source = (how == TakeOver::Copy).then(|| best.clone());
    let go_on = || !stop.is_cancelled();
    let take_over = || Partial::take_over(model, entry, bench.writer, best, how, &go_on);
    let Resumed { partial, durable } = if source.is_some() {
        // What was made of it is a second one.
        begin(&bench.may_write, take_over, |copied| copied.partial.discard())?
    } else {
        (bench.may_write)()?;
        take_over()?
    };
    if stop.is_cancelled() {
        // The copy may be a part only; what it was made from stays for the next start.
        return Err(WorkError::Stopped);
    }
    discard(bench, model, source)?;
    Ok((partial, durable))
}

/// Copies what the official client has of a file.
fn begin_with(
    bench: &Bench,
    model: &ModelDir,
    entry: &FileEntry,
    beginning: &Beginning,
    stop: &CancellationToken,
) -> Result<Option<(Partial, RangeSet)>, WorkError> {
    let begin_with = || Partial::begin_with(model, entry, bench.writer, beginning, &|| !stop.is_cancelled());
    let begun = begin(&bench.may_write, begin_with, |begun| begun.partial.discard());
    let Resumed { partial, durable } = match begun {
        // The client has finished it meanwhile, or begun anew.
        Err(WriteError::Volume(error)) if error.is_missing() => return Ok(None),
        begun => begun?,
    };
    if stop.is_cancelled() {
        return Err(WorkError::Stopped);
    }
    info!(file = %entry.path, bytes = durable.len_bytes(), "begun with what the official client has of it");
    Ok(Some((partial, durable)))
}

fn discard(bench: &Bench, model: &ModelDir, useless: impl IntoIterator<Item = Leftover>) -> Result<(), WorkError> {
    for leftover in useless {
        (bench.may_write)()?;
        leftover.discard(model)?;
    }
    Ok(())
}
