//! The files of one manifest, each with what was seen of it and what is known so far.
//!
//! Invariant: a file gets its outcome once, from one look or from its bytes, and a look that
//! says "no" is never overruled by something that was known before.

use super::hash::{Pages, hash_files, look_at};
use super::structure::{Structure, look_into};
use crate::clock;
use crate::core::digest::{Digest, Sha256};
use crate::core::gate::{Decision, Finding, Outcome, inspect};
use crate::core::identity::{Identity, Observed};
use crate::core::manifest::{FileEntry, Manifest};
use crate::core::oms::cover::Here;
use crate::core::reason::{Reason, Why};
use crate::core::receipt::Receipt;
use crate::core::repo_path::RepoPath;
use crate::core::structure::Strictness;
use crate::volume::ModelDir;
use crate::volume::fs_kind::FsKind;
use crate::volume::identity::is_settled;

const SECOND_NS: i64 = 1_000_000_000;
/// How far the clock of another host may be from ours.
const SKEW_NS: i64 = 60 * SECOND_NS;

/// A check of all files under way.
pub(super) struct Survey<'a> {
    pub(super) dir: &'a ModelDir,
    pub(super) manifest: &'a Manifest,
    /// Our clock before the first look, nanoseconds since 1970.
    looked_at_ns: i64,
    looks: Vec<Observed>,
    /// None: the bytes have to be hashed.
    outcomes: Vec<Option<Outcome>>,
    /// Of the bytes that were hashed, right or wrong.
    sha256s: Vec<Option<Sha256>>,
}

impl<'a> Survey<'a> {
    /// Looks at every file once.
    pub(super) fn look(dir: &'a ModelDir, manifest: &'a Manifest) -> Self {
        let looked_at_ns = i64::try_from(clock::now().as_nanosecond()).unwrap_or(0);
        let looks = look_at(manifest.files(), |entry| dir.observe(&entry.path));
        let judge = |(entry, look): (&FileEntry, &Observed)| match inspect(entry, &[], look) {
            Finding::Bad(why) => Some(Outcome::Bad(why)),
            Finding::Trusted | Finding::HashNeeded => None,
        };
        let outcomes = manifest.files().iter().zip(&looks).map(judge).collect();
        let sha256s = vec![None; looks.len()];
        Self { dir, manifest, looked_at_ns, looks, outcomes, sha256s }
    }

    /// Gives `outcome` to the files that still have the identity `verified` knows for them.
    pub(super) fn trust(&mut self, outcome: &Outcome, verified: impl Fn(usize, &FileEntry) -> Option<Identity>) {
        for (at, entry) in self.manifest.files().iter().enumerate() {
            if self.outcomes[at].is_none()
                && let Some(identity) = verified(at, entry)
                && inspect(entry, &[identity], &self.looks[at]) == Finding::Trusted
            {
                self.outcomes[at] = Some(outcome.clone());
            }
        }
    }

    /// Whether nothing has to be hashed.
    pub(super) fn is_settled(&self) -> bool {
        self.outcomes.iter().all(Option::is_some)
    }

    /// Whether a file is known to be wrong.
    pub(super) fn has_bad(&self) -> bool {
        self.outcomes.iter().any(|outcome| matches!(outcome, Some(Outcome::Bad(_))))
    }

    /// Files and bytes that have to be hashed.
    pub(super) fn left(&self) -> (u64, u64) {
        let left = self.unknown();
        (left.len() as u64, left.iter().map(|at| self.manifest.files()[*at].size).sum())
    }

    /// Hashes what is left. Returns the files that are right under an identity that will show
    /// every later change, and that identity.
    pub(super) fn hash(
        &mut self,
        receipt: &Receipt,
        on_bytes: &(dyn Fn(u64) + Sync),
    ) -> Vec<(&'a FileEntry, Identity)> {
        let left = self.unknown();
        let entries: Vec<&'a FileEntry> = left.iter().map(|at| &self.manifest.files()[*at]).collect();
        let answers = hash_files(self.dir, &entries, Pages::Keep, on_bytes);
        let mut lasting = Vec::new();
        for ((at, entry), answer) in left.into_iter().zip(entries).zip(answers) {
            let outcome = match answer {
                Ok(hashed) => {
                    if self.is_lasting(&hashed.identity) {
                        lasting.push((entry, hashed.identity));
                    }
                    self.looks[at] = Observed::Present(hashed.identity);
                    self.sha256s[at] = Some(hashed.proof.sha256());
                    Outcome::Hashed
                }
                Err(Why::Bytes { expected, found, .. }) => {
                    if let Digest::Sha256(found) = found {
                        self.sha256s[at] = Some(found);
                    }
                    let verified = receipt.files().get(at).map(|record| Observed::Present(record.identity));
                    Outcome::Bad(Why::Bytes { expected, found, disguised: verified.as_ref() == Some(&self.looks[at]) })
                }
                Err(why) => Outcome::Bad(why),
            };
            self.outcomes[at] = Some(outcome);
        }
        lasting
    }

