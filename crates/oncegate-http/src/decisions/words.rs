//! The meaning of a decision, in words: for the dashboard and `oncegate tail`.
//!
//! A decision is a line of the log whose event is known here. The line has all the data that is shown. It never contains a text, an address
//! or
//! a part of a key.

use std::fmt::Write;
use std::time::Duration;

use serde_json::Value;

/// The guard of acts of people.
pub const AUDIT: &str = "audit";

/// The result for the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The caller may go ahead.
    Passed,
    /// The allowed work is done.
    Done,
    /// The caller must not go ahead: an earlier caller has the claim.
    Stopped,
    /// The work failed and is retried, or it was too late.
    Failed,
    /// A person has to look at it.
    Needed,
    /// An intermediate step.
    Noted,
}

impl Fate {
    pub const fn as_str(self) -> &'static str {
        match self {
            Fate::Passed => "passed",
            Fate::Done => "done",
            Fate::Stopped => "stopped",
            Fate::Failed => "failed",
            Fate::Needed => "needed",
            Fate::Noted => "noted",
        }
    }

    pub const ALL: [Fate; 6] = [Fate::Passed, Fate::Done, Fate::Stopped, Fate::Failed, Fate::Needed, Fate::Noted];
}

/// A kind of decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub fate: Fate,
    /// The guard of the decision, where the line does not name one.
    pub guard: &'static str,
    says: &'static str,
}

macro_rules! meanings {
    ($($guard:literal { $($event:literal $fate:ident $says:literal;)* })*) => {
        const fn meaning(guard: &'static str, fate: Fate, says: &'static str) -> Meaning {
            Meaning { fate, guard, says }
        }

        impl Meaning {
            /// The meaning of a line's event, if the line is a decision.
            pub fn of(event: &str) -> Option<&'static Meaning> {
                Some(match event {
                    $($($event => const { &meaning($guard, Fate::$fate, $says) },)*)*
                    _ => return None,
                })
            }

            #[cfg(test)]
            const EVENTS: &[&str] = &[$($($event,)*)*];
        }
    };
}

