//! The reference pages: the API, from the same description as `/openapi.json`, and one page for each problem.

use askama::Template;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::book::{Contents, ENDPOINTS, unless_known};
use super::parts::Tone;
use super::session::Visitor;
use super::{Frame, Named, Shown, render};
use oncegate_http::api::description;
use oncegate_http::app::Nearby;
use oncegate_http::problem::Kind;

#[derive(Template)]
#[template(path = "openapi.html")]
struct Endpoints {
    frame: Frame,
    contents: Contents,
    groups: Vec<Group>,
    problems: &'static [Kind],
}

#[derive(Template)]
#[template(path = "problem.html")]
struct ProblemPage {
    frame: Frame,
    kind: Kind,
}

struct Group {
    name: String,
    endpoints: Vec<Endpoint>,
}

struct Endpoint {
    id: String,
    method: String,
    tone: Tone,
    path: String,
    summary: String,
    description: Option<String>,
    fields: Vec<Fields>,
    /// The answers, by status.
    answers: Vec<(String, String)>,
}

/// The fields of one part of a request.
struct Fields {
    title: &'static str,
    fields: Vec<Field>,
}

struct Field {
    name: String,
    kind: String,
    says: String,
    is_required: bool,
}

pub async fn reference(_: Nearby, headers: HeaderMap) -> Response {
    let described = description();
    let names = described["tags"].as_array().into_iter().flatten().filter_map(|tag| tag["name"].as_str());
    let group = |name: &str| Group { name: name.to_owned(), endpoints: endpoints(described, name) };
    let (frame, contents) = (Frame::bare("The API"), Contents { here: ENDPOINTS });
    unless_known(&headers, &Endpoints { frame, contents, groups: names.map(group).collect(), problems: Kind::ALL })
}

/// Any visitor may read this page; a visitor who is logged in also gets the menu.
pub async fn problem(_: Nearby, visitor: Result<Visitor, Response>, Named(name): Named<String>) -> Shown {
    let kind = Kind::named(&name).ok_or_else(|| Kind::NotFound.because("there is no such problem"))?;
    let frame = visitor.map_or_else(|_| Frame::bare(kind.title()), |visitor| Frame::new(&visitor, "", kind.title()));
    Ok(render(StatusCode::OK, &ProblemPage { frame, kind }))
}

/// The text without code marks, because it is shown as plain text.
fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().replace('`', "")
}

fn endpoints(described: &Value, tag: &str) -> Vec<Endpoint> {
    let mut endpoints = vec![];
    for (path, methods) in described["paths"].as_object().into_iter().flatten() {
        for (method, operation) in methods.as_object().into_iter().flatten() {
            if operation["tags"][0] == tag {
                endpoints.push(endpoint(described, path, method, operation));
            }
        }
    }
    endpoints
}

fn endpoint(described: &Value, path: &str, method: &str, operation: &Value) -> Endpoint {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let field = |parameter: &Value| Field {
        name: text(&parameter["name"]),
        kind: kind(&parameter["schema"]),
        says: text(&parameter["description"]),
        is_required: parameter["required"] == true,
    };
    let body = resolved(described, &operation["requestBody"]["content"]["application/json"]["schema"]);
    let fields = [
        Fields { title: "Parameters", fields: parameters.map(field).collect() },
        Fields { title: "Body", fields: properties(described, body) },
    ];
    let answers = operation["responses"].as_object().into_iter().flatten();
    Endpoint {
        id: format!("{method}{}", path.replace(|c: char| !c.is_ascii_alphanumeric(), "-")),
        method: method.to_uppercase(),
        tone: if method == "get" { Tone::Good } else { Tone::Busy },
        path: path.to_owned(),
        summary: text(&operation["summary"]),
        description: Some(text(&operation["description"])).filter(|text| !text.is_empty()),
        fields: fields.into_iter().filter(|fields| !fields.fields.is_empty()).collect(),
        answers: answers.map(|(status, answer)| (status.clone(), text(&answer["description"]))).collect(),
    }
}

fn properties(described: &Value, schema: &Value) -> Vec<Field> {
    let required = |name: &str| schema["required"].as_array().into_iter().flatten().any(|required| required == name);
    let properties = schema["properties"].as_object().into_iter().flatten();
    let field = |(name, property): (&String, &Value)| Field {
        name: name.clone(),
        kind: kind(resolved(described, property)),
        says: text(&property["description"]),
        is_required: required(name),
    };
    properties.map(field).collect()
}

/// The schema that a reference points to.
fn resolved<'a>(described: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
        Some(pointer) => described.pointer(pointer).unwrap_or(schema),
        None => schema,
    }
}

fn kind(schema: &Value) -> String {
    let one = |value: &Value| match value.as_str() {
        Some("null") | None => None,
        Some(name) => Some(name.to_owned()),
    };
    let names: Vec<String> = match &schema["type"] {
        Value::Array(names) => names.iter().filter_map(one).collect(),
        name => one(name).into_iter().collect(),
    };
    let choices: Vec<String> = schema["enum"].as_array().into_iter().flatten().map(text).collect();
    match (choices.is_empty(), names.is_empty()) {
        (false, _) => choices.join(" or "),
        (true, false) => names.join(" or "),
        (true, true) => "anything".into(),
    }
}
