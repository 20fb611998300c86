//! A false "closed" never happens: whatever is done to a model that leaves its bytes as they are, the gate
//! opens after hashing exactly what has another identity than was verified, and the next one hashes nothing.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::*;

const SOON: Duration = Duration::from_secs(60);
/// Files that are changed in a round, at most.
const AT_ONCE: usize = 12;
/// Past this a change time is told from the next one on every file system of one host, four times over.
const TICK: Duration = Duration::from_millis(40);

/// What the gate calls an identity: read here by the test itself.
type Identity = (u64, u64, i64, i64, i64, i64);

fn identity(path: &Path) -> Identity {
    let meta = path.symlink_metadata().unwrap();
    (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec(), meta.ctime(), meta.ctime_nsec())
}

/// Where a model is, and what gates have seen there.
struct Place {
    directory: PathBuf,
    /// What a gate at this very path hashed, by file.
    remembered: HashMap<String, Identity>,
    /// Undone when the place goes.
    mount: Option<Bind>,
}

/// A directory mounted at a second path.
struct Bind(PathBuf);

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

struct Drill {
    /// Goes first: a mount lies in the world's folder.
    place: Place,
    world: Muster,
    files: Vec<String>,
    /// On the receipt.
    receipted: HashMap<String, Identity>,
    chance: fastrand::Rng,
    folders: Vec<tempfile::TempDir>,
    story: HashMap<&'static str, u64>,
}

// class: gate, verify-cost, permissions
#[test]
fn harmless_changes_open_the_gate_after_hashing_what_changed_and_nothing_twice() {
    let (wanted, seed) = (number("MUSTER_DRILL_CHANGES").unwrap_or(200), seed("MUSTER_DRILL_SEED"));
    println!("MUSTER_DRILL_CHANGES={wanted} MUSTER_DRILL_SEED={seed}");
    let mut drill = Drill::new(seed);
    let (mut made, mut rounds, mut hashed) = (0, 0, 0);
    while made < wanted {
        made += drill.round(wanted - made);
        hashed += drill.gate();
        rounds += 1;
    }
    println!("{made} changes in {rounds} rounds, {hashed} files hashed: {:?}", drill.story);
    assert!(hashed > 0 && drill.story.len() >= 8, "{:?}", drill.story);
}

