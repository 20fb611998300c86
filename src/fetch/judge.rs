//! What a whole file turned out to be: right and verified, or wrong and to be set aside.
//!
//! Nothing is written here, and what was proved as the bytes came is believed only where the caller says so.

use tokio_util::sync::CancellationToken;

use super::error::FinishError;
use super::file::READ_STEP;
use super::progress::Progress;
use super::shared::Pages;
use crate::core::receipt::Proved;
use crate::core::verify::{FileHasher, Mismatch, Proof};
use crate::volume::VolumeError;
use crate::volume::publish::{Sealed, Verified};

/// What a whole file turned out to be.
#[derive(Debug)]
pub(crate) enum Judged {
    /// The right bytes, durable.
    Right(Verified),
    /// Other bytes, to be set aside.
    Wrong { mismatch: Mismatch, sealed: Sealed },
}

/// What a sealed partial is: by what its bytes turned out to be as they came, where that is known and
/// counts, else by those on disk. Blocks.
pub(super) fn judge(
    sealed: Sealed,
    known: Option<(Result<Proof, Mismatch>, Proved)>,
    pages: Pages,
    progress: &Progress,
    stop: &CancellationToken,
) -> Result<Judged, FinishError> {
    let size = sealed.entry().size;
    let (judged, proved) = if let Some(known) = known {
        known
    } else {
        let read = prove(&sealed, stop).inspect_err(|_| progress.lost(size, size))?;
        (read.ok_or(FinishError::Stopped)?, Proved::Readback)
    };
    if pages == Pages::GivenBack {
        sealed.drop_pages(&(0..size));
    }
    Ok(match judged {
        Ok(proof) => Judged::Right(sealed.verified(proof, proved).inspect_err(|_| progress.lost(size, size))?),
        Err(mismatch) => Judged::Wrong { mismatch, sealed },
    })
}

/// Hashes a sealed partial from disk, past the page cache where the system allows; nothing when
/// a stop came first.
fn prove(sealed: &Sealed, stop: &CancellationToken) -> Result<Option<Result<Proof, Mismatch>>, VolumeError> {
    sealed.drop_pages(&(0..sealed.entry().size));
    let mut hasher = FileHasher::new(sealed.entry());
    let mut buffer = vec![0; READ_STEP];
    while !stop.is_cancelled() {
        let read = sealed.read_at(hasher.position(), &mut buffer)?;
        if read == 0 {
            return Ok(Some(hasher.finish()));
        }
        hasher.update(&buffer[..read]);
    }
    Ok(None)
}
