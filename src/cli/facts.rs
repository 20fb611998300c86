//! What is known of a volume, from the best source there is.
//!
//! Sources in order: the living owner's socket; the status file, if its owner lives; what the last
//! owner wrote together with the directories. Invariants (P11): a dead owner shows as dead, and
//! facts that are not live say how old they are. Reads only, as any user: no database, nothing is
//! made.

use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};

use super::exit::CliError;
use super::model_ref::{Located, locate};
use super::resolve::ModelRef;
use crate::api::Client;
use crate::clock;
use crate::config::Setting;
use crate::core::code::Code;
use crate::core::model_name::ModelName;
use crate::core::status::{DaemonStatus, ModelStatus, Report};
use crate::core::units;
use crate::daemon::report::of_disk;
use crate::volume::Volume;
use crate::volume::owner::{Glance, Liveness, Reading, SECOND_LOOK, Standing, liveness};

/// A report and where it comes from.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The report; its `daemon` says what is known of the owner now.
    pub report: Report,
    /// Where it comes from.
    pub source: Source,
}

/// Where facts come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The owner just said so.
    Live,
    /// The status file of an owner that lives.
    File,
    /// What the last owner wrote, and the directories.
    Remembered,
    /// The directories alone.
    Directories,
}

impl Facts {
    /// What people are told beside the models.
    pub fn remarks(&self) -> impl Iterator<Item = String> + '_ {
        self.report.daemon.notices.iter().map(|notice| format!("note: {notice}")).chain(self.caveat())
    }

    /// What people are told about facts that are not live.
    #[must_use]
    pub fn caveat(&self) -> Option<String> {
        let daemon = &self.report.daemon;
        let age = daemon.age_s.map(|age| format!("{} ago", units::duration(whole_seconds(age))));
        let age = age.unwrap_or_else(|| "of unknown age, the clocks differ".to_owned());
        let owner = match (&daemon.host, daemon.pid) {
            (Some(host), Some(pid)) => format!("process {pid} on {host}"),
            _ => "the owner".to_owned(),
        };
        match (self.source, daemon.running) {
            (Source::Live, _) => None,
            (Source::File, _) => Some(format!("{owner} owns the volume; facts from its status file, {age}")),
            (Source::Remembered, Some(true)) => Some(format!("{owner} has just taken the volume; last facts {age}")),
            (Source::Remembered, Some(false)) => Some(format!("no owner is running; last facts {age}")),
            (Source::Remembered, None) => Some(format!("{owner} does not answer; last facts {age}")),
            (Source::Directories, Some(true)) => Some(format!("{owner} has just taken the volume")),
            (Source::Directories, Some(false)) => Some("no owner is running; facts from the directories".to_owned()),
            (Source::Directories, None) => Some(format!("{owner} does not answer; facts from the directories")),
        }
    }
}

/// Opens the volume that the settings name.
///
/// # Errors
/// 13 where there is none, 18 where it cannot be read.
pub fn open(volume: &Setting<PathBuf>) -> Result<Volume, CliError> {
    Volume::open(&volume.value).map_err(|error| {
        if !error.is_missing() {
            return CliError::from(&error);
        }
        CliError::new(Code::UnknownModel, format!("there is no volume at {volume}"))
            .hint("muster pull makes one; --volume names another")
    })
}

/// Looks at a volume.
///
/// # Errors
/// 18 when neither file nor directories can be read.
pub async fn look(volume: &Volume) -> Result<Facts, CliError> {
    if let Ok(Some(client)) = Client::find(volume).await
        && let Ok(report) = client.report().await
    {
        return Ok(Facts { report, source: Source::Live });
    }
    // Records that cannot be read say nothing about their owner.
    let (readable, glance) = match volume.owner() {
        Ok(glance) => (true, glance),
        Err(_) => (false, None),
    };
    let last = read_status(volume);
    let is_over = readable && glance.as_ref().is_none_or(Glance::is_dead);
    if !is_over && let Some(report) = &last {
        match judge(volume, report).await {
            (Liveness::Dead | Liveness::Suspect, _) => {}
            (judged, report) => {
                let known = judged == Liveness::Alive;
                let age_s = known.then(|| seconds(age_of(&report)));
                let daemon = DaemonStatus { running: Some(true), age_s, ..report.daemon.clone() };
                return Ok(Facts { report: Report { daemon, ..report }, source: Source::File });
            }
        }
    }
    let running = match glance.as_ref().map(|glance| glance.standing) {
        _ if is_over => Some(false),
        // It runs, and either has not yet written or no longer writes.
        Some(Standing::Alive) => {
            if last.as_ref().is_none_or(|last| is_older(last, glance.as_ref())) {
                Some(true)
            } else {
                None
            }
        }
        Some(_) if last.is_some() => Some(false),
        _ => None,
    };
    remembered(volume, last, running, glance.as_ref())
}

