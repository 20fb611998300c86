//! The file of block digests beside the receipt, `.muster/blocks`.
//!
//! Invariants: it is a help and no proof. Without it nothing is less true, only dearer to repair, so
//! nobody fails for it: what cannot be noted is not. A record is appended in one write when its file was
//! proved, and the whole is written anew, durably, before a receipt when it holds what no file of the
//! receipt needs, or holds it twice, or is damaged. The format is `core::blocks`'s.

use std::collections::HashSet;
use std::io::Write as _;

use super::dir::stat_of;
use super::error::{Result, Step, VolumeError};
use super::model_dir::ModelDir;
use super::{small_file, sync};
use crate::core::blocks::{BlockTable, Blocks, records};
use crate::core::receipt::Receipt;

const NAME: &str = "blocks";
/// Most bytes of it that are read: the blocks of 32 TiB.
const LIMIT: u64 = 64 << 20;

impl ModelDir {
    /// The block digests that are known of files of this directory.
    ///
    /// # Errors
    /// When they cannot be read. Damaged ones are not known.
    pub fn blocks(&self) -> Result<BlockTable> {
        Ok(BlockTable::parse(&self.blocks_bytes()?))
    }

    /// Adds the block digests of files that were proved, as far as it goes. Not durable before the next
    /// receipt.
    pub fn note_blocks<'a>(&self, files: impl IntoIterator<Item = &'a Blocks>) {
        let bytes = records(files);
        if !bytes.is_empty() {
            let _as_far_as_it_goes = self.append_blocks(&bytes);
        }
    }

    /// Keeps the block digests of the receipt's files, durably and as far as it goes.
    pub(super) fn keep_blocks(&self, receipt: &Receipt) {
        let _as_far_as_it_goes = self.rewrite_blocks(receipt);
    }

    fn append_blocks(&self, bytes: &[u8]) -> Result<()> {
        let own = self.make_own()?;
        let mut file = own.open_to_append(NAME)?;
        let fail = |step, error| VolumeError::new(step, own.shown(NAME), error);
        let stat = stat_of(&file).map_err(|e| fail(Step::Look, e.into()))?;
        if stat.st_nlink != 1 {
            // Somebody's other file by a second name.
            return Err(VolumeError::NotRegular { path: own.shown(NAME) });
        }
        file.write_all(bytes).map_err(|e| fail(Step::Write, e))
    }

    fn rewrite_blocks(&self, receipt: &Receipt) -> Result<()> {
        let own = self.make_own()?;
        let found = match self.blocks_bytes() {
            // Nothing of ours.
            Err(VolumeError::TooLarge { .. } | VolumeError::NotRegular { .. } | VolumeError::Steered { .. }) => None,
            other => Some(other?),
        };
        let mut table = found.as_deref().map(BlockTable::parse).unwrap_or_default();
        let needed: HashSet<_> = receipt.files().iter().map(|file| file.sha256).collect();
        table.retain(|sha256| needed.contains(sha256));
        let kept = table.to_bytes();
        match found {
            Some(found) if found.is_empty() => Ok(()),
            // All of it is needed, so it stays as it is.
            Some(found) if found.len() == kept.len() => {
                let file = own.open_file(NAME)?;
                sync::data(&file, NAME).map_err(|e| VolumeError::new(Step::Sync, own.shown(NAME), e))
            }
            _ => small_file::store(&own, NAME, &kept),
        }
    }

    fn blocks_bytes(&self) -> Result<Vec<u8>> {
        let Some(own) = self.own()? else { return Ok(Vec::new()) };
        Ok(small_file::read(&own, NAME, LIMIT)?.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::path::PathBuf;

    use super::super::testing::{bytes, model};
    use super::*;
    use crate::core::blocks::BLOCK_SIZE;
    use crate::core::blocks::tests::blocks_of;
    use crate::core::identity::Identity;
    use crate::core::manifest::Manifest;
    use crate::core::manifest::tests::source;
    use crate::core::receipt::{FileRecord, Proved, Witness};
    use crate::core::verify::FileHasher;
    use crate::core::verify::tests::lfs_entry;

    fn data(last: u8) -> Vec<u8> {
        let mut data = bytes(usize::try_from(BLOCK_SIZE).unwrap());
        data.push(last);
        data
    }

    fn receipt_of(data: &[u8]) -> Receipt {
        let entry = lfs_entry("a", data);
        let mut hasher = FileHasher::new(&entry);
        hasher.update(data);
        let identity = Identity { inode: 1, size: entry.size, mtime_ns: 2, ctime_ns: 3 };
        let record = FileRecord::new(entry.path.clone(), &hasher.finish().unwrap(), identity, Proved::Stream);
        let witness = Witness { at: jiff::Timestamp::UNIX_EPOCH, program: String::new(), host: String::new() };
        Receipt::seal(&Manifest::seal(source(), vec![entry]).unwrap(), vec![record], witness).unwrap()
    }

    fn knows(model: &ModelDir, blocks: &Blocks) -> bool {
        model.blocks().unwrap().of(blocks.size(), &blocks.sha256()).as_ref() == Some(blocks)
    }

    #[test]
    fn what_was_noted_is_known_and_what_a_receipt_does_not_need_goes_with_it() {
        let (_place, model) = model();
        assert_eq!(model.blocks().unwrap(), BlockTable::default());
        let (mine, other) = (blocks_of(&data(1)), blocks_of(&data(2)));
        model.note_blocks([&other]);
        model.note_blocks([&mine, &mine]);
        assert!(knows(&model, &mine) && knows(&model, &other));
        sync::seen::take();
        model.store_receipt(&receipt_of(&data(1))).unwrap();
        assert!(knows(&model, &mine) && !knows(&model, &other));
        let steps = sync::seen::take();
        let at = |wanted: &str| steps.iter().position(|step| step == wanted);
        assert!(at("named blocks") < at("named receipt.json") && at("named blocks").is_some(), "{steps:?}");
        let before = std::fs::metadata(file(&model)).unwrap();
        model.store_receipt(&receipt_of(&data(1))).unwrap();
        assert_eq!(std::fs::metadata(file(&model)).unwrap().ino(), before.ino(), "nothing to drop, nothing written");
        assert_eq!(sync::seen::take()[0], "data blocks");
    }

    // class: names
    #[test]
    fn nothing_of_somebody_else_is_written_through_the_name() {
        let (place, model) = model();
        let victim = place.path().join("victim");
        let mine = blocks_of(&data(1));
        for is_hard in [false, true] {
            std::fs::write(&victim, "theirs").unwrap();
            let made = if is_hard { std::fs::hard_link(&victim, file(&model)) } else { symlink(&victim, file(&model)) };
            made.unwrap();
            model.note_blocks([&mine]);
            model.store_receipt(&receipt_of(&data(1))).unwrap();
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "theirs");
            // From now on there is a file of ours.
            model.note_blocks([&mine]);
            assert!(knows(&model, &mine));
            std::fs::remove_file(file(&model)).unwrap();
        }
        std::fs::create_dir(file(&model)).unwrap();
        model.note_blocks([&mine]);
        model.store_receipt(&receipt_of(&data(1))).unwrap();
    }

    fn file(model: &ModelDir) -> PathBuf {
        model.path().join(".muster").join(NAME)
    }
}
