//! A timetable of limits: which one holds on which day at what time.
//!
//! Pure: the local day and time are arguments. Invariant: at most one entry holds at any minute of
//! the week, for entries that overlap are refused.

use std::fmt;

use jiff::civil::Weekday;
use thiserror::Error;

use super::limit::{Limit, LimitError};

const DAY: u16 = 24 * 60;
const DAYS: [(&str, Weekday); 7] = [
    ("mon", Weekday::Monday),
    ("tue", Weekday::Tuesday),
    ("wed", Weekday::Wednesday),
    ("thu", Weekday::Thursday),
    ("fri", Weekday::Friday),
    ("sat", Weekday::Saturday),
    ("sun", Weekday::Sunday),
];
/// Most entries that anybody has a use for.
const ENTRIES_MAX: usize = 64;

/// Why a text is no timetable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HoursError {
    /// Something else than `key=value`, or a key that there is not.
    #[error("`{}` is none of from=, to=, rate=, days=", .text.escape_debug())]
    Key {
        /// What was given.
        text: String,
    },
    /// A key that an entry needs, or has twice.
    #[error("`{}` needs from=, to= and rate=, each once", .entry.escape_debug())]
    Incomplete {
        /// The entry.
        entry: String,
    },
    /// No time of a day.
    #[error("`{}` is no time: write for example 08:00, at most 24:00", .text.escape_debug())]
    Time {
        /// What was given.
        text: String,
    },
    /// From and to are the same.
    #[error("`{}` begins when it ends: write from=00:00 to=24:00 for a whole day", .entry.escape_debug())]
    Empty {
        /// The entry.
        entry: String,
    },
    /// No days.
    #[error("`{}` is no list of days: write for example mon-fri or sat,sun", .text.escape_debug())]
    Days {
        /// What was given.
        text: String,
    },
    /// No limit.
    #[error("{0}")]
    Limit(LimitError),
    /// Two entries for one minute.
    #[error("`{}` and `{}` overlap", .one.escape_debug(), .other.escape_debug())]
    Overlap {
        /// The earlier in the text.
        one: String,
        /// The later.
        other: String,
    },
    /// More entries than make sense.
    #[error("more than {ENTRIES_MAX} entries")]
    TooMany,
}

/// When which limit holds; outside of its entries another one does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timetable(Vec<Hours>);

/// One entry: a part of each of some days, which may reach into the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hours {
    /// Bit 0 is Monday.
    days: u8,
    /// Minutes from midnight.
    from: u16,
    to: u16,
    limit: Limit,
}

impl Timetable {
    /// Parses `from=08:00 to=20:00 rate=500MB days=mon-fri; from=…`; an empty text is an empty one.
    ///
    /// # Errors
    /// [`HoursError`].
    pub fn parse(text: &str) -> Result<Self, HoursError> {
        let mut entries: Vec<Hours> = Vec::new();
        for row in text.split(';').map(str::trim).filter(|row| !row.is_empty()) {
            let entry = Hours::parse(row)?;
            if let Some(other) = entries.iter().find(|other| other.overlaps(&entry)) {
                return Err(HoursError::Overlap { one: other.to_string(), other: entry.to_string() });
            }
            if entries.len() == ENTRIES_MAX {
                return Err(HoursError::TooMany);
            }
            entries.push(entry);
        }
        Ok(Self(entries))
    }

    /// The text form; parsing it gives the same timetable.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    }

    /// Whether it says nothing.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry that holds on this day at this minute from midnight.
    #[must_use]
    pub fn at(&self, day: Weekday, minute: u16) -> Option<&Hours> {
        let minute = u16::from(day.to_monday_zero_offset().unsigned_abs()) * DAY + minute;
        self.0.iter().find(|entry| entry.spans().any(|(from, to)| (from..to).contains(&minute)))
    }
}

impl Hours {
    /// What holds.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// When, for people: `mon-fri 08:00 to 20:00`.
    #[must_use]
    pub fn when(&self) -> String {
        let days = if self.days == 0x7f { String::new() } else { format!("{} ", days_text(self.days)) };
        format!("{days}{} to {}", time_text(self.from), time_text(self.to))
    }

