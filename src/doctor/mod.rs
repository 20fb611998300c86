//! What `muster doctor` looks at: a volume, who owns it, what lies on it, this machine, and the way
//! to the Hub.
//!
//! Owns the checks and the words for what they found. Invariants: it never takes a volume, a lock or
//! a store of anybody; all that it writes is a folder of its own, which goes at the end; what could
//! not be checked is never "ok"; a volume that does not answer is given up after a while, and so is
//! a server. It must not print, nor read settings or the environment: those come as arguments.

mod disk;
mod finding;
mod machine;
mod models;
mod network;
mod owner;
mod place;
mod room;
mod state;
mod tries;

use tokio_util::sync::CancellationToken;

pub use disk::{Questions, STEP_LIMIT};
pub use finding::{Check, Finding, SCHEMA, Section, Status, Summary, outcome};
pub use network::{Call, Offline};

use crate::blocking::Blocking;

/// Everything that is to be looked at.
#[derive(Debug)]
pub struct Examination {
    /// About the volume and this machine.
    pub questions: Questions,
    /// Whom to call, or why nobody.
    pub call: Result<Call, Offline>,
    /// What the caller knows by itself: settings, proxies, certificates.
    pub given: Vec<Check>,
}

impl Examination {
    /// Looks at everything and tells each check as soon as it and those before it are done. Once
    /// `stop` is cancelled, what was begun is tidied up and the rest is left out.
    pub async fn run(
        self,
        blocking: &Blocking,
        stop: &CancellationToken,
        tell: &mut (dyn FnMut(&Check) + Send),
    ) -> Vec<Check> {
        let Self { questions, call, given } = self;
        let machine = questions.clone();
        let mut checks = Vec::new();
        let mut take = |check: Check| {
            tell(&check);
            checks.push(check);
        };
        let (mut network, mut early) = (Box::pin(network::examine(call)), None);
        {
            let disk = disk::examine(questions, blocking, stop, &mut take);
            tokio::pin!(disk);
            loop {
                tokio::select! {
                    () = &mut disk => break,
                    found = &mut network, if early.is_none() => early = Some(found),
                }
            }
        }
        if stop.is_cancelled() {
            return checks;
        }
        let (settings, ways): (Vec<_>, Vec<_>) =
            given.into_iter().partition(|check| check.section <= Section::Settings);
        machine::examine(&machine).into_iter().chain(settings).chain(ways).for_each(&mut take);
        let found = if let Some(found) = early {
            found
        } else {
            tokio::select! {
                found = network => found,
                () = stop.cancelled() => Vec::new(),
            }
        };
        found.into_iter().for_each(take);
        checks
    }
}
