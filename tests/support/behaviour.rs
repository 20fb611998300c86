//! The wire traps: each changes the right answer of the hub into a wrong one.

use std::time::{Duration, SystemTime};

use super::http::{Body, Ending, Framing, Instead, Request, Response};
use super::record::Origin;
use super::repo::FileSpec;

/// An answer given in place of the hub's own.
#[derive(Clone, Debug)]
pub struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Reply {
    pub fn status(status: u16) -> Self {
        Self { status, headers: Vec::new(), body: Vec::new() }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, content_type: &str, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self.header("Content-Type", content_type)
    }
}

/// Offsets and lengths are in bytes; "body bytes" count from the start of this answer's body. What
/// speaks of files or ranges changes 2xx answers only; a rule for something else uses up its play.
#[derive(Clone, Debug)]
pub enum Behaviour {
    /// The right answer; lets a queue spare a request.
    Pass,
    Answer(Reply),
    /// These very bytes instead of an answer, then a close.
    Raw(Vec<u8>),
    /// These very bytes instead of an answer, then that end.
    RawThen(Vec<u8>, Ending),
    CloseWithoutAnswer,
    ResetWithoutAnswer,
    StallBeforeHeaders,
    DelayHeaders(Duration),
    /// The full length is announced, so many body bytes come, then a clean close.
    ShortBody(u64),
    /// As `ShortBody`, but `Content-Length` admits it; `Content-Range` still says all.
    HonestShortBody(u64),
    /// The body ends after so many bytes, in good form: `Content-Length` says so, or the last chunk
    /// comes. `Content-Range` still says all.
    EndEarly(u64),
    /// As if the server's own file broke off at this offset: no byte from there on ever comes.
    StuckAt(u64),
    /// So many body bytes arrive, then a TCP reset.
    ResetAfter(u64),
    /// No byte of the file from this offset on ever comes, however often it is asked for: silence
    /// until the peer or the hub goes.
    StallAt(u64),
    /// So many body bytes, then silence until the peer or the hub goes.
    StallAfter(u64),
    /// The right bytes under a `Content-Range` moved by so much.
    ShiftedContentRange(i64),
    /// A truthful 206 that starts so many bytes after what was asked.
    WrongStart(u64),
    NoContentRange,
    /// `Content-Range` with this total.
    WrongTotal(u64),
    /// `Content-Range: Bytes a-b/n`.
    CapitalBytes,
    /// `Content-Range: bytes a-b/*`.
    StarTotal,
    /// 200 and the whole file, whatever was asked.
    IgnoreRange,
    /// 206 with all of the file, whatever was asked.
    WholeAsPartial,
    /// The right head over bytes that lie so far behind (before, where the file ends) in the file.
    Mislabelled(u64),
    /// The first so many body bytes come twice; as many are missing at the end.
    Stutter(u64),
    /// The byte at this offset of the file is inverted, when this answer covers it.
    FlipByte(u64),
    /// So many bytes more, `Content-Length` included.
    LongBody(u64),
    /// So many bytes more than `Content-Length` says, then a close.
    Overrun(u64),
    /// 200, the whole file in gzip, chunked, whatever was asked.
    Gzip,
    /// The same body in chunked coding, without `Content-Length`.
    Chunked,
    /// Body bytes a second, for this answer.
    Pace(u64),
    Redirect {
        status: u16,
        location: String,
    },
    /// 307 to the very same URL.
    RedirectLoop,
    /// 307 to the same path on the other origin.
    RedirectToOtherPort,
    /// A page of a tree with so many files that no other page has, and the link to another such page.
    EndlessPages(u64),
    /// 200 with the LFS pointer text in place of the bytes.
    PointerBody,
    WeakEtag,
    /// Another `ETag`, given without quotes.
    ChangedEtag(String),
    /// Sets or replaces a header.
    SetHeader(String, String),
    DropHeader(String),
    /// Several, in order.
    All(Vec<Behaviour>),
}

impl Behaviour {
    pub fn status(status: u16) -> Self {
        Self::Answer(Reply::status(status).body("text/plain", format!("status {status}\n")))
    }

    /// 429 with `Retry-After` in seconds.
    pub fn too_many_requests(retry_after_s: u64) -> Self {
        Self::Answer(Reply::status(429).header("Retry-After", &retry_after_s.to_string()))
    }

