//! The paths and what each does.
//!
//! Thin: a request becomes a call of [`Jobs`], and its answer JSON. What is
//! asked of the store or the volume runs on blocking threads.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use tracing::info;

use super::answer::{ApiError, json_body};
use super::dto::{Accepting, EditsReport, Health, History, Limiting, Removal, SeenVerdict, Submission, Undoing};
use super::events;
use super::serve::{Caller, Shared};
use crate::clock;
use crate::core::code::Code;
use crate::core::limit::Limit;
use crate::core::model_name::ModelName;
use crate::core::status::{ModelStatus, Report};
use crate::daemon::limiting::LimitReport;
use crate::daemon::{JobRefusal, Jobs, report};
use crate::gate::accept::{Acceptance, Who, here};
use crate::hub::Token;
use crate::hub::auth::TokenPlace;

type Answer<T> = Result<T, ApiError>;
type Served = State<Arc<Shared>>;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/v1/models", get(models).post(submit))
        .route("/v1/models/{id}", get(model))
        .route("/v1/models/{id}/history", get(history))
        .route("/v1/models/{id}/pause", post(pause))
        .route("/v1/models/{id}/resume", post(resume))
        .route("/v1/models/{id}/cancel", post(cancel))
        .route("/v1/models/{id}/limit", post(limit))
        .route("/v1/limits", get(limits).post(limit_all))
        .route("/v1/models/{id}/remove", post(remove))
        .route("/v1/models/{id}/accept", post(accept))
        .route("/v1/models/{id}/undo", post(undo))
        .route("/v1/models/{id}/verdict", post(verdict))
        .route("/v1/events", get(follow))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .fallback(no_such_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(shared)
}

impl Shared {
    pub(super) fn report(&self) -> Report {
        report::of_jobs(&self.jobs, self.owner.clone())
    }

    fn status(&self, name: &ModelName) -> Answer<ModelStatus> {
        report::of_one(&self.jobs, name).ok_or_else(|| JobRefusal::Unknown { name: name.clone() }.into())
    }

    /// Runs what may wait for the disk.
    async fn ask<T: Send + 'static>(self: &Arc<Self>, what: impl FnOnce(&Jobs) -> T + Send + 'static) -> T {
        let shared = Arc::clone(self);
        self.blocking.run(move || what(&shared.jobs)).await
    }
}

async fn models(State(shared): Served) -> Json<Report> {
    Json(shared.report())
}

async fn model(State(shared): Served, Path(id): Path<String>) -> Answer<Json<ModelStatus>> {
    shared.status(&named(&id)?).map(Json)
}

async fn submit(State(shared): Served, Extension(caller): Extension<Caller>, request: Request) -> Answer<Response> {
    let Submission { job, token } = json_body(request).await?;
    let name = job.name.clone();
    let token = match token.map(|text| Token::parse(&text, TokenPlace::Submitted)) {
        None => None,
        Some(parsed) => parsed.map_err(|error| ApiError::new(Code::Usage, error.to_string(), None))?,
    };
    info!(%caller, model = %name, repo = %job.repo, revision = %job.revision, "asked to pull");
    shared.ask(move |jobs| jobs.submit(job, token, None)).await?;
    Ok((StatusCode::ACCEPTED, Json(shared.status(&name)?)).into_response())
}

async fn pause(served: Served, caller: Extension<Caller>, id: Path<String>) -> Answer<Response> {
    act(served, caller, &id, "pause", Jobs::pause).await
}

async fn resume(served: Served, caller: Extension<Caller>, id: Path<String>) -> Answer<Response> {
    act(served, caller, &id, "resume", Jobs::resume).await
}

async fn cancel(served: Served, caller: Extension<Caller>, id: Path<String>) -> Answer<Response> {
    act(served, caller, &id, "cancel", Jobs::cancel).await
}

async fn limits(State(shared): Served) -> Json<LimitReport> {
    Json(shared.jobs.limits())
}

