//! Refusals as HTTP answers, and bodies as values.
//!
//! Invariant: the HTTP status follows from the code, in one place.

use std::time::Duration;

use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::dto::Refusal;
use crate::core::code::Code;
use crate::core::job::JobError;
use crate::daemon::JobRefusal;

/// Most bytes of a request's body.
const BODY_MAX: usize = 1 << 20;
/// For the body of a request to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a request is not answered with what it asked for.
#[derive(Debug)]
pub(super) struct ApiError(JobError);

impl ApiError {
    pub(super) fn new(code: Code, message: impl Into<String>, hint: Option<&str>) -> Self {
        Self(JobError { code, message: message.into(), hint: hint.map(str::to_owned) })
    }
}

impl From<JobRefusal> for ApiError {
    fn from(refusal: JobRefusal) -> Self {
        Self(refusal.to_job_error())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (status_of(self.0.code), Json(Refusal { error: self.0 })).into_response()
    }
}

/// Reads a JSON body, bounded in size and time.
pub(super) async fn json_body<T: DeserializeOwned>(request: Request) -> Result<T, ApiError> {
    let refuse = |why: String| ApiError::new(Code::Usage, why, None);
    let read = timeout(BODY_TIMEOUT, to_bytes(request.into_body(), BODY_MAX));
    let bytes = match read.await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(_)) => return Err(refuse(format!("the body did not arrive whole, or is over {BODY_MAX} bytes"))),
        Err(_) => return Err(refuse(format!("the body did not arrive within {} s", BODY_TIMEOUT.as_secs()))),
    };
    // Only a place and a kind: the body may hold a token.
    serde_json::from_slice(&bytes).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => {
            refuse(format!("the body is no request of this kind, see line {} column {}", error.line(), error.column()))
        }
        _ => refuse(format!("the body is no JSON, see line {} column {}", error.line(), error.column())),
    })
}

const fn status_of(code: Code) -> StatusCode {
    match code {
        Code::Usage => StatusCode::BAD_REQUEST,
        Code::Refused => StatusCode::FORBIDDEN,
        Code::UnknownModel => StatusCode::NOT_FOUND,
        Code::Held | Code::Incomplete | Code::Corrupt => StatusCode::CONFLICT,
        Code::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        Code::UpstreamRefused => StatusCode::BAD_GATEWAY,
        Code::Stalled | Code::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Code::DaemonUnreachable | Code::CouldNotCheck | Code::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
