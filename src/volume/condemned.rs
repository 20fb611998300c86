//! Files whose bytes were found wrong where their identity says nothing: `.muster/wrong.json`.
//!
//! Invariant (P2): a record of an older proof is believed no more for a file that is listed here, whoever
//! reads it from whichever receipt or store. A file is listed by its identity before its receipt is set
//! aside, so a crash between the two forgets nothing; another file under the name is another matter, and
//! so is this one once it was hashed again and a receipt written.

use serde::{Deserialize, Serialize};

use super::error::Result;
use super::model_dir::ModelDir;
use super::small_file;
use crate::core::identity::Identity;
use crate::core::repo_path::RepoPath;

const NAME: &str = "wrong.json";
const SCHEMA: u32 = 1;

/// Files that are believed nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condemned {
    /// None.
    #[default]
    Nothing,
    /// These, as they were.
    Files(Vec<CondemnedFile>),
    /// The list cannot be understood, so it could be any.
    Everything,
}

/// A file whose bytes are wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CondemnedFile {
    /// The file.
    pub path: RepoPath,
    /// As it was when its bytes were read.
    pub identity: Identity,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    schema: u32,
    files: Vec<CondemnedFile>,
}

impl Condemned {
    /// Whether a proof of this file counts for nothing.
    #[must_use]
    pub fn has(&self, path: &RepoPath, identity: &Identity) -> bool {
        match self {
            Self::Nothing => false,
            Self::Files(files) => files.iter().any(|file| file.path == *path && file.identity == *identity),
            Self::Everything => true,
        }
    }
}

impl ModelDir {
    /// The files that were found wrong and are there still, as far as is known. Creates nothing.
    ///
    /// # Errors
    /// When the list cannot be read.
    pub fn condemned(&self) -> Result<Condemned> {
        let Some(bytes) = self.read_own(NAME)? else { return Ok(Condemned::Nothing) };
        let stored: Option<Stored> = serde_json::from_slice(&bytes).ok();
        let known = stored.filter(|stored| stored.schema == SCHEMA);
        Ok(known.map_or(Condemned::Everything, |stored| Condemned::Files(stored.files)))
    }

    /// Adds files to those that are believed nothing, durably.
    ///
    /// # Errors
    /// When the list cannot be written.
    pub fn condemn(&self, files: impl IntoIterator<Item = (RepoPath, Identity)>) -> Result<()> {
        let mut all = match self.condemned()? {
            // Every file stays condemned.
            Condemned::Everything => return Ok(()),
            Condemned::Nothing => Vec::new(),
            Condemned::Files(files) => files,
        };
        let before = all.len();
        for (path, identity) in files {
            let file = CondemnedFile { path, identity };
            if !all.contains(&file) {
                all.push(file);
            }
        }
        if all.len() == before {
            return Ok(());
        }
        let json = serde_json::to_vec_pretty(&Stored { schema: SCHEMA, files: all });
        small_file::store(&self.make_own()?, NAME, &json.unwrap_or_default())
    }

    /// Forgets them: every file has been hashed since, and there is a receipt.
    ///
    /// # Errors
    /// When the list cannot be removed.
    pub fn pardon(&self) -> Result<()> {
        match self.condemned()? {
            Condemned::Nothing => Ok(()),
            _ => self.remove_own(NAME).map(drop),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::model;
    use super::*;

    #[test]
    fn a_file_is_condemned_as_it_was_and_a_garbled_list_condemns_all() {
        let (_place, model) = model();
        let (a, b) = (RepoPath::parse("a").unwrap(), RepoPath::parse("sub/b").unwrap());
        let was = Identity { inode: 1, size: 2, mtime_ns: 3, ctime_ns: 4 };
        let now = Identity { ctime_ns: 5, ..was };
        assert_eq!(model.condemned().unwrap(), Condemned::Nothing);
        model.pardon().unwrap();
        model.condemn([(a.clone(), was)]).unwrap();
        model.condemn([(b.clone(), was), (a.clone(), was)]).unwrap();
        let condemned = model.condemned().unwrap();
        assert!(condemned.has(&a, &was) && condemned.has(&b, &was));
        assert!(!condemned.has(&a, &now), "it is another file");
        std::fs::write(model.path().join(".muster/wrong.json"), b"{").unwrap();
        assert!(model.condemned().unwrap().has(&a, &now));
        model.pardon().unwrap();
        assert!(!model.condemned().unwrap().has(&a, &was));
    }
}
