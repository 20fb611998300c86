//! Server text is never a path, and nobody steers our writes (P9): hostile names, names that meet,
//! links planted before and during a pull, and very many files.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test arranges its own world")]

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use support::*;

const MIB: u64 = 1 << 20;
const SOON: Duration = Duration::from_secs(60);
/// Of the bytes that a held hub lets go, so many at most are of its API.
const SLACK: u64 = 128 << 10;

/// Everything below a folder but what is `ours`: kind, inode, mode, and bytes or the link's target.
fn trace(folder: &Path, ours: &[&Path]) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in std::fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            if ours.contains(&path.as_path()) {
                continue;
            }
            let meta = path.symlink_metadata().unwrap();
            let what = if meta.is_dir() {
                open.push(path.clone());
                "folder".to_owned()
            } else if meta.is_symlink() {
                format!("link to {}", std::fs::read_link(&path).unwrap().display())
            } else if meta.is_file() {
                sha256_hex(std::fs::read(&path).unwrap())
            } else {
                "special".to_owned()
            };
            found.insert(path, format!("{what} {} {:o}", meta.ino(), meta.mode()));
        }
    }
    found
}

/// A world with a folder outside of the volume that nobody may touch.
struct Guarded {
    world: Muster,
    outside: PathBuf,
    before: BTreeMap<PathBuf, String>,
}

impl Guarded {
    fn new(hub: &Hub) -> Self {
        let world = Muster::on(hub);
        let outside = world.home().join("outside");
        std::fs::create_dir_all(outside.join("folder")).unwrap();
        std::fs::write(outside.join("file"), b"somebody's").unwrap();
        std::fs::write(outside.join("folder/config.json"), b"somebody's too").unwrap();
        let before = trace(world.home(), &Self::ours(&world).each_ref().map(PathBuf::as_path));
        Self { world, outside, before }
    }

    /// What muster may write: the volume, and the socket where the volume takes none.
    fn ours(world: &Muster) -> [PathBuf; 2] {
        [world.volume().to_owned(), world.home().join("run")]
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let now = trace(self.world.home(), &Self::ours(&self.world).each_ref().map(PathBuf::as_path));
        assert_eq!(now, self.before, "something outside of the volume changed");
    }
}

// class: names
#[test]
fn a_hostile_name_is_refused_before_any_file_is_written_and_named() {
    let (long, deep) = ("x".repeat(256), "d/".repeat(1536) + "x");
    let hostile = [
        "../x",
        "..",
        ".",
        "a/../../b",
        "a/..",
        "./x",
        "a/./b",
        "a//b",
        "a/",
        "/",
        "/etc/x",
        "//host/x",
        "a\\..\\b",
        "..\\x",
        "\\\\host\\s",
        "C:\\x",
        "c:x",
        "Z:/x",
        "nul\0x",
        "new\nline",
        "tab\tx",
        "bell\u{7}",
        "c1\u{85}",
        "esc\u{1b}[2J",
        "\u{7f}",
        ".muster",
        ".muster/manifest.json",
        ".muster/partial/x",
        ".MUSTER/receipt.json",
        ".Muster",
        ".mu\u{17f}ter/x",
        ".mus\u{200d}ter/x",
        long.as_str(),
        deep.as_str(),
    ];
    let repos = hostile.iter().enumerate().map(|(at, name)| {
        RepoSpec::new(&format!("org/n{at}")).plain("config.json", "{}").lfs(name, Content::generated(1, 100))
    });
    let hub = Hub::with(repos);
    let guarded = Guarded::new(&hub);
    for (at, name) in hostile.iter().enumerate() {
        let out = guarded.world.args(["pull", &format!("org/n{at}")]).run();
        assert_eq!(out.code, Some(12), "{name:?}: {out}");
        let shown: String = name.chars().take(100).flat_map(char::escape_debug).collect();
        assert!(out.stderr.contains(&shown), "{name:?} is named: {out}");
        assert!(!out.stderr.contains(|c: char| c.is_control() && c != '\n'), "{name:?} cannot steer a terminal: {out}");
        assert_eq!(listing(guarded.world.volume()), Vec::<String>::new(), "{name:?}");
    }
    assert_eq!(hub.total_body_bytes(), 0);
    guarded.assert_untouched();
}

