//! `/api/decisions`: every decision as it is made, for `oncegate tail` and other listeners.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::response::IntoResponse;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures::stream;
use serde::Deserialize;
use serde_json::json;
use utoipa::IntoParams;

use super::extract::{Params, bad, one_of};
use super::{Answered, App, Exchange, Under};
use crate::auth::Caller;
use crate::decisions::words::Fate;
use crate::decisions::{Follower, Place, Told};
use crate::problem::{Kind, Problem};
use crate::tenants::{Limit, Taken};

/// The longest delay between a decision and its delivery.
const TICK: Duration = Duration::from_millis(100);
/// The most earlier decisions that a request can ask for.
const BACKLOG_MAX: u64 = 1_000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FollowParams {
    guard: Option<String>,
    /// `passed`, `done`, `stopped`, `failed`, `needed` (a person has to look at it) or `noted`.
    fate: Option<String>,
    /// What the names of the events begin with: `claim.`, `message.api.duplicate`, …
    event: Option<String>,
    /// How many of the last ones to begin with, up to 1000; none unless given.
    last: Option<u64>,
}

/// The decisions that a follower wants.
struct Wanted {
    guard: Option<String>,
    fate: Option<Fate>,
    event: Option<String>,
}

impl Wanted {
    fn fits(&self, told: &Told) -> bool {
        let is_named = |wanted: &String| told.read()["event"].as_str().is_some_and(|event| event.starts_with(wanted));
        self.guard.as_ref().is_none_or(|wanted| wanted == told.guard())
            && self.fate.is_none_or(|wanted| wanted == told.meaning.fate)
            && self.event.as_ref().is_none_or(is_named)
    }
}

/// Follow decisions
///
/// Server-sent events, each the line that the log has of a decision of this server in this workspace. A follower that does not keep up is told how many were
/// missed, by an event `missed`. What people did is told to keys with the role `operate`.
#[utoipa::path(get, path = "/api/decisions", tag = "decisions", params(FollowParams),
    responses((status = 200, description = "Lines of JSON, as they come.", content_type = "text/event-stream")))]
pub async fn follow(
    State(app): State<Arc<App>>,
    Under(exchange): Under,
    caller: Caller,
    Params(params): Params<FollowParams>,
) -> Answered {
    let last = params.last.unwrap_or(0);
    if last > BACKLOG_MAX {
        return Err(bad(format!("last: at most {BACKLOG_MAX}, not {last}")));
    }
    let following = Following {
        next: app.decisions.last(caller.workspace.as_str(), last),
        wanted: Wanted {
            guard: params.guard,
            fate: one_of("fate", params.fate, Fate::ALL, Fate::as_str)?,
            event: params.event,
        },
        missed: 0,
        ready: VecDeque::new(),
        _follower: follower(&app, &exchange)?,
        app,
        caller,
    };
    let events = stream::unfold(following, |mut following| async move {
        let event = following.hear().await?;
        Some((Ok::<_, Infallible>(event), following))
    });
    Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response())
}

/// A place among the followers of the workspace, and among all followers of this server.
pub fn follower(app: &App, exchange: &Exchange) -> Result<(Taken, Follower), Problem> {
    let taken = exchange.tenant(app).take(Limit::Followers, 1)?;
    let too_many = || Kind::StoreUnavailable.because("too many follow decisions here already").retry_after(10);
    Ok((taken, app.decisions.follow().ok_or_else(too_many)?))
}

struct Following {
    app: Arc<App>,
    caller: Caller,
    wanted: Wanted,
    _follower: (Taken, Follower),
    next: Place,
    /// How many decisions before `ready` were dropped, because the backlog no longer keeps them.
    missed: u64,
    /// Decisions that were read from the backlog but not sent yet: at most a whole backlog. The entries are shared between
    /// all followers, so a client that does not read costs little.
    ready: VecDeque<Told>,
}

impl Following {
    /// `None` once the server stops, or the key is revoked or has expired.
    async fn hear(&mut self) -> Option<Event> {
        loop {
            if self.missed > 0 {
                let missed = json!({"missed": std::mem::take(&mut self.missed)});
                return Some(Event::default().event("missed").data(missed.to_string()));
            }
            if let Some(told) = self.ready.pop_front() {
                return Some(Event::default().event("decision").id(told.number.to_string()).data(told.line()));
            }
            if self.app.stopping.load(Ordering::SeqCst) || !self.app.keys.stands(&self.caller) {
                return None;
            }
            let heard = self.app.decisions.since(self.caller.workspace.as_str(), self.next);
            (self.next, self.missed) = (heard.next, heard.missed);
            let (role, wanted) = (self.caller.role, &self.wanted);
            self.ready.extend(heard.told.into_iter().filter(|told| told.is_for(role) && wanted.fits(told)));
            if self.ready.is_empty() && self.missed == 0 {
                tokio::time::sleep(TICK).await;
            }
        }
    }
}
