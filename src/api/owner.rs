//! Becoming an owner that answers: socket, volume, API, in this order.
//!
//! The socket is bound before the volume is taken, since the owner record holds its address; it
//! gets its public name after.

use std::path::Path;

use thiserror::Error;
use tracing::warn;

use super::serve::{Door, Service, serve};
use super::socket::{BoundSocket, SocketError, Wish};
use crate::core::code::Code;
use crate::daemon::{Daemon, Options, StartError};
use crate::volume::Volume;
use crate::volume::owner::{Holder, Lapsed, OwnerError};

/// Why a volume is not owned.
#[derive(Debug, Error)]
pub enum OwnError {
    /// The volume could not be taken.
    #[error(transparent)]
    Start(#[from] StartError),
    /// There is no socket.
    #[error("the API has no socket")]
    Socket(#[from] SocketError),
}

impl OwnError {
    /// The outcome.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Start(error) => error.code(),
            Self::Socket(error) => error.code(),
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Start(error) => error.hint(),
            Self::Socket(error) => error.hint().map(str::to_owned),
        }
    }

    /// Who holds the volume, if that is why.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Start(StartError::Owner(OwnerError::Held(holder))) => Some(holder),
            _ => None,
        }
    }
}

/// Who wants to own a volume, with a socket that listens already.
#[derive(Debug)]
pub struct Candidate {
    options: Options,
    bound: Option<BoundSocket>,
}

impl Candidate {
    /// Makes the volume if it is not there, and binds a socket. Blocks; call it inside a runtime.
    ///
    /// # Errors
    /// [`OwnError`]. A pull in the foreground does without a socket where none can be had.
    pub fn prepare(options: Options, wish: &Wish) -> Result<Self, OwnError> {
        let volume = Volume::create(&options.volume).map_err(StartError::from)?;
        let bound = match BoundSocket::bind(&volume, wish) {
            Ok(bound) => Some(bound),
            Err(why) if options.foreground && wish.path.is_none() => {
                warn!(%why, "going on without a socket");
                None
            }
            Err(error) => return Err(error.into()),
        };
        let socket = bound.as_ref().map(|bound| bound.address().display().to_string());
        Ok(Self { options: Options { socket, ..options }, bound })
    }

    /// Where it will answer.
    #[must_use]
    pub fn address(&self) -> Option<&Path> {
        self.bound.as_ref().map(BoundSocket::address)
    }

    /// Takes the volume and serves its API; ask again after [`OwnError::holder`] has gone.
    ///
    /// # Errors
    /// [`OwnError`].
    pub async fn own(&mut self, lapsed: Option<Lapsed>) -> Result<Daemon, OwnError> {
        let mut daemon = Daemon::start(self.options.clone(), lapsed).await?;
        let Some(bound) = self.bound.take() else { return Ok(daemon) };
        match bound.publish() {
            Ok(door) => {
                let service = Service::of(&mut daemon);
                daemon.supervisor().spawn(serve(Door::Unix(door), service));
                Ok(daemon)
            }
            Err(error) => {
                daemon.stop().await;
                Err(error.into())
            }
        }
    }
}
