//! The dashboard: for the person on call, and for whoever looks at it for the first time.
//!
//! Pages are made here and need no script; a script keeps them up to date by server-sent events (`live.rs`), and that is all it does. What people can do are forms: each
//! asks for a reason, needs the role `operate`, and calls what the API calls. Nothing comes from outside.

mod actions;
mod chart;
mod claims;
mod explains;
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
use axum::http::{HeaderName, Method, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use oncegate::sagas::PICTURE_STYLE;
use oncegate::sends::Resolved;
use oncegate::store::Role;
use sha2::{Digest, Sha256};
use url::form_urlencoded;

use self::parts::{Body, Detail, List};
use self::session::Visitor;
use crate::api::{App, RawForm, check_note};
use crate::auth::hex;
use crate::problem::{Kind, Problem};

pub fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(overview::page))
        .route("/live", get(live::events))
        .route("/decisions", get(live::page))
        .route("/search", get(search::page))
        .route("/claims", get(claims::list))
        .route("/claims/{id}", get(claims::show))
        .route("/claims/{id}/forget", post(claims::forget))
        .route("/claims/{id}/resolve", post(claims::resolve))
        .route("/messages", get(messages::list))
        .route("/messages/{id}", get(messages::show))
        .route("/leads", get(messages::leads))
        .route("/leads/{id}", get(messages::lead))
        .route("/threads/{id}", get(messages::thread))
        .route("/actions", get(actions::list))
        .route("/actions/{id}", get(actions::show))
        .route("/actions/{id}/{verb}", post(actions::act))
        .route("/sagas", get(sagas::list))
        .route("/sagas/{saga}", get(sagas::instances))
        .route("/sagas/{saga}/{correlation_id}", get(sagas::show))
        .route("/dead-letters", get(letters::list))
        .route("/dead-letters/{id}", get(letters::show))
        .route("/dead-letters/{id}/{verb}", post(letters::act))
        .route("/sends", get(sends::list))
        .route("/sends/{id}", get(sends::show))
        .route("/messages/{id}/resolve", post(messages::resolve))
        .route("/sends/{id}/resolve", post(sends::resolve))
        .route("/reminders", get(reminders::list))
        .route("/reminders/{id}", get(reminders::show))
        .route("/reminders/{id}/{verb}", post(reminders::act))
        .route("/login", get(session::login_page).post(session::login))
        .route("/logout", post(session::logout))
        .route("/workspace", post(session::choose_workspace))
        .route("/docs", get(explains::reference))
        .route("/problems/{name}", get(explains::problem))
        .route("/assets/{file}", get(asset))
}

/// What requests share.
#[derive(Default)]
pub struct Shared {
    sessions: session::Seen,
    numbers: overview::Cache,
}

/// Scripts, styles and pictures are our own files; forms go to us; nobody shows us in a frame.
const POLICY: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; \
         base-uri 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "same-origin"),
    // They hold what is personal.
    (header::CACHE_CONTROL, "no-store"),
];

struct Asset {
    name: &'static str,
    media: &'static str,
    text: String,
    /// Changes with what is in it, so that browsers may keep it.
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

async fn asset(Path(file): Path<String>) -> Result<Response, Problem> {
    let asset = ASSETS.iter().find(|asset| asset.name == file);
    let asset = asset.ok_or_else(|| Kind::NotFound.because("there is no such path"))?;
    let kept = "public, max-age=31536000, immutable";
    Ok(([(header::CONTENT_TYPE, asset.media), (header::CACHE_CONTROL, kept)], asset.text.as_str()).into_response())
}

/// What is around every page.
pub struct Frame {
    pub title: String,
    who: Option<Who>,
    /// The entry of the menu that this page is under.
    under: &'static str,
    /// What keeps the page up to date.
    live: Option<String>,
    searched: String,
}

struct Who {
    workspace: String,
    name: String,
    role: &'static str,
    is_open: bool,
    operates: bool,
}

struct Entry {
    name: &'static str,
    href: &'static str,
    is_here: bool,
}

const MENU: [(&str, &str); 9] = [
    ("Overview", "/"),
    ("Decisions", "/decisions"),
    ("Claims", "/claims"),
    ("Messages", "/messages"),
    ("Actions", "/actions"),
    ("Sagas", "/sagas"),
    ("Sends", "/sends"),
    ("Reminders", "/reminders"),
    ("Dead letters", "/dead-letters"),
];

impl Frame {
    pub fn new(visitor: &Visitor, under: &'static str, title: impl Into<String>) -> Frame {
        let caller = &visitor.caller;
        let who = Who {
            workspace: caller.workspace.to_string(),
            name: caller.name.clone(),
            role: caller.role.as_str(),
            is_open: visitor.is_open,
            operates: caller.role >= Role::Operate,
        };
        Frame { who: Some(who), under, ..Frame::bare(title) }
    }

    /// For whoever is not known.
    pub fn bare(title: impl Into<String>) -> Frame {
        Frame { title: title.into(), who: None, under: "", live: None, searched: String::new() }
    }

    fn entries(&self) -> impl Iterator<Item = Entry> {
        MENU.iter().map(|(name, href)| Entry { name, href, is_here: *href == self.under })
    }

    fn asset(&self, name: &str) -> &'static str {
        let asset = ASSETS.iter().find(|asset| asset.name == name);
        &asset.expect("pages name assets that there are").path
    }

    fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    fn operates(&self) -> bool {
        self.who.as_ref().is_some_and(|who| who.operates)
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

/// A problem, as a page.
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

/// The fields of a query, or of a form that was posted. Those that are empty are not there.
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

    /// What is there, or nothing.
    fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Why somebody does what they do.
    fn reason(&self) -> Result<String, Failed> {
        let reason = self.get("reason").ok_or_else(|| Kind::InvalidRequest.because("reason: say why"))?;
        check_note(Some(reason))?;
        Ok(reason.to_owned())
    }

    /// What somebody found out at the provider.
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

/// Who settled something, and why.
fn who_and_why(Resolved { by, note, .. }: &Resolved) -> String {
    note.as_ref().map_or_else(|| format!("By {by}"), |note| format!("By {by}: {note}"))
}

/// What was just done, as the page that it leads to says it.
fn did(fields: &Fields) -> Option<&'static str> {
    Some(match fields.get("did")? {
        "forget" => "Forgotten. The next caller goes ahead.",
        "resolve" => "Settled.",
        "cancel" => "Cancelled.",
        "done" => "Settled: it happened.",
        "let-be" => "Settled: it is let be.",
        "retry" => "It is being tried again.",
        "retried" => "It was tried again: it is a dead letter no more.",
        "in-vain" => "It was tried again, and still cannot be applied.",
        "run-now" => "It is due now.",
        "discard" => "Discarded.",
        "send" => "It is being sent.",
        _ => return None,
    })
}

/// Names in a path; what is not even text, or no id, is the name of nothing.
struct Named<T>(T);

impl<T: serde::de::DeserializeOwned + Send> FromRequestParts<Arc<App>> for Named<T> {
    type Rejection = Failed;

    async fn from_request_parts(parts: &mut axum::http::request::Parts, app: &Arc<App>) -> Result<Self, Failed> {
        let named = Path::from_request_parts(parts, app).await;
        let Path(named) = named.map_err(|_| Kind::NotFound.because("there is nothing under this path"))?;
        Ok(Named(named))
    }
}
