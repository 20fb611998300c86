//! What a server says about its limits, in the head of every answer.

use std::time::{Duration, SystemTime};

use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};

use crate::core::budget::{Limits, WINDOW_MAX};

/// Reads `Retry-After` (seconds or a date), `RateLimit` and `RateLimit-Policy`.
pub(super) fn read(headers: &HeaderMap, wall: SystemTime) -> Limits {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // A date is the server's: measured from the server's own clock it survives a wrong one.
    let wall = text(DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(wall);
    let retry_after = text(RETRY_AFTER.as_str()).and_then(|value| retry_after(value, wall));
    let left = text("ratelimit").and_then(|value| {
        let (r, t) = (parameter(value, "r")?, parameter(value, "t")?);
        Some((r, Duration::from_secs(t).min(WINDOW_MAX)))
    });
    Limits { retry_after, left, quota: text("ratelimit-policy").and_then(|value| parameter(value, "q")) }
}

fn retry_after(value: &str, wall: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // A date in the past asks for no wait.
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(wall).unwrap_or(Duration::ZERO))
}

/// A parameter of the first item of a structured list: `"resolvers";r=12;t=30`.
fn parameter(value: &str, name: &str) -> Option<u64> {
    let item = value.split(',').next()?;
    item.split(';').find_map(|part| part.trim().strip_prefix(name)?.strip_prefix('=')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};

    use super::*;

    fn limits(pairs: &[(&str, &str)], wall: SystemTime) -> Limits {
        let pair = |(name, value): &(&str, &str)| {
            (HeaderName::try_from(*name).unwrap(), HeaderValue::try_from(*value).unwrap())
        };
        read(&pairs.iter().map(pair).collect(), wall)
    }

    fn left(left: u64, reset_s: u64, quota: u64) -> Limits {
        Limits { retry_after: None, left: Some((left, Duration::from_secs(reset_s))), quota: Some(quota) }
    }

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn retry_after_is_read_in_both_forms() {
        let wall = SystemTime::UNIX_EPOCH + S * 1_000_000_000;
        let wish = |value: &str| limits(&[("Retry-After", value)], wall).wish();
        assert_eq!(wish("7"), Some(S * 7));
        assert_eq!(wish(&httpdate::fmt_http_date(wall + S * 90)), Some(S * 90));
        assert_eq!(wish(&httpdate::fmt_http_date(wall - S * 90)), Some(Duration::ZERO));
        let (then, until) = (httpdate::fmt_http_date(wall + S * 3600), httpdate::fmt_http_date(wall + S * 3610));
        let ahead = limits(&[("Date", &then), ("Retry-After", &until)], wall);
        assert_eq!(ahead.wish(), Some(S * 10), "by the server's clock, not by ours");
        for odd in ["", "soon", "-1", "1.5"] {
            assert_eq!(wish(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_ratelimit_headers_are_read() {
        let read = limits(
            &[
                ("RateLimit", "\"resolvers\";r=12;t=30"),
                ("RateLimit-Policy", "\"fixed window\";\"resolvers\";q=3000;w=300"),
            ],
            SystemTime::UNIX_EPOCH,
        );
        assert_eq!(read, left(12, 30, 3000));
        assert_eq!(read.wish(), None);
        assert_eq!(left(0, 30, 3000).wish(), Some(S * 30));
        assert_eq!(
            limits(&[("RateLimit", "\"x\";r=1;t=999999999")], SystemTime::UNIX_EPOCH).left,
            Some((1, WINDOW_MAX))
        );
        for odd in ["", "r", "r=1", "\"a\";r=x;t=1", "t=1"] {
            assert_eq!(limits(&[("RateLimit", odd)], SystemTime::UNIX_EPOCH).left, None, "{odd}");
        }
    }
}
