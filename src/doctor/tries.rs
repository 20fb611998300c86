//! What was found by trying, and what it means here.

use std::time::Duration;

use super::disk::Patient;
use super::finding::Finding;
use crate::core::code::Code;
use crate::core::readback::Readback;
use crate::core::units;
use crate::limits;
use crate::volume::VolumeError;
use crate::volume::probe::{Locking, Naming, Probe};

/// A sync that takes longer is worth knowing, and one that takes longer still slows work down.
const SYNC_NOTED: Duration = Duration::from_millis(200);
const SYNC_SLOW: Duration = Duration::from_secs(2);
/// How far two clocks may lie apart before it is worth knowing, and before ages of heartbeats are
/// read wrongly.
const SKEW_NOTED_MS: i64 = 1000;
const SKEW_MAX_MS: i64 = 5000;
const MS_IN_NS: i64 = 1_000_000;

/// Whether this user can write; from here on there is a folder for tries.
pub(super) fn writable(patient: &mut Patient) -> Finding {
    let (Some(at), Some(surface)) = (patient.at.clone(), patient.surface.clone()) else {
        patient.probe = Err("there is no directory to try it in".to_owned());
        return Finding::not_checked("there is no directory to try it in");
    };
    let uid = rustix::process::geteuid().as_raw();
    if surface.read_only {
        patient.probe = Err("the file system is mounted read-only".to_owned());
        return Finding::problem(Code::CouldNotCheck, "the file system is mounted read-only: nothing can be pulled")
            .advise("mount it for writing on the host that pulls; gate, verify and status work as it is");
    }
    let found = start(patient, &at);
    match found {
        Ok(probe) => {
            patient.probe = Ok(probe);
            Finding::ok(format!("uid {uid} can write: 4 KiB were written, synced and read again")).value("uid", uid)
        }
        Err(error) => {
            patient.probe = Err("nothing can be written here".to_owned());
            if patient.answers && matches!(error, VolumeError::Denied { .. }) {
                return Finding::note(format!("uid {uid} may not write here, and need not: the owner answers it"));
            }
            Finding::failed(&error)
        }
    }
}

fn start(patient: &Patient, at: &std::path::Path) -> Result<Probe, VolumeError> {
    let probe = Probe::start(at)?;
    probe.write()?;
    if let Some(volume) = &patient.volume {
        for folder in [volume.surface_of_area()?, volume.surface_of_owners()?].into_iter().flatten() {
            folder.check_writable()?;
        }
    }
    Ok(probe)
}

/// How names are given.
pub(super) fn names(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, _| {
        let naming = probe.naming()?;
        let mut missing = Vec::new();
        if !naming.links {
            missing.push("no hard links: an owner's record may be seen half written, and is then waited for");
        }
        if !naming.no_replace {
            missing.push("no rename that refuses a name that is taken: a moment remains between look and rename");
        }
        let finding = if missing.is_empty() {
            Finding::ok("rename, link, and a rename that replaces nothing work")
        } else {
            Finding::note("rename works").items(missing.into_iter().map(str::to_owned))
        };
        let Naming { links, no_replace } = naming;
        Ok(finding.value("links", links).value("rename_without_replacing", no_replace))
    })
}

/// How long it takes until something is durable.
pub(super) fn sync(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, _| {
        let times = probe.syncs()?;
        let file = shown(times.file);
        let slowest = times.file.max(times.folder.unwrap_or_default());
        let found = match times.folder {
            Some(folder) => {
                format!("a small file was durable after {file}, a folder after {}", shown(folder))
            }
            None => format!("a small file was durable after {file}; folders cannot be synced here"),
        };
        let finding = match slowest {
            slow if slow > SYNC_SLOW => Finding::warning(found)
                .advise("every checkpoint and every published file waits for this: look at the disk or its server"),
            slow if slow > SYNC_NOTED || times.folder.is_none() => Finding::note(found),
            _ => Finding::ok(found),
        };
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Ok(finding.value("file_ms", ms(times.file)).value("folder_ms", times.folder.map(ms)))
    })
}

fn shown(time: Duration) -> String {
    if time < Duration::from_millis(1) { "less than 1 ms".to_owned() } else { units::duration(time) }
}

/// Whether writes at offsets arrive where they belong.
pub(super) fn positioned_writes(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, patient| {
        if probe.keeps_positioned_writes()? {
            return Ok(Finding::ok("blocks written out of order were read back right, and the gap as zeros"));
        }
        let found = "blocks written out of order were read back wrong";
        let advice = "do not use this volume: the file system loses writes";
        Ok(match patient.asked.readback {
            Readback::Never => Finding::problem(Code::Corrupt, format!("{found}, and readback = never"))
                .advise("set readback = \"always\" at once")
                .advise(advice),
            _ => Finding::problem(Code::Corrupt, found).advise(advice),
        })
    })
}

