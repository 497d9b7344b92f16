//! Which requests the tower layer treats as the same, which responses it stores, and how it ends a request that hangs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use bytes::Bytes;
use oncegate::store::{MemoryStore, Op, Query, Store};
use oncegate::tower::{Caller, OnceLayer};
use oncegate::{Claim, Command, Gate, Guard, Guards, Lost, Owner, Policy, State};
use tower::ServiceExt;

/// Longer than any of these tests.
const LONG_LEASE: Duration = Duration::from_secs(600);

fn policy(lost: Lost) -> Policy {
    Policy { lost, lease: LONG_LEASE, ..Policy::default() }
}

fn guard(lost: Lost) -> (Arc<MemoryStore>, Guard) {
    let store = Arc::new(MemoryStore::default());
    let guard = Guards::over(store.clone(), Arc::new(()))
        .guard("http", policy(lost))
        .expect("the test store and service answer");
    (store, guard)
}

async fn only_claim(store: &MemoryStore) -> Claim {
    let workspace = oncegate::WorkspaceName::default_workspace();
    let all = Query { workspace, guard: None, state: None, limit: 10, after: None };
    let mut claims = store.scan(all).await.expect("the test store and service answer").claims;
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

async fn ask(app: &Router, path: &str, headers: &[(&str, &str)]) -> (StatusCode, HeaderMap, String) {
    let mut request = Request::post(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = app
        .clone()
        .oneshot(request.body(Body::from("{}")).expect("the test store and service answer"))
        .await
        .expect("works in tests");
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("the test store and service answer");
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).expect("the test store and service answer"))
}

const KEY: (&str, &str) = ("idempotency-key", "k");

/// A handler whose response contains the number of its runs.
fn counted() -> axum::routing::MethodRouter {
    let runs = Arc::new(AtomicUsize::new(0));
    post(async move || format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1))
}

#[tokio::test]
async fn the_same_path_under_two_nested_routers_is_two_requests() {
    let (_, guard) = guard(Lost::TakeOver);
    let pay = Router::new().route("/pay", counted()).layer(OnceLayer::idempotency_key(guard));
    let app = Router::new().nest("/eu", pay.clone()).nest("/us", pay);
    for (path, answer) in [("/eu/pay", "run 1"), ("/us/pay", "run 2"), ("/eu/pay", "run 1")] {
        assert_eq!(ask(&app, path, &[KEY]).await.2, answer, "{path}");
    }
}

#[tokio::test]
async fn two_callers_that_only_their_cookies_tell_apart_do_not_get_each_others_responses() {
    for layer in [OnceLayer::idempotency_key, OnceLayer::content] {
        let (_, guard) = guard(Lost::TakeOver);
        let app = Router::new().route("/pay", counted()).layer(layer(guard));
        for (cookie, answer) in [("session=alice", "run 1"), ("session=bob", "run 2"), ("session=alice", "run 1")] {
            assert_eq!(ask(&app, "/pay", &[KEY, ("cookie", cookie)]).await.2, answer, "{cookie}");
        }
    }
}

