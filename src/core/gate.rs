//! The gate's decision: may a launcher have this model directory?
//!
//! Owns what each fact about a file means and how the facts add up. Invariants: a directory is
//! open only when every file of the manifest was trusted or hashed, and there was no other
//! reason; not being able to look is a reason to stay closed. The facts are arguments, gathered
//! by `gate::check`.

use super::code::Code;
use super::identity::{Identity, Observed};
use super::manifest::{FileEntry, Manifest};
use super::reason::{Reason, Why};
use super::shards::is_shard;

/// What one look at a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// It has an identity that was verified.
    Trusted,
    /// It has the right size and an identity nobody has verified: its bytes have to be hashed.
    HashNeeded,
    /// No hash is needed to say no.
    Bad(Why),
}

/// How the check of one file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// By its identity.
    Trusted,
    /// By its bytes, just now.
    Hashed,
    /// It is not what the manifest says, or nobody can tell.
    Bad(Why),
    /// Left alone, since another reason closes the gate anyway.
    Deferred,
}

/// Counts of a check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files in the manifest.
    pub files: u64,
    /// Files trusted by their identity.
    pub trusted: u64,
    /// Files hashed now, and right.
    pub hashed: u64,
    /// Files that are not right, or could not be checked.
    pub bad: u64,
    /// Shards in the manifest.
    pub shards: u64,
    /// Shards trusted or hashed.
    pub shards_verified: u64,
    /// Bytes in the manifest.
    pub bytes: u64,
    /// Bytes of the files that were hashed and right.
    pub bytes_hashed: u64,
}

/// What the gate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    reasons: Vec<Reason>,
    tally: Tally,
}

/// Judges a file by one look at it. `verified` are the identities its bytes had when they were
/// hashed; none of them means that the bytes have to be hashed now.
#[must_use]
pub fn inspect(entry: &FileEntry, verified: &[Identity], observed: &Observed) -> Finding {
    match observed {
        Observed::Missing => Finding::Bad(Why::Missing { size: entry.size }),
        Observed::NotRegular => Finding::Bad(Why::NotRegular),
        Observed::Unreadable { why } => Finding::Bad(Why::Unreadable { why: why.clone() }),
        Observed::Present(now) if now.size != entry.size => {
            Finding::Bad(Why::Size { expected: entry.size, found: now.size })
        }
        Observed::Present(now) if verified.contains(now) => Finding::Trusted,
        Observed::Present(_) => Finding::HashNeeded,
    }
}

impl Decision {
    /// Adds up a whole check: one outcome for each file of the manifest, in its order. A file
    /// that was neither trusted nor hashed keeps the gate closed.
    #[must_use]
    pub fn of_files(manifest: &Manifest, outcomes: Vec<Outcome>) -> Self {
        let mut outcomes = outcomes.into_iter();
        let mut decision = Self { reasons: Vec::new(), tally: Tally::of(manifest) };
        for entry in manifest.files() {
            decision.count(entry, outcomes.next().unwrap_or(Outcome::Deferred));
        }
        let tally = decision.tally;
        if decision.is_open() && tally.trusted + tally.hashed != tally.files {
            decision.reasons.push(Reason { file: None, why: Why::Unsteady });
        }
        decision
    }

    /// Closed before any file was believed. `files` are those known to be wrong all the same.
    #[must_use]
    pub fn closed(why: Why, manifest: Option<&Manifest>, files: Vec<Reason>) -> Self {
        let mut tally = manifest.map(Tally::of).unwrap_or_default();
        tally.bad = files.len() as u64;
        let whole = Reason { file: None, why };
        Self { reasons: std::iter::once(whole).chain(files).collect(), tally }
    }

    /// Whether a launcher may have the directory.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.reasons.is_empty()
    }

    /// The outcome when closed: the gravest reason's. Wrong bytes outweigh missing ones, and both
    /// outweigh what could not be checked.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        const GRAVEST_FIRST: [Code; 6] =
            [Code::UnknownModel, Code::Refused, Code::Corrupt, Code::Incomplete, Code::Held, Code::CouldNotCheck];
        let failed = self.reasons.iter().find(|reason| matches!(reason.why, Why::PullFailed { .. }));
        let gravest =
            || GRAVEST_FIRST.into_iter().find(|code| self.reasons.iter().any(|reason| reason.why.code() == *code));
        failed.map(|reason| reason.why.code()).or_else(gravest)
    }

    /// The same, when whoever pulls the model has given up: that outcome explains the others.
    #[must_use]
    pub fn after_failed_pull(mut self, code: Code, message: String) -> Self {
        if !self.is_open() {
            self.reasons.push(Reason { file: None, why: Why::PullFailed { code, message } });
        }
        self
    }

    /// The same, with more reasons to stay closed: what is in the files, and what the operator wants.
    #[must_use]
    pub fn also(mut self, reasons: Vec<Reason>) -> Self {
        self.reasons.extend(reasons);
        self
    }

    /// 0 when open, else the code's.
    #[must_use]
    pub fn exit(&self) -> u8 {
        self.code().map_or(0, Code::exit)
    }

    /// Why it is closed, gravest first and then by path.
    #[must_use]
    pub fn reasons(&self) -> Vec<&Reason> {
        let code = self.code();
        let mut sorted: Vec<_> = self.reasons.iter().collect();
        sorted.sort_by_key(|reason| Some(reason.why.code()) != code);
        sorted
    }

    /// The counts.
    #[must_use]
    pub const fn tally(&self) -> &Tally {
        &self.tally
    }

    fn count(&mut self, entry: &FileEntry, outcome: Outcome) {
        let tally = &mut self.tally;
        match outcome {
            Outcome::Trusted => tally.trusted += 1,
            Outcome::Hashed => {
                tally.hashed += 1;
                tally.bytes_hashed += entry.size;
            }
            Outcome::Bad(why) => {
                tally.bad += 1;
                self.reasons.push(Reason { file: Some(entry.path.clone()), why });
                return;
            }
            Outcome::Deferred => return,
        }
        tally.shards_verified += u64::from(is_shard(&entry.path));
    }
}

