//! Our own effect paths: what each promises, which guards it uses, and where it can be killed.

use std::net::SocketAddr;

use oncegate::store::{Clock, SystemClock};
use serde_json::{Value, json};

use super::client::{self, NoAnswer};
use super::provider::Provider;

/// A moment between two steps of a job: a crash point in the program, or the provider's call.
#[derive(Clone, Copy)]
pub struct Point {
    /// `None`: the provider has received the call, and has not answered.
    pub name: Option<&'static str>,
    pub when: &'static str,
    /// The begin of the effect is not written yet, so the effect has to arrive despite a kill here.
    pub is_before_begin: bool,
}

const fn at(name: &'static str, when: &'static str) -> Point {
    Point { name: Some(name), when, is_before_begin: false }
}

const fn before(name: &'static str, when: &'static str) -> Point {
    Point { name: Some(name), when, is_before_begin: true }
}

const IN_CALL: Point =
    Point { name: None, when: "the provider has the call, and has not answered", is_before_begin: false };

/// What must hold, however many servers are killed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// Never twice. An effect that had not begun arrives. An effect that did not arrive is recorded as such.
    AtMostOnce,
    /// Always. A repeated call uses the same key.
    AtLeastOnce,
}

impl Promise {
    pub const fn sentence(self) -> &'static str {
        match self {
            Promise::AtMostOnce => {
                "At most once: an effect is never repeated, one that had not begun arrives, and one that may be missing is written down as such."
            }
            Promise::AtLeastOnce => {
                "At least once, under one key: nothing is missed, and a provider that honours the key has one effect."
            }
        }
    }
}

#[derive(Clone, Copy)]
enum How {
    Message,
    /// An action of this type.
    Action(&'static str),
    Email,
    Reminder,
    SagaCommand,
}

pub struct Path {
    pub name: &'static str,
    pub promise: Promise,
    pub policy: &'static str,
    pub flag: &'static str,
    /// Each guard with the place where it is stored.
    pub guards: &'static [(&'static str, &'static str)],
    pub points: &'static [Point],
    /// The setting `[sends] lost`.
    lost: &'static str,
    how: How,
}

/// The state of a job according to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    Open,
    Sent,
    Unknown,
    /// Not sent, as far as is known.
    Missed,
    /// Certainly not sent.
    Dead,
}

/// Whether a job is submitted for the first time or again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// The first time, with retries until it is answered.
    First,
    /// Once more, long after it was answered.
    Again,
}

const JOB: (&str, &str) = ("job", "the queue's row, leased by one worker under a token");

const ACTION_POINTS: &[Point] = &[
    before("action.received", "the request has come, and nothing is written"),
    // A worker may have begun before the crash.
    at("action.committed", "the action is written, and not acknowledged"),
    before("action.leased", "a worker has leased it"),
    at("action.running", "just before the call"),
    IN_CALL,
    at("action.ran", "the provider has answered, and that is not written"),
    at("action.finished", "all is written"),
];

const SEND_POINTS: &[Point] = &[
    at("action.leased", "a worker has leased the job"),
    at("action.running", "just before the handler"),
    at("send.asking", "before the worker asks whether to send"),
    at("send.begun", "it may send, and has not"),
    IN_CALL,
    at("send.sent", "the provider has answered, and that is not written"),
    at("send.settled", "the send is settled, and its job is not"),
    at("action.ran", "the handler is done, and its job is not"),
    at("action.finished", "all is written"),
];

const SEND_GUARDS: &[(&str, &str)] = &[
    ("send", "a claim on campaign and recipient, in the store's claims"),
    ("provider key", "the send's record; the same over every attempt"),
    JOB,
];

const SEND_FLAG: &str = "before the call: the claim is in flight, under a lease; after it the claim is settled";

