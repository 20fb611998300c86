//! Texts of settings and flags that become values: one parser each, for all three layers.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::core::endpoint::{Endpoint, EndpointError};
use crate::core::hours::{HoursError, Timetable};
use crate::core::limit::{Limit, LimitError};
use crate::core::policy::LocalEdits;
use crate::core::readback::{Readback, ReadbackError};
use crate::core::structure::{Strictness, StrictnessError};
use crate::core::units::{self, UnitError};
use crate::limits;

/// Why a text is no value of its setting.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ValueError {
    /// A size or a duration.
    #[error("{0}")]
    Unit(UnitError),
    /// A server's URL.
    #[error("{0}")]
    Endpoint(EndpointError),
    /// A word of `readback`.
    #[error("{0}")]
    Readback(ReadbackError),
    /// A word of `gate.structure`.
    #[error("{0}")]
    Strictness(StrictnessError),
    /// A number out of its bounds.
    #[error("`{}` is no whole number from 1 to {max}", .text.escape_debug())]
    Count {
        /// What was given.
        text: String,
        /// The largest that makes sense.
        max: u16,
    },
    /// One of a few words.
    #[error("`{}` is none of {words}", .text.escape_debug())]
    Word {
        /// What was given.
        text: String,
        /// What may be given.
        words: &'static str,
    },
    /// Bytes a second.
    #[error("{0}")]
    Limit(LimitError),
    /// A timetable.
    #[error("{0}")]
    Hours(HoursError),
    /// An address to listen on.
    #[error("`{}` is no address with a port: write for example 127.0.0.1:8642 or [::1]:8642", .text.escape_debug())]
    Address {
        /// What was given.
        text: String,
    },
    /// Something that may not be empty.
    #[error("it is empty")]
    Empty,
}

/// A value with a text form.
pub trait Value: Sized {
    /// Reads the text form.
    ///
    /// # Errors
    /// [`ValueError`].
    fn parse(text: &str) -> Result<Self, ValueError>;
    /// The text form; parsing it gives the same value.
    fn show(&self) -> String;
}

/// Chosen by muster, or fixed by the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auto<T> {
    /// muster chooses.
    Auto,
    /// The user chose.
    Fixed(T),
}

impl<T: Copy> Auto<T> {
    /// What the user fixed.
    pub const fn fixed(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Fixed(value) => Some(value),
        }
    }
}

/// A number of connections, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections(u16);

impl Connections {
    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

/// A number of jobs worked on at a time, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Jobs(u16);

impl Jobs {
    /// The number.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl Default for Jobs {
    fn default() -> Self {
        Self(limits::JOBS)
    }
}

/// A size in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(u64);

impl Size {
    /// The bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

/// The least important events that are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Nothing.
    Off,
    /// What went wrong for good.
    Error,
    /// What went wrong and was handled.
    Warn,
    /// What happens.
    Info,
    /// Why it happens.
    Debug,
    /// Everything.
    Trace,
}

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

impl<T: Value> Value for Auto<T> {
    fn parse(text: &str) -> Result<Self, ValueError> {
        if text == "auto" { Ok(Self::Auto) } else { T::parse(text).map(Self::Fixed) }
    }
    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::Fixed(value) => value.show(),
        }
    }
}

/// Nothing is written as an empty text.
impl<T: Value> Value for Option<T> {
    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() { Ok(None) } else { T::parse(text).map(Some) }
    }
    fn show(&self) -> String {
        self.as_ref().map(T::show).unwrap_or_default()
    }
}

