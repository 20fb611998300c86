//! File systems of a test's own: an image file behind a loop device, or a tmpfs, mounted in a
//! temporary folder and taken down when the value goes, however the test ends.
//!
//! Nothing is undone but what was made here: the mount point, and the loop device by the name that
//! was given when the file was attached.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::wait_until;

/// A kind of file system that lies on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Flags of its `mkfs` that make it quiet, small files good enough, and all of the room there.
    const fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["-q", "-F", "-m", "0"],
            Self::Xfs => &["-q", "-f", "-m", "reflink=1"],
            Self::Btrfs => &["-q", "-f"],
        }
    }
}

/// Why file systems of this kind cannot be made here, if they cannot.
pub fn cannot_mount(kinds: &[Kind]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root may mount".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there are no loop devices".to_owned());
    }
    let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
    kinds.iter().find_map(|kind| {
        let name = kind.name();
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(format!("mkfs.{name}")).exists()) {
            return Some(format!("there is no mkfs.{name}"));
        }
        // A module that is not loaded yet is not listed; loading it is the kernel's own business.
        let there = known.lines().any(|line| line.trim() == name)
            || Command::new("modprobe").arg(name).status().is_ok_and(|status| status.success());
        (!there).then(|| format!("the kernel knows no {name}"))
    })
}

/// A mounted file system; dropped, it is unmounted and its device is given back.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
    mounted: bool,
    device: Option<Device>,
    kind: Option<Kind>,
}

/// A loop device.
#[derive(Debug)]
pub struct Device(PathBuf);

impl Disk {
    /// Makes a sparse image of `bytes`, a file system in it, and mounts that at `at`, which is made.
    #[track_caller]
    pub fn make(image: &Path, bytes: u64, kind: Kind, flags: &[&str], at: &Path) -> Self {
        std::fs::File::create_new(image).and_then(|file| file.set_len(bytes)).expect("an image");
        let name = format!("mkfs.{}", kind.name());
        let all = kind.flags().iter().chain(flags).map(OsStr::new).chain([image.as_os_str()]);
        run(Command::new(name).args(all));
        Self::mount(image, kind, "", at)
    }

    /// Mounts the file system of an image at `at`.
    #[track_caller]
    pub fn mount(image: &Path, kind: Kind, options: &str, at: &Path) -> Self {
        std::fs::create_dir_all(at).expect("a mount point");
        let out = run(Command::new("losetup").args(["--find", "--show"]).arg(image));
        let device = Device(PathBuf::from(out.trim()));
        // The setting outlives the last user of a device, and the device is given out again.
        device.cache("write back");
        let mut disk = Self { at: at.to_owned(), mounted: false, device: Some(device), kind: Some(kind) };
        let mut mount = Command::new("mount");
        mount.args(["-t", kind.name()]);
        if !options.is_empty() {
            mount.args(["-o", options]);
        }
        run(mount.arg(disk.device()).arg(at));
        disk.mounted = true;
        disk
    }

    /// Mounts a tmpfs with these options at `at`, which is made.
    #[track_caller]
    pub fn tmpfs(options: &str, at: &Path) -> Self {
        std::fs::create_dir_all(at).expect("a mount point");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at));
        Self { at: at.to_owned(), mounted: true, device: None, kind: None }
    }

    /// Where it is mounted.
    pub fn at(&self) -> &Path {
        &self.at
    }

    /// Its loop device.
    pub fn device(&self) -> &Path {
        &self.device.as_ref().expect("a tmpfs has none").0
    }

    /// Mounts it again with other options: `ro`, `size=…`.
    #[track_caller]
    pub fn remount(&self, options: &str) {
        run(Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&self.at));
    }

    /// Takes everything as durable that was written to the device: a sync of what lies below costs
    /// nothing any more. For devices that no drill cuts.
    pub fn trust(&self) {
        self.device.as_ref().expect("a tmpfs has none").cache("write through");
    }

    /// Unmounts it and gives its device back, and says when that fails.
    #[track_caller]
    pub fn unmount(mut self) {
        let at = self.at.clone();
        wait_until(&format!("{} is unmounted", at.display()), Duration::from_secs(20), || {
            Command::new("umount").arg(&at).output().is_ok_and(|out| out.status.success())
        });
        self.mounted = false;
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.mounted && !run_quietly(Command::new("umount").arg(&self.at)) {
            // Somebody still works there: it goes with the last of them.
            run_quietly(Command::new("umount").arg("--lazy").arg(&self.at));
        }
        if let (Some(Kind::Btrfs), Some(Device(device))) = (self.kind, &self.device) {
            // Its copies have the same name inside, and the kernel remembers where it saw that.
            run_quietly(Command::new("btrfs").args(["device", "scan", "--forget"]).arg(device));
        }
    }
}

impl Device {
    fn cache(&self, how: &str) {
        let name = self.0.file_name().expect("a device");
        // A kernel that has no such setting sends every sync, which is only slower.
        let _ = std::fs::write(Path::new("/sys/block").join(name).join("queue/write_cache"), how);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.cache("write back");
        run_quietly(Command::new("losetup").arg("--detach").arg(&self.0));
    }
}

/// Copies a file in one instant: nobody writes to it meanwhile, and both share their blocks. Both lie
/// on one XFS or btrfs.
#[track_caller]
pub fn clone_file(from: &Path, to: &Path) {
    let source = std::fs::File::open(from).expect("the file to copy");
    let target = std::fs::File::create_new(to).expect("the copy");
    rustix::fs::ioctl_ficlone(&target, &source).expect("both on a file system that shares blocks");
}

#[track_caller]
fn run(command: &mut Command) -> String {
    let out = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(out.status.success(), "{command:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("text")
}

fn run_quietly(command: &mut Command) -> bool {
    command.output().is_ok_and(|out| out.status.success())
}
