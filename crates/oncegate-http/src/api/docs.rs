//! The API's description, made from the code.

use std::sync::LazyLock;

use axum::response::IntoResponse;
use serde_json::{Value, json};
use utoipa::OpenApi;

use super::{
    Nearby, actions, audit, claims, decisions, events, health, keys, leads, messages, reminders, sagas, sends,
};
use crate::problem::Kind;

#[derive(OpenApi)]
#[openapi(
    info(title = "Oncegate", description = "Claims: an effect happens once, though its request comes twice. \
        Errors are application/problem+json; their `type` is a page of this server."),
    paths(
        claims::create, claims::batch::batch, claims::find, claims::list, claims::show, claims::forget, claims::renew,
        claims::settle, claims::fail, claims::release, claims::resolve,
        actions::create, actions::list, actions::show, actions::cancel, actions::retry, actions::run_now, actions::resolve,
        actions::remote::lease, actions::remote::renew, actions::remote::complete, actions::remote::fail,
        sends::begin, sends::list, sends::show, sends::sent, sends::failed, sends::renew, sends::resolve,
        reminders::create, reminders::list, reminders::show, reminders::edit, reminders::cancel, reminders::send, reminders::resolve,
        decisions::follow, events::create, events::s3, sagas::list, sagas::show, sagas::list_letters, sagas::show_letter, sagas::retry_letter,
        sagas::discard_letter, messages::create, messages::list, messages::show, messages::resolve, leads::create, leads::list, leads::show, leads::show_thread,
        keys::list, keys::create, keys::revoke, audit::list,
        health::healthz, health::readyz, health::metrics
    ),
    tags((name = "messages"), (name = "leads"), (name = "actions"), (name = "sends"), (name = "reminders"), (name = "sagas"), (name = "claims"), (name = "decisions"), (name = "keys"), (name = "audit"), (name = "health"))
)]
struct Api;

static DESCRIPTION: LazyLock<Value> = LazyLock::new(|| {
    let mut description = serde_json::to_value(Api::openapi()).expect("the description is JSON");
    add_what_all_share(&mut description);
    description
});

/// The OpenAPI document.
pub fn description() -> &'static Value {
    &DESCRIPTION
}

/// Adds keys, and the problems that every endpoint of `/api` can answer with.
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
            // Some endpoints declare an error answer with content of its own.
            if answer["content"].is_null() {
                answer["content"] = problem.clone();
            }
        }
    }
}

pub async fn openapi(_: Nearby) -> impl IntoResponse {
    /// The text is large and needs no key, so it is built once.
    static TEXT: LazyLock<String> = LazyLock::new(|| format!("{:#}", *DESCRIPTION));
    ([("content-type", "application/json")], TEXT.as_str())
}
