//! The other origin: bytes under signed, expiring URLs. It knows no tokens and no repositories.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::behaviour::xml_error;
use super::content::sha256_hex;
use super::http::{Body, Request, Response};
use super::record::Origin;
use super::repo::{FileSpec, RepoSpec};
use super::resolve::encode_path;
use super::server::State;

/// Makes and checks the signature of CDN URLs.
#[derive(Debug)]
pub struct Signer {
    pub lifetime: Duration,
    /// URLs of older generations are refused.
    pub generation: u64,
}

impl Default for Signer {
    fn default() -> Self {
        Self { lifetime: Duration::from_secs(3600), generation: 0 }
    }
}

impl Signer {
    fn query(&self, path: &str) -> String {
        let expires = (now() + self.lifetime).as_secs_f64().ceil() as u64;
        let signature = self.signature(path, expires);
        format!("Expires={expires}&Signature={signature}&Key-Pair-Id=KTESTHUB")
    }

    fn refusal(&self, request: &Request) -> Option<(&'static str, &'static str)> {
        let (Some(expires), Some(signature)) = (request.parameter("Expires"), request.parameter("Signature")) else {
            return Some(("MissingKey", "Missing Key-Pair-Id query parameter or cookie value"));
        };
        let expires = expires.parse().unwrap_or(0);
        if now() >= Duration::from_secs(expires) {
            return Some(("AccessDenied", "Request has expired"));
        }
        let path = request.target.split('?').next().unwrap_or_default();
        (signature != self.signature(path, expires)).then_some(("AccessDenied", "Access denied"))
    }

    fn signature(&self, path: &str, expires: u64) -> String {
        sha256_hex(format!("secret of the test hub|{}|{path}|{expires}", self.generation))
    }
}

/// A fresh signed URL for an LFS file; the CDN knows its bytes from then on.
pub(super) fn sign(state: &State, repo: &RepoSpec, file: &FileSpec) -> String {
    let key = sha256_hex(format!("object {} {}", file.path, file.content.fingerprint()));
    let path = format!("/{}/{}/{key}/{}", repo.kind.plural(), repo.id, encode_path(&file.path));
    let query = state.signer.lock().unwrap().query(&path);
    state.objects.lock().unwrap().insert(key, file.clone());
    format!("{}{path}?{query}", state.url(Origin::Cdn))
}

pub(super) fn answer(state: &State, request: &Request) -> (Response, Option<FileSpec>) {
    let file = {
        let objects = state.objects.lock().unwrap();
        request.segments.iter().find_map(|segment| objects.get(segment)).cloned()
    };
    let refusal = state.signer.lock().unwrap().refusal(request);
    let Some(file) = file else {
        return (refused(403, refusal.unwrap_or(("AccessDenied", "Access denied"))), None);
    };
    if let Some(refusal) = refusal {
        return (refused(403, refusal), Some(file));
    }
    let limit = state.settings.lock().unwrap().max_whole_body;
    if file.content.len() > limit && request.method == "GET" && request.range().is_none() {
        return (refused(400, ("InvalidRequest", "Object too large")), Some(file));
    }
    // 64 hex digits like a digest, and not the digest: the object's key.
    let etag = sha256_hex(format!("etag {}", file.content.fingerprint()));
    let response = Response::file(&file, &etag, request)
        .with("Cache-Control", "public, max-age=31536000")
        .with("X-Cache", "Miss from cloudfront");
    (response, Some(file))
}

fn refused(status: u16, (code, message): (&str, &str)) -> Response {
    Response::new(status, Body::Bytes(xml_error(code, message).into_bytes())).with("Content-Type", "application/xml")
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}
