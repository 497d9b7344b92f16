//! A `tower` layer that puts a guard in front of any axum or hyper service.
//!
//! [`OnceLayer::idempotency_key`] recognises a repeated request by its `Idempotency-Key` header, [`OnceLayer::content`] by
//! its method, path and body. The first request runs to its end, even if the client disconnects. Its response is stored. A
//! repeated request gets that response again, marked `Idempotent-Replayed: true`.
//!
//! | second request | answer |
//! |---|---|
//! | the first has finished | its response: status, headers, body |
//! | the first is under way | waits as long as the guard waits, then 409 with `Retry-After: 1` |
//! | same key, another body | 422 |
//! | the first panicked, ran for too long, its service returned an error, or its process died | runs again, as attempt 2; if the guard holds: 409 with the claim's id |
//! | a person has resolved the held claim as done | the outcome of the resolution, or 200 |
//! | a person has resolved the held claim as not done | 409: a new key is needed |
//! | the first was refused before anything happened ([`OnceLayer::not_started`]) | treated as new |
//! | the store is unavailable | 503, or runs without a claim, as the policy says |
//!
//! **The same request.** Requests are the same if method, path with query, caller, and key or body are the same. The path is
//! the one that the client sent, also inside axum's `nest`. (The feature `tower` supports axum 0.8. With `tower-bare`, or
//! behind another router that strips prefixes, use [`OnceLayer::path_of`].) [`Caller`] distinguishes the callers.
//!
//! **What the handler sees.** The extensions of the request contain the [`Owner`] of its claim: with axum,
//! `Extension(owner): Extension<Owner>`. `owner.attempt()` is 2 or more if an earlier attempt may have happened.
//!
//! **Limits.** A request runs for at most [`OnceLayer::run_limit`], else the policy's `max_run`, else [`REQUEST_RUN_MAX`]; the time to read
//! the response counts. After that the client gets 504, and the policy's `lost` decides what happens to the claim. A response
//! of more than [`OUTCOME_BYTES_MAX`] bytes, or [`OnceLayer::response_limit`], is streamed and not stored. A repeated request
//! is only told that the first request was done.

mod key;
mod response;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use oncegate_core::limits::{OUTCOME_BYTES_MAX, REQUEST_RUN_MAX};
use oncegate_core::{OnStoreError, State, Verdict};
use sha2::{Digest, Sha256};
use tower_layer::Layer;
use tower_service::Service;

use crate::guard::{Claimed, Guard, Owner};
use crate::run::{Ended, abandon, finish, give_back, run_to_end};
pub use key::Caller;
use key::{KeyOf, PathOf};
use response::{Kept, NotStarted, Read, Rest, refusal, refusal_of};

/// The largest guarded request body, unless [`OnceLayer::body_limit`] sets another limit.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A request body: read whole if the request is guarded, otherwise passed on unread.
pub type MaybeRead<B> = Either<Full<Bytes>, B>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response: replayed, a refusal, or passed on.
pub type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;

/// Puts a [`Guard`] in front of a service. Unguarded requests (methods that change nothing, requests without a key) pass
/// unchanged, streams included.
#[derive(Clone)]
pub struct OnceLayer {
    guard: Guard,
    key_of: KeyOf,
    path_of: PathOf,
    caller: Caller,
    not_started: NotStarted,
    body_bytes_max: usize,
    response_bytes_max: usize,
    run_max: Option<Duration>,
}

impl OnceLayer {
    /// Guards requests with an `Idempotency-Key`, under method, path, caller and key. Other requests pass.
    pub fn idempotency_key(guard: Guard) -> Self {
        OnceLayer::of(guard, KeyOf::Header)
    }

    /// Guards every request under its method, path, caller and exact body. The same request within the window is a duplicate.
    pub fn content(guard: Guard) -> Self {
        OnceLayer::of(guard, KeyOf::Content)
    }

    fn of(guard: Guard, key_of: KeyOf) -> Self {
        let (path_of, caller, not_started) = Default::default();
        OnceLayer {
            guard,
            key_of,
            path_of,
            caller,
            not_started,
            body_bytes_max: BODY_BYTES_MAX,
            response_bytes_max: OUTCOME_BYTES_MAX,
            run_max: None,
        }
    }

    /// How to distinguish callers. The default is the whole of `Authorization`, `Cookie` and `X-Api-Key`.
    pub fn caller(self, caller: Caller) -> Self {
        OnceLayer { caller, ..self }
    }

