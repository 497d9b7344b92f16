//! The book: the files of `docs/`, rendered in the dashboard's style. Every visitor sees the same pages, without data.

mod contents;
mod markdown;
mod pages;
mod search;

use askama::Template;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use oncegate_http::app::Nearby;
use oncegate_http::auth::hex;
use oncegate_http::problem::Kind;
use sha2::{Digest, Sha256};

pub use self::contents::{Contents, ENDPOINTS};
use self::markdown::render;
pub use self::pages::BOOK;
use self::pages::{PAGES, PICTURES, Page};
use self::search::{Found, QUERY_MAX, find};
use super::{CACHED, Fields, Frame, Named, POLICY, Shown};

#[derive(Template)]
#[template(path = "book_page.html")]
struct BookPage {
    frame: Frame,
    contents: Contents,
    html: String,
}

#[derive(Template)]
#[template(path = "book_search.html")]
struct SearchPage {
    frame: Frame,
    contents: Contents,
    found: Vec<Found>,
}

pub async fn first(_: Nearby, headers: HeaderMap) -> Response {
    show(&headers, &PAGES[0])
}

pub async fn file(_: Nearby, Named(name): Named<String>, headers: HeaderMap) -> Shown {
    let path = format!("{BOOK}/{name}");
    if let Some(picture) = PICTURES.iter().find(|picture| picture.file == &path[1..]) {
        let kept = [(header::CONTENT_TYPE, picture.media()), (header::CACHE_CONTROL, CACHED)];
        return Ok((kept, picture.bytes).into_response());
    }
    let page = PAGES.iter().find(|page| page.path == path);
    let page = page.ok_or_else(|| Kind::NotFound.because("the book has no such page: search it at /docs/search"))?;
    Ok(show(&headers, page))
}

pub async fn results(_: Nearby, headers: HeaderMap, fields: Fields) -> Response {
    let searched: String = fields.text("q").chars().take(QUERY_MAX).collect();
    let found = find(&searched);
    let frame = Frame { searched, ..Frame::bare("Search the book") };
    unless_known(&headers, &SearchPage { frame, contents: Contents { here: "" }, found })
}

fn show(headers: &HeaderMap, page: &'static Page) -> Response {
    let rendered = render(page);
    let contents = Contents { here: page.path };
    unless_known(headers, &BookPage { frame: Frame::bare(rendered.title), contents, html: rendered.html })
}

/// A page without data: browsers keep it, and ask whether it has changed.
pub fn unless_known(headers: &HeaderMap, page: &impl Template) -> Response {
    let html = page.render().expect("a String takes anything");
    let etag = format!("\"{}\"", hex(&Sha256::digest(&html)[..12]));
    let asked = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    let mut response = if asked.is_some_and(|known| known.contains(&etag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        (POLICY, Html(html)).into_response()
    };
    let etag = HeaderValue::try_from(etag).expect("hex digits");
    response.headers_mut().insert(header::ETAG, etag);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