pub const PATHS: &[Path] = &[
    Path {
        name: "message",
        promise: Promise::AtMostOnce,
        policy: "the channel's provider does not honour keys: what may have been sent is unknown, and not sent again",
        flag: "before the call: it is written that the send begins, after the commit that accepts the message",
        guards: &[
            ("message", "a claim on phone, email and text, in the store's claims"),
            ("idempotency", "a claim on the Idempotency-Key, in the store's claims"),
            JOB,
        ],
        points: &[
            before("message.received", "the request has come, and nothing is written"),
            before("message.committed", "the message is written, and its send has not begun"),
            at("message.begun", "it is written that the send begins"),
            at("message.sending", "just before the call"),
            IN_CALL,
            at("message.sent", "the provider has answered, and that is not written"),
            at("message.finished", "all is written, and the client has no answer"),
        ],
        lost: "resend",
        how: How::Message,
    },
    Path {
        name: "action, at least once",
        promise: Promise::AtLeastOnce,
        policy: "a try whose worker was lost is repeated, under the same effect key",
        flag: "after the call: a lease is as good as a try",
        guards: &[("action", "a claim on type and entity, in the store's claims"), JOB],
        points: ACTION_POINTS,
        lost: "resend",
        how: How::Action("drill:at-least-once"),
    },
    Path {
        name: "action, at most once",
        promise: Promise::AtMostOnce,
        policy: "a try that has begun is not repeated: if its worker was lost, the action is unknown",
        flag: "before the call: it is written that the try begins",
        guards: &[("action", "a claim on type and entity, in the store's claims"), JOB],
        points: &[
            ACTION_POINTS[0],
            ACTION_POINTS[1],
            ACTION_POINTS[2],
            at("action.begun", "it is written that it begins"),
            ACTION_POINTS[3],
            IN_CALL,
            ACTION_POINTS[5],
            ACTION_POINTS[6],
        ],
        lost: "resend",
        how: How::Action("drill:at-most-once"),
    },
    Path {
        name: "send, lost = \"resend\"",
        promise: Promise::AtLeastOnce,
        policy: "a send whose worker died is sent again by the next one, under the same provider key",
        flag: SEND_FLAG,
        guards: SEND_GUARDS,
        points: SEND_POINTS,
        lost: "resend",
        how: How::Email,
    },
    Path {
        name: "send, lost = \"skip\"",
        promise: Promise::AtMostOnce,
        policy: "a send whose worker died is unknown, and not sent again",
        flag: SEND_FLAG,
        guards: SEND_GUARDS,
        points: SEND_POINTS,
        lost: "skip",
        how: How::Email,
    },
    Path {
        name: "send, lost = \"hold\"",
        promise: Promise::AtMostOnce,
        policy: "a send whose worker died is unknown, until a person or the reconcile hook settles it",
        flag: SEND_FLAG,
        guards: SEND_GUARDS,
        points: SEND_POINTS,
        lost: "hold",
        how: How::Email,
    },
    Path {
        name: "reminder",
        promise: Promise::AtMostOnce,
        policy: "set before send: once its flag is set, only a try that surely reached nobody is repeated",
        flag: "before the call, in one conditional write; nothing takes it back",
        guards: &[
            ("reminder", "a claim on booking and kind, in the store's claims"),
            ("reminderSent", "the reminder's record, replaced onto the version that was read"),
            JOB,
        ],
        points: &[
            before("reminder.received", "the request has come, and nothing is written"),
            // A worker may have begun before the crash.
            at("reminder.committed", "the reminder is written, and not acknowledged"),
            before("reminder.leased", "a worker has leased it"),
            at("reminder.flagged", "its flag is set, and the carrier is not called"),
            IN_CALL,
            at("reminder.called", "the carrier has answered, and that is not written"),
            at("reminder.finished", "all is written"),
        ],
        lost: "resend",
        how: How::Reminder,
    },
    Path {
        name: "saga command",
        promise: Promise::AtLeastOnce,
        policy: "a command is an action, written in the commit of its event, and repeated under the same effect key",
        flag: "after the call: a lease is as good as a try",
        guards: &[
            ("saga", "a claim on the event's id, in the store's claims: the inbox"),
            ("instance", "the instance's record, replaced onto the version that was read"),
            JOB,
        ],
        points: &[
            at("saga.received", "the event has come, and nothing is written"),
            at("saga.committed", "state and command are written, and not acknowledged"),
            ACTION_POINTS[2],
            ACTION_POINTS[3],
            IN_CALL,
            ACTION_POINTS[5],
            ACTION_POINTS[6],
        ],
        lost: "resend",
        how: How::SagaCommand,
    },
];