impl Tally {
    fn of(manifest: &Manifest) -> Self {
        Self {
            files: manifest.files().len() as u64,
            shards: manifest.shard_count() as u64,
            bytes: manifest.total_bytes(),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::digest::Sha256;
    use crate::core::manifest::tests::{entry, source};
    use crate::core::reason::tests::bytes_why;
    use crate::core::repo::{CommitId, Revision};

    fn identity(size: u64, ctime_ns: i64) -> Identity {
        Identity { inode: 1, size, mtime_ns: 1, ctime_ns }
    }

    #[test]
    fn what_one_look_at_a_file_says() {
        let file = entry("x", 10);
        let known = [identity(10, 5)];
        let unreadable = Observed::Unreadable { why: "no".into() };
        for (observed, verified, finding) in [
            (Observed::Present(identity(10, 5)), &known[..], Finding::Trusted),
            (Observed::Present(identity(10, 6)), &known, Finding::HashNeeded),
            (Observed::Present(identity(10, 5)), &[], Finding::HashNeeded),
            (Observed::Present(identity(9, 5)), &known, Finding::Bad(Why::Size { expected: 10, found: 9 })),
            (Observed::Present(identity(11, 5)), &[], Finding::Bad(Why::Size { expected: 10, found: 11 })),
            // Even an identity that was once verified cannot excuse another size than the manifest's.
            (Observed::Present(identity(9, 5)), &[identity(9, 5)], Finding::Bad(Why::Size { expected: 10, found: 9 })),
            (Observed::Missing, &known, Finding::Bad(Why::Missing { size: 10 })),
            (Observed::NotRegular, &known, Finding::Bad(Why::NotRegular)),
            (unreadable, &known, Finding::Bad(Why::Unreadable { why: "no".into() })),
        ] {
            assert_eq!(inspect(&file, verified, &observed), finding, "{observed:?}");
        }
    }

    #[test]
    fn the_gravest_reason_gives_the_code() {
        let missing = || Outcome::Bad(Why::Missing { size: 1 });
        let unreadable = || Outcome::Bad(Why::Unreadable { why: String::new() });
        let corrupt = || Outcome::Bad(bytes_why());
        let manifest = Manifest::seal(source(), vec![entry("a", 1), entry("b", 1), entry("c", 1)]).unwrap();
        for (outcomes, exit) in [
            (vec![Outcome::Trusted, Outcome::Hashed, Outcome::Trusted], 0),
            (vec![Outcome::Trusted, missing(), Outcome::Trusted], 10),
            (vec![Outcome::Trusted, corrupt(), Outcome::Trusted], 11),
            (vec![Outcome::Trusted, unreadable(), Outcome::Hashed], 18),
            (vec![missing(), corrupt(), unreadable()], 11),
            (vec![missing(), Outcome::Deferred, Outcome::Deferred], 10),
            (vec![Outcome::Trusted, Outcome::Deferred, Outcome::Hashed], 18),
            (vec![unreadable(), Outcome::Trusted, missing()], 10),
            (vec![Outcome::Trusted, Outcome::Trusted], 18),
            (vec![], 18),
        ] {
            let decision = Decision::of_files(&manifest, outcomes);
            assert_eq!(decision.exit(), exit);
            assert_eq!(decision.is_open(), exit == 0);
        }
    }

    #[test]
    fn a_reason_about_the_whole_directory_has_its_own_code() {
        for (why, exit) in [
            (Why::NeverPulled { looked: String::new() }, 13),
            (Why::ManifestUnreadable { why: String::new() }, 18),
            (Why::OtherManifest { expected: Sha256::from_bytes([1; 32]), found: Sha256::from_bytes([2; 32]) }, 12),
            (Why::OtherCommit { expected: Revision::default(), found: CommitId::from_bytes([1; 20]) }, 10),
            (Why::NoReceipt, 10),
            (Why::ReceiptDamaged { why: String::new() }, 10),
            (Why::ReceiptOfOther { expected: Sha256::from_bytes([1; 32]), found: Sha256::from_bytes([2; 32]) }, 10),
            (Why::ReceiptUnreadable { why: String::new() }, 18),
            (Why::Held, 15),
            (Why::Unsteady, 18),
        ] {
            assert_eq!(Decision::closed(why.clone(), None, vec![]).exit(), exit, "{why:?}");
        }
    }

    #[test]
    fn counts_tell_trusted_hashed_and_bad_files_apart() {
        let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "z.json"];
        let manifest = Manifest::seal(source(), names.map(|name| entry(name, 5)).to_vec()).unwrap();
        let outcomes = vec![Outcome::Hashed, Outcome::Bad(Why::Missing { size: 5 }), Outcome::Trusted];
        let decision = Decision::of_files(&manifest, outcomes);
        let tally = Tally {
            files: 3,
            trusted: 1,
            hashed: 1,
            bad: 1,
            shards: 2,
            shards_verified: 1,
            bytes: 15,
            bytes_hashed: 5,
        };
        assert_eq!(*decision.tally(), tally);
        assert_eq!(decision.reasons()[0].to_string(), "model-00002-of-00002.safetensors: missing (5 B)");
    }

    #[test]
    fn the_gravest_reasons_come_first() {
        let manifest = Manifest::seal(source(), vec![entry("a", 1), entry("b", 1)]).unwrap();
        let outcomes = vec![Outcome::Bad(Why::Missing { size: 1 }), Outcome::Bad(bytes_why())];
        let decision = Decision::of_files(&manifest, outcomes);
        assert_eq!(decision.reasons()[0].file.as_ref().unwrap().as_str(), "b");
    }

    #[test]
    fn a_hundred_thousand_reasons_are_sorted_in_no_time() {
        let files: Vec<_> = (0..100_000).map(|n| entry(&format!("f{n:06}"), 1)).collect();
        let manifest = Manifest::seal(source(), files).unwrap();
        let mut outcomes = vec![Outcome::Bad(Why::Missing { size: 1 }); manifest.files().len()];
        outcomes[99_999] = Outcome::Bad(bytes_why());
        let decision = Decision::of_files(&manifest, outcomes);
        assert_eq!(decision.reasons()[0].file.as_ref().unwrap().as_str(), "f099999");
    }

    proptest! {
        #[test]
        fn the_gate_opens_exactly_when_every_file_was_believed(outcomes in prop::collection::vec(0u8..5, 0..9), files in 1usize..8) {
            let outcome = |kind: &u8| match kind {
                0 | 1 => Outcome::Trusted,
                2 => Outcome::Hashed,
                3 => Outcome::Bad(Why::Missing { size: 1 }),
                _ => Outcome::Deferred,
            };
            let manifest = Manifest::seal(source(), (0..files).map(|n| entry(&format!("f{n}"), 1)).collect()).unwrap();
            let decision = Decision::of_files(&manifest, outcomes.iter().map(outcome).collect());
            let believed = outcomes.iter().take(files).filter(|kind| **kind <= 2).count();
            prop_assert_eq!(decision.is_open(), believed == files);
            prop_assert_eq!(decision.exit() == 0, decision.is_open());
            let Tally { trusted, hashed, bad, .. } = *decision.tally();
            prop_assert_eq!(trusted + hashed, believed as u64);
            prop_assert!(trusted + hashed + bad <= files as u64);
            let failed = decision.clone().after_failed_pull(Code::NoSpace, String::new());
            prop_assert_eq!(failed.exit(), if decision.is_open() { 0 } else { Code::NoSpace.exit() });
        }

        #[test]
        fn an_identity_that_could_not_be_waited_out_is_never_trusted(inode in any::<u64>(), size in 0u64..9, mtime_ns in any::<i64>(), ctime_ns in i64::MIN + 1..i64::MAX) {
            let found = Identity { inode, size, mtime_ns, ctime_ns };
            let file = entry("x", size);
            prop_assert_eq!(inspect(&file, &[found.distrusted()], &Observed::Present(found)), Finding::HashNeeded);
            prop_assert_eq!(inspect(&file, &[found], &Observed::Present(found)), Finding::Trusted);
        }

        #[test]
        fn only_an_identity_that_was_verified_is_trusted(verified in prop::collection::vec((0u64..3, 0i64..3), 0..4), now in (0u64..3, 0i64..3)) {
            let verified: Vec<_> = verified.into_iter().map(|(size, ctime)| identity(size, ctime)).collect();
            let now = identity(now.0, now.1);
            let trusted = inspect(&entry("x", 1), &verified, &Observed::Present(now)) == Finding::Trusted;
            prop_assert_eq!(trusted, now.size == 1 && verified.contains(&now));
        }
    }
}
