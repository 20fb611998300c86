//! Files of ours that somebody else may have written to.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;

use muster::core::claims::{self as format, Claims};
use muster::core::digest::{Digest, Sha256};
use muster::core::fold::Folding;
use muster::core::job::Job;
use muster::core::local_edits::{Expected, LocalEdit, LocalEdits, Published};
use muster::core::manifest::{FileEntry, Manifest};
use muster::core::range_set::RangeSet;
use muster::core::receipt::{self, FileRecord, Receipt};
use muster::core::repo_path::RepoPath;
use muster::gate::remember::{Key, Memory};
use muster::store::records::{self, AuditEntry, OriginMemory, ProgressSnapshot};
use muster::volume::owner::Seen;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::one_line;

/// The manifest that receipts are read against: the one of the seeds.
static MANIFEST: LazyLock<Manifest> = LazyLock::new(|| {
    Manifest::from_json(include_bytes!("../seeds/manifest/two-shards.json")).expect("the seed is a manifest")
});

pub(super) fn manifest(bytes: &[u8]) {
    match Manifest::from_json(bytes) {
        Ok(manifest) => {
            is_sealed(&manifest);
            let again = Manifest::from_json(&manifest.to_json()).expect("what was written can be read");
            assert_eq!((again.id(), &again), (manifest.id(), &manifest));
            let _ = manifest.collision(Folding::ALL);
        }
        Err(error) => drop(one_line(&error)),
    }
}

/// What a sealed manifest promises.
pub(super) fn is_sealed(manifest: &Manifest) {
    let files = manifest.files();
    assert!(files.windows(2).all(|pair| pair[0].path < pair[1].path), "sorted, and no path twice");
    let names: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let mut total = 0u64;
    for file in files {
        is_safe(&file.path);
        assert!(!file.path.ancestors().any(|folder| names.contains(folder)), "a file where a folder has to be");
        assert!(manifest.source().selection.selects(&file.path));
        assert_eq!(manifest.file(&file.path), Some(file));
        total = total.checked_add(file.size).expect("the sizes add up");
    }
    assert_eq!(manifest.total_bytes(), total);
    assert!(i64::try_from(total).is_ok());
    assert!(manifest.shard_count() <= files.len());
}

/// A path that stays below where it starts, by the standard library's reading of paths.
pub(super) fn is_safe(path: &RepoPath) {
    use std::path::{Component, Path};
    let parts: Vec<_> = Path::new(path.as_str()).components().collect();
    assert!(!parts.is_empty() && parts.iter().all(|part| matches!(part, Component::Normal(_))));
    assert_eq!(parts.len(), path.components().count());
    assert!(path.components().all(|part| part.len() <= 255) && path.as_str().len() <= 3072);
    assert!(!path.as_str().chars().any(char::is_control));
    let first = path.components().next().expect("a path has a component");
    assert!(!first.eq_ignore_ascii_case(".muster"));
}

pub(super) fn receipt(bytes: &[u8]) {
    if let Some((_, files)) = receipt::recorded_files(bytes) {
        for file in files {
            is_safe(&file.path);
        }
    }
    match Receipt::from_json(bytes, &MANIFEST) {
        Ok(receipt) => {
            assert_eq!(receipt.files().len(), MANIFEST.files().len());
            assert!(receipt.files().iter().zip(MANIFEST.files()).all(|(record, entry)| record.proves(entry)));
            assert_eq!(Receipt::from_json(&receipt.to_json(), &MANIFEST).expect("it can be read"), receipt);
            let (_, again) = receipt::recorded_files(&receipt.to_json()).expect("it can be read");
            assert_eq!(again, receipt.files());
        }
        Err(error) => drop(one_line(&error)),
    }
}

pub(super) fn local_edits(bytes: &[u8]) {
    let edits = match LocalEdits::from_json(bytes) {
        Ok(edits) => edits,
        Err(error) => return drop(one_line(&error)),
    };
    assert!(edits.files().windows(2).all(|pair| pair[0].path < pair[1].path), "sorted, and no path twice");
    assert_eq!(LocalEdits::from_json(&edits.to_json()).expect("what was written can be read"), edits);
    for edit in edits.files() {
        is_safe(&edit.path);
        assert_eq!(edits.of(&edit.path), Some(edit));
        let reason = edit.reason.to_string();
        assert!(!reason.trim().is_empty() && !reason.chars().any(char::is_control));
    }
    if let Some(words) = muster::core::local_edits::in_words(edits.files()) {
        drop(one_line(&words));
    }
    match Expected::of(MANIFEST.clone(), edits.clone()) {
        Ok(expected) => {
            assert_eq!(expected.manifest().id(), MANIFEST.id());
            for (published, held) in MANIFEST.files().iter().zip(expected.manifest().files()) {
                let edit = edits.of(&published.path);
                assert_eq!(edit.map_or_else(|| published.clone(), LocalEdit::entry), *held);
                assert!(edit.is_none_or(|edit| edit.published == Published::from(published)));
            }
            assert!(i64::try_from(expected.manifest().total_bytes()).is_ok());
        }
        Err(error) => drop(one_line(&error)),
    }
}

