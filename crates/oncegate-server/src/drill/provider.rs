//! The provider: what arrives here has happened. It counts, and it can be a trap: who calls it while it is set is killed in the call, or just after its answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::cli::Failure;
use crate::loopback::{Call, Listener, Told};

/// How long a caller is held that is to be killed in its call.
const HELD_MAX: Duration = Duration::from_secs(30);
/// Turns that others get between an answer and the kill.
const ANSWER_TURNS: usize = 20;

/// When a trap springs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The call has arrived, and is not answered.
    InCall,
    /// The answer has been given.
    AfterAnswer,
}

pub struct Provider {
    pub listener: Listener,
    books: Arc<Mutex<Books>>,
}

/// What has arrived of one job.
#[derive(Clone, Debug, Default)]
pub struct Arrived {
    pub calls: usize,
    /// Calls under a key that had not been seen, or under none: what somebody who honours keys has done.
    pub effects: usize,
}

#[derive(Default)]
struct Books {
    arrived: BTreeMap<String, Arrived>,
    /// Whose each key was first.
    keys: BTreeMap<String, String>,
    /// Calls under a key that was another job's.
    borrowed: usize,
    /// Calls of which nobody can say what they are about.
    strange: usize,
    /// Whose call springs it is told.
    trap: Option<(Moment, oneshot::Sender<String>)>,
}

impl Provider {
    pub async fn start() -> Result<Provider, Failure> {
        let books: Arc<Mutex<Books>> = Arc::default();
        let kept = books.clone();
        let listener = Listener::start(move |call| answer(books.clone(), call)).await?;
        Ok(Provider { listener, books: kept })
    }

    pub fn url(&self) -> String {
        format!("http://{}/send", self.listener.address)
    }

    /// Sets the trap. What is returned tells when it springs.
    pub fn set_trap(&self, moment: Moment) -> oneshot::Receiver<String> {
        let (springs, sprung) = oneshot::channel();
        self.books.lock().expect("no holder panics").trap = Some((moment, springs));
        sprung
    }

    pub fn take_trap(&self) {
        self.books.lock().expect("no holder panics").trap = None;
    }

    pub fn arrived(&self, job: &str) -> Arrived {
        self.books.lock().expect("no holder panics").arrived.get(job).cloned().unwrap_or_default()
    }

    /// All of which something arrived.
    pub fn jobs(&self) -> BTreeSet<String> {
        self.books.lock().expect("no holder panics").arrived.keys().cloned().collect()
    }

    pub fn borrowed(&self) -> usize {
        self.books.lock().expect("no holder panics").borrowed
    }

    pub fn strange(&self) -> usize {
        self.books.lock().expect("no holder panics").strange
    }
}

/// A call has its job in `recipientId`, or, from our own workers, in its text.
fn job_of(body: &Value) -> Option<&str> {
    ["recipientId", "message", "text"].iter().find_map(|field| body[field].as_str())
}

async fn answer(books: Arc<Mutex<Books>>, Call { key, body, .. }: Call) -> Option<Told> {
    let (number, trap) = {
        let mut books = books.lock().expect("no holder panics");
        let Some(job) = job_of(&body) else {
            books.strange += 1;
            return Some((StatusCode::BAD_REQUEST, json!({"error": "there is no recipientId in the body"})));
        };
        let owner = key.map(|key| books.keys.entry(key).or_default());
        let is_new = match owner {
            None => true,
            Some(owner) if owner.is_empty() => {
                job.clone_into(owner);
                true
            }
            Some(owner) => {
                let is_borrowed = owner != job;
                books.borrowed += usize::from(is_borrowed);
                false
            }
        };
        let arrived = books.arrived.entry(job.to_owned()).or_default();
        arrived.calls += 1;
        arrived.effects += usize::from(is_new);
        (arrived.calls, books.trap.take().map(|(moment, springs)| (moment, springs, job.to_owned())))
    };
    match trap {
        Some((Moment::InCall, springs, job)) => {
            let _ = springs.send(job);
            tokio::time::sleep(HELD_MAX).await;
        }
        Some((Moment::AfterAnswer, springs, job)) => {
            tokio::spawn(async move {
                // Time for the answer to be written, and not for much more.
                for _ in 0..ANSWER_TURNS {
                    tokio::task::yield_now().await;
                }
                let _ = springs.send(job);
            });
        }
        None => {}
    }
    Some((StatusCode::OK, json!({"id": format!("esp-{}-{number}", job_of(&body).unwrap_or_default())})))
}
