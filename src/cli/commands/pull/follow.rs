//! A pull whose work is done by the owner there is.
//!
//! The job is handed over and looked at until it ends. Ctrl-C ends the look, not the download.

use std::time::Duration;

use super::foreground::ended;
use super::{Pull, looks};
use crate::api::client::{Client, ClientError};
use crate::cli::exit::{CliError, Exit};
use crate::cli::progress::Line;
use crate::cli::signals::Signals;
use crate::clock;
use crate::core::status::ModelStatus;
use crate::hub::Token;

/// How often the owner is asked.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How following ended.
pub(super) enum Followed {
    /// The model is complete, and stands like this.
    Done(Box<ModelStatus>),
    /// A signal ended the look.
    Stopped(Exit),
    /// The owner has gone before the job was done.
    OwnerGone,
}

/// Hands the job to the owner and follows it.
pub(super) async fn hand_over(
    pull: &Pull,
    client: &Client,
    token: Option<&Token>,
    signals: &mut Signals,
) -> Result<Followed, CliError> {
    let name = &pull.request.spec.name;
    let owner = client.owner();
    match client.submit(&pull.request.spec, token).await {
        Ok(_) => {}
        Err(ClientError::Unreachable { .. }) => return Ok(Followed::OwnerGone),
        Err(error) => return Err(CliError::from(&error)),
    }
    pull.ui.note(&format!("process {} on {} does the work; this follows it", owner.pid, owner.host));
    let mut progress = pull.ui.progress();
    let mut looks = looks(LOOK_EVERY);
    let end = loop {
        tokio::select! {
            _ = looks.tick() => {}
            exit = signals.next() => {
                pull.ui.note(&format!("the download goes on; to stop it: muster cancel {name}"));
                break Ok(Followed::Stopped(exit));
            }
        }
        let model = match client.model(name).await {
            Ok(model) => model,
            Err(ClientError::Unreachable { .. }) => break Ok(Followed::OwnerGone),
            Err(error) => break Err(CliError::from(&error)),
        };
        progress.show(&Line::from(&model), clock::since_boot());
        if let Some(end) = ended(&model) {
            break end.map(|()| Followed::Done(Box::new(model)));
        }
    };
    progress.finish();
    end
}
