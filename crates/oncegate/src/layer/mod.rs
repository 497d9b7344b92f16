//! A `tower` layer: any axum or hyper service gets a guard in front of it.
//!
//! [`OnceLayer::idempotency_key`] answers a repeated request from its `Idempotency-Key` header,
//! [`OnceLayer::content`] from its method, path and body. The first request runs, to its end even if the client hangs
//! up; its response is kept, and whoever repeats it gets that response again, marked `Idempotent-Replayed: true`.
//!
//! | second request | answer |
//! |---|---|
//! | the first has finished | its response: status, headers, body |
//! | the first is under way | waits as long as the guard waits, then 409 with `Retry-After: 1` |
//! | same key, another body | 422 |
//! | the first's owner died, and the guard holds | 409 |
//! | the first was refused before anything happened (400, 401, 404, 413, 429, 503) | treated as new |
//! | the store is away | 503, or let through unguarded, as the policy says |

mod key;
mod response;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, Either, Full, LengthLimitError, Limited};
use oncegate_core::{OnStoreError, State, Verdict};
use sha2::{Digest, Sha256};
use tower_layer::Layer;
use tower_service::Service;

use crate::guard::{Claimed, Guard, Owner};
use crate::run::{finish, give_back, while_alive};
use key::KeyOf;
use response::{Kept, Whole, refusal};

/// The largest request body that is looked at, unless told otherwise.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A body that was read whole because it is guarded, or one that passes as it is.
pub type MaybeRead<B> = Either<Full<Bytes>, B>;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Puts a [`Guard`] in front of a service. What is not guarded (methods that change nothing, requests without a key)
/// passes untouched, streams included.
#[derive(Clone)]
pub struct OnceLayer {
    guard: Guard,
    key_of: KeyOf,
    body_bytes_max: usize,
}

impl OnceLayer {
    /// Requests with an `Idempotency-Key` are guarded under method, path, `Authorization` and key; others pass.
    pub fn idempotency_key(guard: Guard) -> Self {
        OnceLayer { guard, key_of: KeyOf::Header, body_bytes_max: BODY_BYTES_MAX }
    }

    /// Every request is guarded under its method, path, `Authorization` and exact body: the same again, within the
    /// window, is a duplicate.
    pub fn content(guard: Guard) -> Self {
        OnceLayer { guard, key_of: KeyOf::Content, body_bytes_max: BODY_BYTES_MAX }
    }

    /// Another limit for request bodies; larger ones are refused with 413.
    pub fn body_limit(self, bytes: usize) -> Self {
        OnceLayer { body_bytes_max: bytes, ..self }
    }
}

impl<S> Layer<S> for OnceLayer {
    type Service = Once<S>;

    fn layer(&self, inner: S) -> Once<S> {
        Once { layer: self.clone(), inner }
    }
}

/// A service behind a guard.
#[derive(Clone)]
pub struct Once<S> {
    layer: OnceLayer,
    inner: S,
}

impl<S, B, R> Service<Request<B>> for Once<S>
where
    S: Service<Request<MaybeRead<B>>, Response = Response<R>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<MaybeRead<R>>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was polled ready is the one to call.
        let next = self.inner.clone();
        let ready = std::mem::replace(&mut self.inner, next);
        let layer = self.layer.clone();
        Box::pin(async move { Ok(layer.answer(request, ready).await) })
    }
}

impl OnceLayer {
    async fn answer<S, B, R>(self, request: Request<B>, inner: S) -> Response<MaybeRead<R>>
    where
        S: Service<Request<MaybeRead<B>>, Response = Response<R>, Error = Infallible> + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
        R: Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
    {
        let (parts, body) = request.into_parts();
        let changes = !matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        if !changes || !self.key_of.guards(&parts) {
            return call(inner, Request::from_parts(parts, Either::Right(body))).await.map(Either::Right);
        }
        // On a task of its own: a client that hangs up does not stop what it has begun.
        let running = tokio::spawn(self.answer_guarded(parts, body, inner));
        let answered = running.await;
        answered
            .unwrap_or_else(|_| refusal(StatusCode::INTERNAL_SERVER_ERROR, "the service panicked"))
            .map(Either::Left)
    }

    async fn answer_guarded<S, B, R>(self, parts: Parts, body: B, inner: S) -> Response<Whole>
    where
        S: Service<Request<MaybeRead<B>>, Response = Response<R>, Error = Infallible>,
        B: Body<Error: Into<BoxError>>,
        R: Body<Error: Into<BoxError>>,
    {
        let body = match Limited::new(body, self.body_bytes_max).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return refusal(StatusCode::PAYLOAD_TOO_LARGE, "the body is over the limit");
            }
            Err(_) => return refusal(StatusCode::BAD_REQUEST, "the body could not be read"),
        };
        let key = match self.key_of.parts(&parts, &body) {
            Ok(key) => self.guard.key(key),
            Err(why) => return refusal(StatusCode::BAD_REQUEST, why),
        };
        let fingerprint = format!("sha256:{:x}", HexOf(Sha256::digest(&body).into()));
        let running = call(inner, Request::from_parts(parts, Either::Left(Full::new(body))));
        match self.guard.clone().made_from(fingerprint).claim(&key).await {
            Ok(Claimed::Won(owner)) => self.run(owner, running).await,
            Ok(Claimed::Duplicate { claim, .. }) => match (claim.state, &claim.outcome) {
                (State::Done, Some(kept)) => response::replay(kept),
                (State::Done, None) => refusal(StatusCode::CONFLICT, "it was done before; its response was not kept"),
                _ => refusal(StatusCode::CONFLICT, "it failed before, and is not tried again under this key"),
            },
            Ok(Claimed::InFlight { .. }) => response::in_flight(),
            Ok(Claimed::Mismatch) => refusal(StatusCode::UNPROCESSABLE_ENTITY, "the key was used for another request"),
            Ok(Claimed::Held { .. }) => {
                refusal(StatusCode::CONFLICT, "it is unknown whether it happened; a person has to look")
            }
            Err(error) if self.guard.policy.on_store_error == OnStoreError::Open => {
                tracing::error!(event = "claim.duplicate_guard_error", guard = %key.guard, claimId = %key.id, %error);
                response::whole(running.await).await
            }
            Err(_) => response::store_away(),
        }
    }

    /// The first one: runs, is kept, and answers.
    async fn run<R>(&self, owner: Owner, running: impl Future<Output = Response<R>>) -> Response<Whole>
    where
        R: Body<Error: Into<BoxError>>,
    {
        let finished = async { response::whole(running.await).await };
        let response = while_alive(&owner, self.guard.policy.lease, finished).await;
        if response::is_refusal(response.status()) {
            give_back(&owner).await;
            return response;
        }
        let (response, kept) = Kept::of(response).await;
        finish(owner, Verdict::Done, Some(kept)).await;
        response
    }
}

/// Does nothing until it is polled.
async fn call<S, B, R>(mut inner: S, request: Request<B>) -> Response<R>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
{
    match inner.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

struct HexOf([u8; 32]);

impl std::fmt::LowerHex for HexOf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
