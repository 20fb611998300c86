//! Files with keys: read with care, made once.
//!
//! Invariants: a private key that others may read or change is refused; neither half ever replaces a
//! file. Nothing of a key's text is in an error.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::core::oms::key::{KEY_MAX_BYTES, KeyError, PrivateKey, PublicKey};

/// What nobody but the owner may do with a private key. The group may read it: so it is handed to
/// containers.
const LOOSE: u32 = 0o037;
const PRIVATE_MODE: u32 = 0o600;
const PUBLIC_MODE: u32 = 0o644;

/// Why a file with a key cannot be used or made.
#[derive(Debug, Error)]
pub enum KeyFileError {
    /// The system does not let us.
    #[error("the key {} cannot be read", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A folder, a device.
    #[error("the key {} is no regular file", .path.display())]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// Too large to be a key.
    #[error("{} is larger than a key may be ({KEY_MAX_BYTES} bytes)", .path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Others have it, too.
    #[error("the private key {} is open to others (mode {mode:04o})", .path.display())]
    Loose {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is no such key.
    #[error("{} is not usable", .path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: KeyError,
    },
    /// A file is there already.
    #[error("{} is there already, and no key is ever replaced", .path.display())]
    Occupied {
        /// The file.
        path: PathBuf,
    },
    /// The system does not let us.
    #[error("{} cannot be written", .path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
}

impl KeyFileError {
    /// What to do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Loose { path, .. } => {
                format!("chmod 600 {}; if others may have read it, make a new one with muster keygen", path.display())
            }
            Self::Key { source: KeyError::Encrypted, path } => {
                let path = path.display();
                format!("openssl pkcs8 -topk8 -nocrypt -in {path} -out KEY takes the password off; give KEY mode 600")
            }
            Self::Key { source: KeyError::PublicForPrivate, .. } => {
                "sign with the private key; the public one is for muster gate --key".to_owned()
            }
            Self::Key { source: KeyError::PrivateForPublic, .. } => {
                "give the public key (muster keygen writes it beside the private one, with .pub)".to_owned()
            }
            Self::Key { .. } | Self::TooLarge { .. } | Self::NotRegular { .. } => {
                "muster keygen makes a pair of keys that fit".to_owned()
            }
            Self::Unreadable { .. } => "muster keygen makes a pair of keys".to_owned(),
            Self::Occupied { .. } => "name another file".to_owned(),
            Self::Unwritable { .. } => return None,
        })
    }
}

/// Reads a private key.
///
/// # Errors
/// [`KeyFileError`].
pub fn read_private(path: &Path) -> Result<PrivateKey, KeyFileError> {
    let (file, metadata) = open(path)?;
    let mode = metadata.mode() & 0o7777;
    if mode & LOOSE != 0 {
        return Err(KeyFileError::Loose { path: path.to_owned(), mode });
    }
    PrivateKey::parse(&text(file, path)?).map_err(|source| KeyFileError::Key { path: path.to_owned(), source })
}

/// Reads a public key.
///
/// # Errors
/// [`KeyFileError`].
pub fn read_public(path: &Path) -> Result<PublicKey, KeyFileError> {
    let (file, _) = open(path)?;
    PublicKey::parse(&text(file, path)?).map_err(|source| KeyFileError::Key { path: path.to_owned(), source })
}

/// Writes both halves of a key into new files: the private one for its owner alone.
///
/// # Errors
/// [`KeyFileError`]; then neither file was made.
pub fn create_pair(key: &PrivateKey, private: &Path, public: &Path) -> Result<(), KeyFileError> {
    let damaged = |source| KeyFileError::Key { path: private.to_owned(), source };
    let secret = key.to_pem().map_err(damaged)?;
    let private_file = create(private, PRIVATE_MODE)?;
    let made = create(public, PUBLIC_MODE).and_then(|public_file| {
        let written = fill(public_file, public, key.public().to_pem().as_bytes());
        written.and_then(|()| fill(private_file, private, secret.as_bytes())).inspect_err(|_| remove(public))
    });
    made.inspect_err(|_| remove(private))
}

