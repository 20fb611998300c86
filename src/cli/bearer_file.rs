//! The file with the bearer token that our clients must send.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use super::exit::CliError;
use crate::core::code::Code;
use crate::limits::CONFIG_MAX_BYTES;
use crate::serving::BearerToken;

/// Reads the token.
///
/// # Errors
/// When the file cannot be read, or holds no token.
pub fn read(file: &Path) -> Result<BearerToken, CliError> {
    let refused = |error: CliError| error.context(format!("cannot use the token file {}", file.display()));
    let text = text(file).map_err(|error| refused(CliError::from_error(Code::Usage, &error)))?;
    BearerToken::parse(&text).map_err(|error| refused(CliError::from_error(Code::Usage, &error)))
}

fn text(file: &Path) -> io::Result<String> {
    let mut text = String::new();
    #[expect(clippy::disallowed_methods, reason = "a file that a flag of the verb names")]
    File::open(file)?.take(CONFIG_MAX_BYTES).read_to_string(&mut text)?;
    Ok(text)
}
