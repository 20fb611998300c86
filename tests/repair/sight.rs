//! A look at one final name, over and over, while a repair goes on.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::{FileSpec, sha256_hex};

/// What may be seen: the wrong file until it goes, then nothing, then the right file for ever.
pub struct Sight {
    path: PathBuf,
    sha256: String,
    wrong: u64,
    done: AtomicBool,
}

/// How often each was seen.
#[derive(Debug, Default)]
pub struct Seen {
    pub wrong: u64,
    pub missing: u64,
    pub right: u64,
}

/// Ends the looking when it goes, also by a failed assertion.
pub struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Sight {
    pub fn of(path: PathBuf, file: &FileSpec) -> Self {
        let wrong = path.metadata().unwrap().ino();
        Self { path, sha256: file.content.sha256().to_owned(), wrong, done: AtomicBool::new(false) }
    }

    pub fn flag(&self) -> Flag<'_> {
        Flag(&self.done)
    }

    pub fn watch(&self) -> Seen {
        let mut seen = Seen::default();
        let mut right = None;
        loop {
            // One more look after the end.
            let done = self.done.load(Ordering::Relaxed);
            match std::fs::symlink_metadata(&self.path).map(|meta| meta.ino()) {
                Err(_) => {
                    assert_eq!(seen.right, 0, "the right file went away again");
                    seen.missing += 1;
                }
                Ok(inode) if inode == self.wrong => {
                    assert_eq!(seen.missing + seen.right, 0, "the wrong file came back");
                    seen.wrong += 1;
                }
                Ok(inode) => {
                    if right != Some(inode) {
                        assert_eq!(right, None, "it was replaced twice");
                        let bytes = std::fs::read(&self.path).unwrap();
                        assert_eq!(sha256_hex(bytes), self.sha256, "another wrong file under the final name");
                        right = Some(inode);
                    }
                    seen.right += 1;
                }
            }
            if done {
                return seen;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