/// The saga that each job starts. Its command goes to the provider.
pub const SAGA: &str = r#"name = "drill"
correlation = "event.data.job"
events = ["Started"]
states = ["Done"]
terminal = ["Done"]

[data]
job = "string"

[[on]]
in = "none"
event = "Started"
take = ["job"]
send = [{ command = "drill:command", payload = { entityId = "saga.job", text = "saga.job" } }]
to = "Done"

[[ignore]]
in = "Done"
event = "*"
"#;

impl Path {
    /// Leases are short, so that the work of a dead worker continues soon.
    pub fn config(&self, provider: &Provider) -> String {
        let (url, lost) = (provider.url(), self.lost);
        let webhook = |name: &str, delivery: &str| {
            format!("[actions.type.{name:?}]\nhandler = \"webhook\"\nurl = {url:?}\ndelivery = {delivery:?}\n")
        };
        [
            "[outgoing]\nallow = [\"127.0.0.0/8\"]\ntimeout = \"700ms\"\n".to_owned(),
            "[messages]\nlease = \"1s\"\nwait = \"500ms\"\nsend_wait = \"3s\"\n".into(),
            format!("[messages.channel.sms]\nkind = \"http\"\nurl = {url:?}\n"),
            "[actions]\nlease = \"1s\"\nwindow_seconds = 0.05\nmax_attempts = 50\nworkers = 32\n".into(),
            webhook("drill:at-least-once", "at_least_once"),
            webhook("drill:at-most-once", "at_most_once"),
            webhook("drill:command", "at_least_once"),
            format!(
                "[actions.type.\"drill:email\"]\nhandler = \"email\"\nurl = {url:?}\nfrom = \"drill@example.com\"\n"
            ),
            format!("[sends]\nlost = {lost:?}\nlease = \"1s\"\n"),
            "[sagas]\nfiles = [\"drill.toml\"]\n".into(),
        ]
        .concat()
    }

    /// Whether the same job may be submitted again at any later time, and still happens once. Actions are deduplicated within their
    /// window only.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self.how, How::Action(_))
    }

    /// Submits a job.
    pub async fn hand_in(&self, address: SocketAddr, job: &str, turn: Turn) -> Result<(), NoAnswer> {
        let action = |name: &str| json!({"actionType": name, "payload": {"entityId": job, "text": job}});
        let status = match self.how {
            How::Message => {
                let body = json!({"recipientPhone": "+15550100", "message": job});
                // The second time without its key, so that the text reveals the duplicate.
                let key = (turn == Turn::First).then_some(job);
                client::post(address, "/api/messages", key, &body).await?
            }
            How::Action(name) => client::post(address, "/api/actions", None, &action(name)).await?,
            How::Email => {
                let mut body = action("drill:email");
                body["payload"]["to"] = json!("ada@example.com");
                body["payload"]["campaignId"] = json!("drill");
                body["payload"]["recipientId"] = json!(job);
                client::post(address, "/api/actions", None, &body).await?
            }
            How::Reminder => {
                let body = json!({"bookingId": job, "sendAt": SystemClock.now().to_string(), "channel": "sms",
                    "recipientPhone": "+15550100", "message": job});
                client::post(address, "/api/reminders", None, &body).await?
            }
            How::SagaCommand => {
                let body = json!({"type": "Started", "id": job, "data": {"job": job}});
                client::post(address, "/api/events", None, &body).await?
            }
        };
        // 502: the message was accepted, but the outcome is unknown.
        if (200..300).contains(&status) || status == 502 { Ok(()) } else { Err(NoAnswer) }
    }

    /// Every job that the server knows, with its state.
    pub async fn standings(&self, address: SocketAddr) -> Result<Vec<(String, Stands)>, NoAnswer> {
        let (list, job, state) = match self.how {
            How::Message => ("/api/messages?".to_owned(), "/message", "/status"),
            How::Action(name) => (format!("/api/actions?type={name}&"), "/payload/text", "/status"),
            How::Email => ("/api/sends?campaignId=drill&".to_owned(), "/recipientId", "/state"),
            How::SagaCommand => ("/api/actions?type=drill:command&".to_owned(), "/payload/text", "/status"),
            How::Reminder => ("/api/reminders?".to_owned(), "/bookingId", "/state"),
        };
        let text = |item: &Value, pointer| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut standings = vec![];
        let mut cursor = String::new();
        loop {
            let page = client::get(address, &format!("{list}limit=500{cursor}")).await?;
            let items = page["items"].as_array().ok_or(NoAnswer)?;
            standings.extend(items.iter().map(|item| (text(item, job), stands(&text(item, state)))));
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return Ok(standings),
            }
        }
    }
}

