//! Signals that end a verb: the first asks it to stop, the second does not ask.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{CliError, Exit};
use crate::core::code::Code;
use crate::volume::owner::ignored_from_the_start;

/// Number of SIGHUP.
const HANGUP: u8 = 1;
/// Number of SIGINT.
const INTERRUPT: u8 = 2;
/// Number of SIGTERM.
const TERMINATE: u8 = 15;

/// Listens for SIGINT and SIGTERM, and for SIGHUP where that was asked for.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Starts to listen: from here on neither ends the process by itself.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn listen() -> Result<Self, CliError> {
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: None,
        })
    }

    /// Listens for the end of the terminal too. It ends the verb, unless `outlives` says no, or
    /// whoever started us (`nohup`).
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn and_hangup(mut self, outlives: bool) -> Result<Self, CliError> {
        if !ignored_from_the_start(HANGUP) {
            // Once listened for, it never ends the process by itself again.
            self.hangup = Some(listen(SignalKind::hangup())?).filter(|_| !outlives);
        }
        Ok(self)
    }

    /// The next signal, as the exit it stands for.
    pub async fn next(&mut self) -> Exit {
        tokio::select! {
            _ = self.interrupt.recv() => Exit::Signal(INTERRUPT),
            _ = self.terminate.recv() => Exit::Signal(TERMINATE),
            () = come(self.hangup.as_mut()) => Exit::Signal(HANGUP),
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::from_error(Code::Internal, &error).context("cannot listen for signals"))
}

async fn come(signal: Option<&mut Signal>) {
    let came = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if came.is_none() {
        std::future::pending::<()>().await;
    }
}
