//! The providers that the server calls: an SMS carrier, a mail provider, a CRM, and others that receive webhooks. Some recipients cause
//! trouble.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::caller::Dice;
use oncegate_process::failure::Failure;
use oncegate_process::loopback::{Call, Listener, Told};

/// The carrier always refuses this number.
pub const NO_MOBILE: &str = "+15550198";
/// The carrier accepts a message to this number, but its answer gets lost.
pub const CUT_OFF: &str = "+15550197";
/// The mail provider always refuses addresses that begin like this.
pub const NO_MAILBOX: &str = "nobody-";
/// Another company sends the mails of this campaign, and its log cannot be queried.
pub const PARTNER_CAMPAIGN: &str = "partner-offer";

/// How many of its mails the provider remembers.
const MAILS_KNOWN: usize = 1000;

pub struct Providers(Listener);

struct Books {
    /// The keys of accepted mails.
    mails: VecDeque<String>,
    dice: Dice,
}

impl Providers {
    pub async fn start() -> Result<Providers, Failure> {
        let books = Arc::new(Mutex::new(Books { mails: VecDeque::new(), dice: Dice(9) }));
        Ok(Providers(Listener::start(move |call| answer(books.clone(), call)).await?))
    }

    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

async fn answer(books: Arc<Mutex<Books>>, Call { path, key, body }: Call) -> Option<Told> {
    let roll = books.lock().expect("no holder panics").dice.roll();
    // The time of a call over a long distance.
    tokio::time::sleep(Duration::from_millis(60 + roll % 240)).await;
    let key = key.unwrap_or_default();
    let taken = |prefix: &str| Some((StatusCode::OK, json!({"id": format!("{prefix}-{}", roll % 1_000_000)})));
    let refused = |status, why: &str| Some((status, json!({"error": why})));
    match path.as_str() {
        "/sms" if body["recipientPhone"] == NO_MOBILE => {
            refused(StatusCode::UNPROCESSABLE_ENTITY, "not a mobile number")
        }
        "/sms" if body["recipientPhone"] == CUT_OFF => None,
        "/sms" => taken("sms"),
        "/mail" if body["to"].as_str().is_some_and(|to| to.starts_with(NO_MAILBOX)) => {
            refused(StatusCode::UNPROCESSABLE_ENTITY, "no such mailbox")
        }
        "/mail" => {
            books.lock().expect("no holder panics").take(key);
            taken("mail")
        }
        "/was-it-sent" => Some((StatusCode::OK, json!({"sent": books.lock().expect("no holder panics").knows(&body)}))),
        "/crm" if roll.is_multiple_of(7) => refused(StatusCode::TOO_MANY_REQUESTS, "too many requests: come again"),
        "/crm" => taken("crm"),
        "/closed-account" => refused(StatusCode::GONE, "this account is closed"),
        // The door may be open, but there is no answer.
        "/door" => None,
        _ => refused(StatusCode::NOT_FOUND, "nobody is here"),
    }
}

impl Books {
    fn take(&mut self, key: String) {
        if self.mails.len() == MAILS_KNOWN {
            self.mails.pop_front();
        }
        self.mails.push_back(key);
    }

    /// Whether a send was made; `None` if the provider cannot know.
    fn knows(&self, send: &Value) -> Option<bool> {
        let is_known = send["campaignId"] != PARTNER_CAMPAIGN;
        is_known.then(|| self.mails.iter().any(|key| send["providerKey"] == key.as_str()))
    }
}