#[tokio::test]
async fn a_request_that_was_refused_for_its_headers_runs_when_it_is_corrected() {
    let (_, guard) = guard(Lost::TakeOver);
    let handler = post(async |axum::Json(_): axum::Json<serde_json::Value>| "paid");
    let app = Router::new().route("/pay", handler).layer(OnceLayer::idempotency_key(guard));
    assert_eq!(ask(&app, "/pay", &[KEY]).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let corrected = ask(&app, "/pay", &[KEY, ("content-type", "application/json")]).await;
    assert_eq!((corrected.0, corrected.2.as_str()), (StatusCode::OK, "paid"));
}

#[tokio::test]
async fn a_panic_frees_its_key_at_once_or_holds_it_as_the_policy_says() {
    for (lost, again) in [(Lost::TakeOver, StatusCode::INTERNAL_SERVER_ERROR), (Lost::Hold, StatusCode::CONFLICT)] {
        let (store, guard) = guard(lost);
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = runs.clone();
        let handler = post(async move || -> StatusCode {
            counted.fetch_add(1, Ordering::SeqCst);
            panic!("on purpose");
        });
        let app = Router::new().route("/pay", handler).layer(OnceLayer::idempotency_key(guard));
        assert_eq!(ask(&app, "/pay", &[KEY]).await.0, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(ask(&app, "/pay", &[KEY]).await.0, again, "{lost:?}");
        let (ran, state) = if lost == Lost::Hold { (1, State::Unknown) } else { (2, State::InFlight) };
        assert_eq!((runs.load(Ordering::SeqCst), only_claim(&store).await.state), (ran, state));
    }
}

#[tokio::test]
async fn a_held_request_is_answered_when_a_person_has_resolved_it() {
    for (outcome, body) in [(None, "\"done\":true"), (Some(Bytes::from(r#"{"receipt":7}"#)), r#"{"receipt":7}"#)] {
        let (store, guard) = guard(Lost::Hold);
        let handler = post(async || -> StatusCode { panic!("on purpose") });
        let app = Router::new().route("/pay", handler).layer(OnceLayer::idempotency_key(guard));
        ask(&app, "/pay", &[KEY]).await;
        let held = ask(&app, "/pay", &[KEY]).await;
        let claim = only_claim(&store).await;
        assert_eq!(held.0, StatusCode::CONFLICT);
        assert!(held.2.contains(&claim.key.id.to_string()), "a person finds the claim by the answer: {}", held.2);
        let resolve = Op { key: claim.key, command: Command::Resolve { done: true, outcome } };
        assert!(store.commit(resolve.into()).await.unwrap().is_written());
        let answered = ask(&app, "/pay", &[KEY]).await;
        assert_eq!((answered.0, &answered.1["idempotent-replayed"]), (StatusCode::OK, &"true".parse().unwrap()));
        assert!(answered.2.contains(body), "{}", answered.2);
    }
}

/// A body that does not end. Counts the bytes that were taken.
fn endless(taken: Arc<AtomicUsize>, pause: Duration) -> Body {
    const CHUNK: usize = 64 * 1024;
    // The body does end at last: a layer that reads all of it would otherwise take all of the memory.
    const ENOUGH: usize = 64 << 20;
    Body::from_stream(futures::stream::unfold((), move |()| {
        let taken = taken.clone();
        async move {
            tokio::time::sleep(pause).await;
            let before = taken.fetch_add(CHUNK, Ordering::SeqCst);
            (before < ENOUGH).then(|| (Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; CHUNK])), ()))
        }
    }))
}

#[tokio::test]
async fn a_response_over_the_limit_streams_through_and_is_not_read_whole() {
    let (_, guard) = guard(Lost::TakeOver);
    let taken = Arc::new(AtomicUsize::new(0));
    let body = taken.clone();
    let handler = post(async move || endless(body.clone(), Duration::ZERO).into_response());
    let app = Router::new().route("/pay", handler).layer(OnceLayer::idempotency_key(guard));
    let request = || Request::post("/pay").header(KEY.0, KEY.1).body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request()).await.unwrap();
    assert!(taken.load(Ordering::SeqCst) <= 2 << 20, "{} bytes in memory", taken.load(Ordering::SeqCst));
    assert_eq!(app.oneshot(request()).await.unwrap().status(), StatusCode::CONFLICT, "settled, as a tombstone");
    let whole = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(whole.len(), 64 << 20, "the client gets all of it");
}

#[tokio::test]
async fn a_response_without_an_end_is_given_up_at_max_run() {
    for (lost, again) in [(Lost::TakeOver, StatusCode::GATEWAY_TIMEOUT), (Lost::Hold, StatusCode::CONFLICT)] {
        let gate = Gate::open("memory:").await.unwrap();
        let limited = Policy { max_run: Some(Duration::from_millis(100)), ..policy(lost) };
        let handler = post(async || endless(Arc::default(), Duration::from_millis(20)).into_response());
        let layer = OnceLayer::idempotency_key(gate.guard("http", limited).unwrap());
        let app = Router::new().route("/pay", handler).layer(layer);
        assert_eq!(ask(&app, "/pay", &[KEY]).await.0, StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(ask(&app, "/pay", &[KEY]).await.0, again, "{lost:?}");
    }
}

#[tokio::test]
async fn a_handler_sees_which_attempt_it_is() {
    let (_, guard) = guard(Lost::TakeOver);
    let handler = post(async |axum::Extension(owner): axum::Extension<Owner>| {
        assert!(owner.attempt() > 1, "on purpose: the first attempt panics");
        format!("attempt {} under {}", owner.attempt(), owner.key().guard)
    });
    let app = Router::new().route("/pay", handler).layer(OnceLayer::idempotency_key(guard));
    assert_eq!(ask(&app, "/pay", &[KEY]).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(ask(&app, "/pay", &[KEY]).await.2, "attempt 2 under http");
}

#[tokio::test]
async fn a_response_is_kept_unless_it_says_that_nothing_happened() {
    let retry: &[(&str, &str)] = &[("retry-after", "1")];
    let default = OnceLayer::idempotency_key as fn(Guard) -> OnceLayer;
    let strict: fn(Guard) -> OnceLayer =
        |guard| OnceLayer::idempotency_key(guard).not_started([StatusCode::TOO_MANY_REQUESTS]);
    let cases = [
        (default, vec![400, 401, 403, 404, 405, 413, 415, 422, 429], &[][..], "run 2"),
        (default, vec![200, 201, 302, 402, 408, 409, 410, 500, 502, 503, 504], &[][..], "run 1"),
        (default, vec![503], retry, "run 2"),
        (strict, vec![400, 415, 503], retry, "run 1"),
        (strict, vec![429], &[][..], "run 2"),
    ];
    for (layer, statuses, headers, second) in cases {
        for status in statuses {
            let (_, guard) = guard(Lost::TakeOver);
            let runs = Arc::new(AtomicUsize::new(0));
            let handler = post(async move || {
                let mut response = format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1).into_response();
                *response.status_mut() = StatusCode::from_u16(status).unwrap();
                for (name, value) in headers {
                    response.headers_mut().insert(*name, value.parse().unwrap());
                }
                response
            });
            let app = Router::new().route("/pay", handler).layer(layer(guard));
            assert_eq!(ask(&app, "/pay", &[KEY]).await.2, "run 1");
            assert_eq!(ask(&app, "/pay", &[KEY]).await.2, second, "{status}");
        }
    }
}

#[tokio::test]
async fn a_program_resolves_a_held_request_with_a_response_or_as_not_done() {
    for done in [true, false] {
        let (store, guard) = guard(Lost::Hold);
        let handler = post(async || -> StatusCode { panic!("on purpose") });
        let app = Router::new().route("/pay", handler).layer(OnceLayer::idempotency_key(guard.clone()));
        ask(&app, "/pay", &[KEY]).await;
        let response = axum::http::Response::builder().status(201).header("location", "/charges/1");
        let outcome = oncegate::tower::outcome_of(response.body(Bytes::from("charged")).unwrap());
        guard.resolve(&only_claim(&store).await.key, done, done.then_some(outcome)).await.unwrap();
        let answered = ask(&app, "/pay", &[KEY]).await;
        if done {
            assert_eq!((answered.0, answered.2.as_str()), (StatusCode::CREATED, "charged"));
            assert_eq!(answered.1["location"], "/charges/1");
        } else {
            assert_eq!(answered.0, StatusCode::CONFLICT);
        }
    }
}

#[tokio::test]
async fn a_layer_is_told_who_the_caller_is_and_what_the_path_is() {
    let (_, guard) = guard(Lost::TakeOver);
    let layer = OnceLayer::content(guard).caller(Caller::cookie("session")).path_of(|_| "all one".into());
    let app = Router::new().route("/a", counted()).route("/b", counted()).layer(layer);
    let cookie = |cookie| [("cookie", cookie)];
    assert_eq!(ask(&app, "/a", &cookie("session=1; seen=1")).await.2, "run 1");
    assert!(ask(&app, "/b", &cookie("seen=2; session=1")).await.1.contains_key("idempotent-replayed"));
    assert!(!ask(&app, "/b", &cookie("session=2")).await.1.contains_key("idempotent-replayed"));
}

#[tokio::test]
async fn the_layer_asks_who_calls() {
    let (_, guard) = guard(Lost::TakeOver);
    let user = |request: &Parts| Some(request.headers.get("x-user")?.to_str().ok()?.to_owned());
    let app = Router::new().route("/pay", counted()).layer(OnceLayer::idempotency_key(guard).scope(user));
    let ada = |authorization| [KEY, ("x-user", "ada"), ("authorization", authorization)];
    assert_eq!(ask(&app, "/pay", &ada("old token")).await.2, "run 1");
    assert_eq!(ask(&app, "/pay", &ada("new token")).await.2, "run 1");
    assert_eq!(ask(&app, "/pay", &[KEY, ("x-user", "bob")]).await.2, "run 2");
}

#[tokio::test]
async fn a_layer_keeps_the_statuses_that_it_is_told_to() {
    for (status, second) in [(StatusCode::OK, "run 1"), (StatusCode::INTERNAL_SERVER_ERROR, "run 2")] {
        let (_, guard) = guard(Lost::TakeOver);
        let runs = Arc::new(AtomicUsize::new(0));
        let handler = post(async move || (status, format!("run {}", runs.fetch_add(1, Ordering::SeqCst) + 1)));
        let layer = OnceLayer::idempotency_key(guard).keep_if(|status| status.is_success());
        let app = Router::new().route("/pay", handler).layer(layer);
        assert_eq!(ask(&app, "/pay", &[KEY]).await.2, "run 1");
        assert_eq!(ask(&app, "/pay", &[KEY]).await.2, second, "{status}");
    }
}

#[tokio::test]
async fn a_layer_limits_how_long_a_request_runs_and_how_much_of_it_is_stored() {
    let (_, slow) = guard(Lost::Hold);
    let handler = post(async || tokio::time::sleep(LONG_LEASE).await);
    let layer = OnceLayer::idempotency_key(slow).run_limit(Duration::from_millis(50));
    let app = Router::new().route("/pay", handler).layer(layer);
    assert_eq!(ask(&app, "/pay", &[KEY]).await.0, StatusCode::GATEWAY_TIMEOUT);

    let (_, large) = guard(Lost::TakeOver);
    let layer = OnceLayer::idempotency_key(large).response_limit(3);
    let app = Router::new().route("/pay", post(async || "four")).layer(layer);
    assert_eq!(ask(&app, "/pay", &[KEY]).await.2, "four");
    let again = ask(&app, "/pay", &[KEY]).await;
    assert_eq!(again.0, StatusCode::CONFLICT, "it was done, and its response is not stored: {}", again.2);
}

#[tokio::test]
async fn an_error_of_the_service_is_passed_on_and_the_policy_decides() {
    for (lost, again) in [(Lost::TakeOver, "the service broke"), (Lost::Hold, "409 Conflict")] {
        let (_, guard) = guard(lost);
        let broken = tower::service_fn(async |_: Request<oncegate::tower::MaybeRead<Body>>| {
            Err::<axum::response::Response, _>("the service broke")
        });
        let layer = OnceLayer::idempotency_key(guard);
        let mut answers = vec![];
        for _ in 0..2 {
            let request = Request::post("/pay").header(KEY.0, KEY.1).body(Body::empty()).unwrap();
            let service = tower::ServiceBuilder::new().layer(layer.clone()).service(broken);
            answers.push(match service.oneshot(request).await {
                Ok(response) => response.status().to_string(),
                Err(error) => error.to_owned(),
            });
        }
        assert_eq!(answers, ["the service broke", again], "{lost:?}");
    }
}
