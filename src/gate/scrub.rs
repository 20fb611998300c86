//! Reading a model again, or a part of it, and what follows from that.
//!
//! Owns what `muster scrub` and the daemon's timetable do to one directory: blocks are looked at, what was
//! read when is noted, and what is wrong closes the gate before it is told. Invariants: the receipt is set
//! aside only for bytes that are wrong for certain, and only the one that was there when the reading
//! began; where nothing can be written it reads all the same and says so.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use super::blocks::{Ask, BadBlock, Damage, Examined, Fault as BlockFault, Reins, examine};
use super::check::{Unloaded, expected, load_manifest, unopened};
use super::survey::missing_files;
use super::verify::{ReceiptFate, host};
use crate::clock;
use crate::core::blocks::BLOCK_SIZE;
use crate::core::causes::in_words;
use crate::core::code::Code;
use crate::core::identity::Identity;
use crate::core::limit::Rate;
use crate::core::local_edits::Expected;
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::reason::{Reason, Why};
use crate::core::receipt::Receipt;
use crate::core::repo_path::RepoPath;
use crate::core::scrubbed::{Fault, Finding, Oldest, Read, Scrubbed, Seen, Totals};
use crate::core::status::{FindingStatus, ScrubStatus};
use crate::core::subset::{Known, Portion, Subset, choose};
use crate::volume::in_use::Attempt;
use crate::volume::{ModelDir, VolumeError};

/// Blocks that are noted together: what a kill costs is read again.
const SLICE_BLOCKS: u64 = 16;
/// How often the record is written while nothing is found.
const NOTE_EVERY: Duration = Duration::from_secs(10);
/// Bytes a second that one thread reads and hashes.
const ONE_THREAD: u64 = 256 << 20;

/// How a directory is scrubbed.
pub struct Scrub<'a> {
    /// Which part.
    pub subset: Subset,
    /// What keeps the reading in bounds.
    pub reins: Reins<'a>,
    /// Whether the model is locked against changes meanwhile, as for a launcher. Its owner knows without.
    pub locked: bool,
    /// Sets the receipt aside; `false` when there was none.
    pub close: &'a (dyn Fn(&ModelDir) -> Result<bool, String> + Sync),
    /// Hears of each thing that is found, once its gate is closed.
    pub on_finding: &'a (dyn Fn(&Finding) + Sync),
    /// Hears of how many files how many bytes are about to be read.
    pub on_start: &'a (dyn Fn(u64, u64) + Sync),
}

/// What a scrub came to.
#[derive(Debug)]
pub struct Outcome {
    /// The directory.
    pub directory: PathBuf,
    /// Bytes of files that were asked for.
    pub asked: u64,
    /// Bytes that were read, those read again included.
    pub read: u64,
    /// Files of which something was read to the end.
    pub files: u64,
    /// Files whose block digests were not known and are now, or were garbled and are right again.
    pub noted: u64,
    /// Reads that were not right once.
    pub bad_reads: u64,
    /// What is not right, found now or before and not settled.
    pub findings: Vec<Finding>,
    /// What kept the whole, or single files, from being read.
    pub reasons: Vec<Reason>,
    /// Whether it was stopped before the end.
    pub stopped: bool,
    /// What became of the receipt.
    pub receipt: ReceiptFate,
    /// Why the gate could not be closed although something is wrong.
    pub not_closed: Option<String>,
    /// Why nothing could be noted.
    pub not_noted: Option<String>,
    /// Whether there is no receipt, so that the gate is closed whatever the bytes are.
    pub has_receipt: bool,
    /// The file that waits longest to be read.
    pub oldest: Option<Oldest>,
    /// The directory's counters.
    pub totals: Totals,
}

impl Outcome {
    /// The outcome when something is not right: the gravest. Wrong bytes outweigh missing ones, and both
    /// outweigh what could not be checked.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        const GRAVEST_FIRST: [Code; 6] =
            [Code::UnknownModel, Code::Refused, Code::Corrupt, Code::Incomplete, Code::Held, Code::CouldNotCheck];
        let codes: Vec<_> = self
            .findings
            .iter()
            .map(|finding| finding.fault.code())
            .chain(self.reasons.iter().map(|reason| reason.why.code()))
            .collect();
        GRAVEST_FIRST.into_iter().find(|code| codes.contains(code))
    }

    fn nothing(directory: PathBuf, why: Why, files: Vec<Reason>) -> Self {
        let whole = Reason { file: None, why };
        Self { reasons: std::iter::once(whole).chain(files).collect(), ..Self::of(directory) }
    }

    fn of(directory: PathBuf) -> Self {
        Self {
            directory,
            asked: 0,
            read: 0,
            files: 0,
            noted: 0,
            bad_reads: 0,
            findings: Vec::new(),
            reasons: Vec::new(),
            stopped: false,
            receipt: ReceiptFate::Kept,
            not_closed: None,
            not_noted: None,
            has_receipt: false,
            oldest: None,
            totals: Totals::default(),
        }
    }
}

