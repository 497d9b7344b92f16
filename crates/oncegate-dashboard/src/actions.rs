//! Actions: what is to be done later, how often it was asked for, and how each try went.

use std::sync::Arc;

use axum::extract::State;
use oncegate::Time;
use oncegate::actions::{Action, Found, Resolved, Status, effect_key};
use oncegate::store::{Clock, Role, SystemClock};
use uuid::Uuid;

use super::parts::{
    Body, Button, Cell, Detail, Filter, Happened, List, Section, Table, Tone, ago, facts, in_order, pretty, query,
    short,
};
use super::session::{Visitor, see_other};
use super::{Fields, Frame, Named, PAGE, Posted, Shown, did, show_detail, show_list};
use oncegate_http::actions::Verb;
use oncegate_http::api::{ActionParams, action_filter, missing, page_id};
use oncegate_http::app::App;
use oncegate_http::audit::By;

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let given = |name: &str| fields.get(name).map(str::to_owned);
    let wanted = action_filter(ActionParams {
        status: given("status"),
        action_type: given("type"),
        entity_id: given("entityId"),
        schedule_id: given("scheduleId"),
        limit: Some(PAGE),
        cursor: given("cursor"),
    })?;
    let page = app.actions.actions.list(visitor.workspace(), &wanted).await?;
    let lead = "Actions to run later, newest first. Duplicates for one entity within the window coalesce into one action with the newest payload.";
    let list = List::new("/actions", lead, table("Actions", &page.items)).filters([
        Filter::choice("status", "Status", fields.text("status"), &Status::ALL.map(Status::as_str)),
        Filter::text("type", "Type", fields.text("type")),
        Filter::text("entityId", "Entity", fields.text("entityId")),
    ]);
    show_list(Frame::new(&visitor, "/actions", "Actions"), list.then(page.next))
}

pub fn table(title: &str, found: &[Found]) -> Table {
    let now = SystemClock.now();
    let row = |found: &Found| {
        let action = &found.action;
        [
            Cell::state(found.status().as_str()),
            Cell::code(short(&found.id.to_string())).link(format!("/actions/{}", found.id)),
            Cell::text(&action.action_type),
            Cell::maybe(action.entity.as_ref().map(|entity| &entity.id)),
            Cell::text(action.revision),
            Cell::text(tries(found)),
            Cell::time(found.run_at(), now),
        ]
    };
    Table::new(title, ["Status", "Action", "Type", "Entity", "Revisions", "Tries", "Due"], found.iter().map(row))
}

fn tries(found: &Found) -> String {
    match (&found.job, &found.action.ended) {
        (Some(job), _) => format!("{} of {}", job.tried.min(job.tries.max), job.tries.max),
        (None, Some(ended)) => format!("{} of {}", ended.attempt, ended.tries_max),
        (None, None) => String::new(),
    }
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    let found = app.actions.actions.find(visitor.workspace(), page_id(&id, "action")?).await?;
    let found = found.ok_or_else(|| missing("action"))?;
    let detail = Detail {
        above: ("Actions", "/actions".into()),
        state: Cell::state(found.status().as_str()),
        says: says(&found, SystemClock.now()),
        did: did(&fields),
        buttons: buttons(&found),
        sections: sections(&found, &visitor, SystemClock.now()),
    };
    let title = format!("Action {} · {}", short(&id), found.action.action_type);
    show_detail(Frame::new(&visitor, "/actions", title), detail)
}

fn says(found: &Found, now: Time) -> String {
    let due = ago(found.run_at(), now);
    match found.status() {
        Status::Pending if found.action.recurrence.is_some() => format!("A schedule. It runs next {due}."),
        Status::Pending if found.run_at() <= now => "It is due: it runs as soon as a worker is free.".into(),
        Status::Pending => format!("It runs {due}. Until a worker leases it, duplicates coalesce into it."),
        Status::Running => "A worker runs it. A duplicate becomes an action of its own now.".into(),
        Status::Failed => format!("Its last attempt failed. The next one is {due}."),
        Status::Completed => "It was done.".into(),
        Status::Dead => "It surely did not happen, and no attempts are left. Look at the error, then retry or dismiss it.".into(),
        Status::Unknown => "It may have happened: its worker or its answer was lost. It runs at most once, so it is not retried before a person has looked.".into(),
        Status::Cancelled => "It was cancelled.".into(),
    }
}

fn buttons(found: &Found) -> Vec<Button> {
    let button = |name, verb: &str, explains| Button::new(name, format!("/actions/{}/{verb}", found.id), explains);
    let run = button("Run now", "run-now", "It becomes due at once.");
    let cancel = button("Cancel", "cancel", "It will not run. A schedule has no more ticks.").grave();
    let explains = "It goes back into the queue with all its attempts, and the same key for its receiver.";
    let again = button("Retry", "retry", explains);
    let done = button("Mark as done", "done", "You have looked at its receiver, and it has it. It becomes completed.");
    let explains = "It did not happen, and must not happen any more. It becomes cancelled. A retry brings it back.";
    let let_be = button("Dismiss", "let-be", explains);
    match found.status() {
        Status::Pending => vec![run, cancel],
        Status::Failed => vec![again, cancel],
        Status::Dead => vec![again, done, let_be],
        Status::Cancelled => vec![again],
        Status::Unknown => {
            let explains = "It may have happened already. If you have looked and it has not, it goes back into the queue with all its attempts.";
            vec![done, Button { explains, ..again.grave() }, let_be]
        }
        Status::Running | Status::Completed => vec![],
    }
}

