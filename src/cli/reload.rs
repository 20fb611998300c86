//! What SIGHUP does to a daemon: the configuration is read again.
//!
//! The log level and the limits change at once. Everything else needs a restart, and is named when it differs,
//! so that nobody believes in a change that did not happen.

use tracing::{error, info, warn};

use super::{Context, owning};
use crate::config::{self, KEYS, Key, LogLevel, SettingOrigin, Settings};
use crate::daemon::Jobs;
use crate::telemetry;

/// Reads file and environment again and compares with what is `in_force`.
pub fn reload(in_force: &Settings, context: &Context, jobs: &Jobs) {
    let read = config::load(context.config.as_deref(), &context.environment)
        .and_then(|file| Settings::resolve(file.as_ref(), &context.environment));
    let mut fresh = match read {
        Ok(fresh) => fresh.anchored(&context.here),
        Err(error) => {
            let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
            error!("the configuration is not used: {error}{cause}");
            return;
        }
    };
    let by_flag = |origin: &SettingOrigin| matches!(origin, SettingOrigin::Flag(_));
    if !by_flag(&in_force.log.level.origin) {
        telemetry::set_level(fresh.log.level.value.fixed().unwrap_or(LogLevel::Info));
    }
    for (old, new) in
        [(&in_force.limits.job, &mut fresh.limits.job), (&in_force.limits.volume, &mut fresh.limits.volume)]
    {
        if by_flag(&old.origin) {
            new.clone_from(old);
        }
    }
    jobs.configure_limits(owning::limits(&fresh));
    let at_once = |key: &Key| key.name == "log.level" || key.name.starts_with("limits.");
    let changed = KEYS
        .iter()
        .filter(|key| !at_once(key) && !by_flag((key.origin)(in_force)) && (key.show)(in_force) != (key.show)(&fresh));
    let names: Vec<_> = changed.map(|key| key.name).collect();
    if names.is_empty() {
        info!("the configuration was read again");
    } else {
        warn!(keys = names.join(", "), "these settings differ now and take effect with a restart");
    }
}