/// The file system's clock.
pub(super) fn times(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, _| {
        let clock = probe.clock()?;
        let ahead_ms = clock.ahead_ns / MS_IN_NS;
        let steps = match clock.step_ns {
            Some(step) if step < MS_IN_NS => "counts finer than milliseconds".to_owned(),
            Some(step) if step < 1000 * MS_IN_NS => format!("counts in steps of {} ms", step / MS_IN_NS),
            _ => {
                "counts in steps of a second or so: a new file counts as verified 2 s after its last change".to_owned()
            }
        };
        // A clock of whole seconds is behind by up to one.
        let apart = Duration::from_millis(ahead_ms.unsigned_abs());
        let side = if ahead_ms < 0 { "behind" } else { "ahead of" };
        let found = format!("the file system's clock is {} {side} this machine's", units::duration(apart));
        let advice = "let NTP or chrony set the clocks of both machines";
        let finding = match ahead_ms.abs() {
            0..=SKEW_NOTED_MS => Finding::ok(format!("the file system's clock is this machine's, and {steps}")),
            ..=SKEW_MAX_MS => Finding::note(found).advise(advice),
            _ => Finding::warning(found)
                .item("nothing that is right depends on it: files are dated by their own file system")
                .advise(advice),
        };
        Ok(finding.value("ahead_ms", ahead_ms).value("step_ns", clock.step_ns))
    })
}

/// Whether `flock` does what it says.
pub(super) fn locks(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, patient| {
        let single = patient.surface.as_ref().is_some_and(|surface| surface.kind.is_single_host());
        let safe =
            "nothing that is right depends on locks: owner records, private partials and hashes keep writers apart";
        let advice = "an update or removal cannot see that a launcher has the model open: keep retire_after longer than \
                      a launch takes";
        Ok(match probe.locking()? {
            Locking::Real if single => Finding::ok("flock refuses a second holder").value("flock", "real"),
            Locking::Real => {
                Finding::ok("flock refuses a second holder on this host; other hosts cannot be tried from here")
                    .value("flock", "real")
            }
            Locking::GivenToBoth => Finding::warning("flock gives one lock to two holders at once")
                .item(safe)
                .advise(advice)
                .value("flock", "lies"),
            Locking::None => {
                Finding::warning("flock does not work here").item(safe).advise(advice).value("flock", "none")
            }
        })
    })
}

/// Where the owner's socket will be.
pub(super) fn sockets(patient: &mut Patient) -> Finding {
    let most = limits::SOCKET_PATH_MAX_BYTES;
    if let Some(path) = &patient.asked.socket {
        let (shown, bytes) = (path.display(), path.as_os_str().len());
        return if bytes > most {
            Finding::warning(format!("daemon.socket = {shown} has {bytes} bytes, and {most} are possible"))
                .advise("choose a shorter path; a daemon does not start with this one")
        } else {
            Finding::ok(format!("a daemon answers at {shown}, as was set"))
        };
    }
    attempt(patient, |probe, patient| {
        let bytes = patient.asked.socket_path;
        let moved = "the socket goes to the runtime directory ($XDG_RUNTIME_DIR, else /run/user or /tmp)";
        let finding = if bytes > most {
            Finding::note(format!(
                "the path of a socket here would have {bytes} bytes, and {most} are possible: {moved}"
            ))
        } else if probe.takes_sockets() {
            Finding::ok("a socket can be made here")
        } else {
            Finding::note(format!("no socket can be made on this file system: {moved}"))
        };
        Ok(finding.value("path_bytes", bytes as u64))
    })
}

/// Whether two names may be one.
pub(super) fn similar_names(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, _| {
        let folding = probe.folding()?;
        let found = match (folding.case, folding.form) {
            (false, false) => return Ok(Finding::ok("names that differ are different files")),
            (true, false) => "names that differ only in upper and lower case are one file",
            (false, true) => "names that differ only in their Unicode form are one file",
            (true, true) => "names that differ only in case or Unicode form are one file",
        };
        Ok(Finding::note(found).item("a repository with two such names is refused before its first byte"))
    })
}

/// Whether copies cost room.
pub(super) fn copies(patient: &mut Patient) -> Finding {
    attempt(patient, |probe, _| {
        let shares = probe.shares_blocks()?;
        let found = if shares { "copies share the blocks of their original" } else { "copies take room of their own" };
        Ok(Finding::ok(found).value("reflink", shares))
    })
}

fn attempt(patient: &Patient, check: impl FnOnce(&Probe, &Patient) -> Result<Finding, VolumeError>) -> Finding {
    match &patient.probe {
        Err(why) => Finding::not_checked(why.clone()),
        Ok(probe) => check(probe, patient).unwrap_or_else(|error| Finding::failed(&error)),
    }
}
