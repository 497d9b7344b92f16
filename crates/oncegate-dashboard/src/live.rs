//! Live updates of pages: server-sent events with parts of the page, made from the same templates. Also the page of decisions.
//!
//! Nothing is written to a client that does not read. Skipped parts are never sent later, and cost nothing. Each part replaces the one
//! before,
//! so a page that is open for days does not grow.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream;
use oncegate::Time;
use oncegate::sagas::Definition;
use oncegate::store::Role;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::overview::{self, ChartPart, NumbersPart};
use super::parts::{Tone, clock, query, short};
use super::session::{self, Visitor};
use super::{Fields, Frame, Shown, render, sagas};
use oncegate_http::api::{follower, missing};
use oncegate_http::app::App;
use oncegate_http::app::Under;
use oncegate_http::auth::Caller;
use oncegate_http::decisions::tally::Range;
use oncegate_http::decisions::words::{Fate, subject, words};
use oncegate_http::decisions::{Follower, Place, Told};
use oncegate_http::observe;
use oncegate_http::tenants::Taken;

const TICK: Duration = Duration::from_millis(500);
/// In ticks.
const NUMBERS_EVERY: u64 = 4;
const CHART_EVERY: u64 = 20;
const SESSION_EVERY: u64 = 10;
/// After this, the browser reconnects, and is authenticated again.
const TICKS_MAX: u64 = 60 * 60 * 2;
/// The number of decisions on their own page.
const LINES: usize = 100;

/// A decision, for people.
pub struct Line {
    pub at: String,
    pub clock: String,
    pub fate: &'static str,
    pub tone: Tone,
    pub guard: String,
    pub says: String,
    pub about: Option<String>,
    pub what: &'static str,
    pub href: Option<String>,
    pub short: String,
}

impl Line {
    fn of(heard: &Told) -> Line {
        let (meaning, guard, told) = (heard.meaning, heard.guard(), &heard.read());
        let at = told["timestamp"].as_str().unwrap_or_default();
        let (what, href, id) = match subject(told) {
            Some((field, id)) => (what(field), Some(href(field, id, guard)), short(id)),
            None => ("", None, String::new()),
        };
        let about = [&told["actionType"], &told["saga"]].into_iter().find_map(Value::as_str);
        Line {
            at: at.to_owned(),
            clock: Time::parse(at).map_or_else(String::new, clock),
            fate: meaning.fate.as_str(),
            tone: match meaning.fate {
                Fate::Passed | Fate::Done => Tone::Good,
                Fate::Stopped => Tone::Busy,
                Fate::Failed => Tone::Warn,
                Fate::Needed => Tone::Bad,
                Fate::Noted => Tone::Plain,
            },
            guard: guard.to_owned(),
            // The fate's own column already says that it was stopped.
            says: words(meaning, told).trim_start_matches("stopped: ").to_owned(),
            about: about.map(str::to_owned),
            what,
            href,
            short: id,
        }
    }

    /// The last decisions that the caller may see and that match, newest first.
    pub fn last(app: &App, caller: &Caller, count: usize, fits: impl Fn(&Told) -> bool) -> Vec<Line> {
        let heard = app.decisions.since(caller.workspace.as_str(), Place::default());
        let told = heard.told.iter().rev().filter(|told| told.is_for(caller.role) && fits(told));
        told.take(count).map(Line::of).collect()
    }
}

fn what(field: &str) -> &'static str {
    match field {
        "messageId" => "message",
        "actionId" => "action",
        "sendId" => "send",
        "reminderId" => "reminder",
        "deadLetterId" => "dead letter",
        _ => "claim",
    }
}

fn href(field: &str, id: &str, guard: &str) -> String {
    match field {
        "messageId" => format!("/messages/{id}"),
        "actionId" => format!("/actions/{id}"),
        "sendId" => format!("/sends/{id}"),
        "reminderId" => format!("/reminders/{id}"),
        "deadLetterId" => format!("/dead-letters/{id}"),
        _ => query(&format!("/claims/{id}"), [("guard", guard)]),
    }
}

/// The URL of this server, for the examples on the page.
pub fn origin(app: &App) -> String {
    format!("{}://{}", app.config.scheme(), app.keys.address())
}

#[derive(Template)]
#[template(path = "decisions_list.html")]
struct DecisionsPart {
    told: Vec<Line>,
    is_all: bool,
    origin: String,
}

#[derive(Template)]
#[template(path = "decisions.html")]
struct DecisionsPage {
    frame: Frame,
    replica: String,
    most: usize,
    guard: String,
    fate: String,
    fates: [&'static str; 6],
    told: Vec<Line>,
    is_all: bool,
    origin: String,
}

/// The filter of decisions.
struct Wanted {
    guard: String,
    fate: String,
}

impl Wanted {
    fn of(fields: &Fields) -> Wanted {
        Wanted { guard: fields.text("guard").to_owned(), fate: fields.text("fate").to_owned() }
    }

