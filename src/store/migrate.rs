//! Brings a database to the schema this program writes.
//!
//! Owns the list of steps and the record of the schema. The files of the steps lie in
//! `migrations/` and are compiled in. Invariant: the schema's number is written after the step
//! that leads to it, and the engine keeps the order of writes, so a crash in between repeats the
//! step. Hence every step must bear being applied twice.

use super::error::{Fault, Unusable};

#[path = "../../migrations/0001_initial.rs"]
mod m0001_initial;

/// All steps, oldest first; the place of a step is its number less one.
const STEPS: &[Step] = &[m0001_initial::STEP];

/// The schema this program writes.
pub(super) const SCHEMA: u32 = STEPS[STEPS.len() - 1].number;

const META: &str = "meta";
const SCHEMA_KEY: &str = "schema";
const PROGRAM_KEY: &str = "program";

/// One step from a schema to the next.
pub(in crate::store) struct Step {
    /// The schema it leads to.
    pub(in crate::store) number: u32,
    /// For people.
    pub(in crate::store) name: &'static str,
    /// The work. Applying it twice does no harm.
    pub(in crate::store) apply: fn(&sled::Db) -> Result<(), sled::Error>,
}

const _: () = {
    let mut index = 0;
    while index < STEPS.len() {
        assert!(STEPS[index].number as usize == index + 1, "steps are numbered from 1 without a gap");
        index += 1;
    }
};

/// What a database says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Written {
    /// Its schema; 0 for one that was just made.
    pub(super) schema: u32,
    /// The program that wrote it last.
    pub(super) program: Option<String>,
}

/// Reads what the database says about itself.
pub(super) fn written(db: &sled::Db) -> Result<Written, sled::Error> {
    let meta = db.open_tree(META)?;
    let text = |key| Ok::<_, sled::Error>(meta.get(key)?.and_then(|value| String::from_utf8(value.to_vec()).ok()));
    // A number that is none counts as 0: applying every step again does no harm.
    let schema = text(SCHEMA_KEY)?.and_then(|number| number.parse().ok()).unwrap_or(0);
    Ok(Written { schema, program: text(PROGRAM_KEY)? })
}

/// Applies the missing steps and records schema and program.
///
/// # Errors
/// [`Unusable::Newer`] before anything is written; [`Unusable::Unreadable`].
pub(super) fn migrate(db: &sled::Db, program: &str) -> Result<(), Unusable> {
    apply(db, STEPS, program)
}

fn apply(db: &sled::Db, steps: &[Step], program: &str) -> Result<(), Unusable> {
    let known = steps.last().map_or(0, |step| step.number);
    let found = written(db).map_err(unreadable)?.schema;
    if found > known {
        return Err(Unusable::Newer { found, known });
    }
    for step in steps.iter().filter(|step| step.number > found) {
        tracing::debug!(number = step.number, name = step.name, "migrating the state database");
        (step.apply)(db).and_then(|()| record(db, SCHEMA_KEY, &step.number.to_string())).map_err(unreadable)?;
    }
    record(db, PROGRAM_KEY, program).map_err(unreadable)
}

fn record(db: &sled::Db, key: &str, value: &str) -> Result<(), sled::Error> {
    let meta = db.open_tree(META)?;
    if meta.get(key)?.is_some_and(|old| old == value.as_bytes()) {
        return Ok(());
    }
    db.flush()?;
    meta.insert(key, value)?;
    db.flush().map(drop)
}

fn unreadable(error: sled::Error) -> Unusable {
    Unusable::Unreadable(Fault::Engine(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> sled::Db {
        sled::Config::new().temporary(true).flush_every_ms(None).cache_capacity(1 << 20).open().unwrap()
    }

    const SECOND: Step = Step {
        number: 2,
        name: "second",
        apply: |db| {
            db.insert("second", "applied")?;
            Ok(())
        },
    };
    const BROKEN: Step = Step { number: 2, name: "broken", apply: |_| Err(sled::Error::Unsupported("test".into())) };

    #[test]
    fn missing_steps_are_applied_in_order_and_recorded() {
        let db = database();
        assert_eq!(written(&db).unwrap(), Written { schema: 0, program: None });
        migrate(&db, "muster 1").unwrap();
        assert_eq!(written(&db).unwrap(), Written { schema: SCHEMA, program: Some("muster 1".into()) });
        apply(&db, &[m0001_initial::STEP, SECOND], "muster 2").unwrap();
        assert_eq!(written(&db).unwrap(), Written { schema: 2, program: Some("muster 2".into()) });
        assert!(db.contains_key("second").unwrap());
    }

    #[test]
    fn a_step_that_failed_is_applied_again() {
        let db = database();
        assert!(apply(&db, &[m0001_initial::STEP, BROKEN], "muster 2").is_err());
        assert_eq!(written(&db).unwrap(), Written { schema: 1, program: None });
        apply(&db, &[m0001_initial::STEP, SECOND], "muster 2").unwrap();
        assert_eq!(written(&db).unwrap().schema, 2);
    }

    #[test]
    fn a_newer_schema_is_refused_before_anything_is_written() {
        let db = database();
        apply(&db, &[m0001_initial::STEP, SECOND], "muster 2").unwrap();
        assert!(matches!(migrate(&db, "muster 1"), Err(Unusable::Newer { found: 2, known: 1 })));
        assert_eq!(written(&db).unwrap().program.as_deref(), Some("muster 2"));
    }
}
