//! A local user swaps folders of ours and files of the model for links, again and again, while somebody
//! works there: nothing outside is written, removed or taken for the model's.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::ground::*;
use super::leases::ended_well;
use super::support::*;

/// Swaps a name for a link while `work` runs; returns how often. At the end the name is what it was.
fn while_swapped(name: &Path, target: &Path, work: impl FnOnce()) -> u32 {
    let link = name.parent().unwrap().join(".a-link");
    std::os::unix::fs::symlink(target, &link).unwrap();
    let over = AtomicBool::new(false);
    let swaps = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0u32;
            while !over.load(Ordering::Relaxed) || swaps % 2 == 1 {
                // Not there for a moment while somebody makes or moves it.
                swaps += u32::from(renameat_with(CWD, name, CWD, &link, RenameFlags::EXCHANGE).is_ok());
                if over.load(Ordering::Relaxed)
                    && (name.symlink_metadata().is_err() || link.symlink_metadata().is_err())
                {
                    break;
                }
                std::thread::sleep(Duration::from_micros(300));
            }
            swaps
        });
        let over = Flag(&over);
        work();
        drop(over);
        swapper.join().unwrap()
    });
    for at in [&link, name] {
        if at.is_symlink() {
            std::fs::remove_file(at).unwrap();
        }
    }
    swaps
}

// class: writers, names
#[test]
fn folders_of_ours_and_files_swapped_for_links_steer_no_update_gate_verify_or_removal() {
    ended_well("swapped_links");
}

pub fn swapped_links() {
    let repo = RepoSpec::kimi(2, 64 << 10, 3).named("org/model");
    let small = "config.json";
    for (place, target) in [
        ("org/model/.muster", "folder"),
        ("org/model/.muster/partial", "folder"),
        ("org/model/.muster/retired", "folder"),
        ("org/model/.muster/receipt.json", "file"),
        ("org/model/config.json", "file"),
        (".muster/quarantine", "folder"),
        (".muster/retired", "folder"),
        (".muster/owners", "folder"),
        ("org/model", "folder"),
    ] {
        let hub = Hub::start(repo.clone());
        let world = Muster::on(&hub);
        let outside = world.home().join("outside");
        std::fs::create_dir_all(outside.join("folder/.muster")).unwrap();
        std::fs::write(outside.join("file"), b"somebody's").unwrap();
        std::fs::write(outside.join("folder/config.json"), b"somebody's too").unwrap();
        std::fs::write(outside.join("folder/.muster/receipt.json"), b"{}").unwrap();
        let pull = || world.args(["pull", "org/model", "--no-wait"]).run();
        pull().expect_code(0);
        // So that every folder of ours is there.
        flip_byte(&world.model("org/model").join(small), 1);
        world.args(["verify", "org/model", "--quarantine"]).run().expect_code(11);
        pull().expect_code(0);
        hub.push("org/model", "main", |repo| repo.plain(small, "{\"new\": 1}"));
        pull().expect_code(0);
        std::fs::create_dir_all(world.volume().join(".muster/retired")).unwrap();
        let before = trace(&outside);
        let name = world.volume().join(place);
        let swaps = while_swapped(&name, &outside.join(target), || {
            for round in 0..3 {
                hub.push("org/model", "main", |repo| repo.plain(small, format!("{{\"new\": {}}}", round + 2)));
                for out in [
                    pull(),
                    world.args(["gate", "org/model"]).run(),
                    world.args(["verify", "org/model", "--quarantine"]).run(),
                    world.args(["remove", "org/model"]).run(),
                ] {
                    let told = matches!(out.code, Some(0 | 2 | 10 | 11 | 13 | 14 | 15 | 18));
                    assert!(told, "{place}: {out}");
                    assert!(!out.all().contains("panicked"), "{place}: {out}");
                    assert_eq!(trace(&outside), before, "{place}: something outside changed: {out}");
                }
            }
        });
        assert!(swaps > 20, "{place}: {swaps} swaps are no test");
    }
}
