//! The directory the demo works in: fresh, for its user's eyes only, and gone afterwards.

#![allow(clippy::disallowed_methods, reason = "home of the demo's own directory")]

use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use crate::cli::exit::CliError;
use crate::cli::resolve::DemoRequest;
use crate::core::code::Code;

/// Attempts at a name that nothing has.
const NAMES: usize = 16;

/// The demo's directory. Removed by [`Place::leave`], or with the value.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    keep: bool,
    left: bool,
}

impl Place {
    /// Makes a fresh directory where the request says.
    pub(super) fn make(request: &DemoRequest) -> Result<Self, CliError> {
        let parent = request.dir.clone().unwrap_or_else(std::env::temp_dir);
        let mut tried = 0;
        loop {
            let path = parent.join(format!("muster-demo-{:08x}", fastrand::u32(..)));
            tried += 1;
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self { path, keep: request.keep, left: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES => {}
                Err(error) => {
                    let told = CliError::from_error(Code::Usage, &error);
                    return Err(told
                        .context(format!("cannot make a directory in {}", parent.display()))
                        .hint("name a directory that can be written to with --dir"));
                }
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A name in it.
    pub(super) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Turns over one bit in the middle of a file, size kept.
    pub(super) fn flip_a_bit(file: &Path) -> io::Result<u64> {
        let file = OpenOptions::new().read(true).write(true).open(file)?;
        let at = file.metadata()?.len() / 2;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at)?;
        file.write_all_at(&[byte[0] ^ 1], at)?;
        Ok(at)
    }

    /// Removes the directory, or says where it is when it is kept.
    pub(super) fn leave(mut self) -> Result<Option<PathBuf>, CliError> {
        self.left = true;
        if self.keep {
            return Ok(Some(self.path.clone()));
        }
        fs::remove_dir_all(&self.path).map(|()| None).map_err(|error| {
            CliError::from_error(Code::Internal, &error).context(format!("cannot remove {}", self.path.display()))
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.left && !self.keep {
            // Only a panic comes here, and it is told already.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}
