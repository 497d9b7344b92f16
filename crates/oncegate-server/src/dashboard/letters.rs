//! Dead letters: events that could not be applied, and why.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use oncegate::Time;
use oncegate::document;
use oncegate::sagas::{DeadLetter, LetterState, Outcome};
use oncegate::store::{Clock, Role, SystemClock};
use uuid::Uuid;

use super::parts::{Body, Button, Cell, Detail, Filter, List, Section, Table, encoded, facts, short};
use super::session::{Visitor, see_other};
use super::{Failed, Fields, Frame, Named, Shown, did, show_detail, show_list};
use crate::api::{missing, page_cursor, page_id};
use crate::app::App;
use crate::audit::By;
use crate::problem::Kind;
use crate::task::to_the_end;

const PAGE: usize = 50;
const REASON_CHARS: usize = 100;

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let status = |name: &str| {
        LetterState::parse(name).ok_or_else(|| Kind::InvalidRequest.because(format!("status: there is no {name:?}")))
    };
    let standing = fields.get("status").map(status).transpose()?.unwrap_or(LetterState::Open);
    let before = page_cursor(fields.get("cursor").map(str::to_owned))?;
    let document::Page { items: letters, next } =
        app.sagas.sagas.dead_letters(visitor.workspace(), fields.get("saga"), Some(standing), PAGE, before).await?;
    let list = List {
        path: "/dead-letters".into(),
        lead: "Events that could not be applied, newest first. Nothing is lost: have one tried again once its reason is gone, or discard it.".into(),
        picture: None,
        filters: vec![
            Filter::choice("status", "Status", standing.as_str(), &LetterState::ALL.map(LetterState::as_str)),
            Filter::text("saga", "Saga", fields.text("saga")),
        ],
        table: table(&letters),
        next: None,
    };
    show_list(Frame::new(&visitor, "/dead-letters", "Dead letters"), list.then(next.map(|id| id.to_string())))
}

fn table(letters: &[DeadLetter]) -> Table {
    let now = SystemClock.now();
    let row = |letter: &DeadLetter| {
        let reason: String = letter.reason.chars().take(REASON_CHARS).collect();
        vec![
            Cell::state(letter.standing.as_str()),
            Cell::code(short(&letter.id.to_string())).link(format!("/dead-letters/{}", letter.id)),
            Cell::maybe(letter.saga.as_ref()),
            Cell::maybe(letter.event.as_ref().map(|event| &event.event_type)),
            Cell::text(reason),
            Cell::text(letter.retries),
            Cell::time(Time::from_micros(letter.at_us), now),
        ]
    };
    Table {
        title: "Dead letters".into(),
        head: vec!["Status", "Letter", "Saga", "Event", "Reason", "Retries", "Came"],
        rows: letters.iter().map(row).collect(),
        empty: "There are none.",
    }
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let letter = app.sagas.sagas.dead_letter(visitor.workspace(), page_id(&id, "dead letter")?).await?;
    let letter = letter.ok_or_else(|| missing("dead letter"))?;
    let instance = match (&letter.saga, &letter.correlation_id) {
        (Some(saga), Some(id)) => Cell::text(id).link(format!("/sagas/{}/{}", encoded(saga), encoded(id))),
        _ => Cell::default(),
    };
    let about = vec![
        ("Saga", Cell::maybe(letter.saga.as_ref())),
        ("Instance", instance),
        ("In state, as it came", Cell::maybe(letter.state.as_ref())),
        ("Event", Cell::maybe(letter.event.as_ref().map(|event| &event.event_type))),
        ("Came", Cell::time(Time::from_micros(letter.at_us), SystemClock.now())),
        ("Tried again in vain", Cell::text(letter.retries)),
        ("Id", Cell::code(letter.id)),
    ];
    let came = match (&letter.event, &letter.raw) {
        (Some(event), _) => serde_json::to_string_pretty(event).expect("an event is JSON"),
        (None, raw) => raw.clone().unwrap_or_default(),
    };
    let detail = Detail {
        above: ("Dead letters", "/dead-letters".into()),
        state: Cell::state(letter.standing.as_str()),
        says: letter.reason.clone(),
        did: did(&fields),
        buttons: buttons(&letter),
        sections: vec![facts("Facts", about), Section { title: "The event, as it came", body: Body::Text(came) }],
    };
    show_detail(Frame::new(&visitor, "/dead-letters", format!("Dead letter {}", short(&id))), detail)
}

fn buttons(letter: &DeadLetter) -> Vec<Button> {
    if letter.standing != LetterState::Open {
        return vec![];
    }
    let again = Button {
        name: "Try again",
        action: format!("/dead-letters/{}/retry", letter.id),
        explains: "The event is applied as if it came just now. If it still cannot be, it stays here, with the reason of today.",
        is_grave: false,
        fields: vec![],
    };
    let discard = Button {
        name: "Discard",
        action: format!("/dead-letters/{}/discard", letter.id),
        explains: "The event will not be applied.",
        is_grave: true,
        fields: vec![],
    };
    // A body that is no event cannot be applied.
    if letter.event.is_some() { vec![again, discard] } else { vec![discard] }
}

pub async fn act(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Named((id, verb)): Named<(Uuid, String)>,
    fields: Fields,
) -> Result<Response, Failed> {
    visitor.require(Role::Operate)?;
    let reason = fields.reason()?;
    let (by, workspace) = (By::from(&visitor.caller), visitor.caller.workspace);
    let done = to_the_end(async move {
        Ok(match verb.as_str() {
            "retry" => match app.sagas.retry(&app.audit, &workspace, id, &by, Some(&reason)).await?.outcome {
                Outcome::DeadLetter { .. } => "in-vain",
                _ => "retried",
            },
            "discard" => {
                app.sagas.discard(&app.audit, &workspace, id, &by, Some(&reason)).await?;
                "discard"
            }
            _ => return Err(Kind::NotFound.because("there is no such path")),
        })
    });
    Ok(see_other(&format!("/dead-letters/{id}?did={}", done.await?)))
}
