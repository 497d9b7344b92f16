//! The provider: a call that arrives here has happened. It counts calls, and it can set a trap. The caller that springs the trap is
//! killed in its call, or just after the answer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use oncegate_process::failure::Failure;
use oncegate_process::loopback::{Call, Listener, Told};

/// How long the provider holds a call whose caller is to be killed.
const HELD_MAX: Duration = Duration::from_secs(30);
/// How often other tasks run between an answer and the kill.
const ANSWER_TURNS: usize = 20;

/// When a trap springs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The call has arrived, and is not answered yet.
    InCall,
    /// The answer has been given.
    AfterAnswer,
}

pub struct Provider {
    pub listener: Listener,
    books: Arc<Mutex<Books>>,
}

/// The calls that have arrived for one job.
#[derive(Clone, Debug, Default)]
pub struct Arrived {
    pub calls: usize,
    /// Calls under a new key, or under none: the effects at a provider that honours keys.
    pub effects: usize,
}

#[derive(Default)]
struct Books {
    arrived: BTreeMap<String, Arrived>,
    /// The job that used each key first.
    keys: BTreeMap<String, String>,
    /// Calls under a key that another job used first.
    borrowed: usize,
    /// Calls that match no job.
    strange: usize,
    /// Receives the recipient of the call that springs the trap.
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

    /// Sets the trap. The receiver that it returns gets a value when the trap springs.
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

    /// All jobs with at least one call.
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

/// The job of a call is in `recipientId`, or, for our own workers, in its text.
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
                // Leaves time to write the answer, and not for much more.
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
