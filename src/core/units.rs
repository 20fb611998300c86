//! Sizes and durations as people write and read them.
//!
//! Sizes need a unit, since a bare `M` means a million to some and 2^20 to others.

use std::time::Duration;

use thiserror::Error;

/// Why a text is no size or duration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum UnitError {
    /// A unit with two readings.
    #[error("`{text}` is ambiguous: write {decimal} ({decimal_bytes} bytes) or {binary} ({binary_bytes} bytes)")]
    Ambiguous {
        /// What was given.
        text: String,
        /// The decimal spelling.
        decimal: String,
        /// Its bytes.
        decimal_bytes: u64,
        /// The binary spelling.
        binary: String,
        /// Its bytes.
        binary_bytes: u64,
    },
    /// A number without a unit.
    #[error("`{text}` has no unit: write {text}B for bytes, or for example 200MB, 1GiB, 1.6Gbit")]
    NoUnit {
        /// What was given.
        text: String,
    },
    /// Not a size.
    #[error("`{text}` is no size: write for example 200MB, 1GiB or 1.6Gbit")]
    Size {
        /// What was given.
        text: String,
    },
    /// Not a duration.
    #[error("`{text}` is no duration: write for example 90s, 30m or 2h")]
    Duration {
        /// What was given.
        text: String,
    },
}

const DECIMAL: [(&str, u64); 5] =
    [("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000), ("T", 1_000_000_000_000), ("P", 1_000_000_000_000_000)];

/// Longest duration that can be meant: a hundred years, which a clock's time can be moved by.
pub const DURATION_MAX: Duration = Duration::from_secs(36_500 * 86_400);

/// Units that sizes are shown in, and their decimals.
const SHOWN: [(&str, u64, usize); 4] =
    [("TB", 1_000_000_000_000, 2), ("GB", 1_000_000_000, 1), ("MB", 1_000_000, 1), ("kB", 1_000, 1)];

/// Parses a size in bytes: `512B`, `200MB`, `1GiB`, `1.6Gbit`, `0`.
///
/// # Errors
/// [`UnitError`]: a bare number or a bare prefix is refused with its readings.
pub fn parse_size(text: &str) -> Result<u64, UnitError> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = (&text[..at], text[at..].trim());
    let value: f64 = number.parse().map_err(|_| UnitError::Size { text: text.to_owned() })?;
    if unit.is_empty() {
        return if value == 0.0 { Ok(0) } else { Err(UnitError::NoUnit { text: text.to_owned() }) };
    }
    if let Some(&(prefix, decimal)) = DECIMAL.iter().find(|(prefix, _)| unit.eq_ignore_ascii_case(prefix)) {
        return Err(UnitError::Ambiguous {
            text: text.to_owned(),
            decimal: format!("{number}{prefix}B"),
            decimal_bytes: whole(value * decimal as f64),
            binary: format!("{number}{prefix}iB"),
            binary_bytes: whole(value * binary_of(decimal) as f64),
        });
    }
    let factor = unit_factor(unit).ok_or_else(|| UnitError::Size { text: text.to_owned() })?;
    let bytes = value * factor;
    // The nearest float is 2^63, one more than fits.
    if bytes >= i64::MAX as f64 {
        return Err(UnitError::Size { text: text.to_owned() });
    }
    Ok(whole(bytes))
}

/// Parses a duration in whole milliseconds: `90s`, `30m`, `2h`, `1d`, `250ms`.
///
/// # Errors
/// [`UnitError::Duration`], also for more than [`DURATION_MAX`].
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let refuse = || UnitError::Duration { text: text.to_owned() };
    let trimmed = text.trim();
    let at = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(refuse)?;
    let value: f64 = trimmed[..at].parse().map_err(|_| refuse())?;
    let seconds = match trimmed[at..].trim() {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return Err(refuse()),
    };
    let millis = whole(value * seconds * 1000.0);
    let span = Duration::from_millis(millis);
    // What is shorter than a millisecond, and not zero, would become "at once".
    if span > DURATION_MAX || (millis == 0 && value > 0.0) { Err(refuse()) } else { Ok(span) }
}

/// Bytes for a person: `0 B`, `999 B`, `1.0 kB`, `540.2 GB`, `1.70 TB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    match SHOWN.iter().find(|(_, unit, _)| count >= *unit) {
        Some((name, unit, digits)) => format!("{:.*} {name}", digits, count as f64 / *unit as f64),
        None => format!("{count} B"),
    }
}

