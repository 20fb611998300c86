//! What happens at which step: rules, numbers, the log.

use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use rustix::io::Errno;

/// Longest time that a step is held: nothing hangs for ever because a test forgot it.
const HELD_MAX: Duration = Duration::from_secs(300);

/// What is asked of the file system. Those up to [`Op::Fallocate`] change something: they have numbers and
/// are logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Op {
    Create,
    Write,
    /// A change of length.
    Truncate,
    /// A change of mode, owner or times.
    SetAttr,
    Fsync,
    FsyncDir,
    Rename,
    Link,
    /// Of a file.
    Unlink,
    Rmdir,
    Mkdir,
    Symlink,
    Mknod,
    SetXattr,
    Fallocate,
    Lookup,
    GetAttr,
    Open,
    Read,
    ReadDir,
    StatFs,
    Lock,
    ReadLink,
    GetXattr,
}

impl Op {
    pub fn changes(self) -> bool {
        self <= Self::Fallocate
    }
}

/// Gives a step a name.
pub type Namer = fn(Op, &str) -> String;

/// A pattern for steps.
#[derive(Clone, Debug, Default)]
pub struct At {
    ops: Vec<Op>,
    part: String,
    but: Option<String>,
    kind: Option<(Namer, String)>,
    number: Option<u64>,
    nth: Option<u64>,
    from: u64,
}

impl At {
    /// Every step, also of those that change nothing.
    pub fn any() -> Self {
        Self::default()
    }

    /// Every change.
    pub fn change() -> Self {
        use Op::*;
        Self::ops([
            Create, Write, Truncate, SetAttr, Fsync, FsyncDir, Rename, Link, Unlink, Rmdir, Mkdir, Symlink, Mknod,
            SetXattr, Fallocate,
        ])
    }

    /// Changes that `name` calls `kind`.
    pub fn kind(name: Namer, kind: &str) -> Self {
        Self { kind: Some((name, kind.to_owned())), ..Self::change() }
    }

    pub fn op(op: Op) -> Self {
        Self::ops([op])
    }

    pub fn ops(ops: impl IntoIterator<Item = Op>) -> Self {
        Self { ops: ops.into_iter().collect(), ..Self::default() }
    }

    /// The change with this number.
    pub fn number(number: u64) -> Self {
        Self { number: Some(number), ..Self::change() }
    }

    /// The path below the root contains `part`; for a rename or link `OLD -> NEW` does.
    pub fn path(mut self, part: &str) -> Self {
        part.clone_into(&mut self.part);
        self
    }

    /// The path does not contain `part`.
    pub fn but(mut self, part: &str) -> Self {
        self.but = Some(part.to_owned());
        self
    }

    /// The n-th step that fits, counted from 1, and only that.
    pub fn nth(mut self, n: u64) -> Self {
        self.nth = Some(n);
        self
    }

    /// The n-th step that fits and all that come after.
    pub fn starting(mut self, n: u64) -> Self {
        self.from = n;
        self
    }

    fn fits(&self, number: u64, op: Op, path: &str) -> bool {
        (self.ops.is_empty() || self.ops.contains(&op))
            && self.number.is_none_or(|wanted| op.changes() && wanted == number)
            && path.contains(&self.part)
            && self.but.as_ref().is_none_or(|part| !path.contains(part))
            && self.kind.as_ref().is_none_or(|(name, kind)| name(op, path) == *kind)
    }
}

/// What happens there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// It is not done, and this is the answer.
    Fail(Errno),
    /// It is done, and this is the answer.
    FailAfter(Errno),
    /// It waits until the rule is lifted, then it is done. Whoever is killed meanwhile waits no longer, and it
    /// is not done.
    Hold,
    /// It is done, and the answer waits until the rule is lifted.
    HoldAfter,
    /// The process that asks is killed; it is not done.
    Kill,
    /// It is done; then the process that asked is killed.
    KillAfter,
    /// The power goes before.
    Cut,
    /// It is done; then the power goes.
    CutAfter,
    /// It is not done, and the answer is yes. For what has no other answer: syncs, removals, `fallocate`.
    Pretend,
    /// For a write: only so many bytes of it are done, and that is the answer.
    Short(u32),
    /// For a read: it is done, and one bit of the answer is wrong.
    Lie,
}

