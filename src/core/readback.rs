//! Whether a finished file is read back before it is believed.
//!
//! Owns the three words of `readback`; which file systems `auto` distrusts is `volume`'s.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Not one of the three words.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{}` is none of auto, always, never", .text.escape_debug())]
pub struct ReadbackError {
    /// What was given.
    pub text: String,
}

/// When the bytes on disk are hashed again after their sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Readback {
    /// On file systems that are not known to keep positioned writes.
    #[default]
    Auto,
    /// On every file system.
    Always,
    /// On none: the hash of the stream decides.
    Never,
}

impl fmt::Display for Readback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Always => "always",
            Self::Never => "never",
        })
    }
}

impl FromStr for Readback {
    type Err = ReadbackError;
    fn from_str(text: &str) -> Result<Self, ReadbackError> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(ReadbackError { text: text.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_survive_being_written_and_read() {
        for readback in [Readback::Auto, Readback::Always, Readback::Never] {
            assert_eq!(readback.to_string().parse(), Ok(readback));
        }
        assert!("Auto".parse::<Readback>().unwrap_err().to_string().contains("auto, always, never"));
    }
}
