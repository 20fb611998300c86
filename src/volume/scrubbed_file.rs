//! The record of what was read when, beside the receipt: `.muster/scrubbed.json`.
//!
//! It is a help and no proof, so one that cannot be understood is none, and is written anew. The format is
//! `core::scrubbed`'s.

use super::error::Result;
use super::model_dir::ModelDir;
use super::{identity, small_file};
use crate::core::identity::Identity;
use crate::core::scrubbed::Scrubbed;

const NAME: &str = "scrubbed.json";
/// Most bytes of it that are read: a million files fit.
const LIMIT: u64 = 256 << 20;

impl ModelDir {
    /// What was read of this directory when, and what was found.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn scrubbed(&self) -> Result<Scrubbed> {
        let Some(own) = self.own()? else { return Ok(Scrubbed::default()) };
        let bytes = small_file::read(&own, NAME, LIMIT)?;
        Ok(bytes.as_deref().and_then(Scrubbed::from_json).unwrap_or_default())
    }

    /// The identity of the record, to notice a new one without reading it; `None` when there is none.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub fn scrubbed_identity(&self) -> Result<Option<Identity>> {
        let Some(own) = self.own()? else { return Ok(None) };
        Ok(own.look(NAME)?.map(|stat| identity::of(&stat)))
    }

    /// Writes the record.
    ///
    /// # Errors
    /// Where nothing can be written.
    pub fn store_scrubbed(&self, record: &Scrubbed) -> Result<()> {
        small_file::store(&self.make_own()?, NAME, &record.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::model;
    use super::*;

    #[test]
    fn a_record_that_is_none_is_written_anew() {
        let (_place, model) = model();
        assert_eq!((model.scrubbed().unwrap(), model.scrubbed_identity().unwrap()), (Scrubbed::default(), None));
        std::fs::write(model.path().join(".muster/scrubbed.json"), b"{").unwrap();
        assert_eq!(model.scrubbed().unwrap(), Scrubbed::default());
        model.store_scrubbed(&Scrubbed::default()).unwrap();
        assert!(model.scrubbed_identity().unwrap().is_some_and(|identity| identity.size > 10));
    }
}
