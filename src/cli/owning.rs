//! What a verb needs to become the owner of a volume, from the settings.

use std::sync::Arc;

use crate::api::{Access, OwnError, Wish};
use crate::config::{Environment, GateSettings, LimitSettings, ScrubSettings, Setting, SettingOrigin, Settings, Size};
use crate::core::code::Code;
use crate::core::limit::Limit;
use crate::core::oms::key::PrivateKey;
use crate::daemon::limiting::Given;
use crate::daemon::scrubbing::ScrubPolicy;
use crate::daemon::{LimitPolicy, Options};
use crate::fetch::Pages;
use crate::gate::trust::Demand;
use crate::hub::HubConfig;
use crate::volume::key_file::{read_private, read_public};

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
        signer: None,
        scrub: if foreground { ScrubPolicy::default() } else { scrub(settings) },
    }
}

/// What signs models, if anything does.
///
/// # Errors
/// A key that cannot be used.
pub fn signer(settings: &Settings) -> Result<Option<Arc<PrivateKey>>, CliError> {
    let Some(file) = &settings.sign_key.value else { return Ok(None) };
    let key = read_private(file).map_err(|error| {
        let from = format!("cannot sign with the key {} (from {})", file.display(), settings.sign_key.origin);
        CliError::told(Code::Usage, &error, error.hint()).context(from)
    })?;
    Ok(Some(Arc::new(key)))
}

/// Whose signature a gate demands, if it demands one.
///
/// # Errors
/// No key, or one that cannot be used; a key that nobody would look at.
pub fn demand(settings: &GateSettings) -> Result<Option<Arc<Demand>>, CliError> {
    let GateSettings { require_signature, key, trust_receipt_uid, .. } = settings;
    let named = |origin: &SettingOrigin| matches!(origin, SettingOrigin::Flag(_));
    if !require_signature.value {
        let idle = [("--key", named(&key.origin)), ("--trust-receipt-uid", named(&trust_receipt_uid.origin))];
        return match idle.into_iter().find(|(_, is_named)| *is_named) {
            Some((flag, _)) => Err(CliError::usage(format!("{flag} says nothing without --require-signature"))),
            None => Ok(None),
        };
    }
    let Some(file) = &key.value else {
        let message = format!("a signature is required (from {}), and no key is named", require_signature.origin);
        return Err(CliError::usage(message).hint("--key FILE, or key in [gate] of muster.toml, names the public key"));
    };
    let key = read_public(file).map_err(|error| {
        let from = format!("cannot check signatures with the key {} (from {})", file.display(), key.origin);
        CliError::told(Code::Usage, &error, error.hint()).context(from)
    })?;
    Ok(Some(Arc::new(Demand { key, receipts_of: trust_receipt_uid.value.list().to_vec() })))
}

/// When models are read again by themselves.
fn scrub(settings: &Settings) -> ScrubPolicy {
    let ScrubSettings { every, limit, hours, repair } = &settings.scrub;
    ScrubPolicy { every: every.value, limit: limit.value, hours: hours.value.clone(), repair: repair.value }
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