    /// Asks who calls: `scope` returns the name of the caller, or `None` for all callers without one. A caller never gets the response of
    /// another caller.
    pub fn scope(self, scope: impl Fn(&Parts) -> Option<String> + Send + Sync + 'static) -> Self {
        self.caller(Caller::by(scope))
    }

    /// The path that distinguishes the resources, for use behind a router that changes the URI.
    pub fn path_of(self, path: impl Fn(&Parts) -> String + Send + Sync + 'static) -> Self {
        OnceLayer { path_of: PathOf::By(Arc::new(path)), ..self }
    }

    /// The statuses by which the service refuses a request before anything happened. Such a response is not stored, and the
    /// next request under the key runs. 503 counts only with `Retry-After`.
    ///
    /// The default is 400, 401, 403, 404, 405, 413, 415, 422, 429 and 503. If a handler can answer one of these after it has
    /// done something, leave that status out. All other responses are stored, 500 and 408 too: something may have happened.
    pub fn not_started(self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        OnceLayer { not_started: NotStarted::Statuses(statuses.into_iter().collect()), ..self }
    }

    /// Stores the responses with these statuses, and no others. After a response that is not stored, the next request under the key runs.
    /// This replaces [`OnceLayer::not_started`]. A response that breaks off is always stored, as a 502: something may have happened.
    pub fn keep_if(self, keeps: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        OnceLayer { not_started: NotStarted::Unless(Arc::new(keeps)), ..self }
    }

    /// How long a guarded request may run, with the time to read its response. After that the client gets 504, and the policy's `lost`
    /// decides what happens to the claim. Replaces the `max_run` of the guard's policy.
    pub fn run_limit(self, limit: Duration) -> Self {
        OnceLayer { run_max: Some(limit), ..self }
    }

    /// The largest response that is stored; at most [`OUTCOME_BYTES_MAX`]. A larger one is streamed, and a repeated request is only told
    /// that the first was done.
    pub fn response_limit(self, bytes: usize) -> Self {
        OnceLayer { response_bytes_max: bytes.min(OUTCOME_BYTES_MAX), ..self }
    }

    /// Sets the limit for request bodies. The layer refuses larger bodies with 413.
    pub fn body_limit(self, bytes: usize) -> Self {
        OnceLayer { body_bytes_max: bytes, ..self }
    }
}

/// Encodes a response as the outcome of a claim. Pass it to [`Guard::resolve`], and repeated requests get this response.
pub fn outcome_of(response: Response<Bytes>) -> Bytes {
    let (parts, body) = response.into_parts();
    Kept::of(&parts, Some(&body))
}

impl<S> Layer<S> for OnceLayer {
    type Service = Once<S>;

    fn layer(&self, inner: S) -> Once<S> {
        Once { layer: self.clone(), inner }
    }
}

/// A service with a guard in front of it.
#[derive(Clone)]
pub struct Once<S> {
    layer: OnceLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Once<S>
where
    S: Service<Request<MaybeRead<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<ResponseBody>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // Call the service that was polled ready, and keep its clone for the next request.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(layer.answer(request, ready))
    }
}

