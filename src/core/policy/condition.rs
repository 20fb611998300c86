//! Conditions on a value of a JSON file: where it is, what it has to be, what it means that it is
//! not there.

use std::fmt;

use serde_json::Value;

use super::flaw::ValueFlaw;
use super::number::Number;
use super::printable;
use crate::core::repo_path::RepoPath;

/// A condition on a JSON file of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The file.
    pub file: RepoPath,
    /// The place in it; none for the file itself.
    pub pointer: Option<Pointer>,
    /// What has to be there.
    pub test: Test,
    /// Whether texts are compared without their case.
    pub ignore_case: bool,
    /// What it means that nothing is there.
    pub missing: Missing,
}

/// A JSON pointer (RFC 6901): `/quantization/quant_algo`; the empty one is the whole document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pointer(String);

impl Pointer {
    /// Reads its text form.
    ///
    /// # Errors
    /// [`ValueFlaw::Pointer`]: one that starts with no `/`, or with a `~` that is no `~0` or `~1`.
    pub fn parse(text: &str) -> Result<Self, ValueFlaw> {
        let refuse = || ValueFlaw::Pointer { text: text.to_owned() };
        let starts = text.is_empty() || text.starts_with('/');
        let escaped = text.split('~').skip(1).all(|rest| rest.starts_with(['0', '1']));
        let said = !text.chars().any(char::is_control);
        if starts && escaped && said { Ok(Self(text.to_owned())) } else { Err(refuse()) }
    }

    /// What is there.
    #[must_use]
    pub fn find<'a>(&self, document: &'a Value) -> Option<&'a Value> {
        document.pointer(&self.0)
    }

    /// Its text form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a value has to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Test {
    /// This.
    Equals(Value),
    /// Anything else.
    Not(Value),
    /// One of these.
    In(Vec<Value>),
    /// None of these.
    NotIn(Vec<Value>),
    /// There, whatever it is; or not there.
    Exists(bool),
    /// A number within these bounds.
    Compare(Vec<Bound>),
}

/// What it means that nothing is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Missing {
    /// What the condition says: `not`, `not_in` and `exists = false` hold, all others do not.
    #[default]
    ByTest,
    /// The gate stays closed.
    Close,
    /// The rule is met.
    Open,
}

impl Missing {
    /// Reads the word.
    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "close" => Some(Self::Close),
            "open" => Some(Self::Open),
            _ => None,
        }
    }
}

/// One bound on a number, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bound {
    order: Order,
    number: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    AtLeast,
    AtMost,
    Above,
    Below,
}

/// The longer signs first, since they start with the shorter ones.
const ORDERS: [(&str, Order); 4] =
    [(">=", Order::AtLeast), ("<=", Order::AtMost), (">", Order::Above), ("<", Order::Below)];

impl Bound {
    /// Reads bounds: `>= 1.5`, or `>= 1.5, < 2`.
    ///
    /// # Errors
    /// [`ValueFlaw::Compare`].
    pub fn parse(text: &str) -> Result<Vec<Self>, ValueFlaw> {
        let refuse = || ValueFlaw::Compare { text: text.to_owned() };
        text.split(',').map(|one| Self::parse_one(one.trim()).ok_or_else(refuse)).collect()
    }

    fn parse_one(text: &str) -> Option<Self> {
        let (order, rest) = ORDERS.iter().find_map(|(sign, order)| Some((*order, text.strip_prefix(sign)?)))?;
        let number = rest.trim();
        Number::parse(number)?;
        Some(Self { order, number: number.to_owned() })
    }

    fn holds(&self, found: Number) -> bool {
        let order = Number::parse(&self.number).map(|bound| found.order(bound));
        order.is_some_and(|order| match self.order {
            Order::AtLeast => order.is_ge(),
            Order::AtMost => order.is_le(),
            Order::Above => order.is_gt(),
            Order::Below => order.is_lt(),
        })
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = ORDERS.iter().find(|(_, order)| *order == self.order).map_or("", |(sign, _)| sign);
        write!(f, "{sign} {}", self.number)
    }
}

