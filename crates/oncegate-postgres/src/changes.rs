//! What a transaction changes beside claims: records, their names and lists, and the queue.
//!
//! One statement for each kind of change, with one array for each column. Each statement returns the rows that it wrote. A change whose
//! row is missing did not find the state that it expects.

use std::collections::HashMap;
use std::time::Duration;

use futures::future::try_join_all;
use oncegate_core::job::{self, Delivery, Reached, State};
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{Change, Record};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::connection::Connection;
use crate::fault::Fault;
use crate::row::micros;

const CREATE_RECORDS: &str = include_str!("../sql/create_records.sql");
const REPLACE_RECORDS: &str = include_str!("../sql/replace_records.sql");
const NAME_RECORDS: &str = include_str!("../sql/name_records.sql");
const ENLIST_RECORDS: &str = include_str!("../sql/enlist_records.sql");
const REMOVE_RECORDS: &str = include_str!("../sql/remove_records.sql");
const UNNAME_RECORDS: &str = include_str!("../sql/unname_records.sql");
const UNLIST_RECORDS: &str = include_str!("../sql/unlist_records.sql");
const ENQUEUE_JOBS: &str = include_str!("../sql/enqueue_jobs.sql");
const REQUEUE_JOBS: &str = include_str!("../sql/requeue_jobs.sql");
const DEQUEUE_JOBS: &str = include_str!("../sql/dequeue_jobs.sql");
const WAKE_NEXT: &str = include_str!("../sql/wake_next.sql");

type Column<'a> = Box<dyn ToSql + Sync + Send + 'a>;

/// A statement, and one column for each of its parameters.
struct Step<'a> {
    sql: &'static str,
    statement: tokio_postgres::Statement,
    columns: Vec<Column<'a>>,
}

impl Step<'_> {
    /// Runs the statement and returns the rows that it wrote: each is a workspace and the id of a record or job.
    async fn run(&self, connection: &Connection) -> Result<(&'static str, Vec<Row>), tokio_postgres::Error> {
        let columns: Vec<&(dyn ToSql + Sync)> = self.columns.iter().map(|column| &**column as _).collect();
        let rows = connection.client.query(&self.statement, &columns).await?;
        Ok((self.sql, rows))
    }
}

/// The prepared statements for a set of changes.
pub(crate) struct Changes<'a> {
    changes: Vec<&'a Change>,
    steps: Vec<Step<'a>>,
}

