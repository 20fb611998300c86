//! Numbers of JSON and TOML, compared exactly: a whole number is never rounded to be compared with
//! a fraction.

use std::cmp::Ordering;

/// A number as it was written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    /// Whole.
    Whole(i128),
    /// Anything else that is finite.
    Float(f64),
}

/// 2^127, the first float that no whole number of ours reaches.
const TOO_LARGE: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;

impl Number {
    /// Of a JSON file.
    pub(super) fn of_json(number: &serde_json::Number) -> Option<Self> {
        let whole = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
        whole.map(Self::Whole).or_else(|| number.as_f64().and_then(Self::finite))
    }

    /// Of a text such as `1.5` or `-3`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // What Rust reads beside numbers: `inf`, `nan`.
        if !text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E')) {
            return None;
        }
        text.parse().map(Self::Whole).ok().or_else(|| text.parse().ok().and_then(Self::finite))
    }

    /// How two compare.
    pub(super) fn order(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => a.cmp(&b),
            // Both are finite.
            (Self::Float(a), Self::Float(b)) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            (Self::Whole(a), Self::Float(b)) => whole_and_float(a, b),
            (Self::Float(a), Self::Whole(b)) => whole_and_float(b, a).reverse(),
        }
    }

    fn finite(number: f64) -> Option<Self> {
        number.is_finite().then_some(Self::Float(number))
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the float has no fraction and is in range")]
fn whole_and_float(whole: i128, float: f64) -> Ordering {
    if float >= TOO_LARGE {
        return Ordering::Less;
    }
    if float < -TOO_LARGE {
        return Ordering::Greater;
    }
    let below = float.floor();
    let more = if float > below { Ordering::Less } else { Ordering::Equal };
    whole.cmp(&(below as i128)).then(more)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn json(text: &str) -> Number {
        Number::of_json(&serde_json::from_str(text).unwrap()).unwrap()
    }

    #[test]
    fn numbers_compare_exactly_where_floats_alone_would_not() {
        for (a, b, order) in [
            ("1", "1.0", Ordering::Equal),
            ("9007199254740993", "9007199254740992.0", Ordering::Greater),
            ("9007199254740993", "9007199254740992", Ordering::Greater),
            ("18446744073709551615", "18446744073709551615", Ordering::Equal),
            ("-3", "-2.5", Ordering::Less),
            ("-2", "-2.5", Ordering::Greater),
            ("0.1", "0.1", Ordering::Equal),
            ("1e300", "5", Ordering::Greater),
            ("-1e300", "5", Ordering::Less),
            ("-0.0", "0", Ordering::Equal),
        ] {
            assert_eq!(json(a).order(json(b)), order, "{a} {b}");
            assert_eq!(json(b).order(json(a)), order.reverse(), "{b} {a}");
            assert_eq!(Number::parse(a).unwrap().order(json(b)), order, "{a} {b}");
        }
        for text in ["", "inf", "nan", "1e999", "x", "1 2", "--1", "0x10"] {
            assert!(Number::parse(text).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_and_floats_have_one_order(a in any::<i64>(), b in -1e19..1e19_f64) {
            let order = Number::Whole(a.into()).order(Number::Float(b));
            prop_assert_eq!(order, Number::Float(b).order(Number::Whole(a.into())).reverse());
            // Floats round, so they may only find equal what is not.
            #[allow(clippy::cast_precision_loss, reason = "that is what is tested")]
            let rounded = (a as f64).partial_cmp(&b).unwrap();
            prop_assert!(rounded == order || rounded == Ordering::Equal);
        }
    }
}