/// Reins that keep to a rate which `pass` enforces: small reads, and no more threads than it takes.
#[must_use]
pub fn reins(rate: Option<Rate>, pass: &(dyn Fn(u64) -> bool + Sync)) -> Reins<'_> {
    let loose = Reins { pass, ..Reins::loose() };
    match rate {
        None => loose,
        Some(rate) => {
            let threads = if rate.bytes_per_s() < ONE_THREAD { 1 } else { loose.threads };
            Reins { step: rate.step().min(loose.step), threads, ..loose }
        }
    }
}

/// Sets a receipt aside, for who is not the owner of a volume.
///
/// # Errors
/// Why it could not be done.
pub fn set_aside(dir: &ModelDir) -> Result<bool, String> {
    dir.set_receipt_aside().map_err(|error| in_words(&error))
}

impl Scrub<'_> {
    /// Reads the asked part of `directory`.
    #[must_use]
    pub fn run(&self, directory: PathBuf) -> Outcome {
        let dir = match ModelDir::open(&directory) {
            Ok(dir) => dir,
            Err(error) => return Outcome::nothing(directory, unopened(&error), vec![]),
        };
        let _lock = match self.locked.then(|| dir.lock_shared()) {
            Some(Attempt::Held) => return Outcome::nothing(directory, Why::Held, vec![]),
            Some(Attempt::Taken(lock)) => Some(lock),
            _ => None,
        };
        match load_manifest(&dir).and_then(|manifest| expected(&dir, &manifest)) {
            Ok(expected) if matches!(dir.manifest(), Ok(Some(_))) => self.read(directory, &dir, &expected),
            Ok(expected) => {
                // A first pull is under way.
                let missing = missing_files(&dir, expected.manifest());
                Outcome::nothing(directory, Why::NoReceipt, missing)
            }
            Err(Unloaded::Stale) => Outcome::nothing(directory, Why::Unsteady, vec![]),
            Err(Unloaded::For(why)) => Outcome::nothing(directory, why, vec![]),
        }
    }

    fn read(&self, directory: PathBuf, dir: &ModelDir, expected: &Expected) -> Outcome {
        let manifest = expected.manifest();
        let receipt_bytes = dir.receipt_bytes().ok().flatten();
        // One that cannot be read proves nothing, and its time means nothing.
        let proved_at = receipt_bytes.as_deref().and_then(|bytes| proved_at(bytes, manifest));
        let table = dir.blocks().unwrap_or_default();
        let mut record = dir.scrubbed().unwrap_or_default();
        record.keep(manifest);
        let has_blocks = |entry: &FileEntry| Ask::whole(entry, &table).known.is_some();
        let portions = choose(manifest, self.subset, Known { record: &record, proved_at, has_blocks: &has_blocks });
        let asked = portions.iter().map(Portion::bytes).sum();
        (self.on_start)(portions.len() as u64, asked);
        let mut asks = Vec::new();
        for portion in portions {
            let ask = Ask::whole(portion.entry, &table);
            if ask.known.is_none() {
                asks.push(ask);
                continue;
            }
            let mut start = portion.blocks.start;
            while start < portion.blocks.end {
                let end = portion.blocks.end.min(start + SLICE_BLOCKS);
                asks.push(Ask { blocks: start..end, ..ask.clone() });
                start = end;
            }
        }
        let outcome = Outcome { asked, has_receipt: receipt_bytes.is_some(), ..Outcome::of(directory) };
        let state = State { outcome, record, noted_at: clock::since_boot(), left: asks.len(), is_fresh: true };
        let desk = Desk { scrub: self, dir, receipt: receipt_bytes, host: host(), state: Mutex::new(state) };
        let read = AtomicU64::new(0);
        let pass = |bytes| {
            read.fetch_add(bytes, Ordering::Relaxed);
            (self.reins.pass)(bytes)
        };
        examine(dir, &asks, &Reins { pass: &pass, ..self.reins }, &|ask, answer| desk.take(ask, answer));
        Outcome { read: read.into_inner(), ..desk.finish(expected, proved_at) }
    }
}

/// Where answers come in.
struct Desk<'a> {
    scrub: &'a Scrub<'a>,
    dir: &'a ModelDir,
    /// As it was when the reading began.
    receipt: Option<Vec<u8>>,
    host: String,
    state: Mutex<State>,
}

struct State {
    outcome: Outcome,
    record: Scrubbed,
    noted_at: Duration,
    /// Answers to come.
    left: usize,
    /// Whether everything that was taken is stored.
    is_fresh: bool,
}