/// Which model of the volume the user means: by its directory, or by a job that has none yet.
///
/// # Errors
/// 13 for none, 2 for several.
pub fn model<'a>(
    report: &'a Report,
    reference: &ModelRef,
    volume: &Setting<PathBuf>,
    here: &std::path::Path,
) -> Result<&'a ModelStatus, CliError> {
    let by_name = |name: &ModelName| report.models.iter().find(|model| model.id == *name);
    let (id, unknown) = match locate(reference, volume, here)? {
        Located::Here(model) => {
            let not_there = format!("{} is not on the volume {volume}", model.shown());
            (model.id, CliError::new(Code::UnknownModel, not_there))
        }
        Located::Absent(model, error) => (model.id, error),
    };
    if let Some(model) = id.as_ref().and_then(by_name) {
        return Ok(model);
    }
    let wanted = match reference {
        ModelRef::Repo(repo, _) => repo.id.to_string(),
        ModelRef::Text(text) => text.clone(),
        ModelRef::Path(_) => return Err(unknown),
    };
    let mut of_repo = report.models.iter().filter(|model| model.repo.to_string() == wanted);
    match (of_repo.next(), of_repo.next()) {
        (Some(model), None) => Ok(model),
        _ => Err(unknown),
    }
}

fn remembered(
    volume: &Volume,
    last: Option<Report>,
    running: Option<bool>,
    glance: Option<&Glance>,
) -> Result<Facts, CliError> {
    let source = if last.is_some() { Source::Remembered } else { Source::Directories };
    let record = glance.and_then(|glance| glance.record.as_ref());
    let before = last.as_ref().map(|report| report.daemon.clone()).unwrap_or_default();
    let daemon = DaemonStatus {
        running,
        host: record.map(|record| record.host.clone()).or(before.host),
        pid: record.map(|record| record.pid).or(before.pid),
        version: record.and_then(|record| record.program.split(' ').nth(1).map(str::to_owned)).or(before.version),
        age_s: last.as_ref().map(|report| seconds(age_of(report))),
        notices: before.notices,
    };
    let report = of_disk(volume, last, daemon).map_err(|error| CliError::from(&error))?;
    Ok(Facts { report, source })
}

/// Whether the owner lives, by its status file; one of suspect age is looked at twice.
async fn judge(volume: &Volume, report: &Report) -> (Liveness, Report) {
    let first = reading(report);
    match liveness(first, None) {
        Liveness::Suspect => {}
        judged => return (judged, report.clone()),
    }
    tokio::time::sleep(SECOND_LOOK).await;
    let second = read_status(volume).unwrap_or_else(|| report.clone());
    (liveness(first, Some(reading(&second))), second)
}

fn reading(report: &Report) -> Reading {
    // A number that differs from one second to the next.
    let pulse = report.written_at.as_millisecond().unsigned_abs();
    Reading { pulse, age: age_of(report) }
}

/// Whether the status was written before this owner took the volume.
fn is_older(report: &Report, glance: Option<&Glance>) -> bool {
    let record = glance.and_then(|glance| glance.record.as_ref());
    record.is_some_and(|record| report.written_at < record.started_at)
}

fn read_status(volume: &Volume) -> Option<Report> {
    // Unreadable, of another version, or none: the directories tell.
    Report::from_json(&volume.status().ok()??)
}

fn age_of(report: &Report) -> SignedDuration {
    age(report.written_at, clock::now())
}

fn age(then: Timestamp, now: Timestamp) -> SignedDuration {
    now.duration_since(then)
}

fn seconds(age: SignedDuration) -> f64 {
    (age.as_secs_f64().max(0.0) * 10.0).round() / 10.0
}

fn whole_seconds(seconds: f64) -> std::time::Duration {
    std::time::Duration::from_secs(
        std::time::Duration::try_from_secs_f64(seconds.max(0.0)).map_or(0, |age| age.as_secs()),
    )
}