// class: names
#[test]
fn odd_names_that_are_safe_arrive_as_they_are() {
    let (component, umlauts) = ("x".repeat(255), "ü".repeat(127));
    let path = format!("{}/{}", vec!["d".repeat(250); 12].join("/"), "f".repeat(50));
    assert!(path.len() > 3000);
    let names = [
        "%2e%2e/x",
        "%2e%2e%2fx",
        "a%00b",
        "a?b=c#d",
        "a b  c",
        " ",
        "..a",
        "...",
        "a..",
        "-rf",
        "--help",
        "~",
        "$HOME",
        "*",
        "ab:c",
        "CON",
        "aux.txt",
        "größe/模型.json",
        "one/.muster",
        "two/.muster/x",
        "x.incomplete",
        "a'b\"c`d",
        "\u{202e}gpj",
        "model.safetensors.tmp",
        ".tmp",
        "{}",
        "[x]",
        component.as_str(),
        umlauts.as_str(),
        path.as_str(),
    ];
    let repo = names.iter().enumerate().fold(RepoSpec::new("org/model"), |repo, (at, name)| {
        repo.lfs(name, Content::generated(at as u64, 1000 + at as u64))
    });
    let hub = Hub::start(repo.clone());
    let guarded = Guarded::new(&hub);
    guarded.world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&guarded.world.model("org/model"), &repo);
    guarded.world.args(["gate", "org/model", "--full", "--no-remember"]).run().expect_code(0);
    guarded.assert_untouched();
}

// class: names
#[test]
fn names_that_differ_in_case_or_form_alone_both_arrive_or_are_refused_up_front() {
    let pairs = [("Model.bin", "model.bin"), ("caf\u{e9}.json", "cafe\u{301}.json"), ("Sub/x", "sub/X")];
    let mut repo = RepoSpec::new("org/model");
    for (at, (one, other)) in pairs.iter().enumerate() {
        let at = at as u64;
        repo = repo.lfs(one, Content::generated(2 * at, 5000)).lfs(other, Content::generated(2 * at + 1, 6000));
    }
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let probe = world.home().join("Probe");
    std::fs::write(&probe, b"").unwrap();
    let folds = world.home().join("probe").exists();
    let out = world.args(["pull", "org/model"]).run();
    if folds {
        let out = out.expect_code(17);
        assert!(out.stderr.contains("one name on this volume"), "{out}");
        assert!(!world.model("org/model").exists());
        return;
    }
    out.expect_code(0);
    assert_complete(&world.model("org/model"), &repo);
    let left = listing(&world.volume().join(".muster"));
    assert!(!left.iter().any(|name| name.contains(".tmp")), "the try leaves nothing: {left:?}");
}

// class: names
#[test]
fn a_file_where_another_entry_needs_a_folder_is_refused() {
    let hub = Hub::with([
        RepoSpec::new("org/a").plain("x", "1").plain("x/y", "2"),
        RepoSpec::new("org/b").plain("d/x/y/z", "1").plain("d/x", "2").plain("d/x-1", "3"),
    ]);
    let world = Muster::on(&hub);
    for (id, name) in [("org/a", "x"), ("org/b", "d/x")] {
        let out = world.args(["pull", id]).run().expect_code(17);
        assert!(out.stderr.contains(&format!("{name} is both a file and a folder")), "{out}");
        assert_eq!(listing(world.volume()), Vec::<String>::new());
    }
}

// class: names, progress-lost
#[test]
fn what_a_user_has_where_a_folder_or_a_file_belongs_stays() {
    let repo = RepoSpec::new("org/model").plain("sub/x", "1").plain("y", "2");
    let hub = Hub::start(repo.clone());
    let world = Muster::on(&hub);
    let directory = world.model("org/model");
    std::fs::create_dir_all(directory.join("y/mine")).unwrap();
    std::fs::write(directory.join("sub"), b"mine").unwrap();
    let out = world.args(["pull", "org/model"]).run();
    assert!(matches!(out.code, Some(15 | 18)) && out.stderr.contains("hint"), "{out}");
    assert_eq!(std::fs::read(directory.join("sub")).unwrap(), b"mine");
    assert!(directory.join("y/mine").is_dir());
    assert!(!directory.join(".muster/receipt.json").exists());
    std::fs::remove_file(directory.join("sub")).unwrap();
    std::fs::rename(directory.join("y"), directory.join("z")).unwrap();
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&directory, &repo);
}