    fn parse(row: &str) -> Result<Self, HoursError> {
        let (mut from, mut to, mut limit, mut days) = (None, None, None, None);
        let incomplete = || HoursError::Incomplete { entry: row.to_owned() };
        for word in row.split_whitespace() {
            let unknown = || HoursError::Key { text: word.to_owned() };
            let (key, value) = word.split_once('=').ok_or_else(unknown)?;
            let twice = match key {
                "from" => from.replace(parse_time(value)?).is_some(),
                "to" => to.replace(parse_time(value)?).is_some(),
                "rate" => limit.replace(Limit::parse(value).map_err(HoursError::Limit)?).is_some(),
                "days" => days.replace(parse_days(value)?).is_some(),
                _ => return Err(unknown()),
            };
            if twice {
                return Err(incomplete());
            }
        }
        let (Some(from), Some(to), Some(limit)) = (from, to, limit) else { return Err(incomplete()) };
        if from % DAY == to % DAY && to != from + DAY {
            return Err(HoursError::Empty { entry: row.to_owned() });
        }
        if from == DAY {
            return Err(HoursError::Time { text: "24:00".to_owned() });
        }
        Ok(Self { days: days.unwrap_or(0x7f), from, to, limit })
    }

    /// Its parts of the week, in minutes from Monday's midnight.
    fn spans(&self) -> impl Iterator<Item = (u16, u16)> {
        let days = (0..7u16).filter(|day| self.days & (1 << day) != 0);
        let to = if self.to > self.from { self.to } else { self.to + DAY };
        let span = move |from: u16, day: u16| (from + day * DAY, to + day * DAY);
        days.flat_map({
            let from = self.from;
            move |day| {
                let (from, to) = span(from, day);
                let week = 7 * DAY;
                // From Sunday it goes on at Monday's beginning.
                let rest = (to > week).then(|| (0, to - week));
                [Some((from, to.min(week))), rest].into_iter().flatten()
            }
        })
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.spans().any(|(from, to)| other.spans().any(|(start, end)| from < end && start < to))
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from={} to={} rate={}", time_text(self.from), time_text(self.to), self.limit.text())?;
        if self.days == 0x7f { Ok(()) } else { write!(f, " days={}", days_text(self.days)) }
    }
}

fn parse_time(text: &str) -> Result<u16, HoursError> {
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.len() == 2 && !text.starts_with('+'));
    let parts = text.split_once(':').and_then(|(hour, minute)| Some((number(hour)?, number(minute)?)));
    let minutes = parts.filter(|(_, minute)| *minute < 60).map(|(hour, minute)| hour * 60 + minute);
    minutes.filter(|minutes| *minutes <= DAY).ok_or_else(|| HoursError::Time { text: text.to_owned() })
}

fn time_text(minutes: u16) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

fn parse_days(text: &str) -> Result<u8, HoursError> {
    let refuse = || HoursError::Days { text: text.to_owned() };
    let day = |word: &str| DAYS.iter().position(|(name, _)| word.eq_ignore_ascii_case(name)).ok_or_else(refuse);
    let mut days = 0;
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        // `fri-mon` goes over the end of the week.
        let count = (last + 7 - first) % 7;
        (0..=count).for_each(|step| days |= 1 << ((first + step) % 7));
    }
    Ok(days)
}

