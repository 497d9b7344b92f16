//! The pages that explain: the API's description, made from the code, and one page for each problem.

use std::fmt::Write;
use std::sync::LazyLock;

use axum::http::HeaderName;
use axum::response::{Html, IntoResponse};
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::extract::Named;
use super::{Nearby, actions, claims, events, health, leads, messages, reminders, sagas, sends};
use crate::problem::{Kind, Problem};

#[derive(OpenApi)]
#[openapi(
    info(title = "Oncegate", description = "Claims: an effect happens once, though its request comes twice. \
        Errors are application/problem+json; their `type` is a page of this server."),
    paths(
        claims::create, claims::batch::batch, claims::find, claims::list, claims::show, claims::forget, claims::renew,
        claims::settle, claims::fail, claims::release, claims::resolve,
        actions::create, actions::list, actions::show, actions::cancel, actions::retry, actions::run_now,
        actions::remote::lease, actions::remote::renew, actions::remote::complete, actions::remote::fail,
        sends::begin, sends::list, sends::show, sends::sent, sends::failed, sends::renew, sends::resolve,
        reminders::create, reminders::list, reminders::show, reminders::edit, reminders::cancel, reminders::send,
        events::create, events::s3, sagas::list, sagas::show, sagas::list_letters, sagas::show_letter, sagas::retry_letter,
        sagas::discard_letter, messages::create, messages::list, messages::show, leads::create, leads::list, leads::show, leads::show_thread,
        health::healthz, health::readyz, health::metrics
    ),
    tags((name = "messages"), (name = "leads"), (name = "actions"), (name = "sends"), (name = "reminders"), (name = "sagas"), (name = "claims"), (name = "health"))
)]
struct Api;

static DESCRIPTION: LazyLock<String> = LazyLock::new(|| {
    let mut description = serde_json::to_value(Api::openapi()).expect("the description is JSON");
    add_what_all_share(&mut description);
    format!("{description:#}")
});

/// Keys, and the problems that every endpoint of `/api` can answer with.
fn add_what_all_share(description: &mut Value) {
    let text = json!({"type": "string"});
    description["components"]["schemas"]["Problem"] = json!({
        "type": "object", "description": "RFC 9457.", "required": ["type", "title", "status", "detail", "hint", "requestId"],
        "properties": {"type": text, "title": text, "status": {"type": "integer"}, "detail": text, "hint": text,
                       "requestId": text, "retryAfterSeconds": {"type": "integer"}},
    });
    description["components"]["securitySchemes"]["key"] = json!({"type": "http", "scheme": "bearer", "description": "`og_…`. While no key exists, local requests need none."});
    let problem = json!({"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}});
    let of_api =
        description["paths"].as_object_mut().into_iter().flatten().filter(|(path, _)| path.starts_with("/api"));
    for (_, operation) in of_api.flat_map(|(_, methods)| methods.as_object_mut().into_iter().flatten()) {
        operation["security"] = json!([{"key": []}]);
        let takes_body = operation.get("requestBody").is_some();
        let of_bodies: &[Kind] =
            if takes_body { &[Kind::RequestTimeout, Kind::PayloadTooLarge, Kind::UnsupportedMediaType] } else { &[] };
        let of_all =
            [Kind::InvalidRequest, Kind::Unauthorized, Kind::Forbidden, Kind::RateLimited, Kind::StoreUnavailable];
        for kind in of_all.iter().chain(of_bodies) {
            let answer = &mut operation["responses"][kind.status().as_str()];
            if answer.is_null() {
                *answer = json!({"description": kind.title()});
            }
        }
        let answers = operation["responses"].as_object_mut().into_iter().flatten();
        for (_, answer) in answers.filter(|(status, _)| status.starts_with(['4', '5'])) {
            // Some answers of their own are no successes.
            if answer["content"].is_null() {
                answer["content"] = problem.clone();
            }
        }
    }
}

pub async fn openapi(_: Nearby) -> impl IntoResponse {
    ([("content-type", "application/json")], DESCRIPTION.as_str())
}

/// Nothing from outside, no scripts, no frames.
const POLICY: (HeaderName, &str) = (
    axum::http::header::CONTENT_SECURITY_POLICY,
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
);

fn page(title: &str, body: &str) -> impl IntoResponse + use<> {
    let html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>{title} · Oncegate</title><style>:root{{color-scheme:light dark}}body{{font:16px/1.5 system-ui;\
         max-width:46rem;margin:3rem auto;padding:0 1rem}}code,pre{{font:14px ui-monospace,monospace}}pre{{overflow:auto}}\
         td,th{{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}}</style>\
         <p><a href=/>Oncegate</a></p><h1>{title}</h1>{body}</html>"
    );
    ([POLICY], Html(html))
}

pub async fn home(_: Nearby) -> impl IntoResponse {
    page(
        "Oncegate",
        "<p>The server is running. <a href=/docs>The API</a> · <a href=/openapi.json>openapi.json</a> · \
         <a href=/readyz>readyz</a> · <a href=/metrics>metrics</a></p><p>A first message; the same again is a duplicate:</p>\
         <pre>curl -s localhost:4600/api/messages -H 'content-type: application/json' \\\n     -d '{\"recipientPhone\":\"+15550100\",\"message\":\"Your table is ready.\"}'</pre>",
    )
}

/// The endpoints, from the same description as `/openapi.json`, and the problems.
pub async fn reference(_: Nearby) -> impl IntoResponse {
    let description: serde_json::Value = serde_json::from_str(&DESCRIPTION).expect("it was made as JSON");
    let mut body =
        String::from("<p>Machine-readable: <a href=/openapi.json>openapi.json</a></p><h2>Endpoints</h2><table>");
    for (path, methods) in description["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            let summary = operation["summary"].as_str().or(operation["description"].as_str()).unwrap_or_default();
            let _ = write!(
                body,
                "<tr><td><code>{}</code><td><code>{path}</code><td>{}",
                method.to_uppercase(),
                escape(summary)
            );
        }
    }
    body.push_str("</table><h2>Problems</h2><table>");
    for kind in Kind::ALL {
        let (name, title) = (kind.name(), kind.title());
        let _ = write!(
            body,
            "<tr><td>{}<td><a href=/problems/{name}><code>{name}</code></a><td>{title}",
            kind.status().as_u16()
        );
    }
    body.push_str("</table>");
    page("The API", &body)
}

pub async fn problem(_: Nearby, Named(name): Named) -> Result<impl IntoResponse, Problem> {
    let kind = Kind::named(&name).ok_or_else(|| Kind::NotFound.because("there is no such problem"))?;
    let body = format!(
        "<p><code>{}</code> · status {}</p><p>{}</p><p><b>What to do:</b> {}</p>",
        kind.name(),
        kind.status().as_u16(),
        escape(kind.page()),
        escape(kind.hint())
    );
    Ok(page(kind.title(), &body))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
