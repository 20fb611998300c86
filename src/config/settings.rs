//! The settings themselves, each with its origin.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::environment::Environment;
use super::file::{ConfigFile, Entry};
use super::keys::{self, KEYS};
use super::users::Uids;
use super::value::{Auto, Connections, Jobs, LogFormat, LogLevel, Size, Value};
use super::{ConfigError, ValueError};
use crate::core::endpoint::Endpoint;
use crate::core::hours::Timetable;
use crate::core::limit::{Limit, Rate};
use crate::core::policy::{LocalEdits, Policy};
use crate::core::readback::Readback;
use crate::core::structure::Strictness;
use crate::limits;

/// Where a value was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Nobody gave one.
    Default,
    /// In a configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// In an environment variable.
    Env(&'static str),
    /// By a flag.
    Flag(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{} line {line}", path.display()),
            Self::Env(name) | Self::Flag(name) => f.write_str(name),
        }
    }
}

/// A value and where it was given. Shown as `/shared (from MUSTER_VOLUME)`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting<T> {
    /// The value.
    pub value: T,
    /// Where it was given.
    pub origin: SettingOrigin,
}

impl<T> Setting<T> {
    /// A value nobody gave.
    pub const fn default_of(value: T) -> Self {
        Self { value, origin: SettingOrigin::Default }
    }

    /// This setting, or what `flag` says.
    #[must_use]
    pub fn overridden(self, flag: &'static str, value: Option<T>) -> Self {
        match value {
            Some(value) => Self { value, origin: SettingOrigin::Flag(flag) },
            None => self,
        }
    }
}

impl<T: Value> fmt::Display for Setting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            SettingOrigin::Default => write!(f, "{} (the default)", self.value.show()),
            origin => write!(f, "{} (from {origin})", self.value.show()),
        }
    }
}

/// Everything a user may set outside a single request.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The root directory that one owner writes to.
    pub volume: Setting<PathBuf>,
    /// Where sled lives instead of `.muster/state` on the volume.
    pub state_dir: Setting<Option<PathBuf>>,
    /// The server asked.
    pub endpoint: Setting<Endpoint>,
    /// A file with the token for `endpoint`.
    pub token_file: Setting<Option<PathBuf>>,
    /// No request is made at all.
    pub offline: Setting<bool>,
    /// Connections at a time; `auto` adapts.
    pub connections: Setting<Auto<Connections>>,
    /// Space that stays free; `auto` is one percent of the volume, at most 10 GiB.
    pub reserve: Setting<Auto<Size>>,
    /// Whether finished files are read back.
    pub readback: Setting<Readback>,
    /// How long a foreground pull goes on without progress.
    pub retry_for: Setting<Duration>,
    /// Establishing a connection.
    pub connect_timeout: Setting<Duration>,
    /// Between a request and the head of its answer.
    pub header_timeout: Setting<Duration>,
    /// Between two reads of a body.
    pub idle_timeout: Setting<Duration>,
    /// How long files of an older commit are kept.
    pub retire_after: Setting<Duration>,
    /// Whether others on this machine come first.
    pub low_impact: Setting<bool>,
    /// Whether what was fetched stays in the page cache.
    pub keep_cached: Setting<bool>,
    /// The private key that signs what was pulled.
    pub sign_key: Setting<Option<PathBuf>>,
    /// `[limits]`.
    pub limits: LimitSettings,
    /// `[gate]`.
    pub gate: GateSettings,
    /// `[scrub]`.
    pub scrub: ScrubSettings,
    /// `[daemon]`.
    pub daemon: DaemonSettings,
    /// `[mirror]`.
    pub mirror: MirrorSettings,
    /// `[log]`.
    pub log: LogSettings,
}

/// How fast bytes may come.
#[derive(Debug, Clone)]
pub struct LimitSettings {
    /// Of a job that has none of its own.
    pub job: Setting<Limit>,
    /// Of all jobs of the volume together.
    pub volume: Setting<Limit>,
    /// Of all jobs together, in its hours.
    pub hours: Setting<Timetable>,
}

/// What a gate demands of every model.
#[derive(Debug, Clone)]
pub struct GateSettings {
    /// What faults in the structure of the published files mean.
    pub structure: Setting<Strictness>,
    /// A file with rules.
    pub policy: Setting<Option<PathBuf>>,
    /// What happens to a model with files that were changed here on purpose.
    pub local_edits: Setting<LocalEdits>,
    /// Whether a model has to be signed.
    pub require_signature: Setting<bool>,
    /// The public key by whose holder.
    pub key: Setting<Option<PathBuf>>,
    /// Users whose receipts save a gate that demands a signature the hashing.
    pub trust_receipt_uid: Setting<Uids>,
    /// The rules in the configuration file itself.
    pub rules: Policy,
}

/// How often the daemon reads everything again, and how gently.
#[derive(Debug, Clone)]
pub struct ScrubSettings {
    /// Every byte is read in this time; unset, the daemon reads nothing again.
    pub every: Setting<Option<Duration>>,
    /// How fast.
    pub limit: Setting<Limit>,
    /// Only at these hours, each with its own rate; empty is at any.
    pub hours: Setting<Timetable>,
    /// Whether what is found is repaired.
    pub repair: Setting<bool>,
}

/// The daemon's own settings.
#[derive(Debug, Clone)]
pub struct DaemonSettings {
    /// The unix socket; unset, it is on the volume or in the runtime directory.
    pub socket: Setting<Option<PathBuf>>,
    /// The group that may use the socket.
    pub api_group: Setting<Option<String>>,
    /// Jobs worked on at a time.
    pub jobs: Setting<Jobs>,
    /// TCP address of the API; unset, there is none.
    pub listen: Setting<Option<SocketAddr>>,
    /// The bearer token that TCP clients must send.
    pub token_file: Setting<Option<PathBuf>>,
}