fn open(path: &Path) -> Result<(File, std::fs::Metadata), KeyFileError> {
    let unreadable = |source| KeyFileError::Unreadable { path: path.to_owned(), source };
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    // Before it is opened: a pipe would wait for its writer.
    if !metadata.is_file() {
        return Err(KeyFileError::NotRegular { path: path.to_owned() });
    }
    let file = File::open(path).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    Ok((file, metadata))
}

fn text(file: File, path: &Path) -> Result<String, KeyFileError> {
    let mut bytes = Vec::new();
    let read = file.take(KEY_MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|source| KeyFileError::Unreadable { path: path.to_owned(), source })?;
    if bytes.len() as u64 > KEY_MAX_BYTES {
        return Err(KeyFileError::TooLarge { path: path.to_owned() });
    }
    String::from_utf8(bytes).map_err(|_| KeyFileError::Key { path: path.to_owned(), source: KeyError::NotPem })
}

/// Makes a file that was not there; a link in its place is not followed.
fn create(path: &Path, mode: u32) -> Result<File, KeyFileError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    file.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Occupied { path: path.to_owned() },
        _ => KeyFileError::Unwritable { path: path.to_owned(), source },
    })
}

fn fill(mut file: File, path: &Path, bytes: &[u8]) -> Result<(), KeyFileError> {
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|source| KeyFileError::Unwritable { path: path.to_owned(), source })
}

/// A file that this process made a moment ago.
fn remove(path: &Path) {
    let _nothing_better_to_do = std::fs::remove_file(path);
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::core::oms::key::Curve;
    use crate::core::oms::key::tests::key;

    #[test]
    fn a_pair_is_made_once_and_its_private_half_is_for_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let (private, public) = (place.path().join("k"), place.path().join("k.pub"));
        let made = key(Curve::P256, 1);
        create_pair(&made, &private, &public).unwrap();
        let mode_of = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode_of(&private), 0o600);
        assert_eq!(read_private(&private).unwrap().public(), read_public(&public).unwrap());
        assert!(
            matches!(create_pair(&made, &private, &public), Err(KeyFileError::Occupied { path }) if path == private)
        );
        // Half of a pair that is there keeps the other half away.
        let other = place.path().join("other");
        assert!(matches!(create_pair(&made, &other, &public), Err(KeyFileError::Occupied { path }) if path == public));
        assert!(!other.exists());
        assert_eq!(read_public(&public).unwrap(), made.public());
    }

    #[test]
    fn a_private_key_that_others_could_have_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let (private, public) = (place.path().join("k"), place.path().join("k.pub"));
        create_pair(&key(Curve::P384, 1), &private, &public).unwrap();
        for (mode, is_taken) in [(0o600, true), (0o400, true), (0o640, true), (0o660, false), (0o644, false)] {
            std::fs::set_permissions(&private, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_private(&private).is_ok(), is_taken, "{mode:o}");
        }
        let error = read_private(&private).unwrap_err();
        assert!(error.to_string().contains("mode 0644") && error.hint().unwrap().contains("chmod 600"), "{error}");
    }

    #[test]
    fn what_is_no_key_file_is_told_apart() {
        let place = tempfile::tempdir().unwrap();
        let at = |name: &str| place.path().join(name);
        assert!(matches!(read_private(&at("none")), Err(KeyFileError::Unreadable { .. })));
        assert!(matches!(read_public(place.path()), Err(KeyFileError::NotRegular { .. })));
        std::fs::write(at("long"), vec![b'x'; usize::try_from(KEY_MAX_BYTES).unwrap() + 1]).unwrap();
        assert!(matches!(read_public(&at("long")), Err(KeyFileError::TooLarge { .. })));
        std::fs::write(at("bytes"), [0xff; 9]).unwrap();
        assert!(matches!(read_public(&at("bytes")), Err(KeyFileError::Key { source: KeyError::NotPem, .. })));
    }
}
