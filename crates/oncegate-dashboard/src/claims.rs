//! Claims: the winner, its duplicates, and why they were stopped.

use std::sync::Arc;

use axum::extract::State;
use oncegate::store::{Page, Query, Reading, Role};
use oncegate::{Claim, ClaimId, ClaimKey, Command, Refusal, State as ClaimState, Time};

use super::parts::{
    Body, Button, Cell, Detail, Filter, Happened, List, Section, Table, Tone, ago, encoded, facts, in_order, pretty,
    query, short,
};
use super::session::{Visitor, see_other};
use super::{Fields, Frame, Named, PAGE, Posted, Shown, did, show_detail, show_list};
use oncegate_http::api::{by_hand, claim_cursor, claim_guard, claim_state, cursor_of};
use oncegate_http::app::App;
use oncegate_http::audit::By;
use oncegate_http::decisions::timeline::{Moment, Timeline, What};
use oncegate_http::own_guards::is_own;
use oncegate_http::problem::{Kind, Problem};

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let (guard, state) = (fields.text("guard"), fields.text("state"));
    let wanted = Query {
        workspace: visitor.workspace().clone(),
        guard: fields.get("guard").map(claim_guard).transpose()?,
        state: fields.get("state").map(claim_state).transpose()?,
        limit: PAGE,
        after: fields.get("cursor").map(claim_cursor).transpose()?,
    };
    let page = app.ledger_of(wanted.guard.as_ref()).store().scan(wanted).await?;
    let lead = "One claim for each key, newest first. The first caller owns the claim; later callers are duplicates, and are stopped.";
    let list = List::new("/claims", lead, table(&page)).filters([
        Filter::text("guard", "Guard", guard),
        Filter::choice("state", "State", state, &ClaimState::ALL.map(ClaimState::as_str)),
    ]);
    show_list(Frame::new(&visitor, "/claims", "Claims"), list.then(page.next.map(cursor_of)))
}

fn table(page: &Page) -> Table {
    let row = |claim: &Claim| {
        let id = claim.key.id.to_string();
        [
            Cell::state(claim.state_at(page.now).as_str()),
            Cell::text(&claim.key.guard),
            Cell::code(short(&id)).link(href(&claim.key)),
            Cell::maybe(claim.parts.as_deref().map(parts)),
            Cell::text(claim.duplicates),
            Cell::time(claim.created_at, page.now),
            Cell::time(claim.expires_at, page.now),
        ]
    };
    let head = ["State", "Guard", "Claim", "Key", "Duplicates", "Made", "Window ends"];
    Table::new("Claims", head, page.claims.iter().map(row))
}

/// The parts of a key, as people write them.
fn parts(json: &str) -> String {
    let parts: Vec<Option<String>> = serde_json::from_str(json).unwrap_or_default();
    parts.into_iter().map(|part| part.unwrap_or_else(|| "–".into())).collect::<Vec<_>>().join(" · ")
}

pub fn href(key: &ClaimKey) -> String {
    query(&format!("/claims/{}", key.id), [("guard", key.guard.as_str())])
}

fn key(visitor: &Visitor, id: &str, fields: &Fields) -> Result<ClaimKey, Problem> {
    let guard =
        fields.get("guard").ok_or_else(|| Kind::InvalidRequest.because("guard: which guard is the claim of?"))?;
    let id = ClaimId::parse(id).ok_or_else(|| Problem::from(Refusal::Missing))?;
    Ok(ClaimKey { workspace: visitor.workspace().clone(), guard: claim_guard(guard)?, id })
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named(id): Named<String>, fields: Fields) -> Shown {
    let key = key(&visitor, &id, &fields)?;
    let Reading { value, now } = app.ledger_of(Some(&key.guard)).read(&key).await?;
    let mut timeline = app.timelines.read(&key).await?;
    if !visitor.operates() {
        for moment in timeline.first.iter_mut().chain(&mut timeline.last) {
            (moment.by, moment.why) = (None, None);
        }
    }
    if value.is_none() && timeline.first.is_empty() {
        return Err(Refusal::Missing.into());
    }
    let detail = Detail {
        above: ("Claims", query("/claims", [("guard", key.guard.as_str())])),
        state: Cell::state(value.as_ref().map_or("gone", |claim| claim.state_at(now).as_str())),
        says: value.as_ref().map_or_else(
            || {
                "There is no claim: its window has ended, its owner released it, or a person forgot it. The next caller is allowed."
                    .into()
            },
            |claim| says(claim, now),
        ),
        did: did(&fields),
        buttons: value.as_ref().map(|claim| buttons(claim, now)).unwrap_or_default(),
        sections: sections(&key, value.as_ref(), timeline, now),
    };
    let title = format!("Claim {} of {}", short(&id), key.guard);
    show_detail(Frame::new(&visitor, "/claims", title), detail)
}

