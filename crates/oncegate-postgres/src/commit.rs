//! COMMIT, and what to believe when its answer does not come.
//!
//! A connection that breaks while COMMIT is under way leaves the transaction committed or not, and the caller's
//! answer depends on which. The server knows: it is asked, over a new connection, by the transaction's id. What it
//! has committed but not yet replicated, where it is to replicate, counts as not known.

use std::sync::Arc;
use std::time::Duration;

use oncegate_core::job::Job;
use oncegate_store::Record;
use tokio::time::{Instant, sleep};

use crate::decide::Write;
use crate::fault::Fault;
use crate::link::{Link, Params};
use crate::server::{CONNECT_PAUSE, Server};
use crate::write::Seal;

const COMMIT_OUTCOME: &str = include_str!("../sql/commit_outcome.sql");
const COMMIT_OUTCOME_OF_RECORD: &str = include_str!("../sql/commit_outcome_of_record.sql");
const COMMIT_OUTCOME_OF_JOB: &str = include_str!("../sql/commit_outcome_of_job.sql");
const CONFIRM_COMMIT: &str = include_str!("../sql/confirm_commit.sql");
const END_BACKEND: &str = include_str!("../sql/end_backend.sql");

/// How long to look for the outcome of a COMMIT.
const FOUND_OUT_WITHIN: Duration = Duration::from_secs(5);
/// Between two looks at a transaction that is still in progress.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

pub(crate) enum Outcome {
    Committed,
    /// Nothing was written.
    Undone,
    /// It could not be found out.
    Unknown(String),
}

/// Something that a transaction wrote, by which it is known again.
#[derive(Clone, Copy)]
pub(crate) enum Evidence<'a> {
    Claim(&'a Write),
    Record(&'a Record),
    /// It may have left the queue since: then it is not known.
    Job(&'a Job),
    /// It only took something away.
    None,
}

impl Evidence<'_> {
    /// The smaller, the surer.
    pub fn rank(&self) -> u8 {
        match self {
            Evidence::Claim(_) => 0,
            Evidence::Record(_) => 1,
            Evidence::Job(_) => 2,
            Evidence::None => 3,
        }
    }
}

/// Commits, and finds out whether it did. The link may be of no more use afterwards.
pub(crate) async fn commit(link: &Link, seal: &Seal, evidence: Evidence<'_>) -> Outcome {
    // Nothing about a failed COMMIT is taken on trust: also an error from the server may come after the fact.
    match link.within(link.client.batch_execute("COMMIT")).await {
        Ok(()) => Outcome::Committed,
        Err(fault) => {
            tracing::warn!(
                transaction = seal.transaction,
                why = fault.message(),
                "a COMMIT got no answer; looking it up"
            );
            find_out(&link.server, seal, evidence).await
        }
    }
}

async fn find_out(server: &Arc<Server>, seal: &Seal, evidence: Evidence<'_>) -> Outcome {
    let give_up_at = Instant::now() + FOUND_OUT_WITHIN;
    let mut last_why = String::from("the transaction stays in progress");
    while Instant::now() < give_up_at {
        match Link::open(server.clone()).await {
            Ok(link) => match look(&link, seal, evidence, give_up_at).await {
                Ok(Some(outcome)) => return outcome,
                Ok(None) => {}
                Err(fault) => last_why = fault.message().to_owned(),
            },
            Err(fault) => last_why = fault.message().to_owned(),
        }
        sleep(CONNECT_PAUSE).await;
    }
    Outcome::Unknown(format!("the connection broke in COMMIT, and its outcome was not found out: {last_why}"))
}

/// Looks until the transaction is over; `None` if it is not over in time.
async fn look(link: &Link, seal: &Seal, evidence: Evidence<'_>, give_up_at: Instant) -> Result<Option<Outcome>, Fault> {
    while Instant::now() < give_up_at {
        let (outcome, is_there) = match ask(link, seal, evidence).await {
            Ok(answer) => answer,
            // An id that is still to come: the server lost what it had not made durable, and us with it.
            Err(Fault::Data(_)) => return Ok(Some(Outcome::Undone)),
            Err(fault) => return Err(fault),
        };
        match outcome.as_deref() {
            Some("committed") if is_there => {
                link.query(CONFIRM_COMMIT, &[]).await?;
                return Ok(Some(Outcome::Committed));
            }
            Some("aborted") => return Ok(Some(Outcome::Undone)),
            Some("in progress") => {
                link.query(END_BACKEND, &[&seal.backend, &seal.transaction]).await?;
                sleep(LOOK_PAUSE).await;
            }
            // Committed, but what it wrote is not there; or too long ago to be known.
            _ => return Ok(Some(Outcome::Unknown("what the lost COMMIT wrote is not there any more".into()))),
        }
    }
    Ok(None)
}

/// What the server says of the transaction, and whether one of its writes is there.
async fn ask(link: &Link, seal: &Seal, evidence: Evidence<'_>) -> Result<(Option<String>, bool), Fault> {
    let rows = match evidence {
        Evidence::Claim(Write { next, .. }) => {
            let (workspace, id) = (next.key.workspace.as_str(), &next.key.id.as_bytes()[..]);
            let params: Params<'_> = &[&seal.transaction, &workspace, &id, &next.token.0, &next.version];
            link.query(COMMIT_OUTCOME, params).await?
        }
        Evidence::Record(record) => {
            let workspace = record.workspace.as_str();
            let params: Params<'_> = &[&seal.transaction, &workspace, &record.kind, &record.id, &record.version];
            link.query(COMMIT_OUTCOME_OF_RECORD, params).await?
        }
        Evidence::Job(job) => {
            let params: Params<'_> = &[&seal.transaction, &job.workspace.as_str(), &job.id, &job.version];
            link.query(COMMIT_OUTCOME_OF_JOB, params).await?
        }
        Evidence::None => link.query("SELECT pg_xact_status($1::text::xid8), true", &[&seal.transaction]).await?,
    };
    let row = rows.first().ok_or_else(|| Fault::Unable("the server says nothing of the transaction".into()))?;
    Ok((row.get(0), row.get(1)))
}
