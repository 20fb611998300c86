//! The answers to the kernel: everything goes to the backing folder, past the rules.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Gid, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
    Uid,
};
use rustix::io::Errno;

use super::nodes::{Nodes, Result, kind_of};
use super::power::Power;
use super::rules::{Act, Op, Rules, is_being_killed, kill};
use super::times::Times;

/// Nothing is believed for any time: what another mount of the folder does is seen at once.
const TTL: Duration = Duration::ZERO;
const GENERATION: Generation = Generation(0);
const WRITE_MAX: u32 = 1 << 20;
/// Bits of `open(2)` that are meant for the kernel or are done by it.
const OPEN_MASK: u32 = 0o3 | 0o2000 | 0o4000 | 0o10_000 | 0o4_010_000;

/// An entry of a folder: number, kind, name.
type Listed = (u64, FileType, OsString);

/// What the kernel is answered with.
pub(super) struct Served {
    pub(super) nodes: Nodes,
    pub(super) rules: Rules,
    pub(super) times: Times,
    pub(super) power: Mutex<Option<Power>>,
    pub(super) locks_lie: AtomicBool,
    files: Mutex<HashMap<u64, Arc<File>>>,
    folders: Mutex<HashMap<u64, Arc<Vec<Listed>>>>,
    next: AtomicU64,
    cut: AtomicBool,
    /// Read-held while something is done; the cut waits for it.
    doing: RwLock<()>,
}

pub(super) struct Handle(pub(super) Arc<Served>);

impl Served {
    pub(super) fn new(backing: &Path) -> Result<Self> {
        Ok(Self {
            nodes: Nodes::new(backing)?,
            rules: Rules::default(),
            times: Times::default(),
            power: Mutex::new(None),
            locks_lie: AtomicBool::new(false),
            files: Mutex::default(),
            folders: Mutex::default(),
            next: AtomicU64::new(1),
            cut: AtomicBool::new(false),
            doing: RwLock::new(()),
        })
    }

