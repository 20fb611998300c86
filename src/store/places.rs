//! The places where a state may lie, and which of them is used.
//!
//! Invariants: the state that was used last is the one that is used next, wherever it lies, since
//! an older one would bring back what was ended since; one that somebody holds or that cannot be
//! used is left alone (P5); an owner that finds no place for a state works without one.

use std::cmp::Reverse;
use std::fmt;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};

use super::directory::{SetAside, beside, note_in};
use super::{Opened, Store, StoreError};
use crate::core::causes::in_words;

/// States that are tried beside each other.
const PLACES: u32 = 4;

/// The state that an owner works with.
pub struct Found {
    /// Its store, or one that remembers nothing.
    pub store: Store,
    /// What somebody should know: of the store that was set aside and of places that could not be
    /// used. To be logged and shown.
    pub notices: Vec<Notice>,
}

/// Something unusual about the state.
#[derive(Debug)]
pub enum Notice {
    /// A store could not be used and was set aside.
    SetAside(SetAside),
    /// A place could not be used, and another was tried.
    PassedOver(StoreError),
    /// There is no store at all.
    Nowhere,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SetAside(SetAside { path, why, written_by }) => {
                let whose = written_by.as_ref().map(|program| format!(" of {program}")).unwrap_or_default();
                let (why, path) = (in_words(why), path.display());
                write!(f, "the state{whose} could not be used: {why}; it was set aside untouched as {path}, and a new one is made from the volume")
            }
            Self::PassedOver(error) => write!(f, "a state was passed over: {}", in_words(error)),
            Self::Nowhere => {
                f.write_str("no state can be kept anywhere: histories, and jobs without a directory, are forgotten when this process ends")
            }
        }
    }
}

impl Store {
    /// Opens the state at `place` or beside it; a damaged one is set aside, and where there is no
    /// place for a state nothing is remembered.
    #[must_use]
    pub fn find(place: &Path, program: &str, now: Timestamp) -> Found {
        let mut places: Vec<(PathBuf, Option<Timestamp>)> = (1..=PLACES)
            .map(|number| numbered(place, number))
            .map(|dir| (dir.clone(), note_in(&dir).map(|note| note.opened_at)))
            .collect();
        places.sort_by_key(|(_, opened_at)| Reverse(*opened_at));
        // Whatever the clock says, this one is the newest.
        let after = |last: Timestamp| last.checked_add(SignedDuration::from_nanos(1)).unwrap_or(last);
        let newest = places[0].1;
        let at = newest.map_or(now, |newest| now.max(after(newest)));
        let mut notices = Vec::new();
        for (dir, opened_at) in places {
            if opened_at < newest && opened_at.is_some() {
                notices.push(Notice::PassedOver(StoreError::Stale { dir }));
                continue;
            }
            match Store::open(&dir, program, at) {
                Ok(Opened { store, notice, .. }) => {
                    notices.extend(notice.map(Notice::SetAside));
                    return Found { store, notices };
                }
                Err(error) => notices.push(Notice::PassedOver(error)),
            }
        }
        notices.push(Notice::Nowhere);
        Found { store: Store::none(), notices }
    }
}

/// The first place has the name itself.
fn numbered(place: &Path, number: u32) -> PathBuf {
    if number > 1 { beside(place, &format!(".{number}")) } else { place.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::super::StoreError;
    use super::super::tests::{PROGRAM, job};
    use super::*;

    const START: Timestamp = Timestamp::UNIX_EPOCH;

    fn names(found: &Found) -> Vec<String> {
        found.store.jobs().unwrap().iter().map(|job| job.spec.name.to_string()).collect()
    }

    #[test]
    fn the_state_that_was_used_last_is_used_next_whatever_the_clock_says() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("my.state");
        let late = Timestamp::from_second(1_000_000).unwrap();
        let found = Store::find(&place, PROGRAM, late);
        assert!(found.notices.is_empty());
        found.store.put_job(&job("old")).unwrap();
        drop(found);
        let held = File::open(place.join("lock")).unwrap();
        held.lock().unwrap();
        // The clock was set back meanwhile.
        let found = Store::find(&place, PROGRAM, START);
        assert!(matches!(found.notices[..], [Notice::PassedOver(StoreError::Locked { .. })]), "{:?}", found.notices);
        assert!(root.path().join("my.state.2/db").exists(), "its name keeps what looks like an extension");
        found.store.put_job(&job("new")).unwrap();
        drop((found, held));
        let found = Store::find(&place, PROGRAM, START);
        assert!(found.notices.is_empty(), "{:?}", found.notices);
        assert_eq!(names(&found), ["new"]);
        drop(found);
        // The newest is out of reach, and the old one would bring back what was ended since.
        let held = File::open(root.path().join("my.state.2/lock")).unwrap();
        held.lock().unwrap();
        let found = Store::find(&place, PROGRAM, START);
        assert!(names(&found).is_empty());
        assert!(matches!(found.notices[..], [_, Notice::PassedOver(StoreError::Stale { .. })]), "{:?}", found.notices);
    }

    #[test]
    fn without_any_place_a_store_remembers_nothing_and_says_so_once() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("file"), "").unwrap();
        let found = Store::find(&root.path().join("file/state"), PROGRAM, START);
        assert!(matches!(found.notices.last(), Some(Notice::Nowhere)));
        let refused = found.store.put_job(&job("a")).unwrap_err();
        assert!(refused.is_known(), "{refused}");
        assert!(found.store.jobs().is_err() && found.store.flush().is_err());
    }
}
