//! The dashboard: for the engineer on call, and for first-time visitors.
//!
//! The server renders the pages, and they work without a script. The only script keeps them up to date by server-sent events (`live.rs`).
//! Actions of people are forms: each asks for a reason, needs the role `operate`, and calls the same functions as the API. Nothing is
//! loaded
//! from other sites.

mod actions;
mod audit;
mod book;
mod chart;
mod claims;
mod explains;
mod keys;
mod letters;
mod live;
mod messages;
mod overview;
mod parts;
mod reminders;
mod sagas;
mod search;
mod sends;
mod session;

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use askama::Template;
use axum::Router;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::request::Parts;
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use oncegate::sagas::PICTURE_STYLE;
use oncegate::sends::Resolved;
use oncegate::store::Role;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use url::form_urlencoded;
use uuid::Uuid;

use self::parts::{Body, Detail, List};
use self::session::Visitor;
use oncegate_http::api::{RawForm, check_note, page_cursor};
use oncegate_http::app::App;
use oncegate_http::auth::hex;
use oncegate_http::problem::{Kind, Problem};
use oncegate_http::routes::{Needs, routes};

/// The number of rows on a page of a list.
const PAGE: usize = 50;

const NOTHING: Needs = Needs::Nothing;
const SEND: Needs = Needs::Session(Role::Send);
const OPERATE: Needs = Needs::Session(Role::Operate);
const ADMIN: Needs = Needs::Session(Role::Admin);

routes! {
    "/" => { get SEND => overview::page, }
    "/live" => { get SEND => live::events, }
    "/decisions" => { get SEND => live::page, }
    "/search" => { get OPERATE => search::page, }
    "/claims" => { get OPERATE => claims::list, }
    "/claims/{id}" => { get SEND => claims::show, }
    "/claims/{id}/forget" => { post OPERATE => claims::forget, }
    "/claims/{id}/resolve" => { post OPERATE => claims::resolve, }
    "/messages" => { get OPERATE => messages::list, }
    "/messages/{id}" => { get SEND => messages::show, }
    "/messages/{id}/resolve" => { post OPERATE => messages::resolve, }
    "/leads" => { get OPERATE => messages::leads, }
    "/leads/{id}" => { get OPERATE => messages::lead, }
    "/threads/{id}" => { get OPERATE => messages::thread, }
    "/actions" => { get OPERATE => actions::list, }
    "/actions/{id}" => { get SEND => actions::show, }
    "/actions/{id}/{verb}" => { post OPERATE => actions::act, }
    "/sagas" => { get OPERATE => sagas::list, }
    "/sagas/{saga}" => { get OPERATE => sagas::instances, }
    "/sagas/{saga}/{correlation_id}" => { get SEND => sagas::show, }
    "/dead-letters" => { get OPERATE => letters::list, }
    "/dead-letters/{id}" => { get OPERATE => letters::show, }
    "/dead-letters/{id}/{verb}" => { post OPERATE => letters::act, }
    "/sends" => { get OPERATE => sends::list, }
    "/sends/{id}" => { get SEND => sends::show, }
    "/sends/{id}/resolve" => { post OPERATE => sends::resolve, }
    "/reminders" => { get OPERATE => reminders::list, }
    "/reminders/{id}" => { get SEND => reminders::show, }
    "/reminders/{id}/{verb}" => { post OPERATE => reminders::act, }
    "/audit" => { get OPERATE => audit::list, }
    "/keys" => { get ADMIN => keys::list, post ADMIN => keys::create, }
    "/keys/{id}" => { get ADMIN => keys::show, }
    "/keys/{id}/revoke" => { post ADMIN => keys::revoke, }
    "/login" => { get NOTHING => session::login_page, post NOTHING => session::login, }
    "/logout" => { post NOTHING => session::logout, }
    // Only while the server is open: a key has its own workspace.
    "/workspace" => { post SEND => session::choose_workspace, }
    "/docs" => { get NOTHING => book::first, }
    "/docs/" => { get NOTHING => book::first, }
    "/docs/openapi" => { get NOTHING => explains::reference, }
    "/docs/search" => { get NOTHING => book::results, }
    "/docs/{*file}" => { get NOTHING => book::file, }
    "/problems/{name}" => { get NOTHING => explains::problem, }
    "/assets/{file}" => { get NOTHING => asset, }
}

/// Whether browsers may keep what is at this path: files and the book have no data.
pub fn may_be_kept(path: &str) -> bool {
    let book = path.strip_prefix(book::BOOK);
    path.starts_with("/assets/") || book.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

pub fn router() -> Router<Arc<App>> {
    routed()
}

/// The state that requests share.
#[derive(Default)]
pub struct Shared {
    sessions: session::Seen,
    numbers: overview::Cache,
}

/// Scripts, styles and pictures are our own files; forms post to us; no site may show us in a frame.
const POLICY: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    // The pages contain personal data.
    (header::CACHE_CONTROL, "no-store"),
];

