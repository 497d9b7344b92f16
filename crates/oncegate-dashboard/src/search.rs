//! Search: an id, the parts of a key, a campaign, a booking, an entity, a phone. One field searches all of them.

use std::sync::Arc;

use axum::extract::State;
use futures::future::join_all;
use oncegate::document::{Document, place};
use oncegate::messages::{Kept, Lead, Message, Thread, email_name, phone_name};
use oncegate::store::At;
use oncegate::store::{Clock, Role, SystemClock};
use oncegate::{ClaimId, ClaimKey, GuardName, actions, reminders, sends};
use uuid::Uuid;

use super::parts::{Cell, List, Table, ago, encoded, query, short};
use super::session::{Visitor, see_other};
use super::{Failed, Fields, Frame, Shown, claims, show_list};
use oncegate_http::app::App;
use oncegate_http::decisions::tally::Range;
use oncegate_http::own_guards::OWN_GUARDS;

/// The number of results of each kind.
const FEW: usize = 5;
/// A longer text matches nothing.
const SEARCHED_BYTES_MAX: usize = 512;

/// A search result.
struct Hit {
    what: &'static str,
    name: String,
    state: Option<String>,
    about: String,
    href: String,
}

pub async fn page(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    visitor.require(Role::Operate)?;
    let searched = fields.text("q").to_owned();
    let hits = match searched.len() {
        1..=SEARCHED_BYTES_MAX if !searched.contains(char::is_control) => search(&app, &visitor, &searched).await?,
        _ => vec![],
    };
    // A single result needs no list.
    if let [only] = &hits[..] {
        return Ok(see_other(&only.href));
    }
    let row = |hit: Hit| {
        [
            Cell::text(hit.what),
            Cell::text(hit.name).link(hit.href),
            hit.state.as_deref().map_or_else(Cell::default, Cell::state),
            Cell::text(hit.about),
        ]
    };
    let lead = "Takes an id of anything, a claim's id, a phone or an email address, a campaign, a booking, an entity, a saga's instance, or the parts of a key: alone, or behind the name of its guard, with spaces between them.";
    let table = Table {
        empty: "Nothing found. A claim is found as long as its window lasts.",
        ..Table::new("Found", ["What", "Which", "State", ""], hits.into_iter().map(row))
    };
    let title = if searched.is_empty() { "Search".to_owned() } else { format!("Search for “{searched}”") };
    show_list(Frame { searched, ..Frame::new(&visitor, "", title) }, List::new("/search", lead, table))
}

async fn search(app: &App, visitor: &Visitor, searched: &str) -> Result<Vec<Hit>, Failed> {
    let mut hits = match searched.parse::<Uuid>() {
        Ok(id) => by_id(app, visitor, id).await?,
        Err(_) => people(app, visitor, searched).await?,
    };
    // Any text may be the name of a campaign, or a part of a key.
    hits.extend(work(app, visitor, searched).await?);
    hits.extend(keys(app, visitor, searched).await?);
    Ok(hits)
}

async fn by_id(app: &App, visitor: &Visitor, id: Uuid) -> Result<Vec<Hit>, Failed> {
    let workspace = visitor.workspace();
    let (message, lead, thread) = tokio::try_join!(
        app.messages.messages.find::<Message>(workspace, id),
        app.messages.messages.find::<Lead>(workspace, id),
        app.messages.messages.find::<Thread>(workspace, id),
    )?;
    let (action, send, reminder, letter) = tokio::try_join!(
        app.actions.actions.find(workspace, id),
        app.sends.sends.find(workspace, id),
        app.reminders.reminders.find(workspace, id),
        app.sagas.sagas.dead_letter(workspace, id),
    )?;
    let hit = |what, path: &str| Hit {
        what,
        name: id.to_string(),
        state: None,
        about: String::new(),
        href: format!("{path}/{id}"),
    };
    let found = [
        message.map(|_| hit("message", "/messages")),
        lead.map(|_| hit("lead", "/leads")),
        thread.map(|_| hit("thread", "/threads")),
        action.map(|_| hit("action", "/actions")),
        send.map(|_| hit("send", "/sends")),
        reminder.map(|_| hit("reminder", "/reminders")),
        letter.map(|_| hit("dead letter", "/dead-letters")),
    ];
    Ok(found.into_iter().flatten().collect())
}

/// A phone or an email address.
async fn people(app: &App, visitor: &Visitor, searched: &str) -> Result<Vec<Hit>, Failed> {
    let workspace = visitor.workspace();
    // A plus that a person types into a query arrives as a space; spaces and dashes only help people to read.
    let digits: String = searched.chars().filter(char::is_ascii_digit).collect();
    let is_phone = digits.len() >= 5 && searched.chars().all(|c| c.is_ascii_digit() || " +-().".contains(c));
    let mut names = vec![phone_name(searched), email_name(searched)];
    if is_phone {
        names.extend([phone_name(&format!("+{digits}")), phone_name(&digits)]);
    }
    names.dedup();
    let places: Vec<_> = names.into_iter().map(|name| place::<Lead>(workspace, At::Name(name))).collect();
    let found = app.store.find(&places).await?.value;
    let mut leads = found.into_iter().flatten().map(Kept::<Lead>::read).collect::<Result<Vec<_>, _>>()?;
    leads.dedup_by_key(|lead| lead.id);
    let hit = |kept: Kept<Lead>| {
        let Lead { name, phone, email, .. } = kept.document;
        let names: Vec<String> = [name, phone, email].into_iter().flatten().collect();
        Hit {
            what: Lead::KIND,
            name: names.join(" · "),
            state: None,
            about: String::new(),
            href: format!("/leads/{}", kept.id),
        }
    };
    Ok(leads.into_iter().map(hit).collect())
}