    /// A status with `Retry-After` as an HTTP date.
    pub fn retry_at(status: u16, when: SystemTime) -> Self {
        Self::Answer(Reply::status(status).header("Retry-After", &httpdate::fmt_http_date(when)))
    }

    /// A status with `Retry-After` in seconds.
    pub fn retry_after(status: u16, seconds: u64) -> Self {
        Self::Answer(Reply::status(status).header("Retry-After", &seconds.to_string()))
    }

    /// 429 that only the `RateLimit` headers explain: nothing left in the bucket for so long.
    pub fn rate_limited(bucket: &str, reset_s: u64) -> Self {
        Self::Answer(
            Reply::status(429)
                .header("RateLimit", &format!("\"{bucket}\";r=0;t={reset_s}"))
                .header("RateLimit-Policy", &format!("\"fixed window\";\"{bucket}\";q=3000;w=300")),
        )
    }

    /// What a CDN says to an expired or wrong signature, or to much else.
    pub fn xml_403(code: &str, message: &str) -> Self {
        Self::Answer(Reply::status(403).body("application/xml", xml_error(code, message)))
    }

    /// 200 with a page in place of the bytes: a captive portal.
    pub fn html_page() -> Self {
        let page = "<!doctype html><html><body>Please sign in to the network</body></html>";
        Self::Answer(Reply::status(200).body("text/html; charset=utf-8", page))
    }

    pub fn set_header(name: &str, value: &str) -> Self {
        Self::SetHeader(name.to_owned(), value.to_owned())
    }

    pub fn drop_header(name: &str) -> Self {
        Self::DropHeader(name.to_owned())
    }

    pub(super) fn apply(self, to: &mut Response, at: &Place<'_>) {
        match self {
            Self::Pass => {}
            Self::All(all) => all.into_iter().for_each(|one| one.apply(to, at)),
            Self::Answer(reply) => {
                *to = Response::new(reply.status, Body::Bytes(reply.body));
                to.headers.extend(reply.headers);
            }
            Self::Raw(bytes) => to.instead = Some(Instead::Raw(bytes, Ending::Close)),
            Self::RawThen(bytes, ending) => to.instead = Some(Instead::Raw(bytes, ending)),
            Self::CloseWithoutAnswer => to.instead = Some(Instead::End(Ending::Close)),
            Self::ResetWithoutAnswer => to.instead = Some(Instead::End(Ending::Reset)),
            Self::StallBeforeHeaders => to.instead = Some(Instead::End(Ending::Stall)),
            Self::DelayHeaders(delay) => to.delay = delay,
            Self::ShortBody(n) => to.cut = Some((n, Ending::Close)),
            Self::HonestShortBody(n) => {
                to.framing = Framing::Length(n.min(to.body.len()));
                to.cut = Some((n, Ending::Close));
            }
            Self::EndEarly(n) => to.shorten(n),
            Self::EndlessPages(n) => endless(to, at.request, n),
            Self::ResetAfter(n) => to.cut = Some((n, Ending::Reset)),
            Self::StallAfter(n) => to.cut = Some((n, Ending::Stall)),
            Self::Pace(rate) => to.pace = Some(rate),
            Self::Chunked => to.framing = Framing::Chunked,
            Self::LongBody(n) => to.extra = n,
            Self::Overrun(n) => {
                to.framing = Framing::Length(to.body.len());
                to.extra = n;
                to.cut = Some((to.body.len() + n, Ending::Close));
            }
            Self::Redirect { status, location } => *to = Response::redirect(status, &location),
            Self::RedirectLoop => *to = Response::redirect(307, &at.request.target),
            Self::RedirectToOtherPort => {
                let location = format!("{}{}", at.other_origin, at.request.target);
                *to = Response::redirect(307, &location);
            }
            Self::WeakEtag => {
                let etag = format!("W/{}", to.header("ETag").unwrap_or("\"none\""));
                to.set_header("ETag", &etag);
            }
            Self::ChangedEtag(etag) => to.set_header("ETag", &format!("\"{etag}\"")),
            Self::SetHeader(name, value) => to.set_header(&name, &value),
            Self::DropHeader(name) => to.drop_header(&name),
            about_ranges => about_ranges.apply_to_file(to, at),
        }
    }

