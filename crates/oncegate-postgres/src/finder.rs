//! Looks things up by their keys. Concurrent lookups share a statement.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use oncegate_core::job::Job;
use oncegate_core::{Claim, ClaimKey, Time, WorkspaceName};
use oncegate_store::{At, Place, Reading, Record, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::changes::job;
use crate::fault::Fault;
use crate::row;
use crate::server::ANSWERED_WITHIN;
use crate::shared_connection::SharedConnection;

const FIND_JOBS: &str = include_str!("../sql/find_jobs.sql");
const FIND_RECORDS: &str = include_str!("../sql/find_records.sql");

/// How many lookups one statement holds, and how many may wait.
const TOGETHER_MAX: usize = 256;
const WAITING_MAX: usize = 16 * 1024;

/// A type that can be looked up by its place.
#[async_trait]
pub(crate) trait Looked: Sized + Clone + Send + 'static {
    type Place: Clone + Send + Sync + 'static;

    async fn find(desk: &SharedConnection, places: &[&Self::Place]) -> Result<Found<Self>, Fault>;
}

pub(crate) type Found<T> = Reading<Vec<Option<T>>>;

struct Lookup<T: Looked> {
    places: Vec<T::Place>,
    answer: oneshot::Sender<Result<Found<T>, StoreError>>,
}

pub(crate) struct Finder<T: Looked>(mpsc::Sender<Lookup<T>>);

impl<T: Looked> Finder<T> {
    /// Starts the lookups' task. It ends when the `Finder` is dropped.
    pub fn start(desk: Arc<SharedConnection>) -> Finder<T> {
        let (lookups, mut waiting) = mpsc::channel::<Lookup<T>>(WAITING_MAX);
        tokio::spawn(async move {
            let mut together = vec![];
            while waiting.recv_many(&mut together, TOGETHER_MAX).await > 0 {
                answer(&desk, together.split_off(0)).await;
            }
        });
        Finder(lookups)
    }

    pub async fn find(&self, places: &[T::Place]) -> Result<Found<T>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let busy = |_| StoreError::Unavailable("too many lookups wait for the server".into());
        self.0.try_send(Lookup { places: places.to_vec(), answer }).map_err(busy)?;
        match tokio::time::timeout(ANSWERED_WITHIN, answered).await {
            Ok(answered) => answered.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into()))),
            Err(_) => Err(Fault::silent_for(ANSWERED_WITHIN).into()),
        }
    }
}

/// Answers each lookup with its own results, or all of them with the same error.
async fn answer<T: Looked>(desk: &SharedConnection, lookups: Vec<Lookup<T>>) {
    let places: Vec<&T::Place> = lookups.iter().flat_map(|lookup| &lookup.places).collect();
    match T::find(desk, &places).await {
        Ok(Reading { value, now }) => {
            let mut found = value.into_iter();
            for Lookup { places, answer } in lookups {
                // The caller may be gone.
                let _ = answer.send(Ok(Reading { value: found.by_ref().take(places.len()).collect(), now }));
            }
        }
        // One of the lookups contains invalid text. The others must not fail because of it.
        Err(Fault::Data(_)) if lookups.len() > 1 => {
            for lookup in lookups {
                Box::pin(answer(desk, vec![lookup])).await;
            }
        }
        Err(fault) => {
            let error = StoreError::from(fault);
            lookups.into_iter().for_each(|lookup| _ = lookup.answer.send(Err(error.clone())));
        }
    }
}

/// Puts each result in its place. The first column is the store's time, the second is the place, counted from one.
fn in_places<T: Clone>(
    rows: &[Row],
    places: usize,
    read: impl Fn(&Row, usize) -> Result<T, Fault>,
) -> Result<Found<T>, Fault> {
    let first = rows.first().ok_or_else(|| Fault::Unable("the server did not say the time".into()))?;
    let now = Time::from_micros(first.get(0));
    let mut found = vec![None; places];
    for row in rows {
        if let Some(ord) = row.get::<_, Option<i64>>(1) {
            let place = usize::try_from(ord - 1).expect("WITH ORDINALITY counts from one");
            found[place] = Some(read(row, place)?);
        }
    }
    Ok(Reading { value: found, now })
}

#[async_trait]
impl Looked for Claim {
    type Place = ClaimKey;

    /// Finds expired claims too.
    async fn find(desk: &SharedConnection, keys: &[&ClaimKey]) -> Result<Found<Claim>, Fault> {
        let connection = desk.connection().await?;
        let read = match row::read(&connection, keys).await {
            Err(Fault::Gone(_)) if connection.client.is_closed() => row::read(&*desk.connection().await?, keys).await?,
            read => read?,
        };
        let found = read.claims.into_iter().map(|claim| claim.map(Arc::unwrap_or_clone));
        Ok(Reading { value: found.collect(), now: read.read.moment.now })
    }
}

#[async_trait]
impl Looked for Record {
    type Place = Place;

    async fn find(desk: &SharedConnection, places: &[&Place]) -> Result<Found<Record>, Fault> {
        let workspaces: Vec<&str> = places.iter().map(|place| place.workspace.as_str()).collect();
        let kinds: Vec<&str> = places.iter().map(|place| place.kind).collect();
        let (ids, names): (Vec<Option<Uuid>>, Vec<Option<&str>>) = places
            .iter()
            .map(|place| match &place.at {
                At::Id(id) => (Some(*id), None),
                At::Name(name) => (None, Some(name.as_str())),
            })
            .unzip();
        let rows = desk.ask(FIND_RECORDS, &[&desk.injected_time(), &workspaces, &kinds, &ids, &names]).await?;
        in_places(&rows, places.len(), |row, at| Ok(record(row, 2, &places[at].workspace, places[at].kind)))
    }
}

#[async_trait]
impl Looked for Job {
    type Place = (WorkspaceName, Uuid);

    async fn find(desk: &SharedConnection, places: &[&Self::Place]) -> Result<Found<Job>, Fault> {
        let (workspaces, ids): (Vec<&str>, Vec<Uuid>) =
            places.iter().map(|(workspace, id)| (workspace.as_str(), *id)).unzip();
        let rows = desk.ask(FIND_JOBS, &[&desk.injected_time(), &workspaces, &ids]).await?;
        in_places(&rows, places.len(), |row, _| job(row))
    }
}

/// Reads the record in the columns from `first` on.
pub(crate) fn record(row: &Row, first: usize, workspace: &WorkspaceName, kind: &'static str) -> Record {
    Record {
        workspace: workspace.clone(),
        kind,
        id: row.get(first),
        version: row.get(first + 1),
        state: row.get(first + 2),
        expires_at: row.get::<_, Option<i64>>(first + 3).map(Time::from_micros),
        body: Bytes::copy_from_slice(row.get(first + 4)),
    }
}
