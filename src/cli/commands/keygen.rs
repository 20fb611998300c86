//! `muster keygen`: makes a pair of keys.

use std::path::PathBuf;

use rustix::rand::{GetRandomFlags, getrandom};
use serde_json::json;

use crate::cli::Context;
use crate::cli::args::KeygenArgs;
use crate::cli::exit::{CliError, Exit, Failure};
use crate::core::code::Code;
use crate::core::oms::key::PrivateKey;
use crate::core::shell::quoted;
use crate::volume::key_file::{KeyFileError, create_pair};

/// Makes a pair of keys.
///
/// # Errors
/// Files that are there, or cannot be written.
pub fn run(args: KeygenArgs, context: Context) -> Result<Exit, Failure> {
    let Context { ui, here, .. } = context;
    let private = here.join(&args.file);
    let mut public = private.clone().into_os_string();
    public.push(".pub");
    let public = PathBuf::from(public);
    let key =
        PrivateKey::generate(args.curve, randomness).map_err(|error| CliError::from_error(Code::Internal, &error))?;
    create_pair(&key, &private, &public).map_err(|error| {
        let code = if matches!(error, KeyFileError::Unwritable { .. }) { Code::CouldNotCheck } else { Code::Usage };
        CliError::told(code, &error, error.hint())
    })?;
    let hint = key.public().hint();
    if ui.is_json() {
        ui.result_json(&json!({
            "schema": 1,
            "private_key": private,
            "public_key": public,
            "curve": args.curve.name(),
            "key": hint,
        }))?;
    } else {
        ui.result(&format!("{}\n{}", private.display(), public.display()))?;
    }
    let (shown, shown_public) = (quoted(&private.to_string_lossy()), quoted(&public.to_string_lossy()));
    ui.note(&format!(
        "key {}…, {}; keep the first file to yourself, give the second to everybody",
        hint.short(),
        args.curve.name()
    ));
    ui.note(&format!(
        "hint: muster sign MODEL --key {shown}, then muster gate MODEL --require-signature --key {shown_public}"
    ));
    Ok(Exit::Success)
}

/// From the kernel. A part that it cannot fill stays zero, and zeros are no key.
fn randomness(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) if count > 0 => filled += count,
            Err(error) if error == rustix::io::Errno::INTR => {}
            _ => {
                bytes.fill(0);
                return;
            }
        }
    }
}