/// The number alone of `count`, in the unit that [`bytes()`] shows `whole` in: `237.1` of
/// `540.2 GB`.
#[must_use]
pub fn bytes_beside(count: u64, whole: u64) -> String {
    match SHOWN.iter().find(|(_, unit, _)| whole >= *unit) {
        Some((_, unit, digits)) => format!("{:.*}", digits, count as f64 / *unit as f64),
        None => count.to_string(),
    }
}

/// A number of things for a person: `1 file`, `119 shards`.
#[must_use]
pub fn count(number: u64, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}

/// A rate for a person: `361 MB/s`.
#[must_use]
pub fn rate(bytes_per_s: f64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    match UNITS.iter().find(|(_, unit)| bytes_per_s >= *unit) {
        Some((name, unit)) if bytes_per_s / unit < 10.0 => format!("{:.1} {name}/s", bytes_per_s / unit),
        Some((name, unit)) => format!("{:.0} {name}/s", bytes_per_s / unit),
        None => format!("{bytes_per_s:.0} B/s"),
    }
}

/// A duration for a person: `62 ms`, `45 s`, `12 min`, `3 h 20 min`, `2 d 4 h`.
#[must_use]
pub fn duration(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7199 => format!("{} min", seconds / 60),
        7200..=172_799 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

fn unit_factor(unit: &str) -> Option<f64> {
    let lower = unit.to_ascii_lowercase();
    if lower == "b" {
        return Some(1.0);
    }
    let (prefix, rest) = lower.split_at_checked(1)?;
    let decimal = DECIMAL.iter().find(|(name, _)| name.eq_ignore_ascii_case(prefix))?.1;
    match rest {
        "b" => Some(decimal as f64),
        "ib" => Some(binary_of(decimal) as f64),
        "bit" => Some(decimal as f64 / 8.0),
        "ibit" => Some(binary_of(decimal) as f64 / 8.0),
        _ => None,
    }
}

fn binary_of(decimal: u64) -> u64 {
    1 << (10 * (decimal.ilog10() / 3))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, and a size is never negative"
)]
/// The nearest whole number that is not negative.
pub(crate) fn whole(bytes: f64) -> u64 {
    bytes.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_need_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512B", 512),
            ("200MB", 200_000_000),
            ("1GiB", 1 << 30),
            ("1.5 kib", 1536),
            ("1.6Gbit", 200_000_000),
            ("2TB", 2_000_000_000_000),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        assert!(matches!(parse_size("200"), Err(UnitError::NoUnit { .. })));
        assert_eq!(parse_size("9223372036854774784B"), Ok(9_223_372_036_854_774_784));
        let too_large = ["99999999999PB", "9223372036854775808B", "8192PiB"];
        for text in ["", "MB", "-1MB", "1XB", "1MBB", "nanB", "1..2MB", "1é"].into_iter().chain(too_large) {
            assert!(matches!(parse_size(text), Err(UnitError::Size { .. })), "{text}");
        }
    }

    #[test]
    fn a_bare_prefix_is_refused_with_both_readings() {
        let error = parse_size("10M").unwrap_err().to_string();
        assert!(error.contains("10MB (10000000 bytes)") && error.contains("10MiB (10485760 bytes)"), "{error}");
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(540_200_000_000), "540.2 GB");
        assert_eq!(bytes(1_700_000_000_000), "1.70 TB");
        assert_eq!(bytes_beside(237_100_000_000, 540_200_000_000), "237.1");
        assert_eq!(bytes_beside(7, 999), "7");
        assert_eq!(rate(361e6), "361 MB/s");
        assert_eq!(rate(1.234e9), "1.2 GB/s");
        assert_eq!(duration(Duration::from_millis(62)), "62 ms");
        assert_eq!(duration(Duration::from_secs(725)), "12 min");
        assert_eq!(parse_duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        for text in ["", "5", "m", "5 weeks", "-1s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_duration_can_be_added_to_any_clock_and_is_never_rounded_to_nothing() {
        for text in ["36501d", "99999999999999d", "1e9d", "0.4ms", "0.0001s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("36500d"), Ok(DURATION_MAX));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("1.0006s"), Ok(Duration::from_millis(1001)));
        assert!(std::time::Instant::now().checked_add(DURATION_MAX + DURATION_MAX).is_some());
    }
}
