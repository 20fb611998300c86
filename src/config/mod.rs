//! What the user wants to be different: file < environment < flags, over defaults.
//!
//! Owns the settings, where each came from, and the only reading of the process environment
//! outside the Hub's own variables for tokens. Invariant: nothing given is silently ignored; a
//! key that does not exist, a value that does not parse and a file that cannot be read are
//! errors that name themselves. It must not touch the volume or the network.

mod environment;
mod file;
mod keys;
mod policy;
mod settings;
mod users;
mod value;

use std::path::PathBuf;

use thiserror::Error;

use crate::core::policy::PolicyError;

pub use environment::Environment;
pub use file::{ConfigFile, load};
pub use keys::{KEYS, Key, most_like};
pub use policy::policy;
pub use settings::{
    DaemonSettings, GateSettings, LimitSettings, LogSettings, MirrorSettings, ScrubSettings, Setting, SettingOrigin,
    Settings,
};
pub use users::Uids;
pub use value::{Auto, Connections, Jobs, LogFormat, LogLevel, Size, Value, ValueError};

/// The variable that names the configuration file.
pub const CONFIG_VARIABLE: &str = "MUSTER_CONFIG";

/// Why there are no settings. Every one is a usage error (exit 2).
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A key that muster does not know.
    #[error("{}", unknown_key(.key, .file, *.line, .nearest.as_deref()))]
    UnknownKey {
        /// The key, with its table.
        key: String,
        /// The file it is in.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The known key that is most like it.
        nearest: Option<String>,
    },
    /// A key with a list, a table or a date where a plain value belongs.
    #[error("`{}` in {} line {line} is {found}, and a text, number or boolean belongs there", shown(.key), .file.display())]
    WrongType {
        /// The key, with its table.
        key: String,
        /// The file it is in.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What it is in TOML's words.
        found: &'static str,
    },
    /// A value that does not parse.
    #[error("the value of `{key}` (from {origin}) is not usable")]
    BadValue {
        /// The key.
        key: &'static str,
        /// Where it was given.
        origin: Box<SettingOrigin>,
        /// What is wrong with it.
        #[source]
        source: Box<ValueError>,
    },
    /// A file that is no TOML.
    #[error("{} line {line} is no valid TOML: {message}", .file.display())]
    Broken {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        message: String,
    },
    /// A file that is too large to be a configuration.
    #[error("{} is larger than a configuration file may be ({} bytes)", .file.display(), crate::limits::CONFIG_MAX_BYTES)]
    TooLarge {
        /// The file.
        file: PathBuf,
    },
    /// A file that exists, or was named, and cannot be read.
    #[error("cannot read the configuration file {} (from {named_by})", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// What named it: a flag, a variable or the search path.
        named_by: &'static str,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Rules of a policy that make no sense.
    #[error("{0}")]
    Policy(PolicyError),
    /// A policy that was named and cannot be read.
    #[error("cannot read the policy {} (from {origin})", .file.display())]
    PolicyUnreadable {
        /// The file.
        file: PathBuf,
        /// What named it.
        origin: Box<SettingOrigin>,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A policy that is too large to be one.
    #[error("the policy {} (from {origin}) is larger than one may be ({} bytes)", .file.display(), crate::limits::CONFIG_MAX_BYTES)]
    PolicyTooLarge {
        /// The file.
        file: PathBuf,
        /// What named it.
        origin: Box<SettingOrigin>,
    },
    /// An environment variable that is not UTF-8.
    #[error("the environment variable {name} is not UTF-8")]
    NotUnicode {
        /// Its name.
        name: &'static str,
    },
}

fn unknown_key(key: &str, file: &std::path::Path, line: usize, nearest: Option<&str>) -> String {
    let known = nearest.map(|nearest| format!(": did you mean `{nearest}`?")).unwrap_or_default();
    format!("unknown key `{}` in {} line {line}{known}", shown(key), file.display())
}

