//! When which bytes of a model were last read from the disk, and what was found.
//!
//! Owns the record (`.muster/scrubbed.json`). Pure: time is an argument. Invariants: an entry speaks of one
//! file by its digest, so another commit's file starts anew; a finding stands until its block is read
//! and right, or another file has the name. The record is a help and no proof: without it everything is
//! read again.

use std::collections::BTreeMap;
use std::ops::Range;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::code::Code;
use super::digest::Digest;
use super::identity::{Identity, Observed};
use super::manifest::{FileEntry, Manifest};
use super::range_set::RangeSet;
use super::repo_path::RepoPath;
use super::shards::is_shard;
use super::units;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;
/// Most findings that are kept: more of them say nothing new.
const FINDINGS_MAX: usize = 10_000;

/// What is known of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scrubbed {
    files: BTreeMap<RepoPath, FileScrub>,
    findings: Vec<Finding>,
    totals: Totals,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileScrub {
    size: u64,
    digest: Digest,
    /// When the reading began that last reached every byte.
    whole_at: Option<Timestamp>,
    /// The reading that has not reached every byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    passing: Option<Passing>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Passing {
    since: Timestamp,
    read: RangeSet,
}

/// Counters since the directory has a record; they only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    /// Bytes read.
    pub bytes: u64,
    /// Blocks, or files without block digests, that were found wrong or unreadable.
    pub bad_blocks: u64,
    /// Reads that were wrong or failed once and were right when they were done again.
    pub bad_reads: u64,
    /// When something was last read.
    pub last_at: Option<Timestamp>,
}

/// Something that is not right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The file.
    pub file: RepoPath,
    /// What its bytes should hash to.
    pub digest: Digest,
    /// What stood there, so that whoever replaces it has settled this.
    pub seen: Seen,
    /// What is not right.
    pub fault: Fault,
    /// When it was found.
    pub at: Timestamp,
    /// By which host.
    pub host: String,
}

/// A file as it was found: the parts of its identity that a change of owner or mode leaves alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seen {
    /// Number of the file.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Last change of its bytes, nanoseconds since 1970.
    pub mtime_ns: i64,
}

impl From<Identity> for Seen {
    fn from(identity: Identity) -> Self {
        Self { inode: identity.inode, size: identity.size, mtime_ns: identity.mtime_ns }
    }
}

/// What is not right about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", deny_unknown_fields)]
pub enum Fault {
    /// A block has other bytes.
    Block {
        /// Its number, from 0.
        block: u64,
        /// Its first byte.
        start: u64,
        /// The byte behind its last.
        end: u64,
    },
    /// A block cannot be read, or comes out differently each time.
    Unreadable {
        /// Its number, from 0.
        block: u64,
        /// Its first byte.
        start: u64,
        /// The byte behind its last.
        end: u64,
        /// Why.
        why: String,
    },
    /// The file has other bytes, nobody knows where.
    Somewhere,
    /// The file has another size.
    Size {
        /// Bytes that it should have.
        expected: u64,
    },
}

impl Fault {
    /// The number of the block, where one is known.
    #[must_use]
    pub const fn block(&self) -> Option<u64> {
        match self {
            Self::Block { block, .. } | Self::Unreadable { block, .. } => Some(*block),
            Self::Somewhere | Self::Size { .. } => None,
        }
    }

    /// The bytes, where they are known.
    #[must_use]
    pub const fn bytes(&self) -> Option<Range<u64>> {
        match self {
            Self::Block { start, end, .. } | Self::Unreadable { start, end, .. } => Some(*start..*end),
            Self::Somewhere | Self::Size { .. } => None,
        }
    }

    /// The outcome it stands for.
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Self::Unreadable { .. } => Code::CouldNotCheck,
            Self::Block { .. } | Self::Somewhere | Self::Size { .. } => Code::Corrupt,
        }
    }
}

impl Finding {
    /// The finding in words, the file named.
    #[must_use]
    pub fn words(&self) -> String {
        let Self { file, fault, seen, .. } = self;
        match fault {
            Fault::Block { block, start, end } => format!("{file}: block {block} is wrong (bytes {start} to {end})"),
            Fault::Unreadable { block, start, end, why } => {
                format!("{file}: block {block} could not be read (bytes {start} to {end}): {why}")
            }
            Fault::Somewhere => format!("{file}: wrong bytes, at an unknown place: its block digests are not known"),
            Fault::Size { expected } => format!("{file}: {expected} bytes expected, {} found", seen.size),
        }
    }
}

/// The reading that a file waits for longest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Oldest {
    /// The file.
    pub file: RepoPath,
    /// When all of it had last been read from the disk, or was first proved; unknown means never here.
    pub at: Option<Timestamp>,
}