fn stands(word: &str) -> Stands {
    match word {
        "sent" | "completed" => Stands::Sent,
        "unknown" => Stands::Unknown,
        "missed" => Stands::Missed,
        "dead" | "cancelled" => Stands::Dead,
        // A send or an action that has failed is retried.
        _ => Stands::Open,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crash points that these paths never or rarely reach, and the tests that kill there instead.
    const ELSEWHERE: &[(&str, &str)] = &[
        ("message.claimed", "a guard store apart: messages_apart.rs"),
        ("message.written", "a guard store apart: messages_apart.rs"),
        ("message.leased", "what waits in the queue: messages_crash.rs"),
        ("action.leased_for_worker", "remote workers: actions_workers.rs"),
        ("saga.leased", "timers: sagas_crash.rs"),
        ("saga.fired", "timers: sagas_crash.rs"),
        ("broker.handled", "a broker's messages: sagas_amqp.rs, sagas_nats.rs"),
        ("send.received", "workers over HTTP: sends_crash.rs"),
        ("send.committed", "workers over HTTP: sends_crash.rs"),
        ("send.leased", "a lease that ended: sends_settled.rs"),
        ("send.tended", "a lease that ended: sends_settled.rs"),
    ];

    fn points_in(folder: &std::path::Path, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(folder).expect("the sources are there") {
            let path = entry.expect("readable").path();
            if path.is_dir() {
                points_in(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&path).expect("text");
                // The server's own points, and the steps of the library, at which the server has points.
                for call in ["crash::point(\"", "watcher.reached(\""] {
                    let points = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                    found.extend(points.map(str::to_owned));
                }
            }
        }
    }

    #[test]
    fn every_point_of_the_program_is_drilled_or_killed_elsewhere() {
        let mut found = vec![];
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("it is among the crates");
        for name in ["oncegate", "oncegate-http", "oncegate-server", "oncegate-transports"] {
            points_in(&crates.join(name).join("src"), &mut found);
        }
        let drilled: Vec<&str> = PATHS.iter().flat_map(|path| path.points).filter_map(|point| point.name).collect();
        for point in &found {
            let is_elsewhere = ELSEWHERE.iter().any(|(elsewhere, _)| elsewhere == point);
            assert!(drilled.contains(&point.as_str()) != is_elsewhere, "{point}: drilled, or elsewhere");
        }
        for point in drilled.iter().chain(ELSEWHERE.iter().map(|(point, _)| point)) {
            assert!(found.iter().any(|found| found == point), "{point} is in the program");
        }
    }
}