    /// Whether every file judged right still has the identity it was judged by.
    pub(super) fn still_holds(&self) -> bool {
        let again = look_at(self.manifest.files(), |entry| self.dir.observe(&entry.path));
        let right = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Trusted | Outcome::Hashed));
        self.outcomes.iter().zip(&self.looks).zip(&again).all(|((outcome, look), now)| !right(outcome) || look == now)
    }

    /// What each file was when it was judged right; none when another was not.
    pub(super) fn all_right(&self) -> Option<Vec<Identity>> {
        let right = |(outcome, look): (&Option<Outcome>, &Observed)| match (outcome, look) {
            (Some(Outcome::Trusted | Outcome::Hashed), Observed::Present(identity)) => Some(*identity),
            _ => None,
        };
        self.outcomes.iter().zip(&self.looks).map(right).collect()
    }

    /// Looks into the weight files, which are all right; none when one has changed since.
    pub(super) fn look_into(&self, identities: &[Identity], strictness: Strictness) -> Option<Structure> {
        // A launcher reads them next.
        look_into(self.dir, self.manifest, identities, strictness, Pages::Keep)
    }

    /// Whether every file was hashed for this check.
    pub(super) fn is_hashed(&self) -> bool {
        self.outcomes.iter().all(|outcome| *outcome == Some(Outcome::Hashed))
    }

    /// The identity a file was judged by.
    pub(super) fn identity(&self, path: &RepoPath) -> Option<Identity> {
        let at = self.manifest.files().binary_search_by(|entry| entry.path.cmp(path)).ok()?;
        match self.looks.get(at) {
            Some(Observed::Present(identity)) => Some(*identity),
            _ => None,
        }
    }

    /// What is known of the bytes of a file, for who compares them with a signature. The receipt is asked
    /// only where it was believed.
    pub(super) fn here(&self, at: usize, receipt: &Receipt) -> Here {
        match (&self.outcomes[at], self.sha256s[at], self.manifest.files()[at].digest) {
            (Some(Outcome::Trusted | Outcome::Hashed | Outcome::Bad(Why::Bytes { .. })), Some(sha256), _)
            | (Some(Outcome::Trusted | Outcome::Hashed), None, Digest::Sha256(sha256)) => Here::Sha256(sha256),
            (Some(Outcome::Trusted), None, Digest::GitBlob(_)) => {
                receipt.files().get(at).map_or(Here::Wrong, |record| Here::Sha256(record.sha256))
            }
            (Some(Outcome::Bad(Why::Bytes { .. } | Why::Size { .. } | Why::NotRegular)), ..) => Here::Wrong,
            // Right by its SHA-1, and nobody knows more: never good enough.
            (Some(Outcome::Hashed), None, Digest::GitBlob(_)) => Here::Wrong,
            (Some(Outcome::Bad(_) | Outcome::Deferred) | None, ..) => Here::Unknown,
        }
    }

    /// The verdict over all files.
    pub(super) fn decide(self) -> Decision {
        let outcomes = self.outcomes.into_iter().map(|outcome| outcome.unwrap_or(Outcome::Deferred));
        Decision::of_files(self.manifest, outcomes.collect())
    }

    fn unknown(&self) -> Vec<usize> {
        (0..self.outcomes.len()).filter(|at| self.outcomes[*at].is_none()).collect()
    }

    /// Whether the identity had settled before its bytes were read. The gate may not write where
    /// the model is, so it has only its own clock; on a network file system that one may be off.
    fn is_lasting(&self, identity: &Identity) -> bool {
        lasts(identity, self.looked_at_ns, self.dir.fs_kind())
    }
}

/// Without a receipt no file is believed, but those that are not there can be named.
pub(super) fn missing_files(dir: &ModelDir, manifest: &Manifest) -> Vec<Reason> {
    let looks = look_at(manifest.files(), |entry| dir.observe(&entry.path));
    let missing = manifest.files().iter().zip(looks).filter(|(_, look)| *look == Observed::Missing);
    missing
        .map(|(entry, _)| Reason { file: Some(entry.path.clone()), why: Why::Missing { size: entry.size } })
        .collect()
}

fn lasts(identity: &Identity, now_ns: i64, kind: FsKind) -> bool {
    let now_ns = if kind.is_single_host() { now_ns } else { now_ns - SKEW_NS };
    // Where whole seconds are stored, the file system's clock shows whole seconds.
    let coarse = identity.ctime_ns % SECOND_NS == 0;
    is_settled(identity, if coarse { now_ns - now_ns % SECOND_NS } else { now_ns }, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_lasts_only_past_its_tick_and_the_doubt_about_clocks() {
        let at = 1000 * SECOND_NS + 7;
        let fine = Identity { inode: 1, size: 1, mtime_ns: at, ctime_ns: at };
        let coarse = Identity { inode: 1, size: 1, mtime_ns: at - 7, ctime_ns: at - 7 };
        for (identity, later, kind, expected) in [
            (&fine, 0, FsKind::Ext4, false),
            (&fine, SECOND_NS / 10, FsKind::Ext4, true),
            (&coarse, SECOND_NS / 10, FsKind::Ext4, false),
            (&coarse, 3 * SECOND_NS, FsKind::Ext4, true),
            (&fine, 10 * SECOND_NS, FsKind::Nfs, false),
            (&fine, 70 * SECOND_NS, FsKind::Nfs, true),
            (&fine, -SECOND_NS, FsKind::Ext4, false),
        ] {
            assert_eq!(lasts(identity, at + later, kind), expected, "{later} {kind:?}");
        }
    }
}
