//! Which files of a repository were asked for.
//!
//! The matching rules are those of the official client, so that a pattern means the same in
//! both: Python's case-sensitive `fnmatch` over the whole path, where `*` and `?` cross `/`,
//! `[…]` and `[!…]` are classes, a pattern that ends in `/` gets a `*`, and `\` is `/`. A file
//! is kept when any include matches (or there is none) and no exclude does.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::repo_path::RepoPath;

/// Longest pattern, in characters.
const PATTERN_MAX: usize = 1024;

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PatternError {
    /// An empty pattern matches nothing, so it is a mistake.
    #[error("an empty pattern matches no file")]
    Empty,
    /// Too long to be meant.
    #[error("a pattern of {len} characters is too long (at most {PATTERN_MAX})")]
    TooLong {
        /// Its length.
        len: usize,
    },
    /// Control characters are in no file name we accept.
    #[error("the pattern `{}` has a control character", .text.escape_debug())]
    Control {
        /// The pattern.
        text: String,
    },
}

/// One glob, in the normal form it is compared in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern(String);

impl Pattern {
    /// Parses a glob.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let len = text.chars().count();
        if len == 0 {
            return Err(PatternError::Empty);
        }
        if len > PATTERN_MAX {
            return Err(PatternError::TooLong { len });
        }
        if text.chars().any(char::is_control) {
            return Err(PatternError::Control { text: text.to_owned() });
        }
        let mut text = text.replace('\\', "/");
        if text.ends_with('/') {
            text.push('*');
        }
        Ok(Self(text))
    }

    /// A pattern that matches exactly `path`.
    #[must_use]
    pub fn exactly(path: &RepoPath) -> Self {
        let quoted = path.as_str().chars().map(|c| match c {
            '*' | '?' | '[' => format!("[{c}]"),
            _ => c.to_string(),
        });
        Self(quoted.collect())
    }

    /// Whether the pattern matches the whole path.
    #[must_use]
    pub fn matches(&self, path: &RepoPath) -> bool {
        let pattern: Vec<char> = self.0.chars().collect();
        let name: Vec<char> = path.as_str().chars().collect();
        glob(&pattern, &name)
    }

    /// The normal form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Pattern {
    type Error = PatternError;
    fn try_from(text: String) -> Result<Self, PatternError> {
        Self::parse(&text)
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.0
    }
}

/// Include and exclude patterns. The default selects everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl Selection {
    /// A selection; the order of patterns and repeats do not matter.
    #[must_use]
    pub fn new(mut include: Vec<Pattern>, mut exclude: Vec<Pattern>) -> Self {
        for list in [&mut include, &mut exclude] {
            list.sort();
            list.dedup();
        }
        Self { include, exclude }
    }

    /// Whether the file was asked for.
    #[must_use]
    pub fn selects(&self, path: &RepoPath) -> bool {
        let any = |list: &[Pattern]| list.iter().any(|pattern| pattern.matches(path));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }

    /// Whether the whole repository was asked for.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// The include patterns.
    #[must_use]
    pub fn include(&self) -> &[Pattern] {
        &self.include
    }

    /// The exclude patterns.
    #[must_use]
    pub fn exclude(&self) -> &[Pattern] {
        &self.exclude
    }
}

impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_everything() {
            return f.write_str("everything");
        }
        let include = self.include.iter().map(|p| format!("--include {}", p.as_str()));
        let exclude = self.exclude.iter().map(|p| format!("--exclude {}", p.as_str()));
        f.write_str(&include.chain(exclude).collect::<Vec<_>>().join(" "))
    }
}

/// Backtracks only to the last star, so the cost is at most pattern × name.
fn glob(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, n));
                p += 1;
                continue;
            }
            Some('?') => Some(p + 1),
            Some('[') => class(pattern, p, name[n]),
            Some(&c) if c == name[n] => Some(p + 1),
            _ => None,
        };
        match (step, star) {
            (Some(next), _) => (p, n) = (next, n + 1),
            (None, Some((after, from))) => {
                (p, n) = (after, from + 1);
                star = Some((after, from + 1));
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

/// Matches the class that opens at `open`; the position after it when `c` is in it. A class
/// that never closes is a plain bracket; a first `]` belongs to the class; an inverted span
/// holds nothing.
fn class(pattern: &[char], open: usize, c: char) -> Option<usize> {
    let mut body = open + 1;
    let negated = pattern.get(body) == Some(&'!');
    if negated {
        body += 1;
    }
    let from = if pattern.get(body) == Some(&']') { body + 1 } else { body };
    let Some(close) = pattern.get(from..).and_then(|r| r.iter().position(|&x| x == ']')).map(|at| from + at) else {
        return (c == '[').then_some(open + 1);
    };
    let set = &pattern[body..close];
    let mut at = 0;
    let mut found = false;
    while at < set.len() {
        if at + 2 < set.len() && set[at + 1] == '-' {
            found |= (set[at]..=set[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= set[at] == c;
            at += 1;
        }
    }
    (found != negated).then_some(close + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(&RepoPath::parse(path).unwrap())
    }

    #[test]
    fn patterns_match_as_in_the_official_client() {
        for (pattern, path, expected) in [
            ("*.json", "config.json", true),
            ("*.json", "a/b/config.json", true),
            ("*.json", "config.JSON", false),
            ("*", "a/b", true),
            ("a/", "a/b/c", true),
            ("a/", "b/a/c", false),
            ("a\\*", "a/b", true),
            ("model-0000?-of-*.safetensors", "model-00001-of-00002.safetensors", true),
            ("[ab].txt", "b.txt", true),
            ("[!ab].txt", "b.txt", false),
            ("[!ab].txt", "c.txt", true),
            ("[a-c]x", "bx", true),
            ("[c-a]x", "bx", false),
            ("[]]x", "]x", true),
            ("[x", "[x", true),
            ("x[", "x[", true),
            ("{a,b}", "a", false),
            ("**/x", "a/x", true),
            ("**/x", "x", false),
            ("", "x", false),
        ] {
            if pattern.is_empty() {
                assert_eq!(Pattern::parse(pattern), Err(PatternError::Empty));
            } else {
                assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
            }
        }
    }

    #[test]
    fn many_stars_cost_little() {
        assert!(!matches(&"*a".repeat(200), &format!("{}b", "a".repeat(250))));
    }

    #[test]
    fn an_exact_pattern_matches_its_own_name_only() {
        let path = RepoPath::parse("a*[b]?.txt").unwrap();
        assert!(Pattern::exactly(&path).matches(&path));
        assert!(!Pattern::exactly(&path).matches(&RepoPath::parse("aX[b]?.txt").unwrap()));
    }

    #[test]
    fn exclude_wins_over_include() {
        let parse = |text| vec![Pattern::parse(text).unwrap()];
        let selection = Selection::new(parse("*.json"), parse("tok*"));
        assert!(selection.selects(&RepoPath::parse("config.json").unwrap()));
        assert!(!selection.selects(&RepoPath::parse("tokenizer.json").unwrap()));
        assert!(!selection.selects(&RepoPath::parse("x.bin").unwrap()));
    }
}
