//! Who owns the volume, and whether anything of it still moves.

use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use jiff::SignedDuration;

use super::disk::Patient;
use super::finding::Finding;
use crate::clock;
use crate::core::status::Report;
use crate::core::units;
use crate::volume::Volume;
use crate::volume::owner::{Glance, LEASE, Liveness, Reading, Record, SECOND_LOOK, Standing, liveness};

/// The owner, alive or not.
pub(super) fn owner(patient: &mut Patient) -> Finding {
    let Some(volume) = &patient.volume else { return Finding::not_checked("the volume does not exist") };
    let owners = match &patient.owners {
        Ok(owners) => owners,
        Err(why) => {
            return Finding::warning(format!("the owner records cannot be read: {why}"))
                .advise("let every user read .muster/owners on the volume (mode 0755)");
        }
    };
    let Some(glance) = owners.last() else { return Finding::ok("nobody owned this volume yet") };
    let Some(record) = &glance.record else {
        let found =
            format!("the record of owner {} cannot be read, so nobody knows whether it lives", glance.seen.epoch());
        return Finding::warning(found)
            .advise(format!("the next owner waits {} s and takes the volume if nothing moves", LEASE.as_secs()));
    };
    judge(volume, glance, record)
        .value("epoch", record.epoch)
        .value("host", record.host.as_str())
        .value("pid", record.pid)
        .value("program", record.program.as_str())
        .value("foreground", record.foreground)
        .value("heartbeat_age_s", record.age(clock::now()).as_secs())
}

fn judge(volume: &Volume, glance: &Glance, record: &Record) -> Finding {
    let who = who(record);
    let age = record.age(clock::now());
    let beat = format!("last heartbeat {}", ago(age));
    match glance.standing {
        Standing::Dead { .. } if record.ended => {
            Finding::ok(format!("nobody owns it; the last, {who}, ended in order {}", ago(age))).value("state", "ended")
        }
        Standing::Dead { .. } => Finding::note(format!("nobody owns it; {who} died without a word, {beat}"))
            .advise("the next `muster pull` or daemon goes on where it was")
            .value("state", "dead"),
        Standing::Alive if is_fresh(age) => {
            Finding::ok(format!("{who} owns it, {beat}, epoch {}", record.epoch)).value("state", "alive")
        }
        standing => match moves(volume, standing == Standing::Alive, age) {
            Liveness::Alive => {
                Finding::ok(format!("{who} owns it, {beat}, epoch {}", record.epoch)).value("state", "alive")
            }
            Liveness::ClocksDiffer => {
                Finding::warning(format!("{who} owns it and lives, and its clock is not ours: {beat}"))
                    .advise("let NTP or chrony set the clocks of both machines")
                    .value("state", "alive")
            }
            Liveness::Dead | Liveness::Suspect if standing == Standing::Alive => Finding::warning(format!(
                "{who} owns it, runs and does nothing: {beat}"
            ))
            .advise(format!(
                "it may be stopped (SIGSTOP), or wait for a disk: look with `ps -o stat,wchan -p {}`; after {} s \
                         of silence another may take the volume",
                record.pid,
                LEASE.as_secs()
            ))
            .value("state", "silent"),
            Liveness::Dead | Liveness::Suspect => Finding::warning(format!("{who} owned it and may be dead: {beat}"))
                .advise(format!(
                    "look on {}; if it is gone, the next owner waits {} s and takes the volume",
                    record.host,
                    LEASE.as_secs()
                ))
                .value("state", "suspect"),
        },
    }
}

