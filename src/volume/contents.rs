//! Everything in a model directory but our own files, with what each name stands for and its mode.
//!
//! Reads only. Invariant: nothing is left out, not even a name that no text can spell; whoever asks
//! whether there is more than there should be must hear of all.

use rustix::fs::{AtFlags, FileType};

use super::dir::{Dir, kind_of};
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use crate::core::policy::judge::Kind;
use crate::core::repo_path::OWN_DIR;

/// Most names that are looked at.
const NAMES_MAX: usize = 2_000_000;
/// How the directory itself is called.
const SELF: &str = ".";

/// One name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// Its path below the directory; `.` is the directory itself. What is no UTF-8 is replaced.
    pub path: String,
    /// What it stands for.
    pub kind: Kind,
    /// Its permission bits, with setuid, setgid and sticky.
    pub mode: u32,
}

impl ModelDir {
    /// The directory and everything in it by name, links not followed. Of our folder only the folder.
    pub fn contents(&self) -> Result<Vec<Content>> {
        let mut found = Vec::new();
        if let Some(this) = look(self.root(), SELF.into(), c".")? {
            found.push(this);
        }
        let mut queue = vec![String::new()];
        while let Some(at) = queue.pop() {
            let dir = if at.is_empty() { self.root().clone() } else { self.root().folder(&at)? };
            list(&dir, &at, &mut found, &mut queue)?;
            if found.len() > NAMES_MAX {
                return Err(VolumeError::TooMany { path: self.path().to_path_buf(), limit: NAMES_MAX });
            }
        }
        found.sort_by(|one, other| one.path.cmp(&other.path));
        Ok(found)
    }
}

fn list(dir: &Dir, at: &str, found: &mut Vec<Content>, queue: &mut Vec<String>) -> Result<()> {
    let fail = |error| VolumeError::new(Step::List, dir.path(), error);
    for entry in rustix::fs::Dir::new(dir.reopen().map_err(fail)?).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let spelled = name.to_str();
        let path = name.to_string_lossy();
        let path = if at.is_empty() { path.into_owned() } else { format!("{at}/{path}") };
        // Gone since it was listed.
        let Some(content) = look(dir, path, name)? else { continue };
        if content.kind == Kind::Folder && spelled.is_ok() && content.path != OWN_DIR {
            queue.push(content.path.clone());
        }
        // A folder that cannot be entered by its name may hold anything.
        let closed = content.kind == Kind::Folder && spelled.is_err();
        found.push(if closed { Content { kind: Kind::Other, ..content } } else { content });
        if found.len() > NAMES_MAX {
            break;
        }
    }
    Ok(())
}

#[allow(clippy::useless_conversion, reason = "field types differ by platform")]
fn look(dir: &Dir, path: String, name: &std::ffi::CStr) -> Result<Option<Content>> {
    let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(VolumeError::new(Step::Look, dir.shown(&path), error)),
    };
    let kind = match kind_of(&stat) {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Folder,
        _ => Kind::Other,
    };
    Ok(Some(Content { path, kind, mode: u32::from(stat.st_mode) & 0o7777 }))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::testing::model;
    use super::*;

    #[test]
    fn nothing_is_left_out_and_nothing_is_followed() {
        let (place, model) = model();
        let root = model.path().to_owned();
        std::fs::create_dir_all(root.join("sub/deep")).unwrap();
        std::fs::create_dir_all(place.path().join("elsewhere/inner")).unwrap();
        std::fs::write(root.join("sub/deep/a"), b"").unwrap();
        std::fs::set_permissions(root.join("sub/deep/a"), std::fs::Permissions::from_mode(0o640)).unwrap();
        std::fs::write(root.join(OsStr::from_bytes(b"odd\xff.py")), b"").unwrap();
        std::fs::create_dir(root.join(OsStr::from_bytes(b"dir\xff"))).unwrap();
        std::os::unix::fs::symlink(place.path().join("elsewhere"), root.join("link")).unwrap();
        let found = model.contents().unwrap();
        let seen: Vec<_> = found.iter().map(|content| (content.path.as_str(), content.kind)).collect();
        let expected = [
            (".", Kind::Folder),
            (".muster", Kind::Folder),
            ("dir\u{fffd}", Kind::Other),
            ("link", Kind::Other),
            ("odd\u{fffd}.py", Kind::File),
            ("sub", Kind::Folder),
            ("sub/deep", Kind::Folder),
            ("sub/deep/a", Kind::File),
        ];
        assert_eq!(seen, expected);
        assert_eq!(found[7].mode, 0o640);
    }
}
