//! Reminders: what will be sent, what was sent, and what was missed.

use std::sync::Arc;

use axum::extract::State;
use oncegate::Time;
use oncegate::reminders::{Filter as Wanted, Kept, Reminder, State as ReminderState};
use oncegate::sends::checked;
use oncegate::store::{Clock, Role, SystemClock};
use uuid::Uuid;

use super::parts::{
    Body, Button, Cell, Detail, Filter, Happened, List, Section, Table, Tone, ago, facts, in_order, query, short,
};
use super::session::{Visitor, see_other};
use super::{Fields, Frame, Named, PAGE, Posted, Shown, did, show_detail, show_list, who_and_why};
use oncegate_http::api::{missing, page_id};
use oncegate_http::app::App;
use oncegate_http::audit::By;
use oncegate_http::problem::Kind;

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let wanted = Wanted {
        booking: fields.get("booking").map(|id| checked("booking", id)).transpose()?,
        state: fields.parsed("state", ReminderState::parse)?,
        limit: PAGE,
        before: fields.cursor()?,
    };
    let page = app.reminders.reminders.list(visitor.workspace(), &wanted).await?;
    let lead = "One for each booking and kind, newest first.";
    let list = List::new("/reminders", lead, table("Reminders", &page.items)).filters([
        Filter::text("booking", "Booking", fields.text("booking")),
        Filter::choice("state", "State", fields.text("state"), &ReminderState::ALL.map(ReminderState::as_str)),
    ]);
    show_list(Frame::new(&visitor, "/reminders", "Reminders"), list.then(page.next))
}

pub fn table(title: &str, reminders: &[Kept]) -> Table {
    let now = SystemClock.now();
    let row = |kept: &Kept| {
        let reminder = &kept.document;
        let to = reminder.text.phone.as_ref().or(reminder.text.email.as_ref());
        [
            Cell::state(reminder.state.as_str()),
            Cell::code(short(&kept.id.to_string())).link(format!("/reminders/{}", kept.id)),
            Cell::text(&reminder.booking).link(query("/reminders", [("booking", reminder.booking.as_str())])),
            Cell::text(&reminder.kind),
            Cell::maybe(to),
            Cell::time(Time::from_micros(reminder.send_at_us), now),
        ]
    };
    Table::new(title, ["State", "Reminder", "Booking", "Kind", "To", "To be sent"], reminders.iter().map(row))
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    let found = app.reminders.reminders.find(visitor.workspace(), page_id(&id, "reminder")?).await?;
    let kept = found.ok_or_else(|| missing("reminder"))?;
    let (reminder, now) = (&kept.document, SystemClock.now());
    let time = |micros: i64| Cell::time(Time::from_micros(micros), now);
    let about = vec![
        ("Booking", Cell::text(&reminder.booking).link(query("/reminders", [("booking", reminder.booking.as_str())]))),
        ("Kind", Cell::text(&reminder.kind)),
        ("To be sent", time(reminder.send_at_us)),
        ("Its grace ends", time(reminder.grace_until_us)),
        ("Channel", Cell::text(&reminder.text.channel)),
        ("Phone", Cell::maybe(reminder.text.phone.as_ref())),
        ("Email", Cell::maybe(reminder.text.email.as_ref())),
        ("Flag", Cell::text(if reminder.reminder_sent() { "set" } else { "not set" })),
        ("Sent by hand by", Cell::maybe(reminder.sent_by.as_ref().filter(|_| visitor.operates()))),
        ("Made", time(reminder.created_us)),
        ("Id", Cell::code(kept.id)),
    ];
    let detail = Detail {
        above: ("Reminders", "/reminders".into()),
        state: Cell::state(reminder.state.as_str()),
        says: says(reminder, now),
        did: did(&fields),
        buttons: buttons(&kept),
        sections: vec![
            Section { title: "What happened", body: Body::Moments(moments(reminder, &visitor)) },
            Section { title: "Text", body: Body::Text(reminder.text.message.clone()) },
            facts("Facts", about),
        ],
    };
    show_detail(Frame::new(&visitor, "/reminders", format!("Reminder {}", short(&id))), detail)
}

