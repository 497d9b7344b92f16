//! The first page: whether the server works, what it has stopped, and what needs a person.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use askama::Template;
use axum::extract::State;
use axum::http::StatusCode;
use oncegate::actions::{JOBS, Status as ActionStatus};
use oncegate::document::Document;
use oncegate::messages::{Message, Status as MessageStatus};
use oncegate::reminders::State as ReminderState;
use oncegate::sends::State as SendState;
use oncegate::store::{Clock, JobFilter, JobListing, KindFilter, Listing, Query, SystemClock};
use oncegate::{State as ClaimState, StoreError, WorkspaceName, reminders, sends};
use tokio::sync::OnceCell;

use super::chart::Chart;
use super::live::{Line, origin};
use super::parts::{Tone, query};
use super::session::Visitor;
use super::{Fields, Frame, Shown, render};
use oncegate_http::app::App;
use oncegate_http::auth::Caller;
use oncegate_http::decisions::tally::{Minute, Range, Series};
use oncegate_http::own_guards::is_own;

/// The maximum of a count; above it, the page only says that there are more.
const COUNT_MAX: usize = 1_000;
/// Unknown claims are filtered one by one: this many in one read, and this many reads.
const CLAIMS_MAX: usize = 100;
const PAGES_MAX: usize = 20;
/// The maximum age of shown data.
const FRESH_FOR: Duration = Duration::from_millis(1_900);
/// Decisions that the first page shows.
const LINES: usize = 12;
/// How long the store may take to answer before the page reports it.
const READY_WITHIN: Duration = Duration::from_secs(2);

