//! Reminders of a post office's servers.

use std::time::Duration;

use oncegate::store::{Clock, SystemClock};
use serde_json::{Value, json};

use super::{PostOffice, Reply, eventually};

/// A time this far from now, in the format of a request.
pub fn from_now(span: Duration) -> String {
    (SystemClock.now() + span).to_string()
}

/// A reminder by this channel, due now.
pub fn reminder(booking: &str, channel: &str, text: &str) -> Value {
    let send_at = from_now(Duration::ZERO);
    json!({"bookingId": booking, "sendAt": send_at, "channel": channel, "recipientPhone": "+15550100", "message": text})
}

impl PostOffice {
    /// Creates a reminder, and returns its id.
    pub async fn remind(&self, body: &Value) -> String {
        self.client(0).post("/api/reminders", body).await.expect(201).text("id")
    }

    pub async fn reminder(&self, id: &str) -> Value {
        self.client(1).get(&format!("/api/reminders/{id}")).await.expect(200).body
    }

    /// Waits until the reminder is in this state, and returns it.
    pub async fn reminder_becomes(&self, id: &str, state: &str) -> Value {
        eventually(&format!("{id} is {state}"), || async {
            Some(self.reminder(id).await).filter(|reminder| reminder["state"] == state)
        })
        .await
    }

    /// A person sends it.
    pub async fn send_reminder(&self, id: &str, note: &str) -> Reply {
        self.client(0).post(&format!("/api/reminders/{id}/send"), &json!({"note": note})).await
    }
}

/// The outcome of each row of the delivery log, and whether the message may have arrived.
pub fn outcomes(reminder: &Value) -> Vec<(String, Option<String>)> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let rows = reminder["deliveries"].as_array().expect("a log").iter();
    rows.map(|row| (text(&row["outcome"]).expect("an outcome"), text(&row["reached"]))).collect()
}
