//! Copying a range from one file into another.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use rustix::io::Errno;

use super::pages::read_at;

/// Buffer of a copy that the kernel does not do by itself.
const BUFFER: usize = 1 << 20;

/// Copies a range between two files at the same offset, sharing blocks where the file system
/// can. Returns how many bytes there were.
pub(super) fn copy_range(source: &File, target: &File, range: &Range<u64>) -> io::Result<u64> {
    let mut done = 0;
    while range.start + done < range.end {
        let (mut from, mut to) = (range.start + done, range.start + done);
        let left = usize::try_from(range.end - from).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), left) {
            Ok(0) => break,
            Ok(n) => done += n as u64,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                return copy_by_hand(source, target, &(range.start + done..range.end)).map(|n| done + n);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

fn copy_by_hand(source: &File, target: &File, range: &Range<u64>) -> io::Result<u64> {
    let mut buffer = vec![0; BUFFER];
    let mut at = range.start;
    while at < range.end {
        let want = usize::try_from(range.end - at).map_or(BUFFER, |left| left.min(BUFFER));
        let n = read_at(source, at, &mut buffer[..want])?;
        if n == 0 {
            break;
        }
        target.write_all_at(&buffer[..n], at)?;
        at += n as u64;
    }
    Ok(at - range.start)
}

#[cfg(test)]
mod tests {
    use super::super::testing::bytes;
    use super::*;

    #[test]
    fn both_ways_of_copying_bring_the_same_bytes_and_stop_at_the_end() {
        for copy in [copy_range, copy_by_hand] {
            let data = bytes(5000);
            let source = tempfile::tempfile().unwrap();
            source.write_all_at(&data, 0).unwrap();
            let target = tempfile::tempfile().unwrap();
            assert_eq!(copy(&source, &target, &(1000..3000)).unwrap(), 2000);
            assert_eq!(copy(&source, &target, &(4000..9000)).unwrap(), 1000);
            let mut back = vec![0; 6000];
            assert_eq!(read_at(&target, 0, &mut back).unwrap(), 5000);
            assert_eq!(back[1000..3000], data[1000..3000]);
            assert_eq!(back[4000..5000], data[4000..]);
        }
    }
}