impl Scrubbed {
    /// Reads the JSON form; `None` when it cannot be understood.
    #[must_use]
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        let Stored { schema, files, findings, totals } = serde_json::from_slice(bytes).ok()?;
        (schema == SCHEMA).then_some(Self { files, findings, totals })
    }

    /// The JSON form.
    #[must_use]
    pub fn to_json(&self) -> Vec<u8> {
        let Self { files, findings, totals } = self.clone();
        let stored = Stored { schema: SCHEMA, files, findings, totals };
        let mut bytes = serde_json::to_vec(&stored).expect("a record has string keys only");
        bytes.push(b'\n');
        bytes
    }

    /// Forgets what no file of the manifest is about.
    pub fn keep(&mut self, manifest: &Manifest) {
        let is_of = |path: &RepoPath, digest: Digest| manifest.file(path).is_some_and(|entry| entry.digest == digest);
        self.files.retain(|path, file| is_of(path, file.digest));
        self.findings.retain(|finding| is_of(&finding.file, finding.digest));
    }

    /// Bytes of a file were read at this time. Returns what was found and not known before.
    pub fn took(&mut self, entry: &FileEntry, read: &Read, at: Timestamp, host: &str) -> Vec<Finding> {
        let Read { bytes, bad_reads, seen, faults } = read;
        let fresh = || FileScrub { size: entry.size, digest: entry.digest, whole_at: None, passing: None };
        let file = self.files.entry(entry.path.clone()).or_insert_with(fresh);
        if file.digest != entry.digest {
            *file = fresh();
        }
        let mut passing = file.passing.take().unwrap_or_else(|| Passing { since: at, read: RangeSet::new() });
        passing.read.insert(bytes.clone());
        if passing.read.is_whole(entry.size) {
            file.whole_at = Some(passing.since);
        } else {
            file.passing = Some(passing);
        }
        // What was read anew is told anew.
        let is_settled = |finding: &Finding| {
            finding.file == entry.path
                && finding.fault.bytes().is_none_or(|place| bytes.start <= place.start && place.end <= bytes.end)
        };
        let before: Vec<_> = self.findings.extract_if(.., |finding| is_settled(finding)).collect();
        let mut news = Vec::new();
        for fault in faults {
            let known = before.iter().find(|finding| finding.fault == *fault && finding.seen == *seen);
            let (file, digest) = (entry.path.clone(), entry.digest);
            let found = || Finding { file, digest, seen: *seen, fault: fault.clone(), at, host: host.to_owned() };
            let finding = known.cloned().unwrap_or_else(found);
            if known.is_none() {
                self.totals.bad_blocks += 1;
                news.push(finding.clone());
            }
            self.findings.push(finding);
        }
        self.findings.sort_by(|a, b| (&a.file, a.fault.block()).cmp(&(&b.file, b.fault.block())));
        self.findings.truncate(FINDINGS_MAX);
        self.totals.bytes = self.totals.bytes.saturating_add(bytes.end - bytes.start);
        self.totals.bad_reads += bad_reads;
        self.totals.last_at = Some(at);
        news
    }

    /// The counters.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The findings that still stand: `observe` looks at what has the name now.
    #[must_use]
    pub fn open(&self, manifest: &Manifest, observe: impl Fn(&RepoPath) -> Observed) -> Vec<Finding> {
        let mut looks: BTreeMap<RepoPath, bool> = BTreeMap::new();
        let stands = |finding: &&Finding| {
            let expected = manifest.file(&finding.file).map(|entry| entry.digest);
            // What cannot be looked at has not been settled.
            let is_there = || match observe(&finding.file) {
                Observed::Present(now) => Seen::from(now) == finding.seen,
                Observed::Unreadable { .. } => true,
                Observed::Missing | Observed::NotRegular => false,
            };
            expected == Some(finding.digest) && *looks.entry(finding.file.clone()).or_insert_with(is_there)
        };
        self.findings.iter().filter(stands).cloned().collect()
    }

    /// What of a file is to be read next, from `begun` on: what a reading under way has not reached, or all.
    #[must_use]
    pub fn unread(&self, entry: &FileEntry) -> RangeSet {
        let passing = self.of(entry).and_then(|file| file.passing.as_ref());
        passing.map_or_else(|| RangeSet::from(0..entry.size), |passing| passing.read.missing(entry.size))
    }

    /// When all of a file had last been read; `proved_at` stands in for one that never was.
    #[must_use]
    pub fn whole_at(&self, entry: &FileEntry, proved_at: Option<Timestamp>) -> Option<Timestamp> {
        self.of(entry).and_then(|file| file.whole_at).max(proved_at)
    }

    /// Whether a reading of the file is under way.
    #[must_use]
    pub fn is_passing(&self, entry: &FileEntry) -> bool {
        self.of(entry).is_some_and(|file| file.passing.is_some())
    }

    /// The shard that waits longest to be read; of a model without shards, the file.
    #[must_use]
    pub fn oldest(&self, manifest: &Manifest, proved_at: Option<Timestamp>) -> Option<Oldest> {
        let all = || manifest.files().iter().filter(|entry| entry.size > 0);
        let has_shards = all().any(|entry| is_shard(&entry.path));
        let wanted = all().filter(|entry| !has_shards || is_shard(&entry.path));
        let oldest = wanted.min_by_key(|entry| self.whole_at(entry, proved_at))?;
        Some(Oldest { file: oldest.path.clone(), at: self.whole_at(oldest, proved_at) })
    }

    fn of(&self, entry: &FileEntry) -> Option<&FileScrub> {
        self.files.get(&entry.path).filter(|file| file.digest == entry.digest && file.size == entry.size)
    }
}

