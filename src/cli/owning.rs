//! What a verb needs to become the owner of a volume, from the settings.

use crate::api::{Access, OwnError, Wish};
use crate::config::{Environment, LimitSettings, Setting, Settings, Size};
use crate::core::limit::Limit;
use crate::daemon::limiting::Given;
use crate::daemon::{LimitPolicy, Options};
use crate::fetch::Pages;
use crate::hub::HubConfig;

use super::exit::CliError;

/// How the owner works.
#[must_use]
pub fn options(settings: &Settings, foreground: bool, hub: HubConfig) -> Options {
    Options {
        volume: settings.volume.value.clone(),
        state_dir: settings.state_dir.value.clone(),
        jobs: if foreground { 1 } else { settings.daemon.jobs.value.get().into() },
        foreground,
        readback: settings.readback.value,
        reserve: settings.reserve.value.fixed().map(Size::bytes),
        retry_for: foreground.then_some(settings.retry_for.value),
        retire_after: settings.retire_after.value,
        hub,
        offline: settings.offline.value,
        limits: limits(settings),
        pages: match (settings.low_impact.value, settings.keep_cached.value) {
            (true, _) => Pages::GivenBack,
            (false, true) => Pages::Kept,
            (false, false) => Pages::Past,
        },
        low_impact: settings.low_impact.value,
        socket: None,
    }
}

/// How fast bytes may come, and where that was said.
#[must_use]
pub fn limits(settings: &Settings) -> LimitPolicy {
    let LimitSettings { job, volume, hours } = &settings.limits;
    let given = |setting: &Setting<Limit>| Given { value: setting.value, from: setting.origin.to_string() };
    LimitPolicy {
        volume: given(volume),
        hours: Given { value: hours.value.clone(), from: hours.origin.to_string() },
        job: given(job),
    }
}

/// Where it answers, and whom: in the foreground its own user alone.
///
/// # Errors
/// A group that does not exist.
pub fn wish(settings: &Settings, environment: &Environment, foreground: bool) -> Result<Wish, CliError> {
    let runtime_dir = environment.text("XDG_RUNTIME_DIR").ok().flatten().map(Into::into);
    if foreground {
        return Ok(Wish { path: None, runtime_dir, access: Access::Private });
    }
    let group = settings.daemon.api_group.value.as_deref();
    let access = Access::of_group(group).map_err(|error| CliError::from(&OwnError::from(error)))?;
    Ok(Wish { path: settings.daemon.socket.value.clone(), runtime_dir, access })
}