/// The state of the claim, and what it means for the next caller.
fn says(claim: &Claim, now: Time) -> String {
    let ends = match claim.expires_at {
        Time::NEVER => "for good".to_owned(),
        at => format!("until its window ends ({})", ago(at, now)),
    };
    match claim.state_at(now) {
        ClaimState::InFlight if claim.owner_is_alive(now) => format!(
            "Its owner is at work. The lease ends at {} ({}). Until then, other callers are told to wait.",
            claim.lease_until,
            ago(claim.lease_until, now)
        ),
        ClaimState::InFlight => {
            format!(
                "Its owner's lease ended {}, and the owner had not settled it. The next caller takes over.",
                ago(claim.lease_until, now)
            )
        }
        ClaimState::Done => {
            format!("Done. A caller with this key {ends} gets the outcome, and does nothing.")
        }
        ClaimState::Failed => {
            format!("Failed: it did not happen. A caller with this key {ends} is told so.")
        }
        ClaimState::Unknown if claim.settled_at.is_some() => {
            "Unknown: its owner could not tell whether it happened. No caller is allowed until a person resolves it."
                .into()
        }
        ClaimState::Unknown => format!(
            "Unknown: its owner's lease ended {}, and the owner had not settled it. It may have happened. No caller is allowed until a person resolves it.",
            ago(claim.lease_until, now)
        ),
    }
}

fn buttons(claim: &Claim, now: Time) -> Vec<Button> {
    let ClaimKey { guard, id, .. } = &claim.key;
    let button = |name, verb: &str, explains| {
        Button::new(name, format!("/claims/{id}/{verb}"), explains).with("guard", guard.to_string())
    };
    let mut buttons = vec![];
    if claim.state_at(now) == ClaimState::Unknown && !is_own(guard) {
        let done = "You have looked, and it happened. Later callers with this key are told that it is done.";
        let not_done = "You have looked, and it did not happen. Later callers with this key are told that it failed. To have it tried again, forget the claim afterwards.";
        buttons.push(button("Mark as done", "resolve", done).with("as", "done"));
        buttons.push(button("Mark as not done", "resolve", not_done).grave().with("as", "not_done"));
    }
    let forget = "Removes the claim, in any state. The next caller with this key is allowed, even if it has happened already. An owner that is at work is refused when it settles.";
    buttons.push(button("Forget", "forget", forget).grave());
    buttons
}

fn sections(key: &ClaimKey, claim: Option<&Claim>, timeline: Timeline, now: Time) -> Vec<Section> {
    let mut sections = vec![Section { title: "What happened", body: Body::Moments(moments(claim, timeline, now)) }];
    let mut about = vec![
        ("Guard", Cell::text(&key.guard).link(query("/claims", [("guard", key.guard.as_str())]))),
        ("Id", Cell::code(key.id)),
    ];
    if let Some(claim) = claim {
        about.extend([
            ("Key", Cell::maybe(claim.parts.as_deref().map(parts))),
            ("Duplicates", Cell::text(claim.duplicates)),
            ("Last duplicate", claim.last_duplicate_at.map_or_else(Cell::default, |at| Cell::time(at, now))),
            ("Made", Cell::time(claim.created_at, now)),
            ("Settled", claim.settled_at.map_or_else(Cell::default, |at| Cell::time(at, now))),
            ("Window ends", Cell::time(claim.expires_at, now)),
            (
                "Lease ends",
                if claim.state == ClaimState::InFlight { Cell::time(claim.lease_until, now) } else { Cell::default() },
            ),
            ("Owner", Cell::text(format!("attempt {}, token {}", claim.attempt, claim.token))),
            ("Fingerprint", claim.fingerprint.as_ref().map_or_else(Cell::default, Cell::code)),
        ]);
    }
    sections.push(facts("Facts", about));
    if let Some(outcome) = claim.and_then(|claim| claim.outcome.as_deref()) {
        let outcome = String::from_utf8_lossy(outcome);
        sections.push(Section { title: "Outcome", body: Body::Text(pretty(&outcome)) });
    }
    if let Some(attributes) = claim.and_then(|claim| claim.attributes.as_deref()) {
        sections.push(Section { title: "Attributes", body: Body::Text(pretty(attributes)) });
    }
    sections
}

