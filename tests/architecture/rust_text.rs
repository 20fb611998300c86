//! Reads Rust as far as the rules of the architecture need it: tokens with their lines, and paths.
//!
//! Invariant: comments and literals yield no token, and a `use` group is spelled out path by path.
//! It must not judge: what is allowed where is said in `architecture.rs`.

/// A path as written (`std::fs::read`), with the groups of a `use` spelled out.
#[derive(Debug)]
pub(crate) struct CodePath<'a> {
    pub(crate) line: usize,
    pub(crate) segments: Vec<&'a str>,
}

impl CodePath<'_> {
    /// Whether `name` occurs in it: a crate or `std::…` at its start, `Type::function` anywhere.
    /// A lone word is no path: a variable may be called `rand`.
    pub(crate) fn names(&self, name: &str) -> bool {
        let wanted: Vec<_> = name.split("::").collect();
        let rooted = !name.starts_with(char::is_uppercase);
        let mut windows = self.segments.windows(wanted.len());
        let alone = self.segments.len() == 1;
        !alone && if rooted { windows.next() == Some(&wanted[..]) } else { windows.any(|window| window == wanted) }
    }
}

pub(crate) fn paths<'a>(tokens: &[Token<'a>]) -> Vec<CodePath<'a>> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let after_dot = at > 0 && tokens[at - 1].text == ".";
        at = if is_identifier(token.text) && !after_dot { path_tree(tokens, at, &[], &mut found) } else { at + 1 };
    }
    found
}

/// Reads one path or `use` tree that starts at `at`; returns where it ends.
fn path_tree<'a>(tokens: &[Token<'a>], mut at: usize, prefix: &[&'a str], found: &mut Vec<CodePath<'a>>) -> usize {
    let line = tokens[at].line;
    let mut segments = prefix.to_vec();
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    loop {
        segments.push(text(at));
        at += 1;
        if text(at) != "::" {
            break;
        }
        at += 1;
        if text(at) == "{" {
            at += 1;
            while at < tokens.len() && text(at) != "}" {
                at = if is_identifier(text(at)) && text(at) != "as" {
                    path_tree(tokens, at, &segments, found)
                } else {
                    at + 1
                };
            }
            return at + 1;
        }
        if !is_identifier(text(at)) && text(at) != "*" {
            break;
        }
    }
    found.push(CodePath { line, segments });
    at
}

/// An identifier, a number, `::`, or one character; its line counts from 1.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// The code without white space, comments and literals.
pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let skipped = skipped_length(rest);
        let length = match skipped {
            Some(length) => length,
            None if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            None if rest.starts_with("::") => 2,
            None => first.len_utf8(),
        };
        let (taken, left) = rest.split_at(length.min(rest.len()));
        if skipped.is_none() && !first.is_whitespace() {
            found.push(Token { text: taken, line });
        }
        line += taken.matches('\n').count();
        rest = left;
    }
    found
}

/// The length of the comment or literal that `rest` starts with, if it does.
fn skipped_length(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(block_comment_length(rest));
    }
    let unprefixed = ["br", "cr", "r"].iter().find_map(|prefix| rest.strip_prefix(prefix));
    if let Some(raw) = unprefixed {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let start = rest.len() - raw.len() + hashes + 1;
            let close = format!("\"{}", "#".repeat(hashes));
            let end = rest[start..].find(&close);
            return Some(end.map_or(rest.len(), |end| start + end + close.len()));
        }
    }
    let mut letters = rest.chars();
    match (letters.next()?, letters.next(), letters.next()) {
        ('"', ..) => Some(quoted_length(rest, '"')),
        ('\'', Some('\\'), _) | ('\'', Some(_), Some('\'')) => Some(quoted_length(rest, '\'')),
        _ => None,
    }
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0usize;
    for (at, _) in rest.char_indices() {
        if rest[at..].starts_with("/*") {
            depth += 1;
        } else if rest[at..].starts_with("*/") {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                return at + 2;
            }
        }
    }
    rest.len()
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if letter == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

pub(crate) fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