/// `mon-fri`, `sat,sun`: runs of three and more are shortened.
fn days_text(days: u8) -> String {
    let (mut parts, mut day) = (Vec::new(), 0);
    while day < 7 {
        let run = (day..7).take_while(|day| days & (1 << day) != 0).count();
        match run {
            0 => {}
            1 | 2 => parts.extend((day..day + run).map(|day| DAYS[day].0.to_owned())),
            _ => parts.push(format!("{}-{}", DAYS[day].0, DAYS[day + run - 1].0)),
        }
        day += run.max(1);
    }
    parts.join(",")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(table: &Timetable, day: Weekday, hour: u16, minute: u16) -> Option<String> {
        table.at(day, hour * 60 + minute).map(|entry| entry.limit().text())
    }

    #[test]
    fn the_days_are_half_and_the_nights_full() {
        let table = Timetable::parse("from=08:00 to=20:00 rate=500MB").unwrap();
        for (_, day) in DAYS {
            assert_eq!(at(&table, day, 7, 59), None);
            assert_eq!(at(&table, day, 8, 0).as_deref(), Some("500000000B"));
            assert_eq!(at(&table, day, 19, 59).as_deref(), Some("500000000B"));
            assert_eq!(at(&table, day, 20, 0), None);
        }
        assert!(Timetable::parse(" ; ").unwrap().is_empty());
    }

    #[test]
    fn a_night_belongs_to_the_day_on_which_it_begins() {
        let table =
            Timetable::parse("from=22:00 to=06:00 rate=none days=fri,sun; from=06:00 to=22:00 rate=1MB").unwrap();
        assert_eq!(at(&table, Weekday::Friday, 23, 0).as_deref(), Some("none"));
        assert_eq!(at(&table, Weekday::Saturday, 5, 59).as_deref(), Some("none"));
        assert_eq!(at(&table, Weekday::Saturday, 6, 0).as_deref(), Some("1000000B"));
        assert_eq!(at(&table, Weekday::Saturday, 23, 0), None);
        assert_eq!(at(&table, Weekday::Monday, 3, 0).as_deref(), Some("none"), "over the end of the week");
        assert_eq!(at(&table, Weekday::Tuesday, 3, 0), None);
        assert_eq!(table.at(Weekday::Friday, 23 * 60).unwrap().when(), "fri,sun 22:00 to 06:00");
    }

    #[test]
    fn two_entries_for_one_minute_are_refused() {
        for text in [
            "from=08:00 to=20:00 rate=1MB; from=19:59 to=21:00 rate=2MB",
            "from=22:00 to=06:00 rate=1MB days=sun; from=05:00 to=07:00 rate=2MB days=mon",
            "from=00:00 to=24:00 rate=1MB; from=12:00 to=13:00 rate=2MB days=wed",
            "from=22:00 to=22:30 rate=1MB; from=22:00 to=22:30 rate=1MB",
        ] {
            assert!(matches!(Timetable::parse(text), Err(HoursError::Overlap { .. })), "{text}");
        }
        assert!(Timetable::parse("from=08:00 to=20:00 rate=1MB; from=20:00 to=08:00 rate=2MB").is_ok());
        assert!(
            Timetable::parse("from=08:00 to=20:00 rate=1MB days=mon; from=08:00 to=20:00 rate=2MB days=tue").is_ok()
        );
    }

    #[test]
    fn what_is_no_entry_says_why() {
        for (text, part) in [
            ("08:00-20:00", "from="),
            ("from=08:00 to=20:00", "rate="),
            ("from=08:00 to=20:00 rate=1MB rate=2MB", "each once"),
            ("from=8:00 to=20:00 rate=1MB", "08:00"),
            ("from=24:00 to=20:00 rate=1MB", "24:00"),
            ("from=08:60 to=20:00 rate=1MB", "08:60"),
            ("from=08:00 to=08:00 rate=1MB", "whole day"),
            ("from=08:00 to=20:00 rate=1M", "1MiB"),
            ("from=08:00 to=20:00 rate=1MB days=work", "mon-fri"),
            ("from=08:00 to=20:00 rate=1MB zone=UTC", "zone"),
        ] {
            let error = Timetable::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many = (0..65)
            .map(|n| format!("from={:02}:{:02} to={:02}:{:02} rate=1MB", n / 60, n % 60, (n + 1) / 60, (n + 1) % 60));
        assert_eq!(Timetable::parse(&many.collect::<Vec<_>>().join(";")), Err(HoursError::TooMany));
    }

    proptest! {
        #[test]
        fn every_entry_survives_being_shown_and_read_and_holds_exactly_in_its_span(
            days in 1u8..128, from in 0u16..DAY, length in 1u16..=DAY, minute in 0u16..7 * DAY,
        ) {
            let to = if from + length > DAY { from + length - DAY } else { from + length };
            prop_assume!(to != from || (from == 0 && length == DAY));
            let to = if from == 0 && length == DAY { DAY } else { to };
            let entry = Hours { days, from, to, limit: Limit::None };
            let table = Timetable(vec![entry]);
            prop_assert_eq!(&Timetable::parse(&table.text()).unwrap(), &table);
            let begins = |day: u16| days & (1 << (day % 7)) != 0;
            let (day, time) = (minute / DAY, minute % DAY);
            let today = begins(day) && time >= from && time - from < length;
            let yesterday = begins(day + 6) && time + DAY - from < length;
            let weekday = DAYS[usize::from(day)].1;
            prop_assert_eq!(table.at(weekday, time).is_some(), today || yesterday);
        }

        #[test]
        fn no_text_breaks_it(text in ".{0,80}") {
            if let Ok(table) = Timetable::parse(&text) {
                prop_assert_eq!(Timetable::parse(&table.text()), Ok(table));
            }
        }
    }
}
