//! The owner of a volume: what somebody found is told once, and everything is read again in time.

use std::fs;

use serde_json::Value;

use crate::support::*;
use crate::{SOON, found, pulled, rot, scrub, shard};

fn model(owner: &Owner) -> Value {
    let (code, report) = owner.api.get("/v1/models");
    assert_eq!(code, 200);
    report["models"][0].clone()
}

// class: wrong-bytes
#[test]
fn the_owner_learns_what_a_scrub_beside_it_found_and_when_it_is_settled() {
    let (_hub, world, directory) = pulled();
    let owner = Owner::start(&world);
    let path = directory.join(shard(1).0);
    rot(&path, 5);
    assert_eq!(found(&scrub(&world, 11, &["m"])).len(), 1);
    wait_until("the owner knows", SOON, || model(&owner)["state"] == "damaged");
    let damaged = model(&owner);
    assert_eq!(damaged["error"]["code"], "corrupt", "{damaged}");
    assert!(damaged["error"]["hint"].as_str().unwrap().contains("muster repair m"), "{damaged}");
    assert_eq!(damaged["scrub"]["findings"].as_array().unwrap().len(), 1, "{damaged}");
    rot(&path, 5);
    world.args(["verify", "m"]).run().expect_code(0);
    scrub(&world, 0, &["m"]);
    wait_until("it is settled", SOON, || model(&owner)["state"] == "ready");
    let history = world.args(["history", "m"]).run().expect_code(0);
    assert!(history.stdout.contains("damaged") && history.stdout.contains("block 0 is wrong"), "{history}");
}

// class: wrong-bytes
#[test]
fn an_idle_owner_reads_everything_again_in_time_and_closes_the_gate_over_what_is_wrong() {
    let (_hub, world, directory) = pulled();
    let (file, _) = shard(1);
    rot(&directory.join(&file), crate::BLOCK_SIZE + 1);
    let world = world.env("MUSTER_SCRUB_EVERY", "1s").env("MUSTER_SCRUB_LIMIT", "none");
    let mut owner = Owner::start(&world);
    wait_until("it was found", SOON, || model(&owner)["state"] == "damaged");
    let damaged = model(&owner);
    let finding = &damaged["scrub"]["findings"][0];
    assert_eq!((finding["file"].as_str(), finding["block"].as_u64()), (Some(file.as_str()), Some(1)), "{damaged}");
    // The API knows before the log says it.
    owner.process.wait_for_text("block 1 is wrong", SOON);
    assert!(!directory.join(".muster/receipt.json").exists());
    world.args(["gate", "m"]).run().expect_code(10);
}

#[test]
fn without_a_timetable_nothing_is_read_and_a_stop_does_not_wait_for_a_slow_reading() {
    let (_hub, world, directory) = pulled();
    let mut owner = Owner::start(&world);
    wait_until("the record was looked at", SOON, || model(&owner)["scrub"].is_object());
    assert!(model(&owner)["scrub"]["last_at"].is_null(), "{}", model(&owner));
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    // At this rate it would take a day.
    let slow = world.env("MUSTER_SCRUB_EVERY", "1ms").env("MUSTER_SCRUB_LIMIT", "1kB");
    let mut owner = Owner::start(&slow);
    owner.process.terminate();
    owner.process.wait(SOON).expect_code(0);
    assert!(fs::metadata(directory.join(".muster/receipt.json")).is_ok());
}

// class: wrong-bytes
#[test]
fn an_owner_that_may_repairs_what_it_found_and_fetches_no_more_than_its_block() {
    let (hub, world, directory) = pulled();
    let (file, _) = shard(1);
    let path = directory.join(&file);
    let right = fs::read(&path).unwrap();
    rot(&path, crate::BLOCK_SIZE + 1);
    hub.forget();
    let world = world.env("MUSTER_SCRUB_EVERY", "1s").env("MUSTER_SCRUB_LIMIT", "none");
    let world = world.env("MUSTER_SCRUB_REPAIR", "true");
    let owner = Owner::start(&world);
    wait_until("it is repaired", SOON, || model(&owner)["repaired"]["files"][0]["file"] == file.as_str());
    wait_until("the model is ready", SOON, || model(&owner)["state"] == "ready");
    assert_eq!(fs::read(&path).unwrap(), right);
    assert_eq!(hub.bytes_sent_for(&file), crate::BLOCK_SIZE);
    world.args(["gate", "m"]).run().expect_code(0);
}
