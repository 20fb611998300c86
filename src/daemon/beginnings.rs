//! What the official client has of the wanted files, tried by samples before it is copied.
//!
//! A beginning cannot be proved against the digest of a whole file. Its name says which content it is of
//! and it has no holes; a few windows of it, the last one among them, are compared with what the Hub
//! serves. The digest of the whole file decides in the end, so a sample that cannot be had stops nothing.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use tokio::select;
use tracing::{debug, warn};

use super::error::WorkError;
use super::worker::{Site, Work};
use crate::core::causes::in_words;
use crate::core::manifest::FileEntry;
use crate::core::plan::FileId;
use crate::hub::HubClient;
use crate::sources::{HubSource, ReadError};
use crate::volume::VolumeError;
use crate::volume::foreign::Beginning;

/// Bytes of a window.
const WINDOW: u64 = 64 << 10;

impl Work {
    /// The beginnings of wanted files that agree with the Hub.
    pub(super) async fn beginnings(
        &self,
        site: &Site,
        wanted: &[FileId],
        hub: &HubClient,
    ) -> Result<HashMap<FileId, Beginning>, WorkError> {
        let mut agreed = HashMap::new();
        if self.bench.offline {
            return Ok(agreed);
        }
        let (manifest, wanted) = (Arc::clone(&site.manifest), wanted.to_vec());
        let found = self.on_model(site, move |_, model| -> Result<Vec<_>, VolumeError> {
            let all = model.beginnings()?;
            Ok(wanted.into_iter().filter_map(|id| Some((id, all.of(&manifest.files()[id.0])?))).collect())
        });
        let source = HubSource::of(Arc::new(hub.clone()), &site.manifest);
        for (id, beginning) in found.await? {
            let entry = &site.manifest.files()[id.0];
            let is_same = select! {
                is_same = self.agrees(site, &source, entry, &beginning) => is_same,
                () = self.stop.cancelled() => return Err(WorkError::Stopped),
            };
            if is_same {
                agreed.insert(id, beginning);
            } else {
                warn!(file = %entry.path, "what the official client has of it is not what the Hub serves, and is left");
            }
        }
        Ok(agreed)
    }

    async fn agrees(&self, site: &Site, source: &HubSource, entry: &FileEntry, beginning: &Beginning) -> bool {
        for window in windows(beginning.len()) {
            let (beginning, range) = (beginning.clone(), window.clone());
            let here = self.on_model(site, move |_, model| model.sample(&beginning, &range)).await;
            // The client may have finished it, or begun anew.
            let Ok(here) = here else { return false };
            match read(source, entry, window).await {
                Ok(there) if there == here => {}
                Ok(_) => return false,
                Err(error) => {
                    debug!(file = %entry.path, error = in_words(&error), "no sample could be had");
                    return true;
                }
            }
        }
        true
    }
}

async fn read(source: &HubSource, entry: &FileEntry, range: Range<u64>) -> Result<Vec<u8>, ReadError> {
    let mut body = source.read(entry, range, false).await?;
    let mut bytes = Vec::new();
    while let Some((_, some)) = body.next().await? {
        bytes.extend_from_slice(&some);
    }
    Ok(bytes)
}

/// The first, the middle and the last of `len` bytes, none twice.
fn windows(len: u64) -> Vec<Range<u64>> {
    let starts = [0, len.saturating_sub(WINDOW) / 2, len.saturating_sub(WINDOW)];
    let mut windows: Vec<Range<u64>> = Vec::new();
    for start in starts {
        let start = windows.last().map_or(start, |last| last.end.max(start));
        if start < len {
            windows.push(start..len.min(start + WINDOW));
        }
    }
    windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_the_middle_and_the_last_bytes_are_asked_for_and_none_twice() {
        const KIB: u64 = 1 << 10;
        let ends = |len| windows(len).into_iter().map(|window| (window.start, window.end)).collect::<Vec<_>>();
        assert_eq!(ends(1), [(0, 1)]);
        assert_eq!(ends(64 * KIB), [(0, 64 * KIB)]);
        assert_eq!(ends(100 * KIB), [(0, 64 * KIB), (64 * KIB, 100 * KIB)]);
        assert_eq!(ends(1 << 30).last(), Some(&((1 << 30) - 64 * KIB, 1 << 30)));
        for len in [1, 1000, 64 * KIB + 1, 150 * KIB, 192 * KIB, 193 * KIB, 1 << 30] {
            let windows = windows(len);
            assert!(windows.len() <= 3 && windows.is_sorted_by(|a, b| a.end <= b.start), "{windows:?}");
            assert!(windows[0].start == 0 && windows.last().unwrap().end == len, "{windows:?}");
        }
    }
}