#[derive(Template)]
#[template(path = "overview.html")]
struct Overview {
    frame: Frame,
    numbers: Arc<Numbers>,
    ranges: [&'static str; 3],
    chart: Chart,
    told: Vec<Line>,
    is_all: bool,
    origin: String,
}

/// The answers to the three questions.
pub struct Numbers {
    health: Tone,
    health_word: &'static str,
    health_says: String,
    stopped_hour: String,
    stopped_day: String,
    passed_day: String,
    needs: Vec<Need>,
}

/// Something that a person has to handle.
struct Need {
    count: String,
    what: &'static str,
    href: String,
}

#[derive(Template)]
#[template(path = "numbers.html")]
pub struct NumbersPart {
    pub numbers: Arc<Numbers>,
}

#[derive(Template)]
#[template(path = "chart.html")]
pub struct ChartPart {
    pub chart: Chart,
}

/// A cache for all visitors: each open page asks every few seconds, and many pages at once.
#[derive(Default)]
pub struct Cache {
    numbers: Mutex<Kept<WorkspaceName, Numbers>>,
    series: Mutex<Kept<(WorkspaceName, Range), Series>>,
}

/// The entries, each with the time of its request.
type Kept<K, V> = HashMap<K, (Instant, Answer<V>)>;
type Answer<V> = Arc<OnceCell<Arc<V>>>;

/// The cached entry, if it is fresh. If there is none, the first request computes it, and concurrent requests wait for the result.
fn fresh<K: Hash + Eq, V>(kept: &Mutex<Kept<K, V>>, key: K) -> Answer<V> {
    let mut kept = kept.lock().expect("no holder of this lock panics");
    kept.retain(|_, (asked, _)| asked.elapsed() < FRESH_FOR);
    kept.entry(key).or_insert_with(|| (Instant::now(), Arc::default())).1.clone()
}

pub async fn page(State(app): State<Arc<App>>, visitor: Visitor, fields: Fields) -> Shown {
    let range = Range::parse(fields.text("range")).unwrap_or_default();
    let workspace = visitor.workspace();
    let frame = Frame::new(&visitor, "/", "Overview");
    let overview = Overview {
        frame: Frame { live: Some(query("/live", [("on", "overview"), ("range", range.as_str())])), ..frame },
        numbers: numbers(&app, workspace).await,
        ranges: Range::ALL.map(Range::as_str),
        chart: chart(&app, workspace, range).await,
        told: lines(&app, &visitor.caller),
        is_all: true,
        origin: origin(&app),
    };
    Ok(render(StatusCode::OK, &overview))
}

pub fn lines(app: &App, caller: &Caller) -> Vec<Line> {
    Line::last(app, caller, LINES, |_| true)
}

/// Empty while the store does not answer; the numbers report that.
pub async fn chart(app: &App, workspace: &WorkspaceName, range: Range) -> Chart {
    let series = match tokio::time::timeout(READY_WITHIN, series(app, workspace, range)).await {
        Ok(Ok(series)) => series,
        Ok(Err(_)) | Err(_) => Arc::new(Series::new(range, Minute::of(SystemClock.now()))),
    };
    Chart::draw(&series, range)
}

async fn series(app: &App, workspace: &WorkspaceName, range: Range) -> Result<Arc<Series>, StoreError> {
    let answer = fresh(&app.part::<super::Shared>().numbers.series, (workspace.clone(), range));
    let find = async || app.decisions.tally.read(&*app.store, workspace, range, SystemClock.now()).await.map(Arc::new);
    answer.get_or_try_init(find).await.cloned()
}

/// Never fails: if there is an error of the store, the numbers report it.
pub async fn numbers(app: &App, workspace: &WorkspaceName) -> Arc<Numbers> {
    let answer = fresh(&app.part::<super::Shared>().numbers.numbers, workspace.clone());
    answer.get_or_init(async || Arc::new(find_numbers(app, workspace).await)).await.clone()
}

async fn find_numbers(app: &App, workspace: &WorkspaceName) -> Numbers {
    let asked = async {
        let (hour, day) = (series(app, workspace, Range::Hour), series(app, workspace, Range::Day));
        tokio::try_join!(app.store.report(), hour, day, queue(app, workspace), needs(app, workspace))
    };
    match tokio::time::timeout(READY_WITHIN, asked).await {
        Ok(Ok((report, hour, day, queue, needs))) => {
            let (health, health_word, health_says) = match report.warnings.first() {
                Some(warning) => (Tone::Warn, "Yes, but", format!("{warning}. {queue}")),
                None => (Tone::Good, "Yes", format!("The store answers. All acknowledged writes are on disk. {queue}")),
            };
            Numbers {
                health,
                health_word,
                health_says,
                stopped_hour: grouped(hour.total().stopped),
                stopped_day: grouped(day.total().stopped),
                passed_day: grouped(day.total().passed),
                needs,
            }
        }
        // The cause is only in the log: not every visitor may see it.
        Ok(Err(_)) | Err(_) => Numbers {
            health: Tone::Bad,
            health_word: "No",
            health_says: "The store does not answer: nothing can be claimed, and nothing is lost.".into(),
            stopped_hour: "?".into(),
            stopped_day: "?".into(),
            passed_day: "?".into(),
            needs: vec![Need { count: "!".into(), what: "the store does not answer", href: "/readyz".into() }],
        },
    }
}

/// The size of the queue.
async fn queue(app: &App, workspace: &WorkspaceName) -> Result<String, StoreError> {
    let waiting = |state| JobListing {
        workspace: workspace.clone(),
        kind: KindFilter::BeginsWith(JOBS),
        lane_prefix: None,
        state: Some(state),
        limit: COUNT_MAX + 1,
        before: None,
    };
    let (untouched, running) = tokio::try_join!(
        app.store.count_jobs(waiting(JobFilter::Untouched)),
        app.store.count_jobs(waiting(JobFilter::Running))
    )?;
    let said =
        |count| if count > COUNT_MAX { format!("over {}", grouped(COUNT_MAX as u64)) } else { grouped(count as u64) };
    Ok(format!("{} actions wait, {} run.", said(untouched), said(running)))
}

async fn needs(app: &App, workspace: &WorkspaceName) -> Result<Vec<Need>, StoreError> {
    let limit = COUNT_MAX + 1;
    let actions = &app.actions.actions;
    let of_sends = sends::Filter { campaign: None, state: Some(SendState::Unknown), limit, before: None };
    let of_reminders = reminders::Filter { booking: None, state: Some(ReminderState::Missed), limit, before: None };
    let of_messages = Listing {
        workspace: workspace.clone(),
        kind: Message::KIND,
        list: None,
        state: Some(MessageStatus::Unknown.as_str().into()),
        limit,
        before: None,
    };
    let (claims, messages, dead, unknown, sends, reminders, letters) = tokio::try_join!(
        unknown_claims(app, workspace),
        app.store.count(of_messages),
        actions.count(workspace, ActionStatus::Dead, limit),
        actions.count(workspace, ActionStatus::Unknown, limit),
        app.sends.sends.count(workspace, &of_sends),
        app.reminders.reminders.count(workspace, &of_reminders),
        app.sagas.sagas.count_dead_letters(workspace, limit),
    )?;
    let needs = [
        (claims, CLAIMS_MAX, ["unknown claim", "unknown claims"], "/claims?state=unknown"),
        (
            messages,
            COUNT_MAX,
            ["message that may have been sent", "messages that may have been sent"],
            "/messages?status=unknown",
        ),
        (sends, COUNT_MAX, ["unknown send", "unknown sends"], "/sends?state=unknown"),
        (reminders, COUNT_MAX, ["missed reminder", "missed reminders"], "/reminders?state=missed"),
        (dead, COUNT_MAX, ["dead action", "dead actions"], "/actions?status=dead"),
        (
            unknown,
            COUNT_MAX,
            ["action that may have happened", "actions that may have happened"],
            "/actions?status=unknown",
        ),
        (letters, COUNT_MAX, ["dead letter", "dead letters"], "/dead-letters"),
    ];
    let need = |(count, most, [one, many], href): (usize, usize, [&'static str; 2], &str)| {
        let what = if count == 1 { one } else { many };
        let count = if count > most { format!("over {}", grouped(most as u64)) } else { grouped(count as u64) };
        Need { count, what, href: href.into() }
    };
    Ok(needs.into_iter().filter(|(count, ..)| *count > 0).map(need).collect())
}

/// Unknown claims of the server's own guards are left out: they are counted with the objects that they guard.
async fn unknown_claims(app: &App, workspace: &WorkspaceName) -> Result<usize, StoreError> {
    let (workspace, state) = (workspace.clone(), Some(ClaimState::Unknown));
    let mut query = Query { workspace, guard: None, state, limit: CLAIMS_MAX, after: None };
    let mut count = 0;
    for _ in 0..PAGES_MAX {
        let page = app.ledger.store().scan(query.clone()).await?;
        count += page.claims.iter().filter(|claim| !is_own(&claim.key.guard)).count();
        query.after = page.next;
        if page.next.is_none() || count > CLAIMS_MAX {
            break;
        }
    }
    Ok(count)
}

/// A number, with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_in_groups() {
        assert_eq!([0, 999, 1_000, 12_345_678].map(grouped), ["0", "999", "1,000", "12,345,678"]);
    }
}