/// The mirror's own settings.
#[derive(Debug, Clone)]
pub struct MirrorSettings {
    /// TCP address.
    pub listen: Setting<SocketAddr>,
    /// The bearer token that clients must send.
    pub token_file: Setting<Option<PathBuf>>,
}

/// What is logged.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// `auto` is info for servers and warn for all else.
    pub level: Setting<Auto<LogLevel>>,
    /// Text or JSON.
    pub format: Setting<LogFormat>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            volume: Setting::default_of(PathBuf::from("./models")),
            state_dir: Setting::default_of(None),
            endpoint: Setting::default_of(default_endpoint()),
            token_file: Setting::default_of(None),
            offline: Setting::default_of(false),
            connections: Setting::default_of(Auto::Auto),
            reserve: Setting::default_of(Auto::Auto),
            readback: Setting::default_of(Readback::Auto),
            retry_for: Setting::default_of(limits::RETRY_FOR),
            connect_timeout: Setting::default_of(limits::CONNECT_TIMEOUT),
            header_timeout: Setting::default_of(limits::HEADER_TIMEOUT),
            idle_timeout: Setting::default_of(limits::IDLE_TIMEOUT),
            retire_after: Setting::default_of(limits::RETIRE_AFTER),
            low_impact: Setting::default_of(false),
            keep_cached: Setting::default_of(false),
            sign_key: Setting::default_of(None),
            limits: LimitSettings {
                job: Setting::default_of(Limit::None),
                volume: Setting::default_of(Limit::None),
                hours: Setting::default_of(Timetable::default()),
            },
            gate: GateSettings {
                structure: Setting::default_of(Strictness::Check),
                policy: Setting::default_of(None),
                local_edits: Setting::default_of(LocalEdits::Allow),
                require_signature: Setting::default_of(false),
                key: Setting::default_of(None),
                trust_receipt_uid: Setting::default_of(Uids::default()),
                rules: Policy::default(),
            },
            scrub: ScrubSettings {
                every: Setting::default_of(None),
                limit: Setting::default_of(Rate::new(limits::SCRUB_BYTES_PER_S).map_or(Limit::None, Limit::Rate)),
                hours: Setting::default_of(Timetable::default()),
                repair: Setting::default_of(false),
            },
            daemon: DaemonSettings {
                socket: Setting::default_of(None),
                api_group: Setting::default_of(None),
                jobs: Setting::default_of(Jobs::default()),
                listen: Setting::default_of(None),
                token_file: Setting::default_of(None),
            },
            mirror: MirrorSettings {
                listen: Setting::default_of(SocketAddr::from((Ipv4Addr::LOCALHOST, limits::MIRROR_PORT))),
                token_file: Setting::default_of(None),
            },
            log: LogSettings { level: Setting::default_of(Auto::Auto), format: Setting::default_of(LogFormat::Text) },
        }
    }
}

impl Settings {
    /// Defaults, then the file, then the environment. Flags come after, by
    /// [`Setting::overridden`].
    ///
    /// # Errors
    /// [`ConfigError`]: nothing given is ignored.
    pub fn resolve(file: Option<&ConfigFile>, environment: &Environment) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        if let Some(file) = file {
            for entry in file.entries()? {
                settings.take_entry(file, entry)?;
            }
            let source = file.path.display().to_string();
            settings.gate.rules = Policy::parse_config(&file.text, &source).map_err(ConfigError::Policy)?;
        }
        for key in KEYS {
            for name in std::iter::once(key.env).chain(key.hub_env.iter().copied()) {
                let Some(text) = environment.text(name)? else { continue };
                let origin = SettingOrigin::Env(name);
                (key.set)(&mut settings, text, origin.clone()).map_err(bad_value(key.name, origin))?;
                break;
            }
        }
        Ok(settings)
    }

    /// The same settings with relative paths made absolute below `folder`, and without `.` in
    /// them; `..` stays, since a link may stand before it.
    #[must_use]
    pub fn anchored(mut self, folder: &Path) -> Self {
        let absolute = |path: &Path| folder.join(path).components().collect();
        self.volume.value = absolute(&self.volume.value);
        let optional = [
            &mut self.state_dir.value,
            &mut self.token_file.value,
            &mut self.sign_key.value,
            &mut self.gate.policy.value,
            &mut self.gate.key.value,
            &mut self.daemon.socket.value,
            &mut self.daemon.token_file.value,
            &mut self.mirror.token_file.value,
        ];
        for path in optional.into_iter().flatten() {
            *path = absolute(path);
        }
        self
    }

    fn take_entry(&mut self, file: &ConfigFile, entry: Entry) -> Result<(), ConfigError> {
        let Entry { key: name, line, value } = entry;
        let Some(key) = KEYS.iter().find(|key| key.name == name) else {
            let nearest = keys::nearest(&name).map(str::to_owned);
            return Err(ConfigError::UnknownKey { key: name, file: file.path.clone(), line, nearest });
        };
        let wrong_type = |found| ConfigError::WrongType { key: name, file: file.path.clone(), line, found };
        let text = value.map_err(wrong_type)?;
        let origin = SettingOrigin::File { path: file.path.clone(), line };
        (key.set)(self, &text, origin.clone()).map_err(bad_value(key.name, origin))
    }
}

fn bad_value(key: &'static str, origin: SettingOrigin) -> impl FnOnce(ValueError) -> ConfigError {
    move |source| ConfigError::BadValue { key, origin: Box::new(origin), source: Box::new(source) }
}

fn default_endpoint() -> Endpoint {
    Endpoint::parse(limits::ENDPOINT).expect("invariant: the default endpoint is a URL, and a test parses it")
}