fn says(reminder: &Reminder, now: Time) -> String {
    match reminder.state {
        ReminderState::Scheduled => format!("It is due {}.", ago(Time::from_micros(reminder.send_at_us), now)),
        ReminderState::Sending => {
            "Its flag is set. The worker calls the carrier, or will retry within the grace.".into()
        }
        ReminderState::Sent => "It was sent.".into(),
        ReminderState::Missed if reminder.deliveries.iter().any(|row| row.maybe) => {
            "It was missed, but the carrier may have taken it (see the timeline). Look there before you send it.".into()
        }
        ReminderState::Missed => {
            "It was missed: its time and its grace are over, and it reached no recipient. Send it now, or dismiss it."
                .into()
        }
        ReminderState::Cancelled if reminder.resolved.is_some() => "It was missed, and a person dismissed it.".into(),
        ReminderState::Cancelled => "It was cancelled.".into(),
    }
}

fn buttons(kept: &Kept) -> Vec<Button> {
    let button = |name, verb: &str, explains| Button::new(name, format!("/reminders/{}/{verb}", kept.id), explains);
    match kept.document.state {
        ReminderState::Missed => {
            let send = "It is sent now, under the same key as before. If the carrier may have taken it already, look there first.";
            let sent = "You have looked at the carrier, and it has it.";
            let let_be = "It was not sent, and it is too late for it. It is cancelled for good.";
            vec![
                button("Send anyway", "send", send).grave(),
                button("Mark as sent", "resolve", sent).with("as", "sent"),
                button("Dismiss", "resolve", let_be).grave().with("as", "not_sent"),
            ]
        }
        ReminderState::Scheduled => {
            let cancel = "It will not be sent. Moving it to another time brings it back.";
            vec![button("Cancel", "cancel", cancel).grave()]
        }
        ReminderState::Sending | ReminderState::Sent | ReminderState::Cancelled => vec![],
    }
}

fn moments(reminder: &Reminder, visitor: &Visitor) -> Vec<Happened> {
    let at = Time::from_micros;
    let mut moments = vec![(reminder.created_us, Happened::new(at(reminder.created_us), Tone::Good, "It was set."))];
    if let Some(flagged) = reminder.flagged_us {
        let says = "Its flag was set, before the carrier was called.";
        moments.push((flagged, Happened::new(at(flagged), Tone::Busy, says)));
    }
    for row in &reminder.deliveries {
        let happened = match &row.error {
            None => Happened::new(at(row.at_us), Tone::Good, "The carrier took it."),
            Some(error) => {
                let reached =
                    if row.maybe { "It may have reached the recipient." } else { "It surely reached no recipient." };
                Happened::new(at(row.at_us), Tone::Warn, format!("The carrier was called: {error}")).about(reached)
            }
        };
        moments.push((row.at_us, happened));
    }
    // A person's decision after the reminder had ended did not change it; a later report of the carrier did.
    let settled = reminder.resolved.as_ref().filter(|said| said.sent || reminder.state == ReminderState::Cancelled);
    let ended = settled.map_or(reminder.state, |_| ReminderState::Missed);
    if let Some(ended_us) = reminder.ended_us.filter(|_| ended != ReminderState::Sent) {
        let state = ended.as_str();
        moments.push((ended_us, Happened::new(at(ended_us), Tone::of(state), format!("It was {state}."))));
    }
    if let Some(resolved) = &reminder.resolved {
        let says = if resolved.sent { "A person marked it as sent." } else { "A person dismissed it." };
        let about = who_and_why(resolved, visitor);
        moments.push((resolved.at_us, Happened { about, ..Happened::new(at(resolved.at_us), Tone::Plain, says) }));
    }
    in_order(moments)
}

pub async fn act(Posted { app, visitor, named: (id, verb), fields }: Posted<(Uuid, String)>) -> Shown {
    visitor.require(Role::Operate)?;
    let reason = Some(fields.reason()?);
    let (desk, audit, by) = (app.reminders.clone(), app.audit.clone(), By::from(&visitor.caller));
    let workspace = visitor.caller.workspace;
    match verb.as_str() {
        "send" => desk.send_by_hand(audit, workspace, id, by, reason).await?,
        "cancel" => desk.cancel_by_hand(audit, workspace, id, by, reason).await?,
        "resolve" => desk.resolve_by_hand(audit, workspace, id, fields.was_sent()?, by, reason).await?,
        _ => return Err(Kind::NotFound.because("there is no such path").into()),
    };
    Ok(see_other(&format!("/reminders/{id}?did={verb}")))
}
