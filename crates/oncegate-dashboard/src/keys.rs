//! The keys of the workspace: made and revoked by an admin key.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use oncegate::Time;
use oncegate::store::{ApiKey, Clock, Role, SystemClock};

use super::parts::{Button, Cell, Detail, Table, facts};
use super::session::{Visitor, see_other};
use super::{Fields, Frame, Named, Posted, Shown, did, render, show_detail};
use oncegate_http::api::{end_key, make_key, missing};
use oncegate_http::app::App;
use oncegate_http::keys::{self, Made, Terms};
use oncegate_http::problem::Kind;

#[derive(Template)]
#[template(path = "keys.html")]
struct KeysPage {
    frame: Frame,
    table: Table,
    roles: [&'static str; 3],
    /// A key that was just made: its name, and its secret, which is shown once.
    made: Option<(String, String)>,
}

fn page(visitor: &Visitor, keys: &[ApiKey], made: Option<(String, String)>) -> KeysPage {
    let now = SystemClock.now();
    let time = |at: Option<Time>| at.map_or_else(Cell::default, |at| Cell::time(at, now));
    let row = |key: &ApiKey| {
        [
            Cell::state(keys::state(key, now)),
            Cell::code(&key.id).link(format!("/keys/{}", key.id)),
            Cell::maybe(key.name.as_ref()),
            Cell::text(key.role.as_str()),
            Cell::time(key.created_at, now),
            time(key.expires_at),
            time(key.last_used_at),
        ]
    };
    let table = Table::new("Keys", ["State", "Key", "Name", "Role", "Made", "Ends", "Last used"], keys.iter().map(row));
    KeysPage { frame: Frame::new(visitor, "/keys", "Keys"), table, roles: Role::ALL.map(Role::as_str), made }
}

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor) -> Shown {
    visitor.require(Role::Admin)?;
    let keys = keys::list(&*app.store, visitor.workspace()).await?;
    Ok(render(StatusCode::OK, &page(&visitor, &keys, None)))
}

pub async fn create(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Admin)?;
    let bad = |wrong: String| Kind::InvalidRequest.because(wrong);
    let terms = Terms {
        workspace: visitor.workspace().clone(),
        role: keys::role(fields.text("role")).map_err(bad)?,
        name: Some(keys::name(fields.text("name")).map_err(bad)?),
        expires_at: fields.get("expires").map(|end| keys::end(end, SystemClock.now())).transpose().map_err(bad)?,
    };
    let Made { key, secret } = make_key(app.clone(), visitor.caller.clone(), terms).await?;
    let keys = keys::list(&*app.store, visitor.workspace()).await?;
    let made = Some((key.name.unwrap_or(key.id), secret));
    Ok(render(StatusCode::CREATED, &page(&visitor, &keys, made)))
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    visitor.require(Role::Admin)?;
    let key = keys::find(&*app.store, visitor.workspace(), &id).await?.ok_or_else(|| missing("key"))?;
    let now = SystemClock.now();
    let time = |at: Option<Time>| at.map_or_else(Cell::default, |at| Cell::time(at, now));
    let about = vec![
        ("Name", Cell::maybe(key.name.as_ref())),
        ("Role", Cell::text(key.role.as_str())),
        ("Made", Cell::time(key.created_at, now)),
        ("Made by", Cell::maybe(key.created_by.as_ref())),
        ("Ends", time(key.expires_at)),
        ("Last used", time(key.last_used_at)),
        ("Revoked", time(key.revoked_at)),
        ("Id", Cell::code(&key.id)),
    ];
    let explains = "Requests with this key are refused from now on, and its sessions end. It cannot be taken back.";
    let revoke = Button::new("Revoke", format!("/keys/{id}/revoke"), explains).grave();
    let detail = Detail {
        above: ("Keys", "/keys".into()),
        state: Cell::state(keys::state(&key, now)),
        says: match keys::state(&key, now) {
            "live" => "Requests with this key are answered.".into(),
            _ => "Requests with this key are refused.".into(),
        },
        did: did(&fields),
        buttons: if key.revoked_at.is_none() { vec![revoke] } else { vec![] },
        sections: vec![facts("Facts", about)],
    };
    show_detail(Frame::new(&visitor, "/keys", format!("Key {id}")), detail)
}

pub async fn revoke(Posted { app, visitor, named: id, fields }: Posted<String>) -> Shown {
    visitor.require(Role::Admin)?;
    let reason = Some(fields.reason()?);
    let is_own = visitor.caller.name == id;
    end_key(app, visitor.caller, id.clone(), reason).await?;
    Ok(see_other(&if is_own { "/login".to_owned() } else { format!("/keys/{id}?did=revoke") }))
}
