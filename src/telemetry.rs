//! Logging: what is logged, in which form.
//!
//! Invariant (P7): libraries never log below warn, whatever the user asks for, since at lower
//! levels some of them print headers. Where lines go is the caller's choice of writer.

use std::sync::OnceLock;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

use crate::config::{LogFormat, LogLevel};

/// What is logged and how it looks.
#[derive(Debug, Clone, Copy)]
pub struct Logging {
    /// The least important events.
    pub level: LogLevel,
    /// Text or JSON.
    pub format: LogFormat,
    /// Colours in text.
    pub colour: bool,
}

/// What is logged now.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging for the process. A second start changes nothing.
pub fn start<W>(logging: Logging, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines: Box<dyn Layer<Registry> + Send + Sync> = match logging.format {
        LogFormat::Text => fmt::layer().with_ansi(logging.colour).with_writer(writer).boxed(),
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(writer).boxed(),
    };
    let (filter, handle) = reload::Layer::new(filter(logging.level));
    // An error here says that logging has been started already.
    if tracing_subscriber::registry().with(lines.with_filter(filter)).try_init().is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Changes what is logged from now on.
pub fn set_level(level: LogLevel) {
    if let Some(handle) = FILTER.get() {
        // It fails only when logging has gone.
        let _ = handle.reload(filter(level));
    }
}

fn filter(level: LogLevel) -> Targets {
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    Targets::new().with_default(level.min(LevelFilter::WARN)).with_target("muster", level)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn libraries_stay_at_warn_whatever_is_asked_for() {
        let filter = filter(LogLevel::Trace);
        assert!(filter.would_enable("muster::fetch::connection", &Level::TRACE));
        for library in ["hyper_util::client", "reqwest::connect", "rustls", "sled::pagecache", "h2"] {
            assert!(!filter.would_enable(library, &Level::INFO), "{library}");
            assert!(filter.would_enable(library, &Level::WARN), "{library}");
        }
    }

    #[test]
    fn off_is_off_for_libraries_too() {
        assert!(!filter(LogLevel::Off).would_enable("hyper", &Level::ERROR));
        assert!(!filter(LogLevel::Error).would_enable("hyper", &Level::WARN));
    }
}
