//! `muster schema`: prints the JSON schemas of muster's output and files.

use crate::cli::Context;
use crate::cli::args::SchemaArgs;
use crate::cli::exit::{CliError, Exit, Failure};

/// Name and text of every schema. A new one is a file in `src/api/schema/` and a line here:
/// `("status", include_str!("../../api/schema/status.v1.json"))`.
pub const SCHEMAS: &[(&str, &str)] = &[
    ("accept", include_str!("../../api/schema/accept.v1.json")),
    ("doctor", include_str!("../../api/schema/doctor.v1.json")),
    ("error", include_str!("../../api/schema/error.v1.json")),
    ("event", include_str!("../../api/schema/event.v1.json")),
    ("gate", include_str!("../../api/schema/gate.v1.json")),
    ("history", include_str!("../../api/schema/history.v1.json")),
    ("keygen", include_str!("../../api/schema/keygen.v1.json")),
    ("limit", include_str!("../../api/schema/limit.v1.json")),
    ("repair", include_str!("../../api/schema/repair.v1.json")),
    ("sign", include_str!("../../api/schema/sign.v1.json")),
    ("scrub", include_str!("../../api/schema/scrub.v1.json")),
    ("status", include_str!("../../api/schema/status.v1.json")),
    ("verify", include_str!("../../api/schema/verify.v1.json")),
];

/// Prints one schema, or the names of all.
///
/// # Errors
/// A usage error for a name that does not exist.
pub fn run(args: SchemaArgs, context: Context) -> Result<Exit, Failure> {
    let names: Vec<_> = SCHEMAS.iter().map(|(name, _)| *name).collect();
    match args.name {
        Some(name) => {
            let found = SCHEMAS.iter().find(|(known, _)| *known == name);
            let unknown = || {
                CliError::usage(format!("no schema is called `{name}`")).hint(format!("schemas: {}", names.join(", ")))
            };
            let (_, text) = found.ok_or_else(unknown)?;
            context.ui.result(text.trim_end())?;
        }
        None if context.ui.is_json() => context.ui.result_json(&names)?,
        None => context.ui.result(&names.join("\n"))?,
    }
    Ok(Exit::Success)
}
