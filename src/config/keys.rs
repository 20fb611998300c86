//! The table of keys: one row a setting, for the file, the environment and whoever lists them.

use super::settings::{Setting, SettingOrigin, Settings};
use super::value::{Value, ValueError};

/// One setting: its names, and how it is written and read.
pub struct Key {
    /// Its name in the file, with its table.
    pub name: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// Variables of the Hub's own tools that mean the same; ours wins, then the first that is set.
    pub hub_env: &'static [&'static str],
    /// Sets it from its text form.
    pub set: fn(&mut Settings, &str, SettingOrigin) -> Result<(), ValueError>,
    /// Its text form.
    pub show: fn(&Settings) -> String,
    /// Where it was given.
    pub origin: fn(&Settings) -> &SettingOrigin,
}

macro_rules! key {
    ($name:literal, $env:literal, $($field:ident).+) => {
        key!($name, $env, [], $($field).+, Value::parse)
    };
    ($name:literal, $env:literal, [$($hub:literal),*], $($field:ident).+, $parse:expr) => {
        Key {
            name: $name,
            env: $env,
            hub_env: &[$($hub),*],
            set: |settings, text, origin| {
                settings.$($field).+ = Setting { value: $parse(text)?, origin };
                Ok(())
            },
            show: |settings| settings.$($field).+.value.show(),
            origin: |settings| &settings.$($field).+.origin,
        }
    };
}

/// Every setting.
pub const KEYS: &[Key] = &[
    key!("volume", "MUSTER_VOLUME", volume),
    key!("state_dir", "MUSTER_STATE_DIR", state_dir),
    key!("endpoint", "MUSTER_ENDPOINT", ["HF_ENDPOINT"], endpoint, Value::parse),
    key!("token_file", "MUSTER_TOKEN_FILE", token_file),
    Key {
        set: set_offline,
        ..key!("offline", "MUSTER_OFFLINE", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"], offline, Value::parse)
    },
    key!("connections", "MUSTER_CONNECTIONS", connections),
    key!("reserve", "MUSTER_RESERVE", reserve),
    key!("readback", "MUSTER_READBACK", readback),
    key!("retry_for", "MUSTER_RETRY_FOR", retry_for),
    key!("connect_timeout", "MUSTER_CONNECT_TIMEOUT", connect_timeout),
    key!("header_timeout", "MUSTER_HEADER_TIMEOUT", header_timeout),
    key!("idle_timeout", "MUSTER_IDLE_TIMEOUT", idle_timeout),
    key!("retire_after", "MUSTER_RETIRE_AFTER", retire_after),
    key!("low_impact", "MUSTER_LOW_IMPACT", low_impact),
    key!("keep_cached", "MUSTER_KEEP_CACHED", keep_cached),
    key!("sign_key", "MUSTER_SIGN_KEY", sign_key),
    key!("limits.job", "MUSTER_LIMIT", limits.job),
    key!("limits.volume", "MUSTER_VOLUME_LIMIT", limits.volume),
    key!("limits.hours", "MUSTER_LIMIT_HOURS", limits.hours),
    key!("gate.structure", "MUSTER_STRUCTURE", gate.structure),
    key!("gate.policy", "MUSTER_POLICY", gate.policy),
    key!("gate.local_edits", "MUSTER_LOCAL_EDITS", gate.local_edits),
    key!("gate.require_signature", "MUSTER_REQUIRE_SIGNATURE", gate.require_signature),
    key!("gate.key", "MUSTER_GATE_KEY", gate.key),
    key!("gate.trust_receipt_uid", "MUSTER_TRUST_RECEIPT_UID", gate.trust_receipt_uid),
    key!("scrub.every", "MUSTER_SCRUB_EVERY", scrub.every),
    key!("scrub.limit", "MUSTER_SCRUB_LIMIT", scrub.limit),
    key!("scrub.hours", "MUSTER_SCRUB_HOURS", scrub.hours),
    key!("scrub.repair", "MUSTER_SCRUB_REPAIR", scrub.repair),
    key!("daemon.socket", "MUSTER_SOCKET", daemon.socket),
    key!("daemon.api_group", "MUSTER_API_GROUP", daemon.api_group),
    key!("daemon.jobs", "MUSTER_JOBS", daemon.jobs),
    key!("daemon.listen", "MUSTER_API_LISTEN", daemon.listen),
    key!("daemon.token_file", "MUSTER_API_TOKEN_FILE", daemon.token_file),
    key!("mirror.listen", "MUSTER_MIRROR_LISTEN", mirror.listen),
    key!("mirror.token_file", "MUSTER_MIRROR_TOKEN_FILE", mirror.token_file),
    key!("log.level", "MUSTER_LOG", log.level),
    key!("log.format", "MUSTER_LOG_FORMAT", log.format),
];

/// The known key most like `name`: by its last part, or by few edits.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let last = |key: &str| key.rsplit('.').next().map(str::to_owned);
    if let Some(key) = KEYS.iter().find(|key| last(key.name) == last(name)) {
        return Some(key.name);
    }
    most_like(name, KEYS.iter().map(|key| key.name))
}

/// The one of `known` that takes the fewest edits to become `name`, if they are few.
pub fn most_like<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = name.len() / 3 + 1;
    // Each character too many is an edit, so a long name need not be compared.
    let alike = known.filter(|one| name.len().saturating_sub(one.len()) <= most);
    let (distance, nearest) = alike.map(|one| (edits(name, one), one)).min()?;
    (distance <= most).then_some(nearest)
}

/// The Hub's tools take any other text for false; ours is strict.
fn set_offline(settings: &mut Settings, text: &str, origin: SettingOrigin) -> Result<(), ValueError> {
    let foreign = matches!(origin, SettingOrigin::Env(name) if !name.starts_with("MUSTER_"));
    let value = match bool::parse(text) {
        Err(_) if foreign => false,
        parsed => parsed?,
    };
    settings.offline = Setting { value, origin };
    Ok(())
}

/// Insertions, deletions and replacements between two texts.
fn edits(left: &str, right: &str) -> usize {
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.bytes().enumerate() {
            let replaced = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}
