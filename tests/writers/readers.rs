//! Who only reads sees each small file whole, whatever is written meanwhile.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::ground::*;
use super::leases::ended_well;
use super::support::*;

const UPDATES: u64 = 200;

/// The small files of volume and model that somebody may read at any time.
fn small_files(volume: &Path) -> Vec<PathBuf> {
    let own = volume.join("org/model/.muster");
    let names = ["manifest.json", "manifest.pending.json", "receipt.json", "receipt.previous.json"];
    let owners = std::fs::read_dir(volume.join(".muster/owners")).unwrap().map(|entry| entry.unwrap().path());
    let records = owners.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    names.map(|name| own.join(name)).into_iter().chain(records).chain([volume.join(".muster/status.json")]).collect()
}

// class: writers, words
#[test]
fn readers_never_see_a_small_file_empty_or_half_during_hundreds_of_updates() {
    ended_well("readers");
}

pub fn readers() {
    let hub = Hub::start(RepoSpec::new("org/model").plain("config.json", "{}").plain("other.json", "{}"));
    let world = Muster::on(&hub);
    let owner = Owner::start(&world);
    let ready = |commit: &str| {
        wait_until("the update is there", SOON, || {
            let model = owner.api.model("org/model");
            assert_ne!(model["state"], "failed", "{model}");
            model["state"] == "ready" && model["commit"] == commit
        });
    };
    owner.api.submit(&hub, "org/model", "org/model", None);
    ready(&hub.commit("org/model", "main"));
    let over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let reader = || {
            let mut seen = 0u64;
            while !over.load(Ordering::Relaxed) {
                for path in small_files(world.volume()) {
                    // Some are not always there; those that are there are whole.
                    let Ok(bytes) = std::fs::read(&path) else { continue };
                    let read: Result<serde_json::Value, _> = serde_json::from_slice(&bytes);
                    let whole = read.is_ok_and(|value| value["schema"].is_u64());
                    assert!(whole, "{}: {:?}", path.display(), String::from_utf8_lossy(&bytes));
                    seen += 1;
                }
            }
            seen
        };
        let reader = scope.spawn(reader);
        let over = Flag(&over);
        for update in 0..UPDATES {
            let edit = |repo: RepoSpec| repo.plain("config.json", format!("{{\"update\": {update}}}"));
            let commit = hub.push("org/model", "main", edit);
            owner.api.submit(&hub, "org/model", "org/model", None);
            ready(&commit);
            if reader.is_finished() {
                break;
            }
        }
        drop(over);
        // What it saw that it must not is what this drill ends with.
        reader.join().unwrap_or_else(|saw| std::panic::resume_unwind(saw))
    });
    assert!(seen > 10 * UPDATES, "{seen} looks are no test");
    assert_complete(&world.model("org/model"), &hub.repo("org/model"));
}
