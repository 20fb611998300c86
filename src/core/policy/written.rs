//! The keys of a rule as TOML has them, and which of them belong together.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use toml::Spanned;

use super::flaw::Flaw;

/// What a demand begins with, and the keys that may stand beside it.
const DEMANDS: &[(&str, &[&str])] = &[
    ("file", &["pointer", "equals", "not", "in", "not_in", "exists", "compare", "ignore_case", "missing"]),
    ("forbid", &["except", "except_sha256", "ignore_case"]),
    ("require", &["ignore_case"]),
    ("extra_files", &["except", "ignore_case"]),
    ("mode_forbid", &["mode_require", "files"]),
    ("mode_require", &["mode_forbid", "files"]),
    ("commit", &[]),
    ("verified_within", &[]),
    ("verified_for", &[]),
];
/// The keys of every rule.
const COMMON: &[&str] = &["name", "message", "hint", "repos"];

macro_rules! written {
    ($($key:ident: $type:ty),* $(,)?) => {
        /// A rule as it stands there.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct Written {
            $(pub(super) $key: Option<Spanned<$type>>),*
        }

        impl Written {
            /// The keys that are there, and where their values begin.
            pub(super) fn keys(&self) -> Vec<(&'static str, usize)> {
                let all = [$((stringify!($key), self.$key.as_ref().map(|value| value.span().start))),*];
                let there = |(key, at): (&'static str, Option<usize>)| Some((key.trim_start_matches("r#"), at?));
                all.into_iter().filter_map(there).collect()
            }
        }
    };
}

written! {
    name: String,
    message: String,
    hint: String,
    repos: Texts,
    file: String,
    pointer: String,
    equals: toml::Value,
    not: toml::Value,
    r#in: Vec<toml::Value>,
    not_in: Vec<toml::Value>,
    exists: bool,
    compare: String,
    ignore_case: bool,
    missing: String,
    forbid: Texts,
    require: Texts,
    except: Texts,
    except_sha256: Texts,
    extra_files: String,
    files: Texts,
    mode_forbid: String,
    mode_require: String,
    commit: Texts,
    verified_within: String,
    verified_for: String,
}

/// One text, or a list of them.
pub(super) struct Texts(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Texts;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a list of texts")
            }
            fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
                Ok(Texts(vec![text.to_owned()]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
                let mut texts = Vec::new();
                while let Some(text) = list.next_element()? {
                    texts.push(text);
                }
                Ok(Texts(texts))
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

/// Which demand the keys of a rule make, by its key in [`DEMANDS`].
pub(super) fn kind(keys: &[(&'static str, usize)], rule: &str) -> Result<&'static str, (Option<usize>, Flaw)> {
    let rule = rule.to_owned();
    let demand = DEMANDS.iter().find(|(first, _)| keys.iter().any(|(key, _)| key == first));
    let Some((demand, beside)) = demand else {
        let known = DEMANDS.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
        return Err((None, Flaw::NoDemand { rule, known }));
    };
    let strange = keys.iter().find(|(key, _)| key != demand && !beside.contains(key) && !COMMON.contains(key));
    match strange {
        None => Ok(demand),
        Some((other, at)) if DEMANDS.iter().any(|(first, _)| first == other) => {
            Err((Some(*at), Flaw::TwoDemands { rule, one: demand, other }))
        }
        Some((key, at)) => Err((Some(*at), Flaw::Foreign { rule, key, demand })),
    }
}