/// A reading of bytes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// Which.
    pub bytes: Range<u64>,
    /// Reads that were not right and were when they were done again.
    pub bad_reads: u64,
    /// What has the name.
    pub seen: Seen,
    /// What is not right.
    pub faults: Vec<Fault>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    schema: u32,
    files: BTreeMap<RepoPath, FileScrub>,
    findings: Vec<Finding>,
    totals: Totals,
}

/// `3 blocks of 2 files are not right`, for one line.
#[must_use]
pub fn in_words(findings: &[Finding]) -> Option<String> {
    let first = findings.first()?;
    let more = findings.len() as u64 - 1;
    Some(match more {
        0 => first.words(),
        _ => format!("{}; and {} more", first.words(), units::count(more, "finding")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::manifest::tests::{entry, source};

    const SEEN: Seen = Seen { inode: 1, size: 100, mtime_ns: 5 };

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn read(bytes: Range<u64>, faults: Vec<Fault>) -> Read {
        Read { bytes, bad_reads: 0, seen: SEEN, faults }
    }

    fn block(block: u64) -> Fault {
        Fault::Block { block, start: block * 10, end: block * 10 + 10 }
    }

    fn observed(mtime_ns: i64) -> impl Fn(&RepoPath) -> Observed {
        move |_| Observed::Present(Identity { inode: 1, size: 100, mtime_ns, ctime_ns: 9 })
    }

    #[test]
    fn a_file_is_as_old_as_the_first_of_its_bytes_that_were_read_and_all_of_them_count() {
        let (a, b) = (entry("a.safetensors", 100), entry("b.safetensors", 100));
        let manifest = Manifest::seal(source(), vec![a.clone(), b.clone()]).unwrap();
        let mut record = Scrubbed::default();
        let oldest = |record: &Scrubbed| record.oldest(&manifest, Some(at(1))).unwrap();
        record.took(&a, &read(0..60, vec![]), at(10), "h");
        assert_eq!((record.whole_at(&a, None), oldest(&record).at), (None, Some(at(1))));
        assert_eq!(record.unread(&a), RangeSet::from(60..100));
        record.took(&a, &read(60..100, vec![]), at(20), "h");
        assert_eq!((record.whole_at(&a, None), record.is_passing(&a)), (Some(at(10)), false));
        assert_eq!(oldest(&record), Oldest { file: b.path.clone(), at: Some(at(1)) });
        record.took(&b, &read(0..100, vec![]), at(30), "h");
        assert_eq!(oldest(&record), Oldest { file: a.path.clone(), at: Some(at(10)) });
        assert_eq!((record.totals().bytes, record.totals().last_at), (200, Some(at(30))));
        assert_eq!(Scrubbed::from_json(&record.to_json()), Some(record));
    }

    #[test]
    fn a_finding_stands_until_its_block_is_right_or_another_file_has_the_name() {
        let a = entry("a", 100);
        let manifest = Manifest::seal(source(), vec![a.clone()]).unwrap();
        let mut record = Scrubbed::default();
        record.took(&a, &read(0..100, vec![block(3), block(7)]), at(1), "h");
        let open = |record: &Scrubbed, mtime| record.open(&manifest, observed(mtime));
        assert_eq!(open(&record, 5).len(), 2);
        assert!(open(&record, 6).is_empty(), "written since");
        assert!(record.open(&manifest, |_| Observed::Missing).is_empty());
        record.took(&a, &read(0..50, vec![]), at(2), "h");
        assert_eq!(open(&record, 5).iter().map(|finding| finding.fault.block()).collect::<Vec<_>>(), [Some(7)]);
        record.took(&a, &read(50..100, vec![block(7)]), at(3), "other");
        let (open, totals) = (open(&record, 5), *record.totals());
        assert_eq!((open[0].at, open[0].host.as_str(), totals.bad_blocks), (at(1), "h", 2), "the first time counts");
        let mut other = record.clone();
        other.keep(&Manifest::seal(source(), vec![entry("a", 101)]).unwrap());
        assert!(other.findings.is_empty() && other.files.is_empty());
        assert_eq!(Scrubbed::from_json(&record.to_json()), Some(record));
    }

    #[test]
    fn what_cannot_be_understood_is_no_record() {
        for bad in [&b""[..], b"{", br#"{"schema":2,"files":{},"findings":[],"totals":{}}"#] {
            assert_eq!(Scrubbed::from_json(bad), None);
        }
    }
}
