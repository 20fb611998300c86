//! The token: where it comes from, and the one place that decides where it may go.
//!
//! Invariant (P7): a [`Token`] prints as nothing, and leaves only as the header that
//! [`Credential::header_for`] makes for the origin it was configured for. This module is the
//! home of the environment variables and files that hold tokens; nothing else may read them.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "the one home of token variables and files")]

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use reqwest::header::HeaderValue;
use thiserror::Error;
use url::Url;

use crate::core::endpoint::{Endpoint, Origin};

/// Most of a token file that is read, in bytes.
const TOKEN_FILE_MAX: u64 = 64 * 1024;

/// Why no token could be taken from where one was promised.
#[derive(Debug, Error)]
pub enum TokenError {
    /// A file that was named, or is in a place for tokens, cannot be read.
    #[error("cannot read the token file {}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file named by the user has no token in it.
    #[error("the token file {} is empty", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// Something no HTTP header can carry.
    #[error("what {place} holds is no token: it has characters other than visible ASCII")]
    Illegal {
        /// The variable or file.
        place: TokenPlace,
    },
}

/// Where a token was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenPlace {
    /// An environment variable.
    Variable(&'static str),
    /// A file.
    File(PathBuf),
    /// Sent along with a request to the daemon.
    Submitted,
}

impl fmt::Display for TokenPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Submitted => f.write_str("the request"),
        }
    }
}

/// An access token of a Hub. It cannot be printed.
#[derive(Clone)]
pub struct Token {
    secret: String,
    place: TokenPlace,
}

impl Token {
    /// Takes the text found at `place`; blanks and line ends around it do not count, and
    /// nothing else is none.
    ///
    /// # Errors
    /// [`TokenError::Illegal`] names the place, never the text.
    pub fn parse(text: &str, place: TokenPlace) -> Result<Option<Self>, TokenError> {
        let secret = text.trim();
        if secret.is_empty() {
            return Ok(None);
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Illegal { place });
        }
        Ok(Some(Self { secret: secret.to_owned(), place }))
    }

    /// The text itself, for the one hand-over there is: from `pull` to the owner of the volume, by
    /// a socket of this machine.
    #[must_use]
    pub fn hand_over(&self) -> &str {
        &self.secret
    }

    /// Where it was found.
    #[must_use]
    pub const fn place(&self) -> &TokenPlace {
        &self.place
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token").field("place", &self.place).finish_non_exhaustive()
    }
}

/// A token together with the only origin it may be sent to.
#[derive(Clone)]
pub struct Credential {
    token: Token,
    header: HeaderValue,
    origin: Origin,
}

impl Credential {
    /// Binds a token to its endpoint. None for an endpoint that may not be sent one: plain
    /// http to another machine.
    #[must_use]
    pub fn bind(token: Token, endpoint: &Endpoint) -> Option<Self> {
        if !endpoint.may_carry_token() {
            return None;
        }
        let mut header = HeaderValue::try_from(format!("Bearer {}", token.secret)).ok()?;
        header.set_sensitive(true);
        Some(Self { token, header, origin: endpoint.origin() })
    }

    /// The `Authorization` header for a request to `url`: only for exactly the origin the
    /// token belongs to.
    #[must_use]
    pub fn header_for(&self, url: &Url) -> Option<HeaderValue> {
        (Origin::of(url) == self.origin).then(|| self.header.clone())
    }

    /// `text` without the token, should a server have sent it back.
    #[must_use]
    pub fn scrub(&self, text: &str) -> String {
        text.replace(&self.token.secret, "…")
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential").field("token", &self.token).field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// What [`discover_in`] looks at, so that a test can give it another world.
pub struct Surroundings<'a> {
    /// The value of an environment variable.
    pub var: &'a dyn Fn(&str) -> Option<String>,
    /// The text of a file.
    pub read: &'a dyn Fn(&Path) -> io::Result<String>,
}

/// Finds the token of this process: the file named by `--token-file`, `HF_TOKEN`,
/// `HUGGING_FACE_HUB_TOKEN`, the file named by `HF_TOKEN_PATH`, `$HF_HOME/token` (or the
/// default home's), `$CREDENTIALS_DIRECTORY/hf_token`; the first that holds one.
/// With `HF_HUB_DISABLE_IMPLICIT_TOKEN` only the first counts.
///
/// # Errors
/// [`TokenError`] when the named file cannot be used or what was found is no token.
pub fn discover(token_file: Option<&Path>) -> Result<Option<Token>, TokenError> {
    let var = |name: &str| std::env::var(name).ok();
    discover_in(token_file, &Surroundings { var: &var, read: &read_token_file })
}

/// [`discover`], looking at the given surroundings.
///
/// # Errors
/// As [`discover`].
pub fn discover_in(token_file: Option<&Path>, around: &Surroundings<'_>) -> Result<Option<Token>, TokenError> {
    if let Some(path) = token_file {
        let unreadable = |source| TokenError::Unreadable { path: path.to_owned(), source };
        let text = (around.read)(path).map_err(unreadable)?;
        let token = Token::parse(&text, TokenPlace::File(path.to_owned()))?;
        return token.map(Some).ok_or_else(|| TokenError::Empty { path: path.to_owned() });
    }
    if set(around, "HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|text| is_true(&text)) {
        return Ok(None);
    }
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        let Some(text) = (around.var)(name) else { continue };
        if let Some(token) = Token::parse(&text, TokenPlace::Variable(name))? {
            return Ok(Some(token));
        }
    }
    for path in token_paths(around) {
        if let Some(token) = implicit_file(&path, around)? {
            return Ok(Some(token));
        }
    }
    Ok(None)
}