impl OnceLayer {
    async fn answer<S, B, R>(self, request: Request<B>, inner: S) -> Result<Response<ResponseBody>, S::Error>
    where
        S: Service<Request<MaybeRead<B>>, Response = Response<R>> + Send + 'static,
        S::Future: Send,
        S::Error: Send + 'static,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
        R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (parts, body) = request.into_parts();
        let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        if !changes || !self.key_of.guards(&parts) {
            return Ok(response::passed(call(inner, Request::from_parts(parts, Either::Right(body))).await?));
        }
        // On a separate task, so that a client that disconnects does not stop its request.
        let running = tokio::spawn(self.answer_guarded(parts, body, inner));
        let not_finished = |_| Ok(refusal(StatusCode::INTERNAL_SERVER_ERROR, "the request was not finished"));
        running.await.unwrap_or_else(not_finished)
    }

    async fn answer_guarded<S, B, R>(
        self,
        mut parts: Parts,
        body: B,
        inner: S,
    ) -> Result<Response<ResponseBody>, S::Error>
    where
        S: Service<Request<MaybeRead<B>>, Response = Response<R>>,
        B: Body<Error: Into<BoxError>>,
        R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let body = match Limited::new(body, self.body_bytes_max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Ok(refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is over the limit"));
            }
            Err(_) => return Ok(refusal(StatusCode::BAD_REQUEST, "the body could not be read")),
        };
        let key = match self.key_of.parts(&parts, &self.path_of, &self.caller, &body) {
            Ok(key) => self.guard.key(key),
            Err(why) => return Ok(refusal(StatusCode::BAD_REQUEST, why)),
        };
        let fingerprint = format!("sha256:{:x}", HexOf(Sha256::digest(&body).into()));
        Ok(match self.guard.clone().made_from(fingerprint).claim(&key).await {
            Ok(Claimed::Won(owner)) => {
                parts.extensions.insert(owner.clone());
                let request = Request::from_parts(parts, Either::Left(Full::new(body)));
                self.run(owner, call(inner, request)).await?
            }
            Ok(Claimed::Duplicate { claim, .. }) => match (claim.state, &claim.outcome) {
                (State::Done, Some(kept)) => response::replay(kept),
                // The layer stores every response, or a tombstone, so a claim without an outcome was resolved by a person.
                (State::Done, None) => response::resolved_without_outcome(),
                _ => refusal_of(&key, StatusCode::CONFLICT, "it was not done, and is not tried again: use a new key"),
            },
            Ok(Claimed::InFlight { .. }) => response::in_flight(),
            Ok(Claimed::Mismatch) => refusal(StatusCode::UNPROCESSABLE_ENTITY, "the key was used for another request"),
            Ok(Claimed::Held { .. }) => {
                refusal_of(&key, StatusCode::CONFLICT, "it is unknown whether it happened; a person has to look")
            }
            Err(error) if self.guard.policy.on_store_error == OnStoreError::Open => {
                tracing::error!(event = "claim.duplicate_guard_error", guard = %key.guard, claimId = %key.id, %error);
                response::passed(call(inner, Request::from_parts(parts, Either::Left(Full::new(body)))).await?)
            }
            Err(_) => response::store_away(),
        })
    }

    /// Runs the first request, stores its response, and answers.
    async fn run<R, E>(
        &self,
        owner: Owner,
        running: impl Future<Output = Result<Response<R>, E>>,
    ) -> Result<Response<ResponseBody>, E>
    where
        R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let max_run = self.run_max.or(self.guard.policy.max_run).unwrap_or(REQUEST_RUN_MAX);
        let reading = async { Ok(Read::of(running.await?, self.response_bytes_max).await) };
        let key = owner.key().clone();
        let read = match run_to_end(&owner, Some(max_run), reading).await {
            Ok(Ended::Returned(Ok(read))) => Ok(Ended::Returned(read)),
            Ok(Ended::Returned(Err(error))) => {
                // Something may have happened: the policy's `lost` decides, as if the service had panicked.
                abandon(&owner).await;
                return Err(error);
            }
            Ok(Ended::Panicked(panic)) => Ok(Ended::Panicked(panic)),
            Ok(Ended::TooLong { after }) => Ok(Ended::TooLong { after }),
            Err(error) => Err(error),
        };
        Ok(match read {
            Ok(Ended::Returned(Read::Whole(parts, body))) => {
                self.settle(owner, &parts, Some(&body)).await;
                Response::from_parts(parts, response::whole(body))
            }
            Ok(Ended::Returned(Read::Part(parts, read, rest))) => {
                self.settle(owner, &parts, None).await;
                Response::from_parts(parts, Rest { read: Some(read), rest }.boxed_unsync())
            }
            Ok(Ended::Returned(Read::BrokeOff)) => {
                // Something may have happened, so a repeated request gets this answer and no second run.
                let broke_off = || refusal_of(&key, StatusCode::BAD_GATEWAY, "the response broke off");
                let (parts, body) = broke_off().into_parts();
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                finish(owner, Verdict::Done, Some(Kept::of(&parts, Some(&body)))).await;
                broke_off()
            }
            Ok(Ended::Panicked(_)) => refusal_of(&key, StatusCode::INTERNAL_SERVER_ERROR, "the service panicked"),
            Ok(Ended::TooLong { .. }) => {
                refusal_of(&key, StatusCode::GATEWAY_TIMEOUT, "the service did not end in time; it may have happened")
            }
            Err(_) => response::store_away(),
        })
    }

    async fn settle(&self, owner: Owner, response: &http::response::Parts, body: Option<&[u8]>) {
        if self.not_started.says(response) {
            give_back(&owner).await;
        } else {
            finish(owner, Verdict::Done, Some(Kept::of(response, body))).await;
        }
    }
}

/// Calls the service, but only once the future is polled.
async fn call<S, B, R>(mut inner: S, request: Request<B>) -> Result<Response<R>, S::Error>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    inner.call(request).await
}

struct HexOf([u8; 32]);

impl std::fmt::LowerHex for HexOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
