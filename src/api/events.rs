//! The event stream: server-sent events for whoever follows.
//!
//! Order: first `snapshot`, the whole report; then `job`, one for each change of a job's state, in
//! order. A follower that is too slow gets a new snapshot instead of what it missed. It ends with
//! the daemon.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::response::sse::{Event as Line, KeepAlive, Sse};
use futures_util::{Stream, StreamExt, stream};
use serde::Serialize;
use tokio_stream::wrappers::BroadcastStream;

use super::answer::ApiError;
use super::serve::Shared;
use crate::core::code::Code;

/// A comment comes when nothing else did for so long, so that both ends know of each other.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub(super) fn follow(
    shared: &Arc<Shared>,
) -> Result<Sse<impl Stream<Item = Result<Line, Infallible>> + Send + use<>>, ApiError> {
    let place = Arc::clone(&shared.followers).try_acquire_owned().map_err(|_| {
        ApiError::new(Code::Held, "too many follow already", Some("read /v1/models now and then instead"))
    })?;
    // Subscribed before the snapshot: nothing is lost between the two.
    let changes = BroadcastStream::new(shared.jobs.follow());
    let snapshot = line("snapshot", &shared.report());
    let stop = shared.stop.clone();
    let shared = Arc::clone(shared);
    let lines = stream::iter([snapshot])
        .chain(changes.map(move |next| {
            let _held = &place;
            match next {
                Ok(event) => line("job", &event),
                Err(_lagged) => line("snapshot", &shared.report()),
            }
        }))
        .take_until(stop.cancelled_owned())
        .map(Ok);
    Ok(Sse::new(lines).keep_alive(KeepAlive::new().interval(HEARTBEAT)))
}

fn line<T: Serialize>(name: &str, data: &T) -> Line {
    let text = serde_json::to_string(data).expect("invariant: reports and events have string keys only");
    Line::default().event(name).data(text)
}
