//! The send log: what was sent to which recipient, and which outcomes are unknown.

use std::sync::Arc;

use axum::extract::State;
use oncegate::Time;
use oncegate::sends::{Filter as Wanted, Kept, State as SendState, checked};
use oncegate::store::Reading;
use oncegate::store::Role;
use uuid::Uuid;

use super::parts::{
    Body, Button, Cell, Detail, Filter, Happened, List, Section, Table, Tone, ago, facts, in_order, query, short,
    was_sent,
};
use super::session::{Visitor, see_other};
use super::{Fields, Frame, Named, PAGE, Posted, Shown, did, show_detail, show_list, who_and_why};
use oncegate_http::api::{missing, page_id};
use oncegate_http::app::App;
use oncegate_http::audit::By;
use oncegate_http::task::to_the_end;

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let wanted = Wanted {
        campaign: fields.get("campaign").map(|id| checked("campaign", id)).transpose()?,
        state: fields.parsed("state", SendState::parse)?,
        limit: PAGE,
        before: fields.cursor()?,
    };
    let Reading { value: page, now } = app.sends.sends.list(visitor.workspace(), &wanted).await?;
    let lead = "Sends of workers, newest first: one for each campaign and recipient.";
    let list = List::new("/sends", lead, table("Sends", &page.items, now)).filters([
        Filter::text("campaign", "Campaign", fields.text("campaign")),
        Filter::choice("state", "State", fields.text("state"), &SendState::ALL.map(SendState::as_str)),
    ]);
    show_list(Frame::new(&visitor, "/sends", "Sends"), list.then(page.next))
}

pub fn table(title: &str, sends: &[Kept], now: Time) -> Table {
    let row = |kept: &Kept| {
        let send = &kept.document;
        [
            Cell::state(send.state_at(now).as_str()),
            Cell::code(short(&kept.id.to_string())).link(format!("/sends/{}", kept.id)),
            Cell::text(&send.campaign).link(query("/sends", [("campaign", send.campaign.as_str())])),
            Cell::text(&send.recipient),
            Cell::text(send.attempt),
            Cell::time(Time::from_micros(send.created_us), now),
        ]
    };
    Table::new(title, ["State", "Send", "Campaign", "Recipient", "Attempts", "Begun"], sends.iter().map(row))
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    let found = app.sends.sends.find(visitor.workspace(), page_id(&id, "send")?).await?;
    let (kept, now) = found.ok_or_else(|| missing("send"))?;
    let send = &kept.document;
    let time = |micros: i64| Cell::time(Time::from_micros(micros), now);
    let about = vec![
        ("Campaign", Cell::text(&send.campaign).link(query("/sends", [("campaign", send.campaign.as_str())]))),
        ("Recipient", Cell::text(&send.recipient)),
        ("Template", Cell::maybe(send.template.as_ref())),
        ("The provider's key", Cell::code(send.provider_key)),
        ("The provider's id", send.esp_message_id.as_ref().map_or_else(Cell::default, Cell::code)),
        ("If its worker is lost", Cell::text(send.lost.as_str())),
        ("Attempts", Cell::text(send.attempt)),
        ("Sent", send.sent_us.map_or_else(Cell::default, time)),
        ("Kept until", time(send.expires_us)),
        ("Id", Cell::code(kept.id)),
    ];
    let detail = Detail {
        above: ("Sends", "/sends".into()),
        state: Cell::state(send.state_at(now).as_str()),
        says: says(&kept, now),
        did: did(&fields),
        buttons: buttons(&kept, now),
        sections: vec![
            Section { title: "What happened", body: Body::Moments(moments(&kept, now, &visitor)) },
            facts("Facts", about),
        ],
    };
    show_detail(Frame::new(&visitor, "/sends", format!("Send {}", short(&id))), detail)
}

fn says(kept: &Kept, now: Time) -> String {
    let send = &kept.document;
    match send.state_at(now) {
        SendState::Sending => {
            let until = Time::from_micros(send.lease_until_us);
            format!("A worker is sending it. Its lease ends {}. Other workers are told that it is busy.", ago(until, now))
        }
        SendState::Sent => "It was sent. A worker that begins it again is told to skip it.".into(),
        SendState::Failed => "It surely was not sent. The next worker may send it.".into(),
        SendState::Lost => "It may have been sent: its worker was lost, or could not tell. The next worker sends it again under the same provider key.".into(),
        SendState::Unknown => "It may have been sent: its worker was lost, or could not tell. It is not sent again until a person has looked at the provider and resolves it here.".into(),
    }
}

fn buttons(kept: &Kept, now: Time) -> Vec<Button> {
    if !kept.document.state_at(now).is_open() {
        return vec![];
    }
    let sent = "You have looked at the provider, and it has it. It is not sent again.";
    let not_sent = "You have looked at the provider, and it does not have it. The next worker sends it.";
    was_sent(&format!("/sends/{}/resolve", kept.id), sent, not_sent)
}

fn moments(kept: &Kept, now: Time, visitor: &Visitor) -> Vec<Happened> {
    let send = &kept.document;
    let at = Time::from_micros;
    let mut moments = vec![];
    for attempt in &send.attempts {
        let job = attempt.job.as_ref().map_or(String::new(), |job| format!(", for “{job}”"));
        let says = format!("A worker began attempt {}{job}.", attempt.number);
        moments.push((attempt.begun_us, Happened::new(at(attempt.begun_us), Tone::Busy, says)));
        if let (Some(ended), Some(error)) = (attempt.ended_us, &attempt.error) {
            moments.push((ended, Happened::new(at(ended), Tone::Warn, format!("It failed: {error}"))));
        }
    }
    if let Some(sent) = send.sent_us {
        moments.push((sent, Happened::new(at(sent), Tone::Good, "It was sent.")));
    }
    if let Some(resolved) = &send.resolved {
        let says = if resolved.sent { "A person marked it as sent." } else { "A person marked it as not sent." };
        let about = who_and_why(resolved, visitor);
        moments.push((resolved.at_us, Happened { about, ..Happened::new(at(resolved.at_us), Tone::Plain, says) }));
    }
    if send.state_at(now).is_open() {
        let ended = send.lease_until_us.min(now.micros());
        moments.push((ended, Happened::new(at(ended), Tone::Bad, "The outcome of the last attempt is unknown.")));
    }
    in_order(moments)
}

pub async fn resolve(Posted { app, visitor, named: id, fields }: Posted<Uuid>) -> Shown {
    visitor.require(Role::Operate)?;
    let sent = fields.was_sent()?;
    let (by, note) = (By::from(&visitor.caller), Some(fields.reason()?));
    let workspace = visitor.caller.workspace;
    to_the_end(async move { Ok(app.sends.resolve(&workspace, id, sent, None, by, note).await?) }).await?;
    Ok(see_other(&format!("/sends/{id}?did=resolve")))
}