/// A campaign, a booking, an entity, an instance of a saga.
async fn work(app: &App, visitor: &Visitor, searched: &str) -> Result<Vec<Hit>, Failed> {
    let (workspace, now) = (visitor.workspace(), SystemClock.now());
    let name = Some(searched.to_owned());
    let of_sends = sends::Filter { campaign: name.clone(), state: None, limit: FEW, before: None };
    let of_reminders = reminders::Filter { booking: name.clone(), state: None, limit: FEW, before: None };
    let of_actions = actions::Filter { entity_id: name, limit: FEW, ..actions::Filter::default() };
    let (sent, reminded, acted) = tokio::try_join!(
        app.sends.sends.list(workspace, &of_sends),
        app.reminders.reminders.list(workspace, &of_reminders),
        app.actions.actions.list(workspace, &of_actions),
    )?;
    let mut hits = vec![];
    if !sent.value.items.is_empty() {
        let href = query("/sends", [("campaign", searched)]);
        let about = format!(
            "its last sends, {}",
            ago(oncegate::Time::from_micros(sent.value.items[0].document.created_us), now)
        );
        hits.push(Hit { what: "campaign", name: searched.to_owned(), state: None, about, href });
    }
    hits.extend(reminded.items.iter().map(|kept| Hit {
        what: "reminder",
        name: format!("{} · {}", kept.document.booking, kept.document.kind),
        state: Some(kept.document.state.as_str().to_owned()),
        about: String::new(),
        href: format!("/reminders/{}", kept.id),
    }));
    hits.extend(acted.items.iter().map(|found| Hit {
        what: "action",
        name: format!("{} · {searched}", found.action.action_type),
        state: Some(found.status().as_str().to_owned()),
        about: format!("due {}", ago(found.run_at(), now)),
        href: format!("/actions/{}", found.id),
    }));
    for definition in app.sagas.sagas.definitions() {
        if let Some(found) = app.sagas.sagas.find(workspace, definition.name(), searched).await? {
            hits.push(Hit {
                what: "saga",
                name: format!("{} · {searched}", found.saga),
                state: None,
                about: format!("in state {}", found.instance.state),
                href: format!("/sagas/{}/{}", encoded(&found.saga), encoded(searched)),
            });
        }
    }
    Ok(hits)
}

/// A claim, by its id or by the parts of its key, under any known guard.
async fn keys(app: &App, visitor: &Visitor, searched: &str) -> Result<Vec<Hit>, Failed> {
    let workspace = visitor.workspace();
    let split = |text: &str| -> Vec<Option<String>> {
        // In the format in which claims show them.
        let by_dots = text.split(" · ").collect::<Vec<_>>();
        let parts = if by_dots.len() > 1 { by_dots } else { text.split_whitespace().collect() };
        parts.into_iter().map(|part| (part != "–").then(|| part.to_owned())).collect()
    };
    let mut wanted: Vec<ClaimKey> = vec![];
    for guard in known_guards(app, visitor).await? {
        match ClaimId::parse(searched) {
            Some(id) => wanted.push(ClaimKey { workspace: workspace.clone(), guard, id }),
            None => {
                wanted.push(ClaimKey::of(workspace, &guard, &[Some(searched)]));
                wanted.push(ClaimKey::of(workspace, &guard, &split(searched)));
            }
        }
    }
    // The text may name the guard, even an unknown one.
    if let Some((guard, rest)) = searched.split_once(char::is_whitespace)
        && let Ok(guard) = GuardName::new(guard)
    {
        wanted.push(ClaimKey::of(workspace, &guard, &[Some(rest.trim())]));
        wanted.push(ClaimKey::of(workspace, &guard, &split(rest.trim())));
    }
    wanted.sort_by(|a, b| (a.guard.as_str(), a.id.as_bytes()).cmp(&(b.guard.as_str(), b.id.as_bytes())));
    wanted.dedup();
    let found = join_all(wanted.iter().map(|key| app.ledger_of(Some(&key.guard)).read(key))).await;
    let mut hits = vec![];
    for (key, reading) in wanted.iter().zip(found) {
        let reading = reading?;
        if let Some(claim) = reading.value {
            hits.push(Hit {
                what: "claim",
                name: format!("{} of {}", short(&key.id.to_string()), key.guard),
                state: Some(claim.state_at(reading.now).as_str().to_owned()),
                about: format!("{} duplicates", claim.duplicates),
                href: claims::href(key),
            });
        }
    }
    Ok(hits)
}

/// The server's own guards, the configured ones, and those with decisions in the last week.
async fn known_guards(app: &App, visitor: &Visitor) -> Result<Vec<GuardName>, Failed> {
    let week = app.decisions.tally.read(&*app.store, visitor.workspace(), Range::Week, SystemClock.now()).await?;
    let mut guards: Vec<GuardName> = OWN_GUARDS.iter().map(|guard| (**guard).clone()).collect();
    guards.extend(app.config.claims.guards.keys().cloned());
    guards.extend(week.guards.keys().filter_map(|name| GuardName::new(name).ok()));
    guards.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    guards.dedup();
    Ok(guards)
}