struct Asset {
    name: &'static str,
    media: &'static str,
    text: String,
    /// The path depends on the content, so that browsers may cache the file.
    path: String,
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    let styles = [include_str!("assets/app.css"), PICTURE_STYLE].concat();
    let files = [
        ("app.css", "text/css; charset=utf-8", styles),
        ("live.js", "text/javascript; charset=utf-8", include_str!("assets/live.js").to_owned()),
        ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg").to_owned()),
    ];
    let asset = |(name, media, text): (&'static str, _, String)| {
        let hash = hex(&Sha256::digest(&text)[..6]);
        Asset { name, media, text, path: format!("/assets/{name}?{hash}") }
    };
    files.into_iter().map(asset).collect()
});

/// For files whose path depends on their content.
const CACHED: &str = "public, max-age=31536000, immutable";

async fn asset(Path(file): Path<String>) -> Result<Response, Problem> {
    let asset = ASSETS.iter().find(|asset| asset.name == file);
    let asset = asset.ok_or_else(|| Kind::NotFound.because("there is no such path"))?;
    Ok(([(header::CONTENT_TYPE, asset.media), (header::CACHE_CONTROL, CACHED)], asset.text.as_str()).into_response())
}

/// The parts around every page.
pub struct Frame {
    pub title: String,
    who: Option<Who>,
    /// The menu entry of this page.
    under: &'static str,
    /// The URL of the page's live updates.
    live: Option<String>,
    searched: String,
}

struct Who {
    workspace: String,
    name: String,
    role: &'static str,
    may: Role,
    is_open: bool,
}

struct Entry {
    name: &'static str,
    href: &'static str,
    is_here: bool,
}

/// The name of each page, its path, the role that sees it in the menu, and its section of the book.
const MENU: [(&str, &str, Role, &str); 11] = [
    ("Overview", "/", Role::Send, "/docs/operate/dashboard#the-first-page"),
    ("Decisions", "/decisions", Role::Send, "/docs/reference/events"),
    ("Claims", "/claims", Role::Send, "/docs/concepts/claims"),
    ("Messages", "/messages", Role::Send, "/docs/reference/messages"),
    ("Actions", "/actions", Role::Send, "/docs/reference/actions"),
    ("Sagas", "/sagas", Role::Send, "/docs/guides/events-and-sagas"),
    ("Sends", "/sends", Role::Send, "/docs/guides/queue-workers-that-crash"),
    ("Reminders", "/reminders", Role::Send, "/docs/guides/reminders"),
    ("Dead letters", "/dead-letters", Role::Send, "/docs/reference/sagas#dead-letters"),
    ("Audit", "/audit", Role::Operate, "/docs/operate/security#audit-log"),
    ("Keys", "/keys", Role::Admin, "/docs/operate/security#keys"),
];

impl Frame {
    pub fn new(visitor: &Visitor, under: &'static str, title: impl Into<String>) -> Frame {
        let caller = &visitor.caller;
        let who = Who {
            workspace: caller.workspace.to_string(),
            name: caller.name.clone(),
            role: caller.role.as_str(),
            may: caller.role,
            is_open: visitor.is_open,
        };
        Frame { who: Some(who), under, ..Frame::bare(title) }
    }

    /// For a visitor who is not logged in.
    pub fn bare(title: impl Into<String>) -> Frame {
        Frame { title: title.into(), who: None, under: "", live: None, searched: String::new() }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        let role = self.who.as_ref().map_or(Role::Send, |who| who.may);
        let seen = MENU.iter().filter(move |(_, _, needed, _)| role >= *needed);
        seen.map(|(name, href, ..)| Entry { name, href, is_here: *href == self.under })
    }

    /// The section of the book that explains this page.
    fn book(&self) -> Option<&'static str> {
        MENU.iter().find(|(_, href, ..)| *href == self.under).map(|(.., section)| *section)
    }

    fn asset(&self, name: &str) -> &'static str {
        let asset = ASSETS.iter().find(|asset| asset.name == name);
        &asset.expect("pages name assets that there are").path
    }

    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    fn is_open(&self) -> bool {
        self.who.as_ref().is_some_and(|who| who.is_open)
    }

    fn operates(&self) -> bool {
        self.who.as_ref().is_some_and(|who| who.may >= Role::Operate)
    }
}

#[derive(Template)]
#[template(path = "list.html")]
struct ListPage {
    frame: Frame,
    list: List,
}

#[derive(Template)]
#[template(path = "detail.html")]
struct DetailPage {
    frame: Frame,
    detail: Detail,
}

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    frame: Frame,
    to: String,
    wrong: bool,
}

#[derive(Template)]
#[template(path = "failed.html")]
struct FailedPage {
    frame: Frame,
    name: &'static str,
    detail: String,
    hint: &'static str,
}

fn render(status: StatusCode, page: &impl Template) -> Response {
    let html = page.render().expect("a String takes anything");
    (status, POLICY, Html(html)).into_response()
}

