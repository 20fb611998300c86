//! The owner records: `owners/<epoch>.json`.
//!
//! Owns their form and the reading of them. Invariants: a record that is torn, garbled, of another
//! schema or under a name that is not its own says nothing, but its epoch counts all the same; and two
//! heartbeats differ in digits only, each in its place, so that who reads while one is written over the
//! other reads a record.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize, Serializer};

use super::process_id::ProcessFacts;
use crate::volume::dir::Dir;
use crate::volume::error::{Result, VolumeError};
use crate::volume::small_file;
use crate::volume::writer::WriterId;

/// Version of the JSON form.
const SCHEMA: u32 = 1;
/// Where the counter begins: it has as many digits for as long as anything runs.
const FIRST_BEAT: u64 = 1_000_000_000;
/// Most bytes of a record.
const SIZE_MAX: u64 = 64 << 10;

/// Who owns the volume, or owned it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    schema: u32,
    /// The number of this ownership.
    pub epoch: u64,
    /// What its partials are called after.
    pub writer: WriterId,
    /// Name of the host, for people.
    pub host: String,
    /// Id of the boot.
    pub boot_id: String,
    /// Inode of the pid namespace.
    pub pid_namespace: Option<u64>,
    /// Inode of the time namespace.
    pub time_namespace: Option<u64>,
    /// Process id in that namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Moves with every heartbeat.
    pub counter: u64,
    /// When the last heartbeat was, by the owner's clock; written to the nanosecond.
    #[serde(serialize_with = "to_the_nanosecond")]
    pub beat_at: Timestamp,
    /// Where it answers.
    pub socket: Option<String>,
    /// Program and version.
    pub program: String,
    /// When it took the volume.
    pub started_at: Timestamp,
    /// Whether it is a `pull` that ends with its jobs.
    pub foreground: bool,
    /// Whether it ended in order: nothing of it writes any more.
    pub ended: bool,
}

/// What a new owner says about itself besides its process.
#[derive(Debug, Clone)]
pub struct Introduction {
    /// Where it answers.
    pub socket: Option<String>,
    /// Program and version.
    pub program: String,
    /// Whether it is a `pull` that ends with its jobs.
    pub foreground: bool,
    /// A fresh random number, for its [`WriterId`].
    pub random: u32,
}

impl Record {
    pub(super) fn new(epoch: u64, process: &ProcessFacts, introduction: &Introduction, now: Timestamp) -> Self {
        let (process, introduction) = (process.clone(), introduction.clone());
        Self {
            schema: SCHEMA,
            epoch,
            writer: WriterId::new(epoch, introduction.random),
            host: process.host,
            boot_id: process.boot_id,
            pid_namespace: process.pid_namespace,
            time_namespace: process.time_namespace,
            pid: process.pid,
            start_time: process.start_time,
            counter: FIRST_BEAT,
            beat_at: now,
            socket: introduction.socket,
            program: introduction.program,
            started_at: now,
            foreground: introduction.foreground,
            ended: false,
        }
    }

    /// How long ago its last heartbeat was, if both clocks agree. Negative when they do not.
    pub fn age(&self, now: Timestamp) -> SignedDuration {
        now.duration_since(self.beat_at)
    }

    /// The record of its next heartbeat, or of its end.
    pub(super) fn moved(&self, now: Timestamp, ended: bool) -> Self {
        Self { counter: self.counter.saturating_add(1), beat_at: now, ended, ..self.clone() }
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        let mut bytes = serde_json::to_vec_pretty(self).expect("a record has string keys only");
        bytes.push(b'\n');
        bytes
    }
}

fn to_the_nanosecond<S: Serializer>(at: &Timestamp, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{at:.9}"))
}

/// One reading of a record, as it was on disk. Two readings are equal when nothing moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    epoch: u64,
    bytes: Vec<u8>,
}