impl Drill {
    fn new(seed: u64) -> Self {
        let repo = RepoSpec::kimi(6, 64 << 10, 10).named("org/model");
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub);
        world.args(["pull", "org/model"]).run().expect_code(0);
        let directory = world.model("org/model");
        let files: Vec<_> = repo.files().map(|file| file.path.clone()).collect();
        let receipted = files.iter().map(|file| (file.clone(), identity(&directory.join(file)))).collect();
        let place = Place { directory, remembered: HashMap::new(), mount: None };
        let chance = fastrand::Rng::with_seed(seed);
        Self { place, world, files, receipted, chance, folders: Vec::new(), story: HashMap::new() }
    }

    /// Makes some changes, `most` at most, and says how many.
    fn round(&mut self, most: u64) -> u64 {
        let moved = self.chance.u8(..4) == 0 && self.move_on();
        let few = usize::try_from(most).unwrap_or(usize::MAX).min(AT_ONCE) - usize::from(moved);
        let count = self.chance.usize(usize::from(!moved)..=few);
        for _ in 0..count {
            let file = self.chance.choice(&self.files).unwrap().clone();
            self.change(&file);
        }
        (count + usize::from(moved)) as u64
    }

    /// Two gates: the first hashes what changed, the second nothing.
    fn gate(&mut self) -> u64 {
        self.let_the_clock_go_on();
        let now: HashMap<_, _> =
            self.files.iter().map(|file| (file.clone(), identity(&self.place.directory.join(file)))).collect();
        let is_known = |file: &&String| {
            [&self.receipted, &self.place.remembered].iter().any(|known| known.get(*file) == now.get(*file))
        };
        let changed: Vec<_> = self.files.iter().filter(|file| !is_known(file)).cloned().collect();
        for expected in [changed.len() as u64, 0] {
            let out = self.world.args(["gate", self.place.directory.to_str().unwrap(), "--json"]).run().expect_code(0);
            let json = out.json();
            let count = |what: &str| json["files"][what].as_u64().unwrap();
            let found = (count("hashed"), count("trusted"), count("bad"));
            assert_eq!(found, (expected, self.files.len() as u64 - expected, 0), "{changed:?} changed: {out}");
        }
        for file in &changed {
            self.place.remembered.insert(file.clone(), now[file]);
            assert_eq!(identity(&self.place.directory.join(file)), now[file], "the gate changed {file}");
        }
        changed.len() as u64
    }

    /// One change to a file that leaves its bytes as they are.
    fn change(&mut self, file: &str) {
        let path = self.place.directory.join(file);
        let root = rustix::process::geteuid().is_root();
        let what = match self.chance.u8(..9) {
            0 => {
                let mode = *self.chance.choice(&[0o444, 0o600, 0o640, 0o644, 0o664, 0o755]).unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
                "chmod"
            }
            1 if root => {
                chown(&path, Some(self.chance.u32(1000..1010)), Some(self.chance.u32(1000..1010))).unwrap();
                "chown"
            }
            2 => {
                set_times(&path, SystemTime::now());
                "touch"
            }
            3 => {
                set_times(&path, SystemTime::UNIX_EPOCH + Duration::from_secs(self.chance.u64(1..1_700_000_000)));
                "touch --date"
            }
            4 => {
                let copy = path.with_extension("copy");
                fs::copy(&path, &copy).unwrap();
                fs::rename(&copy, &path).unwrap();
                "replaced by a copy"
            }
            5 => {
                let bytes = fs::read(&path).unwrap();
                writable(&path);
                fs::write(&path, bytes).unwrap();
                "written again"
            }
            6 => {
                let link = self.folder_beside().join("second-name");
                fs::hard_link(&path, &link).unwrap();
                fs::remove_file(&link).unwrap();
                "linked"
            }
            7 => {
                let away = path.with_extension("away");
                fs::rename(&path, &away).unwrap();
                fs::rename(&away, &path).unwrap();
                "moved away and back"
            }
            _ => {
                fs::read(&path).unwrap();
                "read"
            }
        };
        self.tell(what);
    }

    /// The whole model goes somewhere else, or is seen there; `false` where that may not be done.
    fn move_on(&mut self) -> bool {
        let target = match self.chance.u8(..6) {
            0 => self.copied(&["-r"], false, "cp -r"),
            1 => self.copied(&["-a"], false, "cp -a"),
            2 => self.copied(&["-a"], true, "cp -a to another file system"),
            3 => self.copied(&["-rL", "--preserve=timestamps"], true, "as rsync to another file system"),
            4 if self.place.mount.is_none() => {
                let target = self.new_folder(false).join("moved");
                // A rename does not leave its file system.
                if fs::rename(&self.place.directory, &target).is_err() {
                    return false;
                }
                self.tell("moved");
                Place { directory: target, remembered: HashMap::new(), mount: None }
            }
            _ => {
                let target = self.new_folder(false).join("mounted");
                fs::create_dir(&target).unwrap();
                let mounted = Command::new("mount").arg("--bind").arg(&self.place.directory).arg(&target).output();
                if !mounted.is_ok_and(|out| out.status.success()) {
                    return false;
                }
                self.tell("another mount");
                let mount = Some(Bind(target.clone()));
                Place { directory: target, remembered: HashMap::new(), mount }
            }
        };
        self.place = target;
        true
    }

    fn copied(&mut self, how: &[&str], elsewhere: bool, what: &'static str) -> Place {
        let directory = self.new_folder(elsewhere).join("copied");
        let out = Command::new("cp").args(how).arg(&self.place.directory).arg(&directory).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        self.tell(what);
        Place { directory, remembered: HashMap::new(), mount: None }
    }

    /// A new folder beside the volume, or in memory.
    fn new_folder(&mut self, elsewhere: bool) -> PathBuf {
        let shm = Path::new("/dev/shm");
        let parent = if elsewhere && shm.is_dir() { shm } else { self.world.home() };
        let folder = tempfile::tempdir_in(parent).unwrap();
        let path = folder.path().to_owned();
        self.folders.push(folder);
        path
    }

    /// A folder on the same file system as the model.
    fn folder_beside(&self) -> PathBuf {
        self.place.directory.join(".muster")
    }

    /// Until it has, nobody can tell the last change from another one, and the gate would rightly hash again.
    fn let_the_clock_go_on(&self) {
        let probe = tempfile::NamedTempFile::new_in(self.folder_beside()).unwrap();
        let now = || {
            probe.as_file().set_modified(SystemTime::now()).unwrap();
            let meta = probe.path().metadata().unwrap();
            Duration::new(meta.ctime().try_into().unwrap(), meta.ctime_nsec().try_into().unwrap())
        };
        let until = now() + TICK;
        wait_until("the clock of the file system goes on", SOON, || now() > until);
    }

    fn tell(&mut self, what: &'static str) {
        *self.story.entry(what).or_default() += 1;
    }
}

fn writable(path: &Path) {
    if !rustix::process::geteuid().is_root() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }
}

fn set_times(path: &Path, to: SystemTime) {
    let file = fs::File::open(path).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(to).set_accessed(to)).unwrap();
}
