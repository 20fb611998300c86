//! A volume that breaks: a FUSE file system over a plain folder, served by the test's own process.
//!
//! The product makes its system calls itself, so nothing can be slipped under them in the process; here
//! the kernel asks us for every one of them. Owns: the mount, which goes with the value (also after a
//! panic), and what is asked of it: rules that fail, hold, kill or cut the power at a step ([`FaultFs::when`]),
//! the log of every step that changes something ([`FaultFs::log`]), and which of it is durable
//! ([`FaultFs::after_the_cut`]). What `fsync` makes durable is decided here; the disk below is never synced.
//! It is a witness, as `tests/support` is: nothing here may use the crate under test.
//!
//! ```no_run
//! let fs = FaultFs::over(world.volume())?;                    // needs root and /dev/fuse: Err says why not
//! fs.when(At::op(Op::Rename).path("model-00001").nth(1), Act::Fail(Errno::IO));
//! fs.when(At::op(Op::Fsync), Act::Fail(Errno::NOSPC));        // from now on, until `lift`
//! let late = fs.when(At::op(Op::Rename).nth(1), Act::Hold);   // waits until `release(late)`
//! fs.when(At::number(40), Act::Cut);                          // power lost before the 40th change
//! ```
#![allow(dead_code, unused_imports, reason = "each test binary compiles this module and uses a part of it")]
#![allow(unreachable_pub, reason = "`pub` says what tests may use; no test binary exports anything")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "files, threads and clocks belong in a harness; the bans are for the product"
)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "fields of the kernel's own structures, on 64-bit Linux"
)]

mod nodes;
mod power;
mod rules;
mod serve;
mod times;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use rustix::io::Errno;

use nodes::Nodes;
pub use power::Kept;
use power::Power;
pub use rules::{Act, At, Op, RuleId, Step};
use serve::Served;

/// Requests that are worked on at a time. A held one takes one of them.
const THREADS: usize = 24;

/// A mounted file system that breaks as it is told; unmounted when it goes.
pub struct FaultFs {
    served: Arc<Served>,
    backing: PathBuf,
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
}

impl FaultFs {
    /// Mounts over a folder: what was in it is served from beside it (`NAME.backing`), under the same paths.
    pub fn over(folder: &Path) -> Result<Self, String> {
        let mut backing = folder.as_os_str().to_owned();
        backing.push(".backing");
        let backing = PathBuf::from(backing);
        std::fs::rename(folder, &backing).map_err(|e| format!("{}: {e}", folder.display()))?;
        std::fs::create_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        Self::mount(&backing, folder).inspect_err(|_| {
            let _ = std::fs::remove_dir(folder);
            let _ = std::fs::rename(&backing, folder);
        })
    }

    /// Serves a folder at another. Several may serve one folder, as hosts of one shared volume do.
    pub fn mount(backing: &Path, mountpoint: &Path) -> Result<Self, String> {
        raise_open_files();
        let backing = backing.canonicalize().map_err(|e| format!("{}: {e}", backing.display()))?;
        let served = Arc::new(Served::new(&backing).map_err(|e| format!("{}: {e}", backing.display()))?);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("faultfs".into()), MountOption::DefaultPermissions];
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        let session = fuser::spawn_mount(serve::Handle(Arc::clone(&served)), mountpoint, &config)
            .map_err(|e| format!("FUSE cannot be mounted here ({e})"))?;
        Ok(Self { served, backing, mountpoint: mountpoint.to_owned(), session: Some(session) })
    }

    /// The plain folder behind it. What is changed there was changed by nobody as far as rules and log know.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mountpoint
    }

    /// Makes a rule. One with [`At::nth`] or [`At::number`] plays once, others until they are lifted.
    pub fn when(&self, at: At, act: Act) -> RuleId {
        self.served.rules.add(at, act)
    }

    /// Ends a rule; what it holds goes on.
    pub fn lift(&self, rule: RuleId) {
        self.served.rules.lift(rule);
    }

    /// Ends all rules.
    pub fn lift_all(&self) {
        self.served.rules.lift_all();
    }

    /// Lets what a rule holds go on, and ends it.
    pub fn release(&self, rule: RuleId) {
        self.served.rules.lift(rule);
    }

    /// How often a rule has played.
    pub fn played(&self, rule: RuleId) -> u64 {
        self.served.rules.played(rule)
    }

    /// Waits until a rule has played; panics after `limit`.
    #[track_caller]
    pub fn wait_for(&self, rule: RuleId, limit: Duration) {
        let start = std::time::Instant::now();
        while self.played(rule) == 0 {
            assert!(start.elapsed() < limit, "the rule did not play within {limit:?}; last: {:?}", self.log().last());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Every change so far, in order; the first has the number 1.
    pub fn log(&self) -> Vec<Step> {
        self.served.rules.log()
    }

    /// Forgets the log; numbers start at 1 again.
    pub fn forget(&self) {
        self.served.rules.forget();
    }

    /// From now on `flock` says yes to everybody (or again tells the truth).
    pub fn lie_about_locks(&self, lie: bool) {
        self.served.locks_lie.store(lie, std::sync::atomic::Ordering::SeqCst);
    }

    /// All times from this moment on are told so much later (or earlier), as after a clock was set.
    pub fn jump(&self, seconds: i64) {
        self.served.times.jump(seconds);
    }

    /// Times of new `.clock…tmp` files are told some seconds late: who asks the file system for its time before
    /// believing a change time of a network file system then needs not wait two seconds.
    pub fn be_quick(&self) {
        self.served.times.hurry();
    }

    /// Begins to track what is durable. All that is there now is.
    pub fn track_power(&self) {
        *self.served.power.lock().unwrap() = Some(Power::start(&self.served.nodes).unwrap());
    }

    /// Cuts the power now: every later request fails. [`Act::Cut`] does it at a step.
    pub fn cut(&self) {
        self.served.cut();
    }

    pub fn is_cut(&self) -> bool {
        self.served.is_cut()
    }

    /// Ends the mount and leaves in the backing folder what was on the disk when the power went; the processes
    /// that used it were killed before. Then the folder is put where it was mounted, a plain folder again.
    pub fn after_the_cut(mut self, kept: Kept) -> PathBuf {
        self.served.cut();
        self.unmount();
        if let Some(power) = self.served.power.lock().unwrap().take() {
            power.roll_back(kept).unwrap();
        }
        self.put_back()
    }

    /// Ends the mount and puts the backing folder where it was mounted.
    pub fn end(mut self) -> PathBuf {
        self.unmount();
        self.put_back()
    }

    fn put_back(&self) -> PathBuf {
        std::fs::rename(&self.backing, &self.mountpoint).expect("an empty folder makes room for the backing one");
        self.mountpoint.clone()
    }

    fn unmount(&mut self) {
        self.served.end();
        let Some(session) = self.session.take() else { return };
        // By force, so that whoever waits for an answer gets an error; lazily, so that open files do not hold it;
        // without a look at the folder, which may not answer any more.
        let unmount = Command::new("umount").args(["-n", "-c", "-f", "-l"]).arg(&self.mountpoint).output();
        if !unmount.is_ok_and(|output| output.status.success()) {
            eprintln!("{} could not be unmounted", self.mountpoint.display());
        }
        let _ = session.umount_and_join();
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// Every node that is known and every open file is a descriptor of this process.
fn raise_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