    /// The traps that need the file behind the answer.
    fn apply_to_file(self, to: &mut Response, at: &Place<'_>) {
        // Spoiling a refusal or a redirect would make it something else: it stays.
        if !(200..300).contains(&to.status) {
            return;
        }
        let Some(file) = at.file else {
            return at.misused(&self);
        };
        let size = file.content.len();
        match self {
            Self::IgnoreRange => to.become_whole(file),
            Self::WholeAsPartial => {
                to.become_whole(file);
                to.status = 206;
                to.content_range("bytes", 0, size, &size.to_string());
            }
            Self::PointerBody => {
                to.become_whole(file);
                to.body = Body::Bytes(file.pointer().into_bytes());
            }
            Self::Gzip => {
                to.become_whole(file);
                to.body = Body::Bytes(gzip(&file.content.to_vec()));
                to.set_header("Content-Encoding", "gzip");
                to.framing = Framing::Chunked;
            }
            other => {
                let Body::File { start, end, flips, .. } = &mut to.body else {
                    return at.misused(&other);
                };
                let (from, till) = (*start, *end);
                match other {
                    Self::FlipByte(offset) => flips.push(offset),
                    Self::StallAt(offset) => to.cut = Some((offset.saturating_sub(from), Ending::Stall)),
                    Self::StuckAt(offset) => to.cut = Some((offset.saturating_sub(from), Ending::Close)),
                    Self::Mislabelled(n) => {
                        let by = if till + n <= size { n as i64 } else { -(n.min(from) as i64) };
                        (*start, *end) = (from.saturating_add_signed(by), till.saturating_add_signed(by));
                    }
                    Self::Stutter(n) => {
                        let mut bytes = file.content.slice(from, till);
                        bytes.truncate(bytes.len().saturating_sub(n as usize));
                        let first = file.content.slice(from, (from + n).min(till));
                        to.body = Body::Bytes([first, bytes].concat());
                    }
                    Self::WrongStart(n) => {
                        *start = (from + n).min(till);
                        to.content_range("bytes", from + n, till, &size.to_string());
                    }
                    Self::ShiftedContentRange(n) => {
                        let moved = |at: u64| at.saturating_add_signed(n);
                        to.content_range("bytes", moved(from), moved(till), &size.to_string());
                    }
                    Self::NoContentRange => to.drop_header("Content-Range"),
                    Self::WrongTotal(n) => to.content_range("bytes", from, till, &n.to_string()),
                    Self::CapitalBytes => {
                        to.content_range("Bytes", from, till, &size.to_string());
                    }
                    Self::StarTotal => to.content_range("bytes", from, till, "*"),
                    unknown => at.misused(&unknown),
                }
            }
        }
    }
}

/// The page of the tree after the one that linked here.
fn endless(to: &mut Response, request: &Request, files: u64) {
    let number: u64 = request.parameter("page").and_then(|page| page.parse().ok()).unwrap_or(0);
    let entry = |at: u64| serde_json::json!({ "type": "file", "path": format!("p{number}/{at}"), "size": 1, "oid": "1".repeat(40) });
    let entries: Vec<_> = (0..files).map(entry).collect();
    let path = request.target.split('?').next().unwrap_or_default();
    *to = Response::json(200, &entries.into())
        .with("Link", &format!("<{path}?recursive=true&page={}>; rel=\"next\"", number + 1));
}

/// Where a behaviour is played.
pub(super) struct Place<'a> {
    pub origin: Origin,
    pub request: &'a Request,
    pub file: Option<&'a FileSpec>,
    pub other_origin: String,
    pub misuse: &'a dyn Fn(String),
}

impl Place<'_> {
    /// A script that cannot be played is a mistake in the test; the hub reports it when dropped.
    fn misused(&self, behaviour: &Behaviour) {
        let Request { method, target, .. } = self.request;
        (self.misuse)(format!("{behaviour:?} makes no sense for {method} {target}"));
    }
}

pub(super) fn xml_error(code: &str, message: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    )
}

/// A gzip member of stored blocks.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    for block in bytes.chunks(0xffff) {
        let len = block.len() as u16;
        out.push(0);
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&(!len).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
    out.extend_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out
}