impl Seen {
    /// The bytes under the name of an epoch.
    pub const fn new(epoch: u64, bytes: Vec<u8>) -> Self {
        Self { epoch, bytes }
    }

    /// The number in its name.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What it says; `None` when that cannot be believed.
    pub fn record(&self) -> Option<Record> {
        let record: Record = serde_json::from_slice(&self.bytes).ok()?;
        let own_name = record.epoch == self.epoch && record.writer.epoch() == self.epoch;
        (record.schema == SCHEMA && own_name).then_some(record)
    }
}

/// Reads the record of the highest epoch: the owner's. `None` when nobody ever owned the volume.
pub fn current(owners: &Dir) -> Result<Option<Seen>> {
    match epochs(owners)?.last() {
        None => Ok(None),
        Some(&epoch) => read(owners, epoch).map(Some),
    }
}

/// Every epoch there is a record of, ascending.
pub(super) fn epochs(owners: &Dir) -> Result<Vec<u64>> {
    let mut epochs: Vec<_> = owners.list()?.iter().filter_map(|entry| parse_name(&entry.name)).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

/// Reads one record; one that is gone or cannot be a record of ours reads as nothing.
pub(super) fn read(owners: &Dir, epoch: u64) -> Result<Seen> {
    let bytes = match small_file::read(owners, &name(epoch), SIZE_MAX) {
        Err(VolumeError::TooLarge { .. } | VolumeError::NotRegular { .. } | VolumeError::Steered { .. }) => None,
        other => other?,
    };
    Ok(Seen::new(epoch, bytes.unwrap_or_default()))
}

/// The file name of an epoch's record.
pub(super) fn name(epoch: u64) -> String {
    format!("{epoch}.json")
}

fn parse_name(text: &str) -> Option<u64> {
    let epoch = text.strip_suffix(".json")?.parse().ok()?;
    (name(epoch) == text).then_some(epoch)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn introduction(random: u32) -> Introduction {
        Introduction { socket: Some("/run/x.sock".into()), program: "muster 0".into(), foreground: false, random }
    }

    fn record() -> Record {
        Record::new(7, &ProcessFacts::read(), &introduction(1), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_record_says_what_was_written_and_nothing_else() {
        let bytes = record().to_json();
        assert_eq!(Seen::new(7, bytes.clone()).record(), Some(record()));
        assert_eq!(Seen::new(8, bytes.clone()).record(), None, "a copy under another name");
        for end in 0..bytes.len() - 2 {
            assert_eq!(Seen::new(7, bytes[..end].to_vec()).record(), None, "torn at {end}");
        }
        let newer = String::from_utf8(bytes).unwrap().replace("\"schema\": 1", "\"schema\": 2");
        assert_eq!(Seen::new(7, newer.into_bytes()).record(), None);
    }

    #[test]
    fn two_heartbeats_differ_in_digits_only_so_that_a_mixture_of_them_is_a_record() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let times = ["2026-12-03T08:06:23Z", "2026-12-03T08:06:33.12Z", "2026-12-03T08:06:43.999999999Z"];
        let mut beats = vec![record()];
        beats.extend((0..30).map(|beat| record().moved(at(times[beat % 3]), false)));
        let (first, others) = beats.split_first().unwrap();
        let first = first.to_json();
        for other in others {
            let other = other.to_json();
            assert_eq!(first.len(), other.len());
            for split in 0..first.len() {
                let mixture = [&first[..split], &other[split..]].concat();
                assert!(Seen::new(7, mixture.clone()).record().is_some(), "{}", String::from_utf8_lossy(&mixture));
            }
        }
    }

    #[test]
    fn only_plain_numbers_name_records() {
        assert_eq!(parse_name("12.json"), Some(12));
        for bad in
            ["012.json", "+1.json", "-1.json", ".json", "1.json.tmp", ".1.json.00ff.tmp", "99999999999999999999.json"]
        {
            assert_eq!(parse_name(bad), None, "{bad}");
        }
    }
}
