//! One file a verb: arguments and context in, result on the printer, [`Exit`] out.
//!
//! Adding a verb is a variant in `args::Verb`, a file here and a line below.

#![allow(clippy::needless_pass_by_value, reason = "a verb owns its arguments and its context, used up or not")]

pub mod accept;
pub mod adopt;
pub mod cancel;
pub mod completions;
pub mod daemon;
pub mod demo;
pub mod doctor;
pub mod gate;
pub mod history;
pub mod keygen;
pub mod limit;
pub mod list;
pub mod man;
pub mod mirror;
pub mod pause;
pub mod pull;
pub mod remove;
pub mod repair;
pub mod resume;
pub mod schema;
pub mod scrub;
pub mod sign;
pub mod status;
pub mod verify;

use super::Context;
use super::args::Verb;
use super::exit::{Exit, Failure};

/// Does what the verb says.
///
/// # Errors
/// What the user is told, or that stdout was closed.
pub fn dispatch(verb: Verb, context: Context) -> Result<Exit, Failure> {
    match verb {
        Verb::Pull(args) => pull::run(args, context),
        Verb::Adopt(args) => adopt::run(args, context),
        Verb::Status(args) => status::run(args, context),
        Verb::List(args) => list::run(args, context),
        Verb::History(args) => history::run(args, context),
        Verb::Gate(args) => gate::run(args, context),
        Verb::Verify(args) => verify::run(args, context),
        Verb::Repair(args) => repair::run(args, context),
        Verb::Scrub(args) => scrub::run(args, context),
        Verb::Accept(args) => accept::run(args, context),
        Verb::Sign(args) => sign::run(args, context),
        Verb::Keygen(args) => keygen::run(args, context),
        Verb::Pause(args) => pause::run(args, context),
        Verb::Resume(args) => resume::run(args, context),
        Verb::Cancel(args) => cancel::run(args, context),
        Verb::Remove(args) => remove::run(args, context),
        Verb::Limit(args) => limit::run(args, context),
        Verb::Mirror(args) => mirror::run(args, context),
        Verb::Daemon(args) => daemon::run(args, context),
        Verb::Doctor(args) => doctor::run(args, context),
        Verb::Demo(args) => demo::run(args, context),
        Verb::Schema(args) => schema::run(args, context),
        Verb::Completions(args) => completions::run(args, context),
        Verb::Man(args) => man::run(args, context),
    }
}