/// One byte for the kind of digest, eight for the size, then the claims file: as it is, and, read
/// as pairs of numbers, as one whose checksums are right.
pub(super) fn claims(bytes: &[u8]) {
    let Some((head, rest)) = bytes.split_at_checked(9) else { return };
    let mut size = [0; 8];
    size.copy_from_slice(&head[1..]);
    let kind = if head[0] & 1 == 0 { ("sha256", 32) } else { ("git-sha1", 20) };
    let entry = FileEntry {
        path: RepoPath::parse("a.bin").expect("a path"),
        size: u64::from_le_bytes(size) >> 1,
        digest: Digest::parse(&format!("{}:{}", kind.0, "07".repeat(kind.1))).expect("a digest"),
        xet_hash: None,
    };
    are_believable(rest, &entry);
    let mut right = format::header(&entry).to_vec();
    let (mut claimed, mut noted) = (RangeSet::new(), RangeSet::new());
    for pair in rest.chunks_exact(16) {
        let number = |at: usize| pair[at..at + 8].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        // The highest bit of the start tells a note from a claim.
        let range = Range { start: number(0) & (u64::MAX >> 1), end: number(8) };
        if number(0) >> 63 == 0 {
            right.extend(format::record(&entry, &range));
            claimed.insert(range);
        } else {
            right.extend(format::note(&entry, &range));
            noted.insert(range);
        }
    }
    let found = are_believable(&right, &entry);
    assert!(found.durable.difference(&claimed).is_empty(), "nothing is claimed that was not");
    assert!(found.noted.difference(&noted).is_empty(), "nothing is noted that was not");
    assert!(!format::are_of_other(&right, &entry));
    // A torn end takes claims away, and adds none.
    let torn = are_believable(&right[..right.len() - usize::from(head[0]).min(right.len())], &entry);
    assert!(torn.durable.difference(&found.durable).is_empty() && torn.noted.difference(&found.noted).is_empty());
}

fn are_believable(bytes: &[u8], entry: &FileEntry) -> Claims {
    let found = format::parse(bytes, entry);
    for set in [&found.durable, &found.noted] {
        assert!(set.iter().all(|range| range.start < range.end && range.end <= entry.size));
        assert!(set.iter().zip(set.iter().skip(1)).all(|(one, next)| one.end < next.start));
        assert_eq!(set.len_bytes() + set.missing(entry.size).len_bytes(), entry.size);
    }
    assert!(found == Claims::default() || !format::are_of_other(bytes, entry));
    let mut again = format::header(entry).to_vec();
    found.durable.iter().for_each(|range| again.extend(format::record(entry, &range)));
    found.noted.iter().for_each(|range| again.extend(format::note(entry, &range)));
    assert_eq!(format::parse(&again, entry), found);
    found
}

pub(super) fn memory(bytes: &[u8]) {
    let key = |device| Key { manifest: Sha256::from_bytes([7; 32]), directory: "/v/org/m".to_owned(), device };
    let memory = Memory::from_json(bytes, &key(1));
    let again = Memory::from_json(&memory.to_json(&key(1)), &key(1));
    assert_eq!(again.to_json(&key(1)), memory.to_json(&key(1)));
    for entry in MANIFEST.files() {
        assert_eq!(again.verified(entry), memory.verified(entry));
        let elsewhere = Memory::from_json(&memory.to_json(&key(1)), &key(2));
        assert_eq!(elsewhere.verified(entry), None, "another place");
    }
}

pub(super) fn owner(bytes: &[u8]) {
    for epoch in [0, 1, 7, u64::MAX] {
        let Some(record) = Seen::new(epoch, bytes.to_vec()).record() else { continue };
        assert_eq!((record.epoch, record.writer.epoch()), (epoch, epoch));
        let written = serde_json::to_vec(&record).expect("it can be written");
        assert_eq!(Seen::new(epoch, written.clone()).record().as_ref(), Some(&record));
        assert_eq!(Seen::new(epoch.wrapping_add(1), written).record(), None);
        let _ = record.age(jiff::Timestamp::UNIX_EPOCH);
    }
}

pub(super) fn store(bytes: &[u8]) {
    record::<Job>(bytes);
    record::<FileRecord>(bytes);
    record::<OriginMemory>(bytes);
    record::<ProgressSnapshot>(bytes);
}

pub(super) fn history(bytes: &[u8]) {
    record::<AuditEntry>(bytes);
}

fn record<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    let Some(value) = records::decode::<T>(bytes) else { return };
    assert_eq!(records::decode::<T>(&records::encode(&value)), Some(value));
}
