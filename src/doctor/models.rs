//! What lies in the model directories: what is proved, what is unfinished, what was left behind.

use std::collections::{BTreeMap, HashMap};

use super::disk::{Patient, Pulse};
use super::finding::Finding;
use super::owner::who;
use super::room::lacks;
use crate::core::causes::in_words;
use crate::core::identity::Observed;
use crate::core::manifest::Manifest;
use crate::core::model_name::ModelName;
use crate::core::units;
use crate::volume::adopt::{Leftover, leftovers};
use crate::volume::inventory::Kept;
use crate::volume::owner::{Glance, Standing};
use crate::volume::writer::{PathHash, WriterId};
use crate::volume::{ModelDir, Volume, VolumeError};

/// Files looked at between two signs of life.
const FILES_A_BEAT: usize = 64;

/// One model directory.
#[derive(Debug)]
pub(super) struct Model {
    /// Its name on the volume.
    pub(super) name: ModelName,
    /// How far it is.
    state: State,
    /// Bytes that its unfinished files will still take.
    pub(super) lacking: u64,
    /// Its partials.
    partials: Vec<Left>,
    in_quarantine: Kept,
    of_old: Kept,
    strangers: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Under a receipt, every file there with its size.
    Complete,
    /// Under a receipt, and so many files are gone or of another size.
    Damaged(u64),
    /// Being pulled, or given up on the way.
    Unfinished,
    /// Every file is there, and there is no receipt.
    Unproved,
    /// Something of ours cannot be read.
    Unreadable(String),
}

/// A partial and whether a manifest here names its file.
#[derive(Debug)]
struct Left {
    writer: WriterId,
    size: u64,
    has_claims: bool,
    is_wanted: bool,
}

/// Looks at every model directory.
pub(super) fn survey(volume: &Volume, pulse: &Pulse) -> Result<Vec<Model>, VolumeError> {
    let mut models = Vec::new();
    for name in volume.models()? {
        pulse.beat();
        let Some(dir) = volume.model(&name)? else { continue };
        models.push(look(name, &dir, pulse)?);
    }
    Ok(models)
}

fn look(name: ModelName, dir: &ModelDir, pulse: &Pulse) -> Result<Model, VolumeError> {
    let mut trouble = None;
    let mut read = |manifest: Result<Option<Manifest>, VolumeError>| {
        manifest.unwrap_or_else(|error| {
            trouble.get_or_insert(in_words(&error));
            None
        })
    };
    let (current, pending) = (read(dir.manifest()), read(dir.pending_manifest()));
    let receipt = current.as_ref().map(|manifest| dir.receipt(manifest));
    // What was changed on purpose may have another size. A pending manifest that it does not fit is told by
    // the pull.
    let expected = |manifest: Manifest| dir.expected(manifest.clone()).map_or(manifest, |held| held.into_parts().0);
    let (current, pending) = (current.map(expected), pending.map(expected));
    let left = leftovers(dir)?;
    let allocated = allocated(&left);
    let lacking_of = |manifest: &Manifest| {
        let mut lacking = (0_u64, 0_u64);
        for (at, entry) in manifest.files().iter().enumerate() {
            if at % FILES_A_BEAT == 0 {
                pulse.beat();
            }
            let there = matches!(dir.observe(&entry.path), Observed::Present(found) if found.size == entry.size);
            if !there {
                let rest = lacks(entry.size, allocated.get(&PathHash::of(&entry.path)).copied());
                lacking = (lacking.0 + 1, lacking.1.saturating_add(rest));
            }
        }
        lacking
    };
    let of_current = current.as_ref().map(&lacking_of).unwrap_or_default();
    let of_pending = pending.as_ref().map(&lacking_of).unwrap_or_default();
    let state = match (trouble, receipt) {
        (Some(why), _) => State::Unreadable(why),
        (None, Some(Err(error))) => State::Unreadable(in_words(&error)),
        (None, Some(Ok(Some(_)))) if of_current.0 == 0 => State::Complete,
        (None, Some(Ok(Some(_)))) => State::Damaged(of_current.0),
        (None, Some(Ok(None))) if of_current.0 == 0 && pending.is_none() => State::Unproved,
        (None, _) => State::Unfinished,
    };
    let lacking = if pending.is_some() { of_pending.1 } else { of_current.1 };
    let wanted: std::collections::HashSet<PathHash> =
        current.iter().chain(&pending).flat_map(Manifest::files).map(|entry| PathHash::of(&entry.path)).collect();
    let partials = left.iter().map(|left| Left {
        writer: left.writer(),
        size: left.size(),
        has_claims: left.has_claims(),
        is_wanted: wanted.contains(left.path()),
    });
    Ok(Model {
        name,
        state,
        lacking,
        partials: partials.collect(),
        in_quarantine: dir.kept_in_quarantine()?,
        of_old: dir.kept_of_old()?,
        strangers: dir.strangers()?,
    })
}

