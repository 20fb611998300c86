//! The unix socket: where it is, whose it is, and who may use it.
//!
//! Invariants: a socket gets its public name only after its process owns the volume, by a rename
//! over whatever a dead owner left, so a living owner's socket is never touched; its mode is right
//! before anybody knows its name; at the end only the own one is removed. On the volume where that
//! works, otherwise in a folder of this user alone.

#![allow(clippy::disallowed_methods, reason = "home of the socket's file, which need not be on the volume")]

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net as blocking;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use thiserror::Error;
use tokio::net::UnixListener;
use tokio::net::unix::UCred;
use tracing::{info, warn};

use crate::core::code::Code;
use crate::core::repo_path::OWN_DIR;
use crate::limits::SOCKET_PATH_MAX_BYTES;
use crate::volume::{Volume, VolumeError};

/// Its name in the owner's area.
pub(super) const NAME: &str = "api.sock";
/// Names of sockets that have no public name yet begin so.
const UNNAMED: &str = ".sock-";

/// Bytes of the longest path that making a socket on the volume takes.
#[must_use]
pub fn path_bytes_on(volume: &Path) -> usize {
    let unnamed = format!("{UNNAMED}{:06x}", 0);
    absolute(volume)
        .join(OWN_DIR)
        .join(if unnamed.len() > NAME.len() { unnamed.as_str() } else { NAME })
        .as_os_str()
        .len()
}

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The kernel takes no such path.
    #[error("the socket path {} has {} bytes, {SOCKET_PATH_MAX_BYTES} are possible", .path.display(), .path.as_os_str().len())]
    TooLong {
        /// The path.
        path: PathBuf,
    },
    /// There is no such group.
    #[error("there is no group {name} in /etc/group")]
    NoGroup {
        /// Its name.
        name: String,
    },
    /// The volume has no place for it.
    #[error("the owner's area of the volume cannot be made")]
    Volume(#[from] VolumeError),
    /// The folder for it is not this user's alone.
    #[error("{} belongs to others or is open to them", .path.display())]
    Shared {
        /// The folder.
        path: PathBuf,
    },
    /// Another process answers there.
    #[error("another process answers at {}", .path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has the name.
    #[error("{} is there and is no socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("no socket can be made at {}", .path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl SocketError {
    /// The outcome.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::Io { source, .. } if is_full(source) => Code::NoSpace,
            Self::TooLong { .. } | Self::NoGroup { .. } | Self::NotASocket { .. } => Code::Usage,
            Self::Taken { .. } => Code::Held,
            Self::Volume(error) => error.code(),
            Self::Shared { .. } | Self::Io { .. } => Code::CouldNotCheck,
        }
    }

    /// What to do next, where that is known.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoGroup { .. } => Some("give the number of a group that other services know"),
            Self::Volume(error) => error.hint(),
            Self::TooLong { .. } | Self::Taken { .. } | Self::NotASocket { .. } => {
                Some("choose another place with --socket PATH")
            }
            Self::Shared { .. } | Self::Io { .. } => {
                Some("choose a place with --socket PATH, or set XDG_RUNTIME_DIR to a folder of this user alone")
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Who may use the socket, beside root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only the user that runs the owner: a pull in the foreground.
    Private,
    /// That user, and a group if there is one.
    Shared {
        /// The group's number.
        group: Option<u32>,
    },
}

impl Access {
    /// Access for a group given by name or number.
    ///
    /// # Errors
    /// [`SocketError::NoGroup`].
    pub fn of_group(group: Option<&str>) -> Result<Self, SocketError> {
        let group = group.map(|name| group_number(name).ok_or_else(|| SocketError::NoGroup { name: name.to_owned() }));
        Ok(Self::Shared { group: group.transpose()? })
    }

    pub(super) fn admits(self, peer: &UCred) -> bool {
        let us = rustix::process::geteuid().as_raw();
        let in_group = |group| peer.gid() == group || peer.pid().is_some_and(|pid| is_in_group(pid, group));
        match self {
            _ if peer.uid() == us || peer.uid() == 0 => true,
            Self::Private => false,
            Self::Shared { group } => group.is_some_and(in_group),
        }
    }

    const fn mode(self) -> u32 {
        match self {
            Self::Private => 0o600,
            Self::Shared { .. } => 0o660,
        }
    }
}

/// What is wanted of a socket.
#[derive(Debug, Clone)]
pub struct Wish {
    /// Exactly there; otherwise on the volume, or in the runtime directory.
    pub path: Option<PathBuf>,
    /// `$XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<PathBuf>,
    /// Who may use it.
    pub access: Access,
}