/// The files a token may be in, in order. Without a home there are fewer of them.
fn token_paths(around: &Surroundings<'_>) -> Vec<PathBuf> {
    let own = set(around, "HF_TOKEN_PATH").map(|text| expand(&text, around));
    let home = set(around, "HF_HOME")
        .map(|text| expand(&text, around))
        .or_else(|| set(around, "XDG_CACHE_HOME").map(|text| expand(&text, around).join("huggingface")))
        .or_else(|| set(around, "HOME").map(|home| PathBuf::from(home).join(".cache/huggingface")));
    // The token of a home lies beside its cache, wherever that convention may move.
    let stored = home.map(|home| hf_hub::Cache::new(home.join("hub")).token_path());
    let credential = set(around, "CREDENTIALS_DIRECTORY").map(|text| PathBuf::from(text).join("hf_token"));
    own.or(stored).into_iter().chain(credential).collect()
}

fn implicit_file(path: &Path, around: &Surroundings<'_>) -> Result<Option<Token>, TokenError> {
    match (around.read)(path) {
        Ok(text) => Token::parse(&text, TokenPlace::File(path.to_owned())),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        // A home that belongs to somebody else is common in containers, and no reason not to
        // fetch a public model.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(path = %path.display(), "the token file may not be read; going on without a token");
            Ok(None)
        }
        Err(source) => Err(TokenError::Unreadable { path: path.to_owned(), source }),
    }
}