    fn lines(&self, app: &App, caller: &Caller) -> Vec<Line> {
        let fits = |told: &Told| {
            let (guard, fate) = (told.guard(), told.meaning.fate.as_str());
            (self.guard.is_empty() || guard == self.guard) && (self.fate.is_empty() || fate == self.fate)
        };
        Line::last(app, caller, LINES, fits)
    }

    fn is_all(&self) -> bool {
        self.guard.is_empty() && self.fate.is_empty()
    }
}

pub async fn page(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    let wanted = Wanted::of(&fields);
    let live = query("/live", [("on", "decisions"), ("guard", &wanted.guard), ("fate", &wanted.fate)]);
    let page = DecisionsPage {
        told: wanted.lines(&app, &visitor.caller),
        is_all: wanted.is_all(),
        frame: Frame { live: Some(live), ..Frame::new(&visitor, "/decisions", "Decisions") },
        replica: observe::replica(),
        most: LINES,
        guard: wanted.guard,
        fate: wanted.fate,
        fates: Fate::ALL.map(Fate::as_str),
        origin: origin(&app),
    };
    Ok(render(StatusCode::OK, &page))
}

/// The part of the page that is kept up to date.
enum Page {
    Overview(Range),
    Decisions,
    /// The picture of this saga.
    Saga(Arc<Definition>),
}

/// The state of an open page's updates.
struct Following {
    app: Arc<App>,
    caller: Caller,
    session: Option<oncegate::store::Place>,
    page: Page,
    wanted: Wanted,
    /// A slow update does not delay the later ones.
    ticks: Interval,
    tick: u64,
    /// The picture that was last shown.
    picture: String,
    /// The last decision that was shown.
    seen: Option<Place>,
    _follower: (Taken, Follower),
    /// Parts that are ready to be sent.
    ready: Vec<Event>,
}

pub async fn events(State(app): State<Arc<App>>, Under(exchange): Under, visitor: Visitor, fields: Fields) -> Shown {
    let page = match fields.text("on") {
        "overview" => Page::Overview(Range::parse(fields.text("range")).unwrap_or_default()),
        "saga" => {
            visitor.require(Role::Operate)?;
            let definition = app.sagas.sagas.definition(fields.text("saga"));
            Page::Saga(definition.ok_or_else(|| missing("saga"))?.clone())
        }
        _ => Page::Decisions,
    };
    let mut ticks = tokio::time::interval_at(Instant::now() + TICK, TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let following = Following {
        caller: visitor.caller,
        session: visitor.session,
        page,
        picture: String::new(),
        wanted: Wanted::of(&fields),
        ticks,
        tick: 0,
        seen: None,
        _follower: follower(&app, &exchange)?,
        ready: vec![],
        app,
    };
    let parts = stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    Ok(Sse::new(parts).keep_alive(KeepAlive::default()).into_response())
}

impl Following {
    /// The next changed part. None once the server stops, the key or the session has ended, or the maximum time is over.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop() {
                return Some(event);
            }
            self.ticks.tick().await;
            self.tick += 1;
            if !self.may_look().await {
                return None;
            }
            self.look().await;
        }
    }

    async fn look(&mut self) {
        match &self.page {
            Page::Saga(definition) => {
                if self.tick.is_multiple_of(NUMBERS_EVERY)
                    && let Ok(picture) = sagas::picture(&self.app, &self.caller.workspace, definition).await
                    && picture != self.picture
                {
                    self.ready.push(Event::default().event("picture").data(&picture));
                    self.picture = picture;
                }
            }
            Page::Decisions => self.look_for_decisions(false),
            Page::Overview(range) => {
                let (app, workspace, range) = (&self.app, &self.caller.workspace, *range);
                if self.tick.is_multiple_of(NUMBERS_EVERY) {
                    self.ready.push(part("numbers", &NumbersPart { numbers: overview::numbers(app, workspace).await }));
                }
                if self.tick.is_multiple_of(CHART_EVERY) {
                    self.ready.push(part("chart", &ChartPart { chart: overview::chart(app, workspace, range).await }));
                }
                self.look_for_decisions(true);
            }
        }
    }

    fn look_for_decisions(&mut self, few: bool) {
        let newest = Some(self.app.decisions.last(self.caller.workspace.as_str(), 0));
        if newest == self.seen {
            return;
        }
        self.seen = newest;
        let (app, caller) = (&self.app, &self.caller);
        let told = if few { overview::lines(app, caller) } else { self.wanted.lines(app, caller) };
        let is_all = self.wanted.is_all();
        self.ready.push(part("decisions", &DecisionsPart { told, is_all, origin: origin(app) }));
    }

    /// Whether the visitor may continue to follow.
    async fn may_look(&self) -> bool {
        if self.app.stopping.load(Ordering::SeqCst) || !self.app.keys.stands(&self.caller) || self.tick > TICKS_MAX {
            return false;
        }
        match &self.session {
            Some(place) if self.tick.is_multiple_of(SESSION_EVERY) => {
                session::stands(&self.app, place, &self.caller).await
            }
            _ => true,
        }
    }
}

fn part(name: &str, part: &impl Template) -> Event {
    Event::default().event(name).data(part.render().expect("a String takes anything"))
}
