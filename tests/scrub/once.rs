//! A volume that reads wrong, or fails, once.

use std::fs;
use std::path::PathBuf;

use rustix::io::Errno;

use crate::faultfs::{Act, At, FaultFs, Op};
use crate::support::*;
use crate::{found, pulled, scrub, shard};

/// The model on a volume that can break.
fn breakable() -> Option<(Hub, Muster, PathBuf, FaultFs)> {
    let (hub, world, directory) = pulled();
    match FaultFs::over(&directory) {
        Ok(fs) => Some((hub, world, directory, fs)),
        Err(why) => {
            skip(&why);
            None
        }
    }
}

// class: wrong-bytes
#[test]
fn a_read_that_is_wrong_or_fails_once_condemns_nothing() {
    let Some((_hub, world, directory, fs)) = breakable() else { return };
    let (file, _) = shard(0);
    let path = directory.to_str().unwrap();
    for act in [Act::Lie, Act::Fail(Errno::IO)] {
        let rule = fs.when(At::op(Op::Read).path(&file).nth(3), act);
        let model = scrub(&world, 0, &[path]);
        assert_eq!((fs.played(rule), found(&model).len()), (1, 0), "{act:?}: {model}");
        assert_eq!((&model["bad_reads"], &model["has_receipt"]), (&1.into(), &true.into()), "{act:?}: {model}");
        fs.lift(rule);
    }
    // Whole files, too.
    fs::remove_file(directory.join(".muster/blocks")).unwrap();
    let rule = fs.when(At::op(Op::Read).path(&file).nth(3), Act::Lie);
    let model = scrub(&world, 0, &[path]);
    assert_eq!((fs.played(rule), &model["bad_reads"], &model["noted_files"]), (1, &1.into(), &2.into()), "{model}");
    let text = world.args(["scrub", path]).run().expect_code(0);
    assert!(text.stdout.contains("nothing is wrong"), "{text}");
    world.args(["gate", path]).run().expect_code(0);
}

// class: wrong-bytes
#[test]
fn what_cannot_be_read_is_named_and_is_not_called_wrong() {
    let Some((_hub, world, directory, fs)) = breakable() else { return };
    let (file, _) = shard(0);
    let path = directory.to_str().unwrap();
    fs.when(At::op(Op::Read).path(&file), Act::Fail(Errno::IO));
    let model = scrub(&world, 18, &[path]);
    let findings = found(&model);
    assert!(findings.iter().all(|(name, _)| *name == file) && findings.len() == 3, "{findings:?}");
    assert_eq!((&model["code"], &model["receipt"]), (&"could_not_check".into(), &"kept".into()), "{model}");
    fs.lift_all();
    assert!(found(&scrub(&world, 0, &[path])).is_empty(), "it can be read again");
}
