//! Sagas: their diagrams, how many instances are in each state, and the path of one instance.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use futures::future::try_join_all;
use oncegate::StoreError;
use oncegate::sagas::{Definition, Found, LineSeen, Picture};
use oncegate::store::{Clock, Role, SystemClock};
use oncegate::{Time, WorkspaceName};

use super::parts::{Body, Cell, Detail, Filter, Happened, List, Section, Table, Tone, encoded, facts, query, short};
use super::session::Visitor;
use super::{Fields, Frame, Named, PAGE, Shown, show_detail, show_list};
use oncegate_http::api::{HISTORY_MAX, missing};
use oncegate_http::app::App;

/// The maximum count of a state's instances; above it, the page only shows that there are more.
const COUNT_MAX: usize = 10_000;

pub async fn list(State(app): State<Arc<App>>, visitor: Visitor) -> Shown {
    visitor.require(Role::Operate)?;
    let definitions = app.sagas.sagas.definitions();
    let counts = definitions.iter().map(|definition| counts(&app, visitor.workspace(), definition));
    let counts = try_join_all(counts).await?;
    let row = |(definition, counts): (&Arc<Definition>, BTreeMap<String, usize>)| {
        let (over, live): (Vec<_>, Vec<_>) = counts.iter().partition(|(state, _)| definition.is_terminal(state));
        let sum = |counts: Vec<(&String, &usize)>| counts.into_iter().map(|(_, count)| count).sum::<usize>();
        [
            Cell::text(definition.name()).link(format!("/sagas/{}", encoded(definition.name()))),
            Cell::text(definition.doc()),
            Cell::text(sum(live)),
            Cell::text(sum(over)),
        ]
    };
    let lead = "Work in steps. Events may come twice, late, and in any order.";
    let rows = definitions.iter().zip(counts).map(row);
    let table = Table {
        empty: "There are none. A saga is a TOML file that [sagas] files names; see docs/reference/sagas.md.",
        ..Table::new("Sagas", ["Saga", "What it is", "Under way", "Over"], rows)
    };
    show_list(Frame::new(&visitor, "/sagas", "Sagas"), List::new("/sagas", lead, table))
}

/// The number of instances in each state, up to a limit.
async fn counts(
    app: &App,
    workspace: &WorkspaceName,
    definition: &Definition,
) -> Result<BTreeMap<String, usize>, StoreError> {
    let counts = definition.states().iter().map(async |state| {
        let count = app.sagas.sagas.count(workspace, definition.name(), state, COUNT_MAX).await?;
        Ok::<_, StoreError>((state.clone(), count))
    });
    Ok(try_join_all(counts).await?.into_iter().collect())
}

/// The diagram, with the number of instances in each state.
pub async fn picture(app: &App, workspace: &WorkspaceName, definition: &Definition) -> Result<String, StoreError> {
    let counts = counts(app, workspace, definition).await?;
    let counts = counts.into_iter().filter(|(_, count)| *count > 0);
    let counts = counts.map(|(state, count)| (state, shown(count))).collect();
    Ok(definition.svg(&Picture { counts, is_part: true, ..Picture::default() }))
}

fn shown(count: usize) -> String {
    if count >= COUNT_MAX { format!("{COUNT_MAX}+") } else { count.to_string() }
}

pub async fn instances(
    State(app): State<Arc<App>>,
    visitor: Visitor,
    Named(name): Named<String>,
    fields: Fields,
) -> Shown {
    visitor.require(Role::Operate)?;
    let definition = app.sagas.sagas.definition(&name).ok_or_else(|| missing("saga"))?;
    let picture = picture(&app, visitor.workspace(), definition).await?;
    let before = fields.cursor()?;
    let page = app.sagas.sagas.list(visitor.workspace(), Some(&name), fields.get("state"), PAGE, before).await?;
    let path = format!("/sagas/{}", encoded(&name));
    let states = Filter {
        name: "state",
        label: "State",
        value: fields.text("state").to_owned(),
        options: definition.states().to_vec(),
    };
    let list = List::new(path, definition.doc(), table(&page.items)).filters([states]);
    let list = List { picture: Some(picture), ..list };
    let live = Some(query("/live", [("on", "saga"), ("saga", name.as_str())]));
    show_list(Frame { live, ..Frame::new(&visitor, "/sagas", name) }, list.then(page.next))
}

fn href(found: &Found) -> String {
    format!("/sagas/{}/{}", encoded(&found.saga), encoded(&found.correlation_id))
}

fn tone(found: &Found) -> Tone {
    match found.instance.completed_at() {
        // Definitions do not say which final states are good; but their names may.
        Some(_) => Tone::of(&found.instance.state.to_lowercase()),
        None => Tone::Busy,
    }
}

