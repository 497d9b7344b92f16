//! What arrives at a collector: spans of requests and effects, links from duplicates to the span where their claim was won, and no personal
//! data.
#![cfg(feature = "crash-points")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value as Any};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{
    Client, Database, Home, On, PostOffice, Provider, SEARCH_IMPORT, Server, Workshop, claim_of, eventually, reminder,
    serve_http, sms, with,
};

/// A trace that a caller has started.
const CALLERS: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

/// An OTLP/HTTP receiver that keeps what arrives.
struct Collector {
    address: SocketAddr,
    arrived: Arrived,
}

type Arrived = Arc<Mutex<Vec<(HeaderMap, Bytes)>>>;

impl Collector {
    async fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (address, arrived) = (listener.local_addr().expect("an address"), Arrived::default());
        let seen = arrived.clone();
        serve_http(listener, move |request| take(seen.clone(), request));
        Collector { address, arrived }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts the server of this folder, which exports to this collector, with a short delay.
    fn serve(&self, home: &Home) -> Server {
        home.serve_by_clock(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &self.url()), ("OTEL_BSP_SCHEDULE_DELAY", "20")])
    }

    fn arrived(&self) -> Vec<(HeaderMap, Bytes)> {
        self.arrived.lock().expect("no holder panics").clone()
    }

    fn spans(&self) -> Vec<Span> {
        let requests =
            self.arrived().into_iter().map(|(_, body)| ExportTraceServiceRequest::decode(body).expect("OTLP"));
        let of_scopes = requests.flat_map(|request| request.resource_spans).flat_map(|spans| spans.scope_spans);
        of_scopes.flat_map(|spans| spans.spans).collect()
    }

    /// The first `count` spans of this name, once they have arrived.
    async fn named(&self, name: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans {name:?}"), || async {
            let named: Vec<Span> = self.spans().into_iter().filter(|span| span.name == name).take(count).collect();
            (named.len() == count).then_some(named)
        })
        .await
    }
}

async fn take(arrived: Arrived, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    assert_eq!(request.uri(), "/v1/traces");
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a whole request").to_bytes();
    arrived.lock().expect("no holder panics").push((head.headers, body));
    Ok(Response::default())
}

