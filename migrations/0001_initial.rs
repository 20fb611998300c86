//! Schema 1: one tree for records, one for what describes the database itself.
//!
//! `records` holds jobs, files, histories, origins and progress under the prefixes that
//! `store::keys` documents; `meta` holds the schema's number and the program's version.
//!
//! Frozen: once released, a step is never edited; a change of form is a new step.

use super::Step;

/// Makes the two trees.
pub(in crate::store) const STEP: Step = Step { number: 1, name: "initial", apply };

fn apply(db: &sled::Db) -> Result<(), sled::Error> {
    db.open_tree("records")?;
    db.open_tree("meta")?;
    Ok(())
}
