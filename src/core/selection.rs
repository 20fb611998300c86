//! Which files of a repository were asked for.
//!
//! The matching rules are those of the official client, so that a pattern means the same in
//! both: Python's case-sensitive `fnmatch` over the whole path, where `*` and `?` cross `/`,
//! `[…]` and `[!…]` are classes, a pattern that ends in `/` gets a `*`, and `\` is `/`. A file
//! is kept when any include matches (or there is none) and no exclude does.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::repo_path::{PATH_MAX, RepoPath};

/// Longest pattern, in characters: that which means exactly the longest path.
const PATTERN_MAX: usize = 3 * PATH_MAX;

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
pub struct Pattern {
    text: String,
    /// What the text means; taken apart once, since a class costs a search for its end.
    tokens: Vec<Token>,
}

/// What one place of a pattern matches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    /// Any characters, or none.
    Run,
    /// Any one character.
    Any,
    /// This character.
    Is(char),
    /// A character from one of these spans, or from none of them.
    Class { negated: bool, spans: Vec<(char, char)> },
}

impl Pattern {
    /// Parses a glob.
    ///
    /// # Errors
    /// [`PatternError`].
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if text.chars().any(char::is_control) {
            return Err(PatternError::Control { text: text.to_owned() });
        }
        let mut text = text.replace('\\', "/");
        if text.ends_with('/') {
            text.push('*');
        }
        // Of the normal form, which has to be readable again.
        let len = text.chars().count();
        if len > PATTERN_MAX {
            return Err(PatternError::TooLong { len });
        }
        Ok(Self::of(text))
    }

    /// A pattern that matches exactly `path`.
    #[must_use]
    pub fn exactly(path: &RepoPath) -> Self {
        let quoted = path.as_str().chars().map(|c| match c {
            '*' | '?' | '[' => format!("[{c}]"),
            _ => c.to_string(),
        });
        Self::of(quoted.collect())
    }

    fn of(text: String) -> Self {
        let tokens = tokens(&text.chars().collect::<Vec<_>>());
        Self { text, tokens }
    }

    /// Whether the pattern matches the whole path.
    #[must_use]
    pub fn matches(&self, path: &RepoPath) -> bool {
        self.matches_name(path.as_str())
    }

    /// Whether the pattern matches the whole of a name that may be no path of a repository.
    #[must_use]
    pub fn matches_name(&self, name: &str) -> bool {
        self.fits(&name.chars().collect::<Vec<_>>())
    }

    /// The normal form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn fits(&self, name: &[char]) -> bool {
        glob(&self.tokens, name)
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
        pattern.text
    }
}

/// Include and exclude patterns. The default selects everything.
///
/// Invariant: both lists are sorted and hold nothing twice, so equal selections are equal values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Lists")]
pub struct Selection {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

/// A [`Selection`] as somebody wrote it.
#[derive(Deserialize)]
struct Lists {
    include: Vec<Pattern>,
    exclude: Vec<Pattern>,
}

impl From<Lists> for Selection {
    fn from(lists: Lists) -> Self {
        Self::new(lists.include, lists.exclude)
    }
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
        if self.is_everything() {
            return true;
        }
        let name: Vec<char> = path.as_str().chars().collect();
        let any = |list: &[Pattern]| list.iter().any(|pattern| pattern.fits(&name));
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

/// Backtracks only to the last run, so the cost is at most pattern × name.
fn glob(pattern: &[Token], name: &[char]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut run: Option<(usize, usize)> = None;
    while n < name.len() {
        let fits = match pattern.get(p) {
            Some(Token::Run) => {
                p += 1;
                run = Some((p, n));
                continue;
            }
            Some(Token::Any) => true,
            Some(Token::Is(c)) => *c == name[n],
            Some(Token::Class { negated, spans }) => {
                spans.iter().any(|(from, to)| (from..=to).contains(&&name[n])) != *negated
            }
            None => false,
        };
        match run {
            _ if fits => (p, n) = (p + 1, n + 1),
            Some((after, from)) => {
                (p, n) = (after, from + 1);
                run = Some((after, from + 1));
            }
            None => return false,
        }
    }
    pattern[p..].iter().all(|token| *token == Token::Run)
}

fn tokens(pattern: &[char]) -> Vec<Token> {
    let last_close = pattern.iter().rposition(|c| *c == ']').unwrap_or(0);
    let (mut tokens, mut at) = (Vec::with_capacity(pattern.len()), 0);
    while let Some(c) = pattern.get(at) {
        let (token, used) = match c {
            '*' => (Token::Run, 1),
            '?' => (Token::Any, 1),
            '[' if at < last_close => class(&pattern[at..]).unwrap_or((Token::Is('['), 1)),
            c => (Token::Is(*c), 1),
        };
        tokens.push(token);
        at += used;
    }
    tokens
}

/// The class that opens the pattern, and its length. A class that never closes is a plain bracket;
/// a first `]` belongs to the class; an inverted span holds nothing.
fn class(pattern: &[char]) -> Option<(Token, usize)> {
    let negated = pattern.get(1) == Some(&'!');
    let body = if negated { 2 } else { 1 };
    let from = if pattern.get(body) == Some(&']') { body + 1 } else { body };
    let close = from + pattern.get(from..)?.iter().position(|c| *c == ']')?;
    let (mut spans, mut set) = (Vec::new(), &pattern[body..close]);
    while let [first, rest @ ..] = set {
        if let ['-', last, rest @ ..] = rest {
            spans.push((*first, *last));
            set = rest;
        } else {
            spans.push((*first, *first));
            set = rest;
        }
    }
    Some((Token::Class { negated, spans }, close + 1))
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
    fn brackets_that_never_close_cost_little() {
        let brackets = "[".repeat(PATTERN_MAX - 1);
        let path = ["[".repeat(255), "[".repeat(255)].join("/") + &"/x".repeat(1000);
        assert!(!matches(&format!("*{brackets}"), &path));
        assert!(!matches(&format!("{}]", &brackets[1..]), &path));
    }

    #[test]
    fn every_pattern_that_can_be_made_can_be_read_again() {
        let longest = "*".repeat(PATTERN_MAX - 1);
        let paths =
            ["a".repeat(200) + "/", "*".repeat(255) + "/", "[".repeat(255) + "/"].map(|part| part.repeat(11) + "x");
        let exact = paths.iter().map(|path| Pattern::exactly(&RepoPath::parse(path).unwrap()));
        for pattern in exact.chain([Pattern::parse(&format!("{}/", &longest[1..])).unwrap()]) {
            let json = serde_json::to_string(&pattern).unwrap();
            assert_eq!(serde_json::from_str::<Pattern>(&json).unwrap(), pattern);
        }
        assert_eq!(Pattern::parse(&format!("{longest}/")), Err(PatternError::TooLong { len: PATTERN_MAX + 1 }));
    }

    #[test]
    fn a_selection_that_was_written_in_any_order_is_the_same_one() {
        let pattern = |text: &str| Pattern::parse(text).unwrap();
        let written = r#"{"include": ["b", "a", "b"], "exclude": ["d", "c"]}"#;
        let read: Selection = serde_json::from_str(written).unwrap();
        assert_eq!(read, Selection::new(vec![pattern("a"), pattern("b")], vec![pattern("c"), pattern("d")]));
        assert_eq!(read.include().len(), 2);
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