    pub(super) fn cut(&self) {
        let _nothing_half = self.doing.write().unwrap();
        self.cut.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::SeqCst)
    }

    pub(super) fn end(&self) {
        self.rules.end();
    }

    /// Does what is asked, unless a rule says otherwise. `pretended` is the answer for what was only pretended.
    fn ask<T>(
        &self,
        request: &Request,
        (op, path, bytes): (Op, &str, u64),
        pretended: Option<T>,
        work: impl FnOnce(Option<Act>) -> Result<T>,
    ) -> Result<T> {
        let pid = request.pid();
        if self.is_cut() {
            return Err(Errno::IO);
        }
        let found = self.rules.look(op, path, bytes, pid);
        let act = found.map(|(_, act)| act);
        match found {
            Some((_, Act::Fail(errno))) => return Err(errno),
            Some((rule, Act::Hold)) if !self.rules.hold(rule, pid) => return Err(Errno::INTR),
            Some((_, Act::Kill)) => {
                kill(pid);
                return Err(Errno::INTR);
            }
            Some((_, Act::Cut)) => self.cut(),
            Some((_, Act::Pretend)) => {
                if let Some(answer) = pretended {
                    return Ok(answer);
                }
            }
            _ => {}
        }
        let done = {
            let _doing = self.doing.read().unwrap();
            if self.is_cut() {
                return Err(Errno::IO);
            }
            work(act)
        };
        match found {
            Some((_, Act::FailAfter(errno))) => Err(errno),
            Some((_, Act::CutAfter)) => {
                self.cut();
                Err(Errno::IO)
            }
            Some((_, Act::KillAfter)) => {
                kill(pid);
                done
            }
            Some((rule, Act::HoldAfter)) => {
                self.rules.hold(rule, pid);
                done
            }
            _ => done,
        }
    }

    fn attr(&self, stat: &Stat) -> FileAttr {
        let path = self.nodes.path(stat.st_ino);
        self.nodes.attr(stat, &self.times, &path)
    }

    fn handle(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    fn keep(&self, file: File) -> FileHandle {
        let handle = self.handle();
        self.files.lock().unwrap().insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> Result<Arc<File>> {
        self.files.lock().unwrap().get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    /// Gives a new entry the owner and mode that the caller wanted, and makes it known.
    fn settle_new(&self, request: &Request, parent: u64, name: &OsStr, mode: Option<u32>) -> Result<Stat> {
        let stat = self.nodes.find(parent, name, 1)?;
        let folder = self.nodes.get(parent)?;
        if request.uid() != stat.st_uid || request.gid() != stat.st_gid {
            let inherits = self.nodes.stat(parent)?.st_mode & 0o2000 != 0;
            let group = if inherits { None } else { Some(Gid::from_raw(request.gid())) };
            rustix::fs::chownat(&folder, name, Some(Uid::from_raw(request.uid())), group, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = mode
            && stat.st_mode & 0o777 != mode & 0o777
        {
            let wanted = Mode::from_raw_mode(mode & 0o777 | stat.st_mode & 0o7000);
            rustix::fs::chmodat(&folder, name, wanted, AtFlags::empty())?;
        }
        self.nodes.stat(stat.st_ino)
    }

    fn make(
        &self,
        request: &Request,
        op: Op,
        (parent, name, mode): (INodeNo, &OsStr, Option<u32>),
        work: impl FnOnce(&std::os::fd::OwnedFd) -> Result<()>,
    ) -> Result<Stat> {
        let parent = self.nodes.number(parent);
        let path = self.nodes.path_in(parent, name);
        self.ask(request, (op, &path, 0), None, |_| {
            let mut power = self.power.lock().unwrap();
            work(&*self.nodes.get(parent)?)?;
            let stat = self.settle_new(request, parent, name, mode)?;
            if let Some(power) = &mut *power {
                power.made(&self.nodes, parent, name, &stat)?;
            }
            Ok(stat)
        })
    }

    fn remove(&self, request: &Request, op: Op, parent: INodeNo, name: &OsStr) -> Result<()> {
        let parent = self.nodes.number(parent);
        let path = self.nodes.path_in(parent, name);
        self.ask(request, (op, &path, 0), Some(()), |_| {
            let mut power = self.power.lock().unwrap();
            let folder = self.nodes.get(parent)?;
            match &mut *power {
                Some(power) if op == Op::Rmdir => power.bury_folder(&self.nodes, parent, name)?,
                other => {
                    if let Some(power) = other {
                        power.bury(parent, name)?;
                    }
                    let flags = if op == Op::Rmdir { AtFlags::REMOVEDIR } else { AtFlags::empty() };
                    rustix::fs::unlinkat(&folder, name, flags)?;
                }
            }
            if let Some(power) = &mut *power {
                power.removed(parent, name);
            }
            Ok(())
        })
    }

    fn rename(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        (new_parent, new_name): (INodeNo, &OsStr),
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (self.nodes.number(parent), self.nodes.number(new_parent));
        let path = format!("{} -> {}", self.nodes.path_in(from, name), self.nodes.path_in(to, new_name));
        self.ask(request, (Op::Rename, &path, 0), Some(()), |_| {
            let mut power = self.power.lock().unwrap();
            let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
            let asked = rustix::fs::RenameFlags::from_bits_retain(flags.bits());
            if let Some(power) = &mut *power
                && flags.is_empty()
            {
                power.bury(to, new_name)?;
            }
            rustix::fs::renameat_with(self.nodes.get(from)?, name, self.nodes.get(to)?, new_name, asked)?;
            if let Some(power) = &mut *power {
                power.renamed((from, name), (to, new_name), exchange);
            }
            Ok(())
        })
    }

    fn write(&self, request: &Request, ino: INodeNo, handle: FileHandle, at: u64, bytes: &[u8]) -> Result<u32> {
        let ino = self.nodes.number(ino);
        let len = bytes.len() as u32;
        self.ask(request, (Op::Write, &self.nodes.path(ino), bytes.len() as u64), Some(len), |act| {
            let bytes = match act {
                Some(Act::Short(most)) => &bytes[..bytes.len().min(most as usize)],
                _ => bytes,
            };
            let mut power = self.power.lock().unwrap();
            if let Some(power) = &mut *power {
                power.touch(ino, at, bytes.len() as u64)?;
            }
            self.file(handle)?.write_all_at(bytes, at).map_err(|error| errno(&error))?;
            Ok(bytes.len() as u32)
        })
    }

    fn set(&self, request: &Request, ino: INodeNo, wish: &Wish) -> Result<Stat> {
        let ino = self.nodes.number(ino);
        let op = if wish.size.is_some() { Op::Truncate } else { Op::SetAttr };
        self.ask(request, (op, &self.nodes.path(ino), wish.size.unwrap_or(0)), None, |_| {
            let mut power = self.power.lock().unwrap();
            let (path, stat) = (self.nodes.reach(ino)?, self.nodes.stat(ino)?);
            if let Some(power) = &mut *power
                && kind_of(&stat) == FileType::RegularFile
            {
                let (now, size) = (stat.st_size as u64, wish.size.unwrap_or(stat.st_size as u64));
                power.touch_attributes(ino)?;
                if now != size {
                    power.touch(ino, now.min(size), now.abs_diff(size))?;
                }
            }
            if let Some(size) = wish.size {
                let file = rustix::fs::open(&path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
                rustix::fs::ftruncate(file, size)?;
            }
            if let Some(mode) = wish.mode {
                rustix::fs::chmodat(CWD, &path, Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
            }
            if wish.uid.is_some() || wish.gid.is_some() {
                let (uid, gid) = (wish.uid.map(Uid::from_raw), wish.gid.map(Gid::from_raw));
                rustix::fs::chownat(CWD, &path, uid, gid, AtFlags::empty())?;
            }
            if wish.atime.is_some() || wish.mtime.is_some() {
                let times = Timestamps { last_access: time(wish.atime), last_modification: time(wish.mtime) };
                rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty())?;
            }
            self.nodes.stat(ino)
        })
    }

    fn sync(&self, request: &Request, ino: INodeNo, data_only: bool) -> Result<()> {
        let ino = self.nodes.number(ino);
        let asked = self.ask(request, (Op::Fsync, &self.nodes.path(ino), 0), Some(()), |_| {
            self.power.lock().unwrap().as_mut().map_or(Ok(()), |power| power.synced(ino, data_only))
        });
        if asked.is_err()
            && !self.is_cut()
            && let Some(power) = &mut *self.power.lock().unwrap()
        {
            power.sync_failed(ino)?;
        }
        asked
    }

    fn sync_names(&self, request: &Request, ino: INodeNo) -> Result<()> {
        let ino = self.nodes.number(ino);
        self.ask(request, (Op::FsyncDir, &self.nodes.path(ino), 0), Some(()), |_| {
            if let Some(power) = &mut *self.power.lock().unwrap() {
                power.synced_names(ino);
            }
            Ok(())
        })
    }

    fn list(&self, request: &Request, ino: INodeNo) -> Result<Vec<Listed>> {
        let ino = self.nodes.number(ino);
        self.ask(request, (Op::ReadDir, &self.nodes.path(ino), 0), None, |_| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let folder = rustix::fs::openat(self.nodes.get(ino)?, c".", flags, Mode::empty())?;
            let mut entries = Vec::new();
            for entry in rustix::fs::Dir::new(folder)? {
                use std::os::unix::ffi::OsStrExt as _;
                let entry = entry?;
                let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
                entries.push((entry.ino(), super::nodes::kind(entry.file_type()), name));
            }
            Ok(entries)
        })
    }

    /// `flock`, on our own descriptor for the caller's: the kernel keeps nothing of it.
    fn lock(&self, request: &Request, ino: INodeNo, handle: FileHandle, kind: i32, wait: bool) -> Result<()> {
        let path = self.nodes.path(self.nodes.number(ino));
        self.ask(request, (Op::Lock, &path, 0), Some(()), |_| Ok(()))?;
        if self.locks_lie.load(Ordering::SeqCst) {
            return Ok(());
        }
        let file = self.file(handle)?;
        // F_RDLCK, F_WRLCK, F_UNLCK
        let operation = match kind {
            0 => FlockOperation::NonBlockingLockShared,
            1 => FlockOperation::NonBlockingLockExclusive,
            _ => FlockOperation::Unlock,
        };
        loop {
            match rustix::fs::flock(&*file, operation) {
                Err(Errno::WOULDBLOCK) if wait && !is_being_killed(request.pid()) && !self.is_cut() => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                other => return other,
            }
        }
    }
}

/// What `setattr` asks for.
struct Wish {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
}

fn time(wanted: Option<TimeOrNow>) -> Timespec {
    match wanted {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(TimeOrNow::Now) => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(TimeOrNow::SpecificTime(at)) => timespec(at),
    }
}

fn timespec(at: SystemTime) -> Timespec {
    match at.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec { tv_sec: since.as_secs() as i64, tv_nsec: i64::from(since.subsec_nanos()) },
        Err(_) => Timespec { tv_sec: 0, tv_nsec: 0 },
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

fn told(errno: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(errno.raw_os_error())
}

/// Answers an entry or the error.
macro_rules! entry {
    ($served:expr, $reply:expr, $asked:expr) => {
        match $asked {
            Ok(stat) => $reply.entry(&TTL, &$served.attr(&stat), GENERATION),
            Err(error) => $reply.error(told(error)),
        }
    };
}

macro_rules! empty {
    ($reply:expr, $asked:expr) => {
        match $asked {
            Ok(()) => $reply.ok(),
            Err(error) => $reply.error(told(error)),
        }
    };
}

impl Filesystem for Handle {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        let _ = config.set_max_write(WRITE_MAX);
        let _ = config.add_capabilities(InitFlags::FUSE_FLOCK_LOCKS | InitFlags::FUSE_PARALLEL_DIROPS);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let served = &self.0;
        let parent = served.nodes.number(parent);
        let path = served.nodes.path_in(parent, name);
        let found = served.ask(request, (Op::Lookup, &path, 0), None, |_| served.nodes.find(parent, name, 1));
        entry!(served, reply, found);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, lookups: u64) {
        self.0.nodes.forget(self.0.nodes.number(ino), lookups);
    }

    fn getattr(&self, request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let served = &self.0;
        let ino = served.nodes.number(ino);
        let asked = (Op::GetAttr, &*served.nodes.path(ino), 0);
        match served.ask(request, asked, None, |_| served.nodes.stat(ino)) {
            Ok(stat) => reply.attr(&TTL, &served.attr(&stat)),
            Err(error) => reply.error(told(error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.0.set(request, ino, &Wish { mode, uid, gid, size, atime, mtime }) {
            Ok(stat) => reply.attr(&TTL, &self.0.attr(&stat)),
            Err(error) => reply.error(told(error)),
        }
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        let served = &self.0;
        let ino = served.nodes.number(ino);
        let asked = (Op::ReadLink, &*served.nodes.path(ino), 0);
        let link =
            served.ask(request, asked, None, |_| rustix::fs::readlinkat(served.nodes.get(ino)?, c"", Vec::new()));
        match link {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(told(error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let made = self.0.make(request, Op::Mknod, (parent, name, Some(mode)), |folder| {
            let kind = rustix::fs::FileType::from_raw_mode(mode);
            rustix::fs::mknodat(folder, name, kind, Mode::from_raw_mode(mode & 0o7777), rdev.into())
        });
        entry!(self.0, reply, made);
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let made = self.0.make(request, Op::Mkdir, (parent, name, Some(mode)), |folder| {
            rustix::fs::mkdirat(folder, name, Mode::from_raw_mode(mode & 0o7777))
        });
        entry!(self.0, reply, made);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let made = self
            .0
            .make(request, Op::Symlink, (parent, name, None), |folder| rustix::fs::symlinkat(target, folder, name));
        entry!(self.0, reply, made);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty!(reply, self.0.remove(request, Op::Unlink, parent, name));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        empty!(reply, self.0.remove(request, Op::Rmdir, parent, name));
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        empty!(reply, self.0.rename(request, (parent, name), (new_parent, new_name), flags));
    }

    fn link(&self, request: &Request, ino: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let served = &self.0;
        let (ino, parent) = (served.nodes.number(ino), served.nodes.number(parent));
        let path = format!("{} -> {}", served.nodes.path(ino), served.nodes.path_in(parent, name));
        let linked = served.ask(request, (Op::Link, &path, 0), None, |_| {
            let mut power = served.power.lock().unwrap();
            let (from, folder) = (served.nodes.reach(ino)?, served.nodes.get(parent)?);
            rustix::fs::linkat(CWD, &from, &folder, name, AtFlags::SYMLINK_FOLLOW)?;
            let stat = served.nodes.find(parent, name, 1)?;
            if let Some(power) = &mut *power {
                power.made(&served.nodes, parent, name, &stat)?;
            }
            Ok(stat)
        });
        entry!(served, reply, linked);
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let served = &self.0;
        let ino = served.nodes.number(ino);
        let asked = (Op::Open, &*served.nodes.path(ino), 0);
        let opened = served.ask(request, asked, None, |_| {
            let flags = OFlags::from_bits_retain(flags.0 as u32 & OPEN_MASK) | OFlags::CLOEXEC;
            rustix::fs::open(served.nodes.reach(ino)?, flags, Mode::empty())
        });
        match opened {
            Ok(fd) => reply.opened(served.keep(fd.into()), direct()),
            Err(error) => reply.error(told(error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let served = &self.0;
        let mut opened = None;
        let made = served.make(request, Op::Create, (parent, name, Some(mode)), |folder| {
            let asked = OFlags::from_bits_retain(flags as u32 & OPEN_MASK);
            let asked = asked | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            opened = Some(rustix::fs::openat(folder, name, asked, Mode::from_raw_mode(mode & 0o7777))?);
            Ok(())
        });
        match (made, opened) {
            (Ok(stat), Some(fd)) => {
                let handle = served.keep(fd.into());
                reply.created(&TTL, &served.attr(&stat), GENERATION, handle, direct());
            }
            (made, _) => reply.error(told(made.err().unwrap_or(Errno::IO))),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let served = &self.0;
        let asked = (Op::Read, &*served.nodes.path(served.nodes.number(ino)), u64::from(size));
        let read = served.ask(request, asked, Some(Vec::new()), |act| {
            let mut bytes = vec![0; size as usize];
            let n = served.file(handle)?.read_at(&mut bytes, offset).map_err(|error| errno(&error))?;
            bytes.truncate(n);
            if let (Some(Act::Lie), Some(byte)) = (act, bytes.last_mut()) {
                *byte ^= 1;
            }
            Ok(bytes)
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(told(error)),
        }
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.0.write(request, ino, handle, offset, data) {
            Ok(n) => reply.written(n),
            Err(error) => reply.error(told(error)),
        }
    }

    fn release(
        &self,
        _request: &Request,
        _ino: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        let file = self.0.files.lock().unwrap().remove(&handle.0);
        drop(file);
        reply.ok();
    }

    fn fsync(&self, request: &Request, ino: INodeNo, _handle: FileHandle, data_only: bool, reply: ReplyEmpty) {
        empty!(reply, self.0.sync(request, ino, data_only));
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.0.handle()), FopenFlags::empty());
    }

    fn readdir(&self, request: &Request, ino: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let served = &self.0;
        if offset == 0 {
            match served.list(request, ino) {
                Ok(entries) => drop(served.folders.lock().unwrap().insert(handle.0, Arc::new(entries))),
                Err(error) => return reply.error(told(error)),
            }
        }
        let entries = served.folders.lock().unwrap().get(&handle.0).cloned().unwrap_or_default();
        for (at, (ino, kind, name)) in entries.iter().enumerate().skip(offset as usize) {
            if reply.add(served.nodes.told(*ino), at as u64 + 1, *kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _request: &Request, _ino: INodeNo, handle: FileHandle, _flags: OpenFlags, reply: ReplyEmpty) {
        self.0.folders.lock().unwrap().remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, request: &Request, ino: INodeNo, _handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        empty!(reply, self.0.sync_names(request, ino));
    }

    fn statfs(&self, request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let served = &self.0;
        let asked = served.ask(request, (Op::StatFs, "", 0), None, |_| {
            rustix::fs::fstatvfs(&*served.nodes.get(served.nodes.root())?)
        });
        match asked {
            Ok(s) => reply.statfs(
                s.f_blocks,
                s.f_bfree,
                s.f_bavail,
                s.f_files,
                s.f_ffree,
                s.f_bsize as u32,
                s.f_namemax as u32,
                s.f_frsize as u32,
            ),
            Err(error) => reply.error(told(error)),
        }
    }

    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _owner: LockOwner,
        _start: u64,
        _end: u64,
        kind: i32,
        _pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        empty!(reply, self.0.lock(request, ino, handle, kind, sleep));
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let served = &self.0;
        let ino = served.nodes.number(ino);
        let asked = (Op::Fallocate, &*served.nodes.path(ino), length);
        let done = served.ask(request, asked, Some(()), |_| {
            let mode = FallocateFlags::from_bits_retain(mode as u32);
            let mut power = served.power.lock().unwrap();
            if let Some(power) = &mut *power {
                power.touch_attributes(ino)?;
            }
            rustix::fs::fallocate(&*served.file(handle)?, mode, offset, length)
        });
        empty!(reply, done);
    }
}

/// Past the kernel's cache: each `read` and `write` of a program is one of ours.
fn direct() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
}
