//! Dead letters: events that could not be applied, and why.

use std::sync::Arc;

use axum::extract::State;
use oncegate::Time;
use oncegate::document;
use oncegate::sagas::{DeadLetter, LetterState, Outcome};
use oncegate::store::{Clock, Role, SystemClock};
use uuid::Uuid;

use super::parts::{Body, Button, Cell, Detail, Filter, List, Section, Table, encoded, facts, short};
use super::session::{Visitor, see_other};
use super::{Fields, Frame, Named, PAGE, Posted, Shown, did, show_detail, show_list};
use oncegate_http::api::{missing, page_id};
use oncegate_http::app::App;
use oncegate_http::audit::By;
use oncegate_http::problem::Kind;
use oncegate_http::task::to_the_end;

const REASON_CHARS: usize = 100;

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let standing = fields.parsed("status", LetterState::parse)?.unwrap_or(LetterState::Open);
    let before = fields.cursor()?;
    let document::Page { items: letters, next } =
        app.sagas.sagas.dead_letters(visitor.workspace(), fields.get("saga"), Some(standing), PAGE, before).await?;
    let lead = "Events that could not be applied, newest first. No event is lost: retry one once its reason is gone, or discard it.";
    let list = List::new("/dead-letters", lead, table(&letters)).filters([
        Filter::choice("status", "Status", standing.as_str(), &LetterState::ALL.map(LetterState::as_str)),
        Filter::text("saga", "Saga", fields.text("saga")),
    ]);
    show_list(Frame::new(&visitor, "/dead-letters", "Dead letters"), list.then(next))
}

fn table(letters: &[DeadLetter]) -> Table {
    let now = SystemClock.now();
    let row = |letter: &DeadLetter| {
        let reason: String = letter.reason.chars().take(REASON_CHARS).collect();
        [
            Cell::state(letter.standing.as_str()),
            Cell::code(short(&letter.id.to_string())).link(format!("/dead-letters/{}", letter.id)),
            Cell::maybe(letter.saga.as_ref()),
            Cell::maybe(letter.event.as_ref().map(|event| &event.event_type)),
            Cell::text(reason),
            Cell::text(letter.retries),
            Cell::time(Time::from_micros(letter.at_us), now),
        ]
    };
    let head = ["Status", "Letter", "Saga", "Event", "Reason", "Retries", "Came"];
    Table::new("Dead letters", head, letters.iter().map(row))
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
        ("State when it came", Cell::maybe(letter.state.as_ref())),
        ("Event", Cell::maybe(letter.event.as_ref().map(|event| &event.event_type))),
        ("Came", Cell::time(Time::from_micros(letter.at_us), SystemClock.now())),
        ("Failed retries", Cell::text(letter.retries)),
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
    let explains = "The event is applied now. If it still cannot be applied, it stays here with the new reason.";
    let again = Button::new("Retry", format!("/dead-letters/{}/retry", letter.id), explains);
    let explains = "The event will not be applied.";
    let discard = Button::new("Discard", format!("/dead-letters/{}/discard", letter.id), explains).grave();
    // A body that is no event cannot be applied.
    if letter.event.is_some() { vec![again, discard] } else { vec![discard] }
}

pub async fn act(Posted { app, visitor, named: (id, verb), fields }: Posted<(Uuid, String)>) -> Shown {
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