fn allocated(left: &[Leftover]) -> HashMap<PathHash, u64> {
    let mut allocated: HashMap<PathHash, u64> = HashMap::new();
    for left in left {
        let most = allocated.entry(left.path().clone()).or_default();
        *most = left.allocated().max(*most);
    }
    allocated
}

/// Hands the models to `judge`, or says why there are none.
fn with_models(patient: &mut Patient, judge: impl FnOnce(&[Model], &Patient) -> Finding) -> Finding {
    if patient.volume.is_none() {
        return Finding::not_checked("the volume does not exist");
    }
    if let Err(error) = patient.models() {
        return match error {
            VolumeError::Denied { .. } => Finding::not_checked(in_words(error)),
            other => Finding::failed(other),
        };
    }
    // Taken out and put back, so that the judge may look at everything else.
    let taken = patient.take_models();
    let finding = taken.as_ref().map_or_else(Finding::failed, |models| judge(models, patient));
    patient.put_models(taken);
    finding
}

/// How many there are and how far they are.
pub(super) fn models(patient: &mut Patient) -> Finding {
    with_models(patient, |models, _| {
        let count = |wanted: fn(&State) -> bool| models.iter().filter(|model| wanted(&model.state)).count();
        let complete = count(|state| *state == State::Complete);
        let unfinished = count(|state| *state == State::Unfinished);
        let found = match models.len() as u64 {
            0 => "no models here yet".to_owned(),
            all => format!("{}: {complete} complete, {unfinished} unfinished", units::count(all, "model")),
        };
        let told: Vec<_> =
            models.iter().filter_map(|model| Some(format!("{} {}", model.name, words(&model.state)?))).collect();
        let is_bad = |state: &State| matches!(state, State::Damaged(_) | State::Unreadable(_));
        let finding = if models.iter().any(|model| is_bad(&model.state)) {
            Finding::warning(found).advise("`muster pull` the model again: files that are right are kept")
        } else if told.is_empty() {
            Finding::ok(found)
        } else {
            Finding::note(found)
        };
        let finding = if models.iter().any(|model| model.state == State::Unproved) {
            finding.advise("`muster verify` or `muster pull` hashes what has no receipt and gives it one")
        } else {
            finding
        };
        let finding = finding.items(told).value("models", models.len() as u64);
        finding.value("complete", complete as u64).value("unfinished", unfinished as u64)
    })
}

fn words(state: &State) -> Option<String> {
    Some(match state {
        State::Complete | State::Unfinished => return None,
        State::Damaged(files) => {
            format!("has a receipt, and {} missing or of another size", files_are(*files))
        }
        State::Unproved => "is all there and has no receipt: its gate is closed".to_owned(),
        State::Unreadable(why) => format!("cannot be judged: {why}"),
    })
}

fn files_are(count: u64) -> String {
    if count == 1 { "1 file is".to_owned() } else { format!("{count} files are") }
}

/// What unfinished work is worth, and to whom it belongs.
pub(super) fn partials(patient: &mut Patient) -> Finding {
    with_models(patient, |models, patient| {
        let mut groups: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        let (mut files, mut bytes, mut foreign) = (0_u64, 0_u64, false);
        for model in models {
            for left in &model.partials {
                let (fate, copied) = fate(left, patient);
                foreign |= copied;
                let group = groups.entry((model.name.to_string(), fate)).or_default();
                (group.0, group.1) = (group.0 + 1, group.1.saturating_add(left.size));
                (files, bytes) = (files + 1, bytes.saturating_add(left.size));
            }
        }
        if files == 0 {
            return Finding::ok("no unfinished files").value("files", 0).value("bytes", 0);
        }
        let found = format!("{}, {}", units::count(files, "unfinished file"), units::bytes(bytes));
        let items = groups.into_iter().map(|((name, fate), (files, bytes))| {
            format!("{name}: {}, {}, {fate}", units::count(files, "file"), units::bytes(bytes))
        });
        let finding = if patient.is_owned() && !foreign {
            Finding::ok(found)
        } else {
            Finding::note(found)
                .advise("`muster pull` of the model goes on with them; `muster remove` frees their space")
        };
        finding.items(items).value("files", files).value("bytes", bytes)
    })
}

