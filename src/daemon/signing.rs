//! The signature of a model, at the end of whatever made it complete.
//!
//! Owns that a receipt of ours never stands beside a signature of something else, and that with a key
//! every model is signed before its receipt opens the gate. Invariant: what somebody changed on purpose
//! is signed by nobody but a person who runs `muster sign`: the record of it is a file like any other,
//! and who may write it must not get our signature for it.

use tracing::{info, warn};

use super::bench::Bench;
use super::error::WorkError;
use crate::core::local_edits::{Expected, in_words};
use crate::core::model_name::ModelName;
use crate::core::receipt::FileRecord;
use crate::gate::sign::{set_stale_aside, sign};
use crate::volume::ModelDir;

/// Signs a model whose every file is proved, or keeps a signature out of the way that is of another.
/// Blocks. Comes before the receipt.
pub(super) fn sign_or_clear(
    bench: &Bench,
    model: &ModelDir,
    name: &ModelName,
    expected: &Expected,
    records: &[FileRecord],
) -> Result<(), WorkError> {
    if !sign_published(bench, model, name, expected)?
        && set_stale_aside(model, expected.manifest(), records, expected.edits())?
    {
        info!(model = %name, "the signature of another state of the model is set aside");
    }
    Ok(())
}

/// Signs a model that is as it was published; `false` when it is not, or there is no key.
pub(super) fn sign_published(
    bench: &Bench,
    model: &ModelDir,
    name: &ModelName,
    expected: &Expected,
) -> Result<bool, WorkError> {
    let Some(key) = &bench.signer else { return Ok(false) };
    if let Some(edits) = in_words(expected.edits().files()) {
        warn!(model = %name, "not signed: {edits}; muster sign signs it as it is");
        return Ok(false);
    }
    let signed = sign(model, expected.manifest(), key, &|| (bench.may_write)().is_ok())?;
    if signed.is_new {
        info!(model = %name, key = %signed.key, files = signed.files, "signed");
    }
    for extra in &signed.extras {
        warn!(model = %name, "{extra}: who checks the signature refuses the directory while it is there");
    }
    Ok(true)
}