impl Desk<'_> {
    fn take(&self, ask: &Ask<'_>, answer: Result<Examined, Why>) {
        let mut state = self.state();
        state.left -= 1;
        let examined = match answer {
            Ok(examined) => examined,
            Err(why) => {
                let reason = Reason { file: Some(ask.entry.path.clone()), why };
                if !state.outcome.reasons.contains(&reason) {
                    state.outcome.reasons.push(reason);
                }
                return;
            }
        };
        if examined.is_news {
            self.dir.note_blocks(examined.blocks.as_ref());
            // A file of one block has nothing to note.
            state.outcome.noted += u64::from(examined.blocks.as_ref().is_some_and(|blocks| blocks.count() > 1));
        }
        let read = read_of(ask.entry, &examined);
        state.outcome.files += u64::from(ask.blocks.start == 0);
        state.outcome.bad_reads += read.bad_reads;
        if examined.is_wrong(ask.entry) {
            self.close(&mut state, (ask.entry.path.clone(), examined.identity));
        }
        let news = state.record.took(ask.entry, &read, clock::now(), &self.host);
        state.is_fresh = false;
        let due = clock::since_boot().saturating_sub(state.noted_at) >= NOTE_EVERY;
        if due || !read.faults.is_empty() {
            self.note(&mut state);
        }
        news.iter().for_each(self.scrub.on_finding);
    }

    /// The gate, before anybody is told. A receipt that somebody else wrote meanwhile is newer than what was read.
    fn close(&self, state: &mut State, wrong: (RepoPath, Identity)) {
        // Or the proof that is set aside would speak for the file again.
        if let Err(error) = self.dir.condemn([wrong]) {
            state.outcome.not_closed = Some(in_words(&error));
        }
        if state.outcome.receipt == ReceiptFate::SetAside || self.receipt.is_none() {
            return;
        }
        if self.dir.receipt_bytes().ok().flatten() != self.receipt {
            state.outcome.not_closed = Some("the receipt was written anew while the model was read".to_owned());
            return;
        }
        match (self.scrub.close)(self.dir) {
            Ok(true) => {
                state.outcome.receipt = ReceiptFate::SetAside;
                state.outcome.has_receipt = false;
                state.outcome.not_closed = None;
            }
            Ok(false) => {}
            Err(why) => state.outcome.not_closed = Some(why),
        }
    }

    fn note(&self, state: &mut State) {
        state.noted_at = clock::since_boot();
        if state.outcome.not_noted.is_some() || state.is_fresh {
            return;
        }
        match self.dir.store_scrubbed(&state.record) {
            Ok(()) => state.is_fresh = true,
            Err(error) => state.outcome.not_noted = Some(in_words(&error)),
        }
    }

    fn finish(self, expected: &Expected, proved_at: Option<Timestamp>) -> Outcome {
        let mut state = self.state();
        self.note(&mut state);
        let manifest = expected.manifest();
        state.outcome.stopped = state.left > 0;
        state.outcome.findings = state.record.open(manifest, |path| self.dir.observe(path));
        state.outcome.oldest = state.record.oldest(manifest, proved_at);
        state.outcome.totals = *state.record.totals();
        state.outcome.reasons.sort_by(|a, b| a.file.cmp(&b.file));
        let nothing = Outcome::of(PathBuf::new());
        std::mem::replace(&mut state.outcome, nothing)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was read, in the words of the record.
fn read_of(entry: &FileEntry, examined: &Examined) -> Read {
    let byte = |block: u64| block.saturating_mul(BLOCK_SIZE).min(entry.size);
    let bytes = byte(examined.read.start)..byte(examined.read.end);
    let mut faults: Vec<_> = match &examined.damage {
        None => Vec::new(),
        Some(Damage::Somewhere { found: None }) => Vec::new(),
        Some(Damage::Somewhere { found: Some(_) }) => vec![Fault::Somewhere],
        Some(Damage::Blocks(bad)) => bad.iter().map(fault_of).collect(),
    };
    if examined.has_other_size(entry) {
        faults.insert(0, Fault::Size { expected: entry.size });
    }
    Read { bytes, bad_reads: examined.transient, seen: Seen::from(examined.identity), faults }
}

fn fault_of(bad: &BadBlock) -> Fault {
    let (block, start, end) = (bad.index, bad.range.start, bad.range.end);
    match &bad.fault {
        BlockFault::Wrong => Fault::Block { block, start, end },
        BlockFault::Unreadable { why } => Fault::Unreadable { block, start, end, why: why.clone() },
    }
}

/// When all files were proved; unknown when the receipt is none.
fn proved_at(receipt: &[u8], manifest: &Manifest) -> Option<Timestamp> {
    Receipt::from_json(receipt, manifest).ok().map(|receipt| receipt.verified_at())
}

/// What is known of a directory's being read again, and what is not right in it, without reading any of its files.
///
/// # Errors
/// When the record or the receipt cannot be read.
pub fn look(dir: &ModelDir, expected: &Expected) -> Result<(ScrubStatus, Vec<Finding>), VolumeError> {
    let manifest = expected.manifest();
    let record = dir.scrubbed()?;
    let findings = record.open(manifest, |path| dir.observe(path));
    let proved_at = dir.receipt_bytes()?.and_then(|bytes| proved_at(&bytes, manifest));
    let oldest = record.oldest(manifest, proved_at);
    let Totals { bytes, bad_blocks, bad_reads, last_at } = *record.totals();
    let status = ScrubStatus {
        last_at,
        oldest_at: oldest.as_ref().and_then(|oldest| oldest.at),
        oldest_file: oldest.map(|oldest| oldest.file),
        bytes,
        bad_blocks,
        bad_reads,
        findings: findings.iter().map(FindingStatus::from).collect(),
    };
    Ok((status, findings))
}
