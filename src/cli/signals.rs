//! Signals that end a verb: the first asks it to stop, the second does not ask.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{CliError, Exit};
use crate::core::code::Code;

/// Number of SIGINT.
const INTERRUPT: u8 = 2;
/// Number of SIGTERM.
const TERMINATE: u8 = 15;

/// Listens for SIGINT and SIGTERM.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Starts to listen: from here on neither ends the process by itself.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn listen() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot listen for signals"))
        };
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// The next signal, as the exit it stands for.
    pub async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Signal(INTERRUPT),
            _ = self.terminate.recv() => Exit::Signal(TERMINATE),
        }
    }
}