impl Test {
    /// Whether a value that is there will do.
    #[must_use]
    pub fn holds_for(&self, found: &Value, ignore_case: bool) -> bool {
        let same = |wanted: &Value| is_same(found, wanted, ignore_case);
        match self {
            Self::Equals(wanted) => same(wanted),
            Self::Not(unwanted) => !same(unwanted),
            Self::In(wanted) => wanted.iter().any(same),
            Self::NotIn(unwanted) => !unwanted.iter().any(same),
            Self::Exists(wanted) => *wanted,
            Self::Compare(bounds) => {
                let number = found.as_number().and_then(Number::of_json);
                number.is_some_and(|number| bounds.iter().all(|bound| bound.holds(number)))
            }
        }
    }

    /// Whether it will do that nothing is there.
    #[must_use]
    pub const fn holds_for_nothing(&self, missing: Missing) -> bool {
        match missing {
            Missing::Close => false,
            Missing::Open => true,
            Missing::ByTest => matches!(self, Self::Not(_) | Self::NotIn(_) | Self::Exists(false)),
        }
    }

    /// What is demanded, in words.
    #[must_use]
    pub fn expected(&self) -> String {
        match self {
            Self::Equals(wanted) => shown(wanted),
            Self::Not(unwanted) => format!("anything but {}", shown(unwanted)),
            Self::In(wanted) => format!("one of {}", listed(wanted)),
            Self::NotIn(unwanted) => format!("none of {}", listed(unwanted)),
            Self::Exists(true) => "something".to_owned(),
            Self::Exists(false) => "nothing".to_owned(),
            Self::Compare(bounds) => {
                let bounds: Vec<_> = bounds.iter().map(ToString::to_string).collect();
                format!("a number {}", bounds.join(", "))
            }
        }
    }
}

/// A value for people, bounded.
pub(super) fn shown(value: &Value) -> String {
    printable(&value.to_string())
}

fn listed(values: &[Value]) -> String {
    printable(&values.iter().map(shown).collect::<Vec<_>>().join(", "))
}

