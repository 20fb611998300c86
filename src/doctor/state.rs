//! The state database, looked at by a copy.

use super::disk::Patient;
use super::finding::Finding;
use super::owner::who;
use crate::clock;
use crate::core::causes::in_words;
use crate::core::units;
use crate::store::StoreError;
use crate::store::examine::{Examined, Health, examine};

/// How the database is.
pub(super) fn store(patient: &mut Patient) -> Finding {
    let Some(dir) = directory(patient) else { return Finding::not_checked("the volume does not exist") };
    if patient.is_owned() {
        let who = patient.owner().and_then(|owner| owner.record.as_ref()).map_or("the owner".to_owned(), who);
        return Finding::not_checked(format!("in use by {who}: a database that is open is left alone"));
    }
    let shown = dir.display();
    let asked = &patient.asked;
    let Examined { health, bytes, undecodable, .. } = match examine(&dir, &asked.scratch, &asked.program, clock::now())
    {
        Ok(examined) => examined,
        Err(error) => return unknown(&error),
    };
    let size = units::bytes(bytes);
    let rebuilt = "nothing has to be done: the next owner sets it aside and rebuilds it from the volume; no byte is fetched again";
    let finding = match health {
        Health::Absent => Finding::ok(format!("none at {shown}; the next owner makes one")),
        Health::Empty => Finding::ok(format!("{shown}: there is nothing in it")),
        Health::Sound if undecodable == 0 => Finding::ok(format!("{shown}: {size}, every record can be read")),
        Health::Sound => {
            let records = units::count(undecodable, "record");
            Finding::note(format!("{shown}: {size}, {records} of another version are skipped"))
        }
        Health::Unusable(why) => Finding::warning(format!("{shown} is unusable: {}", in_words(&why))).advise(rebuilt),
        Health::InUse => Finding::not_checked(format!("{shown} is in use: a database that is open is left alone")),
        Health::TooLarge => Finding::not_checked(format!("{shown} has {size}: too large to be copied for a look"))
            .advise("with no owner running it may be deleted at any time"),
    };
    finding.value("bytes", bytes).value("records_skipped", undecodable)
}

/// Databases that earlier owners could not use.
pub(super) fn set_aside(patient: &mut Patient) -> Finding {
    let Some(dir) = directory(patient) else { return Finding::not_checked("the volume does not exist") };
    let aside = match crate::store::examine::set_aside(&dir) {
        Ok(aside) => aside,
        Err(error) => return unknown(&error),
    };
    let count = aside.paths.len() as u64;
    let advice = "muster never deletes them: remove them when nobody wants to look at them";
    let found = format!("{} set aside, {}", units::count(count, "unusable database"), units::bytes(aside.bytes));
    let finding = match count {
        0 => Finding::ok("no database was set aside"),
        _ if aside.crowded => Finding::warning(format!("{found}: no further one can be")).advise(advice),
        _ => Finding::note(found).advise(advice),
    };
    let items = aside.paths.iter().map(|path| path.display().to_string());
    finding.items(items).value("databases", count).value("bytes", aside.bytes)
}

fn directory(patient: &Patient) -> Option<std::path::PathBuf> {
    let on_volume = || Some(patient.volume.as_ref()?.path().join(".muster/state"));
    patient.asked.state_dir.clone().or_else(on_volume)
}

fn unknown(error: &StoreError) -> Finding {
    Finding::not_checked(in_words(error))
}