fn says(attributes: &[KeyValue], name: &str) -> Value {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    match found.and_then(|attribute| attribute.value.as_ref()?.value.clone()) {
        Some(Any::StringValue(text)) => text.into(),
        Some(Any::IntValue(number)) => number.into(),
        None => Value::Null,
        other => panic!("{name}: {other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The ids that a link names.
fn linked(span: &Span) -> (Vec<u8>, Vec<u8>) {
    let [link] = &span.links[..] else { panic!("one link: {span:?}") };
    (link.trace_id.clone(), link.span_id.clone())
}

fn ids(span: &Span) -> (Vec<u8>, Vec<u8>) {
    (span.trace_id.clone(), span.span_id.clone())
}

/// A claim on one server, and the same on another: two requests, and between them the claim.
async fn links_across(collector: &Collector, mut first: Client, mut second: Client) {
    let (id, token) = first.win(&claim_of("charge", "order 17")).await;
    second.claim(&claim_of("charge", "order 17")).await.expect_problem(409, "in-flight");
    first.settle("charge", &id, token, &json!("paid")).await.expect(200);
    second.claim(&claim_of("charge", "order 17")).await.expect(200);
    let requests = collector.named("POST /api/claims", 3).await;
    let claim = collector.named("claim", 1).await.remove(0);
    let [won, in_flight, duplicate] = ["won", "in_flight", "duplicate"].map(|answer| {
        let found: Vec<&Span> =
            requests.iter().filter(|span| says(&span.attributes, "oncegate.answer") == answer).collect();
        assert_eq!(found.len(), 1, "{answer}: {requests:?}");
        found[0]
    });
    assert!(won.links.is_empty());
    for met in [in_flight, duplicate] {
        assert_eq!(linked(met), ids(&claim));
        assert_eq!(says(&met.links[0].attributes, "oncegate.claim.id"), id);
        assert_ne!(met.trace_id, won.trace_id);
    }
    assert_eq!(linked(&claim), ids(won));
    assert!(claim.parent_span_id.is_empty());
    for span in [won, in_flight, duplicate, &claim] {
        assert_eq!(says(&span.attributes, "oncegate.guard"), "charge");
        assert_eq!(says(&span.attributes, "oncegate.claim.id"), id);
        assert_eq!(says(&span.attributes, "oncegate.workspace"), "default");
    }
    assert_eq!(says(&claim.attributes, "oncegate.claim.attempt"), 1);
    let [event] = &duplicate.events[..] else { panic!("one event: {duplicate:?}") };
    assert_eq!(says(&event.attributes, "oncegate.answer"), "duplicate");
    assert_eq!(says(&duplicate.attributes, "http.response.status_code"), 200);
    let settle = collector.named("POST /api/claims/{id}/settle", 1).await.remove(0);
    assert_eq!(says(&settle.attributes, "http.route"), "/api/claims/{id}/settle");
    assert_eq!(says(&settle.attributes, "oncegate.answer"), "applied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_duplicates_span_links_to_the_claims_and_that_to_the_one_of_the_request_that_won_it() {
    let (collector, home) = (Collector::start().await, Home::new());
    let server = collector.serve(&home);
    links_across(&collector, server.client(), server.client()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run make test"]
async fn spans_of_two_servers_on_one_store_link_to_each_other() {
    let (collector, database) = (Collector::start().await, Database::create().await);
    let home = Home::with_config(&format!("store = {:?}\n", database.url()));
    let servers = [collector.serve(&home), collector.serve(&home)];
    links_across(&collector, servers[0].client(), servers[1].client()).await;
    drop(servers);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_a_duplicate_links_to_the_same_claim_and_a_take_over_is_another() {
    let (collector, home) = (Collector::start().await, Home::new());
    let server = collector.serve(&home);
    let body = with(claim_of("g", "k"), json!({"leaseSeconds": 60}));
    server.client().win(&body).await;
    // The server exports the remaining spans when it stops.
    assert!(server.stop().0.success());
    let first = collector.named("claim", 1).await.remove(0);
    let server = collector.serve(&home);
    server.client().claim(&body).await.expect(409);
    assert_eq!(linked(&collector.named("POST /api/claims", 2).await[1]), ids(&first));
    home.set_clock_ahead(Duration::from_secs(61));
    server.client().win(&body).await;
    let second = collector.named("claim", 2).await.remove(1);
    assert_ne!(second.trace_id, first.trace_id);
    assert_eq!(says(&second.attributes, "oncegate.claim.attempt"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_buffered_is_exported_when_the_server_stops() {
    let (collector, home) = (Collector::start().await, Home::new());
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url()), ("OTEL_BSP_SCHEDULE_DELAY", "3600000")];
    let server = home.serve_with(&variables);
    server.client().win(&claim_of("g", "k")).await;
    let stopping = Instant::now();
    assert!(server.stop().0.success());
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
    assert_eq!(collector.spans().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_callers_trace_is_continued_and_passed_on() {
    let collector = Collector::start().await;
    let office = PostOffice::open(On::Sqlite).await;
    let server = collector.serve(&office.home);
    let asked = |flags: &str| server.client().header("traceparent", &format!("00-{CALLERS}-00f067aa0ba902b7-{flags}"));
    asked("01").header("tracestate", "vendor=1").post("/api/messages", &sms("+15550100", "hello")).await.expect(201);
    let request = collector.named("POST /api/messages", 1).await.remove(0);
    let send = collector.named("send message", 1).await.remove(0);
    assert_eq!((hex(&request.trace_id), hex(&request.parent_span_id)), (CALLERS.into(), "00f067aa0ba902b7".into()));
    assert_eq!((request.kind(), send.kind()), (SpanKind::Server, SpanKind::Client));
    assert_eq!((&send.trace_id, &send.parent_span_id), (&request.trace_id, &request.span_id));
    assert_eq!(says(&send.attributes, "oncegate.channel"), "http");
    let passed_on = &office.provider.arrivals("hello")[0].headers;
    assert_eq!(passed_on["traceparent"], format!("00-{CALLERS}-{}-01", hex(&send.span_id)));
    assert_eq!(passed_on["tracestate"], "vendor=1");
    // An unsampled request is not exported, and tells its receivers so.
    asked("00").post("/api/messages", &sms("+15550100", "unsampled")).await.expect(200);
    let passed_on = office.provider.arrivals("unsampled")[0].headers["traceparent"].clone();
    let passed_on = passed_on.to_str().expect("text");
    assert!(passed_on.starts_with(&format!("00-{CALLERS}-")) && passed_on.ends_with("-00"), "{passed_on}");
    server.stop();
    assert_eq!(collector.spans().iter().filter(|span| span.name == "send message").count(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_gets_the_span_of_its_try_and_what_fails_is_an_error_in_one_word() {
    let collector = Collector::start().await;
    let mut shop = Workshop::open(On::Sqlite).await;
    // Only the next server exports.
    shop.servers.clear();
    let server = collector.serve(&shop.home);
    let payload = json!({"text": "s3cr3t #400"});
    let action = json!({"actionType": "hook", "payload": payload});
    let id = server.client().post("/api/actions", &action).await.expect(201).text("id");
    let run = collector.named("run action", 1).await.remove(0);
    assert_eq!(run.kind(), SpanKind::Consumer);
    assert_eq!(says(&run.attributes, "oncegate.action.id"), id);
    assert_eq!(says(&run.attributes, "oncegate.action.type"), "hook");
    let status = run.status.as_ref().expect("a status");
    assert_eq!((status.code, &*status.message), (2, "failed"));
    assert_eq!(says(&run.attributes, "error.type"), "failed");
    let arrived = &shop.provider.arrivals("s3cr3t #400")[0];
    assert_eq!(arrived.headers["traceparent"], format!("00-{}-{}-01", hex(&run.trace_id), hex(&run.span_id)));
    assert!(!arrived.headers.contains_key("tracestate"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_personal_is_in_what_arrives() {
    let (collector, provider) = (Collector::start().await, Provider::start().await);
    let (secret, phone) = ("s3cr3t", "+15550199");
    let home = Home::with_config(&format!(
        r#"
[outgoing]
allow = ["127.0.0.0/8"]
[messages.channel.sms]
kind = "http"
url = {url:?}
[actions.type.hook]
handler = "webhook"
url = {url:?}
[sagas]
files = [{saga:?}]
[sends]
lost = "hold"
reconcile_url = {url:?}
"#,
        url = provider.url(),
        saga = SEARCH_IMPORT
    ));
    home.set_clock_ahead(Duration::ZERO);
    let server = collector.serve(&home);
    let mut client = server.client();
    let message = with(sms(phone, secret), json!({"recipientName": secret, "metadata": {"m": secret}}));
    for text in ["", "#500"] {
        let message = with(message.clone(), json!({"message": format!("{secret}{text}")}));
        for _ in 0..2 {
            server.client().header("idempotency-key", &format!("{secret}{text}")).post("/api/messages", &message).await;
        }
        client.post("/api/messages", &message).await;
    }
    let parts = json!({"guard": "g", "key": [secret, phone], "attributes": {"a": secret}});
    client.claim(&parts).await.expect(201);
    client.claim(&with(parts, json!({"waitSeconds": 0.01}))).await.expect(409);
    client.post("/api/actions", &json!({"actionType": "hook", "payload": {"entityId": secret}})).await.expect(201);
    client
        .post("/api/reminders", &with(reminder(secret, "sms", secret), json!({"recipientPhone": phone})))
        .await
        .expect(201);
    let event = json!({"type": "SearchUploadSaved", "id": secret, "data": {"searchId": secret}});
    client.post("/api/events", &event).await.expect(200);
    client.post("/api/events", &event).await.expect(200);
    let send = json!({"campaignId": secret, "recipientId": phone, "leaseSeconds": 1});
    client.post("/api/sends", &send).await.expect(201);
    home.set_clock_ahead(Duration::from_secs(2));
    client.post("/api/sends", &send).await;
    client.get(&format!("/api/claims?guard={secret}")).await;
    client.get(&format!("/api/{secret}/{phone}")).await.expect(404);
    for (name, count) in [
        ("POST /api/messages", 6),
        ("send message", 2),
        ("run action", 1),
        ("send reminder", 1),
        ("apply event", 2),
        ("ask reconcile hook", 1),
        ("GET", 1),
    ] {
        collector.named(name, count).await;
    }
    let duplicates = collector.named("POST /api/messages", 6).await;
    let linking = duplicates.iter().filter(|span| !span.links.is_empty()).count();
    assert!(linking >= 4, "{duplicates:?}");
    assert!(server.stop().0.success());
    for (_, body) in collector.arrived() {
        for personal in [secret, phone] {
            let found = body.windows(personal.len()).position(|bytes| bytes == personal.as_bytes());
            assert!(found.is_none(), "{personal}: {}", String::from_utf8_lossy(&body));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_names_and_json_are_as_the_variables_say() {
    let (collector, home) = (Collector::start().await, Home::new());
    let server = home.serve_with(&[
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &format!("{}/v1/traces", collector.url())),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20t0ken"),
        ("OTEL_SERVICE_NAME", "gate"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ]);
    server.client().win(&claim_of("g", "k")).await;
    server.stop();
    let (headers, body) = collector.arrived().remove(0);
    assert_eq!(
        (&headers["content-type"], &headers["authorization"]),
        (&"application/json".parse().unwrap(), &"Bearer t0ken".parse().unwrap())
    );
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let resource = body["resourceSpans"][0]["resource"]["attributes"].to_string();
    assert!(resource.contains("gate") && resource.contains("deployment.environment.name"), "{resource}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_never_answers_slows_nobody_and_is_spoken_of_once() {
    let (silent, home) = (TcpListener::bind("127.0.0.1:0").await.expect("a free port"), Home::new());
    let server = home.serve_with(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}", silent.local_addr().expect("an address"))),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "8"),
    ]);
    let mut client = server.client();
    let began = Instant::now();
    for number in 0..300 {
        client.win(&claim_of("g", &number.to_string())).await;
    }
    // A request that waited for the collector would take a third of a second.
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    server.logged("traces.not_exported", 1).await;
    server.logged("traces.queue_full", 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for event in ["traces.not_exported", "traces.queue_full"] {
        assert_eq!(server.log().iter().filter(|line| line["event"] == event).count(), 1, "{event}");
    }
    let metrics = client.get("/metrics").await.text;
    assert!(metrics.contains("oncegate_spans_dropped_total"), "{metrics}");
    let stopping = Instant::now();
    assert!(server.stop().0.success());
    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_comes_back_is_spoken_of_again() {
    let home = Home::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let url = format!("http://{address}");
    let server = home.serve_with(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &url), ("OTEL_BSP_SCHEDULE_DELAY", "10")]);
    server.client().win(&claim_of("g", "away")).await;
    server.logged("traces.not_exported", 1).await;
    let listener = TcpListener::bind(address).await.expect("the port is free");
    serve_http(listener, |request| take(Arrived::default(), request));
    server.client().win(&claim_of("g", "back")).await;
    server.logged("traces.exported_again", 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn off_unless_asked_for_and_then_nobody_is_called_or_told() {
    let office = PostOffice::open(On::Sqlite).await;
    let collector = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let url = format!("http://{}", collector.local_addr().expect("an address"));
    let soon = ("OTEL_BSP_SCHEDULE_DELAY", "1");
    for (number, variables) in [
        &[soon, ("OTEL_SERVICE_NAME", "gate")][..],
        &[soon, ("OTEL_EXPORTER_OTLP_ENDPOINT", &url), ("OTEL_SDK_DISABLED", "true")],
        &[soon, ("OTEL_EXPORTER_OTLP_ENDPOINT", &url), ("OTEL_TRACES_EXPORTER", "none")],
    ]
    .into_iter()
    .enumerate()
    {
        let server = office.serve(variables);
        let text = format!("quiet {number}");
        let mut client = server.client().header("traceparent", &format!("00-{CALLERS}-00f067aa0ba902b7-01"));
        client.post("/api/messages", &sms("+15550100", &text)).await;
        assert!(!office.provider.arrivals(&text)[0].headers.contains_key("traceparent"));
        let (status, said) = server.stop();
        assert!(status.success() && !said.contains("traces."), "{said}");
    }
    let called = tokio::time::timeout(Duration::from_millis(300), collector.accept()).await;
    assert!(called.is_err(), "{called:?}");
}

#[test]
fn what_cannot_be_had_is_refused_when_the_server_starts() {
    let home = Home::new();
    let refused = |name: &str, value: &str| {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        home.run_with(["serve", "--listen", "127.0.0.1:0"], &[endpoint, (name, value)])
    };
    refused("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc").expect_failure(
        2,
        "OTEL_EXPORTER_OTLP_PROTOCOL: \"grpc\" is not spoken here",
        "http/protobuf",
    );
    refused("OTEL_TRACES_SAMPLER", "xray").expect_failure(2, "OTEL_TRACES_SAMPLER", "parentbased_always_on");
}