/// One change that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub number: u64,
    pub op: Op,
    /// Below the root; `OLD -> NEW` for renames and links.
    pub path: String,
    /// Bytes of a write.
    pub bytes: u64,
    /// The process that asked.
    pub pid: u32,
}

impl std::fmt::Display for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?} {} {}", self.number, self.op, self.path, self.bytes)
    }
}

/// A rule that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleId(usize);

#[derive(Default)]
pub(super) struct Rules {
    book: Mutex<Book>,
    changed: Condvar,
}

#[derive(Default)]
struct Book {
    rules: Vec<Rule>,
    log: Vec<Step>,
    ended: bool,
}

struct Rule {
    at: At,
    act: Act,
    fitted: u64,
    played: u64,
    /// The last step it played at.
    met: Option<Step>,
    live: bool,
}

impl Rules {
    pub(super) fn add(&self, at: At, act: Act) -> RuleId {
        let mut book = self.book.lock().unwrap();
        book.rules.push(Rule { at, act, fitted: 0, played: 0, met: None, live: true });
        RuleId(book.rules.len() - 1)
    }

    pub(super) fn lift(&self, RuleId(rule): RuleId) {
        self.book.lock().unwrap().rules[rule].live = false;
        self.changed.notify_all();
    }

    pub(super) fn lift_all(&self) {
        self.book.lock().unwrap().rules.iter_mut().for_each(|rule| rule.live = false);
        self.changed.notify_all();
    }

    pub(super) fn played(&self, RuleId(rule): RuleId) -> u64 {
        self.book.lock().unwrap().rules[rule].played
    }

    pub(super) fn met(&self, RuleId(rule): RuleId) -> Option<Step> {
        self.book.lock().unwrap().rules[rule].met.clone()
    }

    pub(super) fn log(&self) -> Vec<Step> {
        self.book.lock().unwrap().log.clone()
    }

    pub(super) fn forget(&self) {
        self.book.lock().unwrap().log.clear();
    }

    /// Lets everything go that is held, for good.
    pub(super) fn end(&self) {
        let mut book = self.book.lock().unwrap();
        book.ended = true;
        drop(book);
        self.changed.notify_all();
    }

    /// Numbers and logs a step, and says what is to happen.
    pub(super) fn look(&self, op: Op, path: &str, bytes: u64, pid: u32) -> Option<(RuleId, Act)> {
        let mut book = self.book.lock().unwrap();
        let number = book.log.len() as u64 + u64::from(op.changes());
        let step = Step { number, op, path: path.to_owned(), bytes, pid };
        if op.changes() {
            book.log.push(step.clone());
        }
        let mut found = None;
        for (at, rule) in book.rules.iter_mut().enumerate() {
            if !rule.live || !rule.at.fits(number, op, path) {
                continue;
            }
            rule.fitted += 1;
            let plays = rule.at.nth.is_none_or(|n| rule.fitted == n) && rule.fitted >= rule.at.from;
            if plays && found.is_none() {
                rule.played += 1;
                rule.met = Some(step.clone());
                found = Some((RuleId(at), rule.act));
            }
        }
        drop(book);
        self.changed.notify_all();
        found
    }

    /// Waits until the rule is lifted. `false` when whoever asked is being killed, or everything ends.
    pub(super) fn hold(&self, RuleId(rule): RuleId, pid: u32) -> bool {
        let start = Instant::now();
        let mut book = self.book.lock().unwrap();
        while book.rules[rule].live && !book.ended && start.elapsed() < HELD_MAX {
            book = self.changed.wait_timeout(book, Duration::from_millis(20)).unwrap().0;
            if is_being_killed(pid) {
                return false;
            }
        }
        !book.ended && start.elapsed() < HELD_MAX
    }
}

/// Whether a task has SIGKILL pending: the kernel lets it wait for us all the same.
pub(super) fn is_being_killed(tid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{tid}/status")) else { return tid != 0 };
    let pending = |name: &str| {
        let mask = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        u64::from_str_radix(mask.trim(), 16).unwrap_or(0) & (1 << 8) != 0
    };
    pending("SigPnd:") || pending("ShdPnd:")
}

/// SIGKILL for the process of a task.
pub(super) fn kill(tid: u32) {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")).and_then(|id| id.trim().parse().ok());
    if let Some(pid) = process.and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
