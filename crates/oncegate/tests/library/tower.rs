//! The tower layer, in front of an axum service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use axum::routing::post;
use oncegate::tower::OnceLayer;
use oncegate::{Gate, Policy};
use tokio::sync::Notify;
use tower::ServiceExt;

struct World {
    app: Router,
    runs: Arc<AtomicU32>,
    go_on: Arc<Notify>,
}

/// A service that counts its effects: `/charge` has one at once, `/slow` when the test says so, `/refuse` never has one.
async fn world(layer: impl FnOnce(oncegate::Guard) -> OnceLayer, wait: Duration) -> World {
    let gate = Gate::open("memory:").await.expect("opens");
    let guard = gate.guard("http", Policy::default()).expect("opens").waiting(wait);
    let (runs, go_on) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let count = {
        let runs = runs.clone();
        move || runs.fetch_add(1, Ordering::SeqCst) + 1
    };
    let (charge, refuse, slow, large) = (count.clone(), count.clone(), count.clone(), count);
    let slow_go_on = go_on.clone();
    let app = Router::new()
        .route(
            "/charge",
            post(async move || {
                let headers = [(header::LOCATION, "/charges/1"), (header::SET_COOKIE, "session=1")];
                (StatusCode::CREATED, headers, format!("charge {}", charge()))
            }),
        )
        .route("/refuse", post(async move || (StatusCode::BAD_REQUEST, refuse().to_string())))
        .route(
            "/slow",
            post(async move || {
                let run = slow();
                slow_go_on.notified().await;
                run.to_string()
            }),
        )
        .route("/large", post(async move || "x".repeat(2 << 20) + &large().to_string()))
        .layer(layer(guard));
    World { app, runs, go_on }
}

#[tokio::test]
async fn two_callers_with_the_same_key_do_not_get_each_others_responses() {
    let world = world(OnceLayer::idempotency_key, Duration::ZERO).await;
    for (caller, answer) in [("alice", "charge 1"), ("bob", "charge 2"), ("alice", "charge 1")] {
        let request = Request::post("/charge").header("idempotency-key", "k").header("authorization", caller);
        let response = world.app.clone().oneshot(request.body(Body::from("a")).unwrap()).await.unwrap();
        assert_eq!(to_bytes(response.into_body(), usize::MAX).await.unwrap(), answer);
    }
}

async fn ask(app: &Router, path: &str, key: Option<&str>, body: &str) -> (StatusCode, axum::http::HeaderMap, String) {
    let mut request = Request::post(path);
    if let Some(key) = key {
        request = request.header("idempotency-key", key);
    }
    let response =
        app.clone().oneshot(request.body(Body::from(body.to_owned())).expect("answers")).await.expect("answers");
    let (parts, body) = response.into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("answers");
    (parts.status, parts.headers, String::from_utf8(body.to_vec()).expect("answers"))
}

#[tokio::test]
async fn a_repeated_key_gets_the_first_response_again_and_another_body_is_refused() {
    let world = world(OnceLayer::idempotency_key, Duration::ZERO).await;
    let first = ask(&world.app, "/charge", Some("k1"), "a").await;
    assert_eq!((first.0, first.2.as_str()), (StatusCode::CREATED, "charge 1"));
    let again = ask(&world.app, "/charge", Some("\"k1\""), "a").await;
    assert_eq!((again.0, again.2.as_str()), (StatusCode::CREATED, "charge 1"));
    assert_eq!(
        (&again.1["idempotent-replayed"], &again.1["location"]),
        (&"true".parse().unwrap(), &first.1["location"])
    );
    assert!(!again.1.contains_key("set-cookie"), "a cookie was for the first client");
    assert_eq!(ask(&world.app, "/charge", Some("k1"), "b").await.0, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(ask(&world.app, "/charge", Some("k2"), "a").await.2, "charge 2");
    assert_eq!(ask(&world.app, "/charge", None, "a").await.2, "charge 3", "without a key nothing is guarded");
    assert_eq!(ask(&world.app, "/charge", Some("not ok"), "a").await.0, StatusCode::BAD_REQUEST);
    assert_eq!(world.runs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn the_same_content_is_a_duplicate_and_one_byte_makes_it_another() {
    let world = world(OnceLayer::content, Duration::ZERO).await;
    assert_eq!(ask(&world.app, "/charge", None, "a").await.2, "charge 1");
    assert_eq!(ask(&world.app, "/charge", None, "a").await.2, "charge 1");
    assert_eq!(ask(&world.app, "/charge", None, "a ").await.2, "charge 2");
    assert_eq!(ask(&world.app, "/charge?x=1", None, "a").await.2, "charge 3");
}

#[tokio::test]
async fn what_is_not_guarded_passes_as_it_is_however_large() {
    let app = Router::new().route("/echo", post(async |body: Body| body));
    let gate = Gate::open("memory:").await.unwrap();
    let app = app.layer(OnceLayer::idempotency_key(gate.guard("http", Policy::default()).unwrap()).body_limit(10));
    assert_eq!(ask(&app, "/echo", None, &"x".repeat(3 << 20)).await.2.len(), 3 << 20);
    assert_eq!(ask(&app, "/echo", Some("k"), "eleven byte").await.0, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn what_was_refused_before_anything_happened_is_new_the_next_time() {
    let world = world(OnceLayer::idempotency_key, Duration::ZERO).await;
    assert_eq!(ask(&world.app, "/refuse", Some("k"), "a").await.2, "1");
    assert_eq!(ask(&world.app, "/refuse", Some("k"), "a").await.2, "2");
}

#[tokio::test]
async fn a_response_too_large_to_keep_leaves_a_tombstone_and_no_second_run() {
    let world = world(OnceLayer::idempotency_key, Duration::ZERO).await;
    assert_eq!(ask(&world.app, "/large", Some("k"), "a").await.0, StatusCode::OK);
    assert_eq!(ask(&world.app, "/large", Some("k"), "a").await.0, StatusCode::CONFLICT);
    assert_eq!(world.runs.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_does_not_stop_its_request_and_its_repeat_gets_the_answer() {
    let world = world(OnceLayer::idempotency_key, Duration::from_secs(20)).await;
    let impatient = ask(&world.app, "/slow", Some("k"), "a");
    assert!(tokio::time::timeout(Duration::from_millis(50), impatient).await.is_err());
    let (again, ()) = tokio::join!(ask(&world.app, "/slow", Some("k"), "a"), async { world.go_on.notify_one() });
    assert_eq!((again.0, again.2.as_str()), (StatusCode::OK, "1"));
    assert_eq!(again.1["idempotent-replayed"], "true");
}

#[tokio::test]
async fn while_the_first_is_under_way_a_repeat_that_does_not_wait_is_told_to_come_back() {
    let world = world(OnceLayer::idempotency_key, Duration::ZERO).await;
    let app = world.app.clone();
    let first = tokio::spawn(async move { ask(&app, "/slow", Some("k"), "a").await });
    while world.runs.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    let busy = ask(&world.app, "/slow", Some("k"), "a").await;
    assert_eq!((busy.0, &busy.1["retry-after"]), (StatusCode::CONFLICT, &"1".parse().unwrap()));
    world.go_on.notify_one();
    assert_eq!(first.await.unwrap().0, StatusCode::OK);
}