/// A socket that listens and that nobody can find yet.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    file: SocketFile,
    address: PathBuf,
    /// Whether the user chose the place: another volume's owner may have it too.
    chosen: bool,
    access: Access,
}

impl BoundSocket {
    /// Binds a socket. Blocks. Call it inside a runtime, before the volume is taken.
    ///
    /// # Errors
    /// [`SocketError`]; nothing is left behind.
    pub fn bind(volume: &Volume, wish: &Wish) -> Result<Self, SocketError> {
        if let Some(path) = &wish.path {
            return Self::bind_at(path, true, wish.access);
        }
        let on_volume = absolute(volume.area()?.path()).join(NAME);
        match Self::bind_at(&on_volume, false, wish.access) {
            Ok(bound) => return Ok(bound),
            Err(why) => info!(%why, "the socket is in the runtime directory"),
        }
        let name = format!("{}.sock", volume_hash(volume));
        let uid = rustix::process::geteuid().as_raw();
        let mut folders: Vec<_> = wish.runtime_dir.iter().map(|dir| dir.join("muster")).collect();
        folders.push(PathBuf::from(format!("/run/user/{uid}/muster")));
        folders.push(PathBuf::from(format!("/tmp/muster-{uid}")));
        let mut last = None;
        for folder in folders {
            match private_folder(&folder).and_then(|()| Self::bind_at(&folder.join(&name), false, wish.access)) {
                Ok(bound) => {
                    if matches!(wish.access, Access::Shared { group: Some(_) }) {
                        warn!(folder = %folder.display(), "the api_group cannot reach the socket there; choose a place with --socket");
                    }
                    return Ok(bound);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("invariant: two folders at least were tried"))
    }

    /// Where it will be found.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.address
    }

    /// Gives it its public name. Blocks. Only for the owner of the volume.
    ///
    /// # Errors
    /// [`SocketError`]; nothing is left behind.
    pub fn publish(mut self) -> Result<UnixDoor, SocketError> {
        let path = self.address.clone();
        match fs::symlink_metadata(&path) {
            Ok(there) if !there.file_type().is_socket() => return Err(SocketError::NotASocket { path }),
            Ok(_) if self.chosen && blocking::UnixStream::connect(&path).is_ok() => {
                return Err(SocketError::Taken { path });
            }
            _ => {}
        }
        fs::rename(&self.file.path, &path).map_err(|source| SocketError::Io { path: path.clone(), source })?;
        self.file.path = path;
        sweep(&self.file.path);
        Ok(UnixDoor { listener: self.listener, access: self.access, file: self.file })
    }

    fn bind_at(address: &Path, chosen: bool, access: Access) -> Result<Self, SocketError> {
        let io = |source| SocketError::Io { path: address.to_owned(), source };
        let unnamed = address.with_file_name(format!("{UNNAMED}{:06x}", fastrand::u32(..1 << 24)));
        let longest = if unnamed.as_os_str().len() > address.as_os_str().len() { &unnamed } else { address };
        if longest.as_os_str().len() > SOCKET_PATH_MAX_BYTES {
            return Err(SocketError::TooLong { path: address.to_owned() });
        }
        let listener = blocking::UnixListener::bind(&unnamed).map_err(io)?;
        let inode = fs::symlink_metadata(&unnamed).map_err(io)?.ino();
        let file = SocketFile { path: unnamed, inode };
        if let Access::Shared { group: Some(group) } = access {
            std::os::unix::fs::chown(&file.path, None, Some(group)).map_err(io)?;
        }
        fs::set_permissions(&file.path, Permissions::from_mode(access.mode())).map_err(io)?;
        listener.set_nonblocking(true).map_err(io)?;
        let listener = UnixListener::from_std(listener).map_err(io)?;
        Ok(Self { listener, file, address: address.to_owned(), chosen, access })
    }
}

/// A socket with its public name. Dropped, the name goes, if it still is this socket's.
#[derive(Debug)]
pub struct UnixDoor {
    listener: UnixListener,
    access: Access,
    file: SocketFile,
}

impl UnixDoor {
    /// Where it is.
    #[must_use]
    pub fn address(&self) -> &Path {
        &self.file.path
    }

