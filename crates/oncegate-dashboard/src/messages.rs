//! Messages, their recipients, and their threads.

use std::sync::Arc;

use axum::extract::State;
use oncegate::Time;
use oncegate::document::{self, Document, Page};
use oncegate::messages::{Kept, Lead, Message, Status, Thread};
use oncegate::store::{Clock, Listing, Role, SystemClock};
use uuid::Uuid;

use super::parts::{
    Body, Button, Cell, Detail, Filter, Happened, List, Section, Table, Tone, facts, pretty, short, was_sent,
};
use super::session::{Visitor, see_other};
use super::{Failed, Fields, Frame, Named, PAGE, Posted, Shown, claims, did, show_detail, show_list, who_and_why};
use oncegate_http::api::{missing, page_id};
use oncegate_http::app::App;
use oncegate_http::audit::By;

/// How many characters of a text a list shows.
const TEXT_CHARS: usize = 60;

async fn page_of<D: Document>(
    app: &App,
    visitor: &Visitor,
    list: Option<String>,
    state: Option<String>,
    before: Option<Uuid>,
) -> Result<(Vec<Kept<D>>, Option<Uuid>), Failed> {
    let workspace = visitor.workspace().clone();
    let listing = Listing { workspace, kind: D::KIND, list, state, limit: PAGE, before };
    let Page { items, next } = document::list(&*app.store, listing).await?;
    Ok((items, next))
}

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let status = fields.parsed("status", Status::parse)?.map(|status| status.as_str().to_owned());
    let (messages, next) = page_of::<Message>(&app, &visitor, None, status, fields.cursor()?).await?;
    let lead = "Newest first. The same text to the same person within the window is sent once.";
    let statuses = Filter::choice("status", "Status", fields.text("status"), &Status::ALL.map(Status::as_str));
    let list = List::new("/messages", lead, table("Messages", &messages)).filters([statuses]);
    show_list(Frame::new(&visitor, "/messages", "Messages"), list.then(next))
}

fn table(title: &str, messages: &[Kept<Message>]) -> Table {
    let now = SystemClock.now();
    let row = |kept: &Kept<Message>| {
        let message = &kept.document;
        let to = message.phone.as_ref().or(message.email.as_ref());
        [
            Cell::state(message.status.as_str()),
            Cell::code(short(&kept.id.to_string())).link(format!("/messages/{}", kept.id)),
            Cell::maybe(to).link(format!("/threads/{}", message.thread)),
            Cell::text(cut(&message.text)),
            Cell::text(&message.channel),
            Cell::time(Time::from_micros(message.created_us), now),
        ]
    };
    Table::new(title, ["Status", "Message", "To", "Text", "Channel", "Made"], messages.iter().map(row))
}

fn cut(text: &str) -> String {
    let mut chars = text.chars();
    let beginning: String = chars.by_ref().take(TEXT_CHARS).collect();
    if chars.next().is_some() { beginning + "…" } else { beginning }
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    let found = app.messages.messages.find::<Message>(visitor.workspace(), page_id(&id, "message")?).await?;
    let kept = found.ok_or_else(|| missing("message"))?;
    let (message, now) = (&kept.document, SystemClock.now());
    let time = |micros: Option<i64>| micros.map_or_else(Cell::default, |at| Cell::time(Time::from_micros(at), now));
    let claim = |key: Option<oncegate::ClaimKey>| {
        key.map_or_else(Cell::default, |key| Cell::code(short(&key.id.to_string())).link(claims::href(&key)))
    };
    let mut sections = vec![
        Section { title: "Text", body: Body::Text(message.text.clone()) },
        facts(
            "Facts",
            vec![
                ("Phone", Cell::maybe(message.phone.as_ref())),
                ("Email", Cell::maybe(message.email.as_ref())),
                ("Lead", Cell::code(short(&message.lead.to_string())).link(format!("/leads/{}", message.lead))),
                ("Thread", Cell::code(short(&message.thread.to_string())).link(format!("/threads/{}", message.thread))),
                ("Channel", Cell::text(&message.channel)),
                ("Made", time(Some(message.created_us))),
                ("Sent", time(message.sent_us)),
                (
                    "Settled",
                    Cell::maybe(message.resolved.as_ref().and_then(|said| who_and_why(said, &visitor)).as_ref()),
                ),
                ("Error", Cell::maybe(message.error.as_ref())),
                ("The carrier's id", message.provider_message_id.as_ref().map_or_else(Cell::default, Cell::code)),
                ("Its duplicates' claim", claim(kept.guard_key())),
                ("Its Idempotency-Key's claim", claim(kept.idempotency_key())),
                (
                    "Attachments",
                    if message.attachments.is_empty() {
                        Cell::default()
                    } else {
                        Cell::text(message.attachments.len())
                    },
                ),
                ("Id", Cell::code(kept.id)),
            ],
        ),
    ];
    if let Some(metadata) = &message.metadata {
        sections.push(Section { title: "Metadata", body: Body::Text(pretty(metadata.get())) });
    }
    let detail = Detail {
        above: ("Messages", "/messages".into()),
        state: Cell::state(message.status.as_str()),
        says: says(message.status).into(),
        did: did(&fields),
        buttons: buttons(&kept),
        sections,
    };
    show_detail(Frame::new(&visitor, "/messages", format!("Message {}", short(&id))), detail)
}

fn says(status: Status) -> &'static str {
    match status {
        Status::Queued => "It is in the queue, and will be sent as soon as a worker is free.",
        Status::Sending => "A worker is sending it.",
        Status::Sent => "It was sent. The same text to the same person within the window is not sent again.",
        Status::Failed => "It surely was not sent. Posting it again sends it.",
        Status::Unknown => {
            "It may have been sent: the worker died, or the carrier's answer was lost. It is not sent again. Look it up at the carrier, and resolve it here."
        }
    }
}