/// Numbers are the same when they are worth the same; texts may differ in case when told so.
fn is_same(found: &Value, wanted: &Value, ignore_case: bool) -> bool {
    match (found, wanted) {
        (Value::Number(found), Value::Number(wanted)) => {
            let (found, wanted) = (Number::of_json(found), Number::of_json(wanted));
            found.zip(wanted).is_some_and(|(found, wanted)| found.order(wanted).is_eq())
        }
        (Value::String(found), Value::String(wanted)) if ignore_case => found.to_lowercase() == wanted.to_lowercase(),
        (Value::Array(found), Value::Array(wanted)) => {
            let mut pairs = found.iter().zip(wanted);
            found.len() == wanted.len() && pairs.all(|(found, wanted)| is_same(found, wanted, ignore_case))
        }
        (Value::Object(found), Value::Object(wanted)) => {
            let alike = |(key, wanted): (&String, &Value)| {
                found.get(key).is_some_and(|found| is_same(found, wanted, ignore_case))
            };
            found.len() == wanted.len() && wanted.iter().all(alike)
        }
        (found, wanted) => found == wanted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pointer_finds_what_the_standard_says() {
        let document = json!({"a": {"b": [1, {"c/d": null, "e~f": 2}]}, "": 3});
        for (pointer, found) in [
            ("", Some(&document)),
            ("/a/b/0", Some(&json!(1))),
            ("/a/b/1/c~1d", Some(&json!(null))),
            ("/a/b/1/e~0f", Some(&json!(2))),
            ("/", Some(&json!(3))),
            ("/a/b/01", None),
            ("/a/b/-", None),
            ("/a/x", None),
            ("/a/b/0/c", None),
        ] {
            assert_eq!(Pointer::parse(pointer).unwrap().find(&document), found, "{pointer}");
        }
        for wrong in ["a", "a/b", "/a~", "/a~2", "#/a", "/\u{1b}"] {
            assert!(Pointer::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_the_same_by_worth_and_texts_exactly_unless_told() {
        for (found, wanted, exactly, ignoring) in [
            (json!("FP8"), json!("FP8"), true, true),
            (json!("fp8"), json!("FP8"), false, true),
            (json!(8), json!(8.0), true, true),
            (json!("8"), json!(8), false, false),
            (json!(true), json!(1), false, false),
            (json!(null), json!("null"), false, false),
            (json!(["A", 1.0]), json!(["a", 1]), false, true),
            (json!(["A"]), json!(["A", "B"]), false, false),
            (json!({"k": "V"}), json!({"k": "v"}), false, true),
            (json!({"K": "v"}), json!({"k": "v"}), false, false),
            (json!({"k": "v", "l": 1}), json!({"k": "v"}), false, false),
        ] {
            for (ignore_case, same) in [(false, exactly), (true, ignoring)] {
                assert_eq!(is_same(&found, &wanted, ignore_case), same, "{found} {wanted} {ignore_case}");
                assert_eq!(Test::Equals(wanted.clone()).holds_for(&found, ignore_case), same);
                assert_eq!(Test::Not(wanted.clone()).holds_for(&found, ignore_case), !same);
                assert_eq!(Test::In(vec![json!({}), wanted.clone()]).holds_for(&found, ignore_case), same);
                assert_eq!(Test::NotIn(vec![json!({}), wanted.clone()]).holds_for(&found, ignore_case), !same);
            }
        }
    }

    #[test]
    fn bounds_hold_for_numbers_within_them_and_for_nothing_else() {
        let bounds = |text: &str| Test::Compare(Bound::parse(text).unwrap());
        for (text, found, expected) in [
            (">= 1.5", json!(1.5), true),
            (">= 1.5", json!(1), false),
            ("> 1.5", json!(1.5), false),
            ("<=2", json!(2.0), true),
            ("<2", json!(2), false),
            (">= 1.5, < 2", json!(1.75), true),
            (">= 1.5, < 2", json!(2), false),
            (">= 9007199254740993", json!(9_007_199_254_740_992_u64), false),
            (">= 1", json!("2"), false),
            (">= 1", json!(null), false),
            (">= 1", json!([2]), false),
        ] {
            assert_eq!(bounds(text).holds_for(&found, false), expected, "{text} {found}");
        }
        assert_eq!(bounds(">=1.5,<2").expected(), "a number >= 1.5, < 2");
        for wrong in ["", "1", "= 1", "== 1", ">=", "> x", ">= 1,", ">= inf", "=> 1"] {
            assert!(Bound::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_missing_meets_the_conditions_that_only_forbid() {
        let x = json!("x");
        for (test, by_test) in [
            (Test::Equals(x.clone()), false),
            (Test::Not(x.clone()), true),
            (Test::In(vec![x.clone()]), false),
            (Test::NotIn(vec![x]), true),
            (Test::Exists(true), false),
            (Test::Exists(false), true),
            (Test::Compare(Bound::parse("> 1").unwrap()), false),
        ] {
            assert_eq!(test.holds_for_nothing(Missing::ByTest), by_test, "{test:?}");
            assert!(!test.holds_for_nothing(Missing::Close) && test.holds_for_nothing(Missing::Open));
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-cA-C]{0,3}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::vec(("[a-c]", inner), 0..3)
                    .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_condition_and_its_contrary_never_agree(a in values(), b in values(), ignore_case: bool) {
            let same = Test::Equals(b.clone()).holds_for(&a, ignore_case);
            prop_assert_eq!(same, !Test::Not(b.clone()).holds_for(&a, ignore_case));
            prop_assert_eq!(same, Test::In(vec![b.clone()]).holds_for(&a, ignore_case));
            prop_assert_eq!(same, !Test::NotIn(vec![b.clone()]).holds_for(&a, ignore_case));
            prop_assert_eq!(same, Test::Equals(a.clone()).holds_for(&b, ignore_case), "it is symmetric");
            prop_assert!(Test::Equals(a.clone()).holds_for(&a, ignore_case), "and reflexive");
            prop_assert!(!shown(&a).chars().any(char::is_control));
        }

        #[test]
        fn pointers_are_read_or_refused_and_never_lead_astray(text in "[/~01a-c]{0,12}") {
            let document = json!({"a": {"b": 1}, "0": [1, 2]});
            if let Ok(pointer) = Pointer::parse(&text) {
                prop_assert_eq!(pointer.find(&document), document.pointer(&text));
            } else {
                prop_assert!(!text.starts_with('/') || text.contains('~'));
            }
        }
    }
}
