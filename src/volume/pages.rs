//! Reading at an offset, and giving pages back: what every reader of large files does alike.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;

use rustix::fs::Advice;

/// Reads at an offset until the buffer is full or the file ends.
pub(super) fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Asks the system to forget the pages of a range; it may refuse, and nothing depends on it.
pub(super) fn drop_pages(file: &impl AsFd, range: &Range<u64>) {
    if let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
        let _advice = rustix::fs::fadvise(file, range.start, Some(len), Advice::DontNeed);
    }
}