fn table(found: &[Found]) -> Table {
    let now = SystemClock.now();
    let row = |found: &Found| {
        [
            Cell { tone: Some(tone(found)), ..Cell::text(&found.instance.state) },
            Cell::text(&found.correlation_id).link(href(found)),
            Cell::text(&found.saga),
            Cell::time(found.created_at, now),
            Cell::time(found.updated_at, now),
        ]
    };
    Table::new("Instances", ["State", "Instance", "Saga", "Begun", "Moved on"], found.iter().map(row))
}

pub async fn show(State(app): State<Arc<App>>, visitor: Visitor, Named((saga, id)): Named<(String, String)>) -> Shown {
    let found = app.sagas.sagas.find(visitor.workspace(), &saga, &id).await?.ok_or_else(|| missing("saga"))?;
    let (lines, is_cut) = app.sagas.sagas.history(visitor.workspace(), &found, HISTORY_MAX).await?;
    let mut sections = vec![Section { title: "What happened", body: Body::Moments(moments(&lines, is_cut)) }];
    // A saga of an earlier configuration is shown without its picture.
    if let Some(definition) = app.sagas.sagas.definition(&saga) {
        let walked = lines.iter().map(|seen| (seen.line.from.clone(), seen.line.to.clone())).collect();
        let picture = Picture { walked, here: Some(found.instance.state.clone()), is_part: true, ..Picture::default() };
        sections.insert(0, Section { title: "Path", body: Body::Picture(definition.svg(&picture)) });
    }
    let now = SystemClock.now();
    let timers: Vec<&str> = found.instance.timers.keys().map(String::as_str).collect();
    sections.push(facts(
        "Facts",
        vec![
            ("State", Cell::text(&found.instance.state)),
            ("Waits for", Cell::text(timers.join(", "))),
            ("Begun", Cell::time(found.created_at, now)),
            ("Moved on", Cell::time(found.updated_at, now)),
            ("Removed", found.expires_at.map_or_else(Cell::default, |at| Cell::time(at, now))),
            ("Dead letters", Cell::text("of this saga").link(query("/dead-letters", [("saga", saga.as_str())]))),
            ("Id", Cell::code(found.id)),
        ],
    ));
    let data = serde_json::to_string_pretty(&found.instance.data).expect("data is JSON");
    sections.push(Section { title: "Data", body: Body::Text(cut(data)) });
    let detail = Detail {
        above: ("Instances", format!("/sagas/{}", encoded(&saga))),
        state: Cell { tone: Some(tone(&found)), ..Cell::text(&found.instance.state) },
        says: match found.instance.completed_at().is_some() {
            true => "Finished. It is removed with its history when its retention ends.".into(),
            false => "Running. The next event that this state accepts moves it on.".into(),
        },
        did: None,
        buttons: vec![],
        sections,
    };
    show_detail(Frame::new(&visitor, "/sagas", format!("{saga} · {id}")), detail)
}

/// Data may have megabytes; the page shows only the beginning.
fn cut(mut data: String) -> String {
    const BYTES_MAX: usize = 64 * 1024;
    if data.len() > BYTES_MAX {
        let end = (0..=BYTES_MAX).rev().find(|end| data.is_char_boundary(*end)).unwrap_or(0);
        data.truncate(end);
        data.push_str("\n… the rest is in the API's answer");
    }
    data
}

fn moments(lines: &[LineSeen], is_cut: bool) -> Vec<Happened> {
    let mut moments: Vec<Happened> = vec![];
    if let Some(first) = lines.first().filter(|_| is_cut) {
        moments.push(Happened::new(Time::from_micros(first.line.at_us), Tone::Plain, "There are older ones."));
    }
    for LineSeen { line, duplicates } in lines {
        let moved = match &line.from {
            None => format!("{} created it, in state {}.", line.event, line.to),
            Some(from) if *from == line.to => format!("{} was applied; it stays in state {}.", line.event, line.to),
            Some(from) => format!("{} moved it from {from} to {}.", line.event, line.to),
        };
        let mut about = vec![];
        if *duplicates > 0 {
            about.push(format!("{duplicates} duplicates of the event were stopped"));
        }
        if line.commands_sent > 0 {
            let commands: Vec<String> = line
                .commands
                .iter()
                .map(|sent| format!("{} ({})", sent.command, short(&sent.id.to_string())))
                .collect();
            let more = line.commands_sent.saturating_sub(commands.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            about.push(format!("sent {}{more}", commands.join(", ")));
        }
        if !line.scheduled.is_empty() {
            about.push(format!("waits for {}", line.scheduled.join(", ")));
        }
        if !line.missing.is_empty() {
            about.push(format!("lacks {}", line.missing.join(", ")));
        }
        about.push(format!("event {}, on {}", line.event_id, line.replica));
        let tone = if *duplicates > 0 { Tone::Busy } else { Tone::Good };
        moments.push(Happened::new(Time::from_micros(line.at_us), tone, moved).about(about.join(" · ")));
    }
    moments
}