type Shown = Result<Response, Failed>;

fn show_list(frame: Frame, list: List) -> Shown {
    Ok(render(StatusCode::OK, &ListPage { frame, list }))
}

fn show_detail(frame: Frame, detail: Detail) -> Shown {
    Ok(render(StatusCode::OK, &DetailPage { frame, detail }))
}

/// A problem, shown as a page.
pub struct Failed(Problem);

impl<P: Into<Problem>> From<P> for Failed {
    fn from(problem: P) -> Self {
        Failed(problem.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Failed(problem) = self;
        problem.log();
        let kind = problem.kind;
        let frame = Frame::bare(kind.title());
        let page = FailedPage { frame, name: kind.name(), detail: problem.detail.into_owned(), hint: kind.hint() };
        render(kind.status(), &page)
    }
}

/// The fields of a query, or of a posted form. Empty fields are left out.
pub struct Fields(pub HashMap<String, String>);

impl Fields {
    fn of(encoded: &[u8]) -> Fields {
        let fields = form_urlencoded::parse(encoded).into_owned();
        Fields(
            fields
                .map(|(name, value)| (name, value.trim().to_owned()))
                .filter(|(_, value)| !value.is_empty())
                .collect(),
        )
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The field's text, or an empty one.
    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// The value that the field names.
    fn parsed<T>(&self, name: &str, parse: fn(&str) -> Option<T>) -> Result<Option<T>, Problem> {
        let parsed =
            |given| parse(given).ok_or_else(|| Kind::InvalidRequest.because(format!("{name}: there is no {given:?}")));
        self.get(name).map(parsed).transpose()
    }

    /// The position at which the page before ended.
    fn cursor(&self) -> Result<Option<Uuid>, Problem> {
        page_cursor(self.get("cursor").map(str::to_owned))
    }

    /// The reason that a person gives for an act.
    fn reason(&self) -> Result<String, Failed> {
        let reason = self.get("reason").ok_or_else(|| Kind::InvalidRequest.because("reason: say why"))?;
        check_note(Some(reason))?;
        Ok(reason.to_owned())
    }

    /// What a person found out at the provider.
    fn was_sent(&self) -> Result<bool, Failed> {
        match self.get("as") {
            Some("sent") => Ok(true),
            Some("not_sent") => Ok(false),
            _ => Err(Kind::InvalidRequest.because("as: sent or not_sent").into()),
        }
    }
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = Failed;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failed> {
        if request.method() != Method::POST {
            return Ok(Fields::of(request.uri().query().unwrap_or_default().as_bytes()));
        }
        let RawForm(bytes) = RawForm::from_request(request, app).await?;
        Ok(Fields::of(&bytes))
    }
}

/// A form that a visitor has posted, and what its path names.
struct Posted<T> {
    app: Arc<App>,
    visitor: Visitor,
    named: T,
    fields: Fields,
}

impl<T: DeserializeOwned + Send> FromRequest<Arc<App>> for Posted<T> {
    type Rejection = Response;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Response> {
        let (mut parts, form) = request.into_parts();
        let visitor = Visitor::from_request_parts(&mut parts, app).await?;
        let named = Named::from_request_parts(&mut parts, app).await;
        let Named(named) = named.map_err(IntoResponse::into_response)?;
        let fields = Fields::from_request(Request::from_parts(parts, form), app).await;
        Ok(Posted { app: app.clone(), visitor, named, fields: fields.map_err(IntoResponse::into_response)? })
    }
}

/// The person who settled something, and the reason, for visitors whose role allows the same act.
fn who_and_why(Resolved { by, note, .. }: &Resolved, visitor: &Visitor) -> Option<String> {
    visitor.operates().then(|| note.as_ref().map_or_else(|| format!("By {by}"), |note| format!("By {by}: {note}")))
}

/// The message on the next page about the act that was just done.
fn did(fields: &Fields) -> Option<&'static str> {
    Some(match fields.get("did")? {
        "forget" => "Forgotten. The next caller is allowed.",
        "resolve" => "Settled.",
        "cancel" => "Cancelled.",
        "done" => "Settled as done.",
        "let-be" => "Dismissed.",
        "retry" => "It is being retried.",
        "retried" => "Retried: it is no longer a dead letter.",
        "in-vain" => "Retried: it still cannot be applied.",
        "run-now" => "It is due now.",
        "discard" => "Discarded.",
        "send" => "It is being sent.",
        "revoke" => "Revoked. Requests with this key are refused.",
        _ => return None,
    })
}

/// Names in a path. A segment that is not text, or no id, matches nothing.
struct Named<T>(T);

impl<T: DeserializeOwned + Send> FromRequestParts<Arc<App>> for Named<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Failed> {
        let named = Path::from_request_parts(parts, app).await;
        let Path(named) = named.map_err(|_| Kind::NotFound.because("there is nothing under this path"))?;
        Ok(Named(named))
    }
}