meanings! {
    "" {
        "claim.won" Passed "first request: allowed";
        "claim.duplicate" Stopped "stopped: the first request came{age} and is settled; got its outcome";
        "claim.in_flight" Stopped "stopped: its owner began{age} and is at work";
        "claim.mismatch" Stopped "stopped: the key was used{age} for another request";
        "claim.held" Stopped "stopped: it may have happened; a person has to resolve it";
        "claim.fenced" Failed "refused: too late, another caller is the owner now";
        "claim.refused" Failed "refused: there is no such claim, or it is not in that state";
        "claim.already_settled" Noted "repeated report; nothing changed";
        "claim.renewed" Noted "its owner renewed the lease";
        "claim.done" Done "done: later callers get its outcome";
        "claim.failed" Failed "failed: it did not happen";
        "claim.unknown" Needed "unknown: it may have happened; a person has to resolve it";
        "claim.released" Noted "released: nothing happened; the next caller may try";
        "claim.retracted" Noted "retracted: it did not happen";
        "claim.duplicate_guard_error" Failed "let through unguarded: the store is away";
    }
    "message" {
        "message.api.sent" Passed "sent";
        "message.api.failed" Failed "not sent: the carrier refused it, or could not be reached";
        "message.api.unknown" Needed "it may have been sent: the carrier's answer was lost";
        "message.api.duplicate_blocked" Stopped "stopped: the same text went to the same person{age}";
        "message.api.duplicate_observed" Noted "a duplicate, let through: the guard only observes";
        "message.api.duplicate_pending" Stopped "stopped: the same text is being sent to the same person";
        "message.api.duplicate_guard_error" Failed "let through unguarded: the guard store is away";
    }
    "idempotency" {
        "message.api.replayed" Stopped "stopped: the same Idempotency-Key{age}; got the first answer again";
    }
    "action" {
        "action.scheduled" Passed "scheduled";
        "action.deduplicated" Stopped "duplicate, coalesced into the waiting action{revision}";
        "action.completed" Done "completed";
        "action.dead" Needed "dead: it did not happen, and no attempts are left";
        "action.cancelled" Noted "cancelled by a person";
        "action.unknown" Needed "unknown: it may have happened";
        "action.failed" Failed "an attempt failed; it will be retried";
        "action.lease_lost" Failed "its worker reported too late";
    }
    "send" {
        "send.begun" Passed "allowed{attempt}";
        "send.skipped" Stopped "stopped: {why}";
        "send.sent" Done "sent";
        "send.failed" Failed "surely not sent; the next worker may send it";
        "send.lost" Failed "it may have been sent; the next worker sends it again under the same key";
        "send.unknown" Needed "unknown: it may have been sent; a person has to resolve it";
        "send.renewed" Noted "its worker renewed the lease";
        "send.fenced" Failed "refused: too late, another worker has begun it";
        "send.resolved" Noted "settled by a person, or by the reconcile hook";
    }
    "reminder" {
        "reminder.set" Passed "set";
        "reminder.duplicate" Stopped "stopped: the booking has this reminder already";
        "reminder.moved" Noted "moved or reworded";
        "reminder.cancelled" Noted "cancelled";
        "reminder.sent" Done "sent";
        "reminder.missed" Needed "missed: not sent in time";
        "reminder.failed" Failed "an attempt reached no recipient; it will be retried";
        "reminder.lease_lost" Failed "its worker reported too late";
    }
    "saga" {
        "saga.applied" Passed "{event} applied{state}";
        "saga.incomplete" Passed "{event} applied{state}; required data is missing";
        "saga.ignored" Noted "{event} ignored: it changes nothing{state}";
        "saga.duplicate" Stopped "stopped: {event} was applied before";
        "saga.dead_letter" Needed "{event} could not be applied: it is a dead letter";
    }
    "audit" {
        "audit.forget" Noted "claim forgotten{by}";
        "audit.resolve" Noted "claim settled{by}";
        "audit.send_resolved" Noted "send settled{sent}{by}";
        "audit.message_resolved" Noted "message settled{sent}{by}";
        "audit.reminder_resolved" Noted "missed reminder settled{sent}{by}";
        "audit.action_done" Noted "action settled as done{by}";
        "audit.action_let_be" Noted "action dismissed{by}";
        "audit.reminder_sent" Noted "missed reminder sent{by}";
        "audit.reminder_cancelled" Noted "reminder cancelled{by}";
        "audit.action_cancelled" Noted "action cancelled{by}";
        "audit.action_retried" Noted "action retried{by}";
        "audit.action_run_now" Noted "action run now{by}";
        "audit.dead_letter_retried" Noted "dead letter retried{by}";
        "audit.dead_letter_discarded" Noted "dead letter discarded{by}";
        "audit.key_created" Noted "key created{by}";
        "audit.key_revoked" Noted "key revoked{by}";
        "audit.login_failed" Needed "a wrong key was sent{by}";
        "audit.not_done" Failed "the request was not carried out{by}";
    }
}

/// A log line's decision, in words.
pub fn words(meaning: &Meaning, line: &Value) -> String {
    let mut said = String::new();
    let mut rest = meaning.says;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').expect("every brace is closed");
        said.push_str(before);
        said.push_str(&filled(name, line));
        rest = after;
    }
    said.push_str(rest);
    said
}