    pub(super) const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    pub(super) const fn access(&self) -> Access {
        self.access
    }
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            // One that stays is removed by the next owner.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes sockets that were never named and that nobody listens at.
fn sweep(public: &Path) {
    let folder = public.parent().and_then(|folder| fs::read_dir(folder).ok());
    for entry in folder.into_iter().flatten().flatten() {
        let unnamed = entry.file_name().as_bytes().starts_with(UNNAMED.as_bytes());
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let refused = || {
            let answer = blocking::UnixStream::connect(entry.path());
            answer.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
        };
        if unnamed && is_socket && refused() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A folder of this user alone, made when missing.
fn private_folder(path: &Path) -> Result<(), SocketError> {
    let io = |source| SocketError::Io { path: path.to_owned(), source };
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    let there = fs::symlink_metadata(path).map_err(io)?;
    let (uid, open_to_others) = (rustix::process::geteuid().as_raw(), there.mode() & 0o077);
    let ours = there.is_dir() && there.uid() == uid && open_to_others == 0;
    if ours { Ok(()) } else { Err(SocketError::Shared { path: path.to_owned() }) }
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// Names a volume in a folder that holds the sockets of several.
fn volume_hash(volume: &Volume) -> String {
    let path = fs::canonicalize(volume.path()).unwrap_or_else(|_| absolute(volume.path()));
    let digest = Sha256::digest(path.as_os_str().as_bytes());
    format!("{:016x}", digest.iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
}

/// group(5): name, password, number, members.
fn group_number(name: &str) -> Option<u32> {
    if let Ok(number) = name.parse() {
        return Some(number);
    }
    let groups = fs::read_to_string("/etc/group").ok()?;
    let line = groups.lines().find(|line| line.split(':').next() == Some(name))?;
    line.split(':').nth(2)?.parse().ok()
}

/// Whether a process has a group beside its first one. The kernel let it through the socket's mode
/// already, so a pid that was given out again in between opens nothing by itself.
fn is_in_group(pid: i32, group: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let groups = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    groups.split_ascii_whitespace().any(|one| one.parse() == Ok(group))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish(path: Option<PathBuf>, runtime_dir: Option<&Path>) -> Wish {
        Wish { path, runtime_dir: runtime_dir.map(Path::to_owned), access: Access::Shared { group: None } }
    }

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[tokio::test]
    async fn a_socket_is_found_only_after_it_was_published_and_goes_with_its_owner() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(place.path()).unwrap();
        let area = place.path().join(".muster");
        let bound = BoundSocket::bind(&volume, &wish(None, None)).unwrap();
        assert_eq!(bound.address(), area.join("api.sock"));
        assert!(!names(&area).contains(&"api.sock".to_owned()));
        let door = bound.publish().unwrap();
        assert_eq!(names(&area), ["api.sock"]);
        assert_eq!(fs::metadata(door.address()).unwrap().mode() & 0o777, 0o660);
        // Another owner took over: its socket stays when the first one goes.
        let next = BoundSocket::bind(&volume, &wish(None, None)).unwrap().publish().unwrap();
        drop(door);
        assert!(blocking::UnixStream::connect(next.address()).is_ok());
        drop(next);
        assert!(names(&area).is_empty());
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_moves_to_the_runtime_directory() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("d".repeat(90));
        let volume = Volume::create(&deep).unwrap();
        let bound = BoundSocket::bind(&volume, &wish(None, Some(place.path()))).unwrap();
        assert!(bound.address().starts_with(place.path().join("muster")), "{}", bound.address().display());
        assert_eq!(fs::metadata(place.path().join("muster")).unwrap().mode() & 0o777, 0o700);
        let chosen = BoundSocket::bind(&volume, &wish(Some(deep.join("x.sock")), None));
        assert!(matches!(chosen, Err(SocketError::TooLong { .. })));
    }

    #[tokio::test]
    async fn a_chosen_place_is_never_taken_from_a_living_process() {
        let place = tempfile::tempdir().unwrap();
        let volume = Volume::create(&place.path().join("v")).unwrap();
        let path = place.path().join("m.sock");
        let bind = || BoundSocket::bind(&volume, &wish(Some(path.clone()), None)).unwrap().publish();
        let first = bind().unwrap();
        assert!(matches!(bind(), Err(SocketError::Taken { .. })));
        drop(first);
        fs::write(&path, "x").unwrap();
        assert!(matches!(bind(), Err(SocketError::NotASocket { .. })));
        assert_eq!(names(place.path()).len(), 2, "nothing is left behind");
    }

    #[test]
    fn groups_have_names_and_numbers() {
        assert_eq!(group_number("root"), Some(0));
        assert_eq!(group_number("4711"), Some(4711));
        assert!(Access::of_group(Some("no such group")).is_err());
    }
}