/// A small model with files in its root and in a folder.
fn small() -> RepoSpec {
    let repo = RepoSpec::new("org/model").plain("config.json", "{}").lfs("model.bin", Content::generated(1, MIB));
    (0..6).fold(repo, |repo, at| repo.lfs(&format!("sub/{at}.bin"), Content::generated(10 + at, MIB / 4)))
}

// class: names
#[test]
fn links_planted_before_a_pull_lead_nowhere() {
    let repo = small();
    let hub = Hub::start(repo.clone());
    // Where a link stands, and what it leads to outside.
    for (place, target) in [
        ("org", "folder"),
        ("org/model", "folder"),
        ("org/model", "missing"),
        ("org/model/sub", "folder"),
        ("org/model/sub", "missing"),
        ("org/model/config.json", "file"),
        ("org/model/config.json", "folder/config.json"),
        ("org/model/config.json", "missing"),
        ("org/model/sub/0.bin", "file"),
        ("org/model/model.bin", "folder"),
        ("org/model/.muster", "folder"),
        ("org/model/.muster/partial", "folder"),
        ("org/model/.muster/partial", "missing"),
        ("org/model/.muster/manifest.json", "file"),
        ("org/model/.muster/receipt.json", "file"),
        ("org/model/.muster/in-use", "missing"),
        (".muster", "folder"),
        (".muster/owners", "folder"),
        (".muster/state", "folder"),
        (".muster/quarantine", "folder"),
        (".muster/status.json", "file"),
        (".muster/status.json", "missing"),
    ] {
        let guarded = Guarded::new(&hub);
        let world = &guarded.world;
        let link = world.volume().join(place);
        std::fs::create_dir_all(link.parent().unwrap()).unwrap();
        symlink(guarded.outside.join(target), &link).unwrap();
        let out = world.args(["pull", "org/model"]).run();
        guarded.assert_untouched();
        if out.code != Some(0) {
            assert!(matches!(out.code, Some(15 | 18)), "{place} to {target}: {out}");
            let named = place.trim_start_matches("org/model/");
            assert!(out.stderr.contains(named), "{place} to {target}, the link is named: {out}");
            std::fs::remove_file(&link).unwrap();
            world.args(["pull", "org/model"]).run().expect_code(0);
        }
        assert_complete(&world.model("org/model"), &repo);
        // The lock is a courtesy: a link in its place is not followed, and holds nobody up.
        let lock = world.model("org/model").join(".muster/in-use");
        let links = trace(world.volume(), &[&lock]).into_iter().filter(|(_, what)| what.starts_with("link"));
        assert_eq!(links.collect::<Vec<_>>(), [], "{place} to {target}: nothing is complete through a link");
        guarded.assert_untouched();
    }
}

// class: names
#[test]
fn links_planted_during_a_pull_lead_nowhere() {
    let repo = small();
    let hub = Hub::start(repo.clone());
    for (place, target) in [
        ("sub", "folder"),
        ("config.json", "file"),
        ("model.bin", "missing"),
        ("model.bin", "folder"),
        (".muster", "folder"),
        (".muster/partial", "folder"),
        (".muster/receipt.json", "file"),
        (".muster/manifest.json", "file"),
    ] {
        let guarded = Guarded::new(&hub);
        let world = &guarded.world;
        let sent = hub.total_body_bytes();
        hub.hold_after(repo.total_bytes() / 2);
        let child = world.args(["pull", "org/model"]).spawn();
        hub.wait_for_bytes(sent + repo.total_bytes() / 2 - SLACK, SOON);
        let link = world.model("org/model").join(place);
        let aside = world.home().join("volume/aside");
        let moved = std::fs::rename(&link, &aside).is_ok();
        symlink(guarded.outside.join(target), &link).unwrap();
        hub.release();
        let out = child.wait(SOON);
        guarded.assert_untouched();
        assert!(matches!(out.code, Some(0 | 11 | 15 | 18)), "{place} to {target}: {out}");
        let restore = || {
            if link.is_symlink() {
                std::fs::remove_file(&link).unwrap();
                if moved {
                    std::fs::rename(&aside, &link).unwrap();
                }
            }
        };
        if out.code == Some(0) {
            if place == ".muster/partial" {
                // What was open before is finished all the same; what is behind the link is no partial.
                restore();
            }
            assert_complete(&world.model("org/model"), &repo);
        } else {
            let gate = world.args(["gate", "org/model"]).run();
            assert_ne!(gate.code, Some(0), "{place} to {target}: {out}\n{gate}");
        }
        restore();
        world.args(["pull", "org/model"]).run().expect_code(0);
        assert_complete(&world.model("org/model"), &repo);
        guarded.assert_untouched();
    }
}

