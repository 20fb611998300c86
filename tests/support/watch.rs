//! Looking on while something is killed, starved or lied to: what has a final name is right, and what is called
//! complete is complete, at every moment and not only at the end.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Muster, RepoSpec, sha256_hex};

/// A number from the environment, for runs that are longer than a test or have to be repeated.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

/// The seed of a run: the one asked for, or a new one. Whoever uses it prints it.
pub fn seed(variable: &str) -> u64 {
    let clock = || u64::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().subsec_nanos());
    number(variable).unwrap_or_else(clock)
}

/// Looks at a model directory until its [`Flag`] goes.
pub struct Watch<'a> {
    directory: PathBuf,
    repo: &'a RepoSpec,
    done: AtomicBool,
    looks: Mutex<Looks>,
}

/// How much was looked at.
#[derive(Clone, Copy, Debug, Default)]
pub struct Looks {
    pub looks: u64,
    pub files: u64,
}

/// Ends the watch when it goes, also by a failed assertion, so that the thread beside it ends.
pub struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Watch<'a> {
    pub fn of(directory: &Path, repo: &'a RepoSpec) -> Self {
        Self { directory: directory.to_owned(), repo, done: false.into(), looks: Mutex::default() }
    }

    pub fn flag(&self) -> Flag<'_> {
        Flag(&self.done)
    }

    pub fn looks(&self) -> Looks {
        *self.looks.lock().unwrap()
    }

    /// Every sight of a final name is of right bytes; a receipt is there only when all are.
    pub fn run(&self) {
        let mut seen = HashSet::new();
        let mut total = Looks::default();
        while !self.done.load(Ordering::Relaxed) {
            // First the receipt: what it says must hold for what is looked at after it.
            let receipt = self.receipt();
            let mut missing = Vec::new();
            for file in self.repo.files() {
                let path = self.directory.join(&file.path);
                let Ok(meta) = path.symlink_metadata() else {
                    missing.push(file.path.clone());
                    continue;
                };
                if seen.insert((file.path.clone(), meta.ino(), meta.size(), meta.mtime_nsec(), meta.ctime_nsec())) {
                    // Somebody may start over between the two looks.
                    let Ok(bytes) = std::fs::read(&path) else { continue };
                    assert_eq!(sha256_hex(bytes), file.content.sha256(), "{} under its final name", file.path);
                    total.files += 1;
                }
            }
            if receipt.is_some() && receipt == self.receipt() {
                assert_eq!(missing, Vec::<String>::new(), "missing under a receipt");
            }
            total.looks += 1;
            std::thread::sleep(Duration::from_millis(4));
        }
        *self.looks.lock().unwrap() = total;
    }

    fn receipt(&self) -> Option<u64> {
        self.directory.join(".muster/receipt.json").metadata().ok().map(|meta| meta.ino())
    }
}

/// Whether every file of the repository is there with the right bytes.
pub fn is_whole(directory: &Path, repo: &RepoSpec) -> bool {
    repo.files().all(|file| {
        std::fs::read(directory.join(&file.path)).is_ok_and(|bytes| sha256_hex(bytes) == file.content.sha256())
    })
}

/// An open gate is the truth. Whether it is open.
#[track_caller]
pub fn assert_gate_is_right(world: &Muster, model: &str, repo: &RepoSpec) -> bool {
    let out = world.args(["gate", model, "--no-remember"]).run();
    match out.code {
        Some(0) => assert!(is_whole(&world.model(model), repo), "the gate opened early: {out}"),
        Some(10 | 13 | 15) => {}
        _ => panic!("{out}"),
    }
    out.code == Some(0)
}