impl Value for Connections {
    fn parse(text: &str) -> Result<Self, ValueError> {
        count(text, limits::CONNECTIONS_MAX).map(Self)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl Value for Jobs {
    fn parse(text: &str) -> Result<Self, ValueError> {
        count(text, limits::JOBS_MAX).map(Self)
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

impl Value for Size {
    fn parse(text: &str) -> Result<Self, ValueError> {
        units::parse_size(text).map(Self).map_err(ValueError::Unit)
    }
    fn show(&self) -> String {
        format!("{}B", self.0)
    }
}

impl Value for Limit {
    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::parse(text).map_err(ValueError::Limit)
    }
    fn show(&self) -> String {
        self.text()
    }
}

impl Value for Timetable {
    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::parse(text).map_err(ValueError::Hours)
    }
    fn show(&self) -> String {
        self.text()
    }
}

impl Value for Duration {
    fn parse(text: &str) -> Result<Self, ValueError> {
        units::parse_duration(text).map_err(ValueError::Unit)
    }
    fn show(&self) -> String {
        if self.subsec_millis() == 0 { format!("{}s", self.as_secs()) } else { format!("{}ms", self.as_millis()) }
    }
}

impl Value for PathBuf {
    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() { Err(ValueError::Empty) } else { Ok(Self::from(text)) }
    }
    fn show(&self) -> String {
        self.display().to_string()
    }
}

impl Value for String {
    fn parse(text: &str) -> Result<Self, ValueError> {
        if text.is_empty() { Err(ValueError::Empty) } else { Ok(text.to_owned()) }
    }
    fn show(&self) -> String {
        self.clone()
    }
}

impl Value for Endpoint {
    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::parse(text).map_err(ValueError::Endpoint)
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for SocketAddr {
    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map_err(|_| ValueError::Address { text: text.to_owned() })
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Readback {
    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map_err(ValueError::Readback)
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for Strictness {
    fn parse(text: &str) -> Result<Self, ValueError> {
        text.parse().map_err(ValueError::Strictness)
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Value for LocalEdits {
    fn parse(text: &str) -> Result<Self, ValueError> {
        Self::parse(text).ok_or_else(|| ValueError::Word { text: text.to_owned(), words: "allow, deny" })
    }
    fn show(&self) -> String {
        self.word().to_owned()
    }
}

impl Value for bool {
    fn parse(text: &str) -> Result<Self, ValueError> {
        match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => Ok(true),
            "0" | "false" | "no" | "off" => Ok(false),
            _ => Err(ValueError::Word { text: text.to_owned(), words: "true, false" }),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

const LEVELS: [(&str, LogLevel); 6] = [
    ("off", LogLevel::Off),
    ("error", LogLevel::Error),
    ("warn", LogLevel::Warn),
    ("info", LogLevel::Info),
    ("debug", LogLevel::Debug),
    ("trace", LogLevel::Trace),
];

impl Value for LogLevel {
    fn parse(text: &str) -> Result<Self, ValueError> {
        let known = LEVELS.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
        let refuse = || ValueError::Word { text: text.to_owned(), words: "off, error, warn, info, debug, trace" };
        known.map(|(_, level)| *level).ok_or_else(refuse)
    }
    fn show(&self) -> String {
        LEVELS.iter().find(|(_, level)| level == self).map_or("off", |(word, _)| word).to_owned()
    }
}

impl Value for LogFormat {
    fn parse(text: &str) -> Result<Self, ValueError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(ValueError::Word { text: text.to_owned(), words: "text, json" }),
        }
    }
    fn show(&self) -> String {
        match self {
            Self::Text => "text".to_owned(),
            Self::Json => "json".to_owned(),
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show())
    }
}

fn count(text: &str, max: u16) -> Result<u16, ValueError> {
    let number = text.parse().ok().filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| ValueError::Count { text: text.to_owned(), max })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survives<T: Value + PartialEq + fmt::Debug>(text: &str) {
        let value = T::parse(text).unwrap();
        assert_eq!(T::parse(&value.show()), Ok(value), "{text}");
    }

    #[test]
    fn every_value_survives_being_shown_and_read() {
        survives::<Auto<Connections>>("auto");
        survives::<Auto<Connections>>("16");
        survives::<Auto<Size>>("10GiB");
        survives::<Duration>("1500ms");
        survives::<Duration>("1h");
        survives::<Option<PathBuf>>("");
        survives::<Endpoint>("https://hub.example/base/");
        survives::<SocketAddr>("[::1]:80");
        survives::<Auto<LogLevel>>("Debug");
        survives::<LogFormat>("json");
        survives::<bool>("ON");
        survives::<Jobs>("4");
        survives::<Auto<Limit>>("200MB");
        survives::<Limit>("none");
        survives::<Timetable>("from=22:00 to=06:00 rate=none days=mon-fri");
    }

    #[test]
    fn numbers_have_bounds_and_addresses_have_ports() {
        for text in ["0", "257", "-1", "x", ""] {
            assert!(matches!(Connections::parse(text), Err(ValueError::Count { max: 256, .. })), "{text}");
        }
        assert!(matches!(SocketAddr::parse("localhost"), Err(ValueError::Address { .. })));
        assert!(matches!(Auto::<Size>::parse("10M"), Err(ValueError::Unit(UnitError::Ambiguous { .. }))));
    }
}
