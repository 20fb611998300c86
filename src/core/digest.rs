//! Content digests: what the Hub promises of a file and what we compute of it.
//!
//! Owns the parsing and printing of hexadecimal digests. A value of these types is always a
//! whole, well-formed digest; a masked or odd one never becomes a value. Hashing itself is
//! [`super::verify`]'s.

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a text is no digest.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DigestError {
    /// The Hub shows asterisks instead of a digest to callers without access to the repository.
    #[error("the digest is masked ({kind})")]
    Masked {
        /// Which digest was expected.
        kind: &'static str,
    },
    /// Neither hexadecimal nor of the right length.
    #[error("`{text}` is no {kind} digest ({len} hexadecimal digits expected)")]
    Malformed {
        /// Which digest was expected.
        kind: &'static str,
        /// Digits expected.
        len: usize,
        /// What came, cut to a printable length.
        text: String,
    },
}

macro_rules! digest_type {
    ($(#[$doc:meta])* $name:ident, $bytes:literal, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; $bytes]);

        impl $name {
            /// Takes the raw bytes of a digest.
            #[must_use]
            pub const fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// The raw bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }

            /// Parses lower- or upper-case hexadecimal.
            ///
            /// # Errors
            /// [`DigestError`] when the text is masked or malformed.
            pub fn parse(text: &str) -> Result<Self, DigestError> {
                let mut bytes = [0; $bytes];
                decode_hex(text, $kind, &mut bytes)?;
                Ok(Self(bytes))
            }

            /// The first 12 digits, enough for a person.
            #[must_use]
            pub fn short(&self) -> String {
                self.to_string()[..12].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = DigestError;
            fn try_from(text: String) -> Result<Self, DigestError> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(digest: $name) -> Self {
                digest.to_string()
            }
        }

        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                Self::parse(&String::deserialize(d)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

digest_type!(
    /// SHA-256 of a file's bytes.
    Sha256, 32, "SHA-256"
);
digest_type!(
    /// SHA-1 of a git object. For a blob: over `blob <decimal size>\0` and the bytes.
    GitSha1, 20, "git SHA-1"
);

pub(crate) use digest_type;

/// What the manifest expects of one file's bytes.
///
/// Written as `sha256:<64 hex>` or `git-sha1:<40 hex>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Digest {
    /// Of the content: files in LFS or Xet storage.
    Sha256(Sha256),
    /// Of the git blob: files that git itself stores.
    GitBlob(GitSha1),
}

impl Digest {
    /// Parses the written form.
    ///
    /// # Errors
    /// [`DigestError`] for an unknown prefix or a bad digest.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        match text.split_once(':') {
            Some(("sha256", hex)) => Sha256::parse(hex).map(Self::Sha256),
            Some(("git-sha1", hex)) => GitSha1::parse(hex).map(Self::GitBlob),
            _ => Err(malformed(text, "prefixed", 64)),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sha256(digest) => write!(f, "sha256:{digest}"),
            Self::GitBlob(digest) => write!(f, "git-sha1:{digest}"),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;
    fn try_from(text: String) -> Result<Self, DigestError> {
        Self::parse(&text)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

pub(crate) fn decode_hex(text: &str, kind: &'static str, out: &mut [u8]) -> Result<(), DigestError> {
    let len = out.len() * 2;
    if !text.is_empty() && text.bytes().all(|byte| byte == b'*') {
        return Err(DigestError::Masked { kind });
    }
    if text.len() != len || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(malformed(text, kind, len));
    }
    for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = nibble(pair[0]) << 4 | nibble(pair[1]);
    }
    Ok(())
}

fn malformed(text: &str, kind: &'static str, len: usize) -> DigestError {
    let text = text.chars().take(80).flat_map(char::escape_default).collect();
    DigestError::Malformed { kind, len, text }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => digit - b'A' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_survives_printing_and_parsing() {
        let text = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        assert_eq!(Sha256::parse(text).unwrap().to_string(), text);
        assert_eq!(Sha256::parse(&text.to_uppercase()).unwrap().to_string(), text);
        let digest = Digest::parse(&format!("sha256:{text}")).unwrap();
        assert_eq!(Digest::parse(&digest.to_string()).unwrap(), digest);
    }

    #[test]
    fn a_masked_digest_is_told_from_a_malformed_one() {
        assert_eq!(Sha256::parse(&"*".repeat(64)), Err(DigestError::Masked { kind: "SHA-256" }));
        for text in ["", "0", &"g".repeat(64), &"0".repeat(63), "sha256:00", "é"] {
            assert!(matches!(Sha256::parse(text), Err(DigestError::Malformed { .. })), "{text}");
        }
        assert!(Digest::parse("md5:00").is_err());
    }
}
