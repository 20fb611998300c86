//! Room: bytes and names that are left, against what unfinished models will take.

use super::disk::Patient;
use super::finding::Finding;
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::units;
use crate::volume::Volume;
use crate::volume::space::Space;

/// So many names are soon used up by one model.
const INODES_FEW: u64 = 10_000;

/// Free space against the reserve and the unfinished models.
pub(super) fn space(patient: &mut Patient) -> Finding {
    let Some(at) = patient.at.clone() else { return Finding::not_checked("there is no directory to ask about") };
    // A volume that is not there yet will be where its parent is.
    let space = match Volume::open(&at).and_then(|here| here.space()) {
        Ok(space) => space,
        Err(error) => return Finding::failed(&error),
    };
    let reserve = patient.asked.reserve.unwrap_or_else(|| space.default_reserve());
    let lacking = match patient.models() {
        Ok(models) => Ok(models.iter().map(|model| (model.name.to_string(), model.lacking)).collect::<Vec<_>>()),
        Err(error) => Err(in_words(error)),
    };
    let finding = match lacking {
        Ok(lacking) => judge(space, reserve, lacking.into_iter().filter(|(_, bytes)| *bytes > 0).collect()),
        Err(why) => judge(space, reserve, Vec::new()).item(format!("what unfinished models need is not known: {why}")),
    };
    let network = patient.surface.as_ref().is_some_and(|surface| !surface.kind.is_single_host());
    let quota = "a quota of this user or group may be smaller, and is not seen from here";
    if network { finding.item(quota) } else { finding }
}

fn judge(space: Space, reserve: u64, lacking: Vec<(String, u64)>) -> Finding {
    let needed = lacking.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let usable = space.free.saturating_sub(reserve);
    let free = format!("{} of {} free", units::bytes(space.free), units::bytes(space.total));
    let kept = format!("{} stay in reserve", units::bytes(reserve));
    let free_some = "free some space, or take a model off with `muster remove`; a smaller --reserve helps a little";
    let finding = if usable == 0 {
        Finding::problem(Code::NoSpace, format!("{free}, and {kept}: there is no room for a file")).advise(free_some)
    } else if needed > usable {
        let found = format!("{free}, {kept}, and unfinished models still need {}", units::bytes(needed));
        Finding::problem(Code::NoSpace, found)
            .advise(format!("{} more are needed: {free_some}", units::bytes(needed - usable)))
    } else if needed > 0 {
        Finding::ok(format!("{free}, {kept}; unfinished models need {} of it", units::bytes(needed)))
    } else {
        Finding::ok(format!("{free}, {kept}"))
    };
    finding
        .items(lacking.into_iter().map(|(name, bytes)| format!("{name} still needs {}", units::bytes(bytes))))
        .value("free_bytes", space.free)
        .value("total_bytes", space.total)
        .value("reserve_bytes", reserve)
        .value("needed_bytes", needed)
}

/// Names that may still be given.
pub(super) fn inodes(patient: &mut Patient) -> Finding {
    let Some(surface) = &patient.surface else { return Finding::not_checked("there is no directory to ask about") };
    let Some((free, all)) = surface.inodes else {
        return Finding::ok("this file system does not count files");
    };
    let found = format!("{free} of {all} inodes are free");
    let advice = "remove files: a file system can be full of names before it is full of bytes";
    let finding = match free {
        0 => Finding::problem(Code::NoSpace, format!("{found}: no file can be made")).advise(advice),
        few if few < INODES_FEW => Finding::warning(found).advise(advice),
        _ => Finding::ok(found),
    };
    finding.value("free", free).value("total", all)
}

/// Bytes that a file still takes: its size, less the blocks that its partials have.
pub(super) fn lacks(size: u64, allocated: Option<u64>) -> u64 {
    size.saturating_sub(allocated.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::finding::{Section, outcome};
    use super::*;

    #[test]
    fn room_is_judged_by_reserve_and_by_what_is_unfinished() {
        let space = Space { free: 100, total: 1000 };
        let judge = |reserve, lacking: &[u64]| {
            let lacking = lacking.iter().map(|bytes| ("m".to_owned(), *bytes)).collect();
            outcome(&[judge(space, reserve, lacking).of(Section::Volume, "space")])
        };
        assert_eq!(judge(10, &[]), None);
        assert_eq!(judge(10, &[40, 50]), None);
        assert_eq!(judge(10, &[41, 50]), Some(Code::NoSpace));
        assert_eq!(judge(100, &[]), Some(Code::NoSpace));
        assert_eq!((lacks(10, None), lacks(10, Some(4)), lacks(10, Some(40))), (10, 6, 0));
    }
}