async fn limit_all(
    State(shared): Served,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answer<Json<LimitReport>> {
    let Limiting { limit } = json_body(request).await?;
    info!(%caller, limit = %shown(limit), "asked to limit all jobs together");
    shared.ask(move |jobs| jobs.limit_volume(limit)).await;
    Ok(Json(shared.jobs.limits()))
}

async fn limit(
    State(shared): Served,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Answer<Json<ModelStatus>> {
    let name = named(&id)?;
    let Limiting { limit } = json_body(request).await?;
    info!(%caller, model = %name, limit = %shown(limit), "asked to limit");
    let asked = name.clone();
    shared.ask(move |jobs| jobs.limit_job(&asked, limit)).await?;
    shared.status(&name).map(Json)
}

fn shown(limit: Option<Limit>) -> String {
    limit.map_or_else(|| "auto".to_owned(), |limit| limit.to_string())
}

/// Accepted: what runs stops in its own time.
async fn act(
    State(shared): Served,
    Extension(caller): Extension<Caller>,
    id: &str,
    verb: &'static str,
    action: fn(&Jobs, &ModelName) -> Result<(), JobRefusal>,
) -> Answer<Response> {
    let name = named(id)?;
    info!(%caller, model = %name, "asked to {verb}");
    let asked = name.clone();
    shared.ask(move |jobs| action(jobs, &asked)).await?;
    Ok((StatusCode::ACCEPTED, Json(shared.status(&name)?)).into_response())
}

async fn remove(
    State(shared): Served,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    removal: Result<Query<Removal>, QueryRejection>,
) -> Answer<StatusCode> {
    let name = named(&id)?;
    let Query(Removal { now }) = removal.map_err(|error| ApiError::new(Code::Usage, error.body_text(), None))?;
    info!(%caller, model = %name, now, "asked to remove");
    shared.jobs.remove(&name, now).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn accept(
    State(shared): Served,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Answer<Json<EditsReport>> {
    let name = named(&id)?;
    let Accepting { paths, reason, force, user } = json_body(request).await?;
    info!(%caller, model = %name, files = paths.len(), %reason, "asked to accept");
    let who = match caller {
        Caller::Local { uid, .. } => Who { uid: Some(uid), user, host: here() },
        Caller::Remote(address) => Who { uid: None, user, host: address.ip().to_string() },
    };
    let accepted = shared.jobs.accept(&name, Acceptance { paths, reason, force, who }).await?;
    Ok(Json(EditsReport::accepted(Some(name), accepted)))
}

async fn undo(
    State(shared): Served,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
    request: Request,
) -> Answer<Json<EditsReport>> {
    let name = named(&id)?;
    let Undoing { paths, force } = json_body(request).await?;
    info!(%caller, model = %name, files = paths.len(), force, "asked to undo edits");
    let undone = shared.jobs.undo(&name, paths, force).await?;
    Ok(Json(EditsReport::undone(name, undone)))
}

async fn history(State(shared): Served, Path(id): Path<String>) -> Answer<Json<History>> {
    let name = named(&id)?;
    let asked = name.clone();
    let entries = shared.ask(move |jobs| jobs.history(&asked)).await;
    // A model that was removed still has a history.
    if entries.is_empty() {
        shared.status(&name)?;
    }
    Ok(Json(History::new(name, entries)))
}

async fn verdict(State(shared): Served, Path(id): Path<String>, request: Request) -> Answer<StatusCode> {
    let name = named(&id)?;
    let SeenVerdict { open, line } = json_body(request).await?;
    shared.status(&name)?;
    shared.ask(move |jobs| jobs.saw_verdict(&name, open, &line)).await;
    Ok(StatusCode::NO_CONTENT)
}

async fn follow(State(shared): Served) -> Answer<Response> {
    events::follow(&shared).map(IntoResponse::into_response)
}

async fn healthz() -> Json<Health> {
    Json(Health { status: "ok".to_owned() })
}

async fn readyz(State(shared): Served) -> (StatusCode, Json<Health>) {
    let wrong = if shared.lost.is_cancelled() {
        Some("the volume was taken by another process".to_owned())
    } else if shared.stop.is_cancelled() {
        Some("stopping".to_owned())
    } else {
        shared.pulse.look(clock::monotonic()).defect()
    };
    let status = if wrong.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Health { status: wrong.unwrap_or_else(|| "ok".to_owned()) }))
}

async fn no_such_path() -> ApiError {
    ApiError::new(Code::Usage, "there is nothing at this path", Some("the API begins at /v1/models"))
}

async fn wrong_method() -> ApiError {
    ApiError::new(Code::Usage, "this path does not take that method", None)
}

fn named(id: &str) -> Answer<ModelName> {
    ModelName::parse(id)
        .map_err(|error| ApiError::new(Code::Usage, error.to_string(), Some("slashes inside the id are sent as %2F")))
}