/// Whether the owner's status moves. A heartbeat that is not older than it may be needs no look.
fn moves(volume: &Volume, runs: bool, age: SignedDuration) -> Liveness {
    let status = || serde_json::from_slice::<Report>(&volume.status().ok()??).ok();
    let reading = |report: Report| Reading {
        pulse: report.written_at.as_millisecond().unsigned_abs(),
        age: clock::now().duration_since(report.written_at),
    };
    let Some(first) = status().map(reading) else {
        return if is_fresh(age) { Liveness::Alive } else { Liveness::Suspect };
    };
    let judged = liveness(first, None);
    // The status is written once a second: if it is fresh, so is its writer. It may be another's.
    if judged == Liveness::Alive && !runs && is_fresh(age) {
        return judged;
    }
    sleep(SECOND_LOOK);
    liveness(first, status().map(reading).or(Some(first)))
}

fn is_fresh(age: SignedDuration) -> bool {
    let lease = SignedDuration::try_from(LEASE).unwrap_or(SignedDuration::MAX);
    age <= lease && age >= SignedDuration::from_secs(-5)
}

/// Whether this user may talk to the owner.
pub(super) fn socket(patient: &mut Patient) -> Finding {
    let living = patient.owner().filter(|owner| !owner.is_dead());
    let Some(record) = living.and_then(|owner| owner.record.as_ref()) else {
        return Finding::ok("no owner, so no socket");
    };
    let Some(socket) = &record.socket else {
        return Finding::note(format!("{} has no socket: it cannot be asked, and status reads its file", who(record)));
    };
    if !is_here(record) {
        let found =
            format!("{} is on another host: it cannot be asked from here, and status reads its file", who(record));
        return Finding::note(found);
    }
    match UnixStream::connect(socket) {
        Ok(_) => Finding::ok(format!("the owner answers at {socket}")),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            Finding::note(format!("this user may not use the owner's socket {socket}; status reads its file"))
                .advise("to steer its jobs, be in the daemon's api_group")
        }
        Err(error) => Finding::warning(format!("the owner does not answer at {socket}: {error}"))
            .advise("it may run in another container: mount its runtime directory too, or set daemon.socket"),
    }
}

/// Records of the past.
pub(super) fn earlier(patient: &mut Patient) -> Finding {
    if patient.volume.is_none() {
        return Finding::not_checked("the volume does not exist");
    }
    let Ok(owners) = &patient.owners else { return Finding::not_checked("the owner records cannot be read") };
    let earlier = &owners[..owners.len().saturating_sub(1)];
    let unreadable = earlier.iter().filter(|glance| glance.record.is_none()).count() as u64;
    let last = owners.last().map(|glance| glance.seen.epoch());
    if last == Some(u64::MAX) {
        return Finding::problem(crate::core::code::Code::Held, format!("an owner record has the number {}", u64::MAX))
            .advise("no muster wrote it: remove that file from .muster/owners");
    }
    let found = match earlier.len() as u64 {
        0 => "no records of earlier owners".to_owned(),
        count => format!("{} of earlier owners, kept for those who find their partials", units::count(count, "record")),
    };
    let finding = match unreadable {
        0 => Finding::ok(found),
        count => Finding::note(found).item(format!("{} cannot be read", units::count(count, "record"))),
    };
    finding.value("records", earlier.len() as u64).value("highest_epoch", last)
}

/// Whether the owner on this host lets this user in.
pub(super) fn answers(glance: &Glance) -> bool {
    let record = glance.record.as_ref().filter(|record| !glance.is_dead() && is_here(record));
    let socket = record.and_then(|record| record.socket.as_ref());
    socket.is_some_and(|socket| UnixStream::connect(socket).is_ok())
}

fn is_here(record: &Record) -> bool {
    let ours = crate::volume::owner::ProcessFacts::read().boot_id;
    !ours.is_empty() && record.boot_id == ours
}

/// Who a record is of, for people.
pub(super) fn who(record: &Record) -> String {
    let kind = if record.foreground { "a pull, " } else { "a daemon, " };
    format!("{kind}process {} on {}", record.pid, record.host)
}

fn ago(age: SignedDuration) -> String {
    match Duration::try_from(age) {
        Ok(age) => format!("{} ago", units::duration(age)),
        Err(_) => format!("{} in the future by this clock", units::duration(age.unsigned_abs())),
    }
}
