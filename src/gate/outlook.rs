//! What the owner of the volume says about a model that a gate waits for.
//!
//! Owns the reading of `status.json` for that purpose. It never opens a gate: it only tells
//! progress from a stall, and a pull that has given up from one that goes on.

use std::path::Path;

use crate::clock;
use crate::core::code::Code;
use crate::core::model_name::ModelName;
use crate::core::status::{ModelStatus, Report};
use crate::volume::{ModelDir, Volume};

/// Age at which a report no longer speaks of now, in seconds; clocks of hosts may differ by it.
const FRESH_S: i64 = 60;

/// How a pull is getting on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outlook {
    /// A number that changes whenever something moves; none when nobody knows.
    pub progress: Option<u64>,
    /// The outcome a pull has ended with that nobody but a person can change.
    pub failed: Option<(Code, String)>,
}

impl Outlook {
    /// Of the model `id` on the volume at `volume`, by its owner's report; without one, by the
    /// bytes in `directory`.
    #[must_use]
    pub fn of(volume: &Path, id: Option<&ModelName>, directory: &Path) -> Self {
        let status = id.and_then(|id| reported(volume, id));
        match &status {
            Some((model, fresh)) => Self {
                progress: model.bytes.map(|bytes| bytes.received.wrapping_add(bytes.verified)),
                failed: model
                    .error
                    .as_ref()
                    .filter(|error| *fresh && is_final(error.code))
                    .map(|error| (error.code, error.message.clone())),
            },
            None => Self { progress: bytes_in(directory), failed: None },
        }
    }
}

/// The model's entry, and whether the report is of now.
fn reported(volume: &Path, id: &ModelName) -> Option<(ModelStatus, bool)> {
    let bytes = Volume::open(volume).ok()?.status().ok()??;
    let report = Report::from_json(&bytes)?;
    let age_s = clock::now().as_second() - report.written_at.as_second();
    let model = report.models.into_iter().find(|model| model.id == *id)?;
    Some((model, age_s.abs() <= FRESH_S))
}

fn bytes_in(directory: &Path) -> Option<u64> {
    ModelDir::open(directory).and_then(|dir| dir.bytes_on_disk()).ok()
}

/// Whether waiting on is pointless: the same outcomes for which a gate does not wait.
const fn is_final(code: Code) -> bool {
    matches!(code, Code::Corrupt | Code::Refused | Code::NoSpace | Code::UpstreamRefused | Code::CouldNotCheck)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_status(volume: &Path, age_s: i64, error: &str) {
        let written_at = clock::now().checked_sub(jiff::SignedDuration::from_secs(age_s)).unwrap();
        let text = format!(
            r#"{{"schema":1,"volume":"/v","written_at":"{written_at}",
            "daemon":{{"running":true,"host":null,"pid":null,"version":null,"age_s":null}},
            "models":[{{"id":"kimi","repo":"org/kimi","repo_type":"model","revision":"main","commit":null,"selection":null,
            "directory":"/v/kimi","state":"failed","phase":null,"files":null,"shards":null,
            "bytes":{{"total":9,"received":5,"durable":4,"verified":2}},"rate_bytes_per_s":null,"eta_s":null,
            "last_byte_age_s":null,"connections":0,"error":{error}}}]}}"#
        );
        std::fs::create_dir_all(volume.join(".muster")).unwrap();
        std::fs::write(volume.join(".muster/status.json"), text).unwrap();
    }

    #[test]
    fn the_owners_report_tells_progress_and_a_pull_that_gave_up() {
        let place = tempfile::tempdir().unwrap();
        let volume = place.path();
        let id = ModelName::parse("kimi").unwrap();
        let look = || Outlook::of(volume, Some(&id), &volume.join("kimi"));
        assert_eq!(look(), Outlook::default());

        let refused = r#"{"code":"upstream_refused","message":"access denied","hint":null}"#;
        write_status(volume, 1, refused);
        assert_eq!(
            look(),
            Outlook { progress: Some(7), failed: Some((Code::UpstreamRefused, "access denied".into())) }
        );
        write_status(volume, 3600, refused);
        assert_eq!(look().failed, None, "an old report says nothing of now");
        write_status(volume, 1, r#"{"code":"incomplete","message":"m","hint":null}"#);
        assert_eq!(look().failed, None, "that one is worth waiting for");
    }

    #[test]
    fn without_an_owner_the_bytes_in_the_directory_are_the_progress() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("x"), [0; 12]).unwrap();
        assert_eq!(Outlook::of(Path::new("/nonexistent"), None, place.path()).progress, Some(12));
    }
}
