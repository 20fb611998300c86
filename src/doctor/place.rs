//! Where the volume is, what it is on, and who may do what there.

use super::disk::Patient;
use super::finding::Finding;
use super::machine;
use crate::core::causes::in_words;
use crate::core::readback::Readback;
use crate::core::units;
use crate::volume::surface::{self, Surface};
use crate::volume::{Volume, VolumeError};

/// Permission bits for group and others that a reader needs.
const READ_BY_GROUP: u32 = 0o040;
const READ_BY_OTHERS: u32 = 0o004;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;

/// Opens the volume, or finds where it would be made.
pub(super) fn place(patient: &mut Patient) -> Finding {
    let path = patient.asked.volume.clone();
    let shown = path.display();
    match Volume::open(&path).and_then(|volume| Ok((volume.surface()?, volume))) {
        Ok((surface, volume)) => {
            patient.owners = volume.owners_seen().map_err(|error| in_words(&error));
            patient.answers = patient.owner().is_some_and(super::owner::answers);
            let Surface { uid, gid, mode, .. } = surface;
            (patient.volume, patient.at, patient.surface) = (Some(volume), Some(path.clone()), Some(surface));
            Finding::ok(format!("{shown} is a directory of uid {uid}, gid {gid}, mode {mode:04o}"))
                .value("uid", uid)
                .value("gid", gid)
                .value("mode", format!("{mode:04o}"))
        }
        Err(error) if error.is_missing() => not_yet(patient),
        Err(error @ VolumeError::Steered { .. }) => {
            Finding::problem(error.code(), format!("{shown} is no directory, or a file stands on the way to it"))
                .advise("name another with --volume")
        }
        Err(error) => Finding::failed(&error),
    }
}

fn not_yet(patient: &mut Patient) -> Finding {
    let path = patient.asked.volume.clone();
    let shown = path.display();
    let found = surface::nearest(&path).and_then(|above| Ok((Surface::of(&above)?, above)));
    let (surface, above) = match found {
        Ok(found) => found,
        Err(error) => return Finding::failed(&error),
    };
    let found = format!("{shown} does not exist; the first pull makes it in {}", above.display());
    (patient.at, patient.surface) = (Some(above), Some(surface));
    Finding::note(found)
        .advise("if a volume should be there, look whether it is mounted, or name another with --volume")
}

/// What file system it is and what that means.
pub(super) fn file_system(patient: &mut Patient) -> Finding {
    let Some(surface) = &patient.surface else { return Finding::not_checked("there is no directory to look at") };
    let (kind, readback) = (surface.kind, patient.asked.readback);
    let reads_back = match readback {
        Readback::Auto => !kind.trusts_positioned_writes(),
        Readback::Always => true,
        Readback::Never => false,
    };
    let name = &surface.name;
    let finding = if surface.file_size_max.is_some() {
        Finding::warning(format!("{name}: no file can be larger than 4 GiB, and shards often are"))
            .advise("use a volume on another file system")
    } else if reads_back {
        Finding::ok(format!("{name}; each finished file is read back before it is believed (readback = {readback})"))
    } else if kind.trusts_positioned_writes() {
        Finding::ok(format!("{name}; what is written at an offset is believed to be there"))
    } else {
        Finding::warning(format!("{name}, where writes at offsets have corrupted files, and readback = never"))
            .advise("set readback = \"auto\": finished files are then read back before they are believed")
    };
    let finding = if kind.is_single_host() { finding } else { finding.item("other hosts may write here too") };
    finding
        .value("file_system", name.as_str())
        .value("single_host", kind.is_single_host())
        .value("read_back", reads_back)
        .value("read_only", surface.read_only)
}

/// Whether other users will be able to read, and other writers of a group to write.
pub(super) fn permissions(patient: &mut Patient) -> Finding {
    let umask = machine::umask();
    let Some(volume) = patient.volume.clone() else { return Finding::not_checked("the volume does not exist") };
    let Some(Surface { mode: root, gid, .. }) = patient.surface else {
        return Finding::not_checked("the volume cannot be looked at");
    };
    let area = match volume.surface_of_area() {
        Err(error) => return Finding::failed(&error),
        Ok(area) => area,
    };
    let mut items = Vec::new();
    let mut advice = Vec::new();
    if let Some(umask) = umask {
        let shared = root & SETGID != 0;
        if umask & READ_BY_GROUP != 0 && (shared || root & READ_BY_GROUP != 0) {
            items.push(format!("the umask {umask:04o} of this process hides new files from the group {gid}"));
            advice.push("start muster with umask 0022, or 0002 where a group writes".to_owned());
        } else if umask & READ_BY_OTHERS != 0 && root & READ_BY_OTHERS != 0 {
            items.push(format!("the umask {umask:04o} of this process hides new files from other users"));
            advice.push("start muster with umask 0022 if launchers run as other users".to_owned());
        } else if shared && umask & 0o020 != 0 && root & 0o020 != 0 {
            items.push(format!(
                "the group {gid} may write in the root; with the umask {umask:04o} it may not in new folders"
            ));
            advice.push("start muster with umask 0002 if several users of the group pull".to_owned());
        }
    }
    if let Some(area) = area
        && root & 0o011 & !area.mode != 0
    {
        items.push(format!("others may enter the root and not .muster (mode {:04o}): they see no status", area.mode));
        advice.push("chmod 0755 .muster on the volume".to_owned());
    }
    if root & STICKY != 0 {
        items.push("the root is sticky: a user cannot move or remove models of another".to_owned());
    }
    let stuck = unwritable(patient, &volume);
    if stuck.is_some() {
        advice.push("run as their owner, or give them to the user that pulls (`chown -R`)".to_owned());
    }
    let warns = !advice.is_empty();
    items.extend(stuck);
    let finding = match (items.is_empty(), warns) {
        (true, _) => Finding::ok("other users can read what is pulled here"),
        (false, true) => Finding::warning("modes that will stand in the way of other users"),
        (false, false) => Finding::note("modes worth knowing"),
    };
    let finding = finding.items(items).value("umask", umask.map(|umask| format!("{umask:04o}")));
    advice.into_iter().fold(finding, Finding::advise)
}

/// The models that this user may not change, though it may write in the root.
fn unwritable(patient: &mut Patient, volume: &Volume) -> Option<String> {
    if patient.surface.as_ref().is_none_or(|surface| !surface.writable) {
        return None;
    }
    let names: Vec<_> = patient.models().as_ref().ok()?.iter().map(|model| model.name.clone()).collect();
    let mut stuck = names.iter().filter(|name| volume.may_write_model(name).is_ok_and(|may| !may));
    let first = stuck.next()?;
    let count = 1 + stuck.count() as u64;
    Some(format!("{}, {first} first, cannot be changed by this user", units::count(count, "model")))
}