/// Raised when it goes, also by a failed assertion, so that a thread beside it ends.
struct Flag<'a>(&'a AtomicBool);

impl Drop for Flag<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

// class: names
#[test]
fn a_folder_swapped_for_a_link_again_and_again_steers_no_write() {
    let repo = (0..150).fold(RepoSpec::new("org/model"), |repo, at| {
        repo.lfs(&format!("sub/{at:03}.bin"), Content::generated(at, 2000))
    });
    let hub = Hub::start(repo.clone());
    let guarded = Guarded::new(&hub);
    let world = &guarded.world;
    let directory = world.model("org/model");
    std::fs::create_dir_all(directory.join("sub")).unwrap();
    let link = directory.join("link");
    symlink(guarded.outside.join("folder"), &link).unwrap();
    let done = AtomicBool::new(false);
    let swaps = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0u32;
            while !done.load(Ordering::Relaxed) || swaps % 2 == 1 {
                renameat_with(CWD, directory.join("sub"), CWD, &link, RenameFlags::EXCHANGE).unwrap();
                swaps += 1;
                std::thread::sleep(Duration::from_micros(300));
            }
            swaps
        });
        let over = Flag(&done);
        for _ in 0..3 {
            let out = world.args(["pull", "org/model"]).run();
            assert!(matches!(out.code, Some(0 | 15 | 18)), "{out}");
            guarded.assert_untouched();
        }
        drop(over);
        swapper.join().unwrap()
    });
    assert!(swaps > 100, "{swaps} swaps are no test");
    assert!(directory.join("sub").is_dir() && !directory.join("sub").is_symlink());
    world.args(["pull", "org/model"]).run().expect_code(0);
    assert_complete(&directory, &repo);
    guarded.assert_untouched();
}

/// A figure of a running process, in KiB.
fn figure(pid: u32, name: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().trim_end_matches(" kB").trim().parse().ok()
}

// class: bounds
#[test]
fn twenty_thousand_files_arrive_in_bounded_time_memory_and_descriptors() {
    let count = 20_000u64;
    let repo = (0..count).fold(RepoSpec::new("org/many"), |repo, at| {
        repo.plain(&format!("data/{:03}/{at:05}.json", at / 100), format!("{{\"at\": {at}}}"))
    });
    let hub = Hub::start(repo.clone());
    // The Hub's own quota of 3,000 files in five minutes would be all that is measured.
    hub.quota("resolvers", 1_000_000, Duration::from_secs(300));
    hub.page_size(5000);
    let world = Muster::on(&hub);
    let mut child = world.args(["pull", "org/many"]).spawn();
    let (pid, started) = (child.id(), Instant::now());
    let (mut peak, mut files) = (0, 0);
    while child.is_running() && started.elapsed() < Duration::from_secs(600) {
        peak = figure(pid, "VmHWM").unwrap_or(0).max(peak);
        files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count).max(files);
        std::thread::sleep(Duration::from_millis(20));
    }
    let out = child.wait(SOON).expect_code(0);
    let rate = count as f64 / out.took.as_secs_f64();
    println!("{count} files in {:?}, {rate:.0} a second, peak {} MiB, {files} descriptors", out.took, peak / 1024);
    assert_complete(&world.model("org/many"), &repo);
    assert!(peak <= 200 << 10, "{peak} KiB");
    assert!(files <= 400, "{files} descriptors");
    let gate = world.args(["gate", "org/many"]).run().expect_code(0);
    assert!(gate.took < Duration::from_secs(30), "{gate}");
}