/// A key of somebody's file, in one line.
fn shown(key: &str) -> String {
    key.chars().take(80).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = include_str!("../../config/muster.toml");

    /// The example with every setting switched on: `#key = …` is a setting, `# text` is not.
    fn uncommented() -> String {
        let switch_on = |line: &str| match line.strip_prefix('#') {
            Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase()) => rest.to_owned(),
            _ => line.to_owned(),
        };
        EXAMPLE.lines().map(switch_on).collect::<Vec<_>>().join("\n")
    }

    fn read(text: &str, variables: &[(&str, &str)]) -> Result<Settings, ConfigError> {
        let file = ConfigFile { path: PathBuf::from("/etc/muster/muster.toml"), text: text.to_owned() };
        Settings::resolve(Some(&file), &Environment::of(variables))
    }

    #[test]
    fn the_example_file_has_every_key_and_equals_the_defaults() {
        let text = uncommented();
        let from_example = read(&text, &[]).unwrap();
        let defaults = Settings::default();
        for key in KEYS {
            assert_eq!((key.show)(&from_example), (key.show)(&defaults), "{}", key.name);
            let origin = (key.origin)(&from_example);
            assert!(matches!(origin, SettingOrigin::File { .. }), "{} is not in the example", key.name);
        }
        assert_eq!(
            read(EXAMPLE, &[]).unwrap().volume.origin,
            SettingOrigin::Default,
            "the example as it is sets nothing"
        );
    }

    #[test]
    fn environment_beats_file_and_each_value_knows_where_it_came_from() {
        let text = "volume = \"/a\"\njobs = 3\n[daemon]\nsocket = \"/run/m\"\n";
        let error = read(text, &[]).unwrap_err().to_string();
        assert!(error.contains("unknown key `jobs`") && error.contains("line 2"), "{error}");
        assert!(error.contains("did you mean `daemon.jobs`?"), "{error}");

        let text = "volume = \"/a\"\nconnections = 8\n[daemon]\nsocket = \"/run/m\"\n";
        let settings = read(text, &[("MUSTER_VOLUME", "/shared"), ("MUSTER_CONNECTIONS", "")]).unwrap();
        assert_eq!(settings.volume.to_string(), "/shared (from MUSTER_VOLUME)");
        assert_eq!(settings.connections.value, Auto::Fixed(Connections::parse("8").unwrap()));
        assert_eq!(settings.connections.origin.to_string(), "/etc/muster/muster.toml line 2");
        assert_eq!(settings.daemon.socket.value.as_deref(), Some(std::path::Path::new("/run/m")));
        let settings = settings.volume.overridden("--volume", Some(PathBuf::from("/b")));
        assert_eq!(settings.to_string(), "/b (from --volume)");
    }

    #[test]
    fn an_unknown_key_names_the_nearest_known_one() {
        for (text, key, nearest) in [
            ("conections = 4", "conections", "connections"),
            ("\n\n[daemon]\nsokcet = \"x\"", "daemon.sokcet", "daemon.socket"),
            ("[mirror]\nlisten_addr = \"x\"", "mirror.listen_addr", "mirror.listen"),
        ] {
            match read(text, &[]).unwrap_err() {
                ConfigError::UnknownKey { key: found, nearest: Some(near), line, .. } => {
                    assert_eq!((found.as_str(), near.as_str()), (key, nearest));
                    assert_eq!(line, text.lines().count());
                }
                other => panic!("{other}"),
            }
        }
        let far = read("zzzzzzzzzzzzzzzz = 1", &[]).unwrap_err().to_string();
        assert!(!far.contains("did you mean"), "{far}");
    }

    #[test]
    fn a_file_as_large_as_may_be_is_read_in_no_time() {
        let size = usize::try_from(crate::limits::CONFIG_MAX_BYTES).unwrap();
        let many = (0..size / 12).map(|n| format!("key{n:07}=1\n")).collect::<Vec<_>>().concat();
        let deep = format!("{}a = 1", "a.".repeat(size / 2 - 4));
        let long = format!("{} = 1", "x".repeat(size - 4));
        let lines = format!("{}volume = 1.5.5", "\n".repeat(size - 20));
        for text in [many, deep, long, lines] {
            let error = read(&text, &[]).unwrap_err().to_string();
            assert!(error.len() < 1000, "{}", error.len());
        }
    }

    #[test]
    fn a_key_cannot_steer_the_terminal() {
        let error = read("\"\\u001b[2J\" = 1", &[]).unwrap_err().to_string();
        assert!(error.contains("unknown key `\\u{1b}[2J`"), "{error}");
        assert!(read("daemon.socket.path = 1", &[]).unwrap_err().to_string().contains("`daemon.socket` in"));
    }

    #[test]
    fn a_broken_file_or_value_is_never_ignored() {
        assert!(matches!(read("volume = ", &[]), Err(ConfigError::Broken { line: 1, .. })));
        assert!(matches!(read("volume = [\"a\"]", &[]), Err(ConfigError::WrongType { .. })));
        assert!(matches!(read("volume = \"\"", &[]), Err(ConfigError::BadValue { key: "volume", .. })));
        let error = read("reserve = \"10G\"", &[]).unwrap_err();
        assert!(
            matches!(&error, ConfigError::BadValue { source, .. } if source.to_string().contains("10GiB")),
            "{error:?}"
        );
        let error = read("", &[("MUSTER_READBACK", "maybe")]).unwrap_err().to_string();
        assert!(error.contains("`readback` (from MUSTER_READBACK)"), "{error}");
    }

    #[test]
    fn the_hubs_own_variables_count_and_ours_win() {
        let settings = read("", &[("HF_ENDPOINT", "http://127.0.0.1:9"), ("TRANSFORMERS_OFFLINE", "Yes")]).unwrap();
        assert_eq!(settings.endpoint.to_string(), "http://127.0.0.1:9 (from HF_ENDPOINT)");
        assert!(settings.offline.value);
        let ours = [("HF_ENDPOINT", "http://127.0.0.1:9"), ("MUSTER_ENDPOINT", "https://a.example")];
        assert_eq!(read("", &ours).unwrap().endpoint.value.to_string(), "https://a.example");
        let both = [("HF_HUB_OFFLINE", "0"), ("TRANSFORMERS_OFFLINE", "1")];
        assert!(!read("", &both).unwrap().offline.value, "the Hub's own order: the first that is set");
        assert!(!read("", &[("HF_HUB_OFFLINE", "maybe")]).unwrap().offline.value);
        assert!(read("", &[("MUSTER_OFFLINE", "maybe")]).is_err());
    }

    #[test]
    fn a_timetable_is_written_as_tables_or_in_one_text() {
        let text = "[limits]\nvolume = \"1 GB\"\n[[limits.hours]]\nfrom = \"08:00\"\nto = \"20:00\"\nrate = \"500 MB\"\n\
                    days = \"mon - fri\"\n[[limits.hours]]\nfrom = \"23:00\"\nto = \"05:00\"\nrate = \"none\"\n";
        let settings = read(text, &[]).unwrap();
        let hours = "from=08:00 to=20:00 rate=500000000B days=mon-fri; from=23:00 to=05:00 rate=none";
        assert_eq!(settings.limits.hours.value.text(), hours);
        assert_eq!(settings.limits.hours.origin.to_string(), "/etc/muster/muster.toml line 3");
        assert_eq!(settings.limits.volume.value.text(), "1000000000B");
        let by_variable = read(text, &[("MUSTER_LIMIT_HOURS", "from=01:00 to=02:00 rate=1MB")]).unwrap();
        assert_eq!(by_variable.limits.hours.value.text(), "from=01:00 to=02:00 rate=1000000B");
        for (wrong, part) in [
            ("[[limits.hours]]\nfrom = \"08:00\"\nto = \"20:00\"\n", "rate="),
            ("[[limits.hours]]\nfrom = \"08:00\"\nto = \"20:00\"\nrate = \"1M\"\n", "1MiB"),
            ("[[limits.hours]]\nform = \"08:00\"\n", "form"),
        ] {
            let error = read(wrong, &[]).unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().to_string();
            assert!(error.to_string().contains("limits.hours") && cause.contains(part), "{wrong}: {error}: {cause}");
        }
        for wrong in [
            "limits.hours = [1]",
            "limits.hours = [{from = 8}]",
            "[[limits.hours]]\nfrom = \"08:00; to=\"",
            "[[volume]]\na = \"b\"",
        ] {
            assert!(matches!(read(wrong, &[]), Err(ConfigError::WrongType { .. })), "{wrong}");
        }
        assert!(read("[limits]\nhours = []", &[]).unwrap().limits.hours.value.is_empty());
    }

    #[test]
    fn names_of_variables_follow_one_rule() {
        for key in KEYS {
            assert!(key.env.starts_with("MUSTER_"), "{}", key.env);
            assert!(key.env != "MUSTER_PORT" && !key.env.starts_with("MUSTER_SERVICE_"), "Kubernetes injects those");
        }
    }
}