fn read_token_file(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(path)?.take(TOKEN_FILE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A variable that is there and not blank.
fn set(around: &Surroundings<'_>, name: &str) -> Option<String> {
    (around.var)(name).filter(|text| !text.trim().is_empty())
}

/// The Hub tools' reading of a switch.
fn is_true(text: &str) -> bool {
    ["1", "ON", "YES", "TRUE"].iter().any(|word| text.trim().eq_ignore_ascii_case(word))
}

/// `~` at the start and `$NAME` or `${NAME}` anywhere, as the Hub's tools expand their paths;
/// an unknown variable stays as it is written.
fn expand(text: &str, around: &Surroundings<'_>) -> PathBuf {
    let home = (text == "~" || text.starts_with("~/")).then(|| set(around, "HOME")).flatten();
    let text = home.map_or_else(|| text.to_owned(), |home| format!("{home}{}", &text[1..]));
    let (mut out, mut rest) = (String::new(), text.as_str());
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let word = |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
        let (name, used) = match after.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some((name, _)) => (name, name.len() + 2),
            None => (&after[..word(after)], word(after)),
        };
        match set(around, name) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&rest[at..=at + used]),
        }
        rest = &after[used..];
    }
    out.push_str(rest);
    PathBuf::from(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    type World<'a> = (&'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)]);

    fn find(file: Option<&str>, (vars, files): World<'_>) -> Result<Option<Token>, TokenError> {
        let look = |table: &[(&str, &str)], key: &str| {
            table.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        };
        let var = |name: &str| look(vars, name);
        let read = |path: &Path| look(files, path.to_str().unwrap()).ok_or_else(|| io::ErrorKind::NotFound.into());
        discover_in(file.map(Path::new), &Surroundings { var: &var, read: &read })
    }

    fn secret(world: World<'_>) -> Option<String> {
        find(None, world).unwrap().map(|token| token.secret)
    }

    #[test]
    fn the_first_place_that_holds_a_token_wins() {
        let mut vars = vec![
            ("HF_TOKEN", "one"),
            ("HUGGING_FACE_HUB_TOKEN", "two"),
            ("HF_TOKEN_PATH", "/t"),
            ("HF_HOME", "/hf"),
            ("CREDENTIALS_DIRECTORY", "/cred"),
        ];
        let files = [("/t", "three\n"), ("/hf/token", "four"), ("/cred/hf_token", "five"), ("/f", " zero\r\n")];
        assert_eq!(find(Some("/f"), (&vars, &files)).unwrap().unwrap().secret, "zero");
        for expected in ["one", "two", "three", "four", "five"] {
            assert_eq!(secret((&vars, &files)).as_deref(), Some(expected));
            vars.remove(0);
        }
        assert_eq!(secret((&vars, &files)), None);
    }

    #[test]
    fn blank_values_count_as_none() {
        let vars = [("HF_TOKEN", " \r\n"), ("HF_HOME", ""), ("HOME", "/home/u")];
        assert_eq!(secret((&vars, &[("/home/u/.cache/huggingface/token", "kept\r\n")])).as_deref(), Some("kept"));
        assert_eq!(secret((&vars, &[("/home/u/.cache/huggingface/token", "\n")])), None);
    }

    #[test]
    fn a_switched_off_implicit_token_leaves_only_the_named_file() {
        for (value, expected) in
            [("1", false), ("on", false), ("Yes", false), ("TRUE", false), ("0", true), ("no", true)]
        {
            let vars = [("HF_TOKEN", "one"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", value)];
            assert_eq!(secret((&vars, &[])).is_some(), expected, "{value}");
            assert!(find(Some("/f"), (&vars, &[("/f", "zero")])).unwrap().is_some());
        }
    }

    #[test]
    fn no_home_is_no_panic() {
        assert_eq!(secret((&[], &[])), None);
        assert_eq!(secret((&[("HF_HOME", "~/x")], &[("~/x/token", "t")])).as_deref(), Some("t"));
    }

    #[test]
    fn paths_are_expanded_as_the_hubs_tools_do() {
        let vars = [("HOME", "/h"), ("NAME", "n"), ("HF_HOME", "~/a/$NAME-${NAME}/$NONE")];
        assert_eq!(secret((&vars, &[("/h/a/n-n/$NONE/token", "t")])).as_deref(), Some("t"));
        let vars = [("HF_TOKEN_PATH", "$"), ("X", "x")];
        assert_eq!(secret((&vars, &[("$", "t")])).as_deref(), Some("t"));
        let vars = [("XDG_CACHE_HOME", "/x")];
        assert_eq!(secret((&vars, &[("/x/huggingface/token", "t")])).as_deref(), Some("t"));
    }

    #[test]
    fn a_named_file_must_hold_a_token() {
        assert!(matches!(find(Some("/none"), (&[], &[])), Err(TokenError::Unreadable { .. })));
        assert!(matches!(find(Some("/f"), (&[], &[("/f", " \n")])), Err(TokenError::Empty { .. })));
    }

    #[test]
    fn an_illegal_token_is_never_printed() {
        for text in ["hf_sec ret", "hf_sec\u{1}ret", "hf_secrét", "hf_sec\nret"] {
            let error = find(None, (&[("HF_TOKEN", text)], &[])).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains("HF_TOKEN") && !shown.contains("hf_sec"), "{shown}");
        }
        let token = Token::parse("hf_secret", TokenPlace::Submitted).unwrap().unwrap();
        let bound = Credential::bind(token.clone(), &Endpoint::parse("https://hub.example").unwrap()).unwrap();
        let shown =
            format!("{token:?} {bound:?} {:?}", bound.header_for(&Url::parse("https://hub.example/x").unwrap()));
        assert!(!shown.contains("secret"), "{shown}");
        assert_eq!(bound.scrub("you sent hf_secret!"), "you sent …!");
    }

    #[test]
    fn a_token_is_for_exactly_one_origin() {
        let token = || Token::parse("t", TokenPlace::Submitted).unwrap().unwrap();
        let bound = Credential::bind(token(), &Endpoint::parse("https://hub.example/base").unwrap()).unwrap();
        for (url, expected) in [
            ("https://hub.example/api", true),
            ("https://HUB.example:443/x?y", true),
            ("http://hub.example/api", false),
            ("https://hub.example:8443/api", false),
            ("https://cdn.hub.example/api", false),
            ("https://hub.example.evil/api", false),
            ("https://hub.example@evil.example/", false),
        ] {
            assert_eq!(bound.header_for(&Url::parse(url).unwrap()).is_some(), expected, "{url}");
        }
        assert!(Credential::bind(token(), &Endpoint::parse("http://hub.example").unwrap()).is_none());
        assert!(Credential::bind(token(), &Endpoint::parse("http://127.0.0.1:9").unwrap()).is_some());
    }
}