impl<'a> Changes<'a> {
    pub async fn prepare(connection: &Connection, changes: Vec<&'a Change>) -> Result<Changes<'a>, Fault> {
        let mut steps = vec![];
        // Always in this order, so that all replicas lock the kinds of rows in the same order.
        for (sql, columns) in columns_of(&changes, connection.server.injected_time()) {
            steps.push(Step { sql, statement: connection.prepared(sql).await?, columns });
        }
        Ok(Changes { changes, steps })
    }

    /// Runs the statements, one after the other. Returns for each change whether it found the state that it expects.
    pub async fn write(&self, connection: &Connection) -> Result<Vec<bool>, tokio_postgres::Error> {
        let written = try_join_all(self.steps.iter().map(|step| step.run(connection))).await?;
        // Counts the rows that each statement wrote for each record or job: a record may have several names.
        let mut landed: HashMap<(&str, &str, Uuid), usize> = HashMap::new();
        for (sql, rows) in &written {
            for row in rows {
                *landed.entry((sql, row.get(0), row.get(1))).or_default() += 1;
            }
        }
        let count =
            |sql, workspace: &WorkspaceName, id| landed.get(&(sql, workspace.as_str(), id)).copied().unwrap_or(0);
        let has_record = |sql, record: &Record, names: &[String]| {
            let Record { workspace, id, .. } = record;
            count(sql, workspace, *id) == 1 && count(NAME_RECORDS, workspace, *id) == names.len()
        };
        let has_job = |sql, job: &job::Job| count(sql, &job.workspace, job.id) == 1;
        let has_landed = |change: &&Change| match change {
            Change::Create { record, names, .. } => has_record(CREATE_RECORDS, record, names),
            Change::Replace { record, names } => has_record(REPLACE_RECORDS, record, names),
            Change::Remove { record, .. } => count(REMOVE_RECORDS, &record.workspace, record.id) == 1,
            Change::Enqueue(job) => has_job(ENQUEUE_JOBS, job),
            Change::Requeue { job, .. } => has_job(REQUEUE_JOBS, job),
            Change::Dequeue(job) => has_job(DEQUEUE_JOBS, job),
        };
        Ok(self.changes.iter().map(has_landed).collect())
    }
}

/// The statements that these changes need, with their parameters.
fn columns_of<'a>(changes: &[&'a Change], now: Option<i64>) -> Vec<(&'static str, Vec<Column<'a>>)> {
    let (mut created, mut replaced, mut names, mut lists) = (vec![], vec![], vec![], vec![]);
    let (mut removed, mut old_names, mut old_lists) = (vec![], vec![], vec![]);
    let (mut enqueued, mut requeued, mut stands_until, mut dequeued) = (vec![], vec![], vec![], vec![]);
    for change in changes {
        match change {
            Change::Create { record, names: own, lists: own_lists } => {
                created.push(record);
                names.extend(own.iter().map(|name| (record, name.as_str())));
                lists.extend(own_lists.iter().map(|list| (record, list.as_str())));
            }
            Change::Replace { record, names: own } => {
                replaced.push(record);
                names.extend(own.iter().map(|name| (record, name.as_str())));
            }
            Change::Remove { record, names: own, lists: own_lists } => {
                removed.push(record);
                old_names.extend(own.iter().map(|name| (record, name.as_str())));
                old_lists.extend(own_lists.iter().map(|list| (record, list.as_str())));
            }
            Change::Enqueue(job) => enqueued.push(job),
            Change::Requeue { job, stands_until: until } => {
                requeued.push(job);
                stands_until.push(until.micros());
            }
            Change::Dequeue(job) => dequeued.push(job),
        }
    }
    // In the same order as names are inserted.
    let in_order =
        |(record, label): &(&Record, &str)| (record.workspace.clone(), record.kind, (*label).to_owned(), record.id);
    old_names.sort_by_key(in_order);
    old_lists.sort_by_key(in_order);
    let mut steps = vec![];
    let mut step = |sql, is_needed: bool, columns: Vec<Column<'a>>| {
        if is_needed {
            steps.push((sql, columns));
        }
    };
    step(CREATE_RECORDS, !created.is_empty(), records(&created));
    step(NAME_RECORDS, !names.is_empty(), labels(&names));
    step(ENLIST_RECORDS, !lists.is_empty(), labels(&lists));
    step(REPLACE_RECORDS, !replaced.is_empty(), records(&replaced));
    let remove: Vec<Column<'a>> = vec![
        column(&removed, |record| record.workspace.as_str()),
        column(&removed, |record| record.kind),
        column(&removed, |record| record.id),
        column(&removed, |record| record.version),
    ];
    step(REMOVE_RECORDS, !removed.is_empty(), remove);
    step(UNNAME_RECORDS, !old_names.is_empty(), labels(&old_names));
    step(UNLIST_RECORDS, !old_lists.is_empty(), labels(&old_lists));
    let mut enqueue = jobs(&enqueued);
    enqueue.push(Box::new(now));
    enqueue.push(column(&enqueued, |job| job.stands_until().micros()));
    step(ENQUEUE_JOBS, !enqueued.is_empty(), enqueue);
    let mut requeue = jobs(&requeued);
    requeue.push(Box::new(now));
    requeue.push(Box::new(stands_until));
    step(REQUEUE_JOBS, !requeued.is_empty(), requeue);
    let dequeue: Vec<Column<'a>> = vec![
        Box::new(now),
        column(&dequeued, |job| job.workspace.as_str()),
        column(&dequeued, |job| job.id),
        column(&dequeued, |job| job.version),
        column(&dequeued, |job| job.stands_until().micros()),
    ];
    step(DEQUEUE_JOBS, !dequeued.is_empty(), dequeue);
    // These run last, because a statement sees the effects of the ones before it.
    let left: Vec<&'a job::Job> = changes.iter().filter_map(|change| change.leaves_lane()).collect();
    let lanes: Vec<Column<'a>> =
        vec![column(&left, |job| job.workspace.as_str()), column(&left, |job| job.lane.as_deref())];
    step(WAKE_NEXT, !left.is_empty(), lanes);
    steps
}

