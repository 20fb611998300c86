//! Logging: what is logged, in which form.
//!
//! A server's lines say when and where; a person who waits for a command reads sentences like those
//! of [`crate::cli::ui`], whose labels and whose guard against foreign text they share.
//!
//! Invariant (P7): libraries never log below warn, whatever the user asks for, since at lower
//! levels some of them print headers. Where lines go is the caller's choice of writer.

use std::fmt::{self, Write as _};
use std::sync::OnceLock;

use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter, layer};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

use crate::cli::ui::{painted, printable};
use crate::config::{LogFormat, LogLevel};

/// What is logged and how it looks.
#[derive(Debug, Clone, Copy)]
pub struct Logging {
    /// The least important events.
    pub level: LogLevel,
    /// Text or JSON.
    pub format: LogFormat,
    /// Who reads the text.
    pub reader: Reader,
    /// Colours in text.
    pub colour: bool,
}

/// Who reads lines of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// Somebody who waits for the command: what happened, as a sentence.
    Person,
    /// Somebody who looks at it later: with time and place.
    Operator,
}

/// What is logged now.
static FILTER: OnceLock<reload::Handle<Targets, Registry>> = OnceLock::new();

/// Starts logging for the process. A second start changes nothing.
pub fn start<W>(logging: Logging, writer: W)
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(filter(logging.level));
    // An error here says that logging has been started already.
    if tracing_subscriber::registry().with(lines(logging, writer).with_filter(filter)).try_init().is_ok() {
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

fn lines<W>(logging: Logging, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let Logging { colour, .. } = logging;
    match (logging.format, logging.reader) {
        (LogFormat::Text, Reader::Person) => layer().event_format(Sentences { colour }).with_writer(writer).boxed(),
        (LogFormat::Text, Reader::Operator) => layer().with_ansi(colour).with_writer(writer).boxed(),
        (LogFormat::Json, _) => layer().json().flatten_event(true).with_writer(writer).boxed(),
    }
}

/// `warning: a file with wrong bytes is set aside (file=…, kept=…)`
struct Sentences {
    colour: bool,
}

impl<S, N> FormatEvent<S, N> for Sentences
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut line: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let (label, place) = match *event.metadata().level() {
            Level::ERROR => ("error:", None),
            Level::WARN => ("warning:", None),
            Level::INFO => ("note:", None),
            Level::DEBUG => ("debug:", Some(event.metadata().target())),
            Level::TRACE => ("trace:", Some(event.metadata().target())),
        };
        write!(line, "{} ", painted(label, self.colour))?;
        if let Some(place) = place {
            write!(line, "{place}: ")?;
        }
        line.write_str(&printable(&said.message))?;
        if !said.facts.is_empty() {
            write!(line, " ({})", printable(&said.facts))?;
        }
        writeln!(line)
    }
}

/// The parts of an event.
#[derive(Default)]
struct Said {
    message: String,
    /// `name=value, name=value`
    facts: String,
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let part = if field.name() == "message" {
            &mut self.message
        } else {
            let comma = if self.facts.is_empty() { "" } else { ", " };
            let _ = write!(self.facts, "{comma}{}=", field.name());
            &mut self.facts
        };
        // Writing to a text does not fail.
        let _ = write!(part, "{value:?}");
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{debug, error, info, warn};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(reader: Reader, format: LogFormat, events: impl FnOnce()) -> String {
        let written = Written::default();
        let writer = written.clone();
        let logging = Logging { level: LogLevel::Trace, format, reader, colour: false };
        let subscriber = tracing_subscriber::registry().with(lines(logging, move || writer.clone()));
        tracing::subscriber::with_default(subscriber, events);
        String::from_utf8(written.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn people_read_a_sentence_and_its_facts_without_time_or_place() {
        let kept = std::path::Path::new("/shared/.muster/quarantine/x");
        let lines = logged(Reader::Person, LogFormat::Text, || {
            warn!(file = "a b", kept = %kept.display(), "a file with wrong bytes is set aside");
            info!(connections = 2, all = true, "cutting answers");
            error!("no facts");
        });
        let told = [
            "warning: a file with wrong bytes is set aside (file=a b, kept=/shared/.muster/quarantine/x)",
            "note: cutting answers (connections=2, all=true)",
            "error: no facts",
        ];
        assert_eq!(lines.lines().collect::<Vec<_>>(), told);
    }

    #[test]
    fn details_say_where_they_come_from() {
        let lines = logged(Reader::Person, LogFormat::Text, || debug!(host = "h", "asked"));
        assert_eq!(lines, "debug: muster::telemetry::tests: asked (host=h)\n");
    }

    #[test]
    fn what_a_server_says_cannot_steer_the_terminal() {
        let said = "\u{1b}[2J";
        let lines = logged(Reader::Person, LogFormat::Text, || warn!(said, "it said {said}"));
        assert_eq!(lines, "warning: it said \\u{1b}[2J (said=\\u{1b}[2J)\n");
    }

    #[test]
    fn a_server_says_when_and_where_and_json_stays_json() {
        let line = logged(Reader::Operator, LogFormat::Text, || warn!(file = "x", "set aside"));
        assert!(line.contains("WARN muster::telemetry::tests: set aside file="), "{line}");
        let line = logged(Reader::Person, LogFormat::Json, || warn!(file = "x", "set aside"));
        let json: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(
            (&json["level"], &json["message"], &json["file"]),
            (&"WARN".into(), &"set aside".into(), &"x".into())
        );
    }

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