fn buttons(kept: &Kept<Message>) -> Vec<Button> {
    if kept.document.status != Status::Unknown {
        return vec![];
    }
    let sent = "You have looked at the carrier, and it has it. The same text to the same person is not sent again within the window.";
    let not_sent = "You have looked at the carrier, and it does not have it. It has failed; unless the server holds what failed, posting it again sends it.";
    was_sent(&format!("/messages/{}/resolve", kept.id), sent, not_sent)
}

pub async fn resolve(Posted { app, visitor, named: id, fields }: Posted<Uuid>) -> Shown {
    visitor.require(Role::Operate)?;
    let (sent, reason) = (fields.was_sent()?, fields.reason()?);
    let (by, audit) = (By::from(&visitor.caller), app.audit.clone());
    app.messages.resolve_by_hand(audit, visitor.caller.workspace, id, sent, by, Some(reason)).await?;
    Ok(see_other(&format!("/messages/{id}?did=resolve")))
}

pub async fn leads(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let (leads, next) = page_of::<Lead>(&app, &visitor, None, None, fields.cursor()?).await?;
    let now = SystemClock.now();
    let row = |kept: &Kept<Lead>| {
        let lead = &kept.document;
        [
            Cell::code(short(&kept.id.to_string())).link(format!("/leads/{}", kept.id)),
            Cell::maybe(lead.name.as_ref()),
            Cell::maybe(lead.phone.as_ref()),
            Cell::maybe(lead.email.as_ref()),
            Cell::time(Time::from_micros(lead.created_us), now),
        ]
    };
    let table = Table::new("Leads", ["Lead", "Name", "Phone", "Email", "Made"], leads.iter().map(row));
    let list = List::new("/leads", "The recipients of messages.", table);
    show_list(Frame::new(&visitor, "/messages", "Leads"), list.then(next))
}

/// The last messages of a lead, or of one of its threads.
async fn last_messages(app: &App, visitor: &Visitor, lead: Uuid, thread: Option<Uuid>) -> Result<Section, Failed> {
    let (mut messages, next) = page_of::<Message>(app, visitor, Some(Message::list_of(lead)), None, None).await?;
    messages.retain(|kept| thread.is_none_or(|thread| kept.document.thread == thread));
    messages.reverse();
    let mut moments: Vec<Happened> = messages.iter().map(moment).collect();
    if next.is_some() {
        let oldest = messages.first().map_or(0, |kept| kept.document.created_us);
        moments.insert(0, Happened::new(Time::from_micros(oldest), Tone::Plain, "There are older ones."));
    }
    Ok(Section { title: "Messages", body: Body::Moments(moments) })
}

fn moment(kept: &Kept<Message>) -> Happened {
    let message = &kept.document;
    let about = format!("{} by {} · {}", message.status.as_str(), message.channel, short(&kept.id.to_string()));
    Happened::new(Time::from_micros(message.created_us), Tone::of(message.status.as_str()), &*message.text).about(about)
}

pub async fn lead(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>) -> Shown {
    // The list includes the texts that were sent there.
    visitor.require(Role::Operate)?;
    let found = app.messages.messages.find::<Lead>(visitor.workspace(), page_id(&id, "lead")?).await?;
    let kept = found.ok_or_else(|| missing("lead"))?;
    let lead = &kept.document;
    let crm = &lead.crm;
    let about = vec![
        ("Name", Cell::maybe(lead.name.as_ref())),
        ("Phone", Cell::maybe(lead.phone.as_ref())),
        ("Email", Cell::maybe(lead.email.as_ref())),
        ("GHL contact", Cell::maybe(crm.ghl_contact_id.as_ref())),
        ("GHL location", Cell::maybe(crm.ghl_location_id.as_ref())),
        ("HubSpot contact", Cell::maybe(crm.hs_contact_id.as_ref())),
        ("HubSpot portal", Cell::maybe(crm.hs_portal_id.as_ref())),
        ("Made", Cell::time(Time::from_micros(lead.created_us), SystemClock.now())),
        ("Id", Cell::code(kept.id)),
    ];
    let detail = Detail {
        above: ("Leads", "/leads".into()),
        state: Cell::default(),
        says: "A recipient of messages.".into(),
        did: None,
        buttons: vec![],
        sections: vec![facts("Facts", about), last_messages(&app, &visitor, kept.id, None).await?],
    };
    show_detail(Frame::new(&visitor, "/messages", format!("Lead {}", short(&id))), detail)
}

pub async fn thread(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>) -> Shown {
    visitor.require(Role::Operate)?;
    let found = app.messages.messages.find::<Thread>(visitor.workspace(), page_id(&id, "thread")?).await?;
    let kept = found.ok_or_else(|| missing("thread"))?;
    let thread = &kept.document;
    let about = vec![
        ("Phone", Cell::maybe(thread.phone.as_ref())),
        ("Email", Cell::maybe(thread.email.as_ref())),
        ("Lead", Cell::code(short(&thread.lead.to_string())).link(format!("/leads/{}", thread.lead))),
        ("Made", Cell::time(Time::from_micros(thread.created_us), SystemClock.now())),
        ("Id", Cell::code(kept.id)),
    ];
    let detail = Detail {
        above: ("Messages", "/messages".into()),
        state: Cell::default(),
        says: "All messages to one phone, or to one address, the newest last.".into(),
        did: None,
        buttons: vec![],
        sections: vec![last_messages(&app, &visitor, thread.lead, Some(kept.id)).await?, facts("Facts", about)],
    };
    show_detail(Frame::new(&visitor, "/messages", format!("Thread {}", short(&id))), detail)
}
