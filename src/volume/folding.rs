//! Whether a directory takes two names for one.
//!
//! No call tells, so it is tried: with a file of ours, in the folder that is ours.

use super::dir::Dir;
use super::error::Result;
use super::layout::Volume;
use super::small_file::Temp;
use crate::core::fold::Folding;
use crate::core::model_name::ModelName;

/// A letter whose two Unicode forms differ, in one code point and in two.
const COMPOSED: &str = "\u{e9}";
const DECOMPOSED: &str = "e\u{301}";

impl Volume {
    /// How the directory of a model compares names, or will: one that is not there yet is made
    /// beside our own folder and inherits what that one inherited.
    pub fn folding(&self, name: &ModelName) -> Result<Folding> {
        match self.model(name)? {
            Some(model) => of(&model.make_own()?),
            None => of(&self.area()?),
        }
    }
}

/// How a folder of ours compares names.
pub(super) fn of(dir: &Dir) -> Result<Folding> {
    let is_there = |name: &str| Ok(dir.look(name)?.is_some());
    let temp = Temp::create(dir, "Folding")?;
    let case = is_there(&temp.name().to_lowercase())?;
    // A file system that refuses such a name cannot mistake it either.
    let form = match Temp::create(dir, COMPOSED) {
        Ok(temp) => is_there(&temp.name().replace(COMPOSED, DECOMPOSED))?,
        Err(_) => false,
    };
    Ok(Folding { case, form })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_directory_folds_nothing_and_keeps_nothing_of_the_try() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let by_hand = {
            std::fs::write(place.path().join("A"), b"").unwrap();
            let folds = place.path().join("a").exists();
            std::fs::remove_file(place.path().join("A")).unwrap();
            folds
        };
        assert_eq!(of(&dir).unwrap().case, by_hand);
        assert!(dir.list().unwrap().is_empty());
    }
}