fn sections(found: &Found, visitor: &Visitor, now: Time) -> Vec<Section> {
    let Action { action_type, payload, entity, revision, created_us, recurrence, ended, tick_of, .. } = &found.action;
    let entity_id = entity.as_ref().map(|entity| entity.id.as_str());
    let error =
        found.job.as_ref().and_then(|job| job.error.as_ref()).or(ended.as_ref().and_then(|ended| ended.error.as_ref()));
    let about = vec![
        ("Type", Cell::text(action_type).link(query("/actions", [("type", action_type.as_str())]))),
        (
            "Entity",
            entity_id.map_or_else(Cell::default, |id| Cell::text(id).link(query("/actions", [("entityId", id)]))),
        ),
        ("Entity's type", Cell::maybe(entity.as_ref().and_then(|entity| entity.entity_type.as_ref()))),
        ("Revisions", Cell::text(revision)),
        ("Tries", Cell::text(tries(found))),
        ("Error", Cell::maybe(error)),
        ("Due", Cell::time(found.run_at(), now)),
        ("Made", Cell::time(Time::from_micros(*created_us), now)),
        ("Repeats", Cell::maybe(recurrence.as_ref().map(|recurrence| &recurrence.interval))),
        (
            "Schedule",
            tick_of.map_or_else(Cell::default, |id| Cell::code(short(&id.to_string())).link(format!("/actions/{id}"))),
        ),
        (
            "Its ticks",
            if recurrence.is_some() {
                Cell::text("those that have run")
                    .link(query("/actions", [("scheduleId", found.id.to_string().as_str())]))
            } else {
                Cell::default()
            },
        ),
        ("Its receiver's key", Cell::code(effect_key(found.id, &found.action))),
        ("Id", Cell::code(found.id)),
    ];
    let mut sections = vec![
        Section { title: "What happened", body: Body::Moments(moments(found, visitor)) },
        facts("Facts", about),
        Section { title: "Payload", body: Body::Text(pretty(payload.get())) },
    ];
    if let Some(result) = ended.as_ref().and_then(|ended| ended.result.as_ref()) {
        sections.push(Section { title: "Result", body: Body::Text(pretty(result.get())) });
    }
    sections
}

/// The action's revisions, its tries, and its end.
fn moments(found: &Found, visitor: &Visitor) -> Vec<Happened> {
    let Action { revision, revised_us, tries, ended, created_us, .. } = &found.action;
    let mut moments: Vec<(i64, Happened)> = vec![];
    let mut add =
        |at_us: i64, tone, says: String| moments.push((at_us, Happened::new(Time::from_micros(at_us), tone, says)));
    let first = revision - i64::try_from(revised_us.len()).unwrap_or(0) + 1;
    if first > 1 {
        add(
            *created_us,
            Tone::Good,
            format!("Scheduled. Of its {revision} revisions the last {} are here.", revised_us.len()),
        );
    }
    for (number, at_us) in (first..).zip(revised_us) {
        match number {
            1 => add(*at_us, Tone::Good, "Scheduled.".into()),
            _ => add(*at_us, Tone::Busy, format!("A duplicate coalesced into it, as revision {number}.")),
        }
    }
    for failed in tries {
        let reached = if failed.maybe { "It may have happened." } else { "It surely did not happen." };
        add(
            failed.at_us,
            Tone::Warn,
            format!("Attempt {} failed: {}. {reached}", failed.attempt, failed.error.trim_end_matches('.')),
        );
    }
    if let Some(ended) = ended.as_ref().filter(|_| found.job.is_none()) {
        let status = ended.was().as_str();
        add(ended.at_us, Tone::of(status), format!("It ended: {status}."));
        if let Some(Resolved { by, note, at_us, .. }) = &ended.resolved {
            let why = note.as_ref().map_or(String::new(), |note| format!(": {note}"));
            let who = if visitor.operates() { format!(" By {by}{why}") } else { String::new() };
            let found = if ended.status == Status::Completed { "it happened" } else { "it must not happen" };
            add(*at_us, Tone::Plain, format!("A person found that {found}.{who}"));
        }
    }
    if let Some(job) = found.job.as_ref().filter(|job| Status::of(job) == Status::Running) {
        let says = format!("A worker runs attempt {}. Its lease ends at {}.", job.tried, job.lease_until);
        add(i64::MAX - 1, Tone::Busy, says);
        if let Some((_, last)) = moments.last_mut() {
            (last.at, last.clock) = (String::new(), "now".into());
        }
    }
    in_order(moments)
}

pub async fn act(Posted { app, visitor, named: (id, verb), fields }: Posted<(Uuid, String)>) -> Shown {
    visitor.require(Role::Operate)?;
    let reason = fields.reason()?;
    let verb = Verb::parse(&verb).ok_or_else(|| missing("verb"))?;
    let (by, audit) = (By::from(&visitor.caller), app.audit.clone());
    app.actions.clone().by_hand(audit, visitor.caller.workspace, id, verb, by, Some(reason)).await?;
    Ok(see_other(&format!("/actions/{id}?did={}", verb.as_str())))
}
