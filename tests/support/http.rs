//! HTTP messages as values: a parsed request, and an answer that behaviours can still spoil.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde_json::json;

use super::record::find_header;
use super::repo::FileSpec;

#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// Percent-decoded as a whole, for matching and reading.
    pub path: String,
    /// Path segments, each percent-decoded by itself: `refs%2Fpr%2F1` is one.
    pub segments: Vec<String>,
    /// As sent, without the question mark.
    pub query: String,
    pub headers: Vec<(String, String)>,
}

impl Request {
    /// Parses a request head; none if it is not HTTP/1.
    pub fn parse(head: &str) -> Option<Self> {
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, target, version) = (first.next()?, first.next()?, first.next()?);
        if !version.starts_with("HTTP/1.") {
            return None;
        }
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        // A proxy is asked for absolute URLs.
        let local =
            target.strip_prefix("http://").map_or(target, |rest| rest.find('/').map_or("/", |slash| &rest[slash..]));
        let (path, query) = local.split_once('?').unwrap_or((local, ""));
        Some(Self {
            method: method.to_owned(),
            target: local.to_owned(),
            path: decode(path),
            segments: path.split('/').skip(1).map(decode).collect(),
            query: query.to_owned(),
            headers,
        })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }

    /// A query parameter, percent-decoded.
    pub fn parameter(&self, name: &str) -> Option<String> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.into_iter().find(|(n, _)| *n == name).map(|(_, value)| decode(value))
    }

    /// `bytes=first-last` or `bytes=first-`; other forms are not ranges here.
    pub fn range(&self) -> Option<(u64, Option<u64>)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
        let first = first.parse().ok()?;
        last.is_none_or(|last| first <= last).then_some((first, last))
    }
}

#[derive(Clone, Debug)]
pub enum Body {
    Bytes(Vec<u8>),
    /// `start..end` of a file, with the bytes at `flips` (offsets in the file) inverted.
    File {
        file: FileSpec,
        start: u64,
        end: u64,
        flips: Vec<u64>,
    },
}

impl Body {
    pub fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File { start, end, .. } => end - start,
        }
    }

    /// Fills `buf` with the bytes from `offset` of the body; zeros beyond its end.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) {
        buf.fill(0);
        let n = self.len().saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..n];
        match self {
            Self::Bytes(bytes) => {
                if n > 0 {
                    buf.copy_from_slice(&bytes[offset as usize..][..n]);
                }
            }
            Self::File { file, start, flips, .. } => {
                let from = start + offset;
                if n > 0 {
                    file.content.read_at(from, buf);
                }
                for flip in flips.iter().filter(|flip| (from..from + n as u64).contains(flip)) {
                    buf[(flip - from) as usize] ^= 0xff;
                }
            }
        }
    }
}

/// How the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// `Content-Length` of body and extra bytes.
    Honest,
    Length(u64),
    Chunked,
}

/// What becomes of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Close,
    Reset,
    Stall,
}

#[derive(Clone, Debug)]
pub enum Instead {
    Raw(Vec<u8>, Ending),
    End(Ending),
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Body,
    pub framing: Framing,
    /// After so many body bytes the connection ends in that way.
    pub cut: Option<(u64, Ending)>,
    /// Bytes after the body.
    pub extra: u64,
    /// Body bytes a second.
    pub pace: Option<u64>,
    pub delay: Duration,
    pub instead: Option<Instead>,
}

impl Response {
    pub fn new(status: u16, body: Body) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body,
            framing: Framing::Honest,
            cut: None,
            extra: 0,
            pace: None,
            delay: Duration::ZERO,
            instead: None,
        }
    }

    pub fn json(status: u16, value: &serde_json::Value) -> Self {
        Self::new(status, Body::Bytes(value.to_string().into_bytes()))
            .with("Content-Type", "application/json; charset=utf-8")
    }

    /// A refusal in the Hub's form: code and message in headers, message in the body.
    pub fn error(status: u16, code: Option<&str>, message: &str) -> Self {
        let mut response = Self::json(status, &json!({ "error": message }));
        if let Some(code) = code {
            response.set_header("X-Error-Code", code);
        }
        response.with("X-Error-Message", message)
    }

    pub fn redirect(status: u16, location: &str) -> Self {
        let body = format!("Found. Redirecting to {location}");
        Self::new(status, Body::Bytes(body.into_bytes()))
            .with("Location", location)
            .with("Content-Type", "text/plain; charset=utf-8")
    }

    /// The file under the request's range: 200, 206 or 416; `etag` is given without quotes.
    pub fn file(file: &FileSpec, etag: &str, request: &Request) -> Self {
        let size = file.content.len();
        let quoted = format!("\"{etag}\"");
        let stale = request.header("if-range").is_some_and(|condition| condition != quoted);
        let asked = request.header("range").filter(|_| !stale);
        let whole = Body::File { file: file.clone(), start: 0, end: size, flips: Vec::new() };
        let mut response = match (asked, request.range()) {
            (Some(_), Some((first, last))) if first < size => {
                let end = last.map_or(size, |last| size.min(last.saturating_add(1)));
                let flips = Vec::new();
                let body = Body::File { file: file.clone(), start: first, end, flips };
                let mut response = Self::new(206, body);
                response.content_range("bytes", first, end, &size.to_string());
                response
            }
            // Several ranges at once: servers may answer with the whole.
            (Some(range), None) if range.contains(',') => Self::new(200, whole),
            (Some(_), _) => Self::new(416, Body::Bytes(b"range not satisfiable\n".to_vec()))
                .with("Content-Range", &format!("bytes */{size}")),
            (None, _) => Self::new(200, whole),
        };
        response.set_header("ETag", &quoted);
        response.with("Accept-Ranges", "bytes").with("Content-Type", "application/octet-stream")
    }

    /// Turns into 200 with all of the file; headers other than `Content-Range` stay.
    pub fn become_whole(&mut self, file: &FileSpec) {
        self.status = 200;
        self.drop_header("Content-Range");
        let end = file.content.len();
        self.body = Body::File { file: file.clone(), start: 0, end, flips: Vec::new() };
    }

    /// Lets the body end after so many bytes.
    pub fn shorten(&mut self, len: u64) {
        match &mut self.body {
            Body::Bytes(bytes) => bytes.truncate(len as usize),
            Body::File { start, end, .. } => *end = (*end).min(*start + len),
        }
    }

    /// Sets `Content-Range` for the half-open `start..end`.
    pub fn content_range(&mut self, unit: &str, start: u64, end: u64, total: &str) {
        let value = format!("{unit} {start}-{}/{total}", end.saturating_sub(1));
        self.set_header("Content-Range", &value);
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.set_header(name, value);
        self
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        find_header(&self.headers, name)
    }

    pub fn set_header(&mut self, name: &str, value: &str) {
        self.drop_header(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    pub fn drop_header(&mut self, name: &str) {
        self.headers.retain(|(n, _)| !n.eq_ignore_ascii_case(name));
    }

    /// The head as it goes on the wire, with the framing header last.
    pub fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.header("content-length").is_none() {
            match self.framing {
                Framing::Honest => {
                    let len = self.body.len() + self.extra;
                    head.push_str(&format!("Content-Length: {len}\r\n"));
                }
                Framing::Length(len) => head.push_str(&format!("Content-Length: {len}\r\n")),
                Framing::Chunked => head.push_str("Transfer-Encoding: chunked\r\n"),
            }
        }
        head.push_str("\r\n");
        head
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        302 => "Found",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        _ => "Status",
    }
}
