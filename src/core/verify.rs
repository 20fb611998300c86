//! Proof that bytes are the right ones.
//!
//! [`FileHasher`] takes a file's bytes in order and is the only thing that mints a [`Proof`];
//! nothing can be published or put on a receipt without one. Where the bytes come from is the
//! caller's, and so is the duty to feed exactly what is on disk.

use sha1::Digest as _;
use thiserror::Error;

use super::blocks::{BLOCK_SIZE, Blocks, State};
use super::digest::{Digest, GitSha1, Sha256};
use super::manifest::FileEntry;

/// The bytes are not what the manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// Another number of bytes.
    #[error("{expected} bytes expected, {found} found")]
    Size {
        /// Bytes in the manifest.
        expected: u64,
        /// Bytes seen.
        found: u64,
    },
    /// The right number of bytes, and other ones.
    #[error("{expected} expected, {found} found")]
    Digest {
        /// Digest in the manifest.
        expected: Digest,
        /// Digest of the bytes seen.
        found: Digest,
    },
}

/// Evidence that bytes with the expected digest were seen from first to last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    digest: Digest,
    blocks: Blocks,
}

impl Proof {
    /// Size in bytes.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.blocks.size()
    }

    /// The manifest's digest, which the bytes matched.
    #[must_use]
    pub const fn digest(&self) -> Digest {
        self.digest
    }

    /// SHA-256 of the bytes, whatever kind of digest the manifest has.
    #[must_use]
    pub const fn sha256(&self) -> Sha256 {
        self.blocks.sha256()
    }

    /// Digests of the file's blocks.
    #[must_use]
    pub const fn blocks(&self) -> &Blocks {
        &self.blocks
    }
}

/// A running hash over one file, from its first byte.
#[derive(Debug, Clone)]
pub struct FileHasher {
    expected: Digest,
    size: u64,
    position: u64,
    sha256: sha2::Sha256,
    /// Where the hash stood between the blocks so far.
    states: Vec<State>,
    git: Option<sha1::Sha1>,
}

impl FileHasher {
    /// Starts at byte 0 of the file that `entry` describes.
    #[must_use]
    pub fn new(entry: &FileEntry) -> Self {
        let git = match entry.digest {
            Digest::Sha256(_) => None,
            Digest::GitBlob(_) => Some(sha1::Sha1::new().chain_update(format!("blob {}\0", entry.size))),
        };
        Self {
            expected: entry.digest,
            size: entry.size,
            position: 0,
            sha256: sha2::Sha256::new(),
            states: Vec::new(),
            git,
        }
    }

    /// Bytes taken so far: the offset of the next one.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Takes the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        if let Some(git) = &mut self.git {
            git.update(bytes);
        }
        while !bytes.is_empty() {
            let room = BLOCK_SIZE - self.position % BLOCK_SIZE;
            let room = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
            let (block, behind) = bytes.split_at(room);
            self.sha256.update(block);
            self.position += block.len() as u64;
            if self.position.is_multiple_of(BLOCK_SIZE) && self.position < self.size {
                self.states.push(State::of(&self.sha256));
            }
            bytes = behind;
        }
    }

    /// Ends the file and takes its bytes as they are, on an operator's word: the proof speaks of their
    /// own SHA-256. `true` when they are what the manifest says all the same.
    ///
    /// # Errors
    /// [`Mismatch::Size`].
    pub fn accept(self) -> Result<(Proof, bool), Mismatch> {
        let expected = self.expected;
        let (blocks, found) = self.end()?;
        let is_published = found == expected;
        let digest = if is_published { expected } else { Digest::Sha256(blocks.sha256()) };
        Ok((Proof { digest, blocks }, is_published))
    }

    /// Ends the file.
    ///
    /// # Errors
    /// [`Mismatch`] when size or digest differ from the manifest's.
    pub fn finish(self) -> Result<Proof, Mismatch> {
        let expected = self.expected;
        let (blocks, found) = self.end()?;
        if found != expected {
            return Err(Mismatch::Digest { expected, found });
        }
        Ok(Proof { digest: expected, blocks })
    }

    /// What the bytes are, in the manifest's kind of digest, too.
    fn end(self) -> Result<(Blocks, Digest), Mismatch> {
        let sha256 = Sha256::from_bytes(self.sha256.finalize().into());
        let found = match self.git {
            None => Digest::Sha256(sha256),
            Some(git) => Digest::GitBlob(GitSha1::from_bytes(git.finalize().into())),
        };
        let blocks = Blocks::new(self.size, sha256, self.states).filter(|_| self.position == self.size);
        let mismatch = Mismatch::Size { expected: self.size, found: self.position };
        blocks.map(|blocks| (blocks, found)).ok_or(mismatch)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::repo_path::RepoPath;

    /// The entry of a file with these bytes, as LFS stores it.
    pub(crate) fn lfs_entry(path: &str, bytes: &[u8]) -> FileEntry {
        let digest = Digest::Sha256(Sha256::from_bytes(sha2::Sha256::digest(bytes).into()));
        FileEntry { path: RepoPath::parse(path).unwrap(), size: bytes.len() as u64, digest, xet_hash: None }
    }

    fn hash(entry: &FileEntry, bytes: &[u8]) -> Result<Proof, Mismatch> {
        let mut hasher = FileHasher::new(entry);
        bytes.chunks(7).for_each(|bytes| hasher.update(bytes));
        hasher.finish()
    }

    #[test]
    fn a_git_blob_is_hashed_with_its_header() {
        // `git hash-object` of an empty file and of "hello\n".
        for (bytes, hex) in [
            (&b""[..], "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
            (b"hello\n", "ce013625030ba8dba906f756967f9e9ca394464a"),
        ] {
            let mut entry = lfs_entry("x", bytes);
            entry.digest = Digest::GitBlob(GitSha1::parse(hex).unwrap());
            let proof = hash(&entry, bytes).unwrap();
            assert_eq!(Digest::Sha256(proof.sha256()), lfs_entry("x", bytes).digest);
        }
    }

    #[test]
    fn short_long_and_wrong_bytes_are_told_apart() {
        let entry = lfs_entry("x", b"0123456789");
        assert!(hash(&entry, b"0123456789").is_ok());
        assert_eq!(hash(&entry, b"012345678"), Err(Mismatch::Size { expected: 10, found: 9 }));
        assert_eq!(hash(&entry, b"01234567890"), Err(Mismatch::Size { expected: 10, found: 11 }));
        assert!(matches!(hash(&entry, b"0123456780"), Err(Mismatch::Digest { .. })));
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_always_seen(mut bytes in prop::collection::vec(any::<u8>(), 1..300), at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let entry = lfs_entry("x", &bytes);
            prop_assert!(hash(&entry, &bytes).is_ok());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(hash(&entry, &bytes).is_err());
        }
    }
}