/// The moments of its record and of its timeline, in order.
fn moments(claim: Option<&Claim>, timeline: Timeline, now: Time) -> Vec<Happened> {
    let Timeline { first, last, left_out } = timeline;
    let cut = last.first().map(|moment| moment.at_us);
    let mut moments: Vec<(i64, Happened)> =
        first.iter().chain(&last).map(|moment| (moment.at_us, happened(moment))).collect();
    if let Some(at_us) = cut.filter(|_| left_out > 0) {
        let says = format!("{left_out} more moments like these in between.");
        moments.push((at_us - 1, Happened::new(Time::from_micros(at_us), Tone::Plain, says)));
    }
    if let Some(claim) = claim {
        let says = match claim.attempt {
            1 => "First request: allowed.".to_owned(),
            attempt => format!("The present owner took over: attempt {attempt} in this window."),
        };
        let made = Happened::new(claim.created_at, Tone::Good, says);
        moments.push((claim.created_at.micros() - 1, made));
        if let Some(at) = claim.settled_at {
            let (tone, says) = match claim.state {
                ClaimState::Done => (Tone::Good, "Settled as done."),
                ClaimState::Failed => (Tone::Warn, "Settled as failed."),
                ClaimState::Unknown | ClaimState::InFlight => {
                    (Tone::Bad, "Its owner could not tell whether it happened.")
                }
            };
            moments.push((at.micros(), Happened::new(at, tone, says)));
        } else if !claim.owner_is_alive(now) {
            let says = "Its owner's lease ended. The owner died, or was paused for too long.";
            moments.push((claim.lease_until.micros(), Happened::new(claim.lease_until, Tone::Bad, says)));
        }
    }
    in_order(moments)
}

fn happened(moment: &Moment) -> Happened {
    let tone = match moment.what {
        what if what.is_stop() => Tone::Busy,
        What::TakenOver | What::Fenced => Tone::Warn,
        _ => Tone::Plain,
    };
    let about = match (&moment.by, &moment.why) {
        (Some(by), Some(why)) => format!("By {by}: {why} · on {}", moment.replica),
        (Some(by), None) => format!("By {by} · on {}", moment.replica),
        (None, _) => format!("On {}", moment.replica),
    };
    let happened = Happened::new(Time::from_micros(moment.at_us), tone, moment.what.says()).about(about);
    Happened { times: moment.times, ..happened }
}

pub async fn forget(posted: Posted<String>) -> Shown {
    act(posted, Command::Forget, "forget").await
}

pub async fn resolve(posted: Posted<String>) -> Shown {
    let fields = &posted.fields;
    let done = match fields.get("as") {
        Some("done") => true,
        Some("not_done") => false,
        _ => return Err(Kind::InvalidRequest.because("as: done or not_done").into()),
    };
    if fields.get("guard").map(claim_guard).transpose()?.is_some_and(|guard| is_own(&guard)) {
        return Err(Kind::InvalidRequest.because("this claim is settled with what it guards").into());
    }
    act(posted, Command::Resolve { done, outcome: None }, "resolve").await
}

async fn act(
    Posted { app, visitor, named: id, fields }: Posted<String>,
    command: Command,
    verb: &'static str,
) -> Shown {
    visitor.require(Role::Operate)?;
    let (key, reason) = (key(&visitor, &id, &fields)?, fields.reason()?);
    let to = format!("/claims/{id}?guard={}&did={verb}", encoded(key.guard.as_str()));
    by_hand(app, key, command, By::from(&visitor.caller), Some(reason)).await?;
    Ok(see_other(&to))
}