fn column<'a, R, T>(rows: &[&'a R], field: impl Fn(&'a R) -> T) -> Column<'a>
where
    Vec<T>: ToSql + Sync + Send + 'a,
{
    Box::new(rows.iter().map(|row| field(row)).collect::<Vec<T>>())
}

fn records<'a>(records: &[&'a Record]) -> Vec<Column<'a>> {
    vec![
        column(records, |record| record.workspace.as_str()),
        column(records, |record| record.kind),
        column(records, |record| record.id),
        column(records, |record| record.version),
        column(records, |record| record.state.as_deref()),
        column(records, |record| record.expires_at.map(Time::micros)),
        column(records, |record| &record.body[..]),
    ]
}

/// The columns of names or of list entries.
fn labels<'a>(labels: &[(&'a Record, &'a str)]) -> Vec<Column<'a>> {
    let (records, labels): (Vec<&Record>, Vec<&str>) = labels.iter().copied().unzip();
    vec![
        column(&records, |record| record.workspace.as_str()),
        column(&records, |record| record.kind),
        Box::new(labels),
        column(&records, |record| record.id),
    ]
}

pub(crate) fn jobs<'a>(jobs: &[&'a job::Job]) -> Vec<Column<'a>> {
    vec![
        column(jobs, |job| job.workspace.as_str()),
        column(jobs, |job| job.id),
        column(jobs, |job| job.kind.as_str()),
        column(jobs, |job| &job.payload[..]),
        column(jobs, |job| i16::from(job.state == State::Running)),
        column(jobs, |job| job.wakes_at().micros()),
        column(jobs, |job| job.due_at.micros()),
        column(jobs, |job| job.token.0),
        column(jobs, |job| job.lease_until.micros()),
        column(jobs, |job| job.version),
        column(jobs, |job| job.tried),
        column(jobs, |job| job.tries.max),
        column(jobs, |job| micros(job.tries.pause)),
        column(jobs, |job| micros(job.tries.pause_max)),
        column(jobs, |job| i16::from(job.delivery == Delivery::AtMostOnce)),
        column(jobs, |job| i16::from(job.reached == Reached::Maybe)),
        column(jobs, |job| job.created_at.micros()),
        column(jobs, |job| job.error.as_deref()),
        column(jobs, |job| job.begun),
        column(jobs, |job| job.lane.as_deref()),
        column(jobs, |job| job.started),
    ]
}

/// Writes leased jobs. The caller holds the locks of their rows.
pub(crate) async fn requeue(connection: &Connection, leased: &[&job::Job]) -> Result<(), Fault> {
    let mut columns = jobs(leased);
    columns.push(Box::new(connection.server.injected_time()));
    columns.push(Box::new(vec![Time::NEVER.micros(); leased.len()]));
    let columns: Vec<&(dyn ToSql + Sync)> = columns.iter().map(|column| &**column as _).collect();
    connection.query(REQUEUE_JOBS, &columns).await.map(drop)
}

pub(crate) fn workspace(name: &str) -> Result<WorkspaceName, Fault> {
    WorkspaceName::new(name).map_err(|_| Fault::Data("the table `jobs` has a workspace that is none".into()))
}

/// Reads a job from a row, by column name.
pub(crate) fn job(row: &Row) -> Result<job::Job, Fault> {
    let time = |name| Time::from_micros(row.get(name));
    let span = |name| Duration::from_micros(row.get::<_, i64>(name).unsigned_abs());
    let is_set = |name| row.get::<_, i16>(name) == 1;
    let state = if is_set("state") { State::Running } else { State::Pending };
    let (due_at, wakes_at) = (time("due_at"), time("wakes_at"));
    let is_postponed = state == State::Pending && wakes_at > due_at;
    Ok(job::Job {
        workspace: workspace(row.get("workspace"))?,
        id: row.get("id"),
        kind: row.get("kind"),
        payload: bytes::Bytes::copy_from_slice(row.get("payload")),
        lane: row.get("lane"),
        state,
        started: row.get("started"),
        due_at,
        postponed_until: if is_postponed { wakes_at } else { Time::LONG_AGO },
        token: oncegate_core::Token(row.get("token")),
        lease_until: time("lease_until"),
        version: row.get("version"),
        tried: row.get("tried"),
        tries: job::Tries { max: row.get("tries_max"), pause: span("pause_us"), pause_max: span("pause_max_us") },
        delivery: if is_set("delivery") { Delivery::AtMostOnce } else { Delivery::AtLeastOnce },
        begun: row.get("begun"),
        reached: if is_set("reached") { Reached::Maybe } else { Reached::No },
        created_at: time("created_at"),
        error: row.get("error"),
    })
}