fn filled(name: &str, line: &Value) -> String {
    let text = |field: &str| line[field].as_str();
    match name {
        "age" => line["ageSeconds"].as_f64().map_or(String::new(), |age| {
            format!(" {} ago", span(Duration::try_from_secs_f64(age).unwrap_or_default()))
        }),
        "revision" => line["revision"].as_i64().map_or(String::new(), |revision| format!(" (revision {revision})")),
        "attempt" => line["attempt"]
            .as_i64()
            .filter(|attempt| *attempt > 1)
            .map_or(String::new(), |attempt| format!(", attempt {attempt}, under the same key")),
        "state" => text("state").map_or(String::new(), |state| format!(" in state {state}")),
        "sent" => match line["sent"].as_bool() {
            Some(true) => " as sent".to_owned(),
            Some(false) => " as not sent".to_owned(),
            None => String::new(),
        },
        "event" => text("eventType").unwrap_or("the event").to_owned(),
        "by" => match (text("by"), text("why")) {
            (Some(by), Some(why)) => format!(" by {by}: {why}"),
            (Some(by), None) => format!(" by {by}"),
            (None, _) => String::new(),
        },
        "why" => match text("why") {
            Some("sent") => "it was sent already",
            Some("busy") => "another worker is sending it",
            _ => "it may have been sent",
        }
        .to_owned(),
        _ => unreachable!("a place that nothing fills: {name}"),
    }
}

/// A span for people: one unit, two digits.
pub fn span(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{} ms", span.as_millis()),
        1..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// The subject of a decision: a field of the log line, and its value.
pub fn subject(line: &Value) -> Option<(&'static str, &str)> {
    const SUBJECTS: [&str; 6] = ["messageId", "actionId", "sendId", "reminderId", "deadLetterId", "claimId"];
    SUBJECTS.iter().find_map(|field| Some((*field, line[field].as_str()?)))
}

/// One line for a terminal.
pub fn plain(line: &Value) -> Option<String> {
    let event = line["event"].as_str()?;
    let meaning = Meaning::of(event)?;
    let guard = line["guard"].as_str().unwrap_or(meaning.guard);
    let says = words(meaning, line);
    // The fate has a column of its own.
    let says = says.strip_prefix("stopped: ").unwrap_or(&says);
    let mut said = format!("{guard:<16} {:<8} {says}", meaning.fate.as_str());
    for field in ["actionType", "saga"] {
        if let Some(name) = line[field].as_str() {
            let _ = write!(said, " · {name}");
        }
    }
    if let Some((_, id)) = subject(line) {
        let _ = write!(said, " · {id}");
    }
    // Reasons are people's own words: a terminal would obey control characters in them.
    Some(said.replace(char::is_control, " "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_decision_has_words_whatever_its_line_holds() {
        for event in Meaning::EVENTS {
            let meaning = Meaning::of(event).unwrap();
            for line in [
                json!({}),
                json!({"ageSeconds": 1e300, "revision": 2, "attempt": 3, "state": "s", "why": "x", "eventType": "e"}),
            ] {
                let said = words(meaning, &line);
                assert!(!said.is_empty() && !said.contains('{') && !said.contains("  "), "{event}: {said}");
            }
        }
    }

    #[test]
    fn a_line_says_why_somebody_was_stopped() {
        let line = json!({"event": "claim.duplicate", "guard": "charge", "claimId": "ab", "ageSeconds": 185.0});
        assert_eq!(
            plain(&line).unwrap(),
            "charge           stopped  the first request came 3 min ago and is settled; got its outcome · ab"
        );
        let line = json!({"event": "send.skipped", "why": "busy"});
        assert_eq!(plain(&line).unwrap(), "send             stopped  another worker is sending it");
        assert_eq!(plain(&json!({"event": "server.listening"})), None);
        let line = json!({"event": "audit.forget", "by": "ada", "why": "\u{1b}[31mit\nnever came"});
        assert_eq!(plain(&line).unwrap(), "audit            noted    claim forgotten by ada:  [31mit never came");
    }

    #[test]
    fn a_span_is_said_in_one_unit() {
        let said = [0.004, 1.0, 119.0, 120.0, 7_200.0, 172_800.0].map(|s| span(Duration::from_secs_f64(s)));
        assert_eq!(said, ["4 ms", "1 s", "119 s", "2 min", "2 h", "2 days"]);
    }
}
