//! Looking records up: those who ask at the same time share a statement.

use std::sync::Arc;

use bytes::Bytes;
use oncegate_core::{Time, WorkspaceName};
use oncegate_store::{At, Place, Reading, Record, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio_postgres::Row;
use uuid::Uuid;

use crate::desk::Desk;
use crate::fault::Fault;
use crate::server::Server;

const FIND_RECORDS: &str = include_str!("../sql/find_records.sql");

/// Lookups in one statement, and in line for it.
const TOGETHER_MAX: usize = 256;
const WAITING_MAX: usize = 16 * 1024;

pub(crate) type Found = Reading<Vec<Option<Record>>>;

struct Lookup {
    places: Vec<Place>,
    answer: oneshot::Sender<Result<Found, StoreError>>,
}

pub(crate) struct Finder(mpsc::Sender<Lookup>);

impl Finder {
    /// Ends when it is dropped.
    pub fn start(server: Arc<Server>) -> Finder {
        let (lookups, mut waiting) = mpsc::channel::<Lookup>(WAITING_MAX);
        tokio::spawn(async move {
            let desk = Desk::new(server);
            let mut together = vec![];
            while waiting.recv_many(&mut together, TOGETHER_MAX).await > 0 {
                answer(&desk, together.split_off(0)).await;
            }
        });
        Finder(lookups)
    }

    pub async fn find(&self, places: &[Place]) -> Result<Found, StoreError> {
        let (answer, answered) = oneshot::channel();
        let busy = |_| StoreError::Unavailable("too many lookups wait for the server".into());
        self.0.try_send(Lookup { places: places.to_vec(), answer }).map_err(busy)?;
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the store is closed".into())))
    }
}

/// Each gets the places that it asked for; or all the same error.
async fn answer(desk: &Desk, lookups: Vec<Lookup>) {
    let places: Vec<&Place> = lookups.iter().flat_map(|lookup| &lookup.places).collect();
    match find(desk, &places).await {
        Ok(Reading { value, now }) => {
            let mut records = value.into_iter();
            for Lookup { places, answer } in lookups {
                // Whoever asked may be gone.
                let _ = answer.send(Ok(Reading { value: records.by_ref().take(places.len()).collect(), now }));
            }
        }
        Err(fault) => {
            let error = StoreError::from(fault);
            lookups.into_iter().for_each(|lookup| _ = lookup.answer.send(Err(error.clone())));
        }
    }
}

async fn find(desk: &Desk, places: &[&Place]) -> Result<Found, Fault> {
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
    let first = rows.first().ok_or_else(|| Fault::Unable("the server did not say the time".into()))?;
    let now = Time::from_micros(first.get(0));
    let mut records = vec![None; places.len()];
    for row in &rows {
        if let Some(ord) = row.get::<_, Option<i64>>(1) {
            let place = usize::try_from(ord - 1).expect("WITH ORDINALITY counts from one");
            records[place] = Some(record(row, 2, &places[place].workspace, places[place].kind));
        }
    }
    Ok(Reading { value: records, now })
}

/// The record in the columns from `first` on.
pub(crate) fn record(row: &Row, first: usize, workspace: &WorkspaceName, kind: &'static str) -> Record {
    Record {
        workspace: workspace.clone(),
        kind,
        id: row.get(first),
        version: row.get(first + 1),
        state: row.get(first + 2),
        body: Bytes::copy_from_slice(row.get(first + 3)),
    }
}