/// What the next owner does with a partial, and whether it has to copy.
fn fate(left: &Left, patient: &Patient) -> (String, bool) {
    if !left.is_wanted {
        return ("of no file of the manifest: the next pull removes them".to_owned(), false);
    }
    let owners = patient.owners.as_deref().unwrap_or_default();
    let of_writer = |glance: &&Glance| glance.record.as_ref().is_some_and(|record| record.writer == left.writer);
    let glance = owners.iter().find(of_writer);
    let record = glance.and_then(|glance| glance.record.as_ref());
    let is_last = owners.last().is_some_and(|last| Some(last) == glance);
    let unclaimed = if left.has_claims { "" } else { ", without claims" };
    match (glance.map(|glance| glance.standing), record) {
        (Some(Standing::Alive), Some(record)) if is_last => (format!("being written by {}", who(record)), false),
        (Some(Standing::Unknown), Some(record)) if is_last => {
            (format!("perhaps being written by {}", who(record)), false)
        }
        (Some(Standing::Dead { same_boot: true }), Some(record)) => {
            (format!("left by {}: gone on with in place, from their length", who(record)), false)
        }
        (Some(Standing::Dead { same_boot: false }), Some(record)) => (
            format!("left by {} before this boot: gone on with in place, from their claims{unclaimed}", who(record)),
            false,
        ),
        (_, Some(record)) => {
            (format!("of {}, which may live: what they claim is copied{unclaimed}", who(record)), true)
        }
        (_, None) => {
            let found =
                format!("of a writer that left no record ({}): what they claim is copied{unclaimed}", left.writer);
            (found, true)
        }
    }
}

/// Bad bytes.
pub(super) fn quarantine(patient: &mut Patient) -> Finding {
    with_models(patient, |models, patient| {
        let own = models.iter().fold(Kept::default(), |sum, model| sum.and(model.in_quarantine));
        match patient.volume.as_ref().map_or(Ok(Kept::default()), Volume::kept_in_quarantine) {
            Err(error) => Finding::failed(&error),
            Ok(kept) => {
                let kept = kept.and(own);
                let finding = match kept.files {
                    0 => Finding::ok("no bad bytes are kept"),
                    _ => Finding::note(format!("bad bytes are kept: {}", counted(kept))).advise(
                        "delete them when nobody wants to know what they were; nothing uses .muster/quarantine",
                    ),
                };
                figures(finding, kept)
            }
        }
    })
}

/// Good files of older commits, and models that were removed.
pub(super) fn retired(patient: &mut Patient) -> Finding {
    with_models(patient, |models, patient| {
        let own = models.iter().fold(Kept::default(), |sum, model| sum.and(model.of_old));
        let kept = match patient.volume.as_ref().map_or(Ok(Kept::default()), Volume::kept_of_removed) {
            Err(error) => return Finding::failed(&error),
            Ok(kept) => kept.and(own),
        };
        let after = patient.asked.retire_after;
        let overdue = kept.oldest.is_some_and(|age| age > after);
        let finding = match kept.files {
            0 => Finding::ok("nothing is retired"),
            _ if !overdue || patient.is_owned() => {
                let when = format!("their space is freed {} after they were set aside", units::duration(after));
                Finding::ok(format!("retired and still kept: {}; {when}", counted(kept)))
            }
            _ => Finding::note(format!(
                "retired long enough and still kept, since nobody owns the volume: {}",
                counted(kept)
            ))
            .advise("the next `muster pull` or daemon frees their space"),
        };
        figures(finding, kept)
    })
}

fn counted(kept: Kept) -> String {
    let oldest = kept.oldest.map(|age| format!(", the oldest {}", units::duration(age))).unwrap_or_default();
    format!("{}, {}{oldest}", units::count(kept.files, "file"), units::bytes(kept.bytes))
}

fn figures(finding: Finding, kept: Kept) -> Finding {
    let oldest = kept.oldest.map(|age| age.as_secs());
    finding.value("files", kept.files).value("bytes", kept.bytes).value("oldest_s", oldest)
}

/// Names in our folders that muster does not give.
pub(super) fn foreign_files(patient: &mut Patient) -> Finding {
    with_models(patient, |models, patient| {
        let in_area = match patient.volume.as_ref().map_or(Ok(Vec::new()), Volume::strangers) {
            Err(error) => return Finding::failed(&error),
            Ok(found) => found,
        };
        // Ours of this very moment.
        let own = patient.probe.as_ref().ok().map(|probe| probe.name().to_owned());
        let in_area = in_area.into_iter().filter(|name| Some(name) != own.as_ref());
        let in_models = models
            .iter()
            .flat_map(|model| model.strangers.iter().map(move |stranger| format!("{}/{stranger}", model.name)));
        let found: Vec<_> = in_area.chain(in_models).collect();
        let count = found.len() as u64;
        let finding = match count {
            0 => Finding::ok("nothing in .muster that muster did not make"),
            _ => Finding::note(format!("{} in .muster that muster did not make", units::count(count, "name")))
                .advise("muster leaves them alone; move away what nobody needs"),
        };
        finding.items(found).value("names", count)
    })
}
